"""Budgets add up exactly, and what they compose to is never reported too small."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant, common
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.accounting import composition
from spark_dphist.accounting.composition import (
    STANDARD_COUNTS,
    PolicyCost,
    Rho,
    canonical_json,
    group_rho_upper,
    tight_epsilon_upper,
    total_rho_upper,
    zcdp_epsilon_upper,
)
from spark_dphist.accounting.conversions import epsilon_upper
from spark_dphist.errors import ConfigurationError

amounts = st.floats(min_value=0.0, max_value=1e12, allow_nan=False)


def gaussian(rho: float, **extra: object) -> PolicyCost:
    return PolicyCost(Rho.upper(rho), "linear_log", {"sigma": 0.1}, **extra)


# Exact amounts


@given(amounts)
def test_a_spend_is_never_recorded_below_the_double_it_came_from(rho):
    recorded = Fraction(Rho.upper(rho).units, 10**30)
    assert Fraction(rho) <= recorded < Fraction(rho) + Fraction(1, 10**30)


@given(amounts)
def test_a_cap_is_never_recorded_above_what_was_declared(rho):
    recorded = Fraction(Rho.lower(rho).units, 10**30)
    assert Fraction(rho) - Fraction(1, 10**30) < recorded <= Fraction(rho)


@given(st.lists(st.integers(min_value=0, max_value=10**60), max_size=20))
def test_the_double_shown_for_an_amount_is_the_least_one_not_below_it(units):
    total = Rho(sum(units))
    shown = total.float_upper()
    assert Fraction(shown) >= Fraction(total.units, 10**30)
    below = math.nextafter(shown, -math.inf)
    assert total.units == 0 or Fraction(below) < Fraction(total.units, 10**30)


@given(st.integers(min_value=0, max_value=10**400))
def test_an_amount_survives_its_text(units):
    assert Rho.upper(str(Rho(units))) == Rho.lower(str(Rho(units))) == Rho(units)


def test_a_million_spends_too_small_to_move_a_double_still_count():
    tiny, one = 1e-25, Rho.upper(1.0)
    assert 1.0 + tiny == 1.0
    spent = one
    for _ in range(10**6):
        spent += Rho.upper(tiny)
    assert spent > one
    assert Fraction(spent.units - one.units, 10**30) >= 10**6 * Fraction(tiny)
    assert str(spent) == "1.000000000000000000100001"


def test_the_smallest_double_counts_as_one_unit_and_nothing_as_nothing():
    assert Rho.upper(5e-324) == Rho(1)
    assert Rho.lower(5e-324) == Rho.upper(0.0) == Rho(0)


def test_three_tenths_in_text_leave_nothing_of_a_cap_of_three_tenths():
    assert Rho.upper("0.1") + Rho.upper(Decimal("0.1")) + Rho.upper("0.1") == Rho.lower("0.3")
    assert Rho.upper(0.1) > Rho.upper("0.1")


def test_an_amount_beyond_the_doubles_is_shown_as_infinite():
    assert Rho.upper(1.7e308).float_upper() >= 1.7e308
    assert (Rho.upper(1.7e308) + Rho.upper(1.7e308)).float_upper() == math.inf


@pytest.mark.parametrize(
    "amount", [-1e-300, math.inf, math.nan, "many", "-1", "inf", "nan", None, "1_0x"]
)
def test_what_is_no_amount_is_refused(amount):
    with pytest.raises(ConfigurationError, match="finite number of nats"):
        Rho.upper(amount)


def test_no_amount_is_negative():
    with pytest.raises(ConfigurationError, match=r"at least 0, got -0.5"):
        Rho.upper("0.5") - Rho.upper(1)


# Costs


def test_the_bound_for_everyone_is_the_sum_of_the_worst_cases():
    costs = [gaussian(0.5), gaussian(1e-25), gaussian(0.25)]
    assert total_rho_upper(costs) == Rho.upper(0.75) + Rho.upper(1e-25)
    assert total_rho_upper([]) == Rho(0)


def test_costs_of_different_privacy_units_do_not_add():
    with pytest.raises(ConfigurationError, match="'customer', 'record'"):
        total_rho_upper([gaussian(1.0), gaussian(1.0, privacy_unit="customer")])


@given(st.lists(st.floats(min_value=1e-9, max_value=1e3), min_size=1, max_size=6), st.data())
def test_the_budgets_of_releases_over_the_same_groups_add_at_every_count(scales, data):
    count = data.draw(st.integers(min_value=1, max_value=10**12))
    budgets = [lambda n, scale=scale: scale / n**2 for scale in scales]
    exact = sum(Fraction(budget(count)) for budget in budgets)
    together = Fraction(group_rho_upper(budgets, count).units, 10**30)
    assert exact <= together <= exact + Fraction(len(scales), 10**30)


@given(
    st.floats(min_value=1e-6, max_value=100),
    st.integers(min_value=1, max_value=10**13),
    st.sets(st.integers(min_value=1, max_value=10**13), max_size=10),
)
def test_a_tabulated_cost_is_never_below_the_budget_of_any_larger_group(scale, count, counts):
    def v(n: int) -> float:
        return scale / max(n, 3) ** 2

    cost = PolicyCost.from_function(v, "linear_log", {}, counts=counts)
    assert cost.rho_at_least_upper(count) >= Rho.upper(v(count))
    assert all(cost.rho_at_least_upper(known) == Rho.upper(v(known)) for known in counts)
    assert cost.rho_upper == Rho.upper(v(1)) == cost.rho_at_least_upper(0)


def test_a_cost_without_a_table_is_the_worst_case_at_every_count():
    assert gaussian(0.5).rho_at_least_upper(10**9) == Rho.upper(0.5)


def test_the_standard_counts_go_up_to_a_million_million():
    assert STANDARD_COUNTS[:4] == (1, 2, 5, 10)
    assert STANDARD_COUNTS[-1] == 10**12
    assert list(STANDARD_COUNTS) == sorted(set(STANDARD_COUNTS))


def test_a_cost_that_rises_with_the_count_is_refused():
    with pytest.raises(ConfigurationError, match="must not rise with the count"):
        PolicyCost.from_function(lambda n: float(n), "wrong", {}, counts=(1, 2))
    with pytest.raises(ConfigurationError, match="must not rise with the count"):
        PolicyCost(Rho(1), "wrong", {}, at_least=((5, Rho(2)),))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"noise": "gausian"}, "Did you mean 'gaussian'"),
        ({"noise": "pure"}, "pure_epsilon belongs to"),
        ({"pure_epsilon": 1.0}, "pure_epsilon belongs to"),
        ({"records_per_unit": 0}, "whole number >= 1"),
        ({"records_per_unit": True}, "whole number >= 1"),
        ({"parameters": {"key": b"secret"}}, "JSON|recorded"),
        ({"parameters": {"sigma": math.nan}}, "finite numbers"),
    ],
)
def test_a_cost_that_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(ConfigurationError, match=says):
        PolicyCost(**{"rho_upper": Rho(1), "mechanism": "m", **wrong})


def test_one_value_has_one_json_text():
    assert canonical_json({"b": [1, None], "a": "é"}) == '{"a":"é","b":[1,null]}'
    assert canonical_json({"x": np.float64(0.5)}) == '{"x":0.5}'


# Epsilon at delta


def test_composition_through_zcdp_is_the_conversion_of_the_sum():
    costs = [gaussian(0.1), gaussian(0.2), PolicyCost.from_pure_epsilon(0.5, "geometric", {})]
    total = total_rho_upper(costs).float_upper()
    assert zcdp_epsilon_upper(costs, 1e-6) == epsilon_upper(total, 1e-6)


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("rhos", [[0.005], [0.1, 0.2, 0.3], [1.0, 0.25]])
def test_gaussian_releases_compose_to_one_gaussian(rhos, delta):
    tight = tight_epsilon_upper([gaussian(rho) for rho in rhos], delta)
    with mpmath.workdps(40):
        mu = mpmath.sqrt(2 * mpmath.fsum(rhos))

        def delta_of(epsilon):
            return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
                -mu / 2 - epsilon / mu
            )

        assert delta_of(mpmath.mpf(tight)) <= delta
        assert delta_of(mpmath.mpf(tight) * (1 - mpmath.mpf("1e-3"))) > delta
    assert tight < zcdp_epsilon_upper([gaussian(rho) for rho in rhos], delta)


def test_the_tight_epsilon_of_gaussian_releases_agrees_with_dp_accounting():
    rhos = [0.1, 0.2, 0.3]
    accountant = PLDAccountant()
    for rho in rhos:
        accountant.compose(dp_event.GaussianDpEvent(1 / math.sqrt(2 * rho)))
    tight = tight_epsilon_upper([gaussian(rho) for rho in rhos], 1e-6)
    assert tight == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-3)


def test_a_mixture_with_laplace_noise_agrees_with_dp_accounting():
    costs = [
        gaussian(0.1),
        gaussian(0.05),
        PolicyCost.from_pure_epsilon(0.5, "laplace", {}, noise="laplace"),
        PolicyCost.from_pure_epsilon(0.3, "laplace", {}, noise="laplace"),
    ]
    accountant = PLDAccountant()
    accountant.compose(dp_event.GaussianDpEvent(1 / math.sqrt(0.2)))
    accountant.compose(dp_event.GaussianDpEvent(1 / math.sqrt(0.1)))
    accountant.compose(dp_event.LaplaceDpEvent(1 / 0.5))
    accountant.compose(dp_event.LaplaceDpEvent(1 / 0.3))
    tight = tight_epsilon_upper(costs, 1e-6)
    assert tight == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert tight < zcdp_epsilon_upper(costs, 1e-6)


def test_randomised_responses_compose_to_no_less_than_their_exact_curve():
    epsilon, times, delta = 0.4, 12, 1e-4
    cost = PolicyCost.from_pure_epsilon(epsilon, "randomised response", {})
    tight = tight_epsilon_upper([cost] * times, delta)

    # Exact: with i of n answers truthful the privacy loss is (2i - n) epsilon.
    def delta_of(total: float) -> float:
        keep = math.exp(epsilon) / (1 + math.exp(epsilon))
        return sum(
            math.comb(times, i)
            * keep**i
            * (1 - keep) ** (times - i)
            * max(0.0, 1 - math.exp(total - (2 * i - times) * epsilon))
            for i in range(times + 1)
        )

    assert delta_of(tight) <= delta
    assert delta_of(tight * 0.99) > delta
    assert tight < times * epsilon


def test_discrete_laplace_noise_is_not_covered_by_the_continuous_laplace_curve():
    # Why 'pure' exists beside 'laplace': geometric noise has the larger delta at the same epsilon.
    epsilon, at = 1.0, 0.5
    stay = math.exp(-epsilon)
    geometric = {k: (1 - stay) / (1 + stay) * stay ** abs(k) for k in range(-200, 201)}
    exact = sum(
        max(0.0, p - math.exp(at) * geometric.get(k - 1, 0.0)) for k, p in geometric.items()
    )
    laplace = pld.from_laplace_mechanism(1 / epsilon).get_delta_for_epsilon(at)
    pure = pld.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0.0)
    ).get_delta_for_epsilon(at)
    assert laplace < exact * 0.95
    assert exact <= pure


def test_where_the_tight_bound_cannot_be_vouched_for_zcdp_is_used():
    pure = PolicyCost.from_pure_epsilon(0.5, "geometric", {})
    for costs, delta in [
        ([gaussian(0.5), gaussian(0.5, noise="zcdp")], 1e-6),
        ([gaussian(0.5), pure], 1e-12),
        ([gaussian(61.0)], 1e-9),
    ]:
        assert tight_epsilon_upper(costs, delta) == zcdp_epsilon_upper(costs, delta)


def test_releases_that_cost_nothing_give_no_epsilon():
    assert tight_epsilon_upper([gaussian(0.0)], 1e-6) == 0.0
    assert tight_epsilon_upper([], 1e-6) == 0.0


def test_without_dp_accounting_a_mixture_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld", None)
    mixture = [gaussian(0.5), PolicyCost.from_pure_epsilon(0.5, "geometric", {})]
    with pytest.raises(ConfigurationError, match=r"spark-dphist\[tight\]"):
        tight_epsilon_upper(mixture, 1e-6)
    assert tight_epsilon_upper([gaussian(0.5)], 1e-6) > 0


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_a_lattice_gaussian_is_as_near_a_rounded_one_as_the_tight_bound_assumes(bits):
    scale = 2**bits
    with mpmath.workdps(40):
        weights = {i: mpmath.exp(-(mpmath.mpf(i) ** 2) / (2 * scale**2)) for i in range(12 * scale)}
        total = 2 * mpmath.fsum(weights.values()) - weights[0]
        distance = mpmath.mpf(0)
        for i, weight in weights.items():
            rounded = mpmath.ncdf(-(i - mpmath.mpf(1) / 2) / scale) - mpmath.ncdf(
                -(i + mpmath.mpf(1) / 2) / scale
            )
            distance += (1 if i else mpmath.mpf(1) / 2) * abs(weight / total - rounded)
        assert 0.019 / scale**2 < distance < 1 / (40 * mpmath.mpf(scale) ** 2)
    assert composition._LATTICE_DISTANCE >= 1 / (40 * 2.0**70)
