"""How the budgets of several releases add up: exact amounts, public costs, what they compose to.

zCDP adds (Bun and Steinke 2016, Lemma 1.7), policy by policy: over the same groups a set of
releases is V(n)-zCDP with V(n) = sum_j v_j(n). A person's groups differ between groupings, so the
bound that holds for everyone is the sum of the releases' worst cases, sum_j v_j(1) k_j**2; each
release's ``PolicyCost`` carries its own term of that sum.

Amounts are whole numbers of 1e-30 rho, rounded up once where a double enters. Sums are exact, so a
spend far too small to move a double still counts.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Literal, get_args

from spark_dphist.accounting.conversions import (
    epsilon_upper,
    gaussian_epsilon_upper,
    gaussian_mu_upper,
    pure_to_rho_upper,
)
from spark_dphist.errors import ConfigurationError, did_you_mean

Number = float | int | Fraction | Decimal | str
NoiseFamily = Literal["gaussian", "laplace", "pure", "zcdp"]

_DECIMALS = 30
_UNITS_PER_RHO = 10**_DECIMALS

# 1, 2, 5, 10, ... 1e12 records: where a release's cost is tabulated unless told otherwise.
STANDARD_COUNTS: tuple[int, ...] = (
    *(step * 10**exponent for exponent in range(12) for step in (1, 2, 5)),
    10**12,
)

# Statistical distance of a discrete Gaussian 2**35 or more lattice steps wide from a rounded
# continuous one: at most 1/(40 s**2) < 2**-75 (docs/ledger.md, "The lattice in the tight bound").
_LATTICE_DISTANCE = 2.0**-75
# Share of delta set aside for that distance and for the rounding error of dp-accounting's FFT.
_DELTA_ASIDE = 2.0**-10
_FFT_ERROR = 1e-12


@dataclass(frozen=True, order=True)
class Rho:
    """An exact zCDP amount in nats, kept as a whole number of 1e-30.

    The delta of approximate zCDP, a probability, is kept and added in the same way.

    Parameters
    ----------
    units
        Number of 1e-30 rho, at least 0.
    """

    units: int = 0

    def __post_init__(self) -> None:
        if self.units < 0:
            raise ConfigurationError(f"A privacy loss is at least 0, got {self}.")

    @classmethod
    def upper(cls, amount: Number) -> Rho:
        """Return the least amount that is not below ``amount``: what a spend is charged as.

        A float counts as the exact binary number it is, text and Decimal as written.

        Raises
        ------
        ConfigurationError
            If ``amount`` is negative, infinite or not a number.
        """
        return cls(math.ceil(_exact(amount) * _UNITS_PER_RHO))

    @classmethod
    def lower(cls, amount: Number) -> Rho:
        """Return the largest amount that is not above ``amount``: what a cap allows.

        Raises
        ------
        ConfigurationError
            If ``amount`` is negative, infinite or not a number.
        """
        return cls(math.floor(_exact(amount) * _UNITS_PER_RHO))

    def __add__(self, other: Rho) -> Rho:
        return Rho(self.units + other.units)

    def __sub__(self, other: Rho) -> Rho:
        return Rho(self.units - other.units)

    def __str__(self) -> str:
        whole, rest = divmod(abs(self.units), _UNITS_PER_RHO)
        decimals = f"{rest:0{_DECIMALS}d}".rstrip("0")
        sign = "-" if self.units < 0 else ""
        return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"

    def float_upper(self) -> float:
        """Return the least double that is not below the amount."""
        exact = Fraction(self.units, _UNITS_PER_RHO)
        try:
            nearest = float(exact)
        except OverflowError:
            return math.inf
        return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def _exact(amount: Number) -> Fraction:
    try:
        exact = Fraction(Decimal(amount.strip()) if isinstance(amount, str) else amount)
    except (ValueError, OverflowError, TypeError, InvalidOperation):
        exact = Fraction(-1)
    if exact < 0:
        raise ConfigurationError(
            f"A privacy loss is a finite number of nats, at least 0, got {amount!r}."
        )
    return exact


@dataclass(frozen=True)
class PolicyCost:
    """What one release costs one privacy unit, from its public policy alone.

    Parameters
    ----------
    rho_upper
        Worst case over all groups and all ways a unit's records can lie in them, rounded up.
    mechanism
        Name of the mechanism, for the record.
    parameters
        Its public parameters (sigma, floor, relative_error, shift, ...); JSON values only.
    privacy_unit
        Whose presence the cost is about: ``record`` or the name of the unit's column.
    records_per_unit
        The bound k on the records of one unit, folded into every amount already.
    at_least
        Pairs (count, rho), counts rising: for a unit all of whose records lie in groups of at
        least ``count`` records, the release costs at most ``rho``. May be empty: then
        ``rho_upper`` holds throughout.
    noise
        What else is known of the noise, for the tight bound: ``gaussian`` if the release is a
        post-processing of Gaussian noise of this rho (on a lattice 2**35 steps wide or more),
        ``laplace`` for continuous Laplace noise on one number, ``pure`` for any other epsilon-DP
        mechanism (discrete Laplace included), ``zcdp`` if nothing is.
    pure_epsilon
        epsilon in nats, for ``laplace`` and ``pure``.
    delta
        The release is delta-approximate zCDP (Bun and Steinke 2016, Definition 8.1): up to events
        of this probability its budget is the rho. 0 unless it learns its key set; above 0 for the
        family ``zcdp`` alone.
    """

    rho_upper: Rho
    mechanism: str
    parameters: Mapping[str, object] = field(default_factory=dict)
    privacy_unit: str = "record"
    records_per_unit: int = 1
    at_least: tuple[tuple[int, Rho], ...] = ()
    noise: NoiseFamily = "gaussian"
    pure_epsilon: float | None = None
    delta: Rho = Rho()

    def __post_init__(self) -> None:
        if self.noise not in get_args(NoiseFamily):
            hint = did_you_mean(str(self.noise), get_args(NoiseFamily))
            raise ConfigurationError(f"Unknown noise family {self.noise!r}. {hint}")
        if type(self.records_per_unit) is not int or self.records_per_unit < 1:
            raise ConfigurationError(
                f"records_per_unit must be a whole number >= 1, got {self.records_per_unit!r}."
            )
        if (self.pure_epsilon is not None) != (self.noise in ("laplace", "pure")):
            raise ConfigurationError(
                f"pure_epsilon belongs to the noise families 'laplace' and 'pure' and to no other, "
                f"got pure_epsilon={self.pure_epsilon!r} with noise={self.noise!r}."
            )
        if self.delta > Rho() and self.noise != "zcdp":
            raise ConfigurationError(
                f"A delta belongs to the noise family 'zcdp' and to no other, got delta="
                f"{self.delta} with noise={self.noise!r}."
            )
        object.__setattr__(self, "parameters", json.loads(canonical_json(self.parameters)))
        object.__setattr__(self, "at_least", tuple(sorted(self.at_least)))
        previous_count, previous_rho = -1, self.rho_upper
        for count, rho in self.at_least:
            if count <= previous_count or rho > previous_rho:
                raise ConfigurationError(
                    f"A cost must not rise with the count: at least {count} records cost {rho}, "
                    f"after {previous_rho} before it. Pass the supremum over all larger groups."
                )
            previous_count, previous_rho = count, rho

    @classmethod
    def from_function(
        cls,
        v_upper: Callable[[int], float],
        mechanism: str,
        parameters: Mapping[str, object],
        *,
        counts: Iterable[int] = STANDARD_COUNTS,
        privacy_unit: str = "record",
        records_per_unit: int = 1,
    ) -> PolicyCost:
        """Tabulate a Gaussian release's budget function.

        Parameters
        ----------
        v_upper
            Budget in rho, rounded up, of one privacy unit all of whose records lie in groups of
            at least the given count. It must not rise with the count; ``v_upper(1)`` is the
            worst case.
        mechanism, parameters, privacy_unit, records_per_unit
            As in the class.
        counts
            Where to tabulate; add the counts at which the data set is capped.

        Raises
        ------
        ConfigurationError
            If the function rises, or gives a negative or infinite budget.
        """
        wanted = sorted({1, *(int(count) for count in counts)})
        at_least = tuple((count, Rho.upper(v_upper(count))) for count in wanted)
        return cls(
            Rho.upper(v_upper(1)),
            mechanism,
            parameters,
            privacy_unit=privacy_unit,
            records_per_unit=records_per_unit,
            at_least=at_least,
        )

    @classmethod
    def from_pure_epsilon(
        cls,
        epsilon: float,
        mechanism: str,
        parameters: Mapping[str, object],
        *,
        noise: Literal["laplace", "pure"] = "pure",
        privacy_unit: str = "record",
        records_per_unit: int = 1,
    ) -> PolicyCost:
        """Return the cost of an epsilon-DP release; its rho is ``pure_to_rho_upper(epsilon)``.

        Parameters
        ----------
        epsilon
            Pure epsilon of the whole release for one privacy unit, in nats.
        mechanism, parameters, noise, privacy_unit, records_per_unit
            As in the class.
        """
        return cls(
            Rho.upper(pure_to_rho_upper(epsilon)),
            mechanism,
            parameters,
            privacy_unit=privacy_unit,
            records_per_unit=records_per_unit,
            noise=noise,
            pure_epsilon=float(epsilon),
        )

    def rho_at_least_upper(self, count: int) -> Rho:
        """Return the cost in groups of at least ``count`` records, never below the true one.

        Between two tabulated counts it is the cost at the smaller one, since costs do not rise.
        """
        known = [rho for tabulated, rho in self.at_least if tabulated <= count]
        return known[-1] if known else self.rho_upper


def canonical_json(value: object) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN.

    Raises
    ------
    ConfigurationError
        If the value is not made of JSON values.
    """
    try:
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"Only text, finite numbers, booleans, None, lists and dicts of these can be recorded "
            f"in a ledger: {error}."
        ) from None


