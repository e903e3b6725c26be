"""Probabilities that are whole multiples of 2**-128, and exact draws with them.

A 128-bit block of uniform bits, read as an integer, is below P with probability exactly P / 2**128.
So a claim about such a probability is a claim about an integer, and the draw keeps it as it is:
no floating-point number has a part in either.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from spark_dphist.mechanisms.exact_bits import Words

GRID_BITS = 128
ONE = 1 << GRID_BITS

_DIGITS = 120
_WORD = (1 << 64) - 1


def exponential_lower(exponent: Fraction) -> Fraction:
    """Return a rational number at or below exp(exponent), within 2**-127 of it.

    Parameters
    ----------
    exponent
        Rational, from 0 to 64.

    Notes
    -----
    decimal rounds exp correctly (its specification) at 120 digits, and the argument, at most 64, is
    rounded to as many: a relative error below 66 units of the last digit. A thousand units are
    taken off before the result is rounded down to a multiple of 2**-128.
    """
    with decimal.localcontext(decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN)):
        argument = decimal.Decimal(exponent.numerator) / exponent.denominator
        value = Fraction(argument.exp())
    certain = value * (1 - Fraction(1000, 10 ** (_DIGITS - 1)))
    return Fraction(math.floor(certain * ONE), ONE)


class GridProbabilities:
    """A table of probabilities P_0, P_1, ... in units of 2**-128, each below 1.

    Parameters
    ----------
    numerators
        Integers from 0 to 2**128 - 1.
    """

    def __init__(self, numerators: Sequence[int]) -> None:
        if not all(0 <= each < ONE for each in numerators):
            raise ValueError("numerators must lie from 0 to 2**128 - 1")
        self._high = np.array([each >> 64 for each in numerators], dtype=np.uint64)
        self._low = np.array([each & _WORD for each in numerators], dtype=np.uint64)

    def draw(self, which: npt.NDArray[np.int64], blocks: Words) -> npt.NDArray[np.bool_]:
        """Return, for each row, whether its block is below the probability asked for.

        Parameters
        ----------
        which
            Positions in the table, shape (rows,).
        blocks
            Uniform random words, shape (rows, 2); the first one has the higher digits.
        """
        high, low = self._high[which], self._low[which]
        first, second = blocks[:, 0], blocks[:, 1]
        return np.asarray((first < high) | ((first == high) & (second < low)), dtype=np.bool_)
