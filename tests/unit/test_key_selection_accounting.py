"""What a learnt key set costs: its reading, its charge, and a ledger that must allow for it."""

import itertools
import json
import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.accounting.composition import (
    PolicyCost,
    Rho,
    delta_left_lower,
    tight_epsilon_upper,
    total_delta_upper,
    zcdp_epsilon_upper,
)
from spark_dphist.accounting.conversions import epsilon_upper, pure_to_rho_upper, rho_lower
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.ledger import Caps, Ledger, LedgerError, commands
from spark_dphist.accounting.ledger.errors import BudgetExceededError
from spark_dphist.accounting.policy import policy_cost, read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.registry import calibrate

MECHANISM = calibrate("linear_log", relative_error=0.3, floor=20)
LEARNT = KeySelection(epsilon=0.5, delta=1e-8)
UNIT = PrivacyUnit(column="user", max_records=3)
POLICY = {"name": "learnt"}


def learnt_cost(selection=LEARNT, unit=None):
    return policy_cost(MECHANISM, unit or PrivacyUnit(), {}, selection)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_the_charge_is_the_sum_of_release_and_selection_at_every_count():
    declared, learnt = policy_cost(MECHANISM, UNIT, {}), learnt_cost(unit=UNIT)
    selection = Rho.upper(LEARNT.rho_upper)
    assert learnt.rho_upper == declared.rho_upper + selection
    assert learnt.at_least == tuple((n, rho + selection) for n, rho in declared.at_least)
    assert learnt.delta == Rho.upper("1e-8")
    assert learnt.noise == "zcdp"
    assert learnt.parameters["key_selection"] == LEARNT.parameters()
    assert "key_selection" not in declared.parameters


@pytest.mark.parametrize(
    ("selection", "binding"),
    [(LEARNT, 1), (KeySelection(epsilon=2.0, delta=9e-7, groups_per_unit=3), 0)],
)
def test_the_reading_is_of_both_together_and_leaves_the_selections_delta_aside(selection, binding):
    alone = read_worst_case(MECHANISM, UNIT, 1e-6)
    both = read_worst_case(MECHANISM, UNIT, 1e-6, selection)
    assert both.rho >= alone.rho + selection.rho_upper
    assert both.rho == pytest.approx(alone.rho + selection.rho_upper, rel=1e-12)
    left = 1e-6 - selection.delta
    bounds = (
        epsilon_upper(both.rho, left),
        read_worst_case(MECHANISM, UNIT, left).epsilon + selection.epsilon,
    )
    assert min(bounds) == bounds[binding]
    assert both.epsilon == pytest.approx(min(bounds), rel=1e-9)
    assert alone.attacker_accuracy < both.attacker_accuracy < 1


def test_a_selection_that_takes_all_of_delta_is_refused_with_both_numbers():
    for taken in (1e-6, 2e-6):
        with pytest.raises(ConfigurationError, match=r"leaves nothing of the delta = 1e-06"):
            read_worst_case(MECHANISM, UNIT, 1e-6, KeySelection(epsilon=0.5, delta=taken))


@given(st.floats(1e-12, 0.5), st.integers(0, 10**29))
def test_what_is_left_of_a_delta_is_never_too_much(delta, spent):
    left = Fraction(delta_left_lower(delta, Rho(spent)))
    exact = Fraction(delta) - Fraction(spent, 10**30)
    assert left <= exact
    assert abs(left - exact) <= abs(exact) * Fraction(2) ** -52


def test_the_epsilon_of_several_releases_leaves_their_deltas_aside():
    costs = [learnt_cost(), learnt_cost(KeySelection(epsilon=1.0, delta=1e-9)), learnt_cost(None)]
    assert total_delta_upper(costs) == Rho.upper("1.1e-8")
    rho = sum(Fraction(str(cost.rho_upper)) for cost in costs)
    epsilon = zcdp_epsilon_upper(costs, 1e-6)
    assert epsilon == tight_epsilon_upper(costs, 1e-6)
    assert epsilon == pytest.approx(epsilon_upper(float(rho), 1e-6 - 1.1e-8), rel=1e-9)
    assert zcdp_epsilon_upper(costs, 1e-8) == math.inf


def test_a_delta_belongs_to_a_cost_of_which_nothing_else_is_known():
    with pytest.raises(ConfigurationError, match="belongs to the noise family 'zcdp'"):
        PolicyCost(Rho.upper(1), "any", delta=Rho.upper(1e-9))


