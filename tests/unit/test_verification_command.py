"""``spark-dphist verify``: a table or JSON, and an exit code that a pipeline can trust."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path

import broken_mechanisms as broken
import pytest
from broken_mechanisms import broken_version
from rich.console import Console

from spark_dphist import verification
from spark_dphist.cli import main
from spark_dphist.config import MechanismSection
from spark_dphist.display import verification_view
from spark_dphist.mechanisms import LinearLog
from spark_dphist.streams import ReleaseKey
from spark_dphist.verification import verify

FLIGHTS = str(Path(__file__).parents[2] / "conf" / "flights.toml")
FEW = {"key": ReleaseKey.fixed_for_tests(bytes(range(32))), "draws": 2**13}


@pytest.fixture
def line(capsys, monkeypatch):
    """Run the command with few draws under a fixed key; exit code, output and errors."""
    monkeypatch.setattr(verification, "verify", functools.partial(verify, **FEW))

    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(["verify", *arguments])
        captured = capsys.readouterr()
        return leaving.value.code or 0, captured.out, captured.err

    return run


def break_it(monkeypatch):
    mechanism = broken_version(broken.BudgetOfTheWrongNeighbour, 0.1, 50)
    monkeypatch.setattr(MechanismSection, "calibrated", lambda _: mechanism)


def test_a_sound_mechanism_exits_with_0(line):
    code, out, _ = line(FLIGHTS)
    assert code == 0
    assert "FAIL" not in out
    assert out.count("pass") == 18
    assert "All 18 claims withstood" in out
    assert "with probability at most 1e-06" in " ".join(out.split())


def test_a_broken_mechanism_exits_with_1_and_names_the_claim(line, monkeypatch):
    break_it(monkeypatch)
    code, out, _ = line(FLIGHTS)
    assert code == 1
    assert "FAIL  The stated budget covers both " in out
    # The larger neighbour is a little nearer than 1 / (n + c), so the limit is missed from below.
    assert "FAIL  n² v(n) approaches" in out
    assert "2 of 18 claims FAILED" in out
    assert "do not release" in out


def test_programs_read_the_verdict_as_json(line, monkeypatch):
    code, out, _ = line(FLIGHTS, "--json")
    read = json.loads(out)
    assert (code, read["passed"], read["mechanism"]) == (0, True, "shifted_log")
    break_it(monkeypatch)
    code, out, _ = line(FLIGHTS, "--json")
    failed = [claim["claim"] for claim in json.loads(out)["claims"] if not claim["passed"]]
    assert code == 1
    assert "The stated budget covers both neighbours" in failed


def test_a_faulty_configuration_exits_with_2(line, tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("[mechanism]\nfloor = 50\n")
    code, out, err = line(str(file))
    assert (code, out) == (2, "")
    assert "mechanism.relative_error: missing" in err


def test_the_release_is_verified_as_configured(line, tmp_path):
    file = tmp_path / "x.toml"
    policy = Path(FLIGHTS).read_text(encoding="utf-8")
    policy = policy.replace('name = "shifted_log"', 'name = "linear_log"')
    policy = policy.replace('path = "out/flights"', 'path = "out"\nconfidence = 0.8')
    policy = policy.replace("delta = 1e-6", 'delta = 1e-6\nunit = "tailnum"\nmax_records = 3')
    file.write_text(policy)
    code, out, _ = line(str(file), "--json")
    read = json.loads(out)
    assert (code, read["mechanism"]) == (0, "linear_log")
    claims = {claim["claim"]: claim for claim in read["claims"]}
    assert "Intervals contain the true count with probability 0.8" in claims
    assert "1, 2, 3 records" in claims["The stated budget covers both neighbours"]["how"]
    attacked = claims["No attacker tells neighbouring counts apart better than claimed"]["at"]
    assert attacked.startswith(("counts 0 and 3", "counts 1 and 4"))


def test_the_table_fits_80_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    mechanism = LinearLog.calibrate(relative_error=0.1, floor=50)
    console.print(verification_view(verify(mechanism, relative_error=0.1, **FEW)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
