"""The noise stage: noise depends on the release key and the group's key, on nothing else."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np
import pytest
from key_encoding import encode
from plans import explained
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.mechanisms import MAX_COUNT, Constant, ShiftedLog, publish
from spark_dphist.spark.counts import TRUE_COUNT, count_groups
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.noise import add_noise
from spark_dphist.streams import GroupStreams, ReleaseKey

KEY = ReleaseKey.fixed_for_tests(hashlib.sha256(b"noise stage").digest())
MECHANISM = ShiftedLog.calibrate(relative_error=0.3, floor=20)
GROUP = T.StructField("group", T.LongType())
FIELDS = [GROUP]
GROUPS = 500


def counts_of(spark: SparkSession) -> DataFrame:
    return spark.range(GROUPS).select(
        F.col("id").alias("group"), (F.col("id") * F.col("id") % 977).alias(TRUE_COUNT)
    )


def noisy_rows(counts: DataFrame, key: ReleaseKey = KEY, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, add_noise(counts, FIELDS, MECHANISM, key, **options).collect()))


@pytest.fixture(scope="module")
def reference() -> list[tuple[int, ...]]:
    """The same release without Spark."""
    groups = np.arange(GROUPS)
    digests = [hashlib.sha256(encode(FIELDS, (int(group),))).digest() for group in groups]
    streams = GroupStreams(KEY, np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32))
    published = publish(MECHANISM, groups * groups % 977, streams)
    columns = (groups, published.noisy_count, published.lower, published.upper)
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("partitions", [1, 4, 9])
def test_any_number_of_partitions_gives_the_noise_that_numpy_alone_gives(
    spark: SparkSession, reference: list[tuple[int, ...]], partitions: int
) -> None:
    counts = counts_of(spark)
    assert noisy_rows(counts.repartition(partitions)) == reference
    assert noisy_rows(counts.coalesce(1).repartition(partitions, "group")) == reference


def test_shuffled_rows_keep_their_noise(
    spark: SparkSession, reference: list[tuple[int, ...]]
) -> None:
    assert noisy_rows(counts_of(spark).orderBy(F.rand(1))) == reference
    assert noisy_rows(counts_of(spark).orderBy(F.desc("group"))) == reference


@pytest.mark.parametrize(
    "values",
    [
        {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "4"},
        {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"},
        {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "7"},
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"},
        {"spark.sql.execution.arrow.maxRecordsPerBatch": "-1"},
        {"spark.sql.codegen.wholeStage": "false"},
        {"spark.sql.session.timeZone": "Asia/Kathmandu"},
        {"spark.sql.ansi.enabled": "false"},
    ],
    ids=lambda values: " ".join(f"{name.split('.')[-2]}={value}" for name, value in values.items()),
)
def test_settings_of_the_session_do_not_change_the_noise(
    spark: SparkSession, settings: Any, reference: list[tuple[int, ...]], values: dict[str, str]
) -> None:
    records = spark.range(GROUPS).selectExpr(
        "id AS group", "explode(sequence(0L, id * id % 977)) AS n"
    )
    records = records.where("n > 0").drop("n")
    keys = KeySet.product({"group": range(GROUPS)})
    with settings(values):
        counts = count_groups(records, keys.to_spark(spark, FIELDS), FIELDS, 1)
        assert noisy_rows(counts) == reference


def test_evaluating_the_plan_again_draws_the_same_noise(spark: SparkSession) -> None:
    frame = add_noise(counts_of(spark), FIELDS, MECHANISM, KEY)
    assert sorted(frame.collect()) == sorted(frame.collect())


def test_two_keys_give_noise_that_has_nothing_in_common(spark: SparkSession) -> None:
    counts = counts_of(spark)
    first, second = (noisy_rows(counts, ReleaseKey.generate()) for _ in range(2))
    noise = np.array([[row[1] for row in rows] for rows in (first, second)], dtype=float)
    large = np.array([row[0] * row[0] % 977 for row in first]) > 200
    residuals = np.log(noise[:, large] + MECHANISM.shift)
    residuals -= np.log(np.array([r[0] * r[0] % 977 for r in first])[large] + MECHANISM.shift)
    # 395 groups: 5.5 standard deviations of a correlation; false alarm below 1e-7.
    assert abs(np.corrcoef(residuals)[0, 1]) < 5.5 / np.sqrt(large.sum())


def test_groups_of_one_count_have_different_noise(spark: SparkSession) -> None:
    counts = spark.range(200).selectExpr("id AS group", f"1000000L AS {TRUE_COUNT}")
    assert len({row[1] for row in noisy_rows(counts)}) == 200


def test_the_udf_runs_once_for_each_row(spark: SparkSession) -> None:
    for keep in (False, True):
        noisy = add_noise(counts_of(spark), FIELDS, MECHANISM, KEY, keep_true_count=keep)
        tree = explained(noisy, "simple")
        assert len(re.findall(r"ArrowEvalPython", tree)) == 1
        assert len(re.findall(r"publish_batch\(", tree)) <= 2  # The node and its output.


def test_the_types_are_bigint_when_rounded_and_double_otherwise(spark: SparkSession) -> None:
    counts = counts_of(spark)
    rounded = add_noise(counts, FIELDS, MECHANISM, KEY)
    assert rounded.dtypes == [
        ("group", "bigint"),
        ("noisy_count", "bigint"),
        ("lower", "bigint"),
        ("upper", "bigint"),
    ]
    exact = add_noise(counts, FIELDS, MECHANISM, KEY, rounding="none")
    assert [kind for _, kind in exact.dtypes] == ["bigint", "double", "double", "double"]
    pairs = zip(sorted(rounded.collect()), sorted(exact.collect()), strict=True)
    for whole, real in pairs:
        assert abs(whole.noisy_count - real.noisy_count) <= 0.5
        assert whole.lower <= real.lower
        assert whole.upper >= real.upper
    assert any(row.noisy_count % 1 for row in exact.collect())


def test_absurd_counts_saturate_at_the_public_bounds(spark: SparkSession) -> None:
    absurd = [-(2**63), -5, 0, MAX_COUNT, 2**62, 2**63 - 1]
    schema = T.StructType([GROUP, T.StructField(TRUE_COUNT, T.LongType())])
    by_count = {}
    for count in absurd:
        counts = spark.createDataFrame([(1, count)], schema)
        by_count[count] = noisy_rows(counts)[0]
    assert by_count[-(2**63)] == by_count[-5] == by_count[0]
    assert by_count[MAX_COUNT] == by_count[2**62] == by_count[2**63 - 1]
    assert by_count[0][1] < 1000
    assert by_count[MAX_COUNT][1] > 2**46


def test_the_constant_mechanism_publishes_half_the_floor(spark: SparkSession) -> None:
    rows = add_noise(counts_of(spark), FIELDS, Constant(floor=30), KEY).collect()
    assert {(row.noisy_count, row.lower, row.upper) for row in rows} == {(15, 0, MAX_COUNT)}
