"""The shifted log-Gaussian mechanism: Gaussian noise of fixed variance on ln(count + shift)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.base import (
    Drift,
    FloatArray,
    IntArray,
    TransformMechanism,
    check_floor,
    check_promise,
)
from spark_dphist.mechanisms.calibration import (
    largest,
    largest_useful_sigma,
    promise_margin,
    refuse_tiny_noise,
    refuse_trivial_promise,
    worst_error,
)
from spark_dphist.mechanisms.drift import drift_of
from spark_dphist.mechanisms.lattice import MAX_COUNT
from spark_dphist.mechanisms.pieces import Lognormal, Segment


@dataclass(frozen=True, kw_only=True)
class ShiftedLog(TransformMechanism):
    """Noise on f(x) = ln(x + shift); the estimate is exp(y - drift) - shift, clipped at 0.

    Promises, when calibrated, E|estimate - x| < relative_error * max(x, floor) at every integer
    count x, and zCDP with a budget that falls as 1 / (2 sigma**2 (x + shift)**2).

    Parameters
    ----------
    sigma
        Standard deviation of the noise on the transformed count, in nats.
    shift
        What is added to a count before the logarithm, in counts, above 0. A larger shift protects
        small groups better and needs less noise elsewhere.
    floor
        The count below which the promised error no longer shrinks, in counts, at least 1.
    drift
        What is subtracted before exponentiation: ``minimal_error`` (sigma**2, the minimiser of
        the expected absolute error), ``median_unbiased`` (0), or ``unbiased`` (sigma**2 / 2,
        without clipping, so that estimates may be negative).

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    References
    ----------
    "Better Privacy Guarantees for Larger Groups", arXiv 2607.14406.
    """

    name: ClassVar[str] = "shifted_log"
    sigma: float
    shift: float
    floor: float
    drift: Drift = "minimal_error"

    def __post_init__(self) -> None:
        check_floor(self.floor)
        check_shift(self.shift)
        drift_of(self.drift, self.sigma)
        _ = self.lattice

    @classmethod
    def calibrate(
        cls,
        *,
        relative_error: float,
        floor: float,
        shift: float | None = None,
        method: Literal["exact", "closed_form"] = "exact",
        drift: Drift = "minimal_error",
    ) -> Self:
        """Choose the largest sigma that keeps the promise on the error, strictly.

        Parameters
        ----------
        relative_error
            The promise r: E|estimate - x| < r * max(x, floor) at every integer count x >= 0.
        floor
            The floor of the promise, in counts.
        shift
            The shift of the logarithm; the floor by default.
        method
            ``exact`` takes clipping and rounding into account: the promise holds both for the
            estimate and for its nearest integer. ``closed_form`` is the bound without clipping,
            sigma < Φ⁻¹((1 + r floor / (floor + shift)) / 2), for the estimate itself; it knows
            the minimal-error drift only.
        drift
            See the class.

        Raises
        ------
        ConfigurationError
            If r is not in (0, 1) (for r >= 1 use ``Constant``), or another parameter is out of
            its range.
        """
        check_promise(relative_error, floor)
        refuse_trivial_promise(relative_error)
        shift = floor if shift is None else shift
        check_shift(shift)
        # (m + c) (2 Φ(σ) - 1) = r m, DESIGN 1.2; it is the exact answer where clipping is rare.
        bound = largest_useful_sigma(relative_error * floor / (floor + shift))
        refuse_tiny_noise(relative_error, bound)
        if method == "closed_form":
            if drift != "minimal_error":
                raise ConfigurationError(
                    f"method 'closed_form' knows drift 'minimal_error' only, got {drift!r}. "
                    "Use method 'exact'."
                )
            share = floor / (floor + shift) * (1 - promise_margin(bound))
            return cls(sigma=largest_useful_sigma(relative_error * share), shift=shift, floor=floor)
        if method != "exact":
            raise ConfigurationError(f"method must be 'exact' or 'closed_form', got {method!r}")
        return largest(
            lambda sigma: cls(sigma=sigma, shift=shift, floor=floor, drift=drift),
            relative_error,
            high=largest_useful_sigma(relative_error),
            binding=[math.floor(floor), math.ceil(floor)],
        )

    @property
    def drift_value(self) -> float:
        """The drift, in nats."""
        return drift_of(self.drift, self.sigma)

    @property
    def lognormal(self) -> Lognormal:
        """The distribution of the estimate before clipping."""
        return Lognormal(self.sigma, self.drift_value, self.shift)

    @property
    def clips(self) -> bool:
        """Whether negative estimates are replaced by 0."""
        return self.drift != "unbiased"

    @property
    def tail_start(self) -> int:
        """The floor, as an integer count."""
        return math.ceil(self.floor)

    def tail_error_upper(self, count: int) -> float:
        """See ``calibration.Promising``: the error and what rounding may add, which both fall.

        Relative to the count, the error of every single draw of the noise falls with the count
        (docs/mechanisms.md).
        """
        surplus = self.lognormal.rounding_surplus_upper(count + self.shift)
        return float(self.expected_absolute_error(count)) + surplus

    def find_violation_below_tail(self, allowed_error: float) -> float | None:
        """Look at the last count up to the floor, where the error is largest below it."""
        count = float(math.floor(self.floor))
        kept = float(worst_error(self, count)) < allowed_error * self.floor
        return None if kept else count

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""
        return {
            "sigma": self.sigma,
            "shift": self.shift,
            "floor": self.floor,
            "drift": self.drift,
            "scale_bits": self.lattice.scale_bits,
        }

    def decode(self, lattice: npt.ArrayLike) -> FloatArray:
        """Map noisy lattice points to estimated counts, float64 (post-processing)."""
        estimate = self._inverse(np.asarray(lattice, dtype=np.int64), -self.drift_value)
        return np.maximum(estimate, 0.0) if self.clips else estimate

    def _encode(self, count: FloatArray) -> IntArray:
        return self.lattice.from_logarithm_of(count + self.shift)

    def _inverse(self, lattice: IntArray, offset: float) -> FloatArray:
        return self.lattice.exponential_of(lattice, offset) - self.shift

    def _segments(self, x: FloatArray) -> Sequence[Segment]:
        begin = 0.0 if self.clips else -self.shift
        return (Segment(begin, math.inf, self.lognormal, x + self.shift),)

    def _step(self, lower: FloatArray, upper: FloatArray) -> FloatArray:
        # log1p, as the difference of two logarithms loses all digits at large counts.
        return np.asarray(np.log1p((upper - lower) / (lower + self.shift)))


def check_shift(shift: float) -> None:
    """Refuse a shift that is not positive and finite, or beyond what the lattice carries."""
    if not (math.isfinite(shift) and 2.0**-32 <= shift <= MAX_COUNT):
        raise ConfigurationError(
            f"shift must be a number above 0 (from 2**-32 to 2**48), got {shift!r}. "
            "Leave it out to use the floor."
        )
