"""A key set that seems to come from the confidential data is noticed, a large one refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from releases import COLUMNS, KEYS, confidential_records, request_for

from spark_dphist.errors import ConfigurationError
from spark_dphist.request import check_request, declared_groups
from spark_dphist.spark.key_origin import ConfidentialKeySetWarning
from spark_dphist.spark.key_set import KeySet

DERIVATIONS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "distinct": lambda records: records.select(*COLUMNS).distinct(),
    "dropDuplicates": lambda records: records.dropDuplicates(COLUMNS).select(*COLUMNS),
    "groupBy": lambda records: records.groupBy(*COLUMNS).count().select(*COLUMNS),
}


def small(spark: SparkSession) -> DataFrame:
    return confidential_records(spark, {("AA", 1): 3, ("BB", 2): 2})


@pytest.mark.parametrize("derivation", DERIVATIONS)
def test_keys_that_are_computed_from_the_records_are_noticed(
    spark: SparkSession, tmp_path: Path, derivation: str
) -> None:
    records = small(spark)
    keys = KeySet.from_dataframe(DERIVATIONS[derivation](records))
    request = request_for(spark, tmp_path, records=records, key_set=keys)
    with pytest.warns(
        ConfidentialKeySetWarning, match="computed from the input.*gives that record"
    ):
        check_request(spark, request)


def test_keys_that_read_the_records_files_are_noticed_behind_a_view(
    spark: SparkSession, tmp_path: Path
) -> None:
    small(spark).write.parquet(str(tmp_path / "records"))
    records = spark.read.parquet(str(tmp_path / "records"))
    records.where("passenger > 1").select(*COLUMNS).distinct().createOrReplaceTempView("found")
    request = request_for(spark, tmp_path, records=records, key_set=KeySet.from_table("found"))
    with pytest.warns(ConfidentialKeySetWarning, match="both read the same files"):
        check_request(spark, request)


def test_public_keys_are_not_suspected(spark: SparkSession, tmp_path: Path) -> None:
    records = small(spark)
    public = spark.createDataFrame([("AA", 1)], "carrier string, month int")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConfidentialKeySetWarning)
        for keys in (KEYS, KeySet.from_dataframe(public)):
            check_request(spark, request_for(spark, tmp_path, records=records, key_set=keys))


def test_more_groups_than_allowed_are_refused_with_both_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    request = request_for(spark, tmp_path, records=small(spark), max_groups=11)
    fields = check_request(spark, request)
    with pytest.raises(ConfigurationError, match="12 groups, more than max_groups = 11"):
        declared_groups(spark, request, fields)
