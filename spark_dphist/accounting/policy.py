"""What a release costs one privacy unit, as a ledger charges it, and how that number reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_dphist.accounting.composition import (
    STANDARD_COUNTS,
    NoiseFamily,
    PolicyCost,
    Rho,
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
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import Mechanism, TransformMechanism

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


def read_worst_case(mechanism: Mechanism, unit: PrivacyUnit, delta: float) -> Reading:
    """Read what the release costs one unit at most, whatever the data and its groups."""
    rho, draws = unit.worst_case_rho_upper(mechanism), unit.max_records
    reading = read_budget(mechanism, rho, draws, delta)
    if draws == 1 or noise_family(mechanism) != "gaussian":
        return reading
    # The unit's groups have a draw each: together they are Gaussian up to a distance for each
    # (docs/ledger.md, "The lattice in the tight bound"), which the composition counts.
    cost = PolicyCost(Rho.upper(rho), mechanism.name, records_per_unit=draws)
    accuracy = min(reading.attacker_accuracy + draws * _LATTICE_DISTANCE, 1.0)
    return Reading(rho, tight_epsilon_upper([cost], delta), accuracy)


def policy_cost(
    mechanism: Mechanism, unit: PrivacyUnit, parameters: Mapping[str, Any]
) -> PolicyCost:
    """Return what a ledger charges for one release.

    Parameters
    ----------
    mechanism, unit
        Public policy.
    parameters
        Further public parameters for the record, beside the mechanism's own.
    """
    # A bound for smaller groups holds for larger ones too.
    at_least = np.minimum.accumulate(unit.rho_at_least_upper(mechanism, [0, *STANDARD_COUNTS]))
    worst, *falling = (Rho.upper(float(rho)) for rho in at_least)
    return PolicyCost(
        worst,
        mechanism.name,
        {**parameters, **mechanism.parameters()},
        privacy_unit=unit.name,
        records_per_unit=unit.max_records,
        at_least=tuple(zip(STANDARD_COUNTS, falling, strict=True)),
        noise=noise_family(mechanism),
        pure_epsilon=mechanism.pure_epsilon(unit.max_records),
    )
