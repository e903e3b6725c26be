"""Mechanisms side by side: at one promise, at one budget, and by one line of configuration."""

import functools
import io
import json
import tomllib

import mpmath
import numpy as np
import pytest
from rich.console import Console

from spark_dphist.cli import main
from spark_dphist.comparison import compare_mechanisms
from spark_dphist.config import load_configuration, parse_configuration
from spark_dphist.display import comparison_view
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.refuted import REFUSED
from spark_dphist.mechanisms.registry import calibrators
from spark_dphist.plan import make_plan

FILE = """\
input.path = "/there/is/no/such/table"
groups = {{columns = ["a"], keys = {{path = "/nor/such/keys"}}}}
output.path = "/nor/this"

[mechanism]
name = "{name}"
relative_error = {relative_error}
floor = {floor}

[privacy]
{privacy}
"""


def content(name="linear_log", relative_error=0.1, floor=50, privacy=""):
    return FILE.format(name=name, relative_error=relative_error, floor=floor, privacy=privacy)


def written(tmp_path, *values, **fields):
    file = tmp_path / "x.toml"
    file.write_text(content(*values, **fields))
    return file


def configured(*values, **fields):
    return parse_configuration(tomllib.loads(content(*values, **fields)), "x.toml")


@functools.cache
def compared(**fields):
    return compare_mechanisms(configured(**fields))


def by_name(candidates):
    return {candidate.name: candidate for candidate in candidates}


@pytest.mark.parametrize("name", sorted(set(calibrators()) - {"constant"}))
def test_one_line_of_configuration_changes_the_mechanism(name):
    made = make_plan(configured(name))
    assert made.mechanism.name == name
    assert all(row.expected_error < row.promised_error for row in made.rows)


POLICIES = [
    {"name": "shifted_log", "relative_error": 0.1, "floor": 50},
    {"name": "linear_log", "relative_error": 0.3, "floor": 1},
    {"name": "fixed_laplace", "relative_error": 0.05, "floor": 7.5},
    {"name": "fixed_gaussian", "relative_error": 0.1, "floor": 20},
]
UNITS = ["", "unit = 'u'\nmax_records = 3", "unit = 'u'\nmax_records = 3\ncount = 'units'"]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["name"])
def test_at_one_promise_every_mechanism_keeps_it(policy):
    made = compared(privacy="", **policy)
    r, m = policy["relative_error"], policy["floor"]
    assert {c.name for c in made.equal_promise} == set(calibrators())
    for candidate in made.equal_promise:
        if candidate.name == "constant":
            assert "a constant does not keep" in candidate.refusal
            continue
        assert candidate.relative_error == r
        n = np.arange(2000)
        error = candidate.mechanism.expected_absolute_error(n, rounded=True)
        assert np.all(error < r * np.maximum(n, m))
        # Calibrated, not merely below: somewhere, or in the limit, the promise is nearly reached.
        ends = np.append(n, [10**6, 10**9])
        reached = candidate.mechanism.expected_absolute_error(ends) / (r * np.maximum(ends, m))
        assert np.max(reached) > 0.8


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["name"])
@pytest.mark.parametrize("unit", UNITS)
def test_at_one_budget_every_mechanism_costs_what_the_configured_one_does(policy, unit):
    made = compared(privacy=unit, **policy)
    assert made.rho == make_plan(configured(privacy=unit, **policy)).worst_case.rho
    for candidate in made.equal_budget:
        if candidate.name != "constant":
            assert made.rho * (1 - 2e-6) <= candidate.worst_case.rho <= made.rho


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy["name"])
def test_the_relative_error_at_one_budget_holds_at_every_count(policy):
    made = compared(privacy="", **policy)
    n, m = np.append(np.arange(2000), [10**5, 10**7]), policy["floor"]
    for candidate in made.equal_budget:
        error = candidate.mechanism.expected_absolute_error(n, rounded=True)
        assert np.all(error <= candidate.relative_error * np.maximum(n, m) * (1 + 1e-12))


def test_fixed_gaussian_noise_of_a_budget_has_the_classical_scale():
    made = compared(name="shifted_log")
    scale = by_name(made.equal_budget)["fixed_gaussian"].mechanism.scale
    assert scale == pytest.approx(float(1 / mpmath.sqrt(2 * mpmath.mpf(made.rho))), rel=1e-6)


def test_the_configured_mechanism_is_itself_in_both_tables_with_its_own_options(tmp_path):
    file = written(tmp_path, "shifted_log")
    file.write_text(file.read_text().replace("floor = 50", "floor = 50\nshift = 20"))
    made = compare_mechanisms(load_configuration(file))
    at_promise = by_name(made.equal_promise)["shifted_log"]
    assert at_promise.mechanism.shift == 20
    assert by_name(made.equal_budget)["shifted_log"] == at_promise


def test_a_budget_of_zero_is_matched_by_the_constant_alone():
    made = compared(name="constant", relative_error=1.5, floor=20)
    kept = [candidate.name for candidate in made.equal_budget if candidate.refusal is None]
    assert (made.rho, kept) == (0, ["constant"])


def test_the_comparison_fits_80_columns_and_names_every_mechanism():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(comparison_view(compared(relative_error=0.1, floor=10**7)))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for name in calibrators():
        # Budget, attacker and error in both tables, or in the second one alone.
        rows = sum(line.startswith(f"  {name} ") for line in text.splitlines())
        assert rows == (3 if name == "constant" else 6)


def test_the_command_line_compares_for_people_and_for_programs(tmp_path, capsys):
    file = str(written(tmp_path))
    for arguments, first in ((["--compare"], "Same promise: "), (["--compare", "--json"], "{")):
        with pytest.raises(SystemExit) as leaving:
            main(["plan", file, *arguments])
        assert not leaving.value.code
        text = capsys.readouterr().out
        assert text.startswith(first)
    read = json.loads(text)
    assert read["configured"] == "linear_log"
    names = [candidate["mechanism"] for candidate in read["equal_promise"]]
    assert sorted(names) == sorted(calibrators())
    gaussian = next(it for it in read["equal_budget"] if it["mechanism"] == "fixed_gaussian")
    assert gaussian["worst_case"]["rho"] == pytest.approx(read["rho"], rel=2e-6)
    assert [row["count"] for row in gaussian["rows"]] == [1, 10, 50, 1000, 1000000]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refuted_mechanism_is_refused_with_the_reason_and_a_pointer(tmp_path, name):
    with pytest.raises(ConfigurationError) as refusal:
        load_configuration(written(tmp_path, name))
    assert REFUSED[name] in str(refusal.value)
    assert "docs/" in str(refusal.value)
