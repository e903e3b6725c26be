"""Exact comparisons of a uniform real number, known bit by bit, with exponentials.

docs/sampling.md has the argument; nothing here depends on what the noise is for.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Protocol

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ReleaseError

Words = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.int64]

# Words that settle one comparison; that more are needed has probability below 2**-1000.
MAX_FURTHER_WORDS = 16
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
            After 16 further words of 64 bits.
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


def invert_cumulative(uniform: Uniform, exponent_of: Callable[[int], Fraction]) -> int:
    """Return the least i with number < P(I <= i), exactly, where P(I = i) ~ exp(-exponent_of(i)).

    Parameters
    ----------
    uniform
        The number.
    exponent_of
        Rational exponents for i = 0, 1, ...: 0 at 0, rising by at least 1/2 and from then on by
        ever larger or equal amounts.
    """
    for low, high in uniform.brackets():
        digits = _digits_for(low, high)
        with decimal.localcontext(prec=digits):
            cumulative = [Fraction(value) for value in _cumulative_probabilities(exponent_of)]
        error = Fraction(1, 10 ** (digits - 10))
        below = Fraction(0)
        for i, above in enumerate(cumulative):
            if (low >= below + error or i == 0) and high <= above - error:
                return i
            below = above
    raise AssertionError("unreachable: brackets() raises when it runs out")


def cumulative_thresholds(
    exponent_of: Callable[[int], Fraction], word_bits: int
) -> tuple[Words, Words]:
    """Bracket P(I <= i) * 2**word_bits by integers, for every i that a word can tell apart.

    A word w stands for all numbers in [w, w + 1) / 2**word_bits. It decides I = i if exactly i
    upper thresholds are below w and exactly i lower ones are at most w; otherwise, and always for
    the largest word, ``invert_cumulative`` has to.
    """
    lower, upper = [], []
    top = 2**word_bits - 1
    with decimal.localcontext(prec=60):
        tolerance = decimal.Decimal("1e-15")
        for cumulative in _cumulative_probabilities(exponent_of):
            scaled = cumulative * 2**word_bits
            floor = int((scaled - tolerance).to_integral_value(decimal.ROUND_FLOOR))
            if floor >= top:
                break
            lower.append(floor)
            upper.append(int((scaled + tolerance).to_integral_value(decimal.ROUND_FLOOR)))
    return np.array([*lower, top], dtype=np.uint64), np.array([*upper, top], dtype=np.uint64)


def _digits_for(low: Fraction, high: Fraction) -> int:
    return int((high - low).denominator.bit_length() * 0.302) + 40


def _exponential(exponent: Fraction) -> decimal.Decimal:
    """Return exp(-exponent), within two units of the last digit of the current context."""
    context = decimal.getcontext()
    with decimal.localcontext(prec=context.prec + 10 + len(str(math.ceil(exponent)))):
        # The decimal module rounds exp correctly (its specification), so only the argument errs.
        value = (-decimal.Decimal(exponent.numerator) / exponent.denominator).exp()
    return +value


def _cumulative_probabilities(exponent_of: Callable[[int], Fraction]) -> list[decimal.Decimal]:
    """Return P(I <= i) for i = 0, 1, ..., with an error below 10**(4 - precision)."""
    smallest = decimal.Decimal(10) ** -(decimal.getcontext().prec + 5)
    weights: list[decimal.Decimal] = []
    while (weight := _exponential(exponent_of(len(weights)))) > smallest:
        weights.append(weight)
    total, running, cumulative = sum(weights, decimal.Decimal(0)), decimal.Decimal(0), []
    for weight in weights:
        running += weight
        cumulative.append(running / total)
    return cumulative
