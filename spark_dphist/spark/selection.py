"""Which records of the input are counted: a public condition on each record for itself.

Comparisons of columns with values are all there is. So a record is taken or left by its own
values alone, with the same result at each evaluation: two tables that differ in one record still
differ in at most that one afterwards (stability 1), and no budget changes.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.spark.group_key import quoted
from spark_dphist.spark.key_set import key_value

_EXACT = (
    T.IntegralType,
    T.BooleanType,
    T.DateType,
    T.StringType,
    T.DecimalType,
    T.TimestampType,
    T.TimestampNTZType,
    T.BinaryType,
)


@dataclass(frozen=True)
class ColumnCondition:
    """What one column of a counted record holds: one of ``values`` (None is NULL), or a range.

    ``first`` is in the range and ``before`` is not; None leaves that side open. NULL is in no
    range.
    """

    column: str
    values: tuple[Any, ...] | None = None
    first: Any = None
    before: Any = None


def select_records(
    records: DataFrame, conditions: Sequence[ColumnCondition], called: str
) -> DataFrame:
    """Return the records that meet all conditions; on partition columns, Spark reads only those.

    Parameters
    ----------
    records
        The confidential table.
    conditions
        Public, and chosen without looking at the records.
    called
        How to call the table in an error.

    Raises
    ------
    ConfigurationError
        If a column is unknown or of a type that does not compare exactly, or a value is not of
        its column's type.
    """
    if not conditions:
        return records
    tests = [_test(_field(records.schema, each.column, called), each) for each in conditions]
    return records.where(reduce(lambda left, right: left & right, tests))


def _field(schema: T.StructType, name: str, called: str) -> T.StructField:
    # Columns that Spark hides, such as a file's name or a row's position, are not in the schema:
    # they depend on other records.
    names = schema.names
    if names.count(name) != 1:
        reason = "two columns" if name in names else "no column"
        mend = "Rename one of them." if name in names else did_you_mean(name, names)
        raise ConfigurationError(f"input.where: {called} has {reason} named {name!r}. {mend}")
    field = schema[name]
    if not isinstance(field.dataType, _EXACT):
        raise ConfigurationError(
            f"input.where: column {name!r} has type {field.dataType.simpleString()}, expected an "
            "integer, boolean, date, string, decimal, timestamp or binary column. Select the "
            "records in a view, and release the view."
        )
    return field


def _test(field: T.StructField, condition: ColumnCondition) -> Column:
    column = quoted(field.name)
    if condition.values is not None:
        listed = [_literal(field, value) for value in condition.values if value is not None]
        is_null = column.isNull()
        if not listed:
            return is_null
        return column.isin(*listed) | is_null if None in condition.values else column.isin(*listed)
    tests = []
    if condition.first is not None:
        tests.append(column >= _literal(field, condition.first))
    if condition.before is not None:
        tests.append(column < _literal(field, condition.before))
    return reduce(lambda left, right: left & right, tests)


def _literal(field: T.StructField, value: Any) -> Column:
    exact = key_value(field, value, "input.where: column")
    if isinstance(exact, datetime.datetime):
        # As text with its offset, so that no time zone of driver or session has a say.
        exact = exact.isoformat()
    return F.lit(exact).cast(field.dataType)
