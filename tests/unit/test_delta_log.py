"""The log of releases: every release once, however many processes append at once."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from example_audit import example_header

from spark_dphist.audit import AUDIT_COLUMNS, PublicAudit
from spark_dphist.delta_log import append_audit, check_delta_log
from spark_dphist.errors import ConfigurationError, ReleaseError

deltalake = pytest.importorskip("deltalake")

WRITERS = 6
EACH = 5


def audit(release_id: str, **columns: list[Any]) -> PublicAudit:
    keys = columns or {"city": ["Rome", None], "month": [1, 2]}
    header = example_header(release_id=release_id, group_columns=list(keys))
    size = len(next(iter(keys.values())))
    numbers = dict.fromkeys(("noisy_count", "lower", "upper"), [7] * size)
    budgets = dict.fromkeys(AUDIT_COLUMNS, [0.5] * size)
    return PublicAudit(header, pa.table({**keys, **numbers, **budgets}))


def logged(log: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        deltalake.DeltaTable(f"{log}/{name}").to_pyarrow_table().to_pylist()
    )
    return rows


def append_some(log: str, writer: int, start: Any) -> None:
    """Append releases of its own, and between them one that all writers append."""
    start.wait()
    for number in range(EACH):
        assert append_audit(log, audit(f"writer-{writer}-{number}"))
        append_audit(log, audit(f"shared-{number}"))


def test_of_many_writers_at_once_none_is_lost_and_none_is_there_twice(tmp_path: Path) -> None:
    spawning = multiprocessing.get_context("spawn")
    start = spawning.Barrier(WRITERS)
    writers = [
        spawning.Process(target=append_some, args=(str(tmp_path / "log"), writer, start))
        for writer in range(WRITERS)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.exitcode for each in writers] == [0] * WRITERS
    expected = {f"writer-{writer}-{number}" for writer in range(WRITERS) for number in range(EACH)}
    expected |= {f"shared-{number}" for number in range(EACH)}
    releases = Counter(row["release_id"] for row in logged(tmp_path / "log", "releases"))
    assert releases == dict.fromkeys(expected, 1)
    groups = Counter(row["release_id"] for row in logged(tmp_path / "log", "groups"))
    assert groups == dict.fromkeys(expected, 2)


def test_a_retry_appends_nothing_and_says_so(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    assert append_audit(log, audit("r1"))
    assert not append_audit(log, audit("r1"))
    assert append_audit(log, audit("r2"))
    assert sorted(row["release_id"] for row in logged(tmp_path / "log", "releases")) == ["r1", "r2"]
    check_delta_log(log)


def test_a_retry_completes_a_log_in_which_only_the_groups_were_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append_audit(str(log), audit("r1"))
    append_audit(str(log), audit("r2"))
    table = deltalake.DeltaTable(f"{log}/releases")
    last = log / "releases" / "_delta_log" / f"{table.version():020}.json"
    last.unlink()
    assert [row["release_id"] for row in logged(log, "releases")] == ["r1"]
    assert append_audit(str(log), audit("r2"))
    assert sorted(row["release_id"] for row in logged(log, "releases")) == ["r1", "r2"]
    assert Counter(row["release_id"] for row in logged(log, "groups")) == {"r1": 2, "r2": 2}


def test_the_log_keeps_the_header_field_by_field(tmp_path: Path) -> None:
    header = audit("r1").header
    append_audit(str(tmp_path / "log"), PublicAudit(header, None))
    (row,) = logged(tmp_path / "log", "releases")
    assert row == header.__dict__
    assert not (tmp_path / "log" / "groups").exists()


def test_groups_of_every_type_are_logged_as_json_without_loss(tmp_path: Path) -> None:
    zoned = datetime.datetime(
        2024, 5, 6, 1, 2, 3, 4, datetime.timezone(datetime.timedelta(hours=9))
    )
    keys = {
        "day": [datetime.date(2024, 5, 6)],
        "at": pa.array([zoned], pa.timestamp("us", "Asia/Tokyo")),
        "local": [datetime.datetime(2024, 5, 6, 1, 2)],
        "price": [Decimal("1.50")],
        "code": [b"\x00\xff"],
        "paid": [True],
        "text": ['"'],
        "none": pa.array([None], pa.string()),
        "large": [9007199254740993],
    }
    append_audit(str(tmp_path / "log"), audit("r1", **keys))
    (row,) = logged(tmp_path / "log", "groups")
    assert json.loads(row["group"]) == {
        "day": "2024-05-06",
        "at": "2024-05-05T16:02:03.000004+00:00",
        "local": "2024-05-06T01:02:00",
        "price": "1.50",
        "code": "00ff",
        "paid": True,
        "text": '"',
        "none": None,
        "large": 9007199254740993,
    }
    assert (row["noisy_count"], row["rho_at_noisy_count"]) == (7.0, 0.5)


def test_a_log_that_an_older_version_wrote_grows_by_the_new_columns(tmp_path: Path) -> None:
    old = audit("r1").header.to_arrow().drop_columns(["input_snapshot"])
    deltalake.write_deltalake(str(tmp_path / "log" / "releases"), old)
    append_audit(str(tmp_path / "log"), audit("r2"))
    rows = {row["release_id"]: row for row in logged(tmp_path / "log", "releases")}
    assert set(rows) == {"r1", "r2"}
    assert rows["r2"] == audit("r2").header.__dict__


def test_a_log_that_cannot_be_written_is_an_error_that_names_the_mend(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(ReleaseError, match="is published, but was not appended"):
        append_audit(str(tmp_path / "log"), audit("r1"))


def test_a_log_with_a_damaged_table_is_refused_beforehand(tmp_path: Path) -> None:
    append_audit(str(tmp_path / "log"), audit("r1"))
    (tmp_path / "log/releases/_delta_log/00000000000000000000.json").write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        check_delta_log(str(tmp_path / "log"))


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'spark-dphist\[delta\]'"):
        check_delta_log(str(tmp_path / "log"))
