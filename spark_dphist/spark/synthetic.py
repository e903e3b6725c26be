"""Synthetic records: released counts turned back into rows, without anything confidential."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.group_key import CONFIDENTIAL_COLUMNS, RESERVED_PREFIX, quoted

SYNTHETIC = {"spark_dphist.synthetic": "true"}
MAX_ROWS = 10**12

_NOISY_COUNT = "noisy_count"
# Doubles enter as whole millionths of a record, so that all sums are exact.
_UNITS_OF_A_DOUBLE = 10**6
# Decimals of Spark have 38 digits.
_LARGEST_PRODUCT = 10**37
# Rows that one task makes from one row at a time, so that a large group is spread over all tasks.
_LARGEST_CHUNK = 2**16
_CHUNKS_PER_TASK = 16

_CUMULATED = RESERVED_PREFIX + "cumulated"
_WEIGHT = RESERVED_PREFIX + "weight"
_ROWS = RESERVED_PREFIX + "rows"
_CHUNK = RESERVED_PREFIX + "chunk"
_COPY = RESERVED_PREFIX + "copy"


@dataclass(frozen=True)
class ReleasedTotal:
    """What is needed to know of all released counts together, once for a synthesis.

    ``weight`` is the sum of the released counts, negative ones taken for 0, in units of
    1 / ``units`` of a record; ``groups`` their number.
    """

    groups: int
    weight: int
    units: int

    @property
    def rows(self) -> int:
        """The total in whole records, to the nearest."""
        return (2 * self.weight + self.units) // (2 * self.units)


def released_total(counts: DataFrame) -> ReleasedTotal:
    """Add up a release's counts.

    Parameters
    ----------
    counts
        A stored, public table with the column ``noisy_count``.

    Raises
    ------
    ConfigurationError
        If the table is confidential or no release.
    """
    _check_public(counts)
    total = counts.agg(
        F.count(F.lit(1)).alias("groups"), F.coalesce(F.sum(_weight(counts)), F.lit(0)).alias("sum")
    ).collect()[0]
    return ReleasedTotal(int(total["groups"]), int(total["sum"]), _units(counts))


def synthetic_records(
    counts: DataFrame,
    columns: Sequence[str],
    total: ReleasedTotal,
    *,
    rows: int | None = None,
    seed: int = 0,
    tasks: int = 1,
) -> DataFrame:
    """Make records whose counts are the released ones, scaled to a number of rows if one is given.

    Parameters
    ----------
    counts
        A stored, public table of released counts. A lazy plan that adds noise would draw again.
    columns
        The group columns: the columns of the records.
    total
        What ``released_total`` returned for it.
    rows
        How many records; as many as were released together if left out.
    seed
        Decides how the groups' shares are rounded. It protects nothing and may be known.
    tasks
        Into how many partitions the records go.

    Returns
    -------
    DataFrame
        Exactly ``rows`` records, the same for the same seed but for their order; its columns
        carry the metadata ``SYNTHETIC``.

    Raises
    ------
    ConfigurationError
        If no such records can be made.

    Notes
    -----
    Systematic sampling (Madow 1949): with cumulated weights C_i of the groups in the order of
    their keys, W their total and t uniform on [0, W), group i gets the rows from
    floor((rows C_(i-1) + t) / W) to floor((rows C_i + t) / W). So every group, and every run of
    groups that follow each other, such as all with one value of the first column, has its share to
    within one row, and its share exactly on average over seeds. With ``rows`` left out and integer
    counts every group has exactly its count. All of it is post-processing.
    """
    _check_public(counts)
    rows = total.rows if rows is None else rows
    _check_rows(rows, total)
    digest = hashlib.sha256(f"spark_dphist synthetic records, seed {seed}".encode()).digest()
    offset = int.from_bytes(digest, "big") % max(total.weight, 1)
    names = [quoted(name) for name in columns]
    # One task sees each group once: as many rows as a release has groups, not records.
    by_key = Window.partitionBy(F.lit(0)).orderBy(*names)
    before = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    cumulated = counts.select(*names, _weight(counts).alias(_WEIGHT)).select(
        "*", F.sum(_WEIGHT).over(before).cast("decimal(38,0)").alias(_CUMULATED)
    )
    scaled, whole = Decimal(rows), Decimal(max(total.weight, 1))

    def row_at(weight: str) -> str:
        return f"(({weight}) * {scaled}BD + {offset}BD) div {whole}BD"

    shared = cumulated.select(
        *names,
        F.expr(f"{row_at(_CUMULATED)} - {row_at(f'{_CUMULATED} - {_WEIGHT}')}").alias(_ROWS),
    ).where(F.col(_ROWS) > 0)
    chunk = min(max(rows // (_CHUNKS_PER_TASK * tasks), 1), _LARGEST_CHUNK)
    pieces = shared.select(
        *names,
        _ROWS,
        F.explode(F.expr(f"sequence(0L, ({_ROWS} - 1) div {chunk})")).alias(_CHUNK),
    ).select(
        *names, F.expr(f"cast(least({chunk}, {_ROWS} - {_CHUNK} * {chunk}) AS int)").alias(_COPY)
    )
    copies = pieces.repartition(tasks).select(
        *names, F.explode(F.array_repeat(F.lit(True), F.col(_COPY))).alias(_CHUNK)
    )
    return copies.select(*[quoted(name).alias(name, metadata=SYNTHETIC) for name in columns])


def _weight(counts: DataFrame) -> Column:
    noisy = F.col(_NOISY_COUNT)
    weight = noisy.cast("decimal(32,6)") * F.lit(_units(counts))
    return F.greatest(weight.cast("decimal(38,0)"), F.lit(0).cast("decimal(38,0)"))


def _units(counts: DataFrame) -> int:
    kind = counts.schema[_NOISY_COUNT].dataType
    return _UNITS_OF_A_DOUBLE if isinstance(kind, T.DoubleType) else 1


def _check_public(counts: DataFrame) -> None:
    for name in CONFIDENTIAL_COLUMNS:
        if name in counts.columns:
            raise ConfigurationError(
                f"the table has the column {name!r}: it is a confidential audit. Synthetic records "
                "are made from what was published alone: give the release's counts or public audit."
            )
    if _NOISY_COUNT not in counts.columns:
        raise ConfigurationError(
            f"the table has no column {_NOISY_COUNT!r}, so it is no release. Its columns are: "
            f"{', '.join(map(repr, counts.columns))}."
        )


def _check_rows(rows: int, total: ReleasedTotal) -> None:
    if not 0 <= rows <= MAX_ROWS:
        raise ConfigurationError(f"rows must be from 0 to {MAX_ROWS:,}, got {rows:,}")
    if rows and not total.weight:
        raise ConfigurationError(
            f"{rows:,} records were asked for, but all released counts are 0: there is nothing to "
            "draw from."
        )
    if rows * total.weight >= _LARGEST_PRODUCT:
        raise ConfigurationError(
            f"{rows:,} records of counts that add up to {total.rows:,} are more than can be shared "
            "out exactly. Ask for fewer rows."
        )