def test_the_rho_of_the_optimal_selection_covers_what_is_left_of_it_without_its_delta():
    # Theorem 1's decomposition of neighbouring counts; Rényi divergences with 50 digits.
    selection = KeySelection(epsilon=1.0, delta=1e-5)
    rho = mpmath.mpf(selection.rho_upper)
    kept = [mpmath.mpf(each) / 2**128 for each in selection.mechanism.numerators]
    delta = mpmath.mpf(1e-5)
    greatest = mpmath.mpf(0)
    with mpmath.workdps(50):
        for fewer, more in itertools.pairwise(kept):
            if more - fewer <= delta:
                continue
            p, q = (more - delta) / (1 - delta), fewer / (1 - delta)
            for order in (1.0001, 1.5, 2, 5, 20, 100):
                for a, b in ((p, q), (q, p)):
                    moment = a**order * b ** (1 - order)
                    if a < 1:
                        moment += (1 - a) ** order * (1 - b) ** (1 - order)
                    greatest = max(greatest, mpmath.log(moment) / ((order - 1) * order))
    assert greatest <= rho
    assert greatest > rho / 2


# The ledger


def test_a_learnt_key_set_is_refused_where_no_delta_is_allowed_for_it(url):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=10))
        with pytest.raises(BudgetExceededError, match="delta for learnt key sets: cap 0, spent 0"):
            ledger.reserve("taxi", "monday", learnt_cost(), POLICY)
        assert ledger.balance("taxi").spent == Rho(0)
        ledger.reserve("taxi", "tuesday", learnt_cost(None), POLICY)


def test_deltas_are_charged_exactly_and_the_cap_on_them_holds(url):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=100, selection_delta="2.5e-8", at_least={1000: 50}))
        for day in ("monday", "tuesday"):
            ledger.reserve("taxi", day, learnt_cost(), POLICY)
        one = Rho.upper("1e-8")
        assert ledger.balance("taxi").selection.spent == one + one
        assert ledger.release("monday").cost == learnt_cost()
        with pytest.raises(BudgetExceededError, match="delta for learnt key sets"):
            ledger.reserve("taxi", "wednesday", learnt_cost(), POLICY)
        ledger.verify()
        ledger.abort("monday", nothing_was_published=True)
        assert ledger.balance("taxi").selection.spent == one
        ledger.reserve("taxi", "thursday", learnt_cost(), POLICY)
        ledger.verify()


def test_a_total_of_delta_changed_by_hand_is_noticed(url):
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", Caps.of(rho=100, selection_delta="1e-7"))
        ledger.reserve("taxi", "monday", learnt_cost(), POLICY)
        ledger._database.write(
            lambda connection: connection.exec_driver_sql(
                "UPDATE ledger_data_set SET selection_delta_spent = '0'"
            )
        )
        with pytest.raises(LedgerError, match="delta for learnt key sets: recorded 0"):
            ledger.verify()


def test_a_cap_on_epsilon_sets_the_delta_for_learnt_key_sets_aside():
    caps = Caps.of(epsilon=2.0, delta=1e-6, selection_delta="4e-7")
    assert caps.epsilon_rho < Caps.of(epsilon=2.0, delta=1e-6).epsilon_rho
    left = delta_left_lower(1e-6, Rho.lower("4e-7"))
    assert caps.epsilon_rho == Rho.lower(rho_lower(2.0, left))
    # All that the caps allow is within epsilon at delta.
    spent = PolicyCost(caps.epsilon_rho, "any", noise="zcdp", delta=caps.selection_delta)
    assert zcdp_epsilon_upper([spent], 1e-6) <= 2.0
    with pytest.raises(ConfigurationError, match="leaves nothing of the cap's delta"):
        Caps.of(epsilon=2.0, delta=1e-6, selection_delta="1e-6")
    with pytest.raises(ConfigurationError, match="a probability below 1"):
        Caps.of(rho=1, selection_delta=1)


