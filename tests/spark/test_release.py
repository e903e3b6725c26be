"""A release from start to end: what is stored, what is audited, and what is nowhere to be found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from releases import (
    COLUMNS,
    FIELDS,
    KEY,
    KEY_SET_SIZE,
    KEYS,
    MECHANISM,
    TRUE_COUNTS,
    confidential_records,
    data_files,
    entries,
    request_for,
    with_confidential_audit,
)
from scipy.stats import norm

from spark_dphist.audit import AUDIT_COLUMNS
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant
from spark_dphist.release import Release, run_release
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS
from spark_dphist.spark.key_set import KeySet


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Path]:
    directory = tmp_path_factory.mktemp("release")
    return run_release(spark, request_for(spark, directory), key=KEY), directory


@pytest.fixture(scope="module")
def release(made: tuple[Release, Path]) -> Release:
    return made[0]


@pytest.fixture(scope="module")
def directory(made: tuple[Release, Path]) -> Path:
    return made[1]


def stored(directory: Path, name: str = "counts") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in data_files(directory / name):
        rows += pq.read_table(path).to_pylist()
    return rows


def key_of(row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMNS)


def test_every_group_of_the_key_set_is_there_once(directory: Path) -> None:
    keys = [key_of(row) for row in stored(directory)]
    assert len(keys) == KEY_SET_SIZE
    assert set(keys) == {(c, m) for c in ("AA", "BB", "", None) for m in (1, 2, None)}


def test_what_is_handed_out_is_what_is_stored(release: Release, directory: Path) -> None:
    handed_out = [row.asDict() for row in release.counts.collect()]
    assert handed_out == stored(directory)
    assert release.counts.columns == [*COLUMNS, *PUBLISHED_COLUMNS]
    assert len(release.counts.inputFiles()) == 1


def test_the_noisy_counts_are_near_the_true_ones_but_not_equal(directory: Path) -> None:
    noisy = {key_of(row): row["noisy_count"] for row in stored(directory)}
    for group, count in TRUE_COUNTS.items():
        # 5 standard deviations on the logarithm; the key is fixed.
        assert abs(np.log((noisy[group] + 20) / (count + 20))) < 5 * MECHANISM.sigma
    assert sum(noisy[group] == count for group, count in TRUE_COUNTS.items()) == 0


def test_rows_are_ordered_by_key_with_null_first(directory: Path) -> None:
    keys = [key_of(row) for row in stored(directory)]
    assert keys == [(c, m) for c in (None, "", "AA", "BB") for m in (None, 1, 2)]


def test_the_output_and_its_audit_are_all_that_is_written(directory: Path) -> None:
    assert entries(directory) == {"counts", "counts_audit_groups", "counts_audit_header"}
    assert len(data_files(directory / "counts")) == 1


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("partitions", [1, 7])
def test_the_number_of_files_is_fixed_whatever_input_and_session(
    spark: SparkSession, tmp_path: Path, settings: Any, files: int, partitions: int
) -> None:
    records = spark.range(5000).selectExpr("id % 90 AS group").repartition(partitions)
    request = request_for(
        spark,
        tmp_path,
        files=files,
        records=records,
        columns=["group"],
        key_set=KeySet.product({"group": range(100)}),
    )
    with settings({"spark.sql.files.maxRecordsPerFile": "5"}):
        run_release(spark, request, key=KEY)
    written = data_files(tmp_path / "counts")
    assert len(written) == files
    per_file = [pq.read_table(path).column("group").to_pylist() for path in written]
    assert all(groups == sorted(groups) for groups in per_file)
    assert sorted(group for groups in per_file for group in groups) == list(range(100))


def test_which_group_is_in_which_file_does_not_depend_on_the_data(
    spark: SparkSession, tmp_path: Path, settings: Any
) -> None:
    """Range partitioning draws its bounds from a sample, which the shuffle's sizes decide about."""
    declared = KeySet.from_dataframe(spark.range(20_000).withColumnRenamed("id", "group"))
    skewed = spark.range(50).selectExpr("id % 3 AS group")
    wide = spark.range(60_000).selectExpr("id AS group")
    layouts = []
    with settings({"spark.sql.adaptive.advisoryPartitionSizeInBytes": "60kb"}):
        for name, records in (("skewed", skewed), ("wide", wide)):
            request = request_for(
                spark,
                tmp_path / name,
                files=4,
                records=records,
                columns=["group"],
                key_set=declared,
            )
            run_release(spark, request, key=KEY)
            written = data_files(tmp_path / name / "counts")
            layouts.append([pq.read_table(path)["group"].to_pylist() for path in written])
    assert len(layouts[0]) == 4
    assert layouts[0] == layouts[1]


