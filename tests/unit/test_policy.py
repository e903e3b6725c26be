"""What a ledger charges follows from public policy, falls with the count, and reads soundly."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dphist.accounting.composition import STANDARD_COUNTS, Rho, tight_epsilon_upper
from spark_dphist.accounting.conversions import (
    epsilon_upper,
    gaussian_attacker_accuracy_upper,
    gaussian_epsilon_upper,
    gaussian_mu_upper,
)
from spark_dphist.accounting.policy import (
    noise_family,
    policy_cost,
    read_budget,
    read_worst_case,
)
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import Constant, LinearLog, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate

GAUSSIAN = {
    "shifted log": ShiftedLog.calibrate(relative_error=0.3, floor=20),
    "linear log": LinearLog.calibrate(relative_error=0.3, floor=20),
}
FIXED = {
    "fixed Gaussian": calibrate("fixed_gaussian", relative_error=0.3, floor=20),
    "fixed Laplace": calibrate("fixed_laplace", relative_error=0.3, floor=20),
}
ALL = {**GAUSSIAN, **FIXED, "constant": Constant(floor=20)}
UNITS = [
    PrivacyUnit(),
    PrivacyUnit(column="user", max_records=5),
    PrivacyUnit(column="user", max_records=5, distinct=True),
    PrivacyUnit(column="user", max_records=2000),
]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.described)
@pytest.mark.parametrize("name", sorted(ALL))
def test_the_charge_is_the_worst_case_that_the_audit_states(name, unit):
    cost = policy_cost(ALL[name], unit, {"relative_error": 0.3})
    stated = read_worst_case(ALL[name], unit, 1e-6)
    assert cost.rho_upper >= Rho.upper(stated.rho)
    assert cost.rho_upper.float_upper() <= stated.rho * (1 + 1e-12)
    assert cost.privacy_unit == unit.name
    assert cost.records_per_unit == unit.max_records
    assert cost.mechanism == ALL[name].name
    assert cost.parameters == {"relative_error": 0.3, **ALL[name].parameters()}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.described)
@pytest.mark.parametrize("name", sorted(GAUSSIAN))
def test_the_charge_falls_with_the_size_of_the_groups_and_stays_a_bound(name, unit):
    cost = policy_cost(GAUSSIAN[name], unit, {})
    assert [count for count, _ in cost.at_least] == list(STANDARD_COUNTS)
    amounts = [cost.rho_upper, *(rho for _, rho in cost.at_least)]
    assert amounts == sorted(amounts, reverse=True)
    assert amounts[-1] < amounts[0]
    together = np.array([unit.records_per_group])
    for count, rho in cost.at_least:
        larger = count + np.concatenate([np.arange(50), together, 10 * together])
        realised = GAUSSIAN[name].budget(larger, unit.records_per_group)
        assert Rho.upper(float(np.max(realised))) <= rho


@settings(max_examples=100)
@given(
    st.sampled_from(sorted(GAUSSIAN)),
    st.lists(st.tuples(st.integers(1, 400), st.integers(0, 10**5)), min_size=1, max_size=6),
    st.integers(1, 10**7),
)
def test_a_cap_by_count_is_charged_for_any_split_over_such_groups(name, split, at_least):
    unit = PrivacyUnit(column="user", max_records=sum(part for part, _ in split))
    charged = policy_cost(GAUSSIAN[name], unit, {}).rho_at_least_upper(at_least)
    total = sum(
        Rho.upper(float(GAUSSIAN[name].budget(at_least + count, part))).units
        for part, count in split
    )
    assert total <= charged.units * (1 + 1e-12)


@pytest.mark.parametrize("name", sorted(GAUSSIAN))
def test_records_in_several_groups_compose_to_one_gaussian(name):
    # Shifts mu_i of independent normals are one shift sqrt(sum mu_i**2): rho adds.
    mechanism, unit = GAUSSIAN[name], PrivacyUnit(column="user", max_records=4)
    mu = math.sqrt(sum(2 * float(mechanism.budget(0, part)) for part in (3, 1)))
    reading = read_worst_case(mechanism, unit, 1e-6)
    assert gaussian_epsilon_upper(mu, 1e-6) <= reading.epsilon * (1 + 1e-12)
    assert reading.epsilon <= epsilon_upper(reading.rho, 1e-6)
    # Each of the up to four draws is on a lattice, which adds its distance from a Gaussian.
    one_draw = gaussian_attacker_accuracy_upper(reading.rho)
    assert one_draw < reading.attacker_accuracy <= one_draw + 1e-15


def test_a_gaussian_release_is_read_by_its_own_curve_and_so_is_its_charge():
    mechanism, unit = GAUSSIAN["linear log"], PrivacyUnit()
    reading = read_worst_case(mechanism, unit, 1e-6)
    tight = gaussian_epsilon_upper(gaussian_mu_upper(reading.rho), 1e-6)
    assert reading.epsilon == tight < epsilon_upper(reading.rho, 1e-6)
    charged = tight_epsilon_upper([policy_cost(mechanism, unit, {})], 1e-6)
    assert charged == pytest.approx(tight, rel=1e-3)
    assert charged >= tight


def test_a_fixed_gaussian_of_small_scale_is_not_read_as_a_continuous_one():
    reading = read_budget(FIXED["fixed Gaussian"], 0.5, 1, 1e-6)
    assert noise_family(FIXED["fixed Gaussian"]) == "zcdp"
    assert reading.epsilon == epsilon_upper(0.5, 1e-6)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.described)
def test_pure_noise_is_charged_by_its_epsilon_for_all_records_of_a_unit(unit):
    laplace = FIXED["fixed Laplace"]
    cost = policy_cost(laplace, unit, {})
    assert cost.noise == "pure"
    assert {rho for _, rho in cost.at_least} == {cost.rho_upper}
    assert cost.pure_epsilon == laplace.pure_epsilon(unit.max_records)
    assert cost.pure_epsilon == pytest.approx(unit.max_records * laplace.epsilon, rel=1e-12)
    reading = read_worst_case(laplace, unit, 1e-6)
    assert reading.epsilon <= cost.pure_epsilon


def test_a_constant_release_is_free():
    reading = read_worst_case(ALL["constant"], UNITS[1], 1e-6)
    assert (reading.rho, reading.epsilon) == (0.0, 0.0)
    assert 0.5 <= reading.attacker_accuracy < 0.5 + 1e-9
    assert policy_cost(ALL["constant"], UNITS[1], {}).rho_upper == Rho(0)
    costs = [policy_cost(ALL[name], PrivacyUnit(), {}) for name in ("constant", "linear log")]
    assert tight_epsilon_upper(costs, 1e-6) == tight_epsilon_upper(costs[1:], 1e-6)
