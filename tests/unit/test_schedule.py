"""The examples for schedulers: the id is the data interval, whenever and however often they run."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import jinja2
import pytest

from spark_dphist import __version__
from spark_dphist.intervals import load_for_interval

REPOSITORY = Path(__file__).parents[2]
DAG = REPOSITORY / "conf" / "airflow" / "monthly_release.py"
SCRIPT = REPOSITORY / "conf" / "monthly-release.sh"


# All that cron gives a command.
BARE = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "HOME": "/"}
NAMED = {"SPARK_HOME": "/opt/spark", "MASTER": "spark://HOST:7077"}
Run = Callable[..., list[str]]
Id = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command line with a spark-submit that only writes down what it is asked for."""
    shutil.copy(SCRIPT, tmp_path)
    stand_in = tmp_path / "spark" / "bin" / "spark-submit"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    stand_in.chmod(0o755)

    def run(command: str, variables: dict[str, str] = NAMED) -> list[str]:
        def here(text: str) -> str:
            text = text.replace("/srv/releases", str(tmp_path))
            return text.replace("/opt/spark", str(tmp_path / "spark"))

        named = {name: here(value) for name, value in variables.items()}
        subprocess.run(
            ["/bin/sh", "-c", here(command)],
            check=True,
            env=BARE | named,
            stderr=subprocess.PIPE,
            text=True,
        )
        return (tmp_path / "asked").read_text().splitlines()

    return run


def documented(language: str) -> str:
    page = (REPOSITORY / "docs" / "schedule.md").read_text()
    return re.search(rf"```{language}\n(.+?)\n```", page, re.DOTALL)[1]


@pytest.fixture
def release_id(tmp_path: Path) -> Id:
    """Return the id that the documented template has with what spark-submit was asked for."""
    template = tmp_path / "visits.toml"
    template.write_text(documented("toml"))

    def release_id(asked: str) -> str:
        before, _, interval = asked.partition(" release.py visits.toml --interval ")
        assert before.endswith(f" --py-files spark_dphist-{__version__}.zip")
        return load_for_interval(template, interval).release_id

    return release_id


def test_the_script_releases_the_month_on_the_named_cluster(run: Run, release_id: Id) -> None:
    (asked,) = run("/srv/releases/monthly-release.sh 2026-01")
    assert asked.startswith("--master spark://HOST:7077 --properties-file spark-hardened.conf ")
    assert release_id(asked) == "visits-2026-01"


@pytest.mark.parametrize("missing", NAMED)
def test_the_script_asks_for_spark_and_its_master_rather_than_guess_them(
    run: Run, tmp_path: Path, missing: str
) -> None:
    """Without a master the release would be made on this machine alone, and nobody would notice."""
    variables = {name: value for name, value in NAMED.items() if name != missing}
    with pytest.raises(subprocess.CalledProcessError) as refused:
        run("/srv/releases/monthly-release.sh 2026-01", variables)
    assert f"{missing}: the " in refused.value.stderr
    assert not (tmp_path / "asked").exists()


def test_the_crontab_asks_for_the_same_release_on_each_of_its_days(
    run: Run, release_id: Id
) -> None:
    *variables, line = documented("cron").splitlines()
    named = dict(each.split("=", 1) for each in variables)
    days, command = re.fullmatch(r"5 3 (\S+) \* \* (.+)", line).groups()
    assert days == "2-4"
    # An unescaped % would end the command; cron removes the backslash.
    assert not re.search(r"(?<!\\)%", command)
    command = command.replace("\\%", "%")
    asked = []
    for day in ("2026-03-02", "2026-03-04", "2027-01-02"):
        asked = run(command.replace("date -u -d '", f"date -u -d '{day} "), named)
    assert [release_id(each) for each in asked] == [
        "visits-2026-02",
        "visits-2026-02",
        "visits-2026-12",
    ]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Load the DAG with stand-ins for Airflow that keep what they are given."""
    given = MagicMock()
    for module, name in (
        ("airflow.sdk", "DAG"),
        ("airflow.providers.standard.operators.bash", "BashOperator"),
        ("airflow.timetables.interval", "CronDataIntervalTimetable"),
    ):
        stand_in = ModuleType(module)
        setattr(stand_in, name, getattr(given, name))
        monkeypatch.setitem(sys.modules, module, stand_in)
    runpy.run_path(str(DAG))
    return given


def test_the_dag_has_data_intervals_and_never_catches_up_by_itself(airflow: MagicMock) -> None:
    airflow.CronDataIntervalTimetable.assert_called_once_with("5 3 1 * *", timezone="UTC")
    settings = airflow.DAG.call_args.kwargs
    assert settings["schedule"] is airflow.CronDataIntervalTimetable.return_value
    assert settings["catchup"] is False
    assert settings["max_active_runs"] == 1


def test_the_dag_asks_for_the_month_its_data_interval_starts_in(
    airflow: MagicMock, run: Run, release_id: Id
) -> None:
    """Of all that a template may use it gets the interval alone, not the time of the run."""
    task = airflow.BashOperator.call_args.kwargs
    assert task["retries"] == 3
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=True)
    command = template.from_string(task["bash_command"]).render(
        data_interval_start=datetime(2026, 1, 1, 3, 5, tzinfo=UTC)
    )
    assert command == "/srv/releases/monthly-release.sh 2026-01"
    assert task["append_env"] is True
    (asked,) = run(command, task["env"])
    assert release_id(asked) == "visits-2026-01"
