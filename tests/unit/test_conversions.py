import doctest
import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_dphist.accounting import (
    delta_upper,
    epsilon_upper,
    gaussian_attacker_accuracy_upper,
    gaussian_delta_upper,
    gaussian_epsilon_upper,
    gaussian_mu_upper,
    pure_attacker_accuracy_upper,
    pure_to_rho_upper,
    rho_lower,
)
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.lattice import SIGMA_RANGE, Lattice

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "data" / "reference_values.json").read_text(encoding="utf-8")
)
TIGHT = 1e-9
# Steps in the argument too small to move the result leave its last digits free.
SAME = 1 + 1e-10

rhos = st.floats(-30, 6).map(lambda power: 10.0**power)
epsilons = st.floats(-12, 4).map(lambda power: 10.0**power)
mus = st.floats(-15, 3).map(lambda power: 10.0**power)
small_deltas = st.floats(-300, -1).map(lambda power: 10.0**power)
deltas = st.one_of(small_deltas, st.floats(0.001, 0.999))
slow = settings(max_examples=60)


def log_delta_of_zcdp(rho, epsilon):
    """ln inf over alpha of Corollary 13, straight from the formula, by ternary search."""
    rho, epsilon = mpmath.mpf(rho), mpmath.mpf(epsilon)

    def at(log_t):
        t = mpmath.exp(log_t)
        alpha = 1 + t
        return t * (alpha * rho - epsilon) - mpmath.log(t) + alpha * mpmath.log(t / alpha)

    low, high = mpmath.mpf(-900), mpmath.mpf(900)
    for _ in range(220):
        third = (high - low) / 3
        if at(low + third) < at(high - third):
            high -= third
        else:
            low += third
    return at((low + high) / 2)


def gaussian_delta(mu, epsilon):
    mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)

    def upper_tail(x):
        return mpmath.erfc(x / mpmath.sqrt(2)) / 2

    near, far = upper_tail(epsilon / mu - mu / 2), upper_tail(epsilon / mu + mu / 2)
    return near - mpmath.exp(epsilon) * far


@pytest.fixture(autouse=True)
def _many_digits():
    with mpmath.workdps(60):
        yield


@pytest.mark.parametrize("case", REFERENCE["zcdp_to_epsilon"])
def test_epsilon_agrees_with_the_reference_and_is_never_below_it(case):
    exact = mpmath.mpf(case["epsilon"])
    got = epsilon_upper(float(case["rho"]), float(case["delta"]))
    assert exact <= got <= exact * (1 + TIGHT)


@pytest.mark.parametrize("case", REFERENCE["gaussian_delta"])
def test_gaussian_delta_agrees_with_the_reference_and_is_never_below_it(case):
    exact = gaussian_delta(float(case["mu"]), float(case["epsilon"]))
    assert float(exact) == pytest.approx(float(case["delta"]), rel=1e-12)
    got = gaussian_delta_upper(float(case["mu"]), float(case["epsilon"]))
    assert exact <= got <= exact * (1 + TIGHT)


@pytest.mark.parametrize("case", REFERENCE["gaussian_attacker_accuracy"])
def test_gaussian_attacker_accuracy_agrees_with_the_reference(case):
    mu = float(case["mu"])
    exact = mpmath.mpf(case["accuracy"])
    got = gaussian_attacker_accuracy_upper(mu * mu / 2)
    assert exact * (1 - mpmath.mpf(10) ** -15) <= got <= exact * (1 + TIGHT)


@slow
@given(rho=rhos, delta=deltas)
def test_epsilon_is_never_below_the_exact_one_and_is_tight(rho, delta):
    epsilon = epsilon_upper(rho, delta)
    assert log_delta_of_zcdp(rho, epsilon) <= mpmath.log(delta)
    if epsilon > 0:
        assert log_delta_of_zcdp(rho, epsilon * (1 - TIGHT)) > mpmath.log(delta)


@slow
@given(rho=rhos, epsilon=st.one_of(epsilons, st.just(0.0)))
def test_delta_is_never_below_the_exact_one_and_is_tight(rho, epsilon):
    delta, log_exact = delta_upper(rho, epsilon), log_delta_of_zcdp(rho, epsilon)
    assert mpmath.log(delta) >= log_exact
    assert delta <= mpmath.exp(log_exact) * (1 + TIGHT) + 1e-320


@slow
@given(epsilon=epsilons, delta=deltas)
def test_rho_is_the_largest_that_epsilon_allows(epsilon, delta):
    rho = rho_lower(epsilon, delta)
    assert epsilon_upper(rho, delta) <= epsilon
    assert epsilon_upper(rho * (1 + TIGHT), delta) > epsilon


