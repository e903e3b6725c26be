"""Bins: every row is in exactly one, at each edge of every type, as the label says."""

from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from releases import KEY

from spark_dphist.config import load_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.from_config import request_from
from spark_dphist.release import run_release
from spark_dphist.spark.bins import Bins

INF, NAN = math.inf, math.nan
NEXT_BELOW_10 = math.nextafter(10.0, 0.0)
LARGEST = struct.unpack("<d", b"\xff\xff\xff\xff\xff\xff\xef\x7f")[0]


def binned(spark: SparkSession, kind: T.DataType, bins: Bins, values: list[Any]) -> list[Any]:
    schema = T.StructType([T.StructField("x", kind), T.StructField("n", T.IntegerType())])
    records = spark.createDataFrame(list(zip(values, range(len(values)), strict=True)), schema)
    return [row.b for row in bins.add_to(records, "b").orderBy("n").select("b").collect()]


def test_every_double_is_in_the_bin_that_its_label_says(spark: SparkSession) -> None:
    inside = {
        "(-inf, 0)": [-INF, -LARGEST, -5e-324],
        "[0, 10)": [-0.0, 0.0, 5e-324, NEXT_BELOW_10],
        "[10, 20.5)": [10.0, 20.0],
        "[20.5, inf)": [20.5, LARGEST, INF],
        None: [None, NAN, -NAN],
    }
    bins = Bins("x", [0, 10, 20.5])
    assert bins.keys == list(inside)
    rows = [(value, label) for label, values in inside.items() for value in values]
    assert binned(spark, T.DoubleType(), bins, [value for value, _ in rows]) == [
        label for _, label in rows
    ]
    # What floats do not hold would be another number.
    floats = [
        (value, label)
        for value, label in rows
        if value is None or abs(value) not in (5e-324, NEXT_BELOW_10, LARGEST)
    ]
    assert binned(spark, T.FloatType(), bins, [value for value, _ in floats]) == [
        label for _, label in floats
    ]


def test_a_float_is_compared_with_the_double_of_the_edge(spark: SparkSession) -> None:
    # The float next to 0.1 is above the double next to 0.1, the one next to 0.7 below.
    assert binned(spark, T.FloatType(), Bins("x", [0.1]), [0.1]) == ["[0.1, inf)"]
    assert binned(spark, T.FloatType(), Bins("x", [0.7]), [0.7]) == ["(-inf, 0.7)"]


EXACT = [
    (T.ByteType(), [-128, 0, 127], [-128, -1, 0, 126, 127]),
    (T.LongType(), [2**53, 2**53 + 1], [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1]),
    (
        T.DecimalType(38, 20),
        [Decimal("0.1"), Decimal("0.10000000000000000001"), 1],
        [Decimal("0.09999999999999999999"), Decimal("0.1"), Decimal("0.10000000000000000001")],
    ),
    (
        T.DateType(),
        [datetime.date(2024, 1, 1), datetime.date(2024, 2, 1)],
        [datetime.date(2023, 12, 31), datetime.date(2024, 1, 31), datetime.date(2024, 2, 1)],
    ),
]


@pytest.mark.parametrize(("kind", "edges", "values"), EXACT, ids=lambda x: str(x)[:14])
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_other_types_are_compared_exactly(
    spark: SparkSession, settings: Any, kind: T.DataType, edges: Any, values: Any, ansi: str
) -> None:
    bins = Bins("x", edges)
    expected = [bins.keys[sum(edge <= value for edge in edges)] for value in values]
    with settings({"spark.sql.ansi.enabled": ansi}):
        assert binned(spark, kind, bins, [*values, None]) == [*expected, None]


def test_many_edges_are_searched_correctly(spark: SparkSession) -> None:
    bins = Bins("x", range(0, 600, 3))
    labels = binned(spark, T.IntegerType(), bins, list(range(-2, 605)))
    expected = [bins.keys[max(0, min(value // 3 + 1, 200))] for value in range(-2, 605)]
    assert labels == expected


@pytest.mark.parametrize(
    ("kind", "bins", "message"),
    [
        (T.IntegerType(), Bins("y", [1]), "'y' is not a column of the input"),
        (T.IntegerType(), Bins("x", [0.5]), r"has type int, got as an edge the float 0\.5"),
        (T.ByteType(), Bins("x", [1, 200]), "at most 8 bits"),
        (T.DecimalType(5, 1), Bins("x", [0.5]), "binary floats are not exact decimals"),
        (T.DecimalType(5, 1), Bins("x", [Decimal("0.25")]), "at most 1 digits after the point"),
        (T.DoubleType(), Bins("x", [Decimal("0.1")]), "is no double. Write it without quotes"),
        (T.DoubleType(), Bins("x", [2**53 + 1]), "is no double"),
        (T.DoubleType(), Bins("x", [datetime.date(2024, 1, 1)]), "is no number"),
        (T.DateType(), Bins("x", [1]), "expected date"),
        (T.TimestampType(), Bins("x", [1]), "cast a timestamp to a date"),
        (T.StringType(), Bins("x", [1]), "has type string, which has no bins"),
    ],
)
def test_edges_that_are_no_values_of_the_column_are_refused(
    spark: SparkSession, kind: T.DataType, bins: Bins, message: str
) -> None:
    records = spark.createDataFrame([], T.StructType([T.StructField("x", kind)]))
    with pytest.raises(ConfigurationError, match=message):
        bins.add_to(records, "b")


def test_a_name_that_the_input_has_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="has a column of that name already"):
        Bins("id", [1]).add_to(spark.range(1), "ID")


def test_bins_of_a_configuration_are_released(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(100).select(
        (F.col("id") / 4).alias("delay"), F.lit("AA").alias("carrier")
    ).write.parquet(str(tmp_path / "records"))
    file = tmp_path / "release.toml"
    file.write_text(
        f"""
[input]
path = "{tmp_path}/records"
[groups]
columns = ["carrier", "late"]
keys.product.carrier = ["AA", "BB"]
[groups.bins.late]
column = "delay"
edges = [0, 10, 20]
labels = ["on time", "late"]
[mechanism]
relative_error = 0.3
floor = 20
[output]
path = "{tmp_path}/out/counts"
[confidential_audit]
path = "{tmp_path}/vault"
"""
    )
    release = run_release(spark, request_from(spark, load_configuration(file)), key=KEY)
    assert release.audit.header.key_set_size == 10
    truth = spark.read.parquet(str(tmp_path / "vault")).collect()
    assert {(row.carrier, row.late): row.confidential_true_count for row in truth} == {
        **{("BB", late): 0 for late in ("(-inf, 0)", "on time", "late", "[20, inf)", None)},
        **{("AA", "(-inf, 0)"): 0, ("AA", None): 0},
        **{("AA", "on time"): 40, ("AA", "late"): 40, ("AA", "[20, inf)"): 20},
    }
