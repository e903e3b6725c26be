"""A plan says what a release costs from public policy alone, the worst case first."""

import dataclasses
import json
import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from spark_dphist.accounting import epsilon_upper, gaussian_attacker_accuracy_upper
from spark_dphist.config import parse_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import TransformMechanism
from spark_dphist.mechanisms.registry import calibrate, calibrators
from spark_dphist.plan import make_plan

PROMISES = [(0.05, 100), (0.1, 50), (0.4, 7.5), (0.9, 1)]


def configuration(rounding="nearest", delta=1e-6, rows=None, confidence=0.95, **mechanism):
    declared = {} if rows is None else {"rows": rows}
    return parse_configuration(
        {
            "input": {"path": "/there/is/no/such/table", **declared},
            "groups": {"columns": ["a"], "keys": {"table": "neither.this"}},
            "mechanism": mechanism,
            "privacy": {"delta": delta},
            "output": {"path": "/nor/this", "rounding": rounding, "confidence": confidence},
        },
        "x.toml",
    )


def plan(**fields):
    return make_plan(configuration(**fields))


def noisy_mechanisms():
    """Those whose budget falls with the count."""
    made = {
        name: calibrate(name, relative_error=0.1, floor=20)
        for name in set(calibrators()) - {"constant"}
    }
    return sorted(name for name, it in made.items() if isinstance(it, TransformMechanism))


@pytest.mark.parametrize(("relative_error", "floor"), PROMISES)
@pytest.mark.parametrize("name", noisy_mechanisms())
@pytest.mark.parametrize("rounding", ["nearest", "none"])
def test_every_row_is_what_the_mechanism_itself_says(name, relative_error, floor, rounding):
    made = plan(name=name, relative_error=relative_error, floor=floor, rounding=rounding)
    mechanism = made.mechanism
    for row in made.rows:
        error = mechanism.expected_absolute_error(row.count, rounded=rounding == "nearest")
        assert row.expected_error == error
        assert row.promised_error == relative_error * max(row.count, floor)
        assert row.expected_error < row.promised_error
        assert row.rho == mechanism.budget(row.count)
        assert row.epsilon <= epsilon_upper(row.rho, made.delta)
        assert row.attacker_accuracy == gaussian_attacker_accuracy_upper(row.rho)


@pytest.mark.parametrize("name", noisy_mechanisms())
def test_epsilon_at_delta_holds_for_gaussian_noise_of_that_budget(name):
    made = plan(name=name, relative_error=0.1, floor=20)
    for row in (made.worst_case, *made.rows):
        # DESIGN 1.6: δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) with μ = √(2ρ).
        mu, epsilon = mpmath.sqrt(2 * mpmath.mpf(row.rho)), mpmath.mpf(row.epsilon)
        spent = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
            -mu / 2 - epsilon / mu
        )
        assert spent <= made.delta
        assert row.attacker_accuracy >= mpmath.ncdf(mu / 2)


@pytest.mark.parametrize(
    ("floor", "counts"),
    [
        (50, [1, 10, 50, 1_000, 1_000_000]),
        (1, [1, 10, 1_000, 1_000_000]),
        (7.5, [1, 8, 10, 1_000, 1_000_000]),
        (10**7, [1, 10, 1_000, 1_000_000, 10**7]),
    ],
)
def test_the_rows_are_at_1_10_the_floor_a_thousand_and_a_million(floor, counts):
    assert [row.count for row in plan(relative_error=0.2, floor=floor).rows] == counts


@pytest.mark.parametrize(("relative_error", "floor"), PROMISES)
@pytest.mark.parametrize("name", noisy_mechanisms())
def test_nobody_pays_more_than_the_worst_case(name, relative_error, floor):
    made = plan(name=name, relative_error=relative_error, floor=floor)
    worst = made.mechanism.worst_case_budget()
    assert worst <= made.worst_case.rho <= worst * (1 + 1e-14)
    assert all(row.rho <= made.worst_case.rho * (1 + 1e-14) for row in made.rows)
    assert all(row.epsilon <= made.worst_case.epsilon * (1 + 1e-9) for row in made.rows)
    everywhere = made.mechanism.budget(np.arange(10_000))
    assert np.max(everywhere) == pytest.approx(worst, rel=1e-14)