@slow
@given(rho=rhos, delta=deltas)
def test_rho_to_epsilon_and_back_loses_almost_nothing(rho, delta):
    epsilon = epsilon_upper(rho, delta)
    assume(epsilon > 0)
    assert rho * (1 - TIGHT) <= rho_lower(epsilon, delta) <= rho * (1 + 1e-12)
    assert delta * (1 - TIGHT) <= delta_upper(rho, epsilon) <= delta * (1 + TIGHT)


@slow
@given(mu=mus, score=st.floats(-5, 38))
def test_gaussian_delta_is_never_below_the_exact_one_and_is_tight(mu, score):
    epsilon = max(0.0, mu * (score + mu / 2))
    exact, got = gaussian_delta(mu, epsilon), gaussian_delta_upper(mu, epsilon)
    assert exact <= got <= exact * (1 + TIGHT) + 1e-320


@slow
@given(mu=mus, delta=deltas)
def test_gaussian_epsilon_keeps_delta_and_is_tight(mu, delta):
    epsilon = gaussian_epsilon_upper(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta_upper(mu, epsilon) <= delta
    if epsilon > 0:
        assert gaussian_delta(mu, epsilon * (1 - TIGHT)) > delta * (1 - TIGHT)


@pytest.mark.parametrize("mu", [4.9e-3, 5e-3, 5.1e-3])
@pytest.mark.parametrize("score", [-0.0025, 0.0, 3.0, 37.0])
def test_the_series_and_the_difference_meet_where_they_change_over(mu, score):
    epsilon = max(0.0, mu * (score + mu / 2))
    exact, got = gaussian_delta(mu, epsilon), gaussian_delta_upper(mu, epsilon)
    assert exact <= got <= exact * (1 + TIGHT)


@given(rho=rhos, delta=deltas, more=st.floats(1e-6, 10))
def test_epsilon_rises_with_rho_and_falls_with_delta(rho, delta, more):
    assert epsilon_upper(rho, delta) <= epsilon_upper(rho * (1 + more), delta)
    assume(delta * (1 + more) < 1)
    assert epsilon_upper(rho, delta * (1 + more)) <= epsilon_upper(rho, delta)


@given(rho=rhos, epsilon=epsilons, more=st.floats(1e-6, 10))
def test_delta_rises_with_rho_and_falls_with_epsilon(rho, epsilon, more):
    delta = delta_upper(rho, epsilon)
    assert delta <= delta_upper(rho * (1 + more), epsilon) * SAME
    assert delta_upper(rho, epsilon * (1 + more)) <= delta * SAME


@given(epsilon=epsilons, delta=deltas, more=st.floats(1e-6, 10))
def test_rho_rises_with_epsilon_and_with_delta(epsilon, delta, more):
    assert rho_lower(epsilon, delta) <= rho_lower(epsilon * (1 + more), delta) * SAME
    assume(delta * (1 + more) < 1)
    assert rho_lower(epsilon, delta) <= rho_lower(epsilon, delta * (1 + more))


@given(mu=mus, epsilon=epsilons, delta=deltas, more=st.floats(1e-6, 10))
def test_gaussian_conversions_rise_with_mu_and_fall_with_the_other(mu, epsilon, delta, more):
    got = gaussian_delta_upper(mu, epsilon)
    assert got <= gaussian_delta_upper(mu * (1 + more), epsilon) * SAME
    assert gaussian_delta_upper(mu, epsilon * (1 + more)) <= got * SAME
    assert gaussian_epsilon_upper(mu, delta) <= gaussian_epsilon_upper(mu * (1 + more), delta)
    assume(delta * (1 + more) < 1)
    assert gaussian_epsilon_upper(mu, delta * (1 + more)) <= gaussian_epsilon_upper(mu, delta)


@given(rho=rhos, epsilon=epsilons)
def test_a_gaussian_leaks_no_more_than_any_mechanism_of_its_rho_may(rho, epsilon):
    assert gaussian_delta_upper(gaussian_mu_upper(rho), epsilon) <= delta_upper(rho, epsilon) * (
        1 + TIGHT
    )


@pytest.mark.parametrize("scale", [4, 64])
@pytest.mark.parametrize("shift", [1, 3, 40])
@pytest.mark.parametrize("score", [-1.0, 0.0, 1.5, 6.0])
def test_a_lattice_adds_at_most_two_plus_score_steps_to_delta(scale, shift, score):
    mu = mpmath.mpf(shift) / scale
    epsilon = max(mpmath.mpf(0), mu * (score + mu / 2))
    weights = {k: mpmath.exp(-mpmath.mpf(k * k) / (2 * scale**2)) for k in range(-2000, 2001)}
    total, no_weight = sum(weights.values()), mpmath.mpf(0)
    exact = sum(
        max(mpmath.mpf(0), weight - mpmath.exp(epsilon) * weights.get(k + shift, no_weight))
        for k, weight in weights.items()
        if abs(k) < 1500
    )
    score = max(epsilon / mu - mu / 2, mpmath.mpf(0))
    assert exact / total <= gaussian_delta(mu, epsilon) * (1 + (2 + score) / scale)


def test_no_mechanism_in_log_space_has_a_coarser_lattice_than_delta_allows_for():
    for sigma in np.geomspace(*SIGMA_RANGE, 50):
        assert Lattice.for_sigma(float(sigma)).scale_bits >= 36


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.5, 5.0])
def test_epsilon_agrees_with_dp_accounting_on_many_orders(rho):
    orders = 1 + np.geomspace(1e-3, 1e5, 20_000)
    theirs, _ = rdp_privacy_accountant.compute_epsilon(orders, orders * rho, 1e-6)
    ours = epsilon_upper(rho, 1e-6)
    # A grid of orders can only be worse than the best order.
    assert theirs * (1 - 1e-5) <= ours <= theirs * (1 + 1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 3.0])
