"""Synthetic records have the released counts, and say that they are synthetic."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from releases import COLUMNS, KEY, data_files, entries, request_for

from spark_dphist.cli import main
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.release import run_release
from spark_dphist.spark.synthetic import SYNTHETIC, released_total, synthetic_records
from spark_dphist.synthesize import (
    PublishedRelease,
    read_release,
    synthesize,
    synthetic_target,
)


@pytest.fixture(scope="module")
def directory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one release in it."""
    place = tmp_path_factory.mktemp("synthesize")
    run_release(spark, request_for(spark, place), key=KEY)
    return place


@pytest.fixture(scope="module")
def release(spark: SparkSession, directory: Path) -> PublishedRelease:
    return read_release(spark, str(directory / "counts"))


def counted(records: DataFrame) -> Counter[tuple[object, ...]]:
    rows = records.groupBy(*records.columns).count().collect()
    return Counter({tuple(row[:-1]): row["count"] for row in rows})


def released(release: PublishedRelease) -> dict[tuple[object, ...], int]:
    rows = release.groups.select(*COLUMNS, "noisy_count").collect()
    return {tuple(row[:-1]): row["noisy_count"] for row in rows}


def small(spark: SparkSession, counts: list[tuple[str, int, float]], kind: str) -> DataFrame:
    return spark.createDataFrame(counts, f"origin string, month int, noisy_count {kind}")


def test_every_group_has_as_many_records_as_were_released(
    spark: SparkSession, release: PublishedRelease, tmp_path: Path
) -> None:
    made = synthesize(spark, release, synthetic_target(str(tmp_path / "records")), files=3)

    expected = {key: count for key, count in released(release).items() if count > 0}
    assert counted(made.records) == expected
    assert made.mark.rows == made.mark.released_total == sum(expected.values())
    assert len(data_files(tmp_path / "records")) == 3


def test_a_number_of_rows_is_met_exactly_and_every_total_to_within_one_row(
    spark: SparkSession,
) -> None:
    counts = [(f"o{i // 12:02}", i % 12, (i * i) % 97 - 3) for i in range(240)]
    frame, rows = small(spark, counts, "bigint"), 1_009
    total = released_total(frame)
    assert total.rows == sum(max(count, 0) for _, _, count in counts)

    made = counted(synthetic_records(frame, ["origin", "month"], total, rows=rows, seed=5))

    share = rows / total.rows
    assert made.total() == rows
    for origin, month, count in counts:
        assert abs(made[origin, month] - max(count, 0) * share) < 1
    for origin in {origin for origin, _, _ in counts}:
        whole = sum(max(count, 0) for each, _, count in counts if each == origin)
        assert abs(sum(n for key, n in made.items() if key[0] == origin) - whole * share) < 1


def test_the_same_seed_gives_the_same_records_and_another_one_others(spark: SparkSession) -> None:
    frame = small(spark, [("a", i, 1) for i in range(100)], "bigint")
    total = released_total(frame)

    def made(seed: int) -> Counter[tuple[object, ...]]:
        shuffled = frame.repartition(1 + seed % 3)
        return counted(synthetic_records(shuffled, ["origin", "month"], total, rows=10, seed=seed))

    first, again, other = made(3), made(3), made(4)
    assert first == again != other
    # Each group's share is a tenth of a row; systematic sampling takes every tenth group.
    months = sorted(key[1] for key in first)
    assert {later - earlier for earlier, later in pairwise(months)} == {10}


def test_doubles_are_rounded_so_that_the_total_is_kept(spark: SparkSession) -> None:
    counts = [("a", 1, 0.4), ("a", 2, 0.4), ("b", 1, 0.4), ("b", 2, 0.9), ("c", 1, -7.5)]
    frame = small(spark, counts, "double")
    total = released_total(frame)
    assert (total.groups, total.rows) == (5, 2)

    made = counted(synthetic_records(frame, ["origin", "month"], total))

    assert made.total() == 2
    assert max(made.values()) == 1
    assert ("c", 1) not in made


def test_shares_of_the_largest_counts_are_exact(spark: SparkSession) -> None:
    frame = small(spark, [(origin, 1, 2**62) for origin in "abc"], "bigint")
    total = released_total(frame)
    assert total.rows == 3 * 2**62
    made = counted(synthetic_records(frame, ["origin", "month"], total, rows=99_999))
    assert set(made.values()) == {33_333}
    doubles = small(spark, [(origin, 1, 2.0**62) for origin in "abc"], "double")
    with pytest.raises(ConfigurationError, match="more than can be shared out exactly"):
        synthetic_records(doubles, ["origin", "month"], released_total(doubles), rows=10**12)