def test_the_worst_case_of_the_shifted_log_is_the_first_step_of_the_logarithm():
    made = plan(relative_error=0.1, floor=50)
    sigma, shift = made.mechanism.sigma, made.mechanism.shift
    exact = mpmath.log1p(1 / mpmath.mpf(shift)) ** 2 / (2 * mpmath.mpf(sigma) ** 2)
    assert exact <= made.worst_case.rho <= exact * (1 + 1e-4)


def test_a_constant_costs_nothing_and_gives_an_attacker_nothing():
    made = plan(name="constant", relative_error=1.5, floor=20)
    assert (made.worst_case.rho, made.worst_case.epsilon) == (0, 0)
    assert made.worst_case.attacker_accuracy == pytest.approx(0.5)
    assert made.coefficients == {}
    assert made.warnings == ()


@pytest.mark.parametrize("name", ["fixed_gaussian", "fixed_laplace"])
def test_a_fixed_noise_costs_every_group_the_same(name):
    made = plan(name=name, relative_error=0.1, floor=50)
    for row in made.rows:
        assert row.rho == pytest.approx(made.worst_case.rho, rel=1e-14)
        assert row.epsilon == pytest.approx(made.worst_case.epsilon, rel=1e-9)
    assert 0.5 < made.worst_case.attacker_accuracy < 1
    assert made.coefficients == {}


def test_the_papers_bounds_for_small_errors_stand_beside_the_coefficients():
    coefficients = plan(name="linear_log", relative_error=0.01, floor=100).coefficients
    upper, lower = (
        coefficients[f"the paper's bounds on the best for small r, {side}"]
        for side in ("upper", "lower")
    )
    assert upper * 0.01**2 == pytest.approx(1 / math.pi, rel=1e-12)
    assert lower * 0.01**2 == pytest.approx(math.pi / (4 * math.e**2), rel=1e-12)
    assert lower < coefficients["this mechanism, 1 / (2 sigma²)"] <= upper * 1.0001


def test_the_coefficients_stand_beside_what_no_mechanism_can_pass():
    made = plan(relative_error=0.1, floor=50)
    ours, *_, bound = made.coefficients.values()
    assert ours == pytest.approx(1 / (2 * made.mechanism.sigma**2), rel=1e-12)
    assert bound == pytest.approx(0.9**6 / (128 * 0.1**2 * 1.1**2), rel=1e-12)
    assert bound < ours


@pytest.mark.parametrize(("relative_error", "floor"), [(0.1, 50), (0.1, 15), (0.4, 5), (0.9, 1)])
def test_a_sound_plan_raises_no_warning(relative_error, floor):
    assert plan(relative_error=relative_error, floor=floor).warnings == ()


def test_a_worst_case_above_rho_1_is_called_little_privacy():
    (warning,) = plan(relative_error=0.1, floor=10).warnings
    assert "rho = 1.16, which is little privacy" in warning
    assert "Raise the floor" in warning


def test_a_floor_of_one_with_a_small_error_is_said_to_give_single_records_away():
    made = plan(relative_error=0.1, floor=1)
    assert made.worst_case.rho == pytest.approx(61.1, rel=0.01)
    little, gives_away = made.warnings
    assert "rho = 61.1" in little
    assert "an error below 0.1 records even in a group of one" in gives_away
    assert "A floor of 20 to 100" in gives_away


def test_a_delta_that_is_no_longer_small_is_pointed_out():
    assert plan(relative_error=0.1, floor=50, delta=1e-3).warnings == ()
    (warning,) = plan(relative_error=0.1, floor=50, delta=0.05).warnings
    assert "delta = 0.05 lets epsilon fail for one person in 20" in warning


