"""The best promise within a cap on the budget: the least relative error, or the least floor.

Whatever is returned has been calibrated and charged exactly as a release with it would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from scipy.optimize import brentq

from spark_dphist.accounting.composition import Rho
from spark_dphist.config import ReleaseConfiguration, parse_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, Constant

Sought = Literal["relative_error", "floor"]

# A relative error below this is refused by the lattice, or next to it.
_LEAST_EXPONENT = -5
# How many relative errors of 4 digits a decade has.
_PER_DECADE = 9000


@dataclass(frozen=True)
class Target:
    """The least relative error or floor within a cap.

    Parameters
    ----------
    sought
        The field of the configuration's ``mechanism`` that was looked for.
    found
        Its value: a relative error of 4 digits, or a whole floor in counts.
    cap
        On the budget of everyone.
    rho
        What a release with this value costs everyone, at most the cap; as a ledger charges it.
    refused
        The next smaller value with as many digits, or the floor less 1; None if there is none.
    refused_rho
        What that would cost: more than the cap. None where no mechanism could be calibrated.
    configuration
        The configuration with the value filled in.
    """

    sought: Sought
    found: float
    cap: Rho
    rho: Rho
    refused: float | None
    refused_rho: Rho | None
    configuration: ReleaseConfiguration

    def as_json(self) -> dict[str, object]:
        """Return the target as JSON values; amounts are exact decimal text in rho."""
        return {
            "sought": self.sought,
            "found": self.found,
            "rho_cap": str(self.cap),
            "rho": str(self.rho),
            "refused": self.refused,
            "refused_rho": None if self.refused_rho is None else str(self.refused_rho),
        }


@dataclass(frozen=True)
class _Candidates:
    """Values in rising order; ``position`` is that of the nearest one, ``value`` its inverse."""

    size: int
    value: Callable[[int], float]
    position: Callable[[float], int]


def _relative_error(position: int) -> float:
    decade, digits = divmod(position, _PER_DECADE)
    # From text: the double that somebody gets who writes it into a configuration.
    return float(f"{1000 + digits}e{_LEAST_EXPONENT + decade - 3}")


def _position_of(relative_error: float) -> int:
    decade = math.floor(math.log10(relative_error)) - _LEAST_EXPONENT
    digits = round(relative_error * 10.0 ** (3 - decade - _LEAST_EXPONENT))
    return _PER_DECADE * decade + digits - 1000


# 1.000e-5, 1.001e-5, ..., 0.9999; and 1, 2, 3, ...
_RELATIVE_ERRORS = _Candidates(-_LEAST_EXPONENT * _PER_DECADE, _relative_error, _position_of)
_FLOORS = _Candidates(MAX_COUNT, lambda position: float(position + 1), lambda m: round(m) - 1)


def find_target(configuration: ReleaseConfiguration, sought: Sought, cap: Rho) -> Target:
    """Look for the least value within a cap on the budget of every privacy unit.

    Parameters
    ----------
    configuration
        Everything but the value that is looked for.
    sought
        ``relative_error``, at the configured floor, or ``floor``, at the configured relative error.
    cap
        On the worst case over all units and groups, as a ledger adds it up.

    Raises
    ------
    ConfigurationError
        If the configured mechanism has no such value, with the nearest mend.

    Notes
    -----
    Candidates are the numbers with 4 digits, or whole floors. The search ends with two neighbours,
    one above the cap and one within it, each by its own calibration and its own budget rounded up:
    so the result keeps the cap whatever the course of the budget, and is the least that does as far
    as the budget falls with it.
    """
    if configuration.mechanism.name == Constant.name:
        raise ConfigurationError(
            "the mechanism 'constant' costs nothing whatever its promise, so there is nothing to "
            "look for. Name another mechanism."
        )
    if not cap.units:
        raise ConfigurationError("a cap of rho = 0 allows no release. Name a cap above 0.")
    candidates = _RELATIVE_ERRORS if sought == "relative_error" else _FLOORS
    selection = configuration.selection
    learnt = Rho() if selection is None else Rho.upper(selection.rho_upper)
    if learnt >= cap:
        raise ConfigurationError(
            f"learning the key set alone costs rho = {learnt.float_upper():.4g}, which leaves "
            f"nothing of the cap of {cap}. Declare the key set, or learn it with a smaller epsilon."
        )

    @cache
    def cost(value: float) -> Rho | None:
        filled = _filled(configuration, sought, value)
        try:
            mechanism = filled.mechanism.calibrated()
        except ConfigurationError:
            # So precise that no noise is fine enough: no cap allows that.
            return None
        return Rho.upper(filled.privacy.privacy_unit.worst_case_rho_upper(mechanism)) + learnt

    def fits(position: int) -> bool:
        rho = cost(candidates.value(position))
        return rho is not None and rho <= cap

    if not fits(candidates.size - 1):
        raise ConfigurationError(_out_of_reach(configuration, sought, cap))
    found = 0 if fits(0) else _first_that_fits(fits, candidates, _root(cost, candidates, cap))
    value = candidates.value(found)
    rho = cost(value)
    assert rho is not None  # noqa: S101 - it fits
    refused = candidates.value(found - 1) if found else None
    return Target(
        sought=sought,
        found=value,
        cap=cap,
        rho=rho,
        refused=refused,
        refused_rho=None if refused is None else cost(refused),
        configuration=_filled(configuration, sought, value),
    )


def _filled(
    configuration: ReleaseConfiguration, sought: Sought, value: float
) -> ReleaseConfiguration:
    content = configuration.model_dump(exclude_unset=True, by_alias=True)
    mechanism: dict[str, Any] = {**content["mechanism"], sought: value}
    return parse_configuration({**content, "mechanism": mechanism}, "plan --target")


def _root(cost: Callable[[float], Rho | None], candidates: _Candidates, cap: Rho) -> float:
    """Return about the value at which the cost is the cap; the ends are on either side of it."""

    def excess(logarithm: float) -> float:
        rho = cost(math.exp(logarithm))
        # Costs are below e**100 wherever there is a mechanism.
        return 100.0 if rho is None else math.log(max(rho.units, 1) / cap.units)

    ends = (math.log(candidates.value(0)), math.log(candidates.value(candidates.size - 1)))
    return math.exp(float(brentq(excess, *ends, xtol=1e-9)))


def _first_that_fits(fits: Callable[[int], bool], candidates: _Candidates, guess: float) -> int:
    """Return a position that fits while the one before it does not, from a guess at its value on.

    The first candidate does not fit, the last one does.
    """
    start = min(max(candidates.position(guess), 1), candidates.size - 1)
    low, high = (0, start) if fits(start) else (start, candidates.size - 1)
    stride = 1
    while high - low > 1:
        # Away from the guess in growing strides until it is bracketed, then by halving.
        if high <= start and low == 0:
            middle = max(high - stride, 1)
        elif low >= start and high == candidates.size - 1:
            middle = min(low + stride, high - 1)
        else:
            middle = (low + high) // 2
        stride *= 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _out_of_reach(configuration: ReleaseConfiguration, sought: Sought, cap: Rho) -> str:
    mechanism = configuration.mechanism
    if sought == "floor":
        return (
            f"no floor keeps rho = {cap} for everyone with {mechanism.name} at relative_error = "
            f"{mechanism.relative_error:g}. Allow a larger relative error or a higher rho."
        )
    fewer = ", or lower max_records" if configuration.privacy.max_records > 1 else ""
    return (
        f"no relative error below 1 keeps rho = {cap} for everyone with {mechanism.name} at floor "
        f"= {mechanism.floor:g}. Raise the floor or allow a higher rho{fewer}."
    )
