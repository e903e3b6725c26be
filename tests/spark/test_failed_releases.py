"""Releases that fail: nothing is published, nothing is left over, and no record is quoted."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf
from releases import (
    FIELDS,
    KEY,
    KEY_SET_SIZE,
    confidential_records,
    entries,
    request_for,
    with_confidential_audit,
)

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.release import run_release
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget

RECORD = "passenger 4711 of AA"


def failing_cast(spark: SparkSession) -> DataFrame:
    """In ANSI mode the error quotes the value that is no number."""
    records = confidential_records(spark).limit(1000)
    quoted = F.when(F.col("passenger") > 990, F.lit(RECORD)).otherwise("1").cast("int")
    return records.withColumn("month", quoted)


def failing_python(spark: SparkSession) -> DataFrame:
    def fail(_: Any) -> Any:
        raise ValueError(RECORD)

    fail.__annotations__ = {"_": pd.Series, "return": pd.Series}
    function = pandas_udf(fail, T.IntegerType())
    return confidential_records(spark).limit(10).withColumn("month", function("month"))


def failing_expression(spark: SparkSession) -> DataFrame:
    raised = F.when(F.col("passenger") > 5, F.raise_error(F.lit(RECORD)).cast("int")).otherwise(1)
    return confidential_records(spark).limit(10).withColumn("month", raised)


@pytest.mark.parametrize("failing", [failing_cast, failing_python, failing_expression])
@pytest.mark.parametrize("confidential", [False, True], ids=["public", "confidential"])
def test_an_error_in_the_job_quotes_no_record_and_leaves_nothing(
    spark: SparkSession,
    tmp_path: Path,
    settings: Any,
    capfd: pytest.CaptureFixture[str],
    driver_log: Path,
    failing: Callable[[SparkSession], DataFrame],
    confidential: bool,
) -> None:
    with settings({"spark.sql.ansi.enabled": "true"}):
        request = request_for(spark, tmp_path / "public", records=failing(spark))
        if confidential:
            request = with_confidential_audit(request, tmp_path / "vault" / "audit")
        with pytest.raises(ReleaseError) as failed:
            run_release(spark, request, key=KEY)
    shown = "".join(traceback.format_exception(failed.value))
    assert "Nothing was published" in shown
    printed = capfd.readouterr()
    for text in (shown, printed.out, printed.err):
        assert "4711" not in text
    # It is where the message says it is, so the search above could have found it.
    assert "4711" in driver_log.read_text(errors="replace")
    assert entries(tmp_path / "public") == set()
    assert entries(tmp_path / "vault") == set()


def test_a_failed_overwrite_keeps_the_old_release(spark: SparkSession, tmp_path: Path) -> None:
    old = run_release(spark, request_for(spark, tmp_path), key=KEY).counts.collect()
    output = PathTarget(str(tmp_path / "counts"), "r2", mode="overwrite")
    request = request_for(
        spark, tmp_path, output=output, release_id="r2", records=failing_expression(spark)
    )
    with pytest.raises(ReleaseError):
        run_release(spark, request)
    assert spark.read.parquet(str(tmp_path / "counts")).collect() == old
    assert entries(tmp_path) == {"counts", "counts_audit_groups", "counts_audit_header"}


class LosesARow(PathTarget):
    def stage(self, frame: DataFrame) -> None:
        super().stage(frame.where("carrier = 'AA' OR month = 1"))


class RepeatsARow(PathTarget):
    def stage(self, frame: DataFrame) -> None:
        super().stage(frame.union(frame.limit(1)))


class ReplacesARow(PathTarget):
    def stage(self, frame: DataFrame) -> None:
        other = F.when(F.expr("carrier = 'AA' AND month = 1"), 2).otherwise(F.col("month"))
        super().stage(frame.withColumn("month", other))


@pytest.mark.parametrize(
    ("target", "rows", "groups"), [(LosesARow, 6, 6), (RepeatsARow, 13, 12), (ReplacesARow, 12, 11)]
)
def test_a_stored_release_with_other_rows_than_declared_is_refused(
    spark: SparkSession, tmp_path: Path, target: type[PathTarget], rows: int, groups: int
) -> None:
    output = target(str(tmp_path / "counts"), "r1")
    plain = PathTarget(output.path, "r1")
    request = replace(
        request_for(spark, tmp_path, output=output),
        audit_groups=plain.beside("_audit_groups"),
        audit_header=plain.beside("_audit_header"),
    )
    with pytest.raises(ReleaseError, match=f"{rows} rows for {groups} groups, but {KEY_SET_SIZE}"):
        run_release(spark, request, key=KEY)
    assert entries(tmp_path) == set()


def test_a_key_set_that_grows_between_two_looks_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    looks = tmp_path / "looks"
    looks.mkdir()
    directory = str(looks)

    def more_each_time(batches: Any) -> Any:
        import uuid
        from pathlib import Path

        for batch in batches:
            if batch.num_rows:
                (Path(directory) / uuid.uuid4().hex).touch()
                count = len(list(Path(directory).iterdir()))
                months = pa.array(range(count), pa.int32())
                yield pa.RecordBatch.from_pydict({"month": months})

    month = T.StructType([FIELDS[1]])
    growing = spark.range(1).coalesce(1).mapInArrow(more_each_time, month)
    request = request_for(
        spark, tmp_path / "out", columns=["month"], key_set=KeySet.from_dataframe(growing)
    )
    with pytest.raises(ReleaseError, match="groups were declared"):
        run_release(spark, request, key=KEY)
    assert entries(tmp_path / "out") == set()


class CannotBeRemoved(PathTarget):
    def discard(self, spark: SparkSession) -> None:
        raise OSError("the disk is gone")


def test_a_failure_of_the_cleaning_up_hides_no_record_in_its_context(
    spark: SparkSession, tmp_path: Path
) -> None:
    output = CannotBeRemoved(str(tmp_path / "counts"), "r1")
    plain = PathTarget(output.path, "r1")
    request = replace(
        request_for(spark, tmp_path, output=output, records=failing_expression(spark)),
        audit_groups=plain.beside("_audit_groups"),
        audit_header=plain.beside("_audit_header"),
    )
    with pytest.raises(ReleaseError, match="could not be removed") as failed:
        run_release(spark, request, key=KEY)
    assert "4711" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("interrupted", ["counting", "reading the stored"])
def test_an_interrupt_leaves_nothing_behind_and_stays_an_interrupt(
    spark: SparkSession, tmp_path: Path, interrupted: str
) -> None:
    def interrupt(step: str) -> None:
        if step.startswith(interrupted):
            raise KeyboardInterrupt

    request = with_confidential_audit(request_for(spark, tmp_path), tmp_path / "vault")
    with pytest.raises(KeyboardInterrupt):
        run_release(spark, request, key=KEY, on_step=interrupt)
    assert entries(tmp_path) == set()


def test_a_request_that_is_refused_starts_no_job(spark: SparkSession, tmp_path: Path) -> None:
    """The records raise an error as soon as they are read."""
    records = confidential_records(spark).select(
        F.raise_error(F.lit(RECORD)).cast("string").alias("carrier"),
        "month",
        F.lit(1.5).alias("weight"),
        F.array(F.lit(1)).alias("list"),
    )
    refused = {
        "'weight' has type": {"columns": ["weight"]},
        "'list' has type array": {"columns": ["carrier", "list"]},
        "Did you mean 'carrier'": {"columns": ["carier", "month"]},
        "lacks the group column 'month'": {"key_set": KeySet.product({"carrier": ["AA"]})},
        "expected int": {"key_set": KeySet.product({"carrier": ["AA"], "month": ["1"]})},
    }
    for message, change in refused.items():
        request = replace(request_for(spark, tmp_path, records=records), **change)
        with pytest.raises(ConfigurationError, match=message):
            run_release(spark, request, key=KEY)
    assert entries(tmp_path) == set()
