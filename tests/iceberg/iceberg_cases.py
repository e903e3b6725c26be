"""Releases from and into Iceberg tables; run by test_iceberg.py, which sets ICEBERG_CATALOG."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from snowpark_connect_deps_iceberg import get_jars_dir

from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.config import parse_configuration
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.from_config import request_from
from spark_dphist.release import Release, run_release
from spark_dphist.spark.storage import TableTarget
from spark_dphist.streams import ReleaseKey

KEY = ReleaseKey.fixed_for_tests(hashlib.sha256(b"iceberg").digest())
CATALOG = os.environ["ICEBERG_CATALOG"]
ROWS = """
SELECT {day} AS day, region, explode(sequence(1, {size})) AS visit
FROM VALUES ('a'), ('b') AS t(region)"""
TABLES = ["counts", "counts_audit_groups", "counts_audit_header"]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("warehouse")


@pytest.fixture(scope="module")
def spark(warehouse: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    catalog = "spark.sql.catalog.lake"
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        # Many small jobs, as in tests/conftest.py.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
            f"-Dderby.stream.error.file={warehouse}/derby.log"
        ),
        "spark.driver.host": "127.0.0.1",
        "spark.jars": f"{get_jars_dir()}/iceberg-spark-runtime-3.5_2.12-1.9.2.jar",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": CATALOG,
        f"{catalog}.warehouse": str(warehouse),
    }
    if CATALOG == "hive":
        settings |= {
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.hadoop.iceberg.engine.hive.lock-enabled": "false",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:{warehouse}/metastore;create=true"
            ),
        }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def schema(spark: SparkSession, request: pytest.FixtureRequest) -> str:
    """Return a schema of its own, with the table ``visits`` of one snapshot."""
    name = f"lake.t{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}"
    spark.sql(f"CREATE NAMESPACE {name}")
    spark.sql(ROWS.format(day=1, size=20_000)).writeTo(f"{name}.visits").partitionedBy(
        "day"
    ).create()
    return name


def append(spark: SparkSession, schema: str, *, day: int = 2, size: int = 90_000) -> None:
    spark.sql(ROWS.format(day=day, size=size)).writeTo(f"{schema}.visits").append()


def snapshots(spark: SparkSession, table: str) -> list[str]:
    history = spark.sql(f"SELECT snapshot_id FROM {table}.history ORDER BY made_current_at")  # noqa: S608
    return [str(row.snapshot_id) for row in history.collect()]


def content(schema: str, directory: Path, **more: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "release_id": "r1",
        "input": {"table": f"{schema}.visits"},
        "groups": {"columns": ["region"], "keys": {"product": {"region": ["a", "b", "c"]}}},
        "mechanism": {"relative_error": 0.3, "floor": 20},
        "output": {"table": f"{schema}.counts", "format": "iceberg"},
        "confidential_audit": {"path": f"{directory}/vault"},
    }
    for name, section in more.items():
        described[name] = {**described.get(name, {}), **section} if name == "input" else section
    return described


def released(
    spark: SparkSession, described: dict[str, Any], ledger: Ledger | None = None
) -> Release:
    request = request_from(spark, parse_configuration(described, "test"))
    return run_release(spark, request, key=KEY, ledger=ledger)


def true_counts(spark: SparkSession, directory: Path) -> dict[str, int]:
    stored = spark.read.parquet(f"{directory}/vault").collect()
    return {row.region: row.confidential_true_count for row in stored}


def tables(spark: SparkSession, schema: str) -> set[str]:
    return {row.tableName for row in spark.sql(f"SHOW TABLES IN {schema}").collect()}


def test_release_and_audit_are_iceberg_tables_and_nothing_is_left_staged(
    spark: SparkSession, schema: str, tmp_path: Path, warehouse: Path
) -> None:
    release = released(spark, content(schema, tmp_path))
    assert true_counts(spark, tmp_path) == {"a": 20_000, "b": 20_000, "c": 0}
    assert tables(spark, schema) == {"visits", *TABLES}
    for name in TABLES:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {schema}.{name}").collect()
        assert ("Provider", "iceberg") in {(row.col_name, row.data_type) for row in rows}
    assert spark.table(f"{schema}.counts.files").count() == 1
    assert release.counts.count() == 3
    header = spark.table(f"{schema}.counts_audit_header").first()
    assert header is not None
    assert header.counts_digest == release.audit.header.counts_digest
    assert header.input_snapshot == snapshots(spark, f"{schema}.visits")[0]
    if CATALOG == "hadoop":
        # Its tables lie where their names say.
        assert not [path for path in warehouse.rglob("*") if "staging" in path.name]


def test_what_is_written_while_a_release_runs_is_not_counted(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    request = request_from(spark, parse_configuration(content(schema, tmp_path), "test"))
    append(spark, schema)
    release = run_release(spark, request, key=KEY)
    assert true_counts(spark, tmp_path) == {"a": 20_000, "b": 20_000, "c": 0}
    first, second = snapshots(spark, f"{schema}.visits")
    assert release.audit.header.input_snapshot == first != second


def test_a_rerun_at_the_snapshot_of_the_audit_counts_the_same_data(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    first = released(spark, content(schema, tmp_path / "1")).audit.header
    append(spark, schema)
    spark.sql(f"DELETE FROM {schema}.visits WHERE day = 1")  # noqa: S608
    again = content(
        schema,
        tmp_path / "2",
        input={"snapshot": first.input_snapshot},
        output={"table": f"{schema}.again", "format": "iceberg"},
    )
    second = released(spark, again).audit.header
    assert true_counts(spark, tmp_path / "2") == {"a": 20_000, "b": 20_000, "c": 0}
    assert second.counts_digest == first.counts_digest
    assert second.input_snapshot == first.input_snapshot
    assert second.input == f"table {schema}.visits at snapshot {first.input_snapshot}"
    now = content(schema, tmp_path / "3", output={"table": f"{schema}.now", "format": "iceberg"})
    third = released(spark, now).audit.header
    assert true_counts(spark, tmp_path / "3") == {"a": 90_000, "b": 90_000, "c": 0}
    assert third.input_snapshot not in (None, first.input_snapshot)


def test_a_condition_prunes_the_partitions_of_a_pinned_table(
    spark: SparkSession, schema: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    append(spark, schema)
    described = content(schema, tmp_path, input={"where": {"day": [2]}})
    request = request_from(spark, parse_configuration(described, "test"))
    request.records.explain()
    assert "filters=day IS NOT NULL, day = 2" in capfd.readouterr().out
    run_release(spark, request, key=KEY)
    assert true_counts(spark, tmp_path) == {"a": 90_000, "b": 90_000, "c": 0}


def test_a_retry_hands_out_what_was_committed_though_the_input_has_changed(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db", by="keeper") as ledger:
        ledger.add_dataset("visits", Caps.of(rho=1))
        charged = content(
            schema, tmp_path, ledger={"url": f"sqlite:///{tmp_path}/ledger.db", "dataset": "visits"}
        )
        first = released(spark, charged, ledger).audit.header
        append(spark, schema)
        assert released(spark, charged, ledger).audit.header == first
        assert len(ledger.releases("visits")) == 1


def test_a_release_replaces_another_in_one_commit(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    released(spark, content(schema, tmp_path / "1"))
    output = {"table": f"{schema}.counts", "format": "iceberg"}
    with pytest.raises(ConfigurationError, match="exists"):
        released(spark, content(schema, tmp_path / "2", release_id="r2"))
    replacing = content(
        schema, tmp_path / "3", release_id="r3", output={**output, "mode": "overwrite"}
    )
    released(spark, replacing)
    assert tables(spark, schema) == {"visits", *TABLES}
    assert [row.release_id for row in spark.table(f"{schema}.counts_audit_header").collect()] == [
        "r3"
    ]
    assert len(snapshots(spark, f"{schema}.counts")) == 2
    # Without a ledger an id may come again; what it replaces is another release all the same.
    append(spark, schema)
    replacing["confidential_audit"] = {"path": f"{tmp_path}/4/vault"}
    again = released(spark, replacing).audit.header
    stored = spark.table(f"{schema}.counts_audit_header").first()
    assert stored is not None
    assert stored.input_snapshot == again.input_snapshot == snapshots(spark, f"{schema}.visits")[1]
    assert not [name for name in tables(spark, schema) if "staging" in name]


def test_a_run_that_died_between_copying_and_tidying_is_completed_by_asking_again(
    spark: SparkSession, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(target: TableTarget, session: SparkSession) -> None:
        if target.release_id == "r1":
            raise KilledError(target.table)
        discard(target, session)  # of the rehearsal

    discard = TableTarget.discard

    # A Hive catalog renames, and only a replacement is copied there.
    mode = "overwrite" if CATALOG == "hive" else "error"
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db", by="keeper") as ledger:
        ledger.add_dataset("visits", Caps.of(rho=1))
        charged = content(
            schema,
            tmp_path,
            ledger={"url": f"sqlite:///{tmp_path}/ledger.db", "dataset": "visits"},
            output={"table": f"{schema}.counts", "format": "iceberg", "mode": mode},
        )
        with monkeypatch.context() as patched:
            patched.setattr(TableTarget, "discard", killed)
            with pytest.raises(KilledError):
                released(spark, charged, ledger)
        assert [name for name in tables(spark, schema) if "staging" in name]
        release = released(spark, charged, ledger)
    assert tables(spark, schema) == {"visits", *TABLES}
    assert release.counts.count() == 3


def test_a_table_that_came_into_being_meanwhile_is_not_touched(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    def someone_else(step: str) -> None:
        if step == "publishing":
            spark.range(3).writeTo(f"{schema}.counts").create()

    request = request_from(spark, parse_configuration(content(schema, tmp_path), "test"))
    with pytest.raises(ReleaseError, match="could not be moved to"):
        run_release(spark, request, key=KEY, on_step=someone_else)
    assert spark.table(f"{schema}.counts").columns == ["id"]


def test_snapshots_that_cannot_be_read_are_refused_with_the_mend(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    missing = content(schema, tmp_path, input={"snapshot": "42"})
    with pytest.raises(ConfigurationError, match=r"snapshot 42 .*there is none, or it has expired"):
        released(spark, missing)
    spark.sql(f"CREATE TABLE {schema}.empty (region STRING) USING iceberg")
    with pytest.raises(ConfigurationError, match="has no snapshot yet"):
        released(spark, content(schema, tmp_path, input={"table": f"{schema}.empty"}))
    spark.table(f"{schema}.visits").select("region").limit(0).writeTo(f"{schema}.empty").append()
    released(spark, content(schema, tmp_path, input={"table": f"{schema}.empty"}))
    assert true_counts(spark, tmp_path) == {"a": 0, "b": 0, "c": 0}


def test_the_confidential_audit_stays_out_of_the_catalog_of_a_public_table(
    spark: SparkSession, schema: str, tmp_path: Path, warehouse: Path
) -> None:
    inside = content(schema, tmp_path, confidential_audit={"path": f"{warehouse}/t/vault"})
    with pytest.raises(ConfigurationError, match="keep them apart"):
        released(spark, inside)


def test_a_path_is_pinned_like_a_table_and_refused_as_an_output(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {schema}.visits").collect()
    (path,) = [row.data_type for row in rows if row.col_name == "Location"]
    first = snapshots(spark, f"{schema}.visits")[0]
    append(spark, schema)
    by_path = content(schema, tmp_path, input={"snapshot": first})
    by_path["input"] = {"path": path, "format": "iceberg", "snapshot": first}
    release = released(spark, by_path)
    assert true_counts(spark, tmp_path) == {"a": 20_000, "b": 20_000, "c": 0}
    assert release.audit.header.input_snapshot == first
    into_path = content(
        schema, tmp_path / "2", output={"path": f"{tmp_path}/out", "format": "iceberg"}
    )
    with pytest.raises(ConfigurationError, match="cannot be written as 'iceberg'"):
        released(spark, into_path)
    assert not (tmp_path / "2").exists()
