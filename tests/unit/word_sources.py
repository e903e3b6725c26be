"""Word sources whose every bit a test knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from spark_dphist.mechanisms.exact_bits import FURTHER_BLOCKS, MAX_FURTHER_WORDS

REAL_BITS = 2048


class ConstantWords:
    """Every word is the same."""

    def __init__(self, word: int) -> None:
        self._word = np.uint64(word)

    def block(self, rows: np.ndarray, index: int) -> np.ndarray:
        return np.full((len(rows), 2), self._word, dtype=np.uint64)


class RandomWords:
    """Independent words from a seeded generator that is no part of the package."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def block(self, rows: np.ndarray, index: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=[self._seed, index]))
        table = generator.integers(0, 2**64, (int(rows.max()) + 1, 2), dtype=np.uint64)
        return table[rows]


class RealNumbers:
    """One real number of 2048 bits for each row and comparison, read in pieces.

    The sampler's two comparisons of an attempt (0: the multiple, 1: the acceptance) see the same
    real number whatever ``word_bits`` is. ``planted`` fixes some of them; ``offsets`` fixes the
    word that holds the sign and the offset.
    """

    def __init__(
        self,
        word_bits: int,
        seed: int = 0,
        planted: Mapping[tuple[int, int], int] | None = None,
        offsets: Mapping[int, int] | None = None,
    ) -> None:
        self._word_bits, self._seed = word_bits, seed
        self._planted, self._offsets = planted or {}, offsets or {}
        self.further_words = 0

    def _real(self, row: int, use: int) -> int:
        if (row, use) in self._planted:
            return self._planted[row, use]
        text = f"{self._seed} {row} {use}".encode()
        return int.from_bytes(hashlib.shake_256(text).digest(REAL_BITS // 8), "big")

    def _other(self, row: int, use: int) -> int:
        if use == 0 and row in self._offsets:
            return self._offsets[row]
        text = f"other {self._seed} {row} {use}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")

    def block(self, rows: np.ndarray, index: int) -> np.ndarray:
        if index < FURTHER_BLOCKS:
            use, start = index, 0
        else:
            self.further_words += len(rows)
            use, piece = divmod(index - FURTHER_BLOCKS, MAX_FURTHER_WORDS)
            start = self._word_bits + 64 * piece
        shift = REAL_BITS - start - 64
        return np.array(
            [
                [(self._real(row, use) >> shift) % 2**64, self._other(row, use)]
                for row in map(int, rows)
            ],
            dtype=np.uint64,
        ).reshape(-1, 2)


class EveryWord:
    """Row by row all combinations of the first attempt's leading bits, offset and sign.

    It records the rows that were rejected in the first attempt, which it then lets draw 0, and the
    rows whose leading bits did not decide a comparison.
    """

    def __init__(self, word_bits: int, block_bits: int, further: int) -> None:
        self._word_bits, self._block_bits, self._further = word_bits, block_bits, further
        self.size = 1 << (2 * word_bits + block_bits + 1)
        self.rejected = np.zeros(self.size, dtype=bool)
        self.undecided = np.zeros(self.size, dtype=bool)

    def block(self, rows: np.ndarray, index: int) -> np.ndarray:
        words = np.zeros((len(rows), 2), dtype=np.uint64)
        unsigned = rows.astype(np.uint64)
        align = np.uint64(64 - self._word_bits)
        if index == 0:
            words[:, 0] = unsigned << align
            rest = unsigned >> np.uint64(self._word_bits)
            offset = rest & np.uint64((1 << self._block_bits) - 1)
            sign = (rest >> np.uint64(self._block_bits)) & np.uint64(1)
            words[:, 1] = offset | (sign << np.uint64(63))
        elif index == 1:
            words[:, 0] = (unsigned >> np.uint64(self._word_bits + self._block_bits + 1)) << align
        elif index < FURTHER_BLOCKS:
            self.rejected[rows] = True
        else:
            self.undecided[rows] = True
            words[:, 0] = self._further
        return words
