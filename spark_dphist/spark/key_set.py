"""The public, declared set of groups that a release publishes, present in the data or not."""

from __future__ import annotations

import datetime
import decimal
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of
from spark_dphist.spark.group_key import quoted

_INTEGER_BITS: dict[type[T.DataType], int] = {
    T.ByteType: 8,
    T.ShortType: 16,
    T.IntegerType: 32,
    T.LongType: 64,
}
# A product of small lists is easily made absurd by a typing error.
MAX_PRODUCT = 100_000_000


class KeySet(ABC):
    """The groups to publish: fixed, public and chosen without looking at the confidential data.

    Groups that are not in the data are published too, rows whose group is not in the key set are
    dropped, and NULL is a key like any other. Make one with ``from_tuples``, ``product``,
    ``from_table`` or ``from_dataframe``; duplicates are harmless. Where nothing public says which
    groups there are, ``select`` learns it from the data, at a cost.
    """

    @staticmethod
    def from_tuples(columns: Sequence[str], tuples: Iterable[Sequence[Any]]) -> KeySet:
        """Declare groups one by one; None is NULL.

        Raises
        ------
        ConfigurationError
            If a tuple has another length than there are columns, or there is no tuple.
        """
        rows = [tuple(row) for row in tuples]
        for position, row in enumerate(rows):
            if len(row) != len(columns):
                raise ConfigurationError(
                    f"key set tuple number {position + 1} has {len(row)} values, expected "
                    f"{len(columns)} (columns {', '.join(map(repr, columns))})"
                )
        if not rows:
            raise ConfigurationError("the key set is empty: declare at least one group")
        return _ListedKeys(tuple(columns), tuple(rows))

    @staticmethod
    def product(values: Mapping[str, Iterable[Any]]) -> KeySet:
        """Declare every combination of the values of each column; None is NULL.

        Raises
        ------
        ConfigurationError
            If a column has no value or there are more than ``MAX_PRODUCT`` combinations.
        """
        lists = {name: tuple(items) for name, items in values.items()}
        if not lists:
            raise ConfigurationError("the key set is empty: declare at least one column")
        for name, items in lists.items():
            if not items:
                raise ConfigurationError(f"the key set is empty: column {name!r} has no values")
        combinations = math.prod(len(items) for items in lists.values())
        if combinations > MAX_PRODUCT:
            raise ConfigurationError(
                f"the key set would have {combinations:,} groups, more than {MAX_PRODUCT:,}. "
                "Declare fewer values, or the combinations that exist, as a table."
            )
        return _ProductKeys(tuple(lists), tuple(lists.values()))

    @staticmethod
    def from_table(table: str) -> KeySet:
        """Take the groups from a public reference table of the catalog.

        Its columns must be the group columns, with the same names and types.
        """
        return _TableKeys(table)

    @staticmethod
    def from_dataframe(keys: DataFrame) -> KeySet:
        """Take the groups from a DataFrame that holds public data.

        Its columns must be the group columns, with the same names and types.
        """
        return _DataFrameKeys(keys)

    @staticmethod
    def select(*, epsilon: float, delta: float, groups_per_unit: int = 1) -> LearntKeys:
        """Learn the groups from the data that is released, with (epsilon, delta)-DP.

        **The keys of the groups that are kept become public as they stand**; small groups are left
        out, and how small depends on epsilon and delta. The release charges for it, and draws it
        once, before it counts. docs/key-selection.md has the proofs.

        Parameters
        ----------
        epsilon, delta
            What learning the groups costs one privacy unit; epsilon in nats. ``delta`` is part of
            the delta at which the release's epsilon is read, and must be below it.
        groups_per_unit
            In how many groups a unit is counted at most, once in each. With 1 the optimal selection
            is used, beyond a threshold with Gaussian noise.

        Raises
        ------
        ConfigurationError
            If a parameter is out of its range.
        """
        return LearntKeys(
            KeySelection(epsilon=epsilon, delta=delta, groups_per_unit=groups_per_unit)
        )

    @abstractmethod
    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        """Return the groups as a DataFrame with exactly these fields, possibly with duplicates.

        Raises
        ------
        ConfigurationError
            If columns or types do not fit, naming the column and what was expected.
        """

    @abstractmethod
    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        """Return the number of distinct groups; may run a job on the (public) key set."""

    def rows(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        """Return the number of groups, duplicates counted where counting without is dearer."""
        return self.size(spark, fields)

    def stored(self, spark: SparkSession) -> DataFrame | None:
        """Return the table that holds the groups, or None if they are not taken from a table."""
        return None


@dataclass(frozen=True)
class _ListedKeys(KeySet):
    columns: tuple[str, ...]
    tuples: tuple[tuple[Any, ...], ...]

    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        schema = _nullable_schema(fields)
        return spark.createDataFrame(self._distinct(fields), schema)

    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return len(self._distinct(fields))

    def _distinct(self, fields: Sequence[T.StructField]) -> list[tuple[Any, ...]]:
        _check_names(self.columns, fields)
        order = [self.columns.index(field.name) for field in fields]
        converted = (
            tuple(
                key_value(field, row[position])
                for field, position in zip(fields, order, strict=True)
            )
            for row in self.tuples
        )
        return list(dict.fromkeys(converted))


@dataclass(frozen=True)
class _ProductKeys(KeySet):
    columns: tuple[str, ...]
    values: tuple[tuple[Any, ...], ...]

    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        # The longest list is spread over the executors and the others are sent to it: a product of
        # the lists' partitions would have far too many.
        lists = sorted(zip(fields, self._distinct(fields), strict=True), key=_length, reverse=True)
        first, *others = [
            spark.createDataFrame([(value,) for value in values], _nullable_schema([field]))
            for field, values in lists
        ]
        product = reduce(lambda left, right: left.crossJoin(F.broadcast(right)), others, first)
        return product.select(*[quoted(field.name) for field in fields])

    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return math.prod(len(values) for values in self._distinct(fields))

    def _distinct(self, fields: Sequence[T.StructField]) -> list[list[Any]]:
        _check_names(self.columns, fields)
        by_name = dict(zip(self.columns, self.values, strict=True))
        return [
            list(dict.fromkeys(key_value(field, value) for value in by_name[field.name]))
            for field in fields
        ]


@dataclass(frozen=True)
class _TableKeys(KeySet):
    table: str

    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        return self._keys(spark).to_spark(spark, fields)

    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return self._keys(spark).size(spark, fields)

    def rows(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return self._keys(spark).rows(spark, fields)

    def stored(self, spark: SparkSession) -> DataFrame:
        """Return the table."""
        try:
            keys = spark.table(self.table)
            _ = keys.schema
        except SPARK_ERRORS as error:
            raise ConfigurationError(
                f"the key set table {self.table!r} cannot be read ({condition_of(error)}). Check "
                "its name and your permissions."
            ) from None
        return keys

    def _keys(self, spark: SparkSession) -> KeySet:
        return KeySet.from_dataframe(self.stored(spark))


@dataclass(frozen=True)
class _DataFrameKeys(KeySet):
    keys: DataFrame

    def stored(self, spark: SparkSession) -> DataFrame:
        """Return the DataFrame."""
        return self.keys

    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        _check_names(self.keys.columns, fields)
        for field in fields:
            got = self.keys.schema[field.name].dataType
            if got != field.dataType:
                raise ConfigurationError(
                    f"key set column {field.name!r} has type {got.simpleString()}, but the table "
                    f"has {field.dataType.simpleString()}. Cast the key set's column."
                )
        return self.keys.select(*[quoted(field.name) for field in fields])

    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return self._count(self.to_spark(spark, fields).distinct())

    def rows(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        return self._count(self.to_spark(spark, fields))

    def _count(self, keys: DataFrame) -> int:
        try:
            count = keys.count()
        except SPARK_ERRORS as error:
            raise ConfigurationError(
                f"the key set cannot be evaluated ({condition_of(error)}). Store it as a table and "
                "use that."
            ) from None
        if count == 0:
            raise ConfigurationError("the key set is empty: it must hold at least one group")
        return count


@dataclass(frozen=True)
class LearntKeys(KeySet):
    """A key set that the release learns from its data; it has no groups before that.

    ``learnt`` reads what was drawn and stored.
    """

    selection: KeySelection
    learnt: DataFrame | None = None

    def to_spark(self, spark: SparkSession, fields: Sequence[T.StructField]) -> DataFrame:
        """Return the groups that were learnt: none before that."""
        if self.learnt is None:
            return spark.createDataFrame([], _nullable_schema(fields))
        return _DataFrameKeys(self.learnt).to_spark(spark, fields)

    def size(self, spark: SparkSession, fields: Sequence[T.StructField]) -> int:
        """Return the number of groups that were learnt, which may be none."""
        return 0 if self.learnt is None else self.to_spark(spark, fields).distinct().count()


def _length(listed: tuple[T.StructField, list[Any]]) -> int:
    return len(listed[1])


def _check_names(columns: Sequence[str], fields: Sequence[T.StructField]) -> None:
    expected = [field.name for field in fields]
    for name in columns:
        if name not in expected:
            raise ConfigurationError(
                f"key set column {name!r} is not a group column. {did_you_mean(name, expected)}"
            )
        if list(columns).count(name) > 1:
            raise ConfigurationError(f"key set column {name!r} is declared twice")
    for name in expected:
        if name not in columns:
            raise ConfigurationError(
                f"the key set lacks the group column {name!r}: declare its values"
            )


def _nullable_schema(fields: Sequence[T.StructField]) -> T.StructType:
    return T.StructType([T.StructField(field.name, field.dataType, True) for field in fields])


def key_value(field: T.StructField, value: Any, called: str = "key set column") -> Any:
    """Return a declared value as Python value of the column's type, without losing anything.

    Dates, timestamps, decimals and binary values may be written as text (ISO 8601, digits,
    hexadecimal), as configuration files need it.

    Raises
    ------
    ConfigurationError
        If the value is not of the column's type or out of its range.
    """
    if value is None:
        return None
    try:
        return _convert(field.dataType, value)
    except (ValueError, TypeError, decimal.DecimalException) as error:
        reason = str(error) if type(error) is ValueError else "it is not of that type"
        raise ConfigurationError(
            f"{called} {field.name!r} has type {field.dataType.simpleString()}, got the "
            f"{type(value).__name__} {value!r}: {reason}"
        ) from None


def _convert(kind: T.DataType, value: Any) -> Any:
    if type(kind) in _INTEGER_BITS:
        return _integer(value, _INTEGER_BITS[type(kind)])
    if isinstance(kind, T.BooleanType):
        return _exactly(value, bool)
    if isinstance(kind, T.DateType):
        parsed = datetime.date.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(parsed, datetime.datetime):
            raise ValueError("expected a date without a time of day")
        return _exactly(parsed, datetime.date)
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return _timestamp(value, aware=isinstance(kind, T.TimestampType))
    if isinstance(kind, T.DecimalType):
        return _decimal(value, kind)
    if isinstance(kind, T.BinaryType):
        return bytes.fromhex(value) if isinstance(value, str) else bytes(_exactly(value, bytes))
    return _text(value)


def _exactly(value: Any, kind: type) -> Any:
    # Subclasses (of numpy, pandas or an enumeration) need not mean the same to Spark.
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}")
    return value


def _text(value: Any) -> str:
    text: str = _exactly(value, str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


def _integer(value: Any, bits: int) -> int:
    _exactly(value, int)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(f"expected at most {bits} bits")
    return int(value)


def _timestamp(value: Any, aware: bool) -> datetime.datetime:
    parsed = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    _exactly(parsed, datetime.datetime)
    if (parsed.tzinfo is not None) != aware:
        raise ValueError(f"expected a timestamp {'with' if aware else 'without'} a UTC offset")
    return parsed.astimezone(datetime.UTC) if aware else parsed


def _decimal(value: Any, kind: T.DecimalType) -> decimal.Decimal:
    if isinstance(value, bool | float):
        raise ValueError("expected text or an int, as binary floats are not exact decimals")
    with decimal.localcontext(prec=60) as context:
        context.traps[decimal.Inexact] = True
        exact = decimal.Decimal(value)
        scaled = exact.scaleb(kind.scale)
        if not exact.is_finite() or scaled != scaled.to_integral_value():
            raise ValueError(f"expected at most {kind.scale} digits after the point")
        if abs(scaled) >= decimal.Decimal(10) ** kind.precision:
            raise ValueError(f"expected at most {kind.precision} digits")
        return exact.quantize(decimal.Decimal(1).scaleb(-kind.scale))
