"""Inputs as lake tables: partitions, conditions on records, snapshots, the log of releases."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from releases import KEY

from spark_dphist.cli import main
from spark_dphist.config import parse_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.from_config import request_from
from spark_dphist.release import Release, run_release
from spark_dphist.spark.selection import ColumnCondition, select_records
from spark_dphist.spark.snapshots import read_table

# Records of each (day, month) by region: none is small or near another.
RECORDS = """
SELECT day, month, region, explode(sequence(1, records)) AS visit FROM VALUES
    (DATE'2013-01-01', 1, 'north', 300),
    (DATE'2013-01-31', 1, 'south', 7000),
    (DATE'2013-02-01', 2, 'north', 20000),
    (DATE'2013-02-02', 2, NULL, 50000) AS t(day, month, region, records)
"""


@pytest.fixture
def partitioned(spark: SparkSession, tmp_path: Path) -> Path:
    place = tmp_path / "visits"
    spark.sql(RECORDS).write.partitionBy("day", "month").parquet(str(place))
    return place


def content(directory: Path, source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "input": source,
        "groups": {
            "columns": ["region"],
            "keys": {"product": {"region": {"values": ["north", "south"], "include_null": True}}},
        },
        "mechanism": {"relative_error": 0.3, "floor": 20},
        "output": {"path": f"{directory}/out/counts"},
        "confidential_audit": {"path": f"{directory}/vault"},
        **more,
    }


def released(spark: SparkSession, described: dict[str, Any]) -> Release:
    request = request_from(spark, parse_configuration(described, "test"))
    return run_release(spark, request, key=KEY)


def true_counts(spark: SparkSession, directory: Path) -> dict[str | None, int]:
    stored = spark.read.parquet(f"{directory}/vault").collect()
    return {row.region: row.confidential_true_count for row in stored}


def physical_plan(frame: DataFrame) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain("formatted")
    return printed.getvalue()


def test_a_condition_on_partition_columns_reads_only_those_partitions(
    spark: SparkSession, partitioned: Path, tmp_path: Path
) -> None:
    day = {"from": "2013-01-31", "before": "2013-02-02"}
    schema = "region STRING, visit INT, day DATE, month INT"
    where = {"day": day, "month": [2]}
    source = {"path": str(partitioned), "schema": schema, "where": where}
    configuration = parse_configuration(content(tmp_path, source), "test")
    request = request_from(spark, configuration)
    plan = physical_plan(request.records.groupBy("region").count())
    (filters,) = [line for line in plan.splitlines() if line.startswith("PartitionFilters")]
    assert "day" in filters
    assert "month" in filters
    assert "2013-01-31" in filters
    for other in partitioned.rglob("*.parquet"):
        if "day=2013-02-01" not in other.parts:
            other.write_bytes(b"whoever reads this fails")
    release = run_release(spark, request, key=KEY)
    assert true_counts(spark, tmp_path) == {"north": 20000, "south": 0, None: 0}
    assert release.audit.header.input == (
        f"parquet {partitioned} where day from '2013-01-31' before '2013-02-02' and month in (2)"
    )


def test_a_condition_on_a_table_selects_values_null_and_ranges(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.sql(RECORDS).write.saveAsTable("lake_visits")
    try:
        where = {"region": {"values": ["north"], "include_null": True}, "visit": {"from": 101}}
        source = {"table": "lake_visits", "where": where}
        release = released(spark, content(tmp_path, source))
        assert true_counts(spark, tmp_path) == {"north": 20100, "south": 0, None: 49900}
        assert release.audit.header.input == (
            "table lake_visits where region in ('north', NULL) and visit from 101"
        )
        assert release.audit.header.input_snapshot is None
    finally:
        spark.sql("DROP TABLE lake_visits")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Lima"])
def test_conditions_on_every_type_keep_what_they_name_in_any_time_zone(
    spark: SparkSession, settings: Any, zone: str
) -> None:
    one = """SELECT DATE'2024-03-01' AS day, TIMESTAMP'2024-03-01 00:00:00.000001Z' AS at,
        TIMESTAMP_NTZ'2024-03-01 12:00:00' AS local, 1.50BD AS price, X'00FF' AS code,
        true AS paid, CAST(7 AS TINYINT) AS small, 9007199254740993L AS large, '' AS text"""
    conditions = [
        ColumnCondition("day", ("2024-03-01",)),
        ColumnCondition("at", ("2024-03-01T09:00:00.000001+09:00",)),
        ColumnCondition("local", None, "2024-03-01T12:00:00", "2024-03-01T12:00:00.000001"),
        ColumnCondition("price", ("1.5",)),
        ColumnCondition("code", ("00ff",)),
        ColumnCondition("paid", (True,)),
        ColumnCondition("small", None, 7, 8),
        ColumnCondition("large", (9007199254740993,)),
        ColumnCondition("text", ("",)),
    ]
    with settings({"spark.sql.session.timeZone": zone}):
        records = spark.sql(one)
        assert select_records(records, conditions, "it").count() == 1
        others = [
            ColumnCondition("day", None, None, "2024-03-01"),
            ColumnCondition("at", None, "2024-03-01T00:00:00.000002+00:00"),
            ColumnCondition("large", (9007199254740992,)),
            ColumnCondition("text", (None,)),
        ]
        for other in others:
            assert select_records(records, [other], "it").count() == 0


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"dya": ["2013-01-01"]}, "no column named 'dya'.*Did you mean 'day'"),
        ({"month": ["January"]}, "'month' has type int, got the str 'January'"),
        ({"_metadata": ["x"]}, "no column named '_metadata'"),
        ({"ratio": [1]}, "has type double, expected an integer"),
    ],
)
def test_conditions_that_fit_no_column_are_refused_with_the_mend(
    spark: SparkSession, tmp_path: Path, where: dict[str, Any], says: str
) -> None:
    spark.sql(RECORDS).selectExpr("*", "0.5D AS ratio").limit(1).write.parquet(
        str(tmp_path / "records")
    )
    source = {"path": str(tmp_path / "records"), "where": where}
    with pytest.raises(ConfigurationError, match=says):
        request_from(spark, parse_configuration(content(tmp_path, source), "test"))


def test_a_declared_schema_gives_the_columns_of_files_and_partitions_their_types(
    spark: SparkSession, partitioned: Path, tmp_path: Path
) -> None:
    schema = "region STRING, visit INT, day STRING, month BIGINT"
    source = {"path": str(partitioned), "schema": schema, "where": {"day": ["2013-01-31"]}}
    request = request_from(spark, parse_configuration(content(tmp_path, source), "test"))
    assert dict(request.records.dtypes)["day"] == "string"
    assert dict(request.records.dtypes)["month"] == "bigint"
    assert request.records.count() == 7000
    text = tmp_path / "text"
    spark.sql(RECORDS).drop("day").where("visit < 9").write.csv(str(text))
    schema = "month INT, region STRING, visit INT"
    source = {"path": str(text), "format": "csv", "schema": schema, "where": {"month": [1]}}
    request = request_from(spark, parse_configuration(content(tmp_path, source), "test"))
    assert request.records.count() == 16


def test_the_dry_run_shows_what_is_counted(
    spark: SparkSession, partitioned: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert spark.version
    file = tmp_path / "release.toml"
    file.write_text(
        f'[input]\npath = "{partitioned}"\nwhere.day = {{ before = 2013-02-01 }}\n'
        '[groups]\ncolumns = ["region"]\nkeys.product.region = ["north"]\n'
        "[mechanism]\nrelative_error = 0.3\nfloor = 20\n"
        f'[output]\npath = "{tmp_path}/out"\n'
    )
    for arguments in (["plan", str(file)], ["run", str(file), "--dry-run"]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert not left.value.code
        shown = " ".join(capfd.readouterr().out.split())
        assert "where day before 2013-02-01" in shown
    assert not (tmp_path / "out").exists()


def test_a_snapshot_of_a_table_that_keeps_none_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(1).write.saveAsTable("lake_plain")
    spark.range(1).selectExpr("id AS Provider").write.parquet(str(tmp_path / "odd"))
    try:
        with pytest.raises(ConfigurationError, match=r"\(parquet\) keeps no snapshots"):
            read_table(spark, "lake_plain", "1")
        assert read_table(spark, "lake_plain").snapshot is None
        spark.read.parquet(str(tmp_path / "odd")).createOrReplaceTempView("lake_view")
        with pytest.raises(ConfigurationError, match=r"\(a view\) keeps no snapshots"):
            read_table(spark, "lake_view", "1")
        source = {"path": str(tmp_path / "odd"), "snapshot": 3}
        with pytest.raises(ConfigurationError, match="keeps no snapshots"):
            request_from(spark, parse_configuration(content(tmp_path, source), "test"))
    finally:
        spark.sql("DROP TABLE lake_plain")
        spark.catalog.dropTempView("lake_view")


def test_more_than_the_name_of_a_table_is_refused_as_an_input(spark: SparkSession) -> None:
    for name in ("range(3)", "lake_a JOIN lake_b", "(SELECT 1)"):
        with pytest.raises(Exception, match=r"(?i)syntax|not.be.found|invalid"):
            read_table(spark, name)


def test_a_release_is_appended_to_the_log_with_its_groups_and_conditions(
    spark: SparkSession, partitioned: Path, tmp_path: Path
) -> None:
    deltalake = pytest.importorskip("deltalake")
    source = {"path": str(partitioned), "where": {"month": [1]}}
    audit = {"delta_log": f"{tmp_path}/log"}
    release = released(spark, content(tmp_path, source, audit=audit, release_id="visits-1"))
    (row,) = deltalake.DeltaTable(f"{tmp_path}/log/releases").to_pyarrow_table().to_pylist()
    assert row["release_id"] == "visits-1"
    assert row["input"] == f"parquet {partitioned} where month in (1)"
    assert row["counts_digest"] == release.audit.header.counts_digest
    groups = deltalake.DeltaTable(f"{tmp_path}/log/groups").to_pyarrow_table().to_pylist()
    assert release.audit.groups is not None
    assert {each["group"]: each["noisy_count"] for each in groups} == {
        f'{{"region": {text}}}': count
        for text, count in zip(
            [
                "null" if key is None else f'"{key}"'
                for key in release.audit.groups["region"].to_pylist()
            ],
            release.audit.groups["noisy_count"].to_pylist(),
            strict=True,
        )
    }


def test_a_log_inside_the_input_is_refused(
    spark: SparkSession, partitioned: Path, tmp_path: Path
) -> None:
    pytest.importorskip("deltalake")
    audit = {"delta_log": f"{partitioned}/log"}
    described = content(tmp_path, {"path": str(partitioned)}, audit=audit)
    with pytest.raises(ConfigurationError, match=r"log of releases .*lie in one another"):
        released(spark, described)
    assert not (tmp_path / "out").exists()
