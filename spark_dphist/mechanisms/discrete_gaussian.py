"""An exact, vectorised sampler of the discrete Gaussian from uniform random words.

docs/sampling.md argues that the output distribution is exactly the stated one.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ConfigurationError, ReleaseError

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

# An attempt is rejected with probability below 0.65; 256 in a row have probability below 2**-150.
_MAX_ATTEMPTS = 256
# Words that settle one comparison; that more are needed has probability below 2**-1000.
_MAX_FURTHER_WORDS = 16
_FURTHER_BLOCKS = 1 << 32

# Doubles decide a comparison only outside this margin; their error is below 2**-48 (docs).
_MARGIN = 2.0**-46


class WordSource(Protocol):
    """Independent uniform random words, addressed by row and block."""

    def block(self, rows: Rows, index: int) -> Words:
        """Return the 128-bit block ``index`` of each row as an array of shape (len(rows), 2)."""
        ...


@dataclass(frozen=True)
class DiscreteGaussian:
    """The distribution on the integers with P(z) proportional to exp(-z**2 / (2 variance)).

    Parameters
    ----------
    variance
        The square of the scale, an exact rational number of squared steps.
    word_bits
        How many leading bits of a word the fast path looks at. The distribution does not depend on
        it; tests shrink it to exercise the exact path.

    Notes
    -----
    Privacy: adding this noise to an integer satisfies rho-zCDP with rho = d**2 / (2 variance) for
    neighbours whose integers differ by d (Canonne, Kamath, Steinke 2020, Theorem 14).
    """

    variance: Fraction
    word_bits: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.variance <= 2**114:
            raise ConfigurationError(
                f"the discrete Gaussian's variance must lie in (0, 2**114], got {self.variance}"
            )
        if not 1 <= self.word_bits <= 64:
            raise ConfigurationError(f"word_bits must be from 1 to 64, got {self.word_bits}")

    @classmethod
    def power_of_two(cls, scale_bits: int) -> DiscreteGaussian:
        """Return the distribution of scale ``2**scale_bits``."""
        return cls(Fraction(4) ** scale_bits)

    @cached_property
    def _block(self) -> int:
        # |z| = block * i + j with 0 <= j < block; the smallest integer not below the scale.
        numerator, denominator = self.variance.numerator, self.variance.denominator
        return math.isqrt(-(-numerator // denominator) - 1) + 1

    @cached_property
    def _ratio(self) -> Fraction:
        return self._block**2 / self.variance

    def sample(self, source: WordSource, size: int) -> npt.NDArray[np.int64]:
        """Draw one exact sample for each of the rows 0 to size - 1 of the word source.

        Returns
        -------
        ndarray of int64, shape (size,)
            In lattice steps; the draw of a row depends on that row's words alone.

        Raises
        ------
        ReleaseError
            If 256 attempts in a row are rejected (probability below 2**-150 with random words).
        """
        drawn = np.empty(size, dtype=np.int64)
        rows = np.arange(size, dtype=np.int64)
        for attempt in range(_MAX_ATTEMPTS):
            if rows.size == 0:
                return drawn
            values, accepted = self._attempt(source, rows, attempt)
            drawn[rows[accepted]] = values[accepted]
            rows = rows[~accepted]
        raise ReleaseError(
            "the word source is not random: 256 attempts to draw noise were all rejected. "
            "Nothing was published."
        )

    def _attempt(
        self, source: WordSource, rows: Rows, attempt: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        first = source.block(rows, 2 * attempt)
        second = source.block(rows, 2 * attempt + 1)
        shift = np.uint64(64 - self.word_bits)
        multiples = self._multiples(source, rows, attempt, first[:, 0] >> shift)
        offset_bits = (self._block - 1).bit_length()
        offsets = (first[:, 1] & np.uint64((1 << offset_bits) - 1)).astype(np.int64)
        negative = (first[:, 1] >> np.uint64(63)).astype(np.bool_)
        candidate = offsets < self._block
        accepted = candidate & self._accepted(
            source, rows, attempt, second[:, 0] >> shift, multiples, offsets
        )
        magnitude = multiples * self._block + offsets
        return np.where(negative, -magnitude, magnitude), accepted & ~(negative & (magnitude == 0))

    @cached_property
    def _thresholds(self) -> tuple[Words, Words]:
        """Bracket P(I <= i) * 2**word_bits by integers, for every i a word can tell apart."""
        lower, upper = [], []
        top = 2**self.word_bits - 1
        with decimal.localcontext(prec=60):
            tolerance = decimal.Decimal("1e-15")
            for cumulative in _cumulative_probabilities(self._ratio):
                scaled = cumulative * 2**self.word_bits
                floor = int((scaled - tolerance).to_integral_value(decimal.ROUND_FLOOR))
                if floor >= top:
                    # Such a word may belong to this multiple or to any above it: settled exactly.
                    break
                lower.append(floor)
                upper.append(int((scaled + tolerance).to_integral_value(decimal.ROUND_FLOOR)))
        return np.array([*lower, top], dtype=np.uint64), np.array([*upper, top], dtype=np.uint64)

    def _multiples(
        self, source: WordSource, rows: Rows, attempt: int, words: Words
    ) -> npt.NDArray[np.int64]:
        lower, upper = self._thresholds
        decided = np.searchsorted(upper, words, side="left")
        undecided = np.flatnonzero(decided != np.searchsorted(lower, words, side="right"))
        multiples = decided.astype(np.int64)
        for position in undecided:
            uniform = _Uniform(
                source, int(rows[position]), 2 * attempt, int(words[position]), self.word_bits
            )
            multiples[position] = _invert_cumulative(uniform, self._ratio)
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
        # Acceptance probability exp(-ratio (2 i u + u**2) / 2) with u = j / block: what is left of
        # exp(-ratio (i + u)**2 / 2) after i was drawn with weight exp(-ratio i**2 / 2).
        fraction = offsets / float(self._block)
        exponent = 0.5 * float(self._ratio) * fraction * (2 * multiples + fraction)
        probability = np.exp(-exponent)
        uniform = words * math.ldexp(1.0, -self.word_bits)
        accepted = uniform + (math.ldexp(1.0, -self.word_bits) + _MARGIN) <= probability
        undecided = ~accepted & (uniform < probability + _MARGIN)
        for position in np.flatnonzero(undecided & (offsets < self._block)):
            i, j = int(multiples[position]), int(offsets[position])
            exact = self._ratio * (2 * i * j * self._block + j * j) / (2 * self._block**2)
            bits = _Uniform(
                source, int(rows[position]), 2 * attempt + 1, int(words[position]), self.word_bits
            )
            accepted[position] = exact == 0 or _is_below_exponential(bits, exact)
        return np.asarray(accepted, dtype=np.bool_)


class _Uniform:
    """A uniform real in [0, 1) of which as many leading bits are known as were asked for."""

    def __init__(self, source: WordSource, row: int, use: int, prefix: int, bits: int) -> None:
        self._source = source
        self._rows = np.array([row], dtype=np.int64)
        self._first_block = _FURTHER_BLOCKS + use * _MAX_FURTHER_WORDS
        self._prefix, self._bits = prefix, bits

    def brackets(self) -> Iterator[tuple[Fraction, Fraction]]:
        """Yield ever narrower brackets [low, high) of the number."""
        yield self._bracket()
        for further in range(_MAX_FURTHER_WORDS):
            word = int(self._source.block(self._rows, self._first_block + further)[0, 0])
            self._prefix, self._bits = (self._prefix << 64) | word, self._bits + 64
            yield self._bracket()
        raise ReleaseError(
            "the word source is not random: 1024 further bits did not settle a comparison. "
            "Nothing was published."
        )

    def _bracket(self) -> tuple[Fraction, Fraction]:
        unit = Fraction(1, 1 << self._bits)
        return self._prefix * unit, (self._prefix + 1) * unit


def _digits_for(bracket: tuple[Fraction, Fraction]) -> int:
    width = bracket[1] - bracket[0]
    return int(width.denominator.bit_length() * 0.302) + 40


def _exponential(exponent: Fraction) -> decimal.Decimal:
    """Return exp(-exponent), within two units of the last digit of the current context."""
    context = decimal.getcontext()
    with decimal.localcontext(prec=context.prec + 10 + len(str(math.ceil(exponent)))):
        # The decimal module rounds exp correctly (its specification), so only the argument errs.
        value = (-decimal.Decimal(exponent.numerator) / exponent.denominator).exp()
    return +value


def _is_below_exponential(uniform: _Uniform, exponent: Fraction) -> bool:
    for low, high in uniform.brackets():
        digits = _digits_for((low, high))
        with decimal.localcontext(prec=digits):
            value = Fraction(_exponential(exponent))
        error = Fraction(1, 10 ** (digits - 5))
        if high <= value - error:
            return True
        if low >= value + error:
            return False
    raise AssertionError("unreachable: brackets() raises when it runs out")


def _weights(ratio: Fraction) -> Iterator[decimal.Decimal]:
    """Yield exp(-ratio i**2 / 2) for i = 0, 1, ... down to the context's precision."""
    smallest = decimal.Decimal(10) ** -(decimal.getcontext().prec + 5)
    i = 0
    while (weight := _exponential(ratio * i * i / 2)) > smallest:
        yield weight
        i += 1


def _cumulative_probabilities(ratio: Fraction) -> list[decimal.Decimal]:
    """Return P(I <= i) for i = 0, 1, ... at the context's precision (last few digits lost)."""
    weights = list(_weights(ratio))
    total, cumulative, running = sum(weights, decimal.Decimal(0)), [], decimal.Decimal(0)
    for weight in weights:
        running += weight
        cumulative.append(running / total)
    return cumulative


def _invert_cumulative(uniform: _Uniform, ratio: Fraction) -> int:
    for low, high in uniform.brackets():
        digits = _digits_for((low, high))
        with decimal.localcontext(prec=digits):
            cumulative = [Fraction(value) for value in _cumulative_probabilities(ratio)]
        error = Fraction(1, 10 ** (digits - 10))
        below = Fraction(0)
        for i, above in enumerate(cumulative):
            # The largest listed multiple never decides: its cumulative probability rounds to 1.
            if (low >= below + error or i == 0) and high <= above - error:
                return i
            below = above
    raise AssertionError("unreachable: brackets() raises when it runs out")
