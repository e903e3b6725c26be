"""The bounds a verification rests on hold with the stated probability; oracles are exact sums."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2, norm

from spark_dphist.mechanisms import (
    Constant,
    DiscreteGaussian,
    DiscreteLaplace,
    FixedGaussian,
    FixedLaplace,
    LinearLog,
    ShiftedLog,
)
from spark_dphist.verification.attack import views
from spark_dphist.verification.bounds import (
    binomial_p_value,
    distribution_distance,
    mean_lower,
    probability_lower,
    probability_upper,
)
from spark_dphist.verification.claim import Claim, Verification
from spark_dphist.verification.stated_noise import StatedNoise, stated_noise


@pytest.mark.parametrize("trials", [1, 7, 60])
@pytest.mark.parametrize("rate", [0.05, 1e-6, 1e-10])
@pytest.mark.parametrize("p", [1e-6, 0.03, 0.5, 0.9, 1 - 1e-6])
def test_bounds_of_a_probability_miss_it_no_more_often_than_stated(trials, rate, p):
    k = np.arange(trials + 1)
    weight = binom.pmf(k, trials, p)
    assert np.sum(weight[probability_lower(k, trials, rate) > p]) <= rate
    assert np.sum(weight[probability_upper(k, trials, rate) < p]) <= rate


@pytest.mark.parametrize(("successes", "trials"), [(3, 20), (250_000, 524_288), (500, 2**20)])
def test_bounds_of_a_probability_leave_exactly_the_rate_in_the_tail(successes, trials):
    for rate in (1e-3, 1e-10):
        low = float(probability_lower(successes, trials, rate))
        high = float(probability_upper(successes, trials, rate))
        assert binom.sf(successes - 1, trials, low) == pytest.approx(rate, rel=1e-6)
        assert binom.cdf(successes, trials, high) == pytest.approx(rate, rel=1e-6)


def test_bounds_of_a_probability_reach_0_and_1_at_the_ends():
    assert probability_lower(0, 10, 1e-9) == 0
    assert probability_upper(10, 10, 1e-9) == 1


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("level", [0.2, 1e-3, 1e-7])
def test_a_p_value_is_below_a_level_no_more_often_than_the_level_says(p, level):
    k = np.arange(201)
    values = binomial_p_value(k, 200, p)
    assert np.sum(binom.pmf(k, 200, p)[values <= level]) <= level * (1 + 1e-9)
    assert np.max(values) <= 1


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("rate", [0.2, 1e-3])
def test_the_lower_bound_of_a_mean_is_above_it_no_more_often_than_stated(p, rate):
    # Bernoulli variables, for which the probability can be summed exactly.
    size = 400
    missed = 0.0
    for k in range(size + 1):
        values = np.zeros(size)
        values[:k] = 1
        if mean_lower(values, 1.0, rate) > p:
            missed += binom.pmf(k, size, p)
    assert missed <= rate


def test_the_lower_bound_of_a_mean_approaches_it_and_cutting_only_lowers_it():
    values = np.random.default_rng(3).exponential(2.0, 10**6)
    assert 1.97 < mean_lower(values, 40.0, 1e-7) < 2.0
    assert mean_lower(values, 1.0, 1e-7) < mean_lower(values, 40.0, 1e-7)


def test_the_distance_of_distribution_functions_is_the_dvoretzky_kiefer_wolfowitz_bound():
    size, rate = 1000, 0.01
    distance = distribution_distance(size, rate)
    assert 2 * math.exp(-2 * size * distance**2) == pytest.approx(rate)


@pytest.mark.parametrize("size", [1000, 10**6])
@pytest.mark.parametrize("rate", [0.05, 1e-7])
def test_the_interval_of_a_gaussian_scale_holds_by_the_chi_squared_distribution(size, rate):
    noise = StatedNoise(DiscreteGaussian.power_of_two(44))
    low, high = noise.statistic_interval(size, rate)
    outside = chi2.cdf(low * size, size) + chi2.sf(high * size, size)
    # Chernoff's bound gives away a factor that grows with the logarithm of the rate only.
    assert rate / 40 < outside <= rate
    assert noise.expected_statistic == 1


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), Fraction(1), Fraction(4)])
def test_the_interval_of_a_laplace_scale_holds_by_simulation(epsilon):
    noise = StatedNoise(DiscreteLaplace(epsilon))
    generator = np.random.default_rng(11)
    # The difference of two geometric variables is discrete Laplace.
    stop = -math.expm1(-float(epsilon))
    draws = generator.geometric(stop, (2, 4000, 500))
    mean = np.mean(np.abs(draws[0] - draws[1]), axis=1) * float(epsilon)
    low, high = noise.statistic_interval(500, 0.05)
    outside = np.count_nonzero((mean < low) | (mean > high))
    # Expected at most 200 of 4000; more than 260 have probability below 1e-4.
    assert 0 < outside < 260
    assert np.mean(mean) == pytest.approx(noise.expected_statistic, rel=0.02)


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.25, 15.9, 16.1])
def test_the_scale_of_a_small_discrete_gaussian_is_not_that_of_a_normal_one(scale):
    noise = StatedNoise(DiscreteGaussian(Fraction(scale) ** 2))
    with mpmath.workdps(40):
        s2 = mpmath.mpf(Fraction(scale).numerator) ** 2 / Fraction(scale).denominator ** 2
        weights = [mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * s2)) for z in range(-700, 701)]
        second = sum(w * z * z for w, z in zip(weights, range(-700, 701), strict=True))
        expected = second / sum(weights) / s2
    assert noise.expected_statistic == pytest.approx(float(expected), rel=1e-12)
    low, high = noise.statistic_interval(10_000, 1e-7)
    assert low <= noise.expected_statistic <= high


@given(
    st.sampled_from([0.02, 0.5, 3.0, 40.0, 2.0**44]),
    st.integers(10**3, 10**8),
    st.floats(1e-12, 0.1),
)
def test_the_interval_of_the_scale_contains_what_is_expected(scale, size, rate):
    for noise in (
        StatedNoise(DiscreteGaussian(Fraction(scale) ** 2)),
        StatedNoise(DiscreteLaplace(1 / Fraction(scale))),
    ):
        low, high = noise.statistic_interval(size, rate)
        assert 0 <= low <= noise.expected_statistic <= high


def test_the_tail_of_the_stated_noise_is_symmetric_and_sums_to_one():
    for noise in (
        StatedNoise(DiscreteGaussian(Fraction(9))),
        StatedNoise(DiscreteLaplace(Fraction(1, 3))),
    ):
        value = np.arange(-60.0, 61.0)
        tail = noise.tail(value)
        assert np.allclose(tail[:-1] - tail[1:], noise.distribution.probability(value[:-1]))
        assert np.allclose(tail + noise.tail(1 - value), 1)


@pytest.mark.parametrize(
    ("mechanism", "scale_of"),
    [
        (ShiftedLog.calibrate(relative_error=0.1, floor=50), lambda it: 2 ** it["scale_bits"]),
        (LinearLog.calibrate(relative_error=0.3, floor=5), lambda it: 2 ** it["scale_bits"]),
        (FixedGaussian(scale=7.3, floor=5), lambda it: it["scale"]),
    ],
)
def test_the_stated_gaussian_noise_costs_its_shift_squared_over_twice_its_variance(
    mechanism, scale_of
):
    noise, scale = stated_noise(mechanism), Fraction(scale_of(mechanism.parameters()))
    for shift in (1, -17, 2**40 + 1):
        assert noise.rho_lower(shift) == Fraction(shift**2) / (2 * scale**2)


@pytest.mark.parametrize("shift", [1, 2, 50])
@pytest.mark.parametrize("epsilon", [0.001, 0.3, 5.0])
def test_the_stated_laplace_noise_costs_no_less_than_its_lower_bound(epsilon, shift):
    noise = stated_noise(FixedLaplace(epsilon=epsilon, floor=5))
    with mpmath.workdps(40):
        total = mpmath.mpf(epsilon) * shift
        exact = total * mpmath.tanh(total / 2)
        lower = noise.rho_lower(shift)
        assert mpmath.mpf(lower.numerator) / lower.denominator <= exact
        assert float(lower) == pytest.approx(float(exact), rel=1e-13)


def test_a_constant_states_no_noise():
    assert stated_noise(Constant(floor=20)) is None


def scores(first, second, factor):
    """Share of draws in the best event of each kind, less factor times that of the other count."""
    half = first.size // 2
    return {
        event.name: event.hits_first / half - factor * event.hits_second / half
        for view in views(first, second)
        for event in view.best_events(factor)
    }


@pytest.mark.parametrize("mu", [0.2, 1.0, -1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_the_attacker_reaches_the_neyman_pearson_bound_for_normal_outputs(mu, epsilon):
    generator = np.random.default_rng(5)
    first, second = generator.normal(0, 1, 400_000), generator.normal(mu, 1, 400_000)
    m = abs(mu)
    best = norm.cdf(m / 2 - epsilon / m) - math.exp(epsilon) * norm.cdf(-m / 2 - epsilon / m)
    got = scores(first, second, math.exp(epsilon))
    # Four deviations of a difference of two frequencies.
    noise = 4 * (1 + math.exp(epsilon)) * 0.5 / math.sqrt(200_000)
    assert got["size threshold"] == pytest.approx(best, abs=noise)
    assert got["size cells"] == pytest.approx(best, abs=noise)


def test_cells_find_what_no_threshold_does():
    generator = np.random.default_rng(6)
    first, second = generator.normal(0, 1, 100_000), generator.normal(0, 2, 100_000)
    got = scores(first, second, 1.0)
    assert got["size cells"] > got["size threshold"] + 0.1


def test_low_bits_find_noise_that_is_too_coarse():
    generator = np.random.default_rng(7)
    noise = generator.integers(-1000, 1000, (2, 10_000)) << 24
    got = scores(noise[0] + 12345, noise[1] + 12346, 1.0)
    assert got["bits from 0 cells"] == 1
    assert abs(got["size threshold"]) < 0.1


def test_outputs_alike_for_both_counts_give_no_advantage():
    generator = np.random.default_rng(8)
    draws = generator.integers(-(2**45), 2**45, (2, 200_000))
    assert max(scores(*draws, 1.0).values()) < 0.02


def test_a_claim_passes_between_its_bounds_only():
    def claim(measured, **bounds):
        return Claim(claim="c", how="h", measured=measured, **bounds)

    assert claim(1.0, upper=1.0).passed
    assert not claim(1.0, upper=1.0, strict=True).passed
    assert not claim(math.nextafter(1.0, 2.0), upper=1.0).passed
    assert not claim(0.5, lower=0.6, upper=1.0).passed
    assert not claim(math.nan, upper=1.0).passed
    assert not claim(math.nan, upper=1.0, strict=True).passed
    broken = Verification("m", {}, (claim(0.0), claim(2.0, upper=1.0)), fixed_release_key=False)
    assert not broken.passed
    assert '"measured": null' not in broken.to_json()
    unknown = Verification("m", {}, (claim(math.inf, upper=1.0),), fixed_release_key=False)
    assert '"measured": null' in unknown.to_json()
