"""Without pyspark, policies are planned and ledgers kept; what needs Spark says how to get it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_dphist.optional import needing

ROOT = Path(__file__).parents[2]
PROGRAM = """
import contextlib, io, json, sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoSpark())
from spark_dphist.cli import main

for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
            code = 0
        except SystemExit as left:
            code = left.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """What each command answers where pyspark is not installed: exit code, output, errors."""
    ledger = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    configuration = str(ROOT / "conf" / "visits.toml")
    commands = {
        "version": ["--version"],
        "plan": ["plan", configuration, "--json"],
        "ledger init": ["ledger", "init", ledger],
        "ledger show": ["ledger", "show", ledger],
        "run": ["run", configuration],
        "report": ["report", configuration],
        "synthesize": ["synthesize", "out/visits", "out/records"],
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(commands.values()))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(commands, map(tuple, lines), strict=True))


@pytest.mark.parametrize("command", ["version", "plan", "ledger init", "ledger show"])
def test_what_touches_no_data_needs_no_spark(
    answers: dict[str, tuple[int, str, str]], command: str
) -> None:
    code, _, errors = answers[command]
    assert code == 0, errors


@pytest.mark.parametrize("command", ["run", "report", "synthesize"])
def test_what_needs_spark_says_where_it_comes_from(
    answers: dict[str, tuple[int, str, str]], command: str
) -> None:
    code, _, errors = answers[command]
    assert code == 2
    assert f"Error: spark-dphist {command}" in errors
    assert "needs pyspark, which is not installed: pip install 'spark-dphist[spark]'" in errors
    assert "run it where Spark's own is (spark-submit, Databricks)" in errors
    assert "Traceback" not in errors


def test_a_part_of_this_package_that_is_missing_is_not_taken_for_spark() -> None:
    with pytest.raises(ModuleNotFoundError, match="gone"), needing("spark-dphist run", "spark"):
        importlib.import_module("spark_dphist.gone")
