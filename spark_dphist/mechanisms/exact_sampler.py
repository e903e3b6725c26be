"""The rejection sampler that the discrete Gaussian and the discrete Laplace distribution share.

docs/sampling.md argues, line by line, that its output distribution is exactly the stated one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.mechanisms.exact_bits import (
    ExponentialWeights,
    Rows,
    Uniform,
    Words,
    WordSource,
    is_below_exponential,
)

# An attempt is rejected with probability below 0.57; 256 in a row have probability below 2**-200.
_MAX_ATTEMPTS = 256

# Doubles decide a comparison only outside this margin; their error is below 2**-48 (docs).
_MARGIN = 2.0**-46


class ExactSampler(ABC):
    """Draws integers with P(z) proportional to exp(-g(|z|)) from uniform random words.

    |z| = block * i + j: i is drawn with weight exp(-g(block * i)), j uniformly on [0, block), a
    sign uniformly, and the three are accepted with probability exp(g(block * i) - g(|z|)), unless
    they are minus zero. ``block`` is the least power of two that is not below the scale, so j is a
    string of random bits.
    """

    word_bits: int

    @property
    @abstractmethod
    def block_bits(self) -> int:
        """The binary logarithm of the block, from 0 to 57."""

    @abstractmethod
    def _exponent(self, magnitude: int) -> Fraction:
        """Return g exactly: convex, 0 at 0, and at least 1/2 at the block."""

    @abstractmethod
    def _rise(
        self, multiples: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return g(block * i + j) - g(block * i) to a relative accuracy of 2**-50."""

    def sample(self, source: WordSource, size: int) -> npt.NDArray[np.int64]:
        """Draw one exact sample for each of the rows 0 to size - 1 of the word source.

        Returns
        -------
        ndarray of int64, shape (size,)
            The draw of a row depends on that row's words alone.

        Raises
        ------
        ReleaseError
            If 256 attempts in a row are rejected (probability below 2**-200 with random words).
        """
        drawn = np.empty(size, dtype=np.int64)
        rows = np.arange(size, dtype=np.int64)
        for attempt in range(_MAX_ATTEMPTS):
            if rows.size == 0:
                return drawn
            values, accepted = self._attempt(source, rows, attempt)
            drawn[rows[accepted]] = values[accepted]
            rows = rows[~accepted]
        if rows.size == 0:
            return drawn
        raise ReleaseError(
            f"the word source is not random: {_MAX_ATTEMPTS} attempts to draw noise were all "
            "rejected. Nothing was published. Check the machine's random number generator."
        )

    def _attempt(
        self, source: WordSource, rows: Rows, attempt: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        first = source.block(rows, 2 * attempt)
        second = source.block(rows, 2 * attempt + 1)
        shift = np.uint64(64 - self.word_bits)
        multiples = self._multiples(source, rows, attempt, first[:, 0] >> shift)
        offsets = (first[:, 1] & np.uint64((1 << self.block_bits) - 1)).astype(np.int64)
        negative = (first[:, 1] >> np.uint64(63)).astype(np.bool_)
        accepted = self._accepted(source, rows, attempt, second[:, 0] >> shift, multiples, offsets)
        magnitude = (multiples << self.block_bits) + offsets
        return np.where(negative, -magnitude, magnitude), accepted & ~(negative & (magnitude == 0))

    @cached_property
    def _weights(self) -> ExponentialWeights:
        return ExponentialWeights(self._exponent_of_multiple)

    def _exponent_of_multiple(self, i: int) -> Fraction:
        return self._exponent(i << self.block_bits)

    @cached_property
    def _thresholds(self) -> tuple[Words, Words]:
        return self._weights.thresholds(self.word_bits)

    def _multiples(
        self, source: WordSource, rows: Rows, attempt: int, words: Words
    ) -> npt.NDArray[np.int64]:
        lower, upper = self._thresholds
        decided = np.searchsorted(upper, words, side="left")
        undecided = np.flatnonzero(decided != np.searchsorted(lower, words, side="right"))
        multiples = decided.astype(np.int64)
        for position in undecided:
            uniform = Uniform(
                source, int(rows[position]), 2 * attempt, int(words[position]), self.word_bits
            )
            multiples[position] = self._weights.invert(uniform)
        return multiples

    def _accepted(
        self,
        source: WordSource,
        rows: Rows,
        attempt: int,
        words: Words,
        multiples: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        probability = np.exp(-self._rise(multiples, offsets))
        unit = math.ldexp(1.0, -self.word_bits)
        uniform = words * unit
        accepted = uniform + (unit + _MARGIN) <= probability
        undecided = ~accepted & (uniform < probability + _MARGIN)
        for position in np.flatnonzero(undecided):
            start = int(multiples[position]) << self.block_bits
            rise = self._exponent(start + int(offsets[position])) - self._exponent(start)
            bits = Uniform(
                source, int(rows[position]), 2 * attempt + 1, int(words[position]), self.word_bits
            )
            accepted[position] = is_below_exponential(bits, rise)
        return np.asarray(accepted, dtype=np.bool_)


def check_word_bits(word_bits: int) -> None:
    """Refuse a number of bits that a 64-bit word does not have."""
    if not 1 <= word_bits <= 64:
        raise ConfigurationError(f"word_bits must be from 1 to 64, got {word_bits}")
