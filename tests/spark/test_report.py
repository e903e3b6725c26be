"""From a real release to its report and its displays, with a confidential audit beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from opened_files import opened_files
from page_reader import read_page
from pyspark.sql import SparkSession
from releases import KEY, TRUE_COUNTS, request_for, with_confidential_audit

from spark_dphist.audit import PublicAudit
from spark_dphist.cli import main
from spark_dphist.release import Release, run_release
from spark_dphist.report import read_release, render_report
from spark_dphist.spark.storage import TableTarget


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reported")


@pytest.fixture(scope="module")
def release(spark: SparkSession, place: Path) -> Release:
    request = with_confidential_audit(
        request_for(spark, place / "public"), place / "confidential" / "audit"
    )
    return run_release(spark, request, key=KEY)


def test_the_report_of_a_stored_release_opens_public_tables_alone(
    release: Release, place: Path
) -> None:
    with opened_files(place) as opened:
        text = render_report(read_release(str(place / "public" / "counts")))
    read = {each.parent.name for each in opened}
    assert read == {"counts_audit_groups", "counts_audit_header"}
    shown = read_page(text).text
    for count in release.to_pandas()["noisy_count"]:
        assert f"{count:,}" in shown
    released = set(release.to_pandas()["noisy_count"]) | set(
        release.to_pandas()[["lower", "upper"]].to_numpy().ravel()
    )
    for true in set(TRUE_COUNTS.values()) - released:
        assert not re.search(rf"(?<!\d){true:,}(?!\d)|(?<!\d){true}(?!\d)", shown)
    assert "This release is not private" in shown


@pytest.mark.usefixtures("classic_only")
def test_a_release_shows_itself_without_starting_a_job(
    spark: SparkSession, release: Release
) -> None:
    def jobs() -> set[int]:
        # The tracker learns of jobs from a listener that runs behind, and forgets the oldest.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(120_000)
        return set(spark.sparkContext.statusTracker().getJobIdsForGroup(None))

    before = jobs()
    shown = read_page(release._repr_html_()).text
    assert jobs() <= before
    assert "Release r1" in shown
    assert "12 " in shown
    held_back = Release(
        "r1", release.counts, release.audit_table, PublicAudit(release.audit.header, None)
    )
    assert "Too many groups to be collected" in held_back._repr_html_()
    assert jobs() <= before
    # The tracker does see jobs.
    release.counts.collect()
    assert jobs() - before


def test_a_release_and_its_audit_become_pandas_and_spark_with_their_types(
    spark: SparkSession, release: Release
) -> None:
    frame = release.to_pandas()
    assert list(frame.columns) == ["carrier", "month", "noisy_count", "lower", "upper"]
    assert (str(frame["month"].dtype), frame["month"].isna().sum()) == ("Int32", 4)
    assert release.to_spark() is release.counts
    held_back = Release(
        "r1", release.counts, release.audit_table, PublicAudit(release.audit.header, None)
    )
    order = ["carrier", "month"]
    pd.testing.assert_frame_equal(
        held_back.to_pandas().sort_values(order, ignore_index=True),
        frame.sort_values(order, ignore_index=True),
    )
    audited = release.audit.to_spark(spark)
    # Whatever Parquet says of NULLs.
    assert audited.dtypes == release.audit_table.dtypes
    assert sorted(audited.collect(), key=str) == sorted(release.audit_table.collect(), key=str)


def test_a_release_is_drawn_with_its_counts(release: Release) -> None:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    assert release.plot(axes) is axes
    drawn = sorted(bar.get_width() for bar in axes.patches)
    assert drawn == sorted(map(int, release.to_pandas()["noisy_count"]))


def test_a_release_in_a_catalog_is_reported_from_its_configuration(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_for(
        spark, tmp_path, output=TableTarget("reported_counts", "r2"), release_id="r2"
    )
    run_release(spark, request, key=KEY)
    file = tmp_path / "catalog.toml"
    file.write_text(
        "input.table = 'no.such.table'\n"
        "groups = {columns = ['carrier', 'month'], keys = {table = 'no.such.keys'}}\n"
        "mechanism = {relative_error = 0.3, floor = 20}\n"
        "output.table = 'reported_counts'\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        main(["report", str(file)])
    assert not leaving.value.code
    assert "12 groups" in read_page((tmp_path / "r2.html").read_text()).text
