"""Confidence bounds that hold for every number of draws; none rests on a limit theorem."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, binom

FloatArray = npt.NDArray[np.float64]


def probability_lower(successes: npt.ArrayLike, trials: int, rate: float) -> FloatArray:
    """Return what a probability is above, except with probability ``rate`` (Clopper, Pearson)."""
    k = np.asarray(successes, dtype=np.float64)
    bound = beta.ppf(rate, np.maximum(k, 1), trials - k + 1)
    return np.where(k > 0, bound, 0.0)


def probability_upper(successes: npt.ArrayLike, trials: int, rate: float) -> FloatArray:
    """Return what a probability is below, except with probability ``rate`` (Clopper, Pearson)."""
    k = np.asarray(successes, dtype=np.float64)
    bound = beta.isf(rate, k + 1, np.maximum(trials - k, 1))
    return np.where(k < trials, bound, 1.0)


def binomial_p_value(
    successes: npt.ArrayLike,
    trials: int | npt.NDArray[np.int64],
    probability: float | FloatArray,
) -> FloatArray:
    """Return twice the smaller tail: at most p with probability at most p, for every p."""
    k = np.asarray(successes, dtype=np.float64)
    smaller = np.minimum(binom.cdf(k, trials, probability), binom.sf(k - 1, trials, probability))
    return np.asarray(np.minimum(2 * smaller, 1.0))


def mean_lower(values: FloatArray, cap: float, rate: float) -> float:
    """Return what the mean of a non-negative variable is above, except with probability ``rate``.

    Values are cut at ``cap``, which only lowers the mean; then the empirical Bernstein bound of
    Maurer and Pontil (2009, Theorem 4).
    """
    cut = np.minimum(values, cap)
    logarithm, size = math.log(2 / rate), values.size
    width = math.sqrt(2 * float(np.var(cut, ddof=1)) * logarithm / size)
    return float(np.mean(cut)) - width - 7 * cap * logarithm / (3 * (size - 1))


def distribution_distance(size: int, rate: float) -> float:
    """Return what sup |empirical - true distribution function| exceeds with probability ``rate``.

    Dvoretzky, Kiefer, Wolfowitz, with the constant of Massart (1990); for discrete ones too.
    """
    return math.sqrt(math.log(2 / rate) / (2 * size))
