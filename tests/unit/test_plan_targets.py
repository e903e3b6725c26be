"""The best promise within a cap: within it by its own calibration, and next to what is not."""

import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.cli import main
from spark_dphist.config import parse_configuration
from spark_dphist.errors import BudgetError, ConfigurationError
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.plan import make_plan
from spark_dphist.targets import find_target

FLIGHTS = str(Path(__file__).parents[2] / "conf" / "flights.toml")
NAMES = ["linear_log", "shifted_log", "fixed_gaussian", "fixed_laplace"]
MANY = {"unit": "user", "max_records": 4}


def configuration(privacy=None, **mechanism):
    return parse_configuration(
        {
            "input": {"path": "x"},
            "groups": {"columns": ["a"], "keys": {"table": "y"}},
            "mechanism": {"relative_error": 0.1, "floor": 50} | mechanism,
            "privacy": privacy or {},
            "output": {"path": "z"},
        },
        "x.toml",
    )


def with_value(found, value):
    """The plan with another value in place of the one found."""
    content = found.configuration.model_dump(exclude_unset=True, by_alias=True)
    content["mechanism"] = content["mechanism"] | {found.sought: value}
    return make_plan(parse_configuration(content, "x.toml"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sought", ["relative_error", "floor"])
@pytest.mark.parametrize(("cap", "privacy"), [("0.1", None), ("0.004", None), ("0.3", MANY)])
def test_the_result_is_within_the_cap_and_its_neighbour_is_not(name, sought, cap, privacy):
    found = find_target(configuration(privacy, name=name), sought, Rho.lower(cap))
    made = make_plan(found.configuration)
    assert made.cost().rho_upper == found.rho <= Rho.lower(cap)
    assert Decimal(str(made.worst_case.rho)) <= Decimal(cap)
    assert getattr(found.configuration.mechanism, sought) == found.found
    beyond = with_value(found, found.refused).cost().rho_upper
    assert beyond == found.refused_rho > Rho.lower(cap)
    if sought == "floor":
        assert found.refused == found.found - 1
    else:
        # 4 digits, so that the next smaller one is less than 0.1 % away.
        assert found.found == float(f"{found.found:.3e}")
        assert found.refused == float(f"{found.refused:.3e}")
        assert found.found * (1 - 1.001e-3) < found.refused < found.found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_smaller_fits_either_as_the_budget_falls_with_error_and_floor(name):
    r = [0.02, 0.021, 0.05, 0.1, 0.101, 0.3, 0.5, 0.7, 0.95]
    m = [1, 2, 3, 4, 5, 10, 11, 50, 51, 1000]
    for fixed, moving in (
        ({"floor": 20}, ("relative_error", r)),
        ({"relative_error": 0.2}, ("floor", m)),
    ):
        field, values = moving
        budgets = [calibrate(name, **fixed, **{field: x}).worst_case_budget() for x in values]
        assert np.all(np.diff(budgets) < 0)


def test_the_cap_of_a_ledger_that_is_met_exactly_admits_the_release(tmp_path):
    found = find_target(configuration(), "relative_error", Rho.lower("0.1"))
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("x", Caps.of(found.rho))
        with pytest.raises(BudgetError):
            ledger.reserve("x", "too-much", with_value(found, found.refused).cost(), {})
        ledger.reserve("x", "fits", make_plan(found.configuration).cost(), {})
        assert ledger.balance("x").left == Rho(0)


def test_a_cap_that_the_least_candidate_keeps_gives_the_least_candidate():
    floor = find_target(configuration(), "floor", Rho.lower("100"))
    assert (floor.found, floor.refused, floor.refused_rho) == (1, None, None)
    error = find_target(configuration(), "relative_error", Rho.lower("1e9"))
    assert (error.found, error.refused) == (1e-5, None)


def test_options_of_the_mechanism_and_the_rest_of_the_configuration_are_kept():
    given = configuration(name="shifted_log", shift=10.0)
    found = find_target(given, "relative_error", Rho.lower("0.5"))
    assert found.configuration.mechanism.calibrated().shift == 10
    same = {"mechanism": given.mechanism}
    assert found.configuration.model_copy(update=same) == given


@pytest.mark.parametrize(
    ("sought", "cap", "mechanism", "message"),
    [
        ("relative_error", "1e-9", {}, "no relative error below 1 keeps rho = 0.000000001"),
        ("floor", "1e-29", {"relative_error": 0.001}, "no floor keeps rho"),
        ("floor", "0.01", {"name": "shifted_log", "shift": 1.0}, "Allow a larger relative error"),
        ("floor", "0", {}, "a cap of rho = 0 allows no release"),
        ("floor", "1", {"name": "constant", "relative_error": 2}, "costs nothing whatever"),
    ],
)
def test_a_search_without_an_answer_says_what_to_change(sought, cap, mechanism, message):
    with pytest.raises(ConfigurationError, match=message):
        find_target(configuration(**mechanism), sought, Rho.lower(cap))


def test_the_command_line_names_the_value_to_write_down(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["plan", FLIGHTS, "--target", "relative-error", "--rho", "0.1"])
    assert not leaving.value.code
    out = capsys.readouterr().out
    assert "\n  relative_error = 0.07064\n" in out
    assert "0.07063 would cost 0.100022" in out
    assert "Worst case, for everyone: rho = 0.09999" in out


def test_a_large_floor_is_printed_to_the_last_digit(capsys):
    with pytest.raises(SystemExit):
        main(["plan", FLIGHTS, "--target", "floor", "--rho", "1e-15"])
    assert "\n  floor = 356591255\n" in capsys.readouterr().out


def test_the_command_line_gives_programs_the_target_beside_its_plan(capsys):
    with pytest.raises(SystemExit):
        main(["plan", FLIGHTS, "--target", "floor", "--rho", "0.001", "--json"])
    read = json.loads(capsys.readouterr().out)
    assert (read["target"]["sought"], read["target"]["found"]) == ("floor", read["floor"])
    assert (
        Decimal(read["target"]["rho"]) <= Decimal("0.001") < Decimal(read["target"]["refused_rho"])
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rho", "0.1"], "say what to look for with --target relative-error or"),
        (["--target", "floor"], "name it, for example --rho 0.1"),
        (["--target", "floor", "--rho", "much"], "A privacy loss is a finite number"),
        (["--target", "floor", "--rho", "1", "--compare"], "leave out --compare"),
        (["--target", "flor", "--rho", "1"], "'flor' is not one of 'relative-error', 'floor'"),
    ],
)
def test_half_a_question_is_refused_with_the_missing_half(capsys, arguments, message):
    with pytest.raises(SystemExit) as leaving:
        main(["plan", FLIGHTS, *arguments])
    captured = capsys.readouterr()
    assert (leaving.value.code, captured.out) == (2, "")
    assert message in captured.err
