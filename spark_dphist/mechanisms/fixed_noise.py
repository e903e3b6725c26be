"""The classical baselines: noise of one size for every count, Gaussian (zCDP) or Laplace (pure).

Their budget is the same for every group, however large: what the other mechanisms improve on.
docs/sampling.md has the proofs.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.base import (
    FloatArray,
    IntArray,
    Mechanism,
    check_confidence,
    check_floor,
    check_promise,
    check_records_per_unit,
    within_bounds,
)
from spark_dphist.mechanisms.calibration import refuse_trivial_promise
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.discrete_laplace import DiscreteLaplace

_SCALE_RANGE = (2.0**-8, 2.0**50)
_EPSILON_RANGE = (2.0**-50, 2.0**10)

# Relative distance kept from the boundary of the promise and of a budget; it covers the error
# formulas (a few 1e-15) and makes the promise strict.
_MARGIN = 4e-13


class FixedNoise(Mechanism):
    """Integer noise on the counts themselves; the estimate is the noisy count, clipped at 0."""

    @property
    @abstractmethod
    def noise(self) -> DiscreteGaussian | DiscreteLaplace:
        """The noise, in counts."""

    @abstractmethod
    def _rho_upper(self, records: int) -> float:
        """Return a bound on rho for counts that differ by at most this many records."""

    def encode(self, count: npt.ArrayLike) -> IntArray:
        """Return the true counts, saturated at the public bounds (confidential), int64."""
        return np.rint(within_bounds(count)).astype(np.int64)

    def decode(self, lattice: npt.ArrayLike) -> FloatArray:
        """Clip noisy counts at 0, float64 (post-processing)."""
        return np.maximum(np.asarray(lattice, dtype=np.int64), 0).astype(np.float64)

    def expected_absolute_error(
        self,
        count: npt.ArrayLike,
        rounded: bool = False,
    ) -> FloatArray:
        """Return E|estimate - count| in counts, in closed form with clipping.

        Parameters
        ----------
        count
            Integer counts.
        rounded
            Of no consequence: estimates are integers.
        """
        # |x̂ - x| = |N|, except that N < -x is clipped to -x: E|N| - E(-N - x)⁺, N symmetric.
        return 2 * self.noise.mean_excess(0) - self.expected_bias(count)

    def expected_bias(self, count: npt.ArrayLike) -> FloatArray:
        """Return E(estimate) - count in counts: what clipping at 0 adds."""
        return self.noise.mean_excess(np.rint(within_bounds(count)))

    def budget(self, count: npt.ArrayLike, records_per_unit: int = 1) -> FloatArray:
        """Bound the zCDP budget, in rho: the same at every count; see ``Mechanism.budget``."""
        check_records_per_unit(records_per_unit)
        return np.full(np.shape(count), self._rho_upper(records_per_unit))

    def interval(
        self, lattice: npt.ArrayLike, confidence: float = 0.95
    ) -> tuple[FloatArray, FloatArray]:
        """Return the narrowest symmetric bounds with at least the stated coverage, in counts.

        The noisy count ± the least h with P(|N| <= h) >= confidence, clipped at 0.

        Raises
        ------
        ConfigurationError
            If the confidence is not strictly between 0 and 1.
        """
        check_confidence(confidence)
        half_width = self._half_width(confidence)
        noisy = np.asarray(lattice, dtype=np.int64)
        return (
            np.maximum(noisy - half_width, 0).astype(np.float64),
            np.maximum(noisy + half_width, 0).astype(np.float64),
        )

    def _half_width(self, confidence: float) -> int:
        # P(|N| > h) = 2 P(N >= h + 1); the last factor covers the tail's error in doubles.
        allowed = (1 - confidence) / 2 * (1 - 1e-12)
        low, high = -1, 1
        while self.noise.tail(high + 1) > allowed:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.noise.tail(middle + 1) > allowed else (low, middle)
        return high


@dataclass(frozen=True, kw_only=True)
class FixedGaussian(FixedNoise):
    """Discrete Gaussian noise on the counts: zCDP with rho = 1 / (2 scale**2) for every record.

    Parameters
    ----------
    scale
        Of the noise, in counts, from 2**-8 to 2**50; its standard deviation from about 1 on.
    floor
        The count below which the promised error no longer shrinks, in counts, at least 1.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    References
    ----------
    Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020.
    """

    name: ClassVar[str] = "fixed_gaussian"
    scale: float
    floor: float

    def __post_init__(self) -> None:
        check_floor(self.floor)
        _check_range("scale", self.scale, _SCALE_RANGE)

    @classmethod
    def calibrate(cls, *, relative_error: float, floor: float) -> Self:
        """Choose the largest scale that keeps the promise E|estimate - x| < r max(x, floor).

        Raises
        ------
        ConfigurationError
            If r is not in (0, 1) (for r >= 1 use ``Constant``) or the floor is out of its range.
        """
        return _calibrate(
            lambda size: cls(scale=size, floor=floor), relative_error, floor, _SCALE_RANGE
        )

    @classmethod
    def for_budget(cls, rho: float, *, floor: float, records_per_unit: int = 1) -> Self:
        """Choose the least scale whose budget is at most rho, to compare at equal budgets.

        Raises
        ------
        ConfigurationError
            If no scale in the range has such a budget, or the floor is out of its range.
        """
        _check_budget(rho, records_per_unit)
        mechanism = cls(scale=records_per_unit / math.sqrt(2 * rho), floor=floor)
        while mechanism._rho_upper(records_per_unit) > rho:
            mechanism = cls(scale=math.nextafter(mechanism.scale, math.inf), floor=floor)
        return mechanism

    @cached_property
    def noise(self) -> DiscreteGaussian:
        """The noise, in counts."""
        return DiscreteGaussian(Fraction(self.scale) ** 2)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""
        return {"scale": self.scale, "floor": self.floor}

    def _rho_upper(self, records: int) -> float:
        # Canonne, Kamath, Steinke 2020, Theorem 14.
        return _rounded_up(Fraction(records) ** 2 / (2 * Fraction(self.scale) ** 2))


@dataclass(frozen=True, kw_only=True)
class FixedLaplace(FixedNoise):
    """Discrete Laplace noise on the counts: pure epsilon-DP for every record.

    Parameters
    ----------
    epsilon
        In nats for one record, one over the scale of the noise, from 2**-50 to 2**10.
    floor
        The count below which the promised error no longer shrinks, in counts, at least 1.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    For one record the privacy loss is epsilon or -epsilon, as in randomised response, so
    rho = epsilon tanh(epsilon / 2) is its exact zCDP budget; for k records it is a bound with
    k epsilon in place of epsilon. It is never above (k epsilon)**2 / 2 (Bun and Steinke 2016,
    Proposition 1.4). docs/accounting.md has the proof.

    References
    ----------
    Ghosh, Roughgarden, Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms", 2009.
    """

    name: ClassVar[str] = "fixed_laplace"
    epsilon: float
    floor: float

    def __post_init__(self) -> None:
        check_floor(self.floor)
        _check_range("epsilon", self.epsilon, _EPSILON_RANGE)

    @classmethod
    def calibrate(cls, *, relative_error: float, floor: float) -> Self:
        """Choose the least epsilon that keeps the promise E|estimate - x| < r max(x, floor).

        Raises
        ------
        ConfigurationError
            If r is not in (0, 1) (for r >= 1 use ``Constant``) or the floor is out of its range.
        """
        scales = (1 / _EPSILON_RANGE[1], 1 / _EPSILON_RANGE[0])
        return _calibrate(
            lambda size: cls(epsilon=1 / size, floor=floor), relative_error, floor, scales
        )

    @classmethod
    def for_budget(cls, rho: float, *, floor: float, records_per_unit: int = 1) -> Self:
        """Choose the largest epsilon whose budget is at most rho, to compare at equal budgets.

        Raises
        ------
        ConfigurationError
            If no epsilon in the range has such a budget, or the floor is out of its range.
        """
        _check_budget(rho, records_per_unit)
        # x tanh(x/2) lies between x - 1 and min(x, x**2/2), so its root between these.
        low, high = max(rho, math.sqrt(2 * rho)) * (1 - 1e-9), rho + math.sqrt(2 * rho) + 1
        total = brentq(lambda x: x * math.tanh(x / 2) - rho, low, high, xtol=1e-300, rtol=1e-15)
        epsilon = float(total) * (1 - _MARGIN) / records_per_unit
        return cls(epsilon=epsilon, floor=floor)

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The noise, in counts."""
        return DiscreteLaplace(Fraction(self.epsilon))

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""
        return {"epsilon": self.epsilon, "floor": self.floor}

    def pure_epsilon(self, records_per_unit: int = 1) -> float:
        """Return the pure epsilon, in nats, of a unit with this many records, rounded up."""
        return _rounded_up(records_per_unit * Fraction(self.epsilon))

    def _rho_upper(self, records: int) -> float:
        # An epsilon-DP mechanism is epsilon tanh(epsilon/2)-zCDP; tanh is within a few units in
        # the last place.
        epsilon = self.pure_epsilon(records)
        return epsilon * math.tanh(epsilon / 2) * (1 + 2.0**-49)


