"""The examples for schedulers: the id is the data interval, whenever and however often they run."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from spark_dphist import __version__
from spark_dphist.request import _RELEASE_ID

REPOSITORY = Path(__file__).parents[2]
DAG = REPOSITORY / "conf" / "airflow" / "monthly_release.py"
SCRIPT = REPOSITORY / "conf" / "monthly-release.sh"


@pytest.fixture
def run(tmp_path: Path):
    """Run a command line with a spark-submit that only writes down what it is asked for."""
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "visits.template.toml").write_text('path = "lake/visits/month=@MONTH@"\n')
    stand_in = tmp_path / "bin" / "spark-submit"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    stand_in.chmod(0o755)

    def run(command: str) -> list[str]:
        command = command.replace("/srv/releases", str(tmp_path))
        path = f"{stand_in.parent}:{os.environ['PATH']}"
        subprocess.run(["sh", "-c", command], check=True, env={**os.environ, "PATH": path})
        return (tmp_path / "asked").read_text().splitlines()

    return run


def release_id(asked: str) -> str:
    found = asked.rpartition("--release-id ")[2]
    assert _RELEASE_ID.fullmatch(found)
    return found


def test_the_script_fills_in_the_month_and_takes_it_for_the_id(run, tmp_path: Path) -> None:
    (asked,) = run("/srv/releases/monthly-release.sh 2026-01")
    assert release_id(asked) == "visits-2026-01"
    assert f"--py-files spark_dphist-{__version__}.zip" in asked
    assert "release.py visits-2026-01.toml" in asked
    filled = (tmp_path / "visits-2026-01.toml").read_text()
    assert filled == 'path = "lake/visits/month=2026-01"\n'


def test_the_cron_line_asks_for_the_same_release_on_each_of_its_days(run) -> None:
    documented = (REPOSITORY / "docs" / "schedule.md").read_text()
    line = re.search(r"```cron\n(.+)\n```", documented)[1]
    days, command = re.fullmatch(r"5 3 (\S+) \* \* (.+)", line).groups()
    assert days == "2-4"
    # An unescaped % would end the command; cron removes the backslash.
    assert not re.search(r"(?<!\\)%", command)
    command = command.replace("\\%", "%")
    asked = []
    for day in ("2026-03-02", "2026-03-04", "2027-01-02"):
        asked = run(command.replace("date -u -d '", f"date -u -d '{day} "))
    assert [release_id(each) for each in asked] == [
        "visits-2026-02",
        "visits-2026-02",
        "visits-2026-12",
    ]


def keyword(call: ast.Call, name: str) -> str:
    return next(ast.unparse(each.value) for each in call.keywords if each.arg == name)


def test_the_dag_takes_the_month_of_the_data_interval_and_never_catches_up_by_itself() -> None:
    tree = ast.parse(DAG.read_text())
    calls = {ast.unparse(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert keyword(calls["DAG"], "schedule").startswith("CronDataIntervalTimetable(")
    assert keyword(calls["DAG"], "catchup") == "False"
    assert keyword(calls["DAG"], "max_active_runs") == "1"
    command = keyword(calls["BashOperator"], "bash_command")
    assert "monthly-release.sh {{ data_interval_start.strftime(" in command


def test_the_dag_is_loaded_by_airflow() -> None:
    pytest.importorskip("airflow", reason="Airflow is not installed: the DAG is only parsed")
    spec = importlib.util.spec_from_file_location("monthly_release", DAG)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (task,) = module.dag.tasks
    assert task.retries == 3