def total_rho_upper(costs: Iterable[PolicyCost]) -> Rho:
    """Return the bound that holds for everyone: sum_j v_j(1) k_j**2, exact.

    Raises
    ------
    ConfigurationError
        If the costs are about different privacy units; such losses do not add.
    """
    listed = list(costs)
    units = sorted({cost.privacy_unit for cost in listed})
    if len(units) > 1:
        raise ConfigurationError(
            f"Costs of different privacy units do not add: {', '.join(map(repr, units))}. "
            "State every release for the same unit."
        )
    return Rho(sum(cost.rho_upper.units for cost in listed))


def total_delta_upper(costs: Iterable[PolicyCost]) -> Rho:
    """Return the delta of the releases' approximate zCDP together: their sum, exact.

    Bun and Steinke 2016, Lemma 8.2: 1 - prod_j (1 - delta_j), which is at most the sum.
    """
    return Rho(sum(cost.delta.units for cost in costs))


def group_rho_upper(budgets: Iterable[Callable[[int], float]], count: int) -> Rho:
    """Return V(n) = sum_j v_j(n) of releases over the same groups, exact after each is rounded up.

    Parameters
    ----------
    budgets
        The releases' budget functions, count -> rho, each rounded up.
    count
        Size n of the group. A true count is confidential, and so is V of it.
    """
    return Rho(sum(Rho.upper(budget(count)).units for budget in budgets))


