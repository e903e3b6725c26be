"""The count stage: every declared group once, with its records, in one shuffle."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plans import explained
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.spark.counts import TRUE_COUNT, count_groups
from spark_dphist.spark.key_set import KeySet

CARRIER = T.StructField("carrier", T.StringType())
MONTH = T.StructField("month", T.IntegerType())
FIELDS = [CARRIER, MONTH]
RECORDS = [
    *[("AA", 1)] * 3,
    *[("AA", None)] * 4,
    *[(None, 1)] * 5,
    *[(None, None)] * 6,
    *[("", 1)] * 7,
    *[("not declared", 1)] * 8,
    *[("AA", 99)] * 9,
]


def records_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(RECORDS, T.StructType(FIELDS))


def counted(
    spark: SparkSession, records: DataFrame, keys: KeySet, fields: Sequence[T.StructField]
) -> dict[Any, int]:
    rows = count_groups(records, keys.to_spark(spark, fields), fields, 1).collect()
    counts = {tuple(row)[:-1]: row[TRUE_COUNT] for row in rows}
    assert len(counts) == len(rows)
    return counts


def test_declared_groups_are_counted_null_safely_and_the_rest_is_dropped(
    spark: SparkSession,
) -> None:
    keys = KeySet.product({"carrier": ["AA", "", None, "ZZ"], "month": [1, None]})
    assert counted(spark, records_of(spark), keys, FIELDS) == {
        ("AA", 1): 3,
        ("AA", None): 4,
        (None, 1): 5,
        (None, None): 6,
        ("", 1): 7,
        ("", None): 0,
        ("ZZ", 1): 0,
        ("ZZ", None): 0,
    }


def test_duplicates_in_the_key_set_change_nothing(spark: SparkSession) -> None:
    once = spark.createDataFrame([("AA", 1), (None, None)], T.StructType(FIELDS))
    keys = KeySet.from_dataframe(once.union(once).union(once))
    assert counted(spark, records_of(spark), keys, FIELDS) == {("AA", 1): 3, (None, None): 6}


def test_groups_without_any_record_are_there_with_zero(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], T.StructType(FIELDS))
    keys = KeySet.product({"carrier": ["AA", None], "month": [1]})
    assert counted(spark, empty, keys, FIELDS) == {("AA", 1): 0, (None, 1): 0}


def test_a_single_null_group_of_an_all_null_column_is_counted(spark: SparkSession) -> None:
    records = spark.createDataFrame([(None,)] * 11, T.StructType([MONTH]))
    keys = KeySet.from_tuples(["month"], [(None,)])
    assert counted(spark, records, keys, [MONTH]) == {(None,): 11}


def test_records_that_hold_columns_of_the_internal_names_are_no_trouble(
    spark: SparkSession,
) -> None:
    records = records_of(spark).withColumns(
        {name: F.lit(7) for name in ("__dphist_weight", "__dphist_declared", "noisy_count")}
    )
    keys = KeySet.from_tuples(["carrier", "month"], [("AA", 1)])
    assert counted(spark, records, keys, FIELDS) == {("AA", 1): 3}


def test_column_names_that_differ_in_case_alone_are_told_apart_where_spark_does(
    spark: SparkSession, settings: Any
) -> None:
    with settings({"spark.sql.caseSensitive": "true"}):
        fields = [T.StructField("key", T.StringType()), T.StructField("KEY", T.StringType())]
        records = spark.createDataFrame([("a", "b"), ("a", "b"), ("b", "a")], T.StructType(fields))
        keys = KeySet.from_tuples(["key", "KEY"], [("a", "b"), ("b", "a"), ("a", "a")])
        assert counted(spark, records, keys, fields) == {
            ("a", "b"): 2,
            ("b", "a"): 1,
            ("a", "a"): 0,
        }


@pytest.mark.parametrize("name", ["a.b", "a`b", "with space", "select"])
def test_columns_of_unusual_names_are_counted(spark: SparkSession, name: str) -> None:
    fields = [T.StructField(name, T.StringType())]
    records = spark.createDataFrame([("x",), ("x",)], T.StructType(fields))
    keys = KeySet.from_tuples([name], [("x",), ("y",)])
    assert counted(spark, records, keys, fields) == {("x",): 2, ("y",): 0}


@pytest.fixture
def stored_records(spark: SparkSession, tmp_path: Path) -> DataFrame:
    path = str(tmp_path / "records")
    records_of(spark).withColumn("name", F.lit("secret")).write.parquet(path)
    return spark.read.parquet(path)


def test_only_the_group_columns_are_read(spark: SparkSession, stored_records: DataFrame) -> None:
    keys = KeySet.from_tuples(["carrier"], [("AA",)]).to_spark(spark, [CARRIER])
    plan = explained(count_groups(stored_records, keys, [CARRIER], 1))
    assert re.findall(r"ReadSchema: (\S+)", plan) == ["struct<carrier:string>"]


@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_the_records_take_exactly_one_shuffle_and_the_counts_one_into_their_partitions(
    spark: SparkSession, settings: Any, stored_records: DataFrame, adaptive: str, partitions: int
) -> None:
    keys = KeySet.product({"carrier": ["AA"], "month": [1, 2]})
    shuffles = {"spark.sql.adaptive.enabled": adaptive, "spark.sql.shuffle.partitions": "4"}
    with settings(shuffles):
        counts = count_groups(stored_records, keys.to_spark(spark, FIELDS), FIELDS, partitions)
        plan = explained(counts)
    tree = plan.split("\n\n")[0]
    assert len(re.findall(r"[^a-zA-Z]Exchange", tree)) == 2
    assert plan.count("ENSURE_REQUIREMENTS") == plan.count("REPARTITION_BY_NUM") == 1
    assert "Join" not in tree.replace("BroadcastNestedLoopJoin", "")


@pytest.mark.parametrize("partitions", [1, 3, 4])
def test_the_number_of_partitions_is_the_one_asked_for_whatever_the_key_set_comes_from(
    spark: SparkSession, settings: Any, partitions: int
) -> None:
    with settings({"spark.sql.shuffle.partitions": "4"}):
        # Keys that are partitioned as the counts are, so that Spark could leave out the shuffle.
        keys = spark.range(500).select((F.col("id") % 50).alias("number")).distinct()
        records = spark.range(90).select((F.col("id") % 7).alias("number"))
        fields = [T.StructField("number", T.LongType())]
        counts = count_groups(records, keys, fields, partitions)
        placed = counts.select("number", F.spark_partition_id().alias("place")).collect()
        assert len(placed) == 50
        again = count_groups(records.limit(0), keys.repartition(9), fields, partitions)
        assert sorted(again.select("number", F.spark_partition_id().alias("place")).collect()) == (
            sorted(placed)
        )
        assert {row.place for row in placed} == set(range(partitions))
        assert explained(counts).count("REPARTITION_BY_NUM") == 1
