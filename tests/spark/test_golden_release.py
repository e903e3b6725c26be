"""The same key on the same data gives the same numbers, whatever Spark runs them.

The numbers in tests/data/golden_release.json hold on pyspark 3.5 and 4.x, classic and Connect: each
of them runs these tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_release import MECHANISMS, PINNED, golden_numbers
from pyspark.sql import SparkSession

GOLDEN = json.loads(PINNED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Kathmandu"])
def test_time_zone_and_ansi_mode_change_no_number(
    spark: SparkSession, tmp_path: Path, settings: Any, zone: str, ansi: str
) -> None:
    with settings({"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": ansi}):
        assert golden_numbers(spark, tmp_path, "linear_log") == GOLDEN["linear_log"]


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "linear_log"])
def test_every_mechanism_gives_its_golden_numbers(
    spark: SparkSession, tmp_path: Path, mechanism: str
) -> None:
    assert golden_numbers(spark, tmp_path, mechanism) == GOLDEN[mechanism]


def test_the_golden_release_has_groups_that_a_time_zone_could_confuse() -> None:
    keys = [key for key, *_ in GOLDEN["linear_log"]["rows"]]
    # Half past one in Los Angeles on 3 November 2024, before and after the clocks were set back.
    for micros in ("1730622600000000", "1730626200000000"):
        assert sum(f"t16:{micros}" in key for key in keys) == 6
    assert len(set(keys)) == 24
    counts = [noisy for _, noisy, *_ in GOLDEN["linear_log"]["rows"]]
    assert max(counts) > 5000
    assert min(counts) < 50
