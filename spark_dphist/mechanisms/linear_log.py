"""The linear-log mechanism: Gaussian noise on the count up to a knee, on its logarithm above."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

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
    CALIBRATION_MARGINS,
    largest,
    largest_useful_sigma,
    refuse_tiny_noise,
    refuse_trivial_promise,
)
from spark_dphist.mechanisms.drift import drift_of
from spark_dphist.mechanisms.lattice import MAX_COUNT
from spark_dphist.mechanisms.pieces import Lognormal, Normal, Segment
from spark_dphist.mechanisms.plateau import find_plateau_violation
from spark_dphist.mechanisms.rounding import mean_rounded_error


@dataclass(frozen=True, kw_only=True)
class LinearLog(TransformMechanism):
    """Noise on f(x) = x / knee up to the knee and 1 + ln(x / knee) above.

    The estimate is 0 for y <= 0, knee * y on [0, 1], the knee on [1, 1 + drift] and
    knee * exp(y - 1 - drift) above. Promises, when calibrated, E|estimate - x| <
    relative_error * max(x, floor) at every integer count x, and zCDP with a budget of
    1 / (2 sigma**2 knee**2) up to the knee that falls as 1 / (2 sigma**2 x**2) above.

    Parameters
    ----------
    sigma
        Standard deviation of the noise on the transformed count, in nats.
    floor
        The count below which the promised error no longer shrinks, in counts, at least 1.
    knee
        Where f turns from linear to logarithmic, in counts; 0 stands for the floor.
        ``calibrate`` chooses it.
    drift
        What is subtracted before exponentiation: ``minimal_error`` (sigma**2) or
        ``median_unbiased`` (0).

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.
    """

    name: ClassVar[str] = "linear_log"
    sigma: float
    floor: float
    knee: float = 0.0
    drift: Drift = "minimal_error"

    def __post_init__(self) -> None:
        check_floor(self.floor)
        if self.knee == 0:
            object.__setattr__(self, "knee", self.floor)
        if not (math.isfinite(self.knee) and 2.0**-10 <= self.knee <= MAX_COUNT):
            raise ConfigurationError(
                f"knee must be a count above 0 (from 2**-10 to 2**48), got {self.knee!r}. "
                "Leave it out to use the floor."
            )
        if self.drift == "unbiased":
            raise ConfigurationError(
                "drift 'unbiased' has no meaning for linear_log, whose estimate is clipped: "
                "expected 'minimal_error' or 'median_unbiased'. Use one of these, or shifted_log."
            )
        drift_of(self.drift, self.sigma)
        _ = self.lattice

    @classmethod
    def calibrate(
        cls, *, relative_error: float, floor: float, drift: Drift = "minimal_error"
    ) -> Self:
        """Choose the largest sigma, then the largest knee, that keep the promise on the error.

        Parameters
        ----------
        relative_error
            The promise r: E|estimate - x| < r * max(x, floor) at every integer count x >= 0, for
            both the estimate and its nearest integer.
        floor
            The floor of the promise, in counts.
        drift
            See the class.

        Raises
        ------
        ConfigurationError
            If r is not in (0, 1) (for r >= 1 use ``Constant``), or another parameter is out of
            its range.

        Notes
        -----
        Sigma rules the budget of large groups, where the promise allows Φ⁻¹((1 + r) / 2). With a
        knee at r √(π/2) / Φ⁻¹((1 + r) / 2) floors the linear part, whose error is at most
        √(2/π) sigma knee, allows the same sigma. Then the knee, which rules the budget of small
        groups, grows until the promise binds there too. docs/mechanisms.md has the proof.
        """
        check_promise(relative_error, floor)
        refuse_trivial_promise(relative_error)
        highest = largest_useful_sigma(relative_error)
        refuse_tiny_noise(relative_error, highest)
        knee = floor * relative_error * math.sqrt(math.pi / 2) / highest
        binding = [0, math.floor(floor), math.ceil(floor), math.floor(floor / 2)]
        first = largest(
            lambda sigma: cls(sigma=sigma, floor=floor, knee=knee, drift=drift),
            relative_error,
            high=highest,
            binding=binding,
        )
        return largest(
            lambda knee: cls(sigma=first.sigma, floor=floor, knee=knee, drift=drift),
            relative_error,
            high=min(4 * floor, float(MAX_COUNT)),
            binding=binding,
            # A little looser, so that where sigma binds already does not bind the knee.
            margins=(1 + CALIBRATION_MARGINS) / 2,
        )

    @property
    def drift_value(self) -> float:
        """The drift, in nats."""
        return drift_of(self.drift, self.sigma)

    @property
    def lognormal(self) -> Lognormal:
        """The distribution of the estimate above the knee."""
        return Lognormal(self.sigma, self.drift_value)

    @property
    def tail_start(self) -> int:
        """The first integer count from both the floor and the knee on."""
        return math.ceil(max(self.floor, self.knee))

    def tail_error_upper(self, count: int) -> float:
        """See ``calibration.Promising``.

        The error of a lognormal estimate is proportional to the count; what rounding may add to it
        and what the decoder's part below the knee adds both fall relative to the count
        (docs/mechanisms.md).
        """
        x, law = np.array([count], dtype=np.float64), self.lognormal
        below, above = mean_rounded_error(lambda x: (Segment(0.0, math.inf, law, x),), x)
        plain = law.relative_error * x
        excess = self.expected_absolute_error(x) - plain
        excess_rounded = self.expected_absolute_error(x, rounded=True) - (below + above)
        added = max(0.0, float(excess[0]), float(excess_rounded[0]))
        return float(plain[0]) + law.rounding_surplus_upper(count) + added

    def find_violation_below_tail(self, allowed_error: float) -> float | None:
        """Search the counts up to the knee, then look at the last one up to the floor."""
        return find_plateau_violation(self, allowed_error)

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters, as they appear in plans and audits."""
        return {
            "sigma": self.sigma,
            "floor": self.floor,
            "knee": self.knee,
            "drift": self.drift,
            "scale_bits": self.lattice.scale_bits,
        }

    def decode(self, lattice: npt.ArrayLike) -> FloatArray:
        """Map noisy lattice points to estimated counts, float64 (post-processing)."""
        steps = np.asarray(lattice, dtype=np.int64)
        value = self.lattice.to_transformed(steps)
        above = self.lattice.exponential_of(steps - self.lattice.one, -self.drift_value)
        ratio = np.where(value <= 1, np.maximum(value, 0.0), np.maximum(above, 1.0))
        return np.asarray(self.knee * ratio)

    def _segments(self, x: FloatArray) -> Sequence[Segment]:
        linear, above = np.minimum(x, self.knee), np.maximum(x, self.knee)
        # E below the knee: N(knee f(x), (knee σ)²); above it: lognormal about knee e^{f(x) - 1}.
        centre = linear + self.knee * np.log(above / self.knee)
        return (
            Segment(0.0, self.knee, Normal(self.knee * self.sigma), centre),
            Segment(
                self.knee,
                math.inf,
                self.lognormal,
                above * np.exp((linear - self.knee) / self.knee),
            ),
        )

    def _encode(self, count: FloatArray) -> IntArray:
        ratio = count / self.knee
        linear = self.lattice.from_fraction(np.minimum(ratio, 1.0))
        logarithm = self.lattice.one + self.lattice.from_logarithm_of(np.maximum(ratio, 1.0))
        return np.where(ratio <= 1, linear, logarithm)

    def _inverse(self, lattice: IntArray, offset: float) -> FloatArray:
        value = self.lattice.to_transformed(lattice) + offset
        above = self.lattice.exponential_of(lattice - self.lattice.one, offset)
        return np.asarray(self.knee * np.where(value <= 1, value, above))

    def _step(self, lower: FloatArray, upper: FloatArray) -> FloatArray:
        linear = np.minimum(upper, self.knee) - np.minimum(lower, self.knee)
        low, high = np.maximum(lower, self.knee), np.maximum(upper, self.knee)
        return np.asarray(linear / self.knee + np.log1p((high - low) / low))
