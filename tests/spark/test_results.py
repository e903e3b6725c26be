"""What a release itself offers: totals, changes, metadata and a card, collected or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from releases import confidential_records, request_for

from spark_dphist.release import Release, run_release

COUNTS = {("AA", 1): 300, ("AA", 2): 150, ("BB", 1): 900, (None, 2): 40}


@pytest.fixture(scope="module")
def releases(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, Release]:
    made = []
    for name, factor in (("first", 1), ("second", 2)):
        records = confidential_records(spark, {key: factor * n for key, n in COUNTS.items()})
        place: Path = tmp_path_factory.mktemp(name)
        limit = 0 if name == "second" else 1000
        request = request_for(
            spark, place, release_id=name, records=records, max_collected_groups=limit
        )
        made.append(run_release(spark, request))
    return made[0], made[1]


def test_totals_hold_the_truth_whether_the_audit_was_collected_or_not(
    releases: tuple[Release, Release],
) -> None:
    # With fresh keys: each interval misses with probability below 1e-9.
    for release, factor in zip(releases, (1, 2), strict=True):
        rows = release.total(by="carrier", confidence=1 - 1e-9).to_pylist()
        truth = {"AA": 450, "BB": 900, None: 40, "": 0}
        assert {row["carrier"] for row in rows} == set(truth)
        for row in rows:
            assert row["groups"] == 3
            assert row["lower"] <= factor * truth[row["carrier"]] <= row["upper"]
        (everything,) = release.total().to_pylist()
        released = release.counts.agg({"noisy_count": "sum"}).collect()[0][0]
        assert everything["noisy_total"] == released


def test_changes_hold_the_true_ratio(releases: tuple[Release, Release]) -> None:
    first, second = releases
    rows = second.compared_with(first, confidence=1 - 1e-9).to_pylist()
    assert len(rows) == 12
    for row in rows:
        truth = COUNTS.get((row["carrier"], row["month"]), 0)
        assert row["difference_lower"] <= truth <= row["difference_upper"]
        if truth:
            assert row["ratio_lower"] <= 2
            assert row["ratio_upper"] is None or row["ratio_upper"] >= 2


def test_metadata_and_card_are_those_of_the_header(releases: tuple[Release, Release]) -> None:
    for release in releases:
        assert release.metadata()["release_id"] == release.release_id
        assert release.audit.header.counts_digest in release.card()
