"""A private PostgreSQL cluster on loopback for these tests, and a fresh database for each."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from reserved_port import reserved_port

# The tests here are those of tests/unit on another database.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

PASSWORD = "correct-horse-battery"  # noqa: S105 - of a cluster that lives as long as the tests
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Cluster:
    port: int
    password: str = PASSWORD

    def address(self, database: str, *, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://postgres:{password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres"):
        import psycopg

        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="postgres",
            password=PASSWORD,
            dbname=database,
            autocommit=True,
        )


def _programs() -> Path | None:
    places = [*Path("/usr/lib/postgresql").glob("*/bin")]
    if found := shutil.which("initdb"):
        places.append(Path(found).resolve().parent)
    whole = [place for place in places if (place / "initdb").exists()]
    return max(whole, key=lambda place: place.parent.name, default=None)


@pytest.fixture(scope="session")
def port():
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture(scope="session")
def cluster(port):
    programs = _programs()
    if programs is None:
        reason = (
            "NO POSTGRESQL SERVER HERE: the ledger is not tested on PostgreSQL "
            "(apt-get install postgresql)"
        )
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # The server refuses to run as root.
    run_as: dict[str, object] = {}
    folder = Path(tempfile.mkdtemp(prefix="dphist-pg-"))
    if os.geteuid() == 0:
        account = pwd.getpwnam("postgres")
        run_as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        os.chown(folder, account.pw_uid, account.pw_gid)
    data = folder / "data"
    password_file = folder / "password"
    password_file.write_text(PASSWORD)
    if run_as:
        os.chown(password_file, account.pw_uid, account.pw_gid)

    def call(*command: str) -> None:
        with (folder / "output").open("a") as output:
            done = subprocess.run(
                command, cwd=folder, stdout=output, stderr=output, timeout=120, **run_as
            )
        assert done.returncode == 0, (folder / "output").read_text()

    (folder / "output").touch()
    initdb, pg_ctl = str(programs / "initdb"), str(programs / "pg_ctl")
    secret = ("--auth=scram-sha-256", f"--pwfile={password_file}")
    call(initdb, "-D", str(data), "-U", "postgres", "-E", "UTF8", "--locale=C", *secret)
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    call(pg_ctl, "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
    try:
        yield Cluster(port)
    finally:
        with contextlib.suppress(AssertionError):
            call(pg_ctl, "-D", str(data), "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database_name(cluster):
    """Name of a new, empty database."""
    name = f"ledger_{next(_NUMBERS)}"
    with cluster.connect() as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return name


@pytest.fixture
def url(cluster, database_name):
    """Replaces the SQLite file of tests/unit."""
    return cluster.address(database_name)
