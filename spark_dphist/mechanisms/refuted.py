"""Why noise N(0, r² n²) on a count n is refused: its Rényi divergences are infinite.

docs/refuted.md has the derivation and the figure.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError

FloatArray = npt.NDArray[np.float64]

REFUSED = {
    "unequal_variance": (
        "mechanism 'unequal_variance', noise N(0, r² n²) on a count n, is refused: between the "
        "counts n and n - 1 its Rényi divergence is infinite from order n²/(2n - 1), about n/2, "
        "on, so it has no zCDP budget whatever r is (docs/refuted.md). 'linear_log' and "
        "'shifted_log' have errors of the same size and a budget."
    )
}
"""Mechanisms that look right and are not, by name, with the sentence that refuses them."""


def divergence_order(count: float, neighbour: float) -> float:
    """Return the order from which on D_alpha(N(n, r² n²) || N(n', r² n'²)) is infinite.

    Parameters
    ----------
    count, neighbour
        The counts n of the first and n' of the second distribution, at least 0.

    Returns
    -------
    float
        n² / (n² - n'²) for n > n', whatever r is; infinity for n <= n', where all orders are
        finite; 1 (every order above 1) if exactly one of the counts is 0, where one of the
        distributions has no noise.

    Raises
    ------
    ConfigurationError
        If a count is negative or not finite.
    """
    _check_counts(count, neighbour)
    if neighbour >= count:
        return 1.0 if count == 0 < neighbour else math.inf
    return count**2 / ((count - neighbour) * (count + neighbour))


def unequal_variance_divergence(
    order: npt.ArrayLike, count: float, neighbour: float, relative_error: float
) -> FloatArray:
    """Return the Rényi divergence of N(n, r² n²) from N(n', r² n'²), in nats.

    Parameters
    ----------
    order
        alpha, above 1; any shape.
    count, neighbour
        The counts n of the first and n' of the second distribution, at least 0.
    relative_error
        r, the standard deviation as a share of the count, above 0.

    Returns
    -------
    ndarray of float64
        Infinite from ``divergence_order`` on.

    Raises
    ------
    ConfigurationError
        If an argument is out of its range.
    """
    _check_counts(count, neighbour)
    alpha = np.asarray(order, dtype=np.float64)
    if not np.all((alpha > 1) & (alpha < np.inf)):
        raise ConfigurationError("orders must be finite numbers above 1")
    if not 0 < relative_error < math.inf:
        raise ConfigurationError(
            f"relative_error must be a finite number above 0, got {relative_error!r}"
        )
    if count == neighbour:
        return np.zeros_like(alpha)
    if count == 0 or neighbour == 0:
        return np.full_like(alpha, np.inf)
    # Gil, Alajaji, Linder 2013, Table 2: with s1 = r n, s2 = r n' and
    # s² = alpha s2² + (1 - alpha) s1², the divergence is infinite unless s² > 0, and then
    # ln(s2 / s1) + ln(s2² / s²) / (2 (alpha - 1)) + alpha (n - n')² / (2 s²).
    # Here in terms of s2² / s1² = 1 + d and s² / s1² = 1 + alpha d.
    d = (neighbour - count) * (neighbour + count) / count**2
    finite = alpha < divergence_order(count, neighbour)
    share = np.where(finite, 1 + alpha * d, 1.0)
    spread = (alpha * math.log1p(d) - np.log(share)) / (2 * (alpha - 1))
    shift = alpha * ((count - neighbour) / (relative_error * count)) ** 2 / (2 * share)
    return np.where(finite & (1 + alpha * d > 0), spread + shift, np.inf)


def _check_counts(*counts: float) -> None:
    for count in counts:
        if not 0 <= count < math.inf:
            raise ConfigurationError(f"counts must be finite numbers from 0 on, got {count!r}")
