"""Intervals at another confidence than the published one, recovered from the published bounds.

A published bound is a known function of the noisy transformed count, so it gives that count away
(it is public) up to the rounding of the bound, and with it the interval at every confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant, Mechanism
from spark_dphist.mechanisms.base import FloatArray, TransformMechanism, check_confidence
from spark_dphist.mechanisms.lattice import MAX_COUNT

# What evaluating a transform and its inverse in doubles may lose, relative.
_ACCURACY = 1e-10
# An integer that is missed by no more is meant, in counts.
_LEAST_DIGIT = 1e-3


@dataclass(frozen=True)
class PublishedIntervals:
    """Released intervals of independent groups with the public policy that they follow from.

    Parameters
    ----------
    mechanism
        As it released the counts.
    lower, upper
        As published, arrays of one shape; rounded outwards where ``rounded``.
    confidence
        Of each interval.
    rounded
        Whether bounds were rounded to integers.
    """

    mechanism: Mechanism
    lower: FloatArray
    upper: FloatArray
    confidence: float
    rounded: bool

    @property
    def scales(self) -> float:
        """Half the width of a published interval, in standard deviations of the noise."""
        return float(ndtri(0.5 + self.confidence / 2))

    def select(self, rows: npt.NDArray[np.int64]) -> PublishedIntervals:
        """Return the intervals at these positions, in the shape of ``rows``."""
        return PublishedIntervals(
            self.mechanism, self.lower[rows], self.upper[rows], self.confidence, self.rounded
        )

    def at(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """Return bounds that contain the true counts with this probability each.

        At the published confidence they are the published bounds; at another they are wider by
        what the rounding of those leaves open, at most one count on their scale.

        Raises
        ------
        ConfigurationError
            If the confidence is not strictly between 0 and 1.
        """
        check_confidence(confidence)
        if isinstance(self.mechanism, Constant):
            return self.lower, self.upper
        least, greatest, unknown = self._noisy()
        low = np.where(unknown, 0.0, self.mechanism.interval(least, confidence)[0])
        high = self.mechanism.interval(greatest, confidence)[1]
        # Counts above the bound are released as the bound.
        high = np.where(self.upper >= MAX_COUNT, np.maximum(high, MAX_COUNT), high)
        return np.maximum(low * (1 - _ACCURACY), 0.0), high * (1 + _ACCURACY)

    def _noisy(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Bracket the noisy lattice points; where the last is True there is no lower end."""
        mechanism = self.mechanism
        half = self._half_width()
        rounds = self.rounded and isinstance(mechanism, TransformMechanism)
        greatest = mechanism.encode(self.upper) - half
        from_upper = mechanism.encode(self.upper - rounds) - half
        from_lower = mechanism.encode(self.lower) + half
        has_upper, has_lower = self.upper > 0, self.lower > 0
        least = np.where(has_upper, from_upper, from_lower)
        least = np.where(has_upper & has_lower, np.maximum(from_upper, from_lower), least)
        return np.minimum(least, greatest), greatest, ~(has_upper | has_lower)

    def _half_width(self) -> int:
        if isinstance(self.mechanism, TransformMechanism):
            return round(math.ldexp(self.scales, self.mechanism.lattice.scale_bits))
        # Of noise on the counts themselves.
        far = 2**40
        return int(self.mechanism.interval([far], self.confidence)[1][0]) - far


def outwards(
    lower: FloatArray, upper: FloatArray, rounded: bool
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Round bounds outwards to int64 where the counts were rounded; a rounding error is no digit.

    Raises
    ------
    ConfigurationError
        If a bound is too large for an integer.
    """
    if not rounded:
        return lower, upper
    low = np.floor(lower + np.minimum(np.abs(lower) * 2 * _ACCURACY, _LEAST_DIGIT))
    high = np.ceil(upper - np.minimum(np.abs(upper) * 2 * _ACCURACY, _LEAST_DIGIT))
    if np.any(np.abs(high) >= 2**62) or np.any(np.abs(low) >= 2**62):
        raise ConfigurationError(
            "a bound is beyond what 64-bit integers hold: publish counts without rounding"
        )
    return low.astype(np.int64), high.astype(np.int64)
