"""A ledger that cannot be written says so, spends nothing twice and gives nothing for free."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sqlalchemy import URL, event
from test_ledger_concurrency import ROOT, WORKER

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import Caps, Ledger, LedgerBusyError, LedgerError, database
from spark_dphist.errors import ConfigurationError

ONE = PolicyCost(Rho.upper("1"), "linear_log", {"sigma": 0.1})


def filled(path: Path) -> str:
    url = f"sqlite:///{path}/ledger.db"
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=10**6))
        ledger.reserve("taxi", "earlier", ONE, {})
    return url


@pytest.fixture
def open_folder():
    """A folder every user may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="dphist-ledger-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_somebody_else(url: str) -> str:
    """Ask for one rho from a process that gives up root's rights first, where it has them."""
    done = subprocess.run(
        [sys.executable, str(WORKER), "write", url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_read_only_file_is_named_and_nothing_is_charged(open_folder):
    url = filled(open_folder)
    (open_folder / "ledger.db").chmod(0o444)
    said = as_somebody_else(url)
    assert said.startswith(f"LedgerError The ledger at {url} failed: attempt to write a readonly")
    assert "Give this user write access" in said
    (open_folder / "ledger.db").chmod(0o644)
    with Ledger(url) as ledger:
        assert ledger.balance("taxi").spent == Rho.upper("1")
        ledger.verify()


def test_a_read_only_folder_is_named_and_nothing_is_charged(open_folder):
    url = filled(open_folder)
    (open_folder / "ledger.db").chmod(0o666)
    open_folder.chmod(0o555)
    said = as_somebody_else(url)
    open_folder.chmod(0o755)
    assert said.startswith(f"LedgerError The ledger at {url} failed: ")
    assert "on SQLite to the file and its folder" in said
    with Ledger(url) as ledger:
        assert ledger.balance("taxi").spent == Rho.upper("1")


def test_a_read_only_ledger_can_still_be_looked_at(tmp_path):
    url = filled(tmp_path)
    with Ledger(url) as ledger:
        event.listen(
            ledger._database._engine, "connect", lambda raw, _: raw.execute("PRAGMA query_only = 1")
        )
        assert ledger.balance("taxi").spent == Rho.upper("1")
        with pytest.raises(LedgerError, match="readonly"):
            ledger.commit("earlier", {})


def reserve_until_full(ledger: Ledger) -> tuple[int, LedgerError]:
    for number in range(10_000):
        try:
            ledger.reserve("taxi", f"more-{number}", ONE, {"padding": "x" * 500})
        except LedgerError as error:
            return number, error
    pytest.fail("the disk never filled up")


def test_a_database_that_may_not_grow_charges_entirely_or_not_at_all(tmp_path):
    url = filled(tmp_path)
    with Ledger(url) as ledger:

        def limit(raw: sqlite3.Connection, _record: object) -> None:
            raw.execute("PRAGMA max_page_count = 30")

        engine = ledger._database._engine
        event.listen(engine, "connect", limit)
        reserved, error = reserve_until_full(ledger)
        assert "database or disk is full. Make room on its disk" in str(error)
        assert ledger.balance("taxi").spent == Rho.upper(1 + reserved)
        assert len(ledger.releases()) == 1 + reserved
        ledger.verify()
        event.remove(engine, "connect", limit)
        assert ledger.reserve("taxi", f"more-{reserved}", ONE, {}).token


def test_a_full_disk_charges_entirely_or_not_at_all(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, timeout=60).returncode:
        pytest.skip("only root may mount the small disk this needs; see the test above")
    try:
        url = filled(disk)
        with Ledger(url) as ledger:
            reserved, error = reserve_until_full(ledger)
            assert f"The ledger at {url} failed: database or disk is full" in str(error)
            assert ledger.balance("taxi").spent == Rho.upper(1 + reserved)
            assert len(ledger.history()) == 2 + reserved
            ledger.verify()
            subprocess.run([*mount[:4], "remount,size=1m", *mount[5:]], check=True, timeout=60)
            assert ledger.reserve("taxi", f"more-{reserved}", ONE, {}).token
            ledger.verify()
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def test_a_ledger_held_by_somebody_else_is_busy_and_nothing_is_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.2)
    url = filled(tmp_path)
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with Ledger(url) as ledger:
        with pytest.raises(LedgerBusyError, match=r"held by others .* Nothing was recorded"):
            ledger.reserve("taxi", "late", ONE, {})
        holder.execute("ROLLBACK")
        holder.close()
        assert ledger.balance("taxi").spent == Rho.upper("1")
        assert ledger.reserve("taxi", "late", ONE, {}).token


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "ledger.db"
    path.write_text("a letter\n" * 200)
    for attempt in (Ledger, Ledger.initialise):
        with pytest.raises(
            LedgerError, match=r"file is not a database. The file is something else"
        ):
            attempt(f"sqlite:///{path}")
    assert path.read_text() == "a letter\n" * 200


def test_another_database_is_no_ledger(tmp_path):
    with sqlite3.connect(tmp_path / "ledger.db") as other:
        other.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(LedgerError, match="There is no ledger at"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db")


def test_a_missing_file_is_not_created_by_looking(tmp_path):
    with pytest.raises(LedgerError, match="restore it, because its charges still count"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_vanishes_while_it_is_open_is_not_created_anew(tmp_path):
    url = filled(tmp_path)
    with Ledger(url) as ledger:
        (tmp_path / "ledger.db").unlink()
        with pytest.raises(LedgerError, match="There is no ledger at"):
            ledger.reserve("taxi", "late", ONE, {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path):
    for attempt in (Ledger, Ledger.initialise):
        with pytest.raises(LedgerError, match=r"There is no folder .*/nowhere"):
            attempt(f"sqlite:///{tmp_path}/nowhere/ledger.db")


def test_paths_with_unusual_characters_work(tmp_path):
    folder = tmp_path / "a b?c#d%20é&mode=ro"
    folder.mkdir()
    url = URL.create("sqlite", database=str(folder / "ledger.db"))
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=1))
    assert [path.name for path in folder.iterdir()] == ["ledger.db"]
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "forgets what was spent"),
        ("sqlite:///:memory:", "forgets what was spent"),
        ("sqlite:///file::memory:", "forgets what was spent"),
        ("sqlite:///ledger.db?mode=ro", "takes no options, got mode"),
        ("postgresql://u@h/db", "Did you mean 'postgresql\\+psycopg'"),
        ("postgresql+psycopg2://u:secret@h/db", "Did you mean 'postgresql\\+psycopg'"),
        ("mysql://u:secret@h/db", "cannot be kept in 'mysql'"),
        ("ledger.db", "Expected sqlite:///path"),
        ("postgresql+psycopg://u:secret@h:port/db", "cannot be read"),
        ("", "cannot be read"),
    ],
)
def test_an_address_a_ledger_cannot_be_kept_at_is_refused(url, says):
    with pytest.raises(ConfigurationError, match=says) as refused:
        Ledger.initialise(url)
    assert "secret" not in str(refused.value)


def test_without_psycopg_a_ledger_on_postgresql_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"spark-dphist\[postgresql\]"):
        Ledger("postgresql+psycopg://u@localhost/db")


def test_a_charge_is_synced_to_disk_with_its_folder(tmp_path):
    with Ledger(filled(tmp_path)) as ledger:
        engine = ledger._database._engine
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 3
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "delete"
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_a_failure_in_the_middle_of_a_reservation_leaves_nothing_behind(tmp_path):
    url = filled(tmp_path)
    with Ledger(url) as ledger:
        engine = ledger._database._engine
        seen: list[str] = []

        def fail(_connection, _cursor, statement, *_):
            seen.append(statement)
            if statement.startswith("INSERT INTO ledger_event"):
                raise OSError(errno.EIO, "Input/output error")

        event.listen(engine, "before_cursor_execute", fail)
        with pytest.raises(OSError, match="Input/output"):
            ledger.reserve("taxi", "late", ONE, {})
        event.remove(engine, "before_cursor_execute", fail)
        assert any(statement.startswith("UPDATE ledger_data_set") for statement in seen)
        assert ledger.balance("taxi").spent == Rho.upper("1")
        assert [release.release_id for release in ledger.releases()] == ["earlier"]
        ledger.verify()
