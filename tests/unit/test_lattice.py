from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mechanism_oracles import any_mechanism, budget_of_integers, exact_budget, transform

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, Lattice, LinearLog, ShiftedLog
from spark_dphist.mechanisms.lattice import SIGMA_RANGE

KINDS = st.sampled_from(["shifted_log", "linear_log"])
SIGMAS = st.floats(-20, 3).map(lambda e: min(max(2.0**e, SIGMA_RANGE[0]), SIGMA_RANGE[1]))
SIZES = st.floats(-10, 48).map(lambda e: 2.0**e)
COUNTS = st.one_of(
    st.integers(0, 2000),
    st.integers(0, MAX_COUNT),
    st.tuples(st.integers(0, 48), st.integers(-3, 3)).map(lambda t: max(2 ** t[0] + t[1], 0)),
)


def shifts_never_exceed_the_budget(mechanism, count, records=1):
    claimed = Fraction(float(mechanism.budget(count, records)))
    for neighbour in {count + records, max(count - records, 0), count + 1}:
        assert budget_of_integers(mechanism, count, neighbour) <= claimed


@settings(max_examples=300)
@given(KINDS, SIGMAS, SIZES, COUNTS, st.one_of(st.just(1), st.integers(2, 100_000)))
@example("linear_log", 0.125, 100.5, 100, 1)
@example("linear_log", SIGMA_RANGE[0], 2.0**48, MAX_COUNT, 1)
@example("shifted_log", SIGMA_RANGE[0], 2.0**-10, MAX_COUNT - 1, 1)
@example("shifted_log", SIGMA_RANGE[1], 2.0**-10, 0, 1)
def test_the_shipped_integers_never_cost_more_than_the_budget(kind, sigma, size, count, records):
    shifts_never_exceed_the_budget(any_mechanism(kind, sigma, size), count, records)


@pytest.mark.parametrize(
    "mechanism",
    [
        ShiftedLog(sigma=0.0627, shift=1, floor=1),
        ShiftedLog(sigma=0.84, shift=0.3, floor=1),
        LinearLog(sigma=0.1253, floor=1),
        LinearLog(sigma=0.0627, floor=100, knee=99.37),
        LinearLog(sigma=0.67, floor=20, knee=25.5),
    ],
    ids=repr,
)
def test_every_small_and_every_boundary_count_costs_at_most_its_budget(mechanism):
    powers = 2 ** np.arange(13, 49)
    counts = np.concatenate(
        [np.arange(5000), *(powers + k for k in (-2, -1, 0, 1)), [MAX_COUNT + 1, 2**62]]
    )
    scale = Fraction(1, 2 * 4**mechanism.lattice.scale_bits)
    here, above = mechanism.encode(counts), mechanism.encode(counts + 1)
    below = mechanism.encode(np.maximum(counts - 1, 0))
    claimed = mechanism.budget(counts)
    for distance in (above - here, here - below):
        # An upper bound in doubles first; the exact comparison only where it is close.
        for i in range(counts.size):
            assert int(distance[i]) ** 2 * scale <= Fraction(float(claimed[i])), counts[i]


@settings(max_examples=200)
@given(
    KINDS,
    st.floats(0.005, 3),
    SIZES.filter(lambda s: s <= 1e9),
    st.integers(0, 10**9),
    st.sampled_from([1, 2, 50]),
)
def test_the_budget_is_above_the_exact_value_and_within_1e_4_up_to_a_billion(
    kind, sigma, size, count, records
):
    mechanism = any_mechanism(kind, sigma, size)
    exact = exact_budget(mechanism, count, records)
    claimed = mpmath.mpf(float(mechanism.budget(count, records)))
    assert exact <= claimed <= exact * (1 + mpmath.mpf("1e-4"))


