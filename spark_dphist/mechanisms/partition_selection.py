"""Which groups of the data may be named: draws that keep a group by how many units it has.

docs/key-selection.md proves what is claimed here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.exact_bits import WordSource
from spark_dphist.mechanisms.grid import GRID_BITS, ONE, GridProbabilities, exponential_lower

FloatArray = npt.NDArray[np.float64]

# Outside, the table of probabilities would be long or the grid coarse; nobody needs it either.
EPSILON_RANGE = (2.0**-10, 64.0)
DELTA_RANGE = (2.0**-80, 0.5)

# Lattice steps of noise in one standard deviation, and a bound on the magnitude of any draw.
SCALE_BITS = 44
_REACH = 22 << SCALE_BITS
# Covers the error of ndtr, exp and a few products of doubles, each far below 2**-44.
_ROUNDING = 2.0**-40


class PartitionSelection(ABC):
    """Keeps or drops each group by the number of its units; a group without units is never kept."""

    name: ClassVar[str]

    @abstractmethod
    def keep(self, count: npt.ArrayLike, source: WordSource) -> npt.NDArray[np.bool_]:
        """Decide for each group, exactly with the probability that is proved.

        Parameters
        ----------
        count
            Numbers of units (confidential), shape (groups,), integers of at least 0.
        source
            Words of row i decide about group i.
        """

    @abstractmethod
    def keep_probability(self, count: npt.ArrayLike) -> FloatArray:
        """Return the probability that a group of so many units is kept, to about 1e-12."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the public parameters."""

    def count_kept_half_the_time(self) -> int:
        """Return the least number of units at which a group is kept with probability 1/2."""
        low, high = 0, 1
        while self.keep_probability(high) < 0.5:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.keep_probability(middle) >= 0.5 else (middle, high)
        return high