def test_the_same_key_gives_the_same_release_however_spark_splits_the_data(
    spark: SparkSession, tmp_path: Path, settings: Any, release: Release
) -> None:
    expected = sorted(release.counts.collect(), key=str)
    for number, (partitions, adaptive) in enumerate([(1, "true"), (4, "false"), (9, "true")]):
        records = confidential_records(spark).repartition(partitions)
        values = {
            "spark.sql.adaptive.enabled": adaptive,
            "spark.sql.shuffle.partitions": str(partitions + 1),
        }
        with settings(values):
            request = request_for(spark, tmp_path / str(number), records=records, files=2)
            again = run_release(spark, request, key=KEY)
            assert sorted(again.counts.collect(), key=str) == expected


def test_two_releases_without_a_given_key_differ_and_are_not_marked_fixed(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = (
        run_release(spark, request_for(spark, tmp_path / name, rounding="none"))
        for name in ("one", "two")
    )
    # Not rounded: integers of a few thousand can be the same by chance.
    large = F.col("noisy_count") > 1000
    assert not set(first.counts.where(large).collect()) & set(second.counts.where(large).collect())
    assert not first.audit.header.fixed_release_key


def test_the_audit_is_a_function_of_the_released_numbers(release: Release, directory: Path) -> None:
    audited = pd.DataFrame(stored(directory, "counts_audit_groups"))
    released = pd.DataFrame(stored(directory))
    assert list(audited.columns) == [*COLUMNS, *PUBLISHED_COLUMNS, *AUDIT_COLUMNS]
    for name in PUBLISHED_COLUMNS:
        assert list(audited[name]) == list(released[name])
    noisy, lower, upper = (np.maximum(released[name].to_numpy(), 0) for name in PUBLISHED_COLUMNS)
    assert list(audited["rho_at_noisy_count"]) == list(MECHANISM.budget(noisy))
    assert list(audited["rho_lower"]) == list(MECHANISM.budget(upper))
    assert list(audited["rho_upper"]) == list(MECHANISM.budget(lower))
    assert list(audited["expected_bias"]) == list(MECHANISM.expected_bias(noisy))
    assert release.audit.groups.to_pylist() == stored(directory, "counts_audit_groups")


def test_the_header_states_the_public_policy(
    spark: SparkSession, release: Release, directory: Path
) -> None:
    (header,) = stored(directory, "counts_audit_header")
    rho = MECHANISM.worst_case_budget()
    assert header["release_id"] == "r1"
    assert header["input"] == "test records"
    assert header["output"] == str(directory / "counts")
    assert header["group_columns"] == COLUMNS
    assert header["key_set_size"] == KEY_SET_SIZE
    assert header["mechanism"] == "shifted_log"
    assert json.loads(header["parameters"])["sigma"] == MECHANISM.sigma
    assert (header["relative_error"], header["floor"]) == (0.3, 20.0)
    assert (header["rounding"], header["confidence"]) == ("nearest", 0.95)
    assert (header["privacy_unit"], header["records_per_unit"]) == ("record", 1)
    assert rho <= header["worst_case_rho"] < rho * (1 + 1e-9)
    # Equation (6) of Balle and Wang 2018 for the Gaussian mechanism: the tight delta at epsilon.
    epsilon, mu = header["epsilon"], math.sqrt(2 * rho)
    tight = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert 0.99e-6 < tight <= 1e-6
    assert header["attacker_accuracy"] == pytest.approx(norm.cdf(mu / 2), rel=1e-6)
    assert header["fixed_release_key"] is True
    versions = json.loads(header["versions"])
    assert versions["spark"] == spark.version
    assert {"spark_dphist", "python", "numpy", "pyarrow"} <= set(versions)
    assert header["created_at"].utcoffset().total_seconds() == 0
    assert header == release.audit.header.to_arrow().to_pylist()[0]


def test_the_key_set_digest_depends_on_the_groups_alone(
    spark: SparkSession, tmp_path: Path, release: Release
) -> None:
    groups = [(c, m) for c in (None, "", "BB", "AA") for m in (None, 2, 1)]
    frame = spark.createDataFrame([*groups, *groups], T.StructType(FIELDS))
    forms = {
        "tuples": KeySet.from_tuples(COLUMNS, [*groups, *groups]),
        "dataframe": KeySet.from_dataframe(frame.select("month", "carrier")),
        "fewer": KeySet.from_tuples(COLUMNS, groups[1:]),
    }
    digests = {
        name: run_release(
            spark, request_for(spark, tmp_path / name, key_set=keys, files=2), key=KEY
        ).audit.header.key_set_digest
        for name, keys in forms.items()
    }
    assert digests["tuples"] == digests["dataframe"] == release.audit.header.key_set_digest
    assert digests["fewer"] != digests["tuples"]


def every_stored_number(directory: Path) -> set[float]:
    numbers: set[float] = set()
    for path in directory.rglob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            for value in row.values():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    numbers.add(float(value))
    return numbers


def names_of_the_confidential_in(directory: Path) -> list[str]:
    text = b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())
    names = ["spark_dphist.confidential", "confidential_true_count", "confidential_rho", "__dphist"]
    return [name for name in names if name.encode() in text]


