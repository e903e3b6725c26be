"""What every mechanism can do, and what all mechanisms on a transformed count share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.exact_bits import NoiseDistribution
from spark_dphist.mechanisms.lattice import MAX_COUNT, Lattice
from spark_dphist.mechanisms.pieces import Segment
from spark_dphist.mechanisms.rounding import mean_error, mean_rounded_error

Rounding = Literal["nearest", "none"]
Drift = Literal["minimal_error", "unbiased", "median_unbiased"]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Mechanism(ABC):
    """A way to release one count, with its error and its privacy budget as functions of the count.

    All methods are vectorised. Counts below 0 or above ``MAX_COUNT`` are treated as the nearest of
    these two public bounds, so that no count, however absurd, overflows or raises.
    """

    name: ClassVar[str]
    floor: float

    @abstractmethod
    def encode(self, count: npt.ArrayLike) -> IntArray:
        """Map true counts to the integers that noise is added to (confidential)."""

    @abstractmethod
    def decode(self, lattice: npt.ArrayLike) -> FloatArray:
        """Map noisy integers to estimated counts; post-processing, so free of any budget."""

    @abstractmethod
    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return E|estimate - count| in counts, for the estimate or for its nearest integer."""

    @abstractmethod
    def expected_bias(self, count: npt.ArrayLike) -> FloatArray:
        """Return E(estimate) - count in counts, before rounding to an integer."""

    @abstractmethod
    def budget(self, count: npt.ArrayLike, records_per_unit: int = 1) -> FloatArray:
        """Bound from above the zCDP budget, in rho, of the members of groups of these counts.

        For every neighbouring count n' with |n - n'| <= records_per_unit, the Rényi divergences of
        all orders alpha > 1 between the two releases are at most alpha times this, both ways.
        A function of the true count is confidential: this number gives the count away.
        """

    @abstractmethod
    def interval(
        self, lattice: npt.ArrayLike, confidence: float = 0.95
    ) -> tuple[FloatArray, FloatArray]:
        """Return bounds that contain the true count with the stated probability."""

    @property
    @abstractmethod
    def noise(self) -> NoiseDistribution | None:
        """The distribution of the integers to add; None for a mechanism without noise."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""

    def pure_epsilon(self, records_per_unit: int = 1) -> float | None:
        """Return the pure epsilon, in nats, of a unit's records together; None if there is none."""
        return None

    def worst_case_budget(self, records_per_unit: int = 1) -> float:
        """Bound the budget of every unit that has its records in one group, whatever the counts.

        With k records per unit it is reached at the counts 0 and k: between them neither the count
        before nor the one after a change is 0, and ``budget`` is smaller there.
        """
        return float(np.max(self.budget([0, records_per_unit], records_per_unit)))

    def budget_over(
        self, lower: npt.ArrayLike, upper: npt.ArrayLike, records_per_unit: int = 1
    ) -> tuple[FloatArray, FloatArray]:
        """Bound the budget, in rho, over all integer counts from lower to upper, both sides.

        From k = records_per_unit on the budget falls with the count, so its bounds are at the ends.
        Below k > 1 it dips, but stays above its value at 2 k, as f(n + k) - f(n) falls with n; it
        is greatest at ``lower`` or at the count nearest to k (docs/mechanisms.md).
        """
        low = np.ceil(np.asarray(lower, dtype=np.float64))
        high = np.maximum(np.floor(np.asarray(upper, dtype=np.float64)), low)
        k = records_per_unit
        greatest = np.maximum(self.budget(low, k), self.budget(np.clip(k, low, high), k))
        dips = (low < k) & (k > 1)
        return self.budget(np.where(dips, np.maximum(high, 2 * k), high), k), greatest


