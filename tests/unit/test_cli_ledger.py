"""``spark-dphist ledger``: what an operator types, what is printed, and how it exits."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.cli import main

CONFIGURATION = """
[input]
path = "visits.parquet"
[groups]
columns = ["city"]
[groups.keys.product]
city = ["Oslo", "Rome"]
[mechanism]
name = "shifted_log"
relative_error = 0.3
floor = 20
[output]
path = "out"
[ledger]
url = "{url}"
dataset = "visits"
"""


@pytest.fixture
def line(capsys):
    """Run one command line; exit code, standard output (parsed where it is JSON) and error."""

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(["ledger", *arguments] if arguments[0] not in ("plan", "run") else [*arguments])
        printed = capsys.readouterr()
        return SimpleNamespace(
            code=leaving.value.code or 0, out=printed.out, err=printed.err, json=_json(printed.out)
        )

    return run


def _json(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def visits(url, line):
    line("init", url, "--dataset", "visits", "--rho", "0.5")
    return url


def reserve(url, release_id, rho="0.1"):
    with Ledger(url) as ledger:
        ledger.reserve("visits", release_id, PolicyCost(Rho.upper(rho), "linear_log"), {"a": 1})


def test_a_ledger_is_made_once_and_data_sets_are_added(url, line, tmp_path):
    assert line("init", url).json == {"ledger": url, "data_sets": []}
    made = line("init", url, "--dataset", "visits", "--rho", "0.5", "--privacy-unit", "user_id")
    assert made.json["data_sets"] == ["visits"]
    (state,) = line("show", url).json
    assert (state["data_set"], state["privacy_unit"]) == ("visits", "user_id")
    again = line("init", url, "--dataset", "visits", "--rho", "1")
    assert again.code == 2
    assert "in the ledger already" in again.err
    assert (tmp_path / "ledger.db").exists()


def test_caps_are_exact_text_and_what_is_not_stated_stays(visits, line):
    changed = line("caps", visits, "visits", "--at-least", "1000=0.01", "--at-least", "10 = 0.1")
    assert changed.code == 0
    caps = {limit["at_least"]: limit["cap"] for limit in changed.json["limits"]}
    assert caps == {None: "0.5", 10: "0.1", 1000: "0.01"}
    line("caps", visits, "visits", "--rho", "0.30000000000000000000000001")
    (state,) = line("show", visits).json
    assert {limit["cap"] for limit in state["limits"]} == {
        "0.30000000000000000000000001", "0.1", "0.01",
    }  # fmt: skip
    line("caps", visits, "visits", "--drop", "at_least", "--epsilon", "2", "--delta", "1e-6")
    (state,) = line("show", visits, "--dataset", "visits").json
    assert len(state["limits"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at-least", "1000"], "--at-least takes COUNT=RHO, for example 1000=0.01, got '1000'"),
        (["--at-least", "many=0.1"], "got 'many=0.1'"),
        (["--at-least", "-5=0.1"], "got '-5=0.1'"),
        (["--at-least", "10=plenty"], "got 'plenty'"),
        (["--rho", "plenty"], "got 'plenty'"),
        (["--rho", "-1"], "got '-1'"),
        (["--epsilon", "1"], "needs a delta"),
        (["--drop", "rhos"], "Did you mean 'rho'"),
        (["--drop", "rho"], "needs a cap for everyone"),
    ],
)
def test_caps_that_make_no_sense_are_refused_in_one_sentence(visits, line, arguments, message):
    done = line("caps", visits, "visits", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
    (state,) = line("show", visits).json
    assert [limit["cap"] for limit in state["limits"]] == ["0.5"]


def test_caps_without_a_data_set_are_refused(url, line):
    done = line("init", url, "--rho", "1")
    assert done.code == 2
    assert "Caps are on a data set: name it too" in done.err


@pytest.mark.parametrize("command", ["show", "releases", "export"])
def test_a_mistyped_address_is_an_error_not_a_fresh_ledger(command, line, tmp_path):
    done = line(command, f"sqlite:///{tmp_path}/nowhere.db")
    assert done.code == 1
    assert done.err.startswith("Error: ")
    assert "ledger init" in done.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_spent_and_half_done_is_shown(visits, line):
    reserve(visits, "monday", "0.125")
    (state,) = line("show", visits).json
    assert state["half_done"] == ["monday"]
    assert state["limits"][0] == {
        "limit": state["limits"][0]["limit"],
        "at_least": None,
        "cap": "0.5",
        "spent": "0.125",
        "left": "0.375",
    }


def test_releases_are_listed_by_state(visits, line):
    for name in ("monday", "tuesday"):
        reserve(visits, name)
    with Ledger(visits) as ledger:
        ledger.commit("monday", {"counts": "out"})
    assert [row["release_id"] for row in line("releases", visits).json] == ["monday", "tuesday"]
    (row,) = line("releases", visits, "--dataset", "visits", "--state", "committed").json
    assert (row["release_id"], row["rho"], row["output"]) == ("monday", "0.1", {"counts": "out"})
    wrong = line("releases", visits, "--state", "commited")
    assert wrong.code == 2
    assert "Did you mean 'committed'" in wrong.err


def test_a_dead_run_is_ended_only_with_the_operators_word(visits, line):
    reserve(visits, "monday")
    refused = line("abort", visits, "monday")
    assert refused.code == 2
    assert "--nothing-was-published" in refused.err
    (state,) = line("show", visits).json
    assert state["limits"][0]["spent"] == "0.1"
    done = line("abort", visits, "monday", "--nothing-was-published")
    assert (done.code, done.json["state"]) == (0, "aborted")
    (state,) = line("show", visits).json
    assert (state["limits"][0]["spent"], state["half_done"]) == ("0", [])


def test_a_committed_release_cannot_be_ended(visits, line):
    reserve(visits, "monday")
    with Ledger(visits) as ledger:
        ledger.commit("monday", {})
    done = line("abort", visits, "monday", "--nothing-was-published")
    assert done.code == 1
    assert "stays charged" in done.err


def test_the_export_has_every_row_and_no_token(visits, line):
    reserve(visits, "monday")
    rows = line("export", visits).json
    assert {row["table"] for row in rows} == {"data_set", "release", "event"}
    assert "token" not in json.dumps(rows)
    (release,) = [row for row in rows if row["table"] == "release"]
    assert release["rho"] == "0.1"


@pytest.mark.parametrize("command", ["init", "show", "caps", "releases", "abort", "export"])
def test_every_command_explains_itself_without_spark(command):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "spark_dphist.cli", "ledger", command, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: spark-dphist ledger")
    assert " pyspark" not in done.stderr


# What plan and run say of the budget


def planned(tmp_path, url):
    file = tmp_path / "release.toml"
    file.write_text(CONFIGURATION.format(url=url))
    return str(file)


def test_a_plan_shows_limit_spent_requested_and_left(visits, line, tmp_path):
    reserve(visits, "monday", "0.125")
    done = line("plan", planned(tmp_path, visits))
    assert done.code == 0
    assert "limit 0.5, spent 0.125, requested 0.033" in done.out
    assert "left 0.375: fits" in done.out
    assert "Reserved but not finished" in done.out
    assert "monday" in done.out
    (state,) = line("show", visits).json
    assert state["limits"][0]["spent"] == "0.125"


def test_a_plan_that_does_not_fit_says_so_and_charges_nothing(visits, line, tmp_path):
    reserve(visits, "monday", "0.49")
    done = line("plan", planned(tmp_path, visits))
    assert done.code == 0
    assert "DOES NOT FIT" in done.out


def test_a_plan_for_programs_has_the_exact_budget(visits, line, tmp_path):
    reserve(visits, "monday", "0.49")
    budget = line("plan", planned(tmp_path, visits), "--json").json["budget"]
    assert budget["data_set"] == "visits"
    assert budget["half_done"] == ["monday"]
    (limit,) = budget["limits"]
    assert (limit["cap"], limit["spent"], limit["left"]) == ("0.5", "0.49", "0.01")
    assert limit["fits"] is False
    assert limit["requested"].startswith("0.033276126296")


def test_a_plan_without_a_ledger_has_no_budget(tmp_path, line):
    text = CONFIGURATION.format(url="").split("[ledger]")[0]
    file = tmp_path / "release.toml"
    file.write_text(text)
    assert line("plan", str(file), "--json").json["budget"] is None


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_missing_ledger_an_unknown_data_set_and_another_unit_stop_before_spark(
    command, url, line, tmp_path, monkeypatch
):
    from spark_dphist import session

    def started(_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "open_session", started)
    file = planned(tmp_path, url)
    missing = line(command, file)
    assert missing.code == 1
    assert "ledger init" in missing.err
    line("init", url, "--dataset", "visit", "--rho", "1")
    unknown = line(command, file)
    assert unknown.code == 2
    assert "Did you mean 'visit'" in unknown.err
    with Ledger(url) as ledger:
        ledger.add_dataset("visits", Caps.of(rho=1), privacy_unit="user_id")
    other = line(command, file)
    assert other.code == 2
    assert "protect the privacy unit 'user_id'" in other.err
    assert "accounted for 'record'" in other.err