@dataclass(frozen=True, kw_only=True)
class OptimalSelection(PartitionSelection):
    """The optimal selection where each unit is counted in one group at most.

    Parameters
    ----------
    epsilon
        In nats, from 2**-10 to 64. A double means its shortest decimal text: 0.1 is a tenth.
    delta
        Probability, from 2**-80 to 1/2; likewise.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    Privacy Guarantee: (epsilon, delta)-DP under adding or removing one unit that is counted in one
    group at most. With q <= e^epsilon rational, the probabilities are whole multiples of 2**-128
    with pi(n) <= q pi(n-1) + delta and 1 - pi(n-1) <= q (1 - pi(n)) + delta for every n, exactly.
    They are the largest such multiples, each given the one before it, and within 1e-25 of the
    optimum.

    References
    ----------
    Desfontaines, Voss, Gipson, Mandayam, "Differentially private partition selection",
    PoPETs 2022, arXiv:2006.03684, Theorem 1.
    """

    name: ClassVar[str] = "optimal_selection"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_range("epsilon", self.epsilon, EPSILON_RANGE)
        check_range("delta", self.delta, DELTA_RANGE)

    @cached_property
    def growth(self) -> Fraction:
        """The rational number q, at or just below e^epsilon, with which the proof is made."""
        return exponential_lower(as_written(self.epsilon))

    @cached_property
    def numerators(self) -> tuple[int, ...]:
        """2**128 pi(n) for n = 0, 1, ..., the last being the first that is 2**128."""
        growth = int(self.growth * ONE)
        failing = math.floor(as_written(self.delta) * ONE)
        table = [0]
        while (kept := table[-1]) < ONE:
            # arXiv:2006.03684, Equation 1, rounded down.
            rising = ((growth * kept) >> GRID_BITS) + failing
            dropped = max(ONE - kept - failing, 0)
            falling = ONE - -((-dropped << GRID_BITS) // growth)
            table.append(min(rising, falling, ONE))
        return tuple(table)

    @cached_property
    def _drawn(self) -> GridProbabilities:
        return GridProbabilities(self.numerators[:-1])

    def keep(self, count: npt.ArrayLike, source: WordSource) -> npt.NDArray[np.bool_]:
        """Compare 128 uniform bits with pi(count); see ``PartitionSelection.keep``."""
        units = np.asarray(count, dtype=np.int64)
        certain = len(self.numerators) - 1
        blocks = source.block(np.arange(units.size, dtype=np.int64), 0)
        drawn = self._drawn.draw(np.minimum(units, certain - 1), blocks)
        return np.asarray(drawn | (units >= certain), dtype=np.bool_)

    def keep_probability(self, count: npt.ArrayLike) -> FloatArray:
        """Return pi(count) to the nearest double."""
        table = np.array([each / ONE for each in self.numerators])
        return np.asarray(table[np.minimum(np.asarray(count, dtype=np.int64), table.size - 1)])

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters."""
        return {"epsilon": self.epsilon, "delta": self.delta}


@dataclass(frozen=True, kw_only=True)
class ThresholdSelection(PartitionSelection):
    """Keeps a group if its number of units plus discrete Gaussian noise reaches a threshold.

    Everything is in lattice steps, 2**44 of which are one standard deviation of the noise: with
    ``unit_steps`` of them for one unit, sigma is 2**44 / ``unit_steps`` units.

    Parameters
    ----------
    unit_steps
        Lattice steps that one unit counts for, from 1 to 2**50.
    threshold_steps
        A group is kept from here on, from ``unit_steps`` to 2**57.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    Counts are exact integers of steps, so one unit changes one by ``unit_steps`` exactly, and
    groups of no units are never kept, whatever the noise.
    """

    name: ClassVar[str] = "gaussian_threshold"
    unit_steps: int
    threshold_steps: int

    def __post_init__(self) -> None:
        check_range("unit_steps", self.unit_steps, (1, 2**50))
        check_range("threshold_steps", self.threshold_steps, (self.unit_steps, 2**57))

    @classmethod
    def with_passing_probability(cls, unit_steps: int, allowed: float) -> ThresholdSelection:
        """Return the least threshold that a group of one unit passes no more often than allowed.

        Parameters
        ----------
        unit_steps
            As in the class.
        allowed
            Bound on ``single_unit_upper``, in (0, 1/2].
        """
        beyond = max(0, math.floor(float(-ndtri(allowed)) * (1 << SCALE_BITS)))
        step = 1
        selection = cls(unit_steps=unit_steps, threshold_steps=unit_steps + beyond)
        while selection.single_unit_upper > allowed:
            beyond, step = beyond + step, 2 * step
            selection = cls(unit_steps=unit_steps, threshold_steps=unit_steps + beyond)
        return selection

    @property
    def sigma(self) -> float:
        """Scale of the noise, in units."""
        return float((1 << SCALE_BITS) / self.unit_steps)

    @property
    def threshold(self) -> float:
        """The threshold, in units."""
        return float(self.threshold_steps / self.unit_steps)

    @property
    def single_unit_upper(self) -> float:
        """Bound on the probability that a group with one unit is kept."""
        # Weights of the discrete Gaussian are at most phi / s, as their sum exceeds s sqrt(2 pi)
        # (Poisson summation), and a falling sum is at most its first term and the integral.
        beyond = (self.threshold_steps - self.unit_steps) / (1 << SCALE_BITS)
        density = math.exp(-beyond * beyond / 2) / math.sqrt(2 * math.pi)
        bound = float(ndtr(-beyond)) + density * 2.0**-SCALE_BITS
        return bound * (1 + _ROUNDING)

    def keep(self, count: npt.ArrayLike, source: WordSource) -> npt.NDArray[np.bool_]:
        """Add noise and compare; see ``PartitionSelection.keep``."""
        units = np.asarray(count, dtype=np.int64)
        noise = DiscreteGaussian.power_of_two(SCALE_BITS).sample(source, units.size)
        # No draw is as large as _REACH (docs/sampling.md), so larger counts are kept as these are.
        enough = (self.threshold_steps + _REACH) // self.unit_steps + 1
        steps = np.minimum(units, enough) * self.unit_steps
        return np.asarray((units >= 1) & (steps + noise >= self.threshold_steps), dtype=np.bool_)

    def keep_probability(self, count: npt.ArrayLike) -> FloatArray:
        """Return the probability for the continuous noise that this is the rounding of."""
        units = np.asarray(count, dtype=np.float64)
        return np.where(units >= 1, ndtr((units - self.threshold) / self.sigma), 0.0)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters."""
        return {
            "sigma": self.sigma,
            "threshold": self.threshold,
            "unit_steps": self.unit_steps,
            "threshold_steps": self.threshold_steps,
        }


def as_written(number: float) -> Fraction:
    """Return the exact number that the shortest decimal text of a double means."""
    return Fraction(repr(float(number)))


def check_range(name: str, value: float, limits: tuple[float, float]) -> None:
    """Refuse a parameter that is not a number within the limits."""
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigurationError(
            f"{name} must be a number from {low:.3g} to {high:.3g}, got {value!r}"
        )
