"""What a newcomer meets, from an empty machine to the first numbers: what, where, and the mend."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_dphist
from spark_dphist.audit import versions_json
from spark_dphist.cli import main
from spark_dphist.errors import ConfigurationError
from spark_dphist.spark import check_pyspark
from spark_dphist.spark.executors import _other_python
from spark_dphist.spark.failures import first_sentence_of
from spark_dphist.spark.storage import PathTarget

FLIGHTS = (Path(__file__).parents[2] / "conf" / "flights.toml").read_text(encoding="utf-8")
Line = Callable[..., tuple[int, str]]


@pytest.fixture
def line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Line:
    """Run a command in a folder of its own; its exit code and what it says on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return int(left.value.code or 0), said

    return run


@pytest.mark.parametrize("version", ["2.4.8", "3.3.4", "3.4.1.dev0"])
def test_a_pyspark_that_is_too_old_is_named_with_the_mend(version: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_pyspark(version)
    said = str(caught.value)
    assert f"pyspark {version} is too old" in said
    assert "needs 3.5 or newer" in said
    assert "pip install 'pyspark>=3.5'" in said


@pytest.mark.parametrize("version", ["3.5.0", "3.5.9+amzn-1", "4.0.0.dev2", "4.3.0", "10.0"])
def test_a_pyspark_that_will_do_passes(version: str) -> None:
    check_pyspark(version)


def test_a_python_that_is_too_old_is_named_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    monkeypatch.setattr(sys, "version", "3.10.4 (main, Jan 1 2024) [GCC]")
    with pytest.raises(ImportError) as caught:
        runpy.run_path(str(Path(spark_dphist.__file__)))
    said = str(caught.value)
    assert "Python 3.11 or newer, got 3.10.4" in said
    assert sys.executable in said
    assert "PYSPARK_PYTHON" in said


def test_packages_without_metadata_do_not_stop_a_release_that_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("spark_dphist.audit.version", none_installed)
    monkeypatch.delitem(sys.modules, "scipy", raising=False)
    stated = json.loads(versions_json("4.3.0"))
    import numpy as np

    assert stated["numpy"] == np.__version__
    assert stated["scipy"] == "unknown"


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        (".", ["'.' is a directory", "expected a TOML file", "'flights.toml'"]),
        ("fligts.toml", ["'fligts.toml' does not exist", "Did you mean 'flights.toml'?"]),
        ("flights.toml/x", ["'flights.toml/x' cannot be read: Not a directory"]),
    ],
)
def test_a_configuration_that_is_no_file_is_named(line: Line, path: str, parts: list[str]) -> None:
    Path("flights.toml").write_text(FLIGHTS, encoding="utf-8")
    code, said = line("plan", path)
    assert code == 2
    assert all(part in said for part in parts)


