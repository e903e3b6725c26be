"""The command line: exit codes, one clean message for a fault, paths that can be copied."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from example_audit import example_header

from spark_dphist import __version__, from_config, release, request, session
from spark_dphist.audit import PublicAudit
from spark_dphist.cli import main
from spark_dphist.errors import BudgetError, ConfigurationError, ReleaseError

ROOT = Path(__file__).parents[2]
FLIGHTS = str(ROOT / "conf" / "flights.toml")
LONG_PATH = "/very/long" * 20 + "/[bold]visits[/]"


@pytest.fixture
def line(capsys):
    """Run one command line; exit code, standard output and standard error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments))
        captured = capsys.readouterr()
        return SimpleNamespace(code=leaving.value.code or 0, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def no_spark(monkeypatch):
    """Stand-ins for what needs Spark: calls are noted, ``fails`` is raised by the release."""
    noted = SimpleNamespace(calls=[], fails=None)

    def note(name, answer=None):
        def called(*_, **__):
            noted.calls.append(name)
            return answer

        return called

    def run_release(*_, on_step, **__):
        noted.calls.append("release")
        on_step("counting")
        if noted.fails:
            raise noted.fails
        groups = pa.table({"city": ["Oslo"], "noisy_count": [1234], "lower": [1], "upper": [2000]})
        made = example_header(release_id="visits-1", key_set_size=1, output=LONG_PATH)
        return SimpleNamespace(audit=PublicAudit(made, groups))

    asked = SimpleNamespace(
        audit_groups=SimpleNamespace(described=LONG_PATH + "_groups"),
        audit_header=SimpleNamespace(described=LONG_PATH + "_header"),
        input_snapshot=None,
    )
    monkeypatch.setattr(session, "open_session", note("session"))
    monkeypatch.setattr(from_config, "request_from", note("request", asked))
    monkeypatch.setattr(request, "check_request", note("check"))
    monkeypatch.setattr(request, "refuse_existing", note("refuse existing"))
    monkeypatch.setattr(request, "declared_groups", note("count the key set", 576))
    monkeypatch.setattr(release, "run_release", run_release)
    return noted


def test_the_version_is_printed(line):
    done = line("--version")
    assert (done.code, done.out, done.err) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["run", "--help"]])
def test_help_is_plain_text_on_standard_output(line, arguments):
    done = line(*arguments)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: spark-dphist")
    assert "│" not in done.out


def test_without_arguments_the_help_is_shown_as_a_mistake(line):
    done = line()
    assert done.code == 2
    assert "Usage: spark-dphist" in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["plam", FLIGHTS], ["No such command 'plam'", "plan"]),
        (["plan"], ["Missing argument 'CONFIG'"]),
        (["plan", FLIGHTS, "--jsn"], ["No such option", "--json"]),
        (["run", FLIGHTS, "--show", "-1"], ["Invalid value for '--show'", "0"]),
        (["run", FLIGHTS, "--show", "many"], ["Invalid value for '--show'", "integer"]),
        (["plan", FLIGHTS, FLIGHTS], ["unexpected extra argument"]),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_says_why(line, arguments, parts):
    done = line(*arguments)
    assert (done.code, done.out) == (2, "")
    for part in ["Error: ", *parts]:
        assert part in done.err
    assert "Traceback" not in done.err


def test_a_plan_needs_no_data(line, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = line("plan", FLIGHTS)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Worst case, for everyone: rho = 0.04986")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_for_programs_is_json_and_nothing_else(line):
    done = line("plan", FLIGHTS, "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["worst_case"]["rho"] == pytest.approx(0.04986, rel=1e-3)


@pytest.mark.parametrize("command", [["plan"], ["plan", "--json"], ["run"], ["run", "--dry-run"]])
def test_a_faulty_configuration_exits_with_2_in_one_unwrapped_message(
    line, no_spark, command, tmp_path
):
    file = tmp_path / ("long-name-" * 15 + "[bold].toml")
    file.write_text("[mechanism]\nrelativ_error = 0.1\nfloor = 50\n")
    done = line(*command, str(file))
    assert (done.code, done.out) == (2, "")
    first, *faults = done.err.splitlines()
    assert first == f"Error: configuration {str(file)!r} is not valid:"
    assert "  mechanism.relative_error: missing, but required. Rename 'relativ_error' to " in (
        done.err
    )
    assert len(faults) == 4
    assert no_spark.calls == []


def test_a_missing_configuration_exits_with_2_and_starts_no_spark(line, no_spark):
    done = line("run", str(ROOT / "conf" / "flight.toml"))
    assert done.code == 2
    assert done.err.startswith("Error: configuration ")
    assert f"Did you mean {FLIGHTS!r}" in done.err
    assert no_spark.calls == []


def test_a_promise_that_cannot_be_kept_starts_no_spark(line, no_spark, tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(Path(FLIGHTS).read_text().replace("relative_error = 0.1", "relative_error = 1"))
    done = line("run", str(file))
    assert done.code == 2
    assert done.err.startswith("Error: mechanism: relative_error must be below 1")
    assert no_spark.calls == []


def test_a_release_shows_what_was_promised_and_where_it_lies(line, no_spark):
    done = line("run", FLIGHTS)
    assert done.code == 0
    assert no_spark.calls == ["session", "request", "release"]
    lines = done.out.splitlines()
    for place in (LONG_PATH, LONG_PATH + "_groups", LONG_PATH + "_header"):
        assert any(text.endswith(f" {place}") for text in lines)
    assert "noisy_count" not in done.out


@pytest.mark.usefixtures("no_spark")
def test_released_rows_are_shown_on_demand(line):
    done = line("run", FLIGHTS, "--show", "5")
    assert done.out.splitlines()[-2:] == [
        "city  noisy_count  lower  upper",
        "Oslo        1,234      1  2,000",
    ]


@pytest.mark.usefixtures("no_spark")
def test_the_warnings_of_the_plan_are_repeated_on_standard_error(line, tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(Path(FLIGHTS).read_text().replace("floor = 50", "floor = 1"))
    done = line("run", str(file))
    assert done.code == 0
    assert done.err.count("Warning: ") == 2
    assert "Warning" not in done.out


def test_a_dry_run_checks_and_stops(line, no_spark):
    done = line("run", FLIGHTS, "--dry-run")
    assert done.code == 0
    assert no_spark.calls == ["session", "request", "check", "refuse existing", "count the key set"]
    assert done.out.splitlines()[-1].startswith("Dry run: everything was checked")
    assert "rho = 0.04986" in done.out


@pytest.mark.parametrize(
    ("error", "code"), [(ReleaseError, 1), (ConfigurationError, 2), (BudgetError, 3)]
)
def test_each_kind_of_failure_has_its_exit_code_and_one_message(line, no_spark, error, code):
    no_spark.fails = error(f"no release for {LONG_PATH}")
    done = line("run", FLIGHTS)
    assert (done.code, done.out) == (code, "")
    assert done.err == f"Error: no release for {LONG_PATH}\n"


def test_a_machine_without_java_gets_one_sentence(line, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    # Another test may have left a session open.
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: None)
    done = line("run", FLIGHTS)
    assert (done.code, done.out) == (2, "")
    (message,) = done.err.splitlines()
    assert message.startswith("Error: Spark needs Java ")
    assert "Install Java 17" in message


def test_the_job_for_spark_submit_is_the_same_command_line():
    job = ROOT / "jobs" / "release.py"
    done = subprocess.run(
        [sys.executable, str(job), "no-such.toml"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=ROOT / "jobs",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: configuration 'no-such.toml' does not exist. There is no *.toml file in '.'.\n"
    )
