"""Estimates of single counts whose sum concentrates: unbiased before rounding, never clipped at 0.

Each is computed from a published upper bound, which reaches below 0 on the noise's own scale where
the released count is clipped. docs/using-results.md has the definitions and the proofs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from spark_dphist.mechanisms import FixedGaussian, FixedLaplace, LinearLog, Mechanism, ShiftedLog
from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.results.intervals import PublishedIntervals

# Standard deviations beyond which the lower side of the noise (1e-23) is left out of a mean.
_FAR = 10.0
_NODES = 4001
_RATIOS = np.geomspace(1e-4, 1e3, 500)
# What quadrature and a grid of arguments may miss, relative.
_MARGIN = 1 + 1e-6


@dataclass(frozen=True)
class SumEvidence:
    """What the released bounds say about sums of counts; each array has shape (totals,).

    Parameters
    ----------
    estimate
        Sums of the estimates, in counts.
    least_bias, greatest_bias
        Bounds on the expectations of ``estimate`` minus the sums of the true counts.
    below, above
        The sum is less than its expectation by more than ``below``, and exceeds it by more than
        ``above``, with probability at most ``chance`` of ``evidence`` each.
    """

    estimate: FloatArray
    least_bias: FloatArray
    greatest_bias: FloatArray
    below: FloatArray
    above: FloatArray


class SumStatistic(ABC):
    """Sums of independent estimates from the published bounds of one mechanism."""

    @abstractmethod
    def estimate(self, published: PublishedIntervals) -> FloatArray:
        """Return the estimates of the single counts, in counts; they may be negative."""

    @abstractmethod
    def evidence(
        self, published: PublishedIntervals, low: FloatArray, high: FloatArray, chances: Chances
    ) -> SumEvidence:
        """Sum over the last axis.

        Parameters
        ----------
        published
            The groups of each total, shape (totals, groups).
        low, high
            Bounds of all true counts, valid together where all noise is within
            ``chances.scales``.
        chances
            What may go wrong, and how often.
        """


@dataclass(frozen=True)
class Chances:
    """How the allowed failures are shared out.

    Parameters
    ----------
    scales
        All noise of a total is within so many of its standard deviations, but for ``box``.
    tail
        Of each of the two deviations of the sum.
    spread
        Of the bound on the sum of squares that these deviations need.
    """

    scales: float
    tail: float
    spread: float


def sum_statistic(mechanism: Mechanism) -> SumStatistic | None:
    """Return the statistic for a mechanism; None where only intervals can be added."""
    if isinstance(mechanism, ShiftedLog):
        return _ShiftedLogSum(mechanism)
    if isinstance(mechanism, LinearLog):
        return _LinearLogSum(mechanism)
    if isinstance(mechanism, FixedGaussian | FixedLaplace):
        return _FixedNoiseSum(mechanism)
    return None


class _LogarithmicSum(SumStatistic):
    """Estimates whose deviations are, in dispersive order, at most scale(x) times a known W(Z)."""

    sigma: float

    @abstractmethod
    def _estimate(self, noisy_upper: FloatArray, scales: float) -> FloatArray:
        """Return the estimate from the real number whose rounding was published."""

    @abstractmethod
    def _scale(self, count: FloatArray) -> FloatArray:
        """Return the scale of the deviations at a true count, which rises with it."""

    @abstractmethod
    def _scale_estimate(self, upper: FloatArray, scales: float) -> FloatArray:
        """Return S with E S² >= scale(x)² e^{σ²}; its noise is at most that of a lognormal S."""

    @abstractmethod
    def _bias(self, low: FloatArray, high: FloatArray, scales: float) -> tuple[FloatArray, ...]:
        """Bound E(estimate) - x over low <= x <= high."""

    @abstractmethod
    def _rounding(self, low: FloatArray, scales: float) -> tuple[float, FloatArray]:
        """Bound what rounding changes of an estimate: half the range, and the expectation."""

    @abstractmethod
    def _deviation(self, z: FloatArray) -> FloatArray:
        """Return W(z), per unit of scale."""

    def estimate(self, published: PublishedIntervals) -> FloatArray:
        """See ``SumStatistic``."""
        upper = published.upper
        centre = np.maximum(upper - 0.5, 0.0) if published.rounded else upper
        return self._estimate(centre, published.scales)

    def evidence(
        self, published: PublishedIntervals, low: FloatArray, high: FloatArray, chances: Chances
    ) -> SumEvidence:
        """See ``SumStatistic``."""
        upper, scales = published.upper, published.scales
        least, greatest = self._bias(low, high, scales)
        # The largest group is one and the same whatever the noise, so one group's bound will do.
        _, one_sided = published.at(1 - chances.spread)
        largest = np.max(self._scale(one_sided), axis=-1)
        root = self._root_of_squares(upper, scales, largest, chances.spread / 2)
        log_tail = -math.log(chances.tail)
        below = np.sqrt(2 * log_tail * self._variance_below) * root
        above = largest * self._above((root / largest) ** 2, log_tail, chances.scales)
        if published.rounded:
            half_range, expectation = self._rounding(low, scales)
            # Hoeffding 1963, Theorem 2; the two parts' deviations add (Hölder).
            jitter = half_range * math.sqrt(2 * log_tail * upper.shape[-1])
            least, greatest = least - expectation, greatest + expectation
            below, above = below + jitter, above + jitter
        return SumEvidence(
            estimate=np.sum(self.estimate(published), axis=-1),
            least_bias=np.sum(least, axis=-1),
            greatest_bias=np.sum(greatest, axis=-1),
            below=below,
            above=above,
        )

    def _root_of_squares(
        self, upper: FloatArray, scales: float, largest: FloatArray, chance: float
    ) -> FloatArray:
        """Bound the square root of the sum of squared scales of the true counts."""
        seen = self._scale_estimate(upper, scales) ** 2 * math.exp(-(self.sigma**2))
        # With Q the sum of squares and n = Q / largest², the weights a² / Q are at most 1 / n, so
        # by Chernoff's bound the sum seen is at least Q least(n), but for the chance.
        n, least = self._least_mean_of_squares(-math.log(chance))
        ratio = np.sum(seen, axis=-1) / largest**2
        position = np.searchsorted(n * least, ratio)
        squares = n[np.minimum(position, n.size - 1)]
        if least[0] > 0:
            squares = np.where(position == 0, ratio / least[0], squares)
        return np.asarray(largest * np.sqrt(np.minimum(squares, upper.shape[-1])))

    def _least_mean_of_squares(self, log_chance: float) -> tuple[FloatArray, FloatArray]:
        """Return numbers n from 1 on and what a mean of n squares is above, but for the chance."""
        z, weight = _normal_grid(_FAR)
        value = np.exp(2 * self.sigma * z - 2 * self.sigma**2)
        arguments = np.geomspace(1e-7, 1e6, 2000)
        growth = _log_mean_exp(arguments, -value, weight)
        n = np.geomspace(1, 1e12, 4000)
        best = np.full(n.size, -np.inf)
        for argument, each in zip(arguments, growth, strict=True):
            np.maximum(best, -(each + log_chance / n) / argument, out=best)
        return n, np.maximum(best, 0.0) / _MARGIN

    @cached_property
    def _variance_below(self) -> float:
        """The least v with ln E e^{-u (W - EW)} <= u² v / 2 for all u > 0."""
        return _variance_proxy_below(self._deviation)

    def _above(self, squares: FloatArray, log_tail: float, scales: float) -> FloatArray:
        """Bound the upper deviation, for a largest scale of 1 and a sum of squared scales."""
        z, weight = _normal_grid(scales)
        moved = self._deviation(z)
        moved = moved - np.sum(weight * moved)
        arguments = _RATIOS / math.sqrt(float(np.sum(weight * moved**2)))
        growth = _log_mean_exp(arguments, moved, weight)
        # ψ(u a) <= a² sup_{w <= u} (ψ(w) / w²) u² for a <= 1.
        ratio = np.maximum.accumulate(growth / arguments**2) * _MARGIN
        bounds = squares[..., None] * ratio * arguments + log_tail / arguments
        return np.asarray(np.min(bounds, axis=-1))


class _ShiftedLogSum(_LogarithmicSum):
    """e^{y - σ²/2} - shift, for the noisy logarithm y: unbiased at every count."""

    def __init__(self, mechanism: ShiftedLog) -> None:
        self.sigma, self._shift = mechanism.sigma, mechanism.shift

    def _estimate(self, noisy_upper: FloatArray, scales: float) -> FloatArray:
        return self._scale_estimate(noisy_upper, scales) - self._shift

    def _scale(self, count: FloatArray) -> FloatArray:
        return count + self._shift

    def _scale_estimate(self, upper: FloatArray, scales: float) -> FloatArray:
        return (upper + self._shift) * math.exp(-self.sigma * scales - self.sigma**2 / 2)

    def _deviation(self, z: FloatArray) -> FloatArray:
        return np.asarray(np.exp(self.sigma * z - self.sigma**2 / 2))

    def _bias(self, low: FloatArray, high: FloatArray, scales: float) -> tuple[FloatArray, ...]:
        # An upper bound of 0 stands for all below it: E(k - aW)⁺ (Black 1976), falling with a.
        a = low + self._shift
        k = self._shift * math.exp(-self.sigma * scales - self.sigma**2 / 2)
        d = np.log(k / a) / self.sigma + self.sigma / 2
        clipped = k * ndtr(d) - a * ndtr(d - self.sigma) + 1e-12 * k
        return np.zeros_like(low), np.maximum(clipped, 0.0)

    def _rounding(self, low: FloatArray, scales: float) -> tuple[float, FloatArray]:
        sigma = self.sigma
        slope = math.exp(-sigma * scales - sigma**2 / 2)
        location = (low + self._shift) * math.exp(sigma * scales)
        peak = math.exp(sigma**2 / 2) / (sigma * math.sqrt(2 * math.pi) * location)
        return slope / 2, slope * np.minimum(peak / 8, 0.5)


class _LinearLogSum(_LogarithmicSum):
    """knee G(y): y up to 1, then 1, then e^{y - 1 - σ²/2}; unbiased away from the knee."""

    def __init__(self, mechanism: LinearLog) -> None:
        self.sigma, self._knee = mechanism.sigma, mechanism.knee

    def _transformed(self, count: FloatArray) -> FloatArray:
        ratio = count / self._knee
        return np.where(ratio <= 1, ratio, 1 + np.log(np.maximum(ratio, 1.0)))

    def _estimate(self, noisy_upper: FloatArray, scales: float) -> FloatArray:
        y = self._transformed(noisy_upper) - scales * self.sigma
        return self._knee * np.where(
            y <= 1, y, np.maximum(np.exp(np.maximum(y - 1 - self.sigma**2 / 2, 0.0)), 1.0)
        )

    def _scale(self, count: FloatArray) -> FloatArray:
        return np.maximum(count, self._knee)

    def _scale_estimate(self, upper: FloatArray, scales: float) -> FloatArray:
        y = self._transformed(upper) - scales * self.sigma
        least = math.exp(self.sigma**2 / 2)
        return self._knee * np.maximum(np.exp(y - 1 - self.sigma**2 / 2), least)

    def _deviation(self, z: FloatArray) -> FloatArray:
        # The integral of σ max(1, e^{σz - σ²/2}), which bounds the slope of the estimate.
        sigma = self.sigma
        rise = np.maximum(z - sigma / 2, 0.0)
        return np.asarray(sigma * np.minimum(z - sigma / 2, 0.0) + np.expm1(sigma * rise))

    def _bias(self, low: FloatArray, high: FloatArray, scales: float) -> tuple[FloatArray, ...]:
        f_low, f_high = self._transformed(low), self._transformed(high)
        least, greatest = self._knee_bias
        # An upper bound of 0 stands for all below it: E(-q σ - y)⁺, falling with the count.
        d = scales + f_low / self.sigma
        density = np.exp(-(d**2) / 2) / math.sqrt(2 * math.pi)
        clipped = self.sigma * np.maximum(density - d * ndtr(-d), 0.0) + 1e-12
        return (
            self._knee * least.over(f_low, f_high),
            self._knee * (greatest.over(f_low, f_high) + clipped),
        )

    def _rounding(self, low: FloatArray, scales: float) -> tuple[float, FloatArray]:
        sigma, knee = self.sigma, self._knee
        location = np.where(low >= knee, low * math.exp(sigma * scales - sigma**2 / 2), knee)
        peak = 1 / (sigma * math.sqrt(2 * math.pi) * np.maximum(location, knee))
        return 0.5, np.minimum(peak / 4 + 1 / (24 * knee), 0.5)

    @cached_property
    def _knee_bias(self) -> tuple[_Extreme, _Extreme]:
        """E G(y) - x in knees as a function of f(x), bounded in cells."""
        sigma = self.sigma
        mean = np.linspace(1 - _FAR * sigma, 1 + _FAR * sigma, 1 << 16)
        alpha = (1 - mean) / sigma
        density = np.exp(-(alpha**2) / 2) / math.sqrt(2 * math.pi)
        growing = np.exp(mean - 1)
        value = (
            mean * ndtr(alpha)
            - sigma * density
            + (ndtr(alpha + sigma / 2) - ndtr(alpha))
            + growing * ndtr(sigma / 2 - alpha)
        )
        bias = value - np.where(mean <= 1, mean, growing)
        # Its slope is at most 2: below the knee, of E(G(y) - y), 1 + E e^{y - 1 - σ²/2}; above, of
        # E(G(y) - e^{y - 1 - σ²/2}), 1.
        between = mean[1] - mean[0]
        greatest = np.maximum(bias[:-1], bias[1:]) + between
        least = np.minimum(bias[:-1], bias[1:]) - between
        return _Extreme(mean, -least, -1.0), _Extreme(mean, greatest, 1.0)


@dataclass(frozen=True)
class _Extreme:
    """The greatest value of sign * bias over ranges of f(x), given bounds in the cells of a grid.

    Ranges below or above 1 use the extremes of all from the grid's far end on, and others that of
    the whole grid, as the bias is all but 0 far from 1.
    """

    nodes: FloatArray
    cells: FloatArray
    sign: float

    def over(self, low: FloatArray, high: FloatArray) -> FloatArray:
        bound = np.maximum(self.cells, 0.0)
        rising = np.maximum.accumulate(bound)
        falling = np.maximum.accumulate(bound[::-1])[::-1]
        last = bound.size - 1
        up_to = rising[np.clip(np.searchsorted(self.nodes, high) - 1, 0, last)]
        onward = falling[np.clip(np.searchsorted(self.nodes, low, side="right") - 1, 0, last)]
        return np.asarray(self.sign * np.minimum(up_to, onward))


class _FixedNoiseSum(SumStatistic):
    """The noisy count itself, unbiased where it is not clipped."""

    def __init__(self, mechanism: FixedGaussian | FixedLaplace) -> None:
        self._mechanism = mechanism

    def estimate(self, published: PublishedIntervals) -> FloatArray:
        """See ``SumStatistic``."""
        return published.upper - self._half_width(published)

    def _half_width(self, published: PublishedIntervals) -> float:
        far = 2**40
        return float(self._mechanism.interval([far], published.confidence)[1][0]) - far

    def evidence(
        self, published: PublishedIntervals, low: FloatArray, high: FloatArray, chances: Chances
    ) -> SumEvidence:
        """See ``SumStatistic``."""
        noise, groups = self._mechanism.noise, published.upper.shape[-1]
        half = self._half_width(published)
        log_tail = -math.log(chances.tail)
        if isinstance(self._mechanism, FixedGaussian):
            # The discrete Gaussian is subgaussian with its scale (Canonne, Kamath, Steinke 2020).
            deviation = self._mechanism.scale * math.sqrt(2 * log_tail * groups)
        else:
            # E e^{sN} = (cosh ε - 1) / (cosh ε - cosh s), Chernoff's bound over s = (1 - t) ε.
            half_epsilon = self._mechanism.epsilon / 2
            t = np.geomspace(1e-6, 1 - 1e-6, 2000)
            growth = 2 * _log_sinh(np.array(half_epsilon)) - (
                _log_sinh(half_epsilon * t) + _log_sinh(half_epsilon * (2 - t))
            )
            bounds = (groups * growth + log_tail) / (2 * half_epsilon * (1 - t))
            deviation = float(np.min(bounds))
        totals = np.full(published.upper.shape[:-1], deviation * _MARGIN)
        zero = np.zeros_like(totals)
        # An upper bound of 0 stands for all below it.
        clipped = np.sum(noise.mean_excess(half + np.floor(low)), axis=-1)
        estimate = np.sum(self.estimate(published), axis=-1)
        return SumEvidence(estimate, zero, clipped, totals, totals)


def _normal_grid(upper: float) -> tuple[FloatArray, FloatArray]:
    """Return points and weights for means over a standard normal, cut off at ``upper``."""
    z = np.linspace(-_FAR, upper, _NODES)
    weight = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    weight[[0, -1]] /= 2
    weight[-1] += ndtr(-upper)
    return z, weight / np.sum(weight)


def _log_mean_exp(arguments: FloatArray, values: FloatArray, weight: FloatArray) -> FloatArray:
    exponent = np.outer(arguments, values)
    top = np.max(exponent, axis=1, keepdims=True)
    return np.asarray(np.log(np.exp(exponent - top) @ weight) + top[:, 0])


def _log_sinh(x: FloatArray) -> FloatArray:
    return np.asarray(x + np.log(-np.expm1(-2 * x)) - math.log(2))


def _variance_proxy_below(deviation: Callable[[FloatArray], FloatArray]) -> float:
    z, weight = _normal_grid(_FAR)
    values = deviation(z)
    values = values - np.sum(weight * values)
    variance = float(np.sum(weight * values**2))
    arguments = _RATIOS / math.sqrt(variance)
    growth = _log_mean_exp(arguments, -values, weight)
    return max(variance, float(np.max(2 * growth / arguments**2))) * _MARGIN
