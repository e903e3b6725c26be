"""The constant mechanism: half the floor for every group, without looking at the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

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
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.lattice import MAX_COUNT


@dataclass(frozen=True, kw_only=True)
class Constant(Mechanism):
    """Release floor / 2 for every group: error below max(x, floor), budget exactly 0.

    This is all that a promise with relative error 1 or more needs.

    Parameters
    ----------
    floor
        The count below which the promised error no longer shrinks, in counts, at least 1.
    """

    name: ClassVar[str] = "constant"
    floor: float

    def __post_init__(self) -> None:
        check_floor(self.floor)

    @classmethod
    def calibrate(cls, *, relative_error: float, floor: float) -> Self:
        """Return the mechanism if it keeps the promise, for the estimate and its nearest integer.

        Raises
        ------
        ConfigurationError
            If the relative error is below 1, or if no integer keeps the promise: with floor 1 and
            relative error 1, both 0 and 1 are one off at the other count.
        """
        check_promise(relative_error, floor)
        mechanism = cls(floor=floor)
        published = [floor / 2, float(np.rint(floor / 2))]
        # The error |x - a| is largest against r max(x, m) at x = 0, the counts around m, or in the
        # limit of large counts, where |x - a| < x <= r x.
        counts = [0.0, 1.0, math.floor(floor), math.ceil(floor)]
        for value in published:
            for count in counts:
                if not abs(count - value) < relative_error * max(count, floor):
                    raise ConfigurationError(
                        f"a constant does not keep relative_error {relative_error!r} with floor "
                        f"{floor!r} (at count {count:g}). Use a mechanism with noise for a "
                        "relative error below 1, or a floor of at least 2."
                    )
        return mechanism

    @property
    def noise(self) -> DiscreteGaussian | None:
        """There is none."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""
        return {"floor": self.floor}

    def encode(self, count: npt.ArrayLike) -> IntArray:
        """Return 0 whatever the count."""
        return np.zeros(np.shape(count), dtype=np.int64)

    def decode(self, lattice: npt.ArrayLike) -> FloatArray:
        """Return half the floor."""
        return np.full(np.shape(lattice), self.floor / 2)

    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return |floor / 2 - count| in counts, of the estimate or of its nearest integer."""
        value = float(np.rint(self.floor / 2)) if rounded else self.floor / 2
        return np.abs(within_bounds(count) - value)

    def expected_bias(self, count: npt.ArrayLike) -> FloatArray:
        """Return floor / 2 - count in counts."""
        return self.floor / 2 - within_bounds(count)

    def budget(self, count: npt.ArrayLike, records_per_unit: int = 1) -> FloatArray:
        """Return 0: the output does not depend on the data."""
        check_records_per_unit(records_per_unit)
        return np.zeros(np.shape(count))

    def interval(
        self, lattice: npt.ArrayLike, confidence: float = 0.95
    ) -> tuple[FloatArray, FloatArray]:
        """Return the public bounds of a count: nothing narrower is known."""
        check_confidence(confidence)
        shape = np.shape(lattice)
        return np.zeros(shape), np.full(shape, float(MAX_COUNT))
