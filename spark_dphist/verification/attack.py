"""An attacker who learns from one half of the draws and is scored on the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Outputs = npt.NDArray[Any]
Histogram = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_CELLS = 256
_RESIDUES = 64
# Which bits of an integer output an attacker looks at, besides its size: noise that is coarser
# than the integers would leave them as the count made them.
_LOW_BITS = (0, 8, 16, 24)


@dataclass(frozen=True)
class Event:
    """A set of outputs chosen on the training half, and how often it occurs in the other half."""

    name: str
    hits_first: int
    hits_second: int


@dataclass(frozen=True)
class View:
    """Outputs sorted into cells: histograms of both counts' training and scoring halves."""

    name: str
    is_ordered: bool
    train_first: Histogram
    train_second: Histogram
    score_first: Histogram
    score_second: Histogram

    def swapped(self) -> View:
        """Return the view with the counts exchanged."""
        return View(
            self.name,
            self.is_ordered,
            self.train_second,
            self.train_first,
            self.score_second,
            self.score_first,
        )

    def best_events(self, factor: float) -> Iterator[Event]:
        """Yield sets that make P(first) - factor P(second) large, as far as training tells.

        With the cells' likelihood ratios known exactly the set of all cells above ``factor`` would
        be the best (Neyman and Pearson); thresholds have less to learn.
        """
        gain = self.train_first - factor * self.train_second
        yield self._event(f"{self.name} cells", gain > 0)
        if self.is_ordered:
            below = np.cumsum(gain)[:-1]
            cell = np.arange(gain.size)
            low, high = int(np.argmax(below)), int(np.argmin(below))
            # What is gained above a threshold is the total less what is gained below it.
            above = cell > high
            best = cell <= low if below[low] >= gain.sum() - below[high] else above
            yield self._event(f"{self.name} threshold", best)

    def _event(self, name: str, chosen: Mask) -> Event:
        return Event(
            name, int(self.score_first[chosen].sum()), int(self.score_second[chosen].sum())
        )


def views(first: Outputs, second: Outputs) -> Iterator[View]:
    """Sort the outputs of two counts into cells, by size and, for integers, by their low bits.

    Parameters
    ----------
    first, second
        Independent outputs, of one type and shape (draws,).
    """
    half = first.size // 2
    few = max(half // 8192, 1)
    learned = np.concatenate([first[:half:few], second[:half:few]])
    edges = np.unique(
        np.quantile(learned, np.linspace(0, 1, _CELLS + 1)[1:-1], method="inverted_cdf")
    )

    def by_size(values: Outputs) -> npt.NDArray[np.intp]:
        return np.searchsorted(edges, values, side="right")

    yield _view("size", True, by_size(first), by_size(second), half, edges.size + 1)
    if np.issubdtype(first.dtype, np.integer):
        for shift in _LOW_BITS:
            low, other = ((values >> shift) & (_RESIDUES - 1) for values in (first, second))
            yield _view(f"bits from {shift}", False, low, other, half, _RESIDUES)


def _view(
    name: str, is_ordered: bool, first: Outputs, second: Outputs, half: int, cells: int
) -> View:
    def histogram(part: Outputs) -> Histogram:
        return np.bincount(part, minlength=cells).astype(np.int64)

    return View(
        name,
        is_ordered,
        histogram(first[:half]),
        histogram(second[:half]),
        histogram(first[half:]),
        histogram(second[half:]),
    )
