"""Draws at invented counts through the code that releases real ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spark_dphist.mechanisms import Mechanism, PublishedCounts, Rounding, publish
from spark_dphist.streams import GroupStreams, ReleaseKey

IntArray = npt.NDArray[np.int64]

# A group this far apart in budget is easy to tell from its neighbour, yet not trivially so.
_DISTANT_BUDGET = 1 / 8
_MOST_DISTANT = 2**46


@dataclass(frozen=True, order=True)
class Pair:
    """Two neighbouring counts, at most ``records`` apart."""

    first: int
    second: int
    records: int

    def __str__(self) -> str:
        return f"counts {self.first:,} and {self.second:,}"

    def claimed_rho(self, mechanism: Mechanism) -> float:
        """Return the budget claimed for the pair: either count's covers the other one."""
        return float(np.min(mechanism.budget([self.first, self.second], self.records)))


@dataclass
class Sampler:
    """Takes every batch of draws from streams of its own."""

    mechanism: Mechanism
    key: ReleaseKey
    _batches: int = field(default=0, init=False)

    def lattice(self, count: int, size: int) -> IntArray:
        """Draw the noisy integers of groups that all have this count, before they are decoded."""
        steps = self.mechanism.encode(np.full(size, count))
        noise = self.mechanism.noise
        return steps if noise is None else steps + noise.sample(self._streams(size), size)

    def published(
        self, count: int, size: int, rounding: Rounding, confidence: float
    ) -> PublishedCounts:
        """Draw what is published about groups that all have this count."""
        counts = np.full(size, count)
        source = self._streams(size)
        return publish(self.mechanism, counts, source, rounding=rounding, confidence=confidence)

    def _streams(self, size: int) -> GroupStreams:
        self._batches += 1
        return GroupStreams(self.key, group_digests(self._batches, size))


def group_digests(batch: int, size: int) -> npt.NDArray[np.uint8]:
    """Return distinct stand-ins for the digests of groups; the streams take any 32 bytes."""
    digests = np.zeros((size, 4), dtype="<i8")
    digests[:, 0], digests[:, 1] = batch, np.arange(size)
    return digests.view(np.uint8)


def tested_counts(floor: float) -> list[int]:
    """Return the counts at which draws are made: the smallest, the floor, and large ones."""
    return sorted({0, 1, math.ceil(floor), 1_000, 1_000_000})


def neighbouring_pairs(counts: Sequence[int], records: int) -> list[Pair]:
    """Return each count with the counts that differ by one unit's records, both ways."""
    pairs = {Pair(n, n + records, records) for n in counts}
    pairs |= {Pair(n, max(n - records, 0), records) for n in counts if n > 0}
    return sorted(pairs)


def distant_pairs(mechanism: Mechanism, counts: Sequence[int]) -> list[Pair]:
    """Return each count with one so far away that the claimed budget is no longer tiny.

    The budget for k records is claimed for every k, and where that for one record is too small to
    be seen in any number of draws, that for many is not.
    """
    pairs = []
    for n in counts:
        distance = 1
        while distance < _MOST_DISTANT:
            pair = Pair(n, n + distance, distance)
            if pair.claimed_rho(mechanism) >= _DISTANT_BUDGET:
                pairs.append(pair)
                break
            distance *= 2
    return pairs