class TransformMechanism(Mechanism):
    """Discrete Gaussian noise on the lattice of an increasing, concave transform of the count."""

    sigma: float

    @abstractmethod
    def _encode(self, count: FloatArray) -> IntArray:
        """Evaluate the transform on the lattice, within the error that the lattice allows for."""

    @abstractmethod
    def _inverse(self, lattice: IntArray, offset: float) -> FloatArray:
        """Return the count whose transform is the lattice point plus offset, without clipping."""

    @abstractmethod
    def _segments(self, x: FloatArray) -> Sequence[Segment]:
        """Return the distribution of the estimate for true counts x, from its lowest level up."""

    @abstractmethod
    def _step(self, lower: FloatArray, upper: FloatArray) -> FloatArray:
        """Return f(upper) - f(lower) to full relative accuracy."""

    @cached_property
    def lattice(self) -> Lattice:
        """The lattice that carries the transformed counts."""
        return Lattice.for_sigma(self.sigma)

    @cached_property
    def noise(self) -> DiscreteGaussian:
        """The noise in lattice steps: scale ``2**lattice.scale_bits``."""
        return DiscreteGaussian.power_of_two(self.lattice.scale_bits)

    def encode(self, count: npt.ArrayLike) -> IntArray:
        """Map true counts to lattice points (deterministic, confidential), int64."""
        return self._encode(within_bounds(count))

    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return E|estimate - count| in counts, in closed form with clipping.

        Parameters
        ----------
        count
            Integer counts.
        rounded
            Whether the estimate is rounded to the nearest integer before it is published.
        """
        mean = mean_rounded_error if rounded else mean_error
        below, above = mean(self._segments, within_bounds(count))
        return below + above

    def expected_bias(self, count: npt.ArrayLike) -> FloatArray:
        """Return E(estimate) - count in counts, in closed form with clipping, before rounding."""
        below, above = mean_error(self._segments, within_bounds(count))
        return above - below

    def budget(self, count: npt.ArrayLike, records_per_unit: int = 1) -> FloatArray:
        """Bound the zCDP budget at these counts, in rho; see ``Mechanism.budget``.

        Notes
        -----
        step_k(n) = max(f(n + k) - f(n), f(n) - f(max(n - k, 0))) covers both neighbours; the
        lattice adds its rounding (``Lattice.budget_upper``). docs/mechanisms.md has the proof.
        """
        check_records_per_unit(records_per_unit)
        n = within_bounds(count)
        backward = self._step(np.maximum(n - records_per_unit, 0.0), n)
        forward = self._step(n, n + records_per_unit)
        return self.lattice.budget_upper(np.maximum(backward, forward))

    def interval(
        self, lattice: npt.ArrayLike, confidence: float = 0.95
    ) -> tuple[FloatArray, FloatArray]:
        """Return bounds, in counts, that contain the true count with the stated probability.

        Central interval of the noise on the transformed count, mapped back and clipped at 0, so no
        budget is spent. The coverage is exact at every count above 0 (up to two lattice steps) and
        (1 + confidence) / 2 at 0, which only the lower bound can miss.

        Raises
        ------
        ConfigurationError
            If the confidence is not strictly between 0 and 1.
        """
        check_confidence(confidence)
        steps = np.asarray(lattice, dtype=np.int64)
        half_width = self.sigma * float(ndtri(0.5 + confidence / 2))
        return (
            np.maximum(self._inverse(steps, -half_width), 0.0),
            np.maximum(self._inverse(steps, half_width), 0.0),
        )


def within_bounds(count: npt.ArrayLike) -> FloatArray:
    """Return counts as doubles, saturated at the public bounds 0 and ``MAX_COUNT``."""
    # To doubles first: numpy does not compare narrow integers with a bound beyond their range.
    return np.clip(np.asarray(count, dtype=np.float64), 0.0, float(MAX_COUNT))


def check_promise(relative_error: float, floor: float) -> None:
    """Refuse a promise E|estimate - x| < relative_error * max(x, floor) that makes no sense.

    Raises
    ------
    ConfigurationError
        If the relative error is not positive and finite, or the floor is below 1 or not finite.
    """
    if not (math.isfinite(relative_error) and relative_error > 0):
        raise ConfigurationError(
            f"relative_error must be a finite number above 0, got {relative_error!r}. "
            "0.05 promises an expected error below 5 % of the count."
        )
    check_floor(floor)


def check_floor(floor: float) -> None:
    """Refuse a floor below 1 or one that is not finite."""
    if not (math.isfinite(floor) and 1 <= floor <= MAX_COUNT):
        raise ConfigurationError(
            f"floor must be a count from 1 to {MAX_COUNT}, got {floor!r}. Below the floor the "
            "error may be relative_error * floor; a larger floor protects small groups better."
        )


def check_records_per_unit(records_per_unit: int) -> None:
    """Refuse a number of records per privacy unit that is not an integer from 1 on."""
    if not isinstance(records_per_unit, int | np.integer) or records_per_unit < 1:
        raise ConfigurationError(
            f"records_per_unit must be an integer from 1 on, got {records_per_unit!r}. "
            "It is the most records that one person (the privacy unit) may have in one group."
        )


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not strictly between 0 and 1."""
    if not 0 < confidence < 1:
        raise ConfigurationError(
            f"confidence must be strictly between 0 and 1, got {confidence!r}. "
            "0.95 asks for intervals that contain the true count 19 times in 20."
        )
