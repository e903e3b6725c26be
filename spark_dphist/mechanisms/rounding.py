"""The expected error of an estimate and of its nearest integer, summed over pieces.

For an integer count x and the estimate's distribution function F, E(x - x̂)⁺ is the integral of F
below x and E(x̂ - x)⁺ that of 1 - F above. For the nearest integer the integrals become sums,
sum over j >= 0 of F(x - j - 1/2) and of 1 - F(x + j + 1/2): midpoint rules of the same integrals.
So where F bends slowly a sum is its integral plus Euler-Maclaurin corrections; elsewhere it is
summed cell by cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from spark_dphist.mechanisms.pieces import FloatArray, Segment

# Cells are summed one by one where the distribution's own length scale is below this many counts;
# beyond, the first neglected Euler-Maclaurin term is below 1e-13 of the error.
_SMOOTH_SCALE = 24.0
# Standard deviations beyond which a tail (1e-21) is no longer summed.
_WINDOW = 9.5
_CELLS_AT_ONCE = 1 << 20

Segments = Callable[[FloatArray], Sequence[Segment]]


class MeanError(NamedTuple):
    """E(count - estimate)⁺ and E(estimate - count)⁺, in counts."""

    below: FloatArray
    above: FloatArray


def mean_error(segments: Segments, count: FloatArray) -> MeanError:
    """Return both parts of the expected error of the estimate, in closed form."""
    below, above = np.zeros_like(count), np.zeros_like(count)
    for segment in segments(count):
        _add_integrals(segment, count, segment.begin, segment.end, below, above)
    return MeanError(below, above)


def mean_rounded_error(segments: Segments, count: FloatArray) -> MeanError:
    """Return both parts of the expected error of the estimate's nearest integer.

    To about 1e-13 relative; the estimate is rounded half to even, as ``numpy.rint`` does.
    """
    x = np.rint(count).ravel()
    below, above = np.zeros_like(x), np.zeros_like(x)
    parts = segments(x)
    summed_to: float = math.floor(parts[0].begin)
    for part in parts:
        begin = max(_ceil(part.begin), _ceil(part.piece.smooth_from(_SMOOTH_SCALE)), summed_to)
        end = _floor(part.end)
        if begin < end:
            _add_cells(segments, x, summed_to, begin, below, above)
            _add_integrals(part, x, begin, end, below, above)
            _add_corrections(part, x, begin, end, below, above)
            summed_to = end
    return MeanError(below.reshape(count.shape), above.reshape(count.shape))


def _ceil(level: float) -> float:
    return math.ceil(level) if math.isfinite(level) else level


def _floor(level: float) -> float:
    return math.floor(level) if math.isfinite(level) else level


def _add_integrals(
    part: Segment, x: FloatArray, begin: float, end: float, below: FloatArray, above: FloatArray
) -> None:
    """Integrate F from begin to x and 1 - F from x to end."""
    piece, location, turn = part.piece, part.location, np.clip(x, begin, end)
    below += piece.mean_shortfall(location, turn) - piece.mean_shortfall(
        location, np.full_like(x, begin)
    )
    beyond = piece.mean_excess(location, np.full_like(x, end)) if math.isfinite(end) else 0.0
    above += piece.mean_excess(location, turn) - beyond


def _add_corrections(
    part: Segment, x: FloatArray, begin: float, end: float, below: FloatArray, above: FloatArray
) -> None:
    """Add midpoint sum minus integral, between integers."""
    turn = _midpoint_correction(part, np.clip(x, begin, end))
    below += turn - _midpoint_correction(part, np.full_like(x, begin))
    beyond = _midpoint_correction(part, np.full_like(x, end)) if math.isfinite(end) else 0.0
    above += turn - beyond


def _midpoint_correction(part: Segment, level: FloatArray) -> FloatArray:
    # Midpoint Euler-Maclaurin: sum - integral has the end terms -f'/24 + 7 f'''/5760 - ..., at the
    # upper end minus at the lower one; F and 1 - F have opposite derivatives and opposite ends.
    first, third, fifth = part.piece.density_derivatives(part.location, level)
    return np.asarray(-first / 24 + 7 * third / 5760 - 31 * fifth / 967680)


def _add_cells(
    segments: Segments,
    x: FloatArray,
    begin: float,
    end: float,
    below: FloatArray,
    above: FloatArray,
) -> None:
    """Sum the cells [k, k + 1) from begin to end one by one."""
    parts = segments(x)
    low = np.maximum(np.floor(np.minimum(_level_at(parts, -_WINDOW), x)), begin)
    high = np.minimum(np.ceil(np.maximum(_level_at(parts, _WINDOW), x)), end)
    rows = np.flatnonzero(high > low)
    rows = rows[np.argsort(high[rows] - low[rows])]
    while rows.size:
        # From the widest on, so that a block holds rows of similar width.
        widest = high[rows[-1]] - low[rows[-1]]
        now = rows[-max(int(_CELLS_AT_ONCE // widest), 1) :]
        rows = rows[: rows.size - now.size]
        cell = low[now, None] + np.arange(widest)
        z = _standardised_midpoint(segments(x[now, None]), cell)
        is_below, inside = cell < x[now, None], cell < high[now, None]
        term = ndtr(np.where(is_below, z, -z))
        below[now] += np.sum(term, axis=1, where=is_below & inside)
        above[now] += np.sum(term, axis=1, where=~is_below & inside)


def _level_at(parts: Sequence[Segment], z: float) -> FloatArray:
    level = parts[0].piece.level_at(parts[0].location, z)
    for part in parts[1:]:
        level = np.where(
            level < part.begin, level, np.maximum(part.piece.level_at(part.location, z), part.begin)
        )
    return level


def _standardised_midpoint(parts: Sequence[Segment], cell: FloatArray) -> FloatArray:
    """Return z with P(nearest integer <= cell) = Φ(z)."""
    level = cell + 0.5
    z = parts[0].piece.standardised(parts[0].location, level)
    for part in parts[1:]:
        # Estimates may pile up at the border; at a half-integer they all go to the even side.
        upper = level >= part.begin if np.rint(part.begin) < part.begin else level > part.begin
        z = np.where(upper, part.piece.standardised(part.location, level), z)
    return z
