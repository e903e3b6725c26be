"""The error that is published is the error that is promised, measured through Spark."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from scipy.stats import norm

from spark_dphist.mechanisms import Mechanism, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.spark.counts import TRUE_COUNT
from spark_dphist.spark.noise import add_noise
from spark_dphist.streams import ReleaseKey

pytestmark = pytest.mark.statistical

DRAWS = 200_000
FLOOR = 20
COUNTS = (0, 1, FLOOR, 10 * FLOOR, 1_000_000)
MECHANISMS = ("shifted_log", "linear_log")
# Over all comparisons of this file.
FALSE_ALARM_RATE = 1e-6
COMPARISONS = 2 * len(COUNTS) * len(MECHANISMS)
QUANTILE = -float(norm.ppf(FALSE_ALARM_RATE / (2 * COMPARISONS)))
KEY = ReleaseKey.fixed_for_tests(hashlib.sha256(b"statistical test of the noise").digest())


def mean_errors(
    spark: SparkSession, mechanism: Mechanism, key: ReleaseKey
) -> dict[int, tuple[float, float, float, float]]:
    """Return for each count the mean absolute error, its standard error, and of the coverage."""
    group = T.StructField("group", T.LongType())
    array = F.array(*[F.lit(count).cast("bigint") for count in COUNTS])
    counts = spark.range(DRAWS * len(COUNTS), numPartitions=2).select(
        F.col("id").alias("group"),
        F.element_at(array, (F.col("id") % len(COUNTS) + 1).cast("int")).alias(TRUE_COUNT),
    )
    noisy = add_noise(counts, [group], mechanism, key, keep_true_count=True)
    error = F.abs(F.col("noisy_count") - F.col(TRUE_COUNT)).cast("double")
    covered = F.col(TRUE_COUNT).between(F.col("lower"), F.col("upper")).cast("double")
    rows = (
        noisy.groupBy(TRUE_COUNT)
        .agg(F.avg(error), F.stddev_samp(error), F.avg(covered), F.count("*"))
        .collect()
    )
    assert {row[0] for row in rows} == set(COUNTS)
    assert {row[4] for row in rows} == {DRAWS}
    return {row[0]: (row[1], row[2] / math.sqrt(DRAWS), row[3], DRAWS) for row in rows}


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_mean_error_is_the_closed_form_and_below_the_promise(
    spark: SparkSession, name: str
) -> None:
    """False-alarm rate 1e-6 over the whole file, by the normal limit of 200,000 draws each."""
    mechanism = calibrate(name, relative_error=0.2, floor=FLOOR)
    for count, (mean, standard_error, coverage, _) in mean_errors(spark, mechanism, KEY).items():
        expected = float(mechanism.expected_absolute_error(count, rounded=True))
        assert abs(mean - expected) < QUANTILE * standard_error
        assert mean - QUANTILE * standard_error < 0.2 * max(count, FLOOR)
        # Bounds are rounded outwards, so the coverage is at least the nominal one.
        assert coverage > 0.95 - QUANTILE * math.sqrt(0.95 * 0.05 / DRAWS)


def test_the_measurement_notices_a_scale_that_is_one_percent_off(spark: SparkSession) -> None:
    right = ShiftedLog.calibrate(relative_error=0.2, floor=FLOOR)
    wrong = ShiftedLog(sigma=right.sigma * 1.01, shift=right.shift, floor=right.floor)
    mean, standard_error, _, _ = mean_errors(spark, wrong, KEY)[1_000_000]
    expected = float(right.expected_absolute_error(1_000_000, rounded=True))
    assert mean - expected > 4 * standard_error
    assert np.isfinite(standard_error)