def test_a_configuration_that_may_not_be_read_is_named(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", forbidden)
    code, said = line("plan", "flights.toml")
    assert code == 2
    assert "'flights.toml' cannot be read: Permission denied" in said


@pytest.mark.parametrize(
    ("url", "code", "parts"),
    [
        ("sqlite:///none.db", 1, ["no ledger at sqlite:///", "none.db", "ledger init"]),
        ("sqlite:///nowhere/l.db", 1, ["There is no folder", "nowhere", "create the folder"]),
        ("sqlite:///folder", 1, ["folder failed: unable to open", "write access"]),
        ("sqlite:///flights.toml", 1, ["file is not a database", "check the path"]),
        ("ledger.db", 2, ["address cannot be read", "sqlite:///path/to/ledger.db"]),
        ("postgres://u@h/db", 2, ["'postgres'", "Did you mean 'postgresql+psycopg'?"]),
        ("mysql://u@h/db", 2, ["'mysql'", "Known are: 'sqlite'"]),
    ],
)
def test_a_ledger_that_cannot_be_opened_is_named_with_the_mend(
    line: Line, url: str, code: int, parts: list[str]
) -> None:
    Path("folder").mkdir()
    charged = f'{FLIGHTS}\n[ledger]\nurl = "{url}"\ndataset = "flights"\n'
    Path("flights.toml").write_text(charged, encoding="utf-8")
    left, said = line("plan", "flights.toml")
    assert left == code
    assert all(part in said for part in parts), said


COMMANDS_OF_AN_AUDIT = ["total", "history", "card", "metadata", "report", "consistent"]


@pytest.mark.parametrize("command", COMMANDS_OF_AN_AUDIT)
def test_a_release_that_was_not_made_is_named_with_the_mend(line: Line, command: str) -> None:
    code, said = line(command, "out/flights_audit")
    assert code == 2
    for part in [
        "no audit at 'out/flights_audit'",
        "flights_audit_header'",
        "Was the release made",
    ]:
        assert part in said


def test_the_path_of_counts_where_an_audit_is_asked_for_gets_its_name(line: Line) -> None:
    for name in ("flights", "flights_audit_groups", "flights_audit_header"):
        Path("out", name).mkdir(parents=True)
    code, said = line("total", "out/flights/")
    assert code == 2
    assert "Did you mean 'out/flights_audit'?" in said


def test_an_audit_elsewhere_is_not_said_to_be_missing_alone(line: Line) -> None:
    code, said = line("total", "s3://bucket/flights_audit")
    assert code == 2
    assert "Only local paths are read here" in said


def test_a_header_that_is_neither_true_nor_false_is_refused_before_spark_finds_out(
    line: Line,
) -> None:
    csv = 'path = "flights.csv"\nformat = "csv"\nschema = "origin STRING"\n'
    wrong = FLIGHTS.replace('path = "data/flights.parquet"', csv + 'options = { header = "yes" }')
    Path("flights.toml").write_text(wrong, encoding="utf-8")
    code, said = line("plan", "flights.toml")
    assert code == 2
    assert "input: option 'header' must be true or false, got 'yes'" in said


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (
            "An error occurred while calling o425.load.\n: org.apache.spark.SparkClassNotFound"
            "Exception: [DATA_SOURCE_NOT_FOUND] Failed to find the data source: parqet. Make sure",
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: parqet",
        ),
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at 'x'. SQLSTATE: 42601 (line 1)\n== SQL ==\n", ""),
        ("[PATH_NOT_FOUND] Path does not exist: file:/a/b.parquet. SQLSTATE: 42K03", ""),
        ("\n\n", "RuntimeError"),
    ],
)
def test_what_spark_says_is_cut_to_its_first_sentence(says: str, sentence: str) -> None:
    expected = sentence or says.strip().split(". SQLSTATE")[0]
    assert first_sentence_of(RuntimeError(says)) == expected


@pytest.mark.parametrize("named", ["/elsewhere/bin/python3", "python-that-is-not-there"])
def test_workers_of_another_python_are_asked_on_this_machine_too(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", named)
    assert _other_python() == named


@pytest.mark.parametrize("name", [Path(sys.executable).name, "python"])
def test_workers_of_this_environment_need_not_be_asked(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(Path(sys.executable).with_name(name)))
    assert _other_python() is None


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_place_where_nothing_can_be_made_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(*_: object, **where: object) -> None:
        raise OSError(code, os.strerror(code), str(where["dir"]))

    monkeypatch.setattr("spark_dphist.spark.storage.tempfile.TemporaryDirectory", refused)
    session: Any = None
    with pytest.raises(ConfigurationError) as caught:
        PathTarget(f"{tmp_path}/not/yet/counts", "r1").refuse_existing(session)
    said = str(caught.value)
    assert f"'{tmp_path}/not/yet/counts' ({tmp_path}: {os.strerror(code)})" in said
    assert "Choose another path" in said


def test_a_place_under_a_file_is_refused_and_a_free_one_is_left_as_it_was(tmp_path: Path) -> None:
    session: Any = None
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file: Not a directory"):
        PathTarget(f"{tmp_path}/file/counts", "r1").refuse_existing(session)
    PathTarget(f"{tmp_path}/not/yet/counts", "r1").refuse_existing(session)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