def zcdp_epsilon_upper(costs: Iterable[PolicyCost], delta: float) -> float:
    """Return an epsilon such that all the releases together are (epsilon, delta)-DP, via zCDP.

    Parameters
    ----------
    costs
        Of one privacy unit.
    delta
        Probability in (0, 1). What releases that learn their key sets take of it is taken off
        first (docs/key-selection.md, Theorem 3); infinite epsilon if nothing is left.
    """
    listed = list(costs)
    rho = total_rho_upper(listed).float_upper()
    spent = total_delta_upper(listed)
    if spent == Rho():
        return epsilon_upper(rho, delta)
    left = delta_left_lower(delta, spent)
    return epsilon_upper(rho, left) if left > 0 else math.inf


def delta_left_lower(delta: float, spent: Rho) -> float:
    """Return what is left of a delta after an exact amount is taken off, rounded down."""
    exact = Fraction(delta) - Fraction(spent.units, _UNITS_PER_RHO)
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)


def tight_epsilon_upper(costs: Iterable[PolicyCost], delta: float) -> float:
    """Return a smaller such epsilon from the noise families; never above ``zcdp_epsilon_upper``.

    Gaussian releases compose exactly to mu = sqrt(2 sum rho) (Dong, Roth and Su 2022, Corollary
    2), in closed form. With pure-epsilon releases among them the privacy loss distributions are
    convolved by dp-accounting, rounded up; Laplace noise by its own, any other epsilon-DP
    mechanism by randomised response, which dominates them all (Kairouz, Oh and Viswanath 2015).

    Where that bound cannot be vouched for (``zcdp`` releases; delta below 1e-9 in a mixture; an
    epsilon so large that the lattice's distance matters) the zCDP epsilon is returned.

    Parameters
    ----------
    costs
        Of one privacy unit.
    delta
        Probability in (0, 1).

    Raises
    ------
    ConfigurationError
        If pure releases are among them and dp-accounting is not installed.
    """
    listed = list(costs)
    through_zcdp = zcdp_epsilon_upper(listed, delta)
    if any(cost.noise == "zcdp" for cost in listed):
        return through_zcdp
    gaussian = [cost for cost in listed if cost.noise == "gaussian"]
    pure = [cost for cost in listed if cost.noise != "gaussian" and cost.pure_epsilon]
    mu = gaussian_mu_upper(total_rho_upper(gaussian).float_upper())
    aside = _DELTA_ASIDE * delta
    if not pure:
        tight = gaussian_epsilon_upper(mu, delta - aside)
    elif aside < _FFT_ERROR:
        return through_zcdp
    else:
        tight = _pld_epsilon_upper(mu, pure, delta - aside)
        aside -= _FFT_ERROR
    # One draw per group a unit can lie in; (eps, d)-DP within distance t of M gives
    # (eps, d + (1 + e^eps) t) (triangle inequality on both sides).
    distance = _LATTICE_DISTANCE * sum(cost.records_per_unit for cost in gaussian)
    if distance > 0 and tight > math.log(aside / distance) - 1:
        return through_zcdp
    return min(tight, through_zcdp)