@settings(max_examples=200)
@given(SIGMAS, st.floats(2.0**-63, 2.0**63))
@example(0.1, 1.0)
@example(0.1, np.sqrt(0.5))
@example(0.1, np.nextafter(np.sqrt(0.5), 0))
@example(SIGMA_RANGE[0], 2.0**63)
def test_the_logarithm_on_the_lattice_is_within_its_stated_error(sigma, value):
    lattice = Lattice.for_sigma(sigma)
    with mpmath.workdps(60):
        steps_per_unit = mpmath.mpf(2) ** lattice.scale_bits / mpmath.mpf(sigma)
        error = (
            int(lattice.from_logarithm_of(np.array([value]))[0])
            - mpmath.log(mpmath.mpf(value)) * steps_per_unit
        )
        # The caller's rounding of the value is not exercised here: 11/8 of the 15/8 remain.
        assert abs(error) <= 1 + mpmath.mpf(11) / 8 * mpmath.mpf(2) ** -52 * steps_per_unit


@settings(max_examples=100)
@given(SIGMAS, st.floats(0, 1))
def test_a_fraction_on_the_lattice_is_within_its_stated_error(sigma, value):
    lattice = Lattice.for_sigma(sigma)
    with mpmath.workdps(60):
        steps_per_unit = mpmath.mpf(2) ** lattice.scale_bits / mpmath.mpf(sigma)
        error = int(lattice.from_fraction(np.array([value]))[0]) - value * steps_per_unit
        assert abs(error) <= 0.5 + mpmath.mpf(2) ** -52 * steps_per_unit
        assert abs(lattice.one - steps_per_unit) <= 0.5


@settings(max_examples=200)
@given(SIGMAS, st.floats(-30, 40), st.floats(-1, 1))
def test_the_exponential_of_a_lattice_point_is_accurate_whatever_its_size(sigma, nats, offset):
    lattice = Lattice.for_sigma(sigma)
    steps = int(nats * lattice.steps_per_unit)
    with mpmath.workdps(60):
        exact = mpmath.exp(steps * mpmath.mpf(sigma) / mpmath.mpf(2) ** lattice.scale_bits + offset)
        got = mpmath.mpf(float(lattice.exponential_of(np.array([steps]), offset)[0]))
        assert abs(got / exact - 1) <= 11 * mpmath.mpf(2) ** -53


def test_the_exponential_of_an_absurd_lattice_point_is_finite():
    for sigma in (SIGMA_RANGE[0], 0.1, SIGMA_RANGE[1]):
        extremes = np.array([-(2**63), 2**63 - 1])
        values = Lattice.for_sigma(sigma).exponential_of(extremes, 0.0)
        assert np.all(np.isfinite(values))
        assert values[0] < 1 < values[1]


@settings(max_examples=200)
@given(KINDS, SIGMAS, SIZES, st.integers(0, MAX_COUNT - 1))
@example("shifted_log", 0.1, 2.0**48, MAX_COUNT - 1)
@example("linear_log", 0.1, 2.0**48, MAX_COUNT - 1)
@example("linear_log", 0.1, 2.0**-10, MAX_COUNT - 1)
@example("linear_log", 0.125, 100.0, 99)
@example("linear_log", 0.125, 100.0, 100)
def test_larger_counts_have_larger_integers_up_to_the_public_bound(kind, sigma, size, count):
    here, above = any_mechanism(kind, sigma, size).encode([count, count + 1])
    assert here < above


@settings(max_examples=100)
@given(KINDS, SIGMAS, SIZES)
def test_integers_leave_room_for_the_noise(kind, sigma, size):
    mechanism = any_mechanism(kind, sigma, size)
    k = mechanism.encode([0, MAX_COUNT])
    assert np.all(np.abs(k.astype(object)) < 2**62)
    # 32 standard deviations of noise: probability below 2**-740.
    assert max(abs(int(v)) for v in k) + 32 * 2**mechanism.lattice.scale_bits < 2**63