FixedNoiseT = TypeVar("FixedNoiseT", bound=FixedNoise)


def _calibrate(
    make: Callable[[float], FixedNoiseT],
    relative_error: float,
    floor: float,
    sizes: tuple[float, float],
) -> FixedNoiseT:
    """Return the mechanism with the largest noise that keeps the promise at every count.

    Only the integers next to the floor can bind. E|N| - E(-N - x)⁺ rises with the count x, so up
    to the floor it is largest at floor(floor); it is concave in x and positive at 0, so beyond the
    floor its ratio to x falls and is largest at ceil(floor). It rises with the size of the noise,
    as |x̂ - x| is a rising function of |N| for either sign.
    """
    check_promise(relative_error, floor)
    refuse_trivial_promise(relative_error)
    counts = np.array([math.floor(floor), math.ceil(floor)], dtype=np.float64)
    allowed = relative_error * np.maximum(counts, floor)

    def excess(logarithm: float) -> float:
        mechanism = make(math.exp(logarithm))
        return float(np.max(mechanism.expected_absolute_error(counts) / allowed)) - 1

    low, high = math.log(sizes[0]) + 1e-9, math.log(sizes[1]) - 1e-9
    logarithm = brentq(excess, low, high, xtol=1e-15, rtol=1e-15, maxiter=500)
    size = math.exp(float(logarithm)) * (1 - _MARGIN)
    while np.any(make(size).expected_absolute_error(counts) >= allowed):
        size *= 1 - _MARGIN
    return make(size)


def _rounded_up(exact: Fraction) -> float:
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def _check_range(name: str, value: float, limits: tuple[float, float]) -> None:
    low, high = limits
    if not low <= value <= high:
        raise ConfigurationError(
            f"{name} must be a number from {low:.3g} to {high:.3g}, got {value!r}. "
            "Choose it by calibrating to a relative error, or for a budget."
        )


def _check_budget(rho: float, records_per_unit: int) -> None:
    if not 0 < rho < 1e300:
        raise ConfigurationError(f"rho must be a finite number above 0, got {rho!r}")
    check_records_per_unit(records_per_unit)