SECRETS = {float(count) for count in TRUE_COUNTS.values()} | {
    float(rho) for rho in MECHANISM.budget(list(TRUE_COUNTS.values()))
}


def test_no_true_count_and_no_realised_budget_is_in_the_output_tree(directory: Path) -> None:
    assert len(every_stored_number(directory)) > 3 * KEY_SET_SIZE
    assert not every_stored_number(directory) & SECRETS
    assert not names_of_the_confidential_in(directory)


def test_the_confidential_audit_has_the_true_counts_apart_and_marked(
    spark: SparkSession, tmp_path: Path, release: Release
) -> None:
    secret = tmp_path / "vault" / "audit"
    request = with_confidential_audit(request_for(spark, tmp_path / "public"), secret)
    again = run_release(spark, request, key=KEY)
    rows = stored(tmp_path / "vault", "audit")
    expected = {key_of(row): TRUE_COUNTS.get(key_of(row), 0) for row in stored(tmp_path / "public")}
    assert {key_of(row): row["confidential_true_count"] for row in rows} == expected
    for row in rows:
        rho = float(MECHANISM.budget(row["confidential_true_count"]))
        assert row["confidential_rho"] == rho
    public = {key_of(row): row["noisy_count"] for row in stored(tmp_path / "public")}
    assert {key_of(row): row["noisy_count"] for row in rows} == public
    assert sorted(again.counts.collect(), key=str) == sorted(release.counts.collect(), key=str)
    (*_, written) = data_files(secret)
    schema = json.loads(
        pq.read_schema(written).metadata[b"org.apache.spark.sql.parquet.row.metadata"]
    )
    marked = {
        field["name"]
        for field in schema["fields"]
        if "spark_dphist.confidential" in field["metadata"]
    }
    assert marked == {"confidential_true_count", "confidential_rho"}
    assert every_stored_number(tmp_path / "vault") >= SECRETS
    assert not every_stored_number(tmp_path / "public") & SECRETS
    assert not names_of_the_confidential_in(tmp_path / "public")
    assert entries(tmp_path / "vault") == {"audit"}


def test_without_rounding_doubles_are_published(spark: SparkSession, tmp_path: Path) -> None:
    request = request_for(spark, tmp_path, rounding="none")
    release = run_release(spark, request, key=KEY)
    assert dict(release.counts.dtypes)["noisy_count"] == "double"
    assert any(row.noisy_count % 1 for row in release.counts.collect())
    assert release.audit.header.rounding == "none"


def test_the_constant_mechanism_releases_without_a_budget(
    spark: SparkSession, tmp_path: Path
) -> None:
    mechanism = Constant.calibrate(relative_error=1.0, floor=30)
    request = request_for(spark, tmp_path, mechanism=mechanism, relative_error=1.0)
    release = run_release(spark, request, key=KEY)
    assert {row.noisy_count for row in release.counts.collect()} == {15}
    assert release.audit.header.worst_case_rho == 0
    assert set(release.audit.to_pandas()["rho_upper"]) == {0}