def test_caps_never_forget_the_delta_that_learnt_key_sets_have_spent(url):
    caps = Caps.of(epsilon=1.0, delta=1e-6, selection_delta="9e-7")
    cost = PolicyCost(caps.epsilon_rho, "any", noise="zcdp", delta=caps.selection_delta)
    lowered = [
        commands.CapsRequest(selection_delta=0),
        commands.CapsRequest(selection_delta="8.99e-7"),
        commands.CapsRequest(epsilon=1.0, delta=1e-6, selection_delta=0),
        commands.CapsRequest(rho=1, selection_delta=0),
    ]
    with Ledger.initialise(url) as ledger:
        ledger.add_dataset("taxi", caps)
        ledger.reserve("taxi", "monday", cost, POLICY)
        refusal = r"cap 0\S*, spent 0\.0000009\. .*--selection-delta 0\.0000009"
        for request in lowered:
            with pytest.raises(ConfigurationError, match=refusal):
                commands.caps(url, "taxi", request)
        for without in (Caps.of(rho=1), Caps.of(epsilon=1.0, delta=1e-6)):
            with pytest.raises(ConfigurationError, match=refusal):
                ledger.set_caps("taxi", without)
        with pytest.raises(ConfigurationError, match="leaves nothing of the cap's delta"):
            commands.caps(url, "taxi", commands.CapsRequest(epsilon=1.0, delta=9e-7))
        assert ledger.caps("taxi") == caps
        assert [event.kind for event in ledger.history("taxi")] == ["dataset_added", "reserved"]
        # All that the caps allow after any change, with all that is spent, is within epsilon.
        commands.caps(url, "taxi", commands.CapsRequest(rho=1), drop=["epsilon"])
        commands.caps(url, "taxi", commands.CapsRequest(epsilon=1.0, delta=1e-6), drop=["rho"])
        commands.caps(url, "taxi", commands.CapsRequest(selection_delta="0.0000009"))
        allowed = [release.cost for release in ledger.releases("taxi")]
        allowed.append(PolicyCost(ledger.balance("taxi").left, "any", noise="zcdp"))
        assert zcdp_epsilon_upper(allowed, 1e-6) <= 1.0
        # What is aborted is spent no longer.
        ledger.abort("monday", nothing_was_published=True)
        commands.caps(url, "taxi", commands.CapsRequest(selection_delta=0))
        assert ledger.caps("taxi") == Caps.of(epsilon=1.0, delta=1e-6)


def test_the_commands_state_show_and_change_the_delta_for_learnt_key_sets(url):
    commands.init(url, "taxi", commands.CapsRequest(rho="3", selection_delta="1e-7"))
    with Ledger(url) as ledger:
        ledger.reserve("taxi", "monday", learnt_cost(), POLICY)
    (shown,) = commands.show(url)
    assert shown["limits"][-1] == {
        **{"limit": "delta for learnt key sets", "at_least": None, "cap": "0.0000001"},
        **{"spent": "0.00000001", "left": "0.00000009"},
    }
    commands.caps(url, "taxi", commands.CapsRequest(rho="4"))
    changed = commands.caps(url, "taxi", commands.CapsRequest(selection_delta="2e-7"))
    assert [limit["cap"] for limit in changed["limits"]] == ["4", "0.0000002"]
    (row,) = commands.releases(url)
    assert row["delta"] == "0.00000001"
    assert json.loads(json.dumps(row))["parameters"]["key_selection"]["epsilon"] == 0.5


def test_a_ledger_of_the_first_version_is_brought_up_and_allows_for_no_learnt_key_set(url):
    with Ledger.initialise(url) as ledger:

        def as_the_first_version_left_it(connection):
            for table, column in (
                ("ledger_data_set", "selection_delta_cap"),
                ("ledger_data_set", "selection_delta_spent"),
                ("ledger_release", "delta"),
            ):
                connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
            connection.exec_driver_sql("UPDATE ledger_schema SET version = 1")
            connection.exec_driver_sql(
                "INSERT INTO ledger_data_set (name, privacy_unit, rho_cap, rho_spent, created_at,"
                " created_by) VALUES ('old', 'record', '5', '0', '2026-01-01T00:00:00+00:00', 'me')"
            )

        ledger._database.write(as_the_first_version_left_it)
        with pytest.raises(LedgerError, match="has schema 1"):
            Ledger(url)
        with Ledger.initialise(url) as brought_up:
            assert brought_up.caps("old") == Caps.of(rho=5)
            brought_up.reserve("old", "monday", learnt_cost(None), POLICY)
            with pytest.raises(BudgetExceededError):
                brought_up.reserve("old", "tuesday", learnt_cost(), POLICY)


def test_the_rho_of_the_optimal_selection_is_that_of_a_pure_mechanism():
    assert LEARNT.rho_upper == pure_to_rho_upper(0.5)
