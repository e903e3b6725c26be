"""Exact comparisons of a uniform real number, known bit by bit, with exponentials.

docs/sampling.md has the argument; nothing here depends on what the noise is for.
"""

from __future__ import annotations

import bisect
import decimal
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ReleaseError

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

# Words that settle one comparison; that more are needed has probability below 2**-240.
MAX_FURTHER_WORDS = 4
# Blocks from this index on hold further words, below it the words every attempt starts with.
FURTHER_BLOCKS = 1 << 32


class WordSource(Protocol):
    """Independent uniform random words, addressed by row and block."""

    def block(self, rows: Rows, index: int) -> Words:
        """Return the 128-bit block ``index`` of each row as an array of shape (len(rows), 2)."""
        ...


class NoiseDistribution(Protocol):
    """A distribution on the integers from which noise can be drawn."""

    def sample(self, source: WordSource, size: int) -> npt.NDArray[np.int64]:
        """Draw one sample for each of the rows 0 to size - 1 of the word source."""
        ...


class Uniform:
    """A uniform real number in [0, 1) of which as many leading bits are known as were asked for.

    Parameters
    ----------
    source, row
        Where further bits come from.
    use
        Which comparison of this row it is for; each has further words of its own.
    prefix, bits
        The leading ``bits`` bits of the number, read as an integer.
    """

    def __init__(self, source: WordSource, row: int, use: int, prefix: int, bits: int) -> None:
        self._source = source
        self._rows = np.array([row], dtype=np.int64)
        self._first_block = FURTHER_BLOCKS + use * MAX_FURTHER_WORDS
        self._prefix, self._bits = prefix, bits

    def brackets(self) -> Iterator[tuple[Fraction, Fraction]]:
        """Yield ever narrower brackets [low, high) of the number.

        Raises
        ------
        ReleaseError
            After 4 further words of 64 bits.
        """
        yield self._bracket()
        for further in range(MAX_FURTHER_WORDS):
            word = int(self._source.block(self._rows, self._first_block + further)[0, 0])
            self._prefix, self._bits = (self._prefix << 64) | word, self._bits + 64
            yield self._bracket()
        raise ReleaseError(
            f"the word source is not random: {64 * MAX_FURTHER_WORDS} further bits did not settle "
            "a comparison. Nothing was published. Check the machine's random number generator."
        )

    def _bracket(self) -> tuple[Fraction, Fraction]:
        unit = Fraction(1, 1 << self._bits)
        return self._prefix * unit, (self._prefix + 1) * unit


def is_below_exponential(uniform: Uniform, exponent: Fraction) -> bool:
    """Decide exactly whether the number is below exp(-exponent), for a rational exponent >= 0."""
    if exponent == 0:
        return True
    for low, high in uniform.brackets():
        digits = _digits_for(low, high)
        with decimal.localcontext(prec=digits):
            value = Fraction(_exponential(exponent))
        error = Fraction(1, 10 ** (digits - 5))
        if high <= value - error:
            return True
        if low >= value + error:
            return False
    raise AssertionError("unreachable: brackets() raises when it runs out")


class ExponentialWeights:
    """The distribution on 0, 1, 2, ... with P(I = i) proportional to exp(-exponent_of(i)).

    Parameters
    ----------
    exponent_of
        Rational exponents: 0 at 0, and rising by at least 1/2 more with every i.
    """

    def __init__(self, exponent_of: Callable[[int], Fraction]) -> None:
        self._exponent_of = exponent_of
        self._known: dict[int, list[Fraction]] = {}

    def invert(self, uniform: Uniform) -> int:
        """Return, exactly, the least i whose P(I <= i) is above the number."""
        for low, high in uniform.brackets():
            digits = _digits_for(low, high)
            cumulative = self._cumulative(digits)
            error = Fraction(1, 10 ** (digits - 10))
            i = bisect.bisect_right(cumulative, low)
            if (i == 0 or low >= cumulative[i - 1] + error) and high <= cumulative[i] - error:
                return i
        raise AssertionError("unreachable: brackets() raises when it runs out")

    def thresholds(self, word_bits: int) -> tuple[Words, Words]:
        """Bracket P(I <= i) * 2**word_bits by integers, for every i that a word can tell apart.

        A word w stands for all numbers in [w, w + 1) / 2**word_bits. It decides I = i if exactly i
        upper thresholds are below w and exactly i lower ones are at most w; otherwise, and always
        for the largest word, ``invert`` has to.
        """
        lower, upper = [], []
        top = 2**word_bits - 1
        tolerance = Fraction(1, 10**15)
        for cumulative in self._cumulative(60):
            floor = math.floor(cumulative * 2**word_bits - tolerance)
            if floor >= top:
                break
            lower.append(floor)
            upper.append(math.floor(cumulative * 2**word_bits + tolerance))
        return np.array([*lower, top], dtype=np.uint64), np.array([*upper, top], dtype=np.uint64)

    def _cumulative(self, digits: int) -> list[Fraction]:
        """Return P(I <= i) for i = 0, 1, ... up to 1, with an error below 10**(4 - digits)."""
        if digits not in self._known:
            with decimal.localcontext(prec=digits):
                smallest = decimal.Decimal(10) ** -(digits + 5)
                weights: list[decimal.Decimal] = []
                while (weight := _exponential(self._exponent_of(len(weights)))) > smallest:
                    weights.append(weight)
                sums = list(itertools.accumulate(weights))
                self._known[digits] = [Fraction(part / sums[-1]) for part in sums]
        return self._known[digits]


def _digits_for(low: Fraction, high: Fraction) -> int:
    return int((high - low).denominator.bit_length() * 0.302) + 40


def _exponential(exponent: Fraction) -> decimal.Decimal:
    """Return exp(-exponent), within two units of the last digit of the current context."""
    context = decimal.getcontext()
    with decimal.localcontext(prec=context.prec + 10 + len(str(math.ceil(exponent)))):
        # The decimal module rounds exp correctly (its specification), so only the argument errs.
        value = (-decimal.Decimal(exponent.numerator) / exponent.denominator).exp()
    return +value
