"""What a release costs one privacy unit, as a ledger charges it, and how that number reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_dphist.accounting.composition import (
    STANDARD_COUNTS,
    NoiseFamily,
    PolicyCost,
    Rho,
    delta_left_lower,
    tight_epsilon_upper,
)
from spark_dphist.accounting.conversions import (
    epsilon_upper,
    gaussian_attacker_accuracy_upper,
    gaussian_epsilon_upper,
    gaussian_mu_upper,
    pure_attacker_accuracy_upper,
    zcdp_attacker_accuracy_upper,
)
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Mechanism, TransformMechanism
from spark_dphist.mechanisms.partition_selection import as_written

# Twice the statistical distance of one draw from a rounded Gaussian, and room for rounding.
_LATTICE_DISTANCE = 2.0**-53


@dataclass(frozen=True)
class Reading:
    """A budget and what it means; all rounded towards more loss.

    ``rho`` is zCDP, ``epsilon`` its (epsilon, delta) reading in nats at the delta asked for,
    ``attacker_accuracy`` the best membership guess at even odds.
    """

    rho: float
    epsilon: float
    attacker_accuracy: float


def noise_family(mechanism: Mechanism) -> NoiseFamily:
    """Return what is known of a mechanism's noise beyond its rho (see ``PolicyCost``)."""
    # Without noise there is nothing to lose, and Gaussian noise that costs nothing says as much.
    if isinstance(mechanism, TransformMechanism) or mechanism.noise is None:
        return "gaussian"
    return "zcdp" if mechanism.pure_epsilon() is None else "pure"


def read_budget(mechanism: Mechanism, rho: float, records: int, delta: float) -> Reading:
    """Read a zCDP budget with all that is known of the mechanism's noise.

    Parameters
    ----------
    mechanism
        Whose budget it is.
    rho
        Bound on the budget, in rho.
    records
        By how many records in all the neighbouring data sets differ.
    delta
        Probability at which epsilon is read.
    """
    through_zcdp = epsilon_upper(rho, delta)
    epsilon = mechanism.pure_epsilon(records)
    if epsilon is not None:
        return Reading(rho, min(epsilon, through_zcdp), pure_attacker_accuracy_upper(epsilon))
    if noise_family(mechanism) == "gaussian":
        tight = gaussian_epsilon_upper(gaussian_mu_upper(rho), delta)
        return Reading(rho, min(tight, through_zcdp), gaussian_attacker_accuracy_upper(rho))
    return Reading(rho, through_zcdp, zcdp_attacker_accuracy_upper(rho))


def read_worst_case(
    mechanism: Mechanism, unit: PrivacyUnit, delta: float, selection: KeySelection | None = None
) -> Reading:
    """Read what the release costs one unit at most, whatever the data and its groups.

    Parameters
    ----------
    mechanism, unit
        Public policy.
    delta
        Probability at which epsilon is read.
    selection
        How the release learns its key set, if it does: the reading is of both together.

    Raises
    ------
    ConfigurationError
        If the selection's delta leaves nothing of ``delta``.
    """
    if selection is not None:
        return _with_selection(mechanism, unit, delta, selection)
    rho, draws = unit.worst_case_rho_upper(mechanism), unit.max_records
    reading = read_budget(mechanism, rho, draws, delta)
    if draws == 1 or noise_family(mechanism) != "gaussian":
        return reading
    # The unit's groups have a draw each: together they are Gaussian up to a distance for each
    # (docs/ledger.md, "The lattice in the tight bound"), which the composition counts.
    cost = PolicyCost(Rho.upper(rho), mechanism.name, records_per_unit=draws)
    accuracy = min(reading.attacker_accuracy + draws * _LATTICE_DISTANCE, 1.0)
    return Reading(rho, tight_epsilon_upper([cost], delta), accuracy)


def _with_selection(
    mechanism: Mechanism, unit: PrivacyUnit, delta: float, selection: KeySelection
) -> Reading:
    left = delta_left_lower(delta, Rho.upper(as_written(selection.delta)))
    if not left > 0:
        raise ConfigurationError(
            f"learning the key set takes delta = {selection.delta:g}, which leaves nothing of the "
            f"delta = {delta:g} at which epsilon is read. Lower the selection's delta, to a tenth "
            "for example, or raise the other."
        )
    alone = read_worst_case(mechanism, unit, left)
    rho = (Rho.upper(alone.rho) + Rho.upper(selection.rho_upper)).float_upper()
    # docs/key-selection.md, Theorem 3: both readings hold, the least is stated.
    through_zcdp = epsilon_upper(rho, left)
    added = math.nextafter(alone.epsilon + selection.epsilon, math.inf)
    # Total variation distances add as well (of the selection: Kairouz, Oh, Viswanath 2015).
    of_selection = pure_attacker_accuracy_upper(selection.epsilon) - 0.5 + selection.delta
    accuracy = min(
        alone.attacker_accuracy + of_selection,
        zcdp_attacker_accuracy_upper(rho) + selection.delta,
        1.0,
    )
    return Reading(rho, min(through_zcdp, added), accuracy)


def policy_cost(
    mechanism: Mechanism,
    unit: PrivacyUnit,
    parameters: Mapping[str, Any],
    selection: KeySelection | None = None,
) -> PolicyCost:
    """Return what a ledger charges for one release.

    Parameters
    ----------
    mechanism, unit
        Public policy.
    parameters
        Further public parameters for the record, beside the mechanism's own.
    selection
        How the release learns its key set, if it does: its rho is added everywhere, its delta
        stands apart, and its parameters are recorded as ``key_selection``.
    """
    # A bound for smaller groups holds for larger ones too.
    at_least = np.minimum.accumulate(unit.rho_at_least_upper(mechanism, [0, *STANDARD_COUNTS]))
    learnt = Rho() if selection is None else Rho.upper(selection.rho_upper)
    worst, *falling = (Rho.upper(float(rho)) + learnt for rho in at_least)
    return PolicyCost(
        worst,
        mechanism.name,
        {
            **parameters,
            **mechanism.parameters(),
            **({"key_selection": selection.parameters()} if selection else {}),
        },
        privacy_unit=unit.name,
        records_per_unit=unit.max_records,
        at_least=tuple(zip(STANDARD_COUNTS, falling, strict=True)),
        noise=noise_family(mechanism) if selection is None else "zcdp",
        pure_epsilon=None if selection else mechanism.pure_epsilon(unit.max_records),
        delta=Rho() if selection is None else Rho.upper(selection.delta_upper),
    )
