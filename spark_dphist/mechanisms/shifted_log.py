"""The shifted log-Gaussian mechanism: Gaussian noise of fixed variance on ln(count + shift)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.special import erf, erfinv, ndtr

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.base import (
    Drift,
    FloatArray,
    IntArray,
    TransformMechanism,
    check_floor,
    check_promise,
    within_bounds,
)
from spark_dphist.mechanisms.calibration import (
    SIGMA_MARGIN,
    largest_sigma,
    refuse_trivial_promise,
)
from spark_dphist.mechanisms.drift import drift_of
from spark_dphist.mechanisms.lattice import MAX_COUNT
from spark_dphist.mechanisms.rounding import log_density_derivatives, rounded_error


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
        bound = math.sqrt(2) * float(erfinv(relative_error * floor / (floor + shift)))
        if method == "closed_form":
            if drift != "minimal_error":
                raise ConfigurationError(
                    f"method 'closed_form' knows drift 'minimal_error' only, got {drift!r}. "
                    "Use method 'exact'."
                )
            return cls(sigma=bound * (1 - SIGMA_MARGIN), shift=shift, floor=floor)
        if method != "exact":
            raise ConfigurationError(f"method must be 'exact' or 'closed_form', got {method!r}")
        limit = math.sqrt(2) * float(erfinv(relative_error))
        return largest_sigma(
            lambda sigma: cls(sigma=sigma, shift=shift, floor=floor, drift=drift),
            relative_error,
            guess=bound,
            limit=limit,
        )

    @property
    def drift_value(self) -> float:
        """The drift, in nats."""
        return drift_of(self.drift, self.sigma)

    @property
    def clips(self) -> bool:
        """Whether negative estimates are replaced by 0."""
        return self.drift != "unbiased"

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
        value = self.lattice.to_transformed(np.asarray(lattice, dtype=np.int64))
        estimate = self._decode(value, self.drift_value)
        return np.maximum(estimate, 0.0) if self.clips else estimate

    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return E|estimate - count| in counts, in closed form with clipping.

        Parameters
        ----------
        count
            Integer counts.
        rounded
            Whether the estimate is rounded to the nearest integer before it is published.
        """
        x = within_bounds(count)
        return rounded_error(self, x) if rounded else self._error(x)

    def _error(self, x: FloatArray) -> FloatArray:
        sigma, drift, scale = self.sigma, self.drift_value, x + self.shift
        # E|e^{σZ-d} - 1| = erf(d/(σ√2)) + e^{σ²/2-d} erf((σ²-d)/(σ√2)); 2Φ(σ) - 1 for d = σ².
        root = sigma * math.sqrt(2)
        unclipped = scale * (
            erf(drift / root) + math.exp(sigma**2 / 2 - drift) * erf((sigma**2 - drift) / root)
        )
        if not self.clips:
            return np.asarray(unclipped, dtype=np.float64)
        # Where the estimate would be negative, clipping turns the error x - x̂ into x.
        return np.asarray(unclipped - self.mean_shortfall(x, np.zeros_like(x)), dtype=np.float64)

    @property
    def lowest_estimate(self) -> float:
        """The smallest estimate that can be published, in counts."""
        return 0.0 if self.clips else -math.ceil(self.shift)

    def smooth_from(self, length_scale: float) -> int:
        """Return a count from which on the estimate's distribution varies on this length scale."""
        return math.ceil(
            max(length_scale / min(self.sigma, 1.0) - self.shift, self.lowest_estimate)
        )

    def standardised(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return z with P(estimate < level) = Φ(z) for true counts x."""
        ratio = np.maximum(level + self.shift, 1e-300) / (x + self.shift)
        return np.asarray((np.log(ratio) + self.drift_value) / self.sigma)

    def level_of(self, x: FloatArray, z: float) -> FloatArray:
        """Return the unclipped estimate at standardised noise z for true counts x."""
        factor = math.exp(self.sigma * z - self.drift_value)
        return np.asarray((x + self.shift) * factor - self.shift)

    def density_derivatives(
        self, x: FloatArray, level: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the first, third and fifth derivative of the estimate's distribution function."""
        return log_density_derivatives(self.standardised(x, level), level + self.shift, self.sigma)

    def mean_excess(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(estimate - level)⁺ for true counts x, without clipping."""
        z, scale = self.standardised(x, level), x + self.shift
        growth = math.exp(self.sigma**2 / 2 - self.drift_value)
        # E(aW - b)⁺ for a lognormal W (Black 1976).
        return np.asarray(scale * growth * ndtr(self.sigma - z) - (level + self.shift) * ndtr(-z))

    def mean_shortfall(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(level - estimate)⁺ for true counts x, without clipping."""
        z, scale = self.standardised(x, level), x + self.shift
        growth = math.exp(self.sigma**2 / 2 - self.drift_value)
        return np.asarray((level + self.shift) * ndtr(z) - scale * growth * ndtr(z - self.sigma))

    def _encode(self, count: FloatArray) -> IntArray:
        return self.lattice.from_logarithm_of(count + self.shift)

    def _decode(self, value: FloatArray, drift: float) -> FloatArray:
        return np.asarray(np.exp(value - drift) - self.shift)

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
