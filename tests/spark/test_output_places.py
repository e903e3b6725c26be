"""Where releases may go: never over, into or around anything else, whatever the spelling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from releases import (
    COLUMNS,
    KEY,
    KEY_SET_SIZE,
    confidential_records,
    data_files,
    entries,
    request_for,
    with_confidential_audit,
)

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.release import run_release
from spark_dphist.request import ReleaseRequest, check_request, refuse_existing
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget, TableTarget
from spark_dphist.streams import ReleaseKey


def check(spark: SparkSession, request: ReleaseRequest) -> None:
    refuse_existing(spark, request, check_request(spark, request))


def test_an_output_that_exists_is_never_overwritten_silently(
    spark: SparkSession, tmp_path: Path
) -> None:
    run_release(spark, request_for(spark, tmp_path), key=KEY)
    before = {path: path.read_bytes() for path in data_files(tmp_path / "counts")}
    with pytest.raises(ConfigurationError, match=r"exists.*mode = \"overwrite\""):
        run_release(spark, request_for(spark, tmp_path, release_id="r2"))
    assert {path: path.read_bytes() for path in data_files(tmp_path / "counts")} == before
    assert entries(tmp_path) == {"counts", "counts_audit_groups", "counts_audit_header"}


@pytest.mark.parametrize("taken", ["counts", "counts_audit_groups", "counts_audit_header"])
def test_each_place_must_be_free(spark: SparkSession, tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).mkdir()
    with pytest.raises(ConfigurationError, match=f"{taken}' exists"):
        check(spark, request_for(spark, tmp_path))


def test_overwriting_replaces_counts_and_audit_and_leaves_nothing_old(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = run_release(spark, request_for(spark, tmp_path), key=KEY).counts.collect()
    output = PathTarget(str(tmp_path / "counts"), "r2", mode="overwrite")
    request = request_for(spark, tmp_path, release_id="r2", output=output)
    second = run_release(spark, request).counts.collect()
    assert len(second) == KEY_SET_SIZE
    assert second != first
    assert entries(tmp_path) == {"counts", "counts_audit_groups", "counts_audit_header"}
    (header,) = data_files(tmp_path / "counts_audit_header")
    assert pq.read_table(header).to_pylist()[0]["release_id"] == "r2"


def spellings(directory: Path) -> dict[str, str]:
    link = directory.parent / "a_link"
    link.symlink_to(directory, target_is_directory=True)
    return {
        "plain": str(directory),
        "trailing slash": f"{directory}//",
        "dots": f"{directory}/../{directory.name}/./",
        "file URI": directory.as_uri(),
        "short file URI": f"file:{directory}",
        "link": str(link),
        "URI of link": link.as_uri() + "/",
    }


SPELLINGS = ["plain", "trailing slash", "dots", "file URI", "short file URI", "link", "URI of link"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_output_inside_the_input_is_refused(
    spark: SparkSession, tmp_path: Path, spelling: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    written = spellings(data)[spelling]
    for path in (written, f"{written}/deeper/counts"):
        request = request_for(
            spark, tmp_path, output=PathTarget(path, "r1", mode="overwrite"), input_path=str(data)
        )
        with pytest.raises(ConfigurationError, match="lie in one another"):
            check(spark, request)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_input_inside_the_output_is_refused(
    spark: SparkSession, tmp_path: Path, spelling: str
) -> None:
    outer = tmp_path / "outer"
    (outer / "data").mkdir(parents=True)
    request = request_for(
        spark,
        tmp_path,
        output=PathTarget(str(outer), "r1", mode="overwrite"),
        input_path=f"{spellings(outer)[spelling]}/data",
    )
    with pytest.raises(ConfigurationError, match="lie in one another"):
        check(spark, request)


@pytest.mark.parametrize(
    "pattern", ["data/*.parquet", "data/2013-*/part", "data/{a,b}", "data/x?", "data/[ab]/*"]
)
def test_an_output_that_a_pattern_of_the_input_could_match_is_refused(
    spark: SparkSession, tmp_path: Path, pattern: str
) -> None:
    (tmp_path / "data").mkdir()
    request = request_for(
        spark,
        tmp_path,
        output=PathTarget(str(tmp_path / "data" / "2013-01"), "r1"),
        input_path=str(tmp_path / pattern),
    )
    with pytest.raises(ConfigurationError, match="lie in one another"):
        check(spark, request)


def test_a_neighbour_whose_name_begins_alike_is_no_conflict(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "count").mkdir()
    request = request_for(spark, tmp_path, input_path=str(tmp_path / "count"))
    check(spark, request)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_confidential_audit_is_refused_inside_and_around_anything_public(
    spark: SparkSession, tmp_path: Path, spelling: str
) -> None:
    public = tmp_path / "public"
    (public / "inner").mkdir(parents=True)
    written = spellings(public)[spelling]
    request = request_for(
        spark, tmp_path, output=PathTarget(str(public / "inner"), "r1", mode="overwrite")
    )
    for inside in (".", "inner", "inner/secret", "inner_audit_groups/secret"):
        with pytest.raises(ConfigurationError, match="keep them apart"):
            check(spark, with_confidential_audit(request, f"{written}/{inside}"))
    check(spark, with_confidential_audit(request, f"{written}/innermost"))


def test_a_confidential_audit_inside_the_warehouse_of_a_public_table_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    warehouse = str(spark.conf.get("spark.sql.warehouse.dir"))
    request = request_for(spark, tmp_path, output=TableTarget("public_counts", "r1"))
    secret = f"{warehouse}/public_counts/secret"
    with pytest.raises(ConfigurationError, match="keep them apart"):
        check(spark, with_confidential_audit(request, secret))


@pytest.mark.parametrize("audit", ["counts", "./counts/", "counts/audit", "."])
def test_public_places_may_not_lie_in_one_another_either(
    spark: SparkSession, tmp_path: Path, audit: str
) -> None:
    request = request_for(spark, tmp_path)
    request = replace(request, audit_groups=PathTarget(f"{tmp_path}/{audit}", "r1"))
    with pytest.raises(ConfigurationError, match="different places"):
        check(spark, request)


@pytest.mark.parametrize("target", ["path", "table"])
def test_an_option_that_would_put_the_output_elsewhere_is_refused(
    spark: SparkSession, tmp_path: Path, target: str
) -> None:
    options = {"Path": str(tmp_path / "elsewhere")}
    output = (
        PathTarget(str(tmp_path / "counts"), "r1", options=options)
        if target == "path"
        else TableTarget("elsewhere_counts", "r1", options=options)
    )
    with pytest.raises(ConfigurationError, match="option 'Path'"):
        check(spark, request_for(spark, tmp_path, output=output))


def test_a_target_that_came_into_being_meanwhile_is_not_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    def someone_else(step: str) -> None:
        if step == "publishing":
            (tmp_path / "counts").mkdir()
            (tmp_path / "counts" / "theirs").write_text("theirs")

    with pytest.raises(ReleaseError, match="come into being") as failed:
        run_release(spark, request_for(spark, tmp_path), key=KEY, on_step=someone_else)
    assert "staging" in str(failed.value)
    assert (tmp_path / "counts" / "theirs").read_text() == "theirs"
    (staged,) = tmp_path.glob("counts.staging-*")
    assert len(spark.read.parquet(str(staged)).collect()) == KEY_SET_SIZE


def test_a_release_into_orc_reads_back_as_it_was_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    output = PathTarget(str(tmp_path / "counts"), "r1", format="orc")
    release = run_release(spark, request_for(spark, tmp_path, output=output), key=KEY)
    stored = spark.read.orc(str(tmp_path / "counts"))
    assert sorted(release.counts.collect(), key=str) == sorted(stored.collect(), key=str)
    assert stored.columns == [*COLUMNS, *PUBLISHED_COLUMNS]
    assert data_files(tmp_path / "counts")[0].suffix == ".orc"


@pytest.mark.parametrize(
    ("kind", "options"),
    [("csv", {"header": "true", "nullValue": "NULL"}), ("json", {})],
    ids=["csv", "json"],
)
def test_a_release_into_text_formats_reads_back_with_its_types(
    spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, str]
) -> None:
    output = PathTarget(str(tmp_path / "counts"), "r1", format=kind, options=options)
    release = run_release(spark, request_for(spark, tmp_path, output=output), key=KEY)
    typed = run_release(spark, request_for(spark, tmp_path / "parquet"), key=KEY)
    assert release.counts.dtypes == typed.counts.dtypes
    assert sorted(release.counts.collect(), key=str) == sorted(typed.counts.collect(), key=str)
    assert release.audit.header.key_set_digest == typed.audit.header.key_set_digest
    assert release.audit.header.counts_digest == typed.audit.header.counts_digest
    assert data_files(tmp_path / "counts")[0].suffix == f".{kind}"


def test_a_format_that_merges_two_keys_is_refused_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's CSV writes NULL and the empty string alike, unless it is told otherwise."""
    output = PathTarget(str(tmp_path / "counts"), "r1", format="csv")
    with pytest.raises(ConfigurationError, match=r"'csv' does not keep every.*nullValue"):
        check(spark, request_for(spark, tmp_path, output=output))
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_a_format_that_changes_a_key_is_refused_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    """Text formats drop the microseconds of timestamps."""
    records = spark.sql("SELECT TIMESTAMP'2024-01-01 00:00:00.123456Z' AS at")
    request = request_for(
        spark,
        tmp_path,
        output=PathTarget(str(tmp_path / "counts"), "r1", format=kind),
        records=records,
        columns=["at"],
        key_set=KeySet.from_dataframe(records),
    )
    with pytest.raises(ConfigurationError, match="does not keep every group key"):
        check(spark, request)
    assert entries(tmp_path) == set()


