"""Which released groups are shown where there are many, and what is said of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.shown import SEPARATOR, fitted, key_text

# Of more groups than this, so many of the largest and the smallest are shown, half of each.
MOST_SHOWN = 40
MOST_IN_NOTEBOOK = 10
_MOST_LETTERS = 36
# A heat map of more rows or columns cannot be read.
_MOST_ROWS, _MOST_COLUMNS = 60, 40


@dataclass(frozen=True)
class ShownGroup:
    """One released group; numbers as released, budget in rho."""

    keys: tuple[str, ...]
    noisy_count: float
    lower: float
    upper: float
    rho: float
    rho_upper: float

    @property
    def label(self) -> str:
        """The whole key as text."""
        return SEPARATOR.join(self.keys)

    @property
    def short_label(self) -> str:
        """The key as text that fits beside a bar."""
        return fitted(self.keys, _MOST_LETTERS)


@dataclass(frozen=True)
class ShownGroups:
    """Groups from the largest to the smallest released count.

    ``gap`` is the position before which groups are left out, None if all are there.
    """

    rows: tuple[ShownGroup, ...]
    gap: int | None
    left_out: int

    @property
    def described(self) -> str:
        """What of all groups is shown, to be added to a caption; empty if all are."""
        if self.gap is None:
            return ""
        return f" ({self.gap} largest and {len(self.rows) - self.gap} smallest groups)"


@dataclass(frozen=True)
class Summary:
    """Released counts of all groups together."""

    groups: int
    total: float
    smallest: float
    quartiles: tuple[float, float, float]
    largest: float
    below_floor: int
    zeros: int


@dataclass(frozen=True)
class HeatMap:
    """Released counts by two keys, shape (rows, columns); NaN where there is no such group."""

    values: FloatArray
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def shown_groups(groups: pa.Table, keys: list[str], most: int = MOST_SHOWN) -> ShownGroups:
    """Return all groups of a public audit, or the largest and the smallest of many."""
    order = np.argsort(-_released(groups), kind="stable")
    gap, left_out = None, 0
    if order.size > most:
        gap, left_out = most // 2, order.size - most
        order = np.concatenate([order[:gap], order[gap - most :]])
    rows = groups.take(pa.array(order)).to_pylist()
    return ShownGroups(tuple(_shown(row, keys) for row in rows), gap, left_out)


def summary(groups: pa.Table, floor: float) -> Summary:
    """Summarise the released counts of all groups; of none, there is no smallest and so on: NaN."""
    noisy = _released(groups)
    if not noisy.size:
        return Summary(0, 0.0, np.nan, (np.nan, np.nan, np.nan), np.nan, 0, 0)
    low, middle, high = np.quantile(noisy, [0.25, 0.5, 0.75])
    return Summary(
        groups=noisy.size,
        total=float(np.sum(noisy)),
        smallest=float(np.min(noisy)),
        quartiles=(float(low), float(middle), float(high)),
        largest=float(np.max(noisy)),
        below_floor=int(np.sum(noisy < floor)),
        zeros=int(np.sum(noisy == 0)),
    )


def heat_map(groups: pa.Table, keys: list[str]) -> HeatMap | None:
    """Return released counts by two keys; None if there are not two, no groups, or too many."""
    if len(keys) != 2 or not groups.num_rows:
        return None
    rows, row_labels = _positions(groups[keys[0]])
    columns, column_labels = _positions(groups[keys[1]])
    noisy = _released(groups)
    if len(row_labels) > _MOST_ROWS or len(column_labels) > _MOST_COLUMNS:
        return None
    values = np.full((len(row_labels), len(column_labels)), np.nan)
    values[rows, columns] = noisy
    return HeatMap(values, row_labels, column_labels)


def _released(groups: pa.Table) -> FloatArray:
    return np.asarray(groups["noisy_count"].to_numpy(), dtype=np.float64)


def _positions(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Return each row's position among the column's distinct values, and their texts in order."""
    distinct = column.unique()
    order = pa.compute.sort_indices(distinct)
    ordered = distinct.take(order)
    positions = pa.compute.index_in(column, value_set=ordered).to_numpy()
    return positions.astype(np.int64), tuple(key_text(value) for value in ordered.to_pylist())


def _shown(row: dict[str, Any], keys: list[str]) -> ShownGroup:
    return ShownGroup(
        keys=tuple(key_text(row[key]) for key in keys),
        noisy_count=row["noisy_count"],
        lower=row["lower"],
        upper=row["upper"],
        rho=row["rho_at_noisy_count"],
        rho_upper=row["rho_upper"],
    )
