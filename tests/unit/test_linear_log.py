import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import REFERENCES
from scipy.special import ndtr, ndtri

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, LinearLog, ShiftedLog
from spark_dphist.mechanisms.calibration import find_violation, worst_error
from spark_dphist.mechanisms.plateau import _Bounds


@pytest.mark.parametrize("row", REFERENCES["linear_log_expected_abs_error"], ids=str)
def test_the_expected_error_agrees_with_the_reference_values(row):
    mechanism = LinearLog(sigma=float(row["sigma"]), floor=row["floor"])
    got = float(mechanism.expected_absolute_error(row["count"]))
    assert got == pytest.approx(float(row["value"]), rel=1e-12)


@pytest.mark.parametrize("row", REFERENCES["linear_log_budget"], ids=str)
def test_the_budget_agrees_with_the_reference_values_from_above(row):
    mechanism = LinearLog(sigma=float(row["sigma"]), floor=row["floor"])
    got = mpmath.mpf(float(mechanism.budget(row["count"], row["records_per_unit"])))
    exact = mpmath.mpf(row["rho"])
    # The references have 20 digits.
    assert got >= exact * (1 - mpmath.mpf("1e-19"))
    assert got <= exact * (1 + mpmath.mpf("1e-4"))


def test_the_knee_is_the_floor_unless_given():
    assert LinearLog(sigma=0.1, floor=20) == LinearLog(sigma=0.1, floor=20, knee=20)
    assert LinearLog(sigma=0.1, floor=20, knee=15).parameters()["knee"] == 15


def test_the_estimate_follows_its_four_pieces():
    mechanism = LinearLog(sigma=0.5, floor=20)
    at = np.array([-1.0, -1e-3, 0.25, 1.0, 1.1, 1.2499, 1.25, 2.25])
    lattice = np.rint(at * mechanism.lattice.steps_per_unit).astype(np.int64)
    expected = [0, 0, 5, 20, 20, 20, 20, 20 * np.e]
    assert mechanism.decode(lattice) == pytest.approx(np.array(expected), rel=1e-12)


@settings(max_examples=150)
@given(
    st.floats(0.01, 2.5),
    st.floats(1, 2000),
    st.integers(0, 2000),
    st.integers(0, 500),
    st.sampled_from(["minimal_error", "median_unbiased"]),
)
def test_the_search_bounds_the_error_of_every_count_in_a_range_below_the_knee(
    sigma, knee, start, width, drift
):
    mechanism = LinearLog(sigma=sigma, floor=1, knee=knee, drift=drift)
    low = min(start, int(knee))
    counts = np.arange(low, min(low + width, int(knee)) + 1)
    bound = _Bounds(mechanism).error_upper(counts[[0]].astype(float), counts[[-1]].astype(float))
    assert np.max(worst_error(mechanism, counts)) <= bound[0] * (1 + 1e-13)


@settings(max_examples=100)
@given(
    st.floats(0.003, 3), st.floats(0.7, 500), st.sampled_from(["minimal_error", "median_unbiased"])
)
def test_the_tail_bound_never_rises_relative_to_the_count(sigma, knee, drift):
    mechanism = LinearLog(sigma=sigma, floor=1, knee=knee, drift=drift)
    counts = np.unique(np.rint(np.geomspace(np.ceil(knee), np.ceil(knee) * 50, 12))).astype(int)
    bounds = np.array([mechanism.tail_error_upper(int(x)) / x for x in counts])
    assert np.all(np.diff(bounds) <= 1e-13 * bounds[1:])


@settings(max_examples=60)
@given(
    st.floats(0.003, 3), st.floats(0.7, 500), st.sampled_from(["minimal_error", "median_unbiased"])
)
def test_the_error_does_not_fall_with_the_count_from_the_knee_on(sigma, knee, drift):
    mechanism = LinearLog(sigma=sigma, floor=1, knee=knee, drift=drift)
    counts = np.arange(np.ceil(knee), np.ceil(knee) + 200)
    for rounded in (False, True):
        error = mechanism.expected_absolute_error(counts, rounded=rounded)
        assert np.all(np.diff(error) >= -1e-13 * error[1:])


def test_the_error_does_fall_with_the_count_towards_the_knee():
    errors = LinearLog(sigma=0.0627, floor=100).expected_absolute_error([50, 90, 100])
    assert np.all(np.diff(errors) < 0)


