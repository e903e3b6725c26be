"""From reports to counts: unbiased estimates, their variance and intervals (post-processing)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from spark_dphist.local.responses import LocalResponse
from spark_dphist.mechanisms.base import check_confidence

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Estimated counts, shape (categories,), float64, in reports.

    ``count`` is unbiased, so it may be negative or above the number of reports; ``variance`` is an
    unbiased estimate of its variance, at least 0; ``lower`` and ``upper`` are within 0 and the
    number of reports.
    """

    count: FloatArray
    variance: FloatArray
    lower: FloatArray
    upper: FloatArray

    @property
    def standard_error(self) -> FloatArray:
        """The square root of the variance."""
        return np.sqrt(self.variance)


def estimate_counts(
    response: LocalResponse, support: npt.ArrayLike, reports: int, confidence: float = 0.95
) -> Estimate:
    """Estimate how many of the reports have each value.

    Parameters
    ----------
    response
        What the reports were drawn with.
    support
        How many reports support each category, shape (categories,).
    reports
        Number of reports, n.
    confidence
        Of each interval for itself, approximately (the normal approximation's score interval).

    Raises
    ------
    ConfigurationError
        If the confidence is not strictly between 0 and 1.

    Notes
    -----
    (C - n q) / (p - q) (Wang, Blocki, Li, Jha 2017, Equation 1), with the exact p and q of the
    reports, so that rounding them does not bias it. Its variance at a true count c is
    (c p (1-p) + (n-c) q (1-q)) / (p-q)**2, linear in c, so at the estimate it is unbiased too.
    """
    check_confidence(confidence)
    own, other = response.support_probabilities
    gap = float(own - other)
    supported = np.asarray(support, dtype=np.float64)
    count = (supported - reports * float(other)) / gap
    # Var(c) = constant + slope c.
    constant = reports * float(other * (1 - other)) / gap**2
    slope = float(own * (1 - own) - other * (1 - other)) / gap**2
    variance = np.maximum(constant + slope * count, 0.0)
    # The score interval: all c with (count - c)**2 <= z**2 Var(c).
    z = float(-ndtri((1 - confidence) / 2))
    centre = count + z * z * slope / 2
    half = z * np.sqrt(np.maximum(constant + slope * count + (z * slope / 2) ** 2, 0.0))
    return Estimate(
        count,
        variance,
        np.clip(centre - half, 0.0, reports),
        np.clip(centre + half, 0.0, reports),
    )


def variance_at(response: LocalResponse, count: npt.ArrayLike, reports: int) -> FloatArray:
    """Return the estimate's variance where so many of the reports have the value."""
    own, other = response.support_probabilities
    held = np.asarray(count, dtype=np.float64)
    spread = held * float(own * (1 - own)) + (reports - held) * float(other * (1 - other))
    return np.asarray(spread / float(own - other) ** 2)
