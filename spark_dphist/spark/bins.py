"""A column of bins, computed row by row: numbers or dates become the label of the bin they are in.

What is computed of a record depends on that record alone, so a release of binned records protects
whom a release of the records would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.key_ranges import Edge, bin_labels
from spark_dphist.spark.group_key import quoted
from spark_dphist.spark.key_set import key_value

_EXACT = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.DecimalType, T.DateType)


@dataclass(frozen=True)
class Bins:
    """Half-open bins [a, b) of one column of the input, with what is outside in bins of its own.

    Every row is in exactly one bin: NULL and NaN in NULL, minus infinity and all else below the
    first edge in ``(-inf, a)``, the last edge and all above it, infinity too, in ``[b, inf)``; and
    -0.0 is 0.

    Parameters
    ----------
    column
        Of integers, decimals, dates, floats or doubles.
    edges
        Rising; of the column's type, or what is exactly equal to a value of it.
    labels
        For the bins between the edges; ``[a, b)`` otherwise.

    Raises
    ------
    ConfigurationError
        If edges or labels make no sense.
    """

    column: str
    edges: Sequence[Edge]
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        bin_labels(self.edges, self.labels)

    @property
    def keys(self) -> list[str | None]:
        """The groups of the binned column: every label, and None for NULL."""
        return [*bin_labels(self.edges, self.labels), None]

    def add_to(self, records: DataFrame, name: str) -> DataFrame:
        """Return the records with a further column of labels, a string.

        Raises
        ------
        ConfigurationError
            If there is no such column to bin, it has another type, an edge is no value of its type,
            or there is a column of the new name already.
        """
        names = records.columns
        if names.count(self.column) != 1:
            raise ConfigurationError(
                f"bins {name!r}: {self.column!r} is not a column of the input. "
                f"{did_you_mean(self.column, names)}"
            )
        if name.lower() in (each.lower() for each in names):
            raise ConfigurationError(
                f"bins {name!r}: the input has a column of that name already. Choose another name"
            )
        field = records.schema[self.column]
        edges = [F.lit(value).cast(field.dataType) for value in self._edge_values(name, field)]
        column = quoted(self.column)
        known = column.isNotNull()
        if isinstance(field.dataType, T.FloatType | T.DoubleType):
            known = known & ~F.isnan(column)
            # A float equals the double that it is exactly.
            column = column.cast("double")
            edges = [F.lit(float(edge)) for edge in self._edge_values(name, field)]
        labels = bin_labels(self.edges, self.labels)
        binned = F.when(known, _search(column, edges, labels)).otherwise(F.lit(None).cast("string"))
        return records.select("*", binned.alias(name))

    def _edge_values(self, name: str, field: T.StructField) -> list[Any]:
        kind = field.dataType
        if isinstance(kind, T.FloatType | T.DoubleType):
            return [_double(name, edge) for edge in self.edges]
        if not isinstance(kind, _EXACT):
            raise ConfigurationError(
                f"bins {name!r}: column {self.column!r} has type {kind.simpleString()}, which has "
                "no bins. Bin integers, decimals, dates, floats or doubles; cast a timestamp to a "
                "date in the time zone that is meant"
            )
        try:
            return [key_value(field, edge) for edge in self.edges]
        except ConfigurationError as error:
            reason = str(error).split("got ", 1)[-1]
            raise ConfigurationError(
                f"bins {name!r}: column {self.column!r} has type {kind.simpleString()}, got as an "
                f"edge {reason}"
            ) from None


def _double(name: str, edge: Edge) -> float:
    if isinstance(edge, bool) or not isinstance(edge, int | float | Decimal):
        raise ConfigurationError(
            f"bins {name!r}: the edge {edge!r} is no number. Write it without quotes"
        )
    if not math.isfinite(edge) or Decimal(edge) != Decimal(float(edge)):
        raise ConfigurationError(
            f"bins {name!r}: the edge {edge} is no double. Write it without quotes, which means "
            "the double that is nearest"
        )
    return float(edge)


def _search(column: Column, edges: Sequence[Column], labels: Sequence[str]) -> Column:
    """Return the label of the bin by binary search, so that rows meet few comparisons."""
    if not edges:
        return F.lit(labels[0])
    middle = len(edges) // 2
    return F.when(
        column < edges[middle], _search(column, edges[:middle], labels[: middle + 1])
    ).otherwise(_search(column, edges[middle + 1 :], labels[middle + 1 :]))
