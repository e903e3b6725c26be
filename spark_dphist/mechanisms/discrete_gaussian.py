"""The discrete Gaussian distribution: exact draws, and its tails in doubles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import erfc

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.exact_sampler import ExactSampler, check_word_bits

FloatArray = npt.NDArray[np.float64]

# Below this scale tails are summed term by term; beyond, the first neglected Euler-Maclaurin term
# is below 1e-16 of the sum for all of it that matters (9 scales).
_SMOOTH_SCALE = 256.0
# Scales beyond which nothing is left that a double can hold.
_REACH = 40


@dataclass(frozen=True)
class DiscreteGaussian(ExactSampler):
    """The distribution on the integers with P(z) proportional to exp(-z**2 / (2 variance)).

    Parameters
    ----------
    variance
        The square of the scale, an exact rational number of squared steps, from 2**-16 to 2**114.
    word_bits
        How many leading bits of a word the fast path looks at. The distribution does not depend on
        it; tests shrink it to exercise the exact path.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    Privacy: adding this noise to an integer satisfies rho-zCDP with rho = d**2 / (2 variance) for
    neighbours whose integers differ by d (Canonne, Kamath, Steinke 2020, Theorem 14). A draw is
    below 2**63 in magnitude whatever the words are (docs/sampling.md).
    """

    variance: Fraction
    word_bits: int = 64

    def __post_init__(self) -> None:
        if not Fraction(1, 2**16) <= self.variance <= 2**114:
            raise ConfigurationError(
                "the discrete Gaussian's variance must lie from 2**-16 to 2**114, "
                f"got {float(self.variance):.6g}"
            )
        check_word_bits(self.word_bits)

    @classmethod
    def power_of_two(cls, scale_bits: int) -> DiscreteGaussian:
        """Return the distribution of scale ``2**scale_bits``."""
        return cls(Fraction(4) ** scale_bits)

    @cached_property
    def block_bits(self) -> int:
        """The binary logarithm of the least power of two that is not below the scale."""
        return math.isqrt(math.ceil(self.variance) - 1).bit_length()

    def _exponent(self, magnitude: int) -> Fraction:
        return magnitude**2 / (2 * self.variance)

    def _rise(self, multiples: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> FloatArray:
        # ((block i + j)**2 - (block i)**2) / (2 variance) = ratio u (2 i + u) / 2, u = j / block.
        ratio = float(4**self.block_bits / self.variance)
        fraction = np.ldexp(offsets.astype(np.float64), -self.block_bits)
        return np.asarray(0.5 * ratio * fraction * (2 * multiples + fraction))

    @cached_property
    def scale(self) -> float:
        """The square root of the variance parameter."""
        return math.sqrt(self.variance)

    @cached_property
    def _weights_from_zero(self) -> FloatArray:
        k = np.arange(math.ceil(_REACH * self.scale) + 3, dtype=np.float64)
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(-((k / self.scale) ** 2) / 2))

    @cached_property
    def _total(self) -> float:
        """The sum over all integers z of exp(-z**2 / (2 variance))."""
        if self.scale < _SMOOTH_SCALE:
            return float(2 * np.sum(self._weights_from_zero[:0:-1]) + 1)
        # scale sqrt(2 pi) (1 + 2 exp(-2 pi**2 variance) + ...) by Poisson summation.
        return self.scale * math.sqrt(2 * math.pi)

    @cached_property
    def _tails(self) -> tuple[FloatArray, FloatArray]:
        """P(N >= k) and E(N - k)⁺ for k = 0, 1, ..., summed from the far end."""
        at_least = np.cumsum(self._weights_from_zero[::-1])[::-1] / self._total
        return at_least, np.append(np.cumsum(at_least[:0:-1])[::-1], 0.0)

    def probability(self, value: npt.ArrayLike) -> FloatArray:
        """Return P(N = value), to about 1e-15 (1 + value**2 / variance) relative."""
        t = np.asarray(value, dtype=np.float64) / self.scale
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(-(t**2) / 2) / self._total)

    def tail(self, value: npt.ArrayLike) -> FloatArray:
        """Return P(N >= value) for integers value >= 0, as accurately as ``probability``."""
        k = np.asarray(value, dtype=np.float64)
        if self.scale < _SMOOTH_SCALE:
            return self._look_up(0, k)
        t, s = k / self.scale, self.scale
        integral = erfc(t / math.sqrt(2)) / 2
        # Euler-Maclaurin: sum from k on = integral + w/2 - w'/12 + w'''/720 - w^(5)/30240 + ...,
        # with the n-th derivative (-1)^n He_n(t) w / s^n.
        first, third = t, t**3 - 3 * t
        fifth = t**5 - 10 * t**3 + 15 * t
        end = 0.5 + first / (12 * s) - third / (720 * s**3) + fifth / (30240 * s**5)
        with np.errstate(under="ignore"):
            return np.asarray(integral + self.probability(k) * end)

    def mean_excess(self, value: npt.ArrayLike) -> FloatArray:
        """Return E(N - value)⁺ for integers value >= 0, to about 1e-14 of E|N|."""
        k = np.asarray(value, dtype=np.float64)
        if self.scale < _SMOOTH_SCALE:
            return self._look_up(1, k)
        t, s = k / self.scale, self.scale
        # As in ``tail``, for (z - k) w(z): its odd derivatives at k are w, 3 w'' and 5 w''''.
        second, fourth = t**2 - 1, t**4 - 6 * t**2 + 3
        end = s**2 - 1 / 12 + second / (240 * s**2) - fourth / (6048 * s**4)
        with np.errstate(under="ignore"):
            integral = k * erfc(t / math.sqrt(2)) / 2
            return np.asarray(np.maximum(self.probability(k) * end - integral, 0.0))

    def _look_up(self, which: int, k: FloatArray) -> FloatArray:
        table = self._tails[which]
        return np.asarray(table[np.minimum(k, table.size - 1).astype(np.int64)])
