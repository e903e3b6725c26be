"""A rigorous search of the counts up to the linear-log's knee, where the error has a plateau."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from spark_dphist.mechanisms.calibration import Promising, worst_error
from spark_dphist.mechanisms.pieces import FloatArray, Lognormal, Normal

_FIRST_RANGES = 256
# When the promise is broken anyway, ranges that cannot hold an error larger by this are dropped.
_RESOLUTION = 1e-13


class LinearThenLogarithmic(Promising, Protocol):
    """What the search needs to know of the mechanism."""

    @property
    def knee(self) -> float:
        """Where the transform turns from linear to logarithmic, in counts."""
        ...

    @property
    def lognormal(self) -> Lognormal:
        """The distribution of the estimate above the knee."""
        ...


def find_plateau_violation(mechanism: LinearThenLogarithmic, allowed_error: float) -> float | None:
    """Return a count below ``tail_start`` with an error not below allowed * max(x, floor), or None.

    Notes
    -----
    Branch and bound over ranges of counts up to the knee; single counts are evaluated. Between the
    knee and the floor the error does not fall with the count, so the last count decides. Of
    violations the worst is returned. docs/mechanisms.md proves the bounds.
    """
    floor, bounds = mechanism.floor, _Bounds(mechanism)
    worst_count = np.array([math.floor(max(floor, mechanism.knee))], dtype=np.float64)
    worst = worst_error(mechanism, worst_count) / np.maximum(worst_count, floor)
    low = np.unique(np.rint(np.linspace(0, math.floor(mechanism.knee), _FIRST_RANGES + 1)))
    high = np.append(low[1:] - 1, low[-1])
    while low.size:
        single = low == high
        error, upper = mechanism.expected_absolute_error(low), bounds.error_upper(low, high)
        error[single] = upper[single] = worst_error(mechanism, low[single])
        allowed = np.maximum(low, floor)
        best = np.argmax(error / allowed)
        if error[best] / allowed[best] > worst:
            worst_count, worst = low[[best]], error[[best]] / allowed[best]
        threshold = allowed_error if worst < allowed_error else float(worst[0]) * (1 + _RESOLUTION)
        is_open = (upper >= threshold * allowed) & ~single
        low, high = low[is_open], high[is_open]
        middle = np.floor((low + high) / 2)
        low, high = np.concatenate([low, middle + 1]), np.concatenate([middle, high])
    return float(worst_count[0]) if worst >= allowed_error else None


class _Bounds:
    """Upper bounds of the error, rounded or not, over ranges of counts up to the knee."""

    def __init__(self, mechanism: LinearThenLogarithmic) -> None:
        self._mechanism, self._law = mechanism, mechanism.lognormal
        sigma, knee = mechanism.sigma, mechanism.knee
        # Without the knee and clipping the error is √(2/π) σ knee at every count. If the decoder's
        # part above the knee adds nothing to that at the knee, it adds nothing below.
        deviation = sigma * knee
        clipped = Normal(deviation).mean_shortfall(np.array(knee), np.array(0.0))
        level = deviation * math.sqrt(2 / math.pi)
        at_knee = mechanism.expected_absolute_error(knee)
        self._plateau = level if at_knee + clipped <= level else math.inf
        # Rounding pushes the mass piled up at the knee up by at most this; nothing else rises.
        self._push = max(float(np.rint(knee)) - knee, 0.0)

    def error_upper(self, low: FloatArray, high: FloatArray) -> FloatArray:
        """Bound the errors at the integer counts of each range [low, high]."""
        mechanism = self._mechanism
        # The slope of the error is clipped + stretched - piled, each monotone in the count.
        rise = self._clipped(low) + self._stretched(high) - self._piled(low)
        fall = self._piled(high) - self._clipped(high) - self._stretched(low)
        width = high - low
        upper = np.minimum(
            mechanism.expected_absolute_error(low) + width * np.maximum(rise, 0.0),
            mechanism.expected_absolute_error(high) + width * np.maximum(fall, 0.0),
        )
        return np.minimum(upper, self._plateau) + self._push * self._piled(high)

    def _clipped(self, x: FloatArray) -> FloatArray:
        """P(y < 0), falling with the count."""
        return np.asarray(ndtr(-x / (self._mechanism.knee * self._mechanism.sigma)))

    def _piled(self, x: FloatArray) -> FloatArray:
        """P(estimate = knee), rising with the count up to the knee."""
        distance = (1 - x / self._mechanism.knee) / self._mechanism.sigma
        return np.asarray(ndtr(-distance) - ndtr(-distance - self._law.drift / self._law.sigma))

    def _stretched(self, x: FloatArray) -> FloatArray:
        """E(estimate / knee - 1)⁺, rising with the count."""
        knee = self._mechanism.knee
        location = knee * np.exp(x / knee - 1)
        return self._law.mean_excess(location, np.full_like(x, knee)) / knee
