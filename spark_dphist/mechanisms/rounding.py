"""The expected absolute error of an estimate that is rounded to the nearest integer.

For an integer count x and the estimate's distribution function F,
E|round(x̂) - x| = sum over j >= 0 of (1 - F(x + j + 1/2)) + F(x - j - 1/2).
Each sum is the midpoint rule for a part of E|x̂ - x|, so far from where F bends quickly it is that
part plus Euler-Maclaurin corrections; elsewhere it is summed cell by cell.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from numpy.polynomial import Polynomial
from scipy.special import ndtr

FloatArray = npt.NDArray[np.float64]

# Cells are summed one by one where the distribution's own length scale is below this many counts;
# beyond, the first neglected Euler-Maclaurin term is below 1e-13 of the error.
_SMOOTH_SCALE = 24.0
# Standard deviations beyond which a tail (1e-21) is no longer summed.
_WINDOW = 9.5
_CELLS_AT_ONCE = 1 << 21


class RoundedEstimate(Protocol):
    """What the sums need to know of a mechanism."""

    @property
    def lowest_estimate(self) -> float:
        """The smallest estimate that can be published, in counts."""
        ...

    def smooth_from(self, length_scale: float) -> int:
        """Return a count from which on F varies on at least this length scale, in counts."""
        ...

    def standardised(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return z with P(estimate < level) = Φ(z) for true counts x."""
        ...

    def level_of(self, x: FloatArray, z: float) -> FloatArray:
        """Return the estimate at standardised noise z for true counts x."""
        ...

    def density_derivatives(
        self, x: FloatArray, level: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the first, third and fifth derivative of F at these levels."""
        ...

    def mean_excess(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(estimate - level)⁺."""
        ...

    def mean_shortfall(self, x: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(level - estimate)⁺, before clipping."""
        ...


def rounded_error(mechanism: RoundedEstimate, count: FloatArray) -> FloatArray:
    """Return E|round(estimate) - x| in counts for integer counts x, to about 1e-12 relative."""
    x = np.atleast_1d(np.rint(count))
    first_smooth = float(mechanism.smooth_from(_SMOOTH_SCALE))
    lowest = mechanism.lowest_estimate
    total = np.empty_like(x)
    near = x <= first_smooth
    total[near] = _cells(mechanism, x[near], lowest, first_smooth) + _smooth_tail(
        mechanism, x[near], first_smooth
    )
    far = x[~near]
    start = max(first_smooth, lowest)
    shortfall = mechanism.mean_shortfall
    below = (
        _cells(mechanism, far, lowest, start)
        + shortfall(far, far)
        - shortfall(far, np.full_like(far, start))
        + _midpoint_correction(mechanism, far, far)
        - _midpoint_correction(mechanism, far, np.full_like(far, start))
    )
    total[~near] = below + _smooth_tail(mechanism, far, -np.inf)
    return np.asarray(np.maximum(total, 0.0).reshape(np.shape(count)), dtype=np.float64)


def _smooth_tail(mechanism: RoundedEstimate, x: FloatArray, start: float) -> FloatArray:
    """Sum 1 - F over the cells above max(x, start), all of them smooth."""
    level = np.maximum(x, start)
    return mechanism.mean_excess(x, level) + _midpoint_correction(mechanism, x, level)


def _midpoint_correction(
    mechanism: RoundedEstimate, x: FloatArray, level: FloatArray
) -> FloatArray:
    # Midpoint Euler-Maclaurin: sum - integral has the end terms -f'/24 + 7 f'''/5760 - ..., each
    # with the sign of the end; F rises below x and 1 - F falls above it, so one sign serves both.
    first, third, fifth = mechanism.density_derivatives(x, level)
    return -first / 24 + 7 * third / 5760 - 31 * fifth / 967680


def _cells(mechanism: RoundedEstimate, x: FloatArray, lowest: float, end: float) -> FloatArray:
    """Sum the cells [k, k + 1) from the lowest estimate to ``end``, one by one."""
    reach = mechanism.level_of
    low = np.maximum(np.floor(np.minimum(reach(x, -_WINDOW), x)), lowest)
    high = np.minimum(np.ceil(np.maximum(reach(x, _WINDOW), x)), end)
    widest = int(max(np.max(high - low, initial=0.0), 0))
    sums = np.zeros_like(x)
    if widest == 0:
        return sums
    rows = max(_CELLS_AT_ONCE // widest, 1)
    offsets = np.arange(widest, dtype=np.float64)
    for begin in range(0, x.size, rows):
        part = slice(begin, begin + rows)
        cell = low[part, None] + offsets
        z = mechanism.standardised(x[part, None], cell + 0.5)
        term = ndtr(np.where(cell < x[part, None], z, -z))
        sums[part] = np.sum(np.where(cell < high[part, None], term, 0.0), axis=1)
    return sums


def log_density_derivatives(
    z: FloatArray, distance: FloatArray, sigma: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Differentiate Φ((ln(distance) - m) / sigma), whose argument is z, by the distance.

    Returns
    -------
    tuple of ndarray
        The first, third and fifth derivative.
    """
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    derivatives = []
    # d/dw [φ(z) q(z) w^-n] = φ(z) w^-(n+1) [(q' - z q) / σ - n q], from z' = 1 / (σ w).
    factor = Polynomial([1 / sigma])
    for order in range(1, 6):
        derivatives.append(density * factor(z) / distance**order)
        factor = (factor.deriv() - Polynomial([0, 1]) * factor) / sigma - order * factor
    return derivatives[0], derivatives[2], derivatives[4]