@pytest.mark.parametrize("kind", ["shifted_log", "linear_log"])
def test_negative_and_absurd_counts_saturate_at_the_public_bounds(kind):
    mechanism = any_mechanism(kind, 0.1, 1.0)
    lowest, highest = mechanism.encode([0, MAX_COUNT])
    absurd = np.array([MAX_COUNT + 1, 2**62, np.iinfo(np.int64).max], dtype=np.int64)
    assert np.all(mechanism.encode(absurd) == highest)
    assert np.all(mechanism.encode([np.iinfo(np.int64).min, -1]) == lowest)
    assert np.all(mechanism.encode([np.inf, 1e300]) == highest)
    assert int(mechanism.encode(np.iinfo(np.uint64).max)) == highest


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64, np.float32, np.bool_])
def test_counts_of_any_number_type_give_the_same_integers(dtype):
    mechanism = ShiftedLog(sigma=0.1, shift=1, floor=1)
    expected = mechanism.encode(np.array([0, 1], dtype=np.int64))
    got = mechanism.encode(np.array([0, 1], dtype=dtype))
    assert got.dtype == np.int64
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("sigma", [0.0, -1.0, 2.0**-21, 8.01, float("nan"), float("inf")])
def test_a_sigma_out_of_range_is_refused_by_name(sigma):
    with pytest.raises(ConfigurationError, match=r"sigma must be a number from .* got .*Choose"):
        Lattice.for_sigma(sigma)
    with pytest.raises(ConfigurationError, match="sigma must be"):
        ShiftedLog(sigma=sigma, shift=1, floor=1)


def test_the_noise_is_at_least_2_to_the_44_steps_wide_unless_int64_forbids_it():
    for exponent in range(-20, 4):
        lattice = Lattice.for_sigma(2.0**exponent)
        assert lattice.scale_bits >= 44 or lattice.steps_per_unit == 2.0**56
        assert 2.0**52 <= lattice.steps_per_unit <= 2.0**56


@settings(max_examples=200)
@given(KINDS, SIGMAS, SIZES, COUNTS)
def test_the_encoded_count_is_within_the_stated_error_of_the_exact_transform(
    kind, sigma, size, count
):
    mechanism = any_mechanism(kind, sigma, size)
    with mpmath.workdps(60):
        steps_per_unit = mpmath.mpf(2) ** mechanism.lattice.scale_bits / mpmath.mpf(sigma)
        exact = transform(mechanism, min(count, MAX_COUNT)) * steps_per_unit
        error = int(mechanism.encode(count)) - exact
        # One step for the logarithm; half a step more for the lattice point of 1.
        steps = 1 if kind == "shifted_log" else 1.5
        assert abs(error) <= steps + mpmath.mpf(15) / 8 * mpmath.mpf(2) ** -52 * steps_per_unit


@settings(max_examples=100)
@given(SIGMAS, st.floats(-40, 5).map(np.exp))
def test_the_budget_of_a_step_counts_two_steps_of_rounding_and_the_error_of_doubles(sigma, step):
    lattice = Lattice.for_sigma(sigma)
    with mpmath.workdps(60):
        shift = (step + mpmath.mpf(2) ** -50) / mpmath.mpf(sigma)
        shift += 2 / mpmath.mpf(2) ** lattice.scale_bits
        claimed = mpmath.mpf(float(lattice.budget_upper(np.array([step]))[0]))
        # Eight units in the last place of room for the step itself.
        assert claimed >= shift**2 / 2 * (1 + mpmath.mpf(2) ** -49)


@pytest.mark.parametrize("kind", ["shifted_log", "linear_log"])
def test_steps_at_huge_counts_do_not_cancel(kind):
    mechanism = any_mechanism(kind, 0.06, 100.0)
    generator = np.random.default_rng(7)
    for count in generator.integers(10**11, MAX_COUNT, 300):
        exact = exact_budget(mechanism, int(count))
        claimed = float(mechanism.budget(count))
        assert exact <= claimed <= (np.sqrt(float(exact)) + 2.0**-49 / 0.06) ** 2