def test_a_delta_above_one_in_the_declared_rows_is_pointed_out_with_a_smaller_one():
    assert plan(relative_error=0.1, floor=50, rows=1_000_000).warnings == ()
    (warning,) = plan(relative_error=0.1, floor=50, rows=1_000_001).warnings
    assert "delta = 1e-06 is above one in the 1,000,001 declared rows" in warning
    assert "Set delta to 1e-07 or less" in warning
    assert plan(relative_error=0.1, floor=50, rows=1_000_001, delta=1e-7).warnings == ()


def test_the_declared_rows_change_nothing_but_the_warning():
    plain, declared = (plan(relative_error=0.1, floor=50, rows=rows) for rows in (None, 10**9))
    assert dataclasses.replace(declared, warnings=()) == plain
    assert declared.warnings
    with pytest.raises(ConfigurationError, match=r"input.rows: expected at least 1, got 0"):
        plan(relative_error=0.1, floor=50, rows=0)


@pytest.mark.parametrize("name", noisy_mechanisms())
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_of_a_row_is_that_of_the_transform_without_noise(name, confidence):
    made = plan(name=name, relative_error=0.1, floor=50, rounding="none", confidence=confidence)
    sigma, q = made.mechanism.sigma, mpmath.sqrt(2) * mpmath.erfinv(mpmath.mpf(confidence))
    for row in made.rows:
        # f(n) ± q sigma, mapped back: for large n a factor exp(± q sigma) on n + shift or n.
        shift = getattr(made.mechanism, "shift", 0)
        if row.count < made.mechanism.parameters().get("knee", 0) * 2:
            assert row.lower < row.count < row.upper
            continue
        for bound, sign in ((row.lower, -1), (row.upper, 1)):
            exact = (row.count + shift) * mpmath.exp(sign * q * sigma) - shift
            assert bound == pytest.approx(max(float(exact), 0), rel=1e-9, abs=1e-9)


def test_rounded_intervals_are_rounded_outwards():
    exact, rounded = (
        plan(relative_error=0.1, floor=50, rounding=rounding).rows
        for rounding in ("none", "nearest")
    )
    for one, other in zip(exact, rounded, strict=True):
        assert (other.lower, other.upper) == (math.floor(one.lower), math.ceil(one.upper))


def test_a_promise_that_rounding_could_break_is_refused():
    policy = {"relative_error": 0.8, "floor": 1, "shift": 0.01, "method": "closed_form"}
    with pytest.raises(ConfigurationError, match="does not count what rounding adds"):
        plan(**policy)
    for row in plan(rounding="none", **policy).rows:
        assert row.expected_error < row.promised_error


@pytest.mark.parametrize("name", ["shifted_log", "constant"])
def test_the_plan_for_programs_has_the_same_numbers(name):
    made = plan(name=name, relative_error=1.2 if name == "constant" else 0.1, floor=4)
    read = json.loads(made.to_json())
    assert read["mechanism"] == name
    assert read["parameters"] == made.mechanism.parameters()
    assert read["worst_case"] == dataclasses.asdict(made.worst_case)
    assert read["rows"] == [dataclasses.asdict(row) for row in made.rows]
    assert read["warnings"] == list(made.warnings)
    assert (read["relative_error"], read["floor"]) == (made.relative_error, 4)
    assert (read["confidence"], read["target"]) == (0.95, None)
    assert (read["delta"], read["rounding"], read["records_per_unit"]) == (1e-6, "nearest", 1)


def test_a_promise_that_cannot_be_kept_is_refused():
    with pytest.raises(ConfigurationError, match="mechanism: relative_error must be below 1"):
        plan(relative_error=1, floor=50)


def test_planning_needs_neither_spark_nor_the_data(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(
        "input.path = '/there/is/no/such/table'\n"
        "groups = {columns = ['a'], keys = {path = '/nor/such/keys'}}\n"
        "mechanism = {relative_error = 0.1, floor = 50}\n"
        "output.path = '/nor/this'\n"
    )
    program = (
        "import sys\n"
        "from spark_dphist.cli import main\n"
        "try:\n"
        f"    main(['plan', {str(file)!r}])\n"
        "except SystemExit as leaving:\n"
        "    assert not leaving.code, leaving.code\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'pyspark', 'py4j'}, loaded\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rho = 0.04986" in done.stdout