def test_a_session_that_writes_timestamps_in_milliseconds_is_refused(
    spark: SparkSession, tmp_path: Path, settings: Any
) -> None:
    records = spark.sql("SELECT TIMESTAMP'2024-01-01 00:00:00.123456Z' AS at")
    request = request_for(
        spark,
        tmp_path,
        records=records,
        columns=["at"],
        key_set=KeySet.from_dataframe(records),
    )
    with (
        settings({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}),
        pytest.raises(ReleaseError, match="does not keep"),
    ):
        run_release(spark, request, key=KEY)
    assert entries(tmp_path) == set()


def test_a_format_that_cannot_hold_the_columns_is_refused_with_the_mend(
    spark: SparkSession, tmp_path: Path
) -> None:
    output = PathTarget(str(tmp_path / "counts"), "r1", format="text")
    with pytest.raises(ConfigurationError, match="use 'parquet'"):
        run_release(spark, request_for(spark, tmp_path, output=output))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["counts_table", "default.`quoted_table`"])
def test_a_release_into_a_table_is_published_whole_and_not_overwritten(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    target = TableTarget(name, "r-1.a")
    request = request_for(spark, tmp_path, output=target)
    try:
        release = run_release(spark, request, key=KEY)
        assert spark.table(name).count() == KEY_SET_SIZE == release.counts.count()
        assert spark.table(target.beside("_audit_groups").table).count() == KEY_SET_SIZE
        assert spark.table(target.beside("_audit_header").table).count() == 1
        assert not [t.name for t in spark.catalog.listTables() if "staging" in t.name]
        with pytest.raises(ConfigurationError, match="exists"):
            run_release(spark, request_for(spark, tmp_path, output=TableTarget(name, "r2")))
        replacing = TableTarget(name, "r3", mode="overwrite")
        again = run_release(spark, request_for(spark, tmp_path, output=replacing, release_id="r3"))
        assert again.counts.count() == KEY_SET_SIZE
        assert spark.table(target.beside("_audit_header").table).first().release_id == "r3"
    finally:
        for each in request.targets:
            if isinstance(each, TableTarget):
                spark.sql(f"DROP TABLE IF EXISTS {each.table}")


def test_a_table_that_cannot_be_made_is_refused_before_a_job(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("`odd name`", "no_such_schema.counts"):
        with pytest.raises(ConfigurationError, match="cannot be written"):
            check(spark, request_for(spark, tmp_path, output=TableTarget(name, "r1")))


def test_a_table_that_came_into_being_meanwhile_is_not_touched(
    spark: SparkSession, tmp_path: Path
) -> None:
    request = request_for(spark, tmp_path, output=TableTarget("meanwhile", "r1"))

    def someone_else(step: str) -> None:
        if step == "publishing":
            spark.range(3).write.saveAsTable("meanwhile")

    try:
        with pytest.raises(ReleaseError, match="could not be moved to 'meanwhile'"):
            run_release(spark, request, key=KEY, on_step=someone_else)
        assert spark.table("meanwhile").columns == ["id"]
    finally:
        for each in request.targets:
            if isinstance(each, TableTarget):
                spark.sql(f"DROP TABLE IF EXISTS {each.table}")
                spark.sql(f"DROP TABLE IF EXISTS {each.staging_table}")


@pytest.mark.parametrize("name", ["counts with space", "ünï", "a:b", "a%20b", "a#b", "a+b&c=d"])
def test_paths_with_unusual_characters_are_used_as_they_are(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    output = PathTarget(str(tmp_path / name), "r1")
    request = request_for(spark, tmp_path, output=output, records=confidential_records(spark))
    release = run_release(spark, request, key=KEY)
    assert release.counts.count() == KEY_SET_SIZE
    assert name in entries(tmp_path)


@pytest.mark.parametrize("name", ["a[b]c", "a*b", "a?b", "{a,b}"])
def test_paths_that_spark_would_read_as_a_pattern_are_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    output = PathTarget(str(tmp_path / name), "r1")
    with pytest.raises(ConfigurationError, match="pattern"):
        check(spark, request_for(spark, tmp_path, output=output))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": 0}, "files"),
        ({"files": 2.5}, "files"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": float("nan")}, "confidence"),
        ({"delta": 0.0}, "delta"),
        ({"rounding": "up"}, "rounding"),
        ({"release_id": "../escape"}, "release_id"),
        ({"release_id": ""}, "release_id"),
    ],
    ids=lambda value: str(value),
)
def test_parameters_out_of_range_are_refused_before_a_job(
    spark: SparkSession, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(spark, request_for(spark, tmp_path, **change))
    assert entries(tmp_path) == set()


def test_a_stream_cannot_be_released(spark: SparkSession, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS month", "'AA' AS carrier")
    with pytest.raises(ConfigurationError, match="stream"):
        check(spark, request_for(spark, tmp_path, records=stream))


@pytest.mark.parametrize("inside", ["", "/secret"])
def test_the_confidential_audit_stays_out_of_the_input_too(
    spark: SparkSession, tmp_path: Path, inside: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    secret = PathTarget(f"{data}{inside}", "r1", mode="overwrite")
    request = request_for(spark, tmp_path, input_path=str(data))
    with pytest.raises(ConfigurationError, match="lie in one another"):
        check(spark, replace(request, confidential_audit=secret))


@pytest.mark.parametrize("name", ["records_table", "default.records_table", "`Records_Table`"])
def test_a_release_never_replaces_its_own_input_table(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    request = request_for(
        spark,
        tmp_path,
        output=TableTarget(name, "r1", mode="overwrite"),
        input_table="spark_catalog.default.records_table",
    )
    with pytest.raises(ConfigurationError, match="is the input itself"):
        check(spark, request)


def test_a_key_from_the_caller_must_be_marked_as_fixed(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fixed_for_tests"):
        run_release(spark, request_for(spark, tmp_path), key=ReleaseKey.generate())
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_leaves_what_another_run_has_staged_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    output = PathTarget(str(tmp_path / "counts"), "r1", format="csv")
    request = request_for(spark, tmp_path, output=output)
    staged = Path(output.staging_path)
    staged.mkdir()
    (staged / "part").write_text("of another run")
    with pytest.raises(ConfigurationError, match="left over"):
        check(spark, request)
    assert (staged / "part").read_text() == "of another run"
