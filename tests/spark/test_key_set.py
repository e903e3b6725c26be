"""Key sets: however they are declared, the same groups, each once, or a refusal with the mend."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.group_key import encoded_group_key
from spark_dphist.spark.key_set import KeySet, key_value

UTC = datetime.UTC
CARRIER = T.StructField("carrier", T.StringType())
MONTH = T.StructField("month", T.IntegerType())
FIELDS = [CARRIER, MONTH]


class Letter(enum.StrEnum):
    A = "A"


class Digit(enum.IntEnum):
    ONE = 1


def groups(spark: SparkSession, keys: KeySet, fields: Sequence[T.StructField]) -> list[Any]:
    return [tuple(row) for row in keys.to_spark(spark, fields).collect()]


def as_sets(
    spark: SparkSession, keys: KeySet, fields: Sequence[T.StructField]
) -> tuple[set[Any], int]:
    return set(groups(spark, keys, fields)), keys.size(spark, fields)


def declarations(spark: SparkSession) -> dict[str, KeySet]:
    pairs = [(carrier, month) for carrier in ("AA", "", None) for month in (1, 2, None)]
    frame = spark.createDataFrame([*pairs, *pairs], T.StructType(FIELDS))
    frame.createOrReplaceTempView("declared_keys")
    return {
        "tuples": KeySet.from_tuples(["carrier", "month"], [*pairs, *pairs]),
        "tuples in another order": KeySet.from_tuples(
            ["month", "carrier"], [(month, carrier) for carrier, month in reversed(pairs)]
        ),
        "product": KeySet.product({"month": [1, 2, None, 1], "carrier": ["AA", "", None, None]}),
        "table": KeySet.from_table("declared_keys"),
        "dataframe": KeySet.from_dataframe(frame.select("month", "carrier")),
    }


@pytest.mark.parametrize(
    "form", ["tuples", "tuples in another order", "product", "table", "dataframe"]
)
def test_every_form_declares_the_same_groups_with_null_as_a_key_of_its_own(
    spark: SparkSession, form: str
) -> None:
    keys = declarations(spark)[form]
    declared, size = as_sets(spark, keys, FIELDS)
    assert declared == {(carrier, month) for carrier in ("AA", "", None) for month in (1, 2, None)}
    assert size == 9
    assert keys.to_spark(spark, FIELDS).columns == ["carrier", "month"]


def test_listed_duplicates_are_removed(spark: SparkSession) -> None:
    keys = KeySet.from_tuples(["month"], [(1,), (1,), (None,), (None,)])
    assert sorted(groups(spark, keys, [MONTH]), key=str) == [(1,), (None,)]


def test_integers_may_be_given_as_a_range(spark: SparkSession) -> None:
    keys = KeySet.product({"month": range(1, 13)})
    assert groups(spark, keys, [MONTH]) == [(month,) for month in range(1, 13)]


def test_a_product_of_many_columns_stays_in_few_partitions(spark: SparkSession) -> None:
    columns = [T.StructField(f"column{number}", T.IntegerType()) for number in range(6)]
    keys = KeySet.product({field.name: range(3) for field in columns})
    frame = keys.to_spark(spark, columns)
    partitions = frame.select(F.spark_partition_id().alias("id")).distinct().count()
    assert frame.count() == keys.size(spark, columns) == 3**6
    assert partitions <= 2


SAME_VALUE = [
    pytest.param(T.DateType(), ["2013-01-31", datetime.date(2013, 1, 31)], b"d5:15736", id="date"),
    pytest.param(
        T.TimestampType(),
        [
            "2024-11-03T01:30:00-08:00",
            "2024-11-03T09:30:00Z",
            datetime.datetime(2024, 11, 3, 9, 30, tzinfo=UTC),
            datetime.datetime(
                2024, 11, 3, 15, 15, tzinfo=datetime.timezone(datetime.timedelta(hours=5.75))
            ),
        ],
        b"t16:1730626200000000",
        id="timestamp",
    ),
    pytest.param(
        T.TimestampNTZType(),
        ["2024-03-10 02:30:00", datetime.datetime(2024, 3, 10, 2, 30)],
        b"n19:2024-03-10 02:30:00",
        id="timestamp_ntz",
    ),
    pytest.param(
        T.DecimalType(10, 2),
        ["1.5", "1.50", Decimal("1.5"), Decimal("1.500")],
        b"m2;4:1.50",
        id="decimal",
    ),
    pytest.param(T.DecimalType(10, 2), [7, "7", Decimal("7.00")], b"m2;4:7.00", id="whole decimal"),
    pytest.param(T.BinaryType(), ["00ff", "00 FF", b"\x00\xff"], b"x4:00FF", id="binary"),
    pytest.param(T.BooleanType(), [True, True], b"b1:1", id="boolean"),
    pytest.param(T.ByteType(), [-128, -128], b"i4:-128", id="byte"),
]


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
@pytest.mark.parametrize(("kind", "values", "encoded"), SAME_VALUE)
def test_ways_of_writing_one_value_are_one_key(
    spark: SparkSession,
    settings: Any,
    kind: T.DataType,
    values: list[Any],
    encoded: bytes,
    zone: str,
) -> None:
    fields = [T.StructField("key", kind)]
    with settings({"spark.sql.session.timeZone": zone}):
        keys = KeySet.from_tuples(["key"], [(value,) for value in values])
        rows = keys.to_spark(spark, fields).select(encoded_group_key(fields).alias("key")).collect()
        assert [row.key.encode() for row in rows] == [b"v1;1;" + encoded]


WRONG_VALUES = [
    (T.IntegerType(), 1.0, "expected int"),
    (T.IntegerType(), True, "expected int"),
    (T.IntegerType(), "1", "expected int"),
    (T.IntegerType(), 2**31, "at most 32 bits"),
    (T.ByteType(), -129, "at most 8 bits"),
    (T.LongType(), 2**63, "at most 64 bits"),
    (T.LongType(), float("nan"), "expected int"),
    (T.LongType(), np.int64(1), "expected int"),
    (T.LongType(), Digit.ONE, "expected int"),
    (T.LongType(), pd.NA, "expected int"),
    (T.BooleanType(), 1, "expected bool"),
    (T.StringType(), 1, "expected str"),
    (T.StringType(), b"x", "expected str"),
    (T.StringType(), np.str_("x"), "expected str"),
    (T.StringType(), Letter.A, "expected str"),
    (T.StringType(), "\ud800", "surrogate"),
    (T.StringType(), float("nan"), "expected str"),
    (T.DateType(), "31.1.2013", "Invalid isoformat"),
    (T.DateType(), datetime.datetime(2013, 1, 31), "without a time of day"),
    (T.DateType(), 20130131, "expected date"),
    (T.TimestampType(), datetime.datetime(2013, 1, 31), "with a UTC offset"),
    (T.TimestampType(), "2013-01-31T00:00:00", "with a UTC offset"),
    (T.TimestampType(), pd.NaT, "expected datetime"),
    (T.TimestampType(), pd.Timestamp(1, tz="UTC"), "expected datetime"),
    (T.TimestampNTZType(), "2013-01-31T00:00:00Z", "without a UTC offset"),
    (T.DecimalType(5, 2), 1.5, "binary floats"),
    (T.DecimalType(5, 2), "1.005", "2 digits after the point"),
    (T.DecimalType(5, 2), "1000", "at most 5 digits"),
    (T.DecimalType(5, 2), "NaN", "digits after the point"),
    (T.DecimalType(5, 2), "1." + "0" * 80 + "1", "not of that type"),
    (T.DecimalType(5, 2), "many", "not of that type"),
    (T.BinaryType(), "0g", "non-hexadecimal"),
    (T.BinaryType(), bytearray(b"x"), "expected bytes"),
]


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        pytest.param(*case, id=f"{case[0].simpleString()} {type(case[1]).__name__} {number}")
        for number, case in enumerate(WRONG_VALUES)
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused_with_its_column(
    kind: T.DataType, value: Any, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match="column 'key' has type") as refused:
        key_value(T.StructField("key", kind), value)
    assert reason in str(refused.value)


def test_key_set_columns_must_be_the_group_columns(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"'carier' is not a group column.*'carrier'"):
        KeySet.from_tuples(["carier", "month"], [("AA", 1)]).to_spark(spark, FIELDS)
    with pytest.raises(ConfigurationError, match="lacks the group column 'month'"):
        KeySet.product({"carrier": ["AA"]}).size(spark, FIELDS)
    with pytest.raises(ConfigurationError, match="'carrier' is declared twice"):
        KeySet.from_tuples(["carrier", "carrier", "month"], [("A", "B", 1)]).size(spark, FIELDS)
    extra = spark.createDataFrame([("AA", 1, 2)], "carrier string, month int, year int")
    with pytest.raises(ConfigurationError, match="'year' is not a group column"):
        KeySet.from_dataframe(extra).to_spark(spark, FIELDS)


def test_a_key_set_frame_of_another_type_is_refused(spark: SparkSession) -> None:
    wide = spark.createDataFrame([("AA", 1)], "carrier string, month bigint")
    with pytest.raises(ConfigurationError, match=r"'month' has type bigint, .* has int"):
        KeySet.from_dataframe(wide).to_spark(spark, FIELDS)


def test_a_collated_key_set_column_is_refused(spark: SparkSession) -> None:
    if not hasattr(T, "VariantType"):
        pytest.skip("Spark 3.5 has no collations")
    keys = spark.range(1).select(F.expr("'x' COLLATE UTF8_LCASE").alias("carrier"))
    with pytest.raises(ConfigurationError, match="'carrier' has type string collate"):
        KeySet.from_dataframe(keys).to_spark(spark, [CARRIER])


def test_an_empty_key_set_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="key set is empty"):
        KeySet.from_tuples(["carrier"], [])
    with pytest.raises(ConfigurationError, match="key set is empty"):
        KeySet.product({})
    with pytest.raises(ConfigurationError, match="'month' has no values"):
        KeySet.product({"carrier": ["AA"], "month": []})
    nothing = spark.createDataFrame([], T.StructType(FIELDS))
    with pytest.raises(ConfigurationError, match="key set is empty"):
        KeySet.from_dataframe(nothing).size(spark, FIELDS)


def test_a_tuple_of_the_wrong_length_is_refused_with_its_number() -> None:
    with pytest.raises(ConfigurationError, match="tuple number 2 has 1 values, expected 2"):
        KeySet.from_tuples(["carrier", "month"], [("AA", 1), ("AA",)])


def test_an_absurd_product_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigurationError, match="1,000,000,000,000 groups"):
        KeySet.product({"a": range(10**6), "b": range(10**6)})


def test_a_key_set_table_that_does_not_exist_is_refused_by_name(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="'no_such_table' cannot be read"):
        KeySet.from_table("no_such_table").to_spark(spark, FIELDS)


def test_a_key_set_that_cannot_be_evaluated_is_refused(spark: SparkSession) -> None:
    keys = spark.range(9).selectExpr("if(id = 0, raise_error('broken'), 'x') AS carrier")
    with pytest.raises(ConfigurationError, match="cannot be evaluated"):
        KeySet.from_dataframe(keys).size(spark, [CARRIER])


def test_columns_with_dots_and_backticks_keep_their_names(spark: SparkSession) -> None:
    fields = [T.StructField("a.b", T.StringType()), T.StructField("c`d", T.LongType())]
    product = KeySet.product({"a.b": ["x", "y"], "c`d": [1, 2, 3]}).to_spark(spark, fields)
    assert product.columns == ["a.b", "c`d"]
    assert KeySet.from_dataframe(product).size(spark, fields) == 6