def _pld_epsilon_upper(mu: float, pure: list[PolicyCost], delta: float) -> float:
    try:
        from dp_accounting.pld import common
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError:
        raise ConfigurationError(
            "The tight epsilon of a mixture needs dp-accounting, which is not installed: "
            "pip install 'spark-dphist[tight]', or use zcdp_epsilon_upper."
        ) from None
    reach = mu * mu / 2 + 10 * mu + sum(cost.pure_epsilon or 0.0 for cost in pure)
    # A coarser grid costs tightness, never soundness: every estimate below is pessimistic.
    grid = {"value_discretization_interval": max(1e-4, reach / 1e6)}
    parts = [] if mu == 0 else [pld.from_gaussian_mechanism(_down(1 / mu), **grid)]
    for cost in pure:
        epsilon = cost.pure_epsilon or 0.0
        if cost.noise == "laplace":
            parts.append(pld.from_laplace_mechanism(_down(1 / epsilon), **grid))
        else:
            parts.append(
                pld.from_privacy_parameters(
                    common.DifferentialPrivacyParameters(epsilon, 0.0), **grid
                )
            )
    composed = functools.reduce(lambda one, other: one.compose(other), parts)
    return math.nextafter(float(composed.get_epsilon_for_delta(delta)), math.inf)


def _down(scale: float) -> float:
    return math.nextafter(scale, 0.0)