@pytest.mark.parametrize("relative_error", [0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("floor", [1, 20, 100.5, 1e6])
def test_sigma_reaches_what_the_promise_allows_in_the_limit(relative_error, floor):
    mechanism = LinearLog.calibrate(relative_error=relative_error, floor=floor)
    limit = ndtri((1 + relative_error) / 2)
    assert limit * (1 - 1e-7) < mechanism.sigma < limit
    # The knee that the linear part's plateau allows is a lower bound of what is found.
    assert mechanism.knee > floor * relative_error * np.sqrt(np.pi / 2) / limit * (1 - 1e-12)


def test_small_promises_bind_on_the_plateau():
    mechanism = LinearLog.calibrate(relative_error=0.05, floor=1e4)
    assert mechanism.sigma * mechanism.knee == pytest.approx(
        0.05 * 1e4 * np.sqrt(np.pi / 2), rel=1e-9
    )
    middle = float(mechanism.expected_absolute_error(5000)) / (0.05 * 1e4)
    assert middle == pytest.approx(1, rel=1e-9)
    assert middle < 1


def test_a_slightly_larger_knee_or_sigma_breaks_the_promise():
    for relative_error, floor in ((0.05, 20), (0.3, 100), (0.5, 20), (0.9, 100)):
        best = LinearLog.calibrate(relative_error=relative_error, floor=floor)
        assert find_violation(best, relative_error) is None
        wider = LinearLog(sigma=best.sigma, floor=floor, knee=best.knee * (1 + 1e-9))
        noisier = LinearLog(sigma=best.sigma * (1 + 1e-6), floor=floor, knee=best.knee)
        count = find_violation(wider, relative_error)
        allowed = relative_error * max(count, floor)
        assert float(worst_error(wider, count)) >= allowed * (1 - 1e-11)
        assert find_violation(noisier, relative_error) is not None


@pytest.mark.parametrize("relative_error", [0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("floor", [1, 20, 100])
def test_the_budget_is_below_the_shifted_log_s_at_every_count_for_the_same_promise(
    relative_error, floor
):
    linear = LinearLog.calibrate(relative_error=relative_error, floor=floor)
    counts = np.unique(
        np.concatenate([np.arange(3 * floor + 50), np.rint(np.geomspace(1, 1e9, 400))])
    )
    for share in (0.1, 0.25, 0.5, 1.0, 2.0, 4.0):
        shifted = ShiftedLog.calibrate(
            relative_error=relative_error, floor=floor, shift=share * floor, method="closed_form"
        )
        assert np.all(linear.budget(counts) < shifted.budget(counts))


def test_for_the_same_promise_both_ends_are_four_times_below_the_default_shifted_log():
    linear = LinearLog.calibrate(relative_error=0.05, floor=100)
    shifted = ShiftedLog.calibrate(relative_error=0.05, floor=100)
    for count in (0, 10**9):
        ratio = float(shifted.budget(count) / linear.budget(count))
        assert ratio == pytest.approx(4, rel=0.02)


def test_the_calibration_takes_well_under_a_second():
    LinearLog.calibrate(relative_error=0.1, floor=7)
    started = time.process_time()
    for floor in (1, 100, 1e6):
        LinearLog.calibrate(relative_error=0.1, floor=floor)
    assert (time.process_time() - started) / 3 < 1


def test_bias_is_positive_at_0_and_negative_for_large_counts():
    mechanism = LinearLog.calibrate(relative_error=0.1, floor=20)
    assert float(mechanism.expected_bias(0)) > 0
    # E e^{σZ - σ²} - 1 = e^{-σ²/2} - 1.
    assert float(mechanism.expected_bias(10**9)) / 10**9 == pytest.approx(
        np.expm1(-(mechanism.sigma**2) / 2), rel=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relative_error": 0.0, "floor": 1}, r"relative_error must be a finite number .* got 0.0"),
        (
            {"relative_error": 1.0, "floor": 1},
            r"relative_error must be below 1, got 1.0.*'constant'",
        ),
        (
            {"relative_error": 1e-9, "floor": 1},
            r"relative_error 1e-09 asks for .* expected at least",
        ),
        ({"relative_error": 0.1, "floor": 0}, r"floor must be a count from 1 to \d+, got 0"),
        (
            {"relative_error": 0.1, "floor": 1, "drift": "unbiased"},
            r"drift 'unbiased' has no meaning .* expected 'minimal_error' or 'median_unbiased'",
        ),
        (
            {"relative_error": 0.1, "floor": 1, "drift": "median"},
            r"drift 'median' is unknown.*median_",
        ),
    ],
    ids=str,
)
def test_refusals_name_the_parameter_what_was_got_and_what_was_expected(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        LinearLog.calibrate(**arguments)


@pytest.mark.parametrize("knee", [-1.0, 1e-9, float("nan"), float("inf"), 2.0**49])
def test_a_knee_out_of_range_is_refused(knee):
    with pytest.raises(ConfigurationError, match=r"knee must be a count above 0 .* got"):
        LinearLog(sigma=0.1, floor=1, knee=knee)


def test_counts_saturate_and_the_error_stays_finite_at_the_public_bound():
    mechanism = LinearLog.calibrate(relative_error=0.5, floor=MAX_COUNT)
    errors = mechanism.expected_absolute_error([0, MAX_COUNT // 2, MAX_COUNT, 2**60], rounded=True)
    assert np.all(errors < 0.5 * MAX_COUNT)
    assert errors[-1] == errors[-2]
    assert 2 * ndtr(mechanism.sigma) - 1 < 0.5