def test_gaussian_delta_agrees_with_dp_accounting(mu, epsilon):
    theirs = GaussianPrivacyLoss(standard_deviation=1 / mu).get_delta_for_epsilon(epsilon)
    assert gaussian_delta_upper(mu, epsilon) == pytest.approx(theirs, rel=1e-8, abs=1e-16)


@slow
@given(rho=rhos)
def test_mu_is_the_square_root_of_twice_rho_rounded_up(rho):
    exact = mpmath.sqrt(2 * mpmath.mpf(rho))
    assert exact <= gaussian_mu_upper(rho) <= exact * (1 + 1e-15)


@slow
@given(rho=rhos)
def test_gaussian_accuracy_is_half_of_one_plus_the_delta_at_zero(rho):
    mu = mpmath.sqrt(2 * mpmath.mpf(rho))
    exact = min((1 + gaussian_delta(mu, 0)) / 2, mpmath.mpf(1))
    assert exact * (1 - mpmath.mpf(10) ** -40) <= gaussian_attacker_accuracy_upper(rho)
    assert gaussian_attacker_accuracy_upper(rho) <= exact * (1 + 1e-10)


@slow
@given(epsilon=st.floats(0, 100))
def test_pure_accuracy_is_never_below_the_exact_one(epsilon):
    exact = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
    assert exact <= pure_attacker_accuracy_upper(epsilon) <= min(exact * (1 + 1e-13), 1)


@slow
@given(epsilon=st.floats(1e-6, 50), log_t=st.floats(-12, 12))
def test_randomised_response_stays_within_the_rho_of_its_epsilon(epsilon, log_t):
    # Randomised response is the worst epsilon-DP mechanism at every order: docs/accounting.md.
    epsilon, alpha = mpmath.mpf(epsilon), 1 + mpmath.exp(mpmath.mpf(log_t))
    p, q = 1 / (1 + mpmath.exp(-epsilon)), 1 / (1 + mpmath.exp(epsilon))
    moment = p**alpha * q ** (1 - alpha) + q**alpha * p ** (1 - alpha)
    divergence = mpmath.log(moment) / (alpha - 1)
    assert divergence <= alpha * mpmath.mpf(pure_to_rho_upper(float(epsilon)))


@slow
@given(epsilon=st.floats(1e-6, 50))
def test_the_rho_of_an_epsilon_is_the_divergence_of_randomised_response_at_order_one(epsilon):
    exact = mpmath.mpf(epsilon) * mpmath.tanh(mpmath.mpf(epsilon) / 2)
    assert exact <= pure_to_rho_upper(epsilon) <= exact * (1 + 1e-13)
    assert pure_to_rho_upper(epsilon) <= epsilon**2 / 2 * (1 + 1e-13)


def test_no_budget_means_no_loss():
    assert epsilon_upper(0.0, 1e-9) == 0
    assert delta_upper(0.0, 0.0) == 0
    assert gaussian_delta_upper(0.0, 0.0) == 0
    assert gaussian_epsilon_upper(0.0, 1e-9) == 0
    assert gaussian_mu_upper(0.0) == 0
    assert gaussian_attacker_accuracy_upper(0.0) == 0.5
    assert pure_attacker_accuracy_upper(0.0) == 0.5
    assert pure_to_rho_upper(0.0) == 0


