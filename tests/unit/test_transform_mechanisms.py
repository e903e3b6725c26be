import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import mean_of
from scipy.special import ndtr

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, LinearLog, ShiftedLog

MECHANISMS = [
    ShiftedLog(sigma=0.0627, shift=1, floor=1),
    ShiftedLog(sigma=0.3, shift=2.5, floor=20, drift="unbiased"),
    ShiftedLog(sigma=0.9, shift=0.3, floor=1, drift="median_unbiased"),
    LinearLog(sigma=0.1253, floor=1),
    LinearLog(sigma=0.3, floor=20, knee=17.5),
    LinearLog(sigma=0.9, floor=20, knee=40, drift="median_unbiased"),
]
both_mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)


@both_mechanisms
@pytest.mark.parametrize("count", [0, 1, 3, 19, 60])
def test_error_and_bias_are_the_means_over_the_noise(mechanism, count):
    with mpmath.workdps(25):
        error = mean_of(mechanism, count, lambda value: abs(value - count))
        bias = mean_of(mechanism, count, lambda value: value - count)
    assert float(mechanism.expected_absolute_error(count)) == pytest.approx(float(error), rel=1e-11)
    assert float(mechanism.expected_bias(count)) == pytest.approx(
        float(bias), rel=1e-9, abs=1e-12 * float(error)
    )


@both_mechanisms
def test_half_of_the_median_unbiased_estimates_are_below_the_count(mechanism):
    median = type(mechanism)(
        **{
            **{k: v for k, v in mechanism.parameters().items() if k != "scale_bits"},
            "drift": "median_unbiased",
        }
    )
    counts = np.array([1, 5, 20, 10**6, 10**12])
    # No noise at all is the median noise.
    assert median.decode(median.encode(counts)) == pytest.approx(counts, rel=1e-12)


@both_mechanisms
def test_the_budget_never_rises_with_the_count(mechanism):
    counts = np.unique(
        np.concatenate([np.arange(5000), np.rint(np.geomspace(5000, MAX_COUNT, 20_000))])
    )
    budget = mechanism.budget(counts)
    assert budget[0] == budget[1]
    # Doubles may wobble in their last places.
    assert np.all(np.diff(budget) <= 1e-14 * budget[1:])


@both_mechanisms
@pytest.mark.parametrize("records", [1, 2, 7, 50])
def test_the_worst_case_with_many_records_per_unit_is_at_0_and_at_their_number(mechanism, records):
    budget = mechanism.budget(np.arange(500), records)
    worst = mechanism.worst_case_budget(records)
    assert worst == budget[0] == budget[records] == np.max(budget)
    assert np.all(np.diff(budget[records:]) <= 1e-14 * budget[records])


@both_mechanisms
def test_the_worst_case_with_many_records_dips_in_between(mechanism):
    budget = mechanism.budget(np.arange(51), 50)
    if isinstance(mechanism, LinearLog) and mechanism.knee > 25:
        # Up to the knee every step of f is the same, so there is next to nothing to dip.
        assert np.min(budget) <= budget[0]
    else:
        assert np.min(budget) < 0.8 * budget[0]


@both_mechanisms
@pytest.mark.parametrize("records", [1, 2, 7, 50])
def test_the_budget_over_a_range_bounds_the_budget_of_every_count_in_it(mechanism, records):
    budget = mechanism.budget(np.arange(300), records)
    generator = np.random.default_rng(20260114)
    low = np.concatenate([generator.integers(0, 120, 300), [0, 0, records]])
    high = np.minimum(low + generator.integers(0, 150, low.size), 299)
    least, greatest = mechanism.budget_over(low - 0.4, high + 0.4, records)
    for i in range(low.size):
        inside = budget[low[i] : high[i] + 1]
        assert greatest[i] == pytest.approx(np.max(inside), rel=1e-13)
        assert least[i] <= np.min(inside)


@both_mechanisms
def test_many_groups_cost_a_unit_at_most_the_square_of_its_records_times_the_worst_case(mechanism):
    # All splits of 6 records over groups, each at its worst count.
    worst = mechanism.worst_case_budget(1)
    for parts in ([6], [5, 1], [4, 2], [3, 3], [2, 2, 2], [1] * 6, [4, 1, 1], [3, 2, 1]):
        together = sum(mechanism.worst_case_budget(part) for part in parts)
        assert together <= 36 * worst


@both_mechanisms
def test_the_budget_falls_like_the_inverse_square_of_the_count(mechanism):
    n = 10.0**7
    limit = 1 / (2 * mechanism.sigma**2)
    assert n**2 * float(mechanism.budget(n)) == pytest.approx(limit, rel=1e-5)


def coverage_of(mechanism, count, confidence):
    """Add up the probability of every noise whose interval contains the count, by bisection."""
    start, scale = int(mechanism.encode(count)), 2**mechanism.lattice.scale_bits

    def lowest_noise(holds):
        low, high = -12 * scale, 12 * scale
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high / scale

    def upper_reaches(noise):
        return mechanism.interval(start + noise, confidence)[1] >= count

    def lower_exceeds(noise):
        return mechanism.interval(start + noise, confidence)[0] > count

    return ndtr(lowest_noise(lower_exceeds)) - ndtr(lowest_noise(upper_reaches))


@both_mechanisms
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_covers_every_count_with_exactly_the_stated_probability(mechanism, confidence):
    for count in (1, 2, 19, 20, 21, 1000, 10**9, 10**12):
        assert coverage_of(mechanism, count, confidence) == pytest.approx(confidence, abs=1e-9)
    assert coverage_of(mechanism, 0, confidence) == pytest.approx((1 + confidence) / 2, abs=1e-9)


@both_mechanisms
def test_bounds_are_ordered_and_not_negative(mechanism):
    counts = np.array([0, 1, 5, 100, 10**9])
    noise = np.linspace(-6, 6, 25)[:, None] * 2.0**mechanism.lattice.scale_bits
    lower, upper = mechanism.interval(mechanism.encode(counts) + noise.astype(np.int64), 0.9)
    assert np.all(lower >= 0)
    assert np.all(lower <= upper)
    assert np.all((lower < upper) | (upper == 0))


@settings(max_examples=100)
@given(st.sampled_from(MECHANISMS), st.integers(-(2**62), 2**62), st.integers(0, 2**61))
def test_larger_lattice_points_never_decode_to_smaller_estimates(mechanism, lattice, further):
    lower, upper = mechanism.decode([lattice, lattice + further])
    assert lower <= upper
    assert np.isfinite(upper)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_a_confidence_that_is_no_probability_is_refused(confidence):
    with pytest.raises(
        ConfigurationError, match=r"confidence must be strictly between 0 and 1, got"
    ):
        MECHANISMS[0].interval(0, confidence)


@pytest.mark.parametrize("records", [0, -1, 1.5, float("nan"), "2"])
def test_a_number_of_records_that_is_no_positive_integer_is_refused(records):
    with pytest.raises(ConfigurationError, match=r"records_per_unit must be an integer from 1 on"):
        MECHANISMS[0].budget(1, records)
