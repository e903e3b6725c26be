import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from spark_dphist.mechanisms import MAX_COUNT, LinearLog, ShiftedLog
from spark_dphist.mechanisms.calibration import (
    find_violation,
    promise_margin,
    worst_error,
)

FLOORS = st.one_of(
    st.integers(1, 200), st.floats(1, 200), st.floats(0, 20).map(lambda e: float(2.0**e))
)
PROMISES = st.one_of(st.floats(0.002, 0.98), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
SHIFTED_DRIFTS = st.sampled_from(["minimal_error", "unbiased", "median_unbiased"])
LINEAR_DRIFTS = st.sampled_from(["minimal_error", "median_unbiased"])


def counts_to_check(floor):
    """Every count to 3000, every one around the floor, and a spread up to the public bound."""
    near = np.arange(-200, 201) + round(floor)
    spread = np.rint(np.geomspace(1, MAX_COUNT, 600))
    below = np.rint(np.linspace(0, floor, 300))
    counts = np.unique(np.concatenate([np.arange(3001), near, spread, below]))
    return counts[(counts >= 0) & (counts <= MAX_COUNT)]


def keeps_the_promise_everywhere(mechanism, relative_error):
    counts = counts_to_check(mechanism.floor)
    allowed = relative_error * np.maximum(counts, mechanism.floor)
    plain = mechanism.expected_absolute_error(counts)
    rounded = mechanism.expected_absolute_error(counts, rounded=True)
    return np.all(plain < allowed) and np.all(rounded < allowed)


@settings(max_examples=60)
@given(PROMISES, FLOORS, st.one_of(st.none(), st.floats(-12, 4)), SHIFTED_DRIFTS)
def test_the_calibrated_shifted_log_keeps_the_promise_strictly_at_every_count(
    relative_error, floor, share, drift
):
    shift = None if share is None else max(floor * 2.0**share, 2.0**-30)
    mechanism = ShiftedLog.calibrate(
        relative_error=relative_error, floor=floor, shift=shift, drift=drift
    )
    assert keeps_the_promise_everywhere(mechanism, relative_error)
    assert find_violation(mechanism, relative_error) is None


@settings(max_examples=25)
@given(PROMISES, FLOORS, LINEAR_DRIFTS)
def test_the_calibrated_linear_log_keeps_the_promise_strictly_at_every_count(
    relative_error, floor, drift
):
    mechanism = LinearLog.calibrate(relative_error=relative_error, floor=floor, drift=drift)
    assert keeps_the_promise_everywhere(mechanism, relative_error)
    assert find_violation(mechanism, relative_error) is None


@settings(max_examples=60)
@given(PROMISES, FLOORS, st.floats(-8, 4))
def test_the_closed_form_keeps_the_promise_strictly_before_rounding(relative_error, floor, share):
    mechanism = ShiftedLog.calibrate(
        relative_error=relative_error, floor=floor, shift=floor * 2.0**share, method="closed_form"
    )
    counts = counts_to_check(floor)
    error = mechanism.expected_absolute_error(counts)
    assert np.all(error < relative_error * np.maximum(counts, floor))


@settings(max_examples=60)
@given(PROMISES, FLOORS, st.floats(-6, 3), SHIFTED_DRIFTS)
@example(0.5, 2.0**14, 0.0, "minimal_error")
def test_a_slightly_larger_sigma_would_break_the_promise(relative_error, floor, share, drift):
    mechanism = ShiftedLog.calibrate(
        relative_error=relative_error, floor=floor, shift=floor * 2.0**share, drift=drift
    )
    louder = ShiftedLog(
        sigma=mechanism.sigma * (1 + 1e-6), shift=mechanism.shift, floor=floor, drift=drift
    )
    count = find_violation(louder, relative_error)
    assert count is not None
    allowed = relative_error * max(count, floor)
    assert float(worst_error(louder, count)) >= allowed * (1 - 1e-11)


@settings(max_examples=100)
@given(st.floats(0.003, 3), st.floats(0.01, 300), SHIFTED_DRIFTS, st.integers(0, 2000))
def test_the_error_of_the_shifted_log_does_not_fall_with_the_count(sigma, shift, drift, start):
    mechanism = ShiftedLog(sigma=sigma, shift=shift, floor=1, drift=drift)
    counts = np.arange(start, start + 100)
    for rounded in (False, True):
        error = mechanism.expected_absolute_error(counts, rounded=rounded)
        assert np.all(np.diff(error) >= -1e-13 * error[1:])


@settings(max_examples=100)
@given(st.floats(0.003, 2.5), st.floats(0.1, 300), st.integers(1, 3000), st.integers(0, 10**6))
def test_the_tail_bound_holds_from_its_count_on(sigma, size, start, further):
    for mechanism in (
        ShiftedLog(sigma=sigma, shift=size, floor=1),
        ShiftedLog(sigma=sigma, shift=size, floor=1, drift="unbiased"),
        LinearLog(sigma=sigma, floor=1, knee=size),
        LinearLog(sigma=sigma, floor=1, knee=size, drift="median_unbiased"),
    ):
        first = max(start, mechanism.tail_start)
        bound = mechanism.tail_error_upper(first) / first
        for count in (first, first + 1, first + further):
            assert float(worst_error(mechanism, count)) / count <= bound * (1 + 1e-13)


@settings(max_examples=25)
@given(PROMISES, st.floats(1, 100), LINEAR_DRIFTS, st.floats(0.9, 1.1), st.floats(0.9, 1.1))
def test_the_search_agrees_with_looking_at_every_count(relative_error, floor, drift, louder, wider):
    best = LinearLog.calibrate(relative_error=relative_error, floor=floor, drift=drift)
    mechanism = LinearLog(
        sigma=best.sigma * louder, floor=floor, knee=best.knee * wider, drift=drift
    )
    counts = np.arange(2000)
    allowed = relative_error * np.maximum(counts, floor)
    ratio = np.max(worst_error(mechanism, counts) / allowed)
    in_the_limit = mechanism.lognormal.relative_error / relative_error
    assume(abs(ratio - 1) > 1e-3 and abs(in_the_limit - 1) > 1e-3)
    broken = max(ratio, in_the_limit) > 1
    assert (find_violation(mechanism, relative_error) is not None) == broken


@pytest.mark.parametrize(
    "mechanism",
    [
        ShiftedLog(sigma=0.0125, shift=1, floor=1),
        ShiftedLog(sigma=0.3, shift=20, floor=20, drift="unbiased"),
        ShiftedLog(sigma=2.0**-16, shift=1000, floor=1),
        LinearLog(sigma=0.0125, floor=1),
        LinearLog(sigma=0.3, floor=20, knee=17.5),
        LinearLog(sigma=0.67, floor=20, drift="median_unbiased"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("count", [1, 20, 10**6, 10**12])
def test_the_shipped_path_errs_like_the_formula_within_the_margin(mechanism, count):
    # Noise in the shipped integers, decoded as shipped, against the same noise in mathematics.
    z, width = np.linspace(-9, 9, 40_001, retstep=True)
    noise = np.rint(z * 2.0**mechanism.lattice.scale_bits).astype(np.int64)
    shipped = np.abs(mechanism.decode(mechanism.encode(count) + noise) - count)
    weight = np.exp(-(z**2) / 2) * width / np.sqrt(2 * np.pi)
    ideal = np.abs(_estimate(mechanism, np.longdouble(count), z.astype(np.longdouble)) - count)
    difference = abs(float(np.sum((shipped - ideal) * weight)))
    margin = promise_margin(mechanism.sigma)
    assert difference <= margin * float(np.sum(ideal * weight))


def _estimate(mechanism, count, z):
    drift, sigma = np.longdouble(mechanism.drift_value), np.longdouble(mechanism.sigma)
    if isinstance(mechanism, ShiftedLog):
        shift = np.longdouble(mechanism.shift)
        value = (count + shift) * np.exp(sigma * z - drift) - shift
        return value if mechanism.drift == "unbiased" else np.maximum(value, 0)
    knee = np.longdouble(mechanism.knee)
    y = (count / knee if count <= knee else 1 + np.log(count / knee)) + sigma * z
    return knee * np.where(y <= 1, np.maximum(y, 0), np.exp(np.maximum(y - 1 - drift, 0)))


def test_the_search_looks_at_the_last_count_below_a_floor_that_is_no_integer():
    relative_error, floor = 0.3, 20.05

    def make(sigma):
        return LinearLog(sigma=sigma, floor=floor, knee=19.5, drift="median_unbiased")

    sigma = brentq(
        lambda s: float(worst_error(make(s), 20)) - relative_error * floor * 1.0002, 0.1, 0.6
    )
    mechanism = make(sigma)
    others = np.setdiff1d(np.arange(1000), [20])
    allowed = relative_error * np.maximum(others, floor)
    assert np.all(worst_error(mechanism, others) < allowed)
    assert find_violation(mechanism, relative_error) == 20