def test_an_infinite_budget_promises_nothing():
    assert epsilon_upper(math.inf, 1e-9) == math.inf
    assert delta_upper(math.inf, 5.0) == 1
    assert rho_lower(math.inf, 1e-9) == math.inf
    assert gaussian_delta_upper(math.inf, 5.0) == 1
    assert gaussian_epsilon_upper(math.inf, 1e-9) == math.inf
    assert gaussian_attacker_accuracy_upper(math.inf) == 1
    assert pure_attacker_accuracy_upper(math.inf) == 1
    assert pure_to_rho_upper(math.inf) == math.inf


def test_a_delta_that_covers_rho_alone_needs_no_epsilon():
    assert epsilon_upper(1e-10, 0.01) == 0
    assert gaussian_epsilon_upper(1e-3, 0.01) == 0


def test_what_underflows_is_rounded_up_to_the_smallest_number():
    assert delta_upper(1e-6, 10.0) == math.ulp(0.0)
    assert gaussian_delta_upper(1e-3, 10.0) == math.ulp(0.0)


EXTREMES = [0.0, 5e-324, 1e-310, 1e-200, 1e-30, 1.0, 1e6, 1e100, 1e200, 1.7e308, math.inf]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("extreme", EXTREMES)
def test_no_argument_overflows_or_turns_into_nan(extreme):
    for delta in (5e-324, 1e-310, 1e-300, 0.5, 1 - 2**-53):
        for function in (epsilon_upper, rho_lower, gaussian_epsilon_upper):
            assert function(extreme, delta) >= 0
    for other in EXTREMES:
        for function in (delta_upper, gaussian_delta_upper):
            assert 0 <= function(extreme, other) <= 1


def test_arrays_are_broadcast_and_agree_with_numbers():
    rho, delta = np.geomspace(1e-20, 1e4, 25)[:, None], np.array([1e-100, 1e-6, 0.3])
    for function in (epsilon_upper, rho_lower, gaussian_epsilon_upper):
        got = function(rho, delta)
        assert got.shape == (25, 3)
        assert got.dtype == np.float64
        one_by_one = [[function(float(r), float(d)) for d in delta] for r in rho[:, 0]]
        np.testing.assert_allclose(got, one_by_one, rtol=1e-11)
    epsilon = np.array([0.0, 0.1, 5.0])
    for function in (delta_upper, gaussian_delta_upper):
        one_by_one = [[function(float(r), float(e)) for e in epsilon] for r in rho[:, 0]]
        np.testing.assert_allclose(function(rho, epsilon), one_by_one, rtol=1e-9, atol=1e-320)


def test_numbers_give_floats_and_integers_are_welcome():
    assert type(epsilon_upper(1, 1e-6)) is float
    assert type(gaussian_mu_upper(2)) is float
    assert epsilon_upper(np.array([1, 2]), 1e-6).shape == (2,)
    assert epsilon_upper(np.array([]), 1e-6).shape == (0,)


@pytest.mark.parametrize("wrong", [-1e-300, -1.0, math.nan, -math.inf])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: epsilon_upper(x, 0.1), "rho"),
        (lambda x: delta_upper(x, 0.1), "rho"),
        (lambda x: delta_upper(0.1, x), "epsilon"),
        (lambda x: rho_lower(x, 0.1), "epsilon"),
        (lambda x: gaussian_delta_upper(x, 0.1), "mu"),
        (lambda x: gaussian_delta_upper(0.1, x), "epsilon"),
        (lambda x: gaussian_epsilon_upper(x, 0.1), "mu"),
        (lambda x: gaussian_mu_upper(x), "rho"),
        (lambda x: gaussian_attacker_accuracy_upper(x), "rho"),
        (lambda x: pure_attacker_accuracy_upper(x), "epsilon"),
        (lambda x: pure_to_rho_upper(x), "epsilon"),
    ],
)
def test_a_negative_or_missing_number_is_refused_by_name(call, name, wrong):
    with pytest.raises(ConfigurationError, match=rf"{name} = .*expected a number of at least 0"):
        call(wrong)
    with pytest.raises(ConfigurationError, match=name):
        call(np.array([0.5, wrong]))


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 1.5, math.nan])
@pytest.mark.parametrize("function", [epsilon_upper, rho_lower, gaussian_epsilon_upper])
def test_a_delta_that_is_no_probability_is_refused_by_name(function, wrong):
    with pytest.raises(ConfigurationError, match=r"delta = .*strictly between 0 and 1"):
        function(0.5, wrong)


def test_the_numbers_in_the_documentation_are_what_the_code_says():
    document = Path(__file__).parents[2] / "docs" / "accounting.md"
    failed, attempted = doctest.testfile(str(document), module_relative=False)
    assert failed == 0
    assert attempted >= 8


def test_text_is_refused_with_the_type_that_was_got():
    with pytest.raises(ConfigurationError, match="rho is of type str"):
        epsilon_upper("much", 1e-6)
