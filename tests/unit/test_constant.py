import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, Constant


@settings(max_examples=200)
@given(st.floats(1, 3), st.one_of(st.integers(1, 60), st.floats(1, 60)))
def test_what_calibration_returns_keeps_the_promise_rounded_or_not(relative_error, floor):
    try:
        mechanism = Constant.calibrate(relative_error=relative_error, floor=floor)
    except ConfigurationError:
        # Only where no published integer can keep it: at 0 and at 1, or half of an odd floor up.
        value = np.rint(floor / 2)
        worst = max(value, *(abs(x - value) for x in (1, np.floor(floor), np.ceil(floor))))
        assert worst >= relative_error * floor
        return
    counts = np.concatenate([np.arange(500), [10**6, MAX_COUNT]])
    allowed = relative_error * np.maximum(counts, floor)
    for rounded in (False, True):
        assert np.all(mechanism.expected_absolute_error(counts, rounded=rounded) < allowed)


def test_the_expected_error_is_the_error_of_what_is_decoded():
    mechanism = Constant(floor=5)
    counts = np.array([0, 2, 3, 100])
    estimate = mechanism.decode(mechanism.encode(counts))
    assert np.array_equal(estimate, np.full(4, 2.5))
    assert np.array_equal(mechanism.expected_absolute_error(counts), np.abs(estimate - counts))
    assert np.array_equal(
        mechanism.expected_absolute_error(counts, rounded=True), np.abs(np.rint(estimate) - counts)
    )
    assert np.array_equal(mechanism.expected_bias(counts), estimate - counts)


def test_the_output_and_the_budget_do_not_depend_on_the_count():
    mechanism = Constant(floor=20)
    counts = np.array([[-5, 0, 1], [10**6, MAX_COUNT, 2**62]])
    assert np.all(mechanism.encode(counts) == 0)
    assert mechanism.encode(counts).shape == (2, 3)
    assert mechanism.noise is None
    assert np.all(mechanism.budget(counts, records_per_unit=7) == 0)
    assert mechanism.worst_case_budget(7) == 0
    lower, upper = mechanism.interval(np.zeros(3, dtype=np.int64))
    assert np.all(lower == 0)
    assert np.all(upper == MAX_COUNT)


@pytest.mark.parametrize("relative_error", [1.0])
def test_floor_1_with_relative_error_1_is_refused_with_the_mend(relative_error):
    # Both 0 and 1 are one off at the other count, and one is not below one.
    with pytest.raises(
        ConfigurationError,
        match=r"relative_error 1.0 with floor 1 .*at count 1.*floor of at least 2",
    ):
        Constant.calibrate(relative_error=relative_error, floor=1)


def test_just_above_1_and_just_above_the_floor_are_accepted():
    assert Constant.calibrate(relative_error=1.0001, floor=1).floor == 1
    assert Constant.calibrate(relative_error=1.0, floor=2).floor == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relative_error": 0.5, "floor": 10}, r"does not keep relative_error 0.5 with floor 10"),
        ({"relative_error": 0.0, "floor": 10}, r"relative_error must be .* got 0.0"),
        ({"relative_error": 1.5, "floor": 0.0}, r"floor must be a count from 1 .* got 0.0"),
        ({"relative_error": 1.5, "floor": float("nan")}, r"floor must be .* got nan"),
    ],
    ids=str,
)
def test_refusals_name_the_parameter_what_was_got_and_what_was_expected(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Constant.calibrate(**arguments)


def test_confidence_and_records_are_checked_although_nothing_depends_on_them():
    with pytest.raises(ConfigurationError, match="confidence must be"):
        Constant(floor=1).interval(0, 1.0)
    with pytest.raises(ConfigurationError, match="records_per_unit must be"):
        Constant(floor=1).budget(0, 0)
