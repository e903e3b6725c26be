"""The discrete Laplace (two-sided geometric) distribution: exact draws, and its tails."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.exact_sampler import ExactSampler, check_word_bits

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DiscreteLaplace(ExactSampler):
    """The distribution on the integers with P(z) proportional to exp(-epsilon |z|).

    Parameters
    ----------
    epsilon
        One over the scale, an exact rational number, from 2**-50 to 2**10.
    word_bits
        How many leading bits of a word the fast path looks at. The distribution does not depend on
        it; tests shrink it to exercise the exact path.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range.

    Notes
    -----
    Privacy: adding this noise to an integer satisfies (epsilon d)-DP for neighbours whose integers
    differ by d (Ghosh, Roughgarden, Sundararajan 2009). A draw is below 2**63 in magnitude
    whatever the words are (docs/sampling.md).
    """

    epsilon: Fraction
    word_bits: int = 64

    def __post_init__(self) -> None:
        if not Fraction(1, 2**50) <= self.epsilon <= 2**10:
            raise ConfigurationError(
                "the discrete Laplace distribution's epsilon must lie from 2**-50 to 2**10, "
                f"got {float(self.epsilon):.6g}"
            )
        check_word_bits(self.word_bits)

    @cached_property
    def block_bits(self) -> int:
        """The binary logarithm of the least power of two that is not below the scale."""
        return (math.ceil(1 / self.epsilon) - 1).bit_length()

    def _exponent(self, magnitude: int) -> Fraction:
        return magnitude * self.epsilon

    def _rise(
        self,
        multiples: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> FloatArray:
        return np.asarray(offsets * float(self.epsilon))

    # With q = exp(-epsilon): P(N = z) = (1 - q) / (1 + q) q^|z| = tanh(epsilon / 2) q^|z|, and the
    # two sums over z >= k are geometric series.

    def probability(self, value: npt.ArrayLike) -> FloatArray:
        """Return P(N = value), to a few units in the last place of the exponent."""
        return np.asarray(math.tanh(float(self.epsilon) / 2) * self._power(np.abs(value)))

    def tail(self, value: npt.ArrayLike) -> FloatArray:
        """Return P(N >= value) for integers value >= 0."""
        return np.asarray(self._power(value) / (1 + math.exp(-float(self.epsilon))))

    def mean_excess(self, value: npt.ArrayLike) -> FloatArray:
        """Return E(N - value)⁺ for integers value >= 0."""
        # q^k / (2 sinh epsilon), written so that a large epsilon does not overflow.
        epsilon = float(self.epsilon)
        return np.asarray(
            self._power(np.asarray(value, dtype=np.float64) + 1) / -math.expm1(-2 * epsilon)
        )

    def _power(self, k: npt.ArrayLike) -> FloatArray:
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(-float(self.epsilon) * np.asarray(k, dtype=np.float64)))