def test_a_huge_group_is_spread_over_all_tasks(spark: SparkSession) -> None:
    frame = small(spark, [("big", 1, 10**6), *(("small", i, 3) for i in range(50))], "bigint")
    records = synthetic_records(frame, ["origin", "month"], released_total(frame), tasks=4)
    sizes = records.groupBy(F.spark_partition_id()).count().collect()
    assert len(sizes) == 4
    assert max(row["count"] for row in sizes) < 1.25 * 1_000_150 / 4


def test_columns_and_a_table_beside_them_say_that_the_records_are_synthetic(
    spark: SparkSession, release: PublishedRelease, tmp_path: Path
) -> None:
    synthesize(spark, release, synthetic_target(str(tmp_path / "records")), rows=50, seed=9)

    for name in COLUMNS:
        assert spark.read.parquet(str(tmp_path / "records")).schema[name].metadata == SYNTHETIC
    (mark,) = pq.read_table(tmp_path / "records_synthetic").to_pylist()
    assert mark["synthetic"] is True
    assert (mark["release_id"], mark["rows"], mark["seed"]) == ("r1", 50, 9)
    assert mark["fixed_release_key"] is True
    assert "no row is about a person" in mark["notice"]
    assert spark.read.parquet(str(tmp_path / "records_synthetic")).count() == 1
    assert entries(tmp_path) == {"records", "records_synthetic"}


def test_nothing_is_overwritten_unless_that_is_asked_for(
    spark: SparkSession, release: PublishedRelease, tmp_path: Path
) -> None:
    place = str(tmp_path / "records")
    synthesize(spark, release, synthetic_target(place), rows=5)
    with pytest.raises(ConfigurationError, match="exists"):
        synthesize(spark, release, synthetic_target(place), rows=6)
    assert spark.read.parquet(place).count() == 5
    made = synthesize(spark, release, synthetic_target(place, overwrite=True), rows=6)
    assert made.records.count() == 6


@pytest.mark.parametrize("inside", ["counts", "counts/records", "counts_audit_groups", "."])
def test_records_never_go_where_the_release_is(
    spark: SparkSession, release: PublishedRelease, directory: Path, inside: str
) -> None:
    before = entries(directory)
    with pytest.raises(ConfigurationError, match="the release itself"):
        synthesize(spark, release, synthetic_target(str(directory / inside), overwrite=True))
    assert entries(directory) == before


def test_confidential_tables_and_other_tables_are_refused(spark: SparkSession) -> None:
    frame = small(spark, [("a", 1, 4)], "bigint")
    with pytest.raises(ConfigurationError, match="confidential audit"):
        released_total(frame.withColumn("confidential_true_count", F.lit(4)))
    with pytest.raises(ConfigurationError, match="no column 'noisy_count'"):
        released_total(frame.drop("noisy_count"))


def test_rows_of_an_empty_release_are_refused(spark: SparkSession) -> None:
    frame = small(spark, [("a", 1, 0), ("a", 2, -3)], "bigint")
    total = released_total(frame)
    assert synthetic_records(frame, ["origin"], total).count() == 0
    with pytest.raises(ConfigurationError, match="nothing to draw from"):
        synthetic_records(frame, ["origin"], total, rows=1)
    with pytest.raises(ConfigurationError, match="rows must be from 0"):
        synthetic_records(frame, ["origin"], total, rows=-1)


def test_a_release_that_lacks_a_group_is_refused_and_leaves_nothing(
    spark: SparkSession, release: PublishedRelease, tmp_path: Path
) -> None:
    less = PublishedRelease(release.header, release.groups.limit(3), release.places)
    with pytest.raises(ReleaseError, match=r"has 12 groups, but 3 stand"):
        synthesize(spark, less, synthetic_target(str(tmp_path / "records")))
    assert entries(tmp_path) == set()


def test_the_command_makes_records_for_other_tools(
    spark: SparkSession, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "records"
    audit, options = str(directory / "counts_audit"), ["--rows", "40", "--format", "csv"]
    with pytest.raises(SystemExit) as leaving:
        main(["synthesize", audit, str(place), *options])
    assert not leaving.value.code
    assert "40 synthetic records of release r1" in capsys.readouterr().out
    assert spark.read.csv(str(place), header=True).columns == COLUMNS
    assert spark.read.csv(str(place), header=True).count() == 40


def test_a_place_without_a_release_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["synthesize", str(tmp_path / "nothing"), str(tmp_path / "records")])
    assert leaving.value.code == 2
    assert "there is no release at" in capsys.readouterr().err