def test_every_supported_key_type_is_stored_and_read_back_as_it_was_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.sql(
        "SELECT 1Y AS tiny, 2S AS short, 3 AS whole, 4L AS long, true AS flag, "
        "DATE'1900-02-28' AS day, TIMESTAMP'2024-11-03 01:30:00.123456-08:00' AS instant, "
        "TIMESTAMP_NTZ'2024-03-10 02:30:00.000001' AS wall, "
        "CAST('-1234567.5' AS DECIMAL(38, 10)) AS money, X'00FF' AS raw, '' AS text"
    )
    records = rows.union(rows).union(rows)
    nullable = T.StructType([T.StructField(field.name, field.dataType) for field in rows.schema])
    nulls = spark.createDataFrame([(None,) * len(rows.columns)], nullable)
    keys = KeySet.from_dataframe(rows.union(nulls))
    request = request_for(
        spark, tmp_path, records=records, columns=rows.columns, key_set=keys, files=2
    )
    release = run_release(spark, request, key=KEY)
    got = release.counts.select(*rows.columns).collect()
    assert sorted(got, key=str) == sorted(rows.union(nulls).collect(), key=str)
    assert release.audit.groups.num_rows == 2


def test_a_group_column_with_a_dot_and_a_backtick_is_released(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = confidential_records(spark).toDF("a.b", "c`d", "n")
    keys = KeySet.product({"a.b": ["AA", None], "c`d": [1, None]})
    request = request_for(spark, tmp_path, records=records, columns=["a.b", "c`d"], key_set=keys)
    release = run_release(spark, request, key=KEY)
    assert release.counts.columns[:2] == ["a.b", "c`d"]
    assert release.counts.count() == 4


def test_columns_that_spark_cannot_tell_apart_are_refused_before_a_job(
    spark: SparkSession, tmp_path: Path, settings: Any
) -> None:
    with settings({"spark.sql.caseSensitive": "true"}):
        records = confidential_records(spark).withColumn("CARRIER", F.lit("x"))
        _ = records.schema
    with pytest.raises(ConfigurationError, match="'carrier' and 'CARRIER', which this session"):
        run_release(spark, request_for(spark, tmp_path, records=records), key=KEY)
    assert entries(tmp_path) == set()
    with settings({"spark.sql.caseSensitive": "true"}):
        release = run_release(spark, request_for(spark, tmp_path, records=records), key=KEY)
        assert release.counts.count() == KEY_SET_SIZE


def test_the_release_is_evaluated_once(spark: SparkSession, tmp_path: Path) -> None:
    """A table that changes between two evaluations would cancel its own noise."""
    evaluations = tmp_path / "evaluations"
    evaluations.mkdir()
    directory = str(evaluations)

    def noted(batches: Any) -> Any:
        import uuid
        from pathlib import Path

        (Path(directory) / uuid.uuid4().hex).touch()
        yield from batches

    source = confidential_records(spark).limit(1000).coalesce(1).select(*COLUMNS)
    records = source.mapInArrow(noted, source.schema)
    secret = tmp_path / "vault"
    for number, files in enumerate((1, 3)):
        for path in evaluations.iterdir():
            path.unlink()
        request = request_for(spark, tmp_path / str(number), records=records, files=files)
        if number:
            request = with_confidential_audit(request, secret)
        run_release(spark, request, key=KEY)
        assert len(list(evaluations.iterdir())) == 1


def test_nothing_held_by_the_caller_leads_back_to_the_data(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = confidential_records(spark)
    path = tmp_path / "records"
    records.write.parquet(str(path))
    request = request_for(spark, tmp_path / "out", records=spark.read.parquet(str(path)))
    release = run_release(spark, request)
    before = release.counts.collect()
    for file in path.iterdir():
        file.unlink()
    assert release.counts.collect() == before
    assert release.audit.groups.num_rows == KEY_SET_SIZE


def test_the_request_is_not_changed_by_its_release(spark: SparkSession, tmp_path: Path) -> None:
    request = request_for(spark, tmp_path)
    copy = replace(request)
    run_release(spark, request, key=KEY)
    assert request == copy
    assert request.key_set is KEYS
