"""What the ledger promises a single caller; tests/postgresql runs the same on PostgreSQL."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, inspect, text

from spark_dphist import __version__
from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.conversions import epsilon_upper
from spark_dphist.accounting.ledger import (
    BudgetExceededError,
    Caps,
    HalfDoneReleaseError,
    Ledger,
    LedgerError,
    ReleaseConflictError,
    State,
    commands,
    migrations,
    schema,
)
from spark_dphist.errors import BudgetError, ConfigurationError

POLICY = {"relative_error": 0.1, "floor": 100, "group_by": ["zone", "hour"]}


def cost(rho: float | str = "1", **extra: object) -> PolicyCost:
    return PolicyCost(Rho.upper(rho), "linear_log", {"sigma": 0.125}, **extra)


def falling(scale: float, counts: tuple[int, ...] = (1, 10, 100)) -> PolicyCost:
    return PolicyCost.from_function(lambda n: scale / n, "linear_log", {}, counts=counts)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledger(url):
    with Ledger.initialise(url, by="keeper") as opened:
        opened.add_dataset("taxi", Caps.of(rho=3))
        yield opened


def raw(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.begin() as connection:
        result = connection.execute(text(statement))
        rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


# A release's life


def test_a_release_is_charged_when_it_is_reserved_and_stays_charged_when_it_is_committed(ledger):
    reservation = ledger.reserve("taxi", "monday", cost(), POLICY)
    assert not reservation.already_committed
    assert reservation.release.state is State.RESERVED
    assert ledger.balance("taxi").spent == Rho.upper("1")
    committed = ledger.commit("monday", {"path": "s3://bucket/monday"})
    assert committed.state is State.COMMITTED
    balance = ledger.balance("taxi")
    assert (balance.cap, balance.spent, balance.left) == tuple(map(Rho.upper, ("3", "1", "2")))


def test_a_stored_release_is_what_was_reserved(ledger):
    before = datetime.now(UTC) - timedelta(seconds=1)
    asked = PolicyCost.from_function(
        lambda n: 0.1 / n**2, "shifted_log", {"sigma": 0.1, "shift": 5}, records_per_unit=3
    )
    ledger.reserve("taxi", "monday", asked, POLICY)
    stored = ledger.commit("monday", {"path": "p", "groups": 24})
    assert stored == ledger.release("monday")
    assert stored.cost == asked
    assert stored.policy == POLICY
    assert stored.output == {"path": "p", "groups": 24}
    assert stored.software == __version__
    assert stored.reserved_by == stored.ended_by == "keeper"
    assert before < stored.reserved_at <= stored.ended_at < datetime.now(UTC) + timedelta(seconds=1)
    assert stored.reserved_at.utcoffset() == timedelta(0)


def test_asking_again_for_a_committed_release_returns_it_and_charges_nothing(ledger):
    first = ledger.reserve("taxi", "monday", cost(), POLICY)
    ledger.commit("monday", {"path": "p"})
    again = ledger.reserve("taxi", "monday", cost(), dict(reversed(POLICY.items())))
    assert again.already_committed
    assert again.token is None
    assert again.release.output == {"path": "p"}
    assert again.release.reserved_at == first.release.reserved_at
    assert ledger.balance("taxi").spent == Rho.upper("1")


def test_a_committed_release_is_returned_even_when_nothing_is_left(ledger):
    ledger.reserve("taxi", "all", cost("3"), POLICY)
    ledger.commit("all", {})
    assert ledger.reserve("taxi", "all", cost("3"), POLICY).already_committed


@pytest.mark.parametrize("end", ["reserve", "commit"])
@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"policy": {**POLICY, "floor": 99}}, "policy"),
        ({"cost": PolicyCost(Rho.upper("1"), "shifted_log", {"sigma": 0.125})}, "mechanism"),
        ({"cost": PolicyCost(Rho.upper("1"), "linear_log", {"sigma": 0.126})}, "parameters"),
        ({"cost": cost(records_per_unit=2)}, "records_per_unit"),
        ({"cost": cost(noise="zcdp")}, "noise"),
    ],
)
def test_a_taken_id_with_another_policy_is_refused(ledger, end, changed, names):
    reservation = ledger.reserve("taxi", "monday", cost(), POLICY)
    if end == "commit":
        ledger.commit("monday", {})
    asked = {"cost": cost(), "policy": POLICY, "token": reservation.token, **changed}
    with pytest.raises(ReleaseConflictError, match=f"differs in {names}.*Choose a new id"):
        ledger.reserve("taxi", "monday", **asked)
    assert ledger.balance("taxi").spent == Rho.upper("1")


def test_a_taken_id_on_another_data_set_is_refused(ledger):
    ledger.add_dataset("bikes", Caps.of(rho=3))
    ledger.reserve("taxi", "monday", cost(), POLICY)
    with pytest.raises(ReleaseConflictError, match="belongs to data set 'taxi', not 'bikes'"):
        ledger.reserve("bikes", "monday", cost(), POLICY)
    assert ledger.balance("bikes").spent == Rho(0)


def test_a_release_left_by_a_dead_run_stays_charged_and_says_how_to_end_it(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    mend = f"spark-dphist ledger abort {re.escape(ledger.location)} monday --nothing-was-published"
    with pytest.raises(HalfDoneReleaseError, match=mend) as refused:
        ledger.reserve("taxi", "monday", cost(), POLICY)
    assert refused.value.release.reserved_by == "keeper"
    with pytest.raises(HalfDoneReleaseError):
        ledger.reserve("taxi", "monday", cost(), POLICY, token="guessed")  # noqa: S106
    assert [release.release_id for release in ledger.half_done("taxi")] == ["monday"]
    assert ledger.balance("taxi").spent == Rho.upper("1")


def test_a_run_that_kept_its_token_takes_its_reservation_up_again(ledger):
    token = ledger.reserve("taxi", "monday", cost(), POLICY).token
    again = ledger.reserve("taxi", "monday", cost(), POLICY, token=token)
    assert again.token == token
    assert again.release.state is State.RESERVED
    assert ledger.balance("taxi").spent == Rho.upper("1")
    with pytest.raises(ReleaseConflictError, match="at another cost"):
        ledger.reserve("taxi", "monday", cost("1.5"), POLICY, token=token)


def test_an_abort_frees_the_charge_and_keeps_the_id(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    aborted = ledger.abort("monday", nothing_was_published=True)
    assert aborted.state is State.ABORTED
    assert aborted.output is None
    assert ledger.abort("monday", nothing_was_published=True) == aborted
    assert ledger.balance("taxi").spent == Rho(0)
    assert ledger.half_done() == ()
    with pytest.raises(ReleaseConflictError, match=r"was aborted at .* by keeper. Choose a new id"):
        ledger.reserve("taxi", "monday", cost(), POLICY)


def test_a_run_whose_release_was_aborted_under_it_cannot_commit(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    ledger.abort("monday", nothing_was_published=True)
    with pytest.raises(ReleaseConflictError, match="nothing of it may be shown"):
        ledger.commit("monday", {"path": "p"})
    assert ledger.release("monday").state is State.ABORTED


def test_a_committed_release_cannot_be_aborted(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    ledger.commit("monday", {})
    with pytest.raises(ReleaseConflictError, match="may have been seen and stays charged"):
        ledger.abort("monday", nothing_was_published=True)
    assert ledger.balance("taxi").spent == Rho.upper("1")


@pytest.mark.parametrize("word", [False, None, "yes", 1])
def test_an_abort_needs_somebody_to_say_that_nothing_was_published(ledger, word):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    with pytest.raises(ConfigurationError, match="--nothing-was-published"):
        ledger.abort("monday", nothing_was_published=word)
    assert ledger.release("monday").state is State.RESERVED


def test_a_commit_can_be_repeated_but_not_changed(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    first = ledger.commit("monday", {"path": "p"})
    assert ledger.commit("monday", {"path": "p"}) == first
    with pytest.raises(ReleaseConflictError, match="another output"):
        ledger.commit("monday", {"path": "q"})
    assert len([e for e in ledger.history("taxi") if e.kind == "committed"]) == 1


# Caps


def test_what_a_cap_does_not_leave_is_refused_with_cap_spent_asked_and_left(ledger):
    ledger.reserve("taxi", "first", cost("2.5"), POLICY)
    with pytest.raises(BudgetExceededError) as refused:
        ledger.reserve("taxi", "second", cost("0.75"), POLICY)
    error = refused.value
    assert isinstance(error, BudgetError)
    assert [str(x) for x in (error.cap, error.spent, error.asked, error.left)] == [
        *("3", "2.5", "0.75", "0.5")
    ]
    assert "cap 3, spent 2.5, asked 0.75, left 0.5" in str(error)
    assert "'taxi'" in str(error)
    assert [release.release_id for release in ledger.releases()] == ["first"]
    assert ledger.reserve("taxi", "second", cost("0.5"), POLICY).token


def test_a_cap_is_met_exactly_and_missed_by_the_smallest_amount(ledger):
    for number in range(3):
        ledger.reserve("taxi", f"r{number}", cost("1"), POLICY)
    assert ledger.balance("taxi").left == Rho(0)
    with pytest.raises(BudgetExceededError):
        ledger.reserve("taxi", "tiny", cost(5e-324), POLICY)
    assert ledger.reserve("taxi", "free", cost(0.0), POLICY).token


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.floats(min_value=1e-30, max_value=2.0), max_size=12), data=st.data())
def test_whatever_is_asked_the_caps_hold_and_the_sum_is_exact(ledger, asked, data):
    name = f"set-{len(ledger.datasets())}"
    ledger.add_dataset(name, Caps.of(rho="2.5", at_least={10: "0.2"}))
    kept = []
    for number, scale in enumerate(asked):
        release_id = f"{name}-{number}"
        one = falling(scale)
        allowed = sum((Fraction(scale), *(Fraction(k) for k in kept))) <= Fraction(
            5, 2
        ) - 13 * 10**-30 and sum((Fraction(scale), *(Fraction(k) for k in kept))) / 10 <= Fraction(
            1, 5
        ) - Fraction(1, 10**15)
        try:
            ledger.reserve(name, release_id, one, POLICY)
        except BudgetExceededError:
            assert not allowed
            continue
        if data.draw(st.booleans()):
            ledger.abort(release_id, nothing_was_published=True)
        else:
            kept.append(scale)
    everyone, larger = ledger.balance(name).limits
    assert everyone.spent == Rho(sum(Rho.upper(scale).units for scale in kept))
    assert larger.spent == Rho(sum(Rho.upper(scale / 10).units for scale in kept))
    assert everyone.spent <= everyone.cap
    assert larger.spent <= larger.cap
    ledger.verify()


def test_a_cap_on_epsilon_at_delta_holds_through_zcdp(ledger):
    ledger.add_dataset("bikes", Caps.of(epsilon=2.0, delta=1e-6))
    limit = ledger.balance("bikes").tightest
    assert limit.name == "epsilon 2 at delta 1e-06 for everyone"
    half = Rho(limit.cap.units // 2)
    for name in ("a", "b"):
        ledger.reserve("bikes", name, PolicyCost(half, "linear_log"), POLICY)
    assert epsilon_upper(ledger.balance("bikes").spent.float_upper(), 1e-6) <= 2.0
    with pytest.raises(BudgetExceededError, match="epsilon 2 at delta 1e-06"):
        ledger.reserve("bikes", "c", cost("0.0001"), POLICY)


def test_of_two_caps_for_everyone_the_tighter_one_binds(ledger):
    balance = ledger.add_dataset("bikes", Caps.of(rho=100, epsilon=1.0, delta=1e-6))
    assert balance.tightest.name.startswith("epsilon 1")
    balance = ledger.set_caps("bikes", Caps.of(rho="0.001", epsilon=1.0, delta=1e-6))
    assert balance.tightest.name == "rho for everyone"


def test_a_cap_for_larger_groups_refuses_what_the_cap_for_everyone_would_allow(ledger):
    ledger.set_caps("taxi", Caps.of(rho=3, at_least={100: "0.015"}))
    ledger.reserve("taxi", "first", falling(1.0), POLICY)
    with pytest.raises(BudgetExceededError, match=r"in groups of at least 100: cap 0.015") as no:
        ledger.reserve("taxi", "second", falling(1.0), POLICY)
    assert [charge.limit.at_least for charge in no.value.charges] == [100]


def test_new_caps_by_count_know_what_earlier_releases_spent_there(ledger):
    ledger.reserve("taxi", "first", falling(1.0), POLICY)
    ledger.reserve("taxi", "gone", falling(1.0), POLICY)
    ledger.abort("gone", nothing_was_published=True)
    balance = ledger.set_caps("taxi", Caps.of(rho=3, at_least={50: 1, 100: 1}))
    # 50 is not tabulated: the cost at 10 stands in for it, which is not below.
    assert [limit.spent for limit in balance.limits] == [
        Rho.upper(1.0),
        Rho.upper(1.0 / 10),
        Rho.upper(1.0 / 100),
    ]
    ledger.verify()


def test_caps_below_what_is_spent_leave_nothing(ledger):
    ledger.reserve("taxi", "first", cost("2"), POLICY)
    balance = ledger.set_caps("taxi", Caps.of(rho=1))
    assert (balance.spent, balance.left) == (Rho.upper("2"), Rho(0))
    with pytest.raises(BudgetExceededError):
        ledger.reserve("taxi", "second", cost("0.1"), POLICY)
    assert ledger.set_caps("taxi", Caps.of(rho=5)).left == Rho.upper("3")


def test_a_cap_written_as_a_float_means_its_decimal_text(ledger):
    assert Caps.of(rho=0.3).rho == Rho.upper("0.3") == Caps.of(rho="0.3").rho
    ledger.set_caps("taxi", Caps.of(rho=0.3, at_least={5: 0.1}))
    assert ledger.caps("taxi") == Caps.of(rho="0.3", at_least={5: "0.1"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "needs a cap for everyone"),
        ({"at_least": {10: 1}}, "needs a cap for everyone"),
        ({"epsilon": 1.0}, "needs a delta"),
        ({"rho": 1, "delta": 1e-6}, "needs a delta"),
        ({"rho": -1}, "at least 0"),
        ({"rho": float("inf")}, "finite"),
        ({"rho": True}, "A cap is a number"),
        ({"rho": [1]}, "A cap is a number"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"rho": 1, "at_least": {0: 1}}, "whole number of records >= 1"),
        ({"rho": 1, "at_least": {1.5: 1}}, "whole number of records >= 1"),
        ({"rho": 1, "at_least": {10: 1, 100: 2}}, "could never be reached"),
    ],
)
def test_caps_that_make_no_sense_are_refused(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        Caps.of(**arguments)


def test_a_quote_charges_nothing_and_says_what_fits(ledger):
    ledger.set_caps("taxi", Caps.of(rho=3, at_least={10: "0.2"}))
    charges = ledger.quote("taxi", falling(2.5))
    assert [charge.fits for charge in charges] == [True, False]
    assert [str(charge.asked) for charge in charges] == ["2.5", "0.25"]
    assert ledger.balance("taxi").spent == Rho(0)
    assert commands.charge_rows(charges)[1] == {
        "limit": "rho in groups of at least 10",
        **{"cap": "0.2", "spent": "0", "requested": "0.25", "left": "0.2", "fits": False},
    }


def test_a_release_accounted_for_another_privacy_unit_is_refused(ledger):
    ledger.add_dataset("trips", Caps.of(rho=3), privacy_unit="customer")
    with pytest.raises(ConfigurationError, match="'customer', the release is accounted for 'reco"):
        ledger.reserve("trips", "monday", cost(), POLICY)
    with pytest.raises(ConfigurationError, match="'customer'"):
        ledger.quote("trips", cost())
    assert ledger.reserve(
        "trips", "monday", cost(privacy_unit="customer", records_per_unit=2), POLICY
    ).token


# Names


def test_names_that_are_not_there_are_answered_with_the_nearest(ledger):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    for ask in (
        lambda: ledger.balance("taxo"),
        lambda: ledger.caps("taxo"),
        lambda: ledger.set_caps("taxo", Caps.of(rho=1)),
        lambda: ledger.reserve("taxo", "x", cost(), POLICY),
        lambda: ledger.releases("taxo"),
        lambda: ledger.history("taxo"),
    ):
        with pytest.raises(ConfigurationError, match="Did you mean 'taxi'"):
            ask()
    for ask in (
        lambda: ledger.release("munday"),
        lambda: ledger.commit("munday", {}),
        lambda: ledger.abort("munday", nothing_was_published=True),
    ):
        with pytest.raises(ConfigurationError, match="Did you mean 'monday'"):
            ask()


def test_a_data_set_is_entered_once(ledger):
    with pytest.raises(ConfigurationError, match="in the ledger already"):
        ledger.add_dataset("taxi", Caps.of(rho=100))
    assert ledger.balance("taxi").cap == Rho.upper("3")


@pytest.mark.parametrize("wrong", ["", " x", "a b", "a/b", "-x", "é", "x" * 129, "a\n", None])
def test_a_release_id_that_could_not_stand_in_a_path_is_refused(ledger, wrong):
    with pytest.raises(ConfigurationError, match="A release id is"):
        ledger.reserve("taxi", wrong, cost(), POLICY)


@pytest.mark.parametrize("wrong", ["", "a\nb", "a\x00b", "x" * 257])
def test_a_data_set_name_that_could_not_be_shown_is_refused(ledger, wrong):
    with pytest.raises(ConfigurationError, match="printable"):
        ledger.add_dataset(wrong, Caps.of(rho=1))


def test_names_and_policies_in_any_script_are_kept(ledger):
    ledger.add_dataset("Zürich; DROP TABLE '漢字' %s", Caps.of(rho=1))
    policy = {"note": "naïve ☃ \\ ' \""}
    ledger.reserve("Zürich; DROP TABLE '漢字' %s", "x", cost(), policy)
    assert ledger.release("x").policy == policy


def test_a_policy_that_is_not_json_is_refused_before_anything_is_charged(ledger):
    with pytest.raises(ConfigurationError, match=r"JSON|recorded"):
        ledger.reserve("taxi", "monday", cost(), {"key": object()})
    ledger.reserve("taxi", "monday", cost(), POLICY)
    with pytest.raises(ConfigurationError, match="recorded"):
        ledger.commit("monday", {"rows": float("nan")})
    assert ledger.release("monday").state is State.RESERVED


# History, export, verification


def test_every_change_is_in_the_history_and_a_refusal_changes_nothing(ledger):
    ledger.reserve("taxi", "monday", cost("2"), POLICY)
    with pytest.raises(BudgetExceededError):
        ledger.reserve("taxi", "tuesday", cost("2"), POLICY)
    ledger.commit("monday", {"path": "p"})
    ledger.reserve("taxi", "wednesday", cost("0.5"), POLICY)
    ledger.abort("wednesday", nothing_was_published=True)
    ledger.set_caps("taxi", Caps.of(rho=4))
    history = ledger.history("taxi")
    assert [(event.kind, event.release_id) for event in history] == [
        ("dataset_added", None),
        ("reserved", "monday"),
        ("committed", "monday"),
        ("reserved", "wednesday"),
        ("aborted", "wednesday"),
        ("caps_set", None),
    ]
    assert [event.sequence for event in history] == sorted({e.sequence for e in history})
    assert {event.by for event in history} == {"keeper"}
    assert history[1].detail == {"rho": "2"}
    assert history[-1].detail["rho_cap"] == "4"


def test_an_export_is_json_and_complete_but_for_the_tokens(ledger):
    token = ledger.reserve("taxi", "monday", falling(1.0), POLICY).token
    ledger.set_caps("taxi", Caps.of(rho=3, at_least={10: 1}))
    exported = json.loads(json.dumps(ledger.export()))
    assert [row["table"] for row in exported] == [
        *("data_set", "cap_point", "release", "event", "event", "event")
    ]
    held = exported[2]
    assert held["policy"] == POLICY
    assert held["rho_at_least"][1] == [10, str(Rho.upper(0.1))]
    assert exported[0]["rho_spent"] == "1"
    assert token not in json.dumps(exported)
    assert "token" not in json.dumps(exported)


def test_a_token_is_stored_only_as_its_digest_and_not_shown(ledger, url):
    reservation = ledger.reserve("taxi", "monday", cost(), POLICY)
    assert reservation.token not in repr(reservation)
    assert reservation.token not in str(raw(url, "SELECT * FROM ledger_release"))


def test_a_total_changed_by_hand_is_noticed(ledger, url):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    ledger.verify()
    raw(url, "UPDATE ledger_data_set SET rho_spent = '0.5'")
    with pytest.raises(LedgerError, match=r"changed by hand.*recorded 0.5, releases sum to 1"):
        ledger.verify()
    with pytest.raises(LedgerError, match="changed by hand"):
        commands.show(url)


def test_the_values_a_ledger_gives_can_be_pickled(ledger):
    reservation = ledger.reserve("taxi", "monday", falling(1.0), POLICY)
    assert pickle.loads(pickle.dumps(reservation)) == reservation  # noqa: S301


def test_releases_are_listed_by_data_set_and_state(ledger):
    ledger.add_dataset("bikes", Caps.of(rho=3))
    for dataset, name in (("taxi", "a"), ("bikes", "b"), ("taxi", "c")):
        ledger.reserve(dataset, name, cost(), POLICY)
    ledger.commit("a", {})
    assert [release.release_id for release in ledger.releases()] == ["a", "b", "c"]
    assert [release.release_id for release in ledger.releases("taxi")] == ["a", "c"]
    assert [r.release_id for r in ledger.releases("taxi", state=State.COMMITTED)] == ["a"]
    assert [release.release_id for release in ledger.half_done()] == ["b", "c"]


# Schema


def test_a_ledger_is_only_created_on_purpose(url):
    with pytest.raises(LedgerError, match="spark-dphist ledger init"):
        Ledger(url)
    Ledger.initialise(url).close()
    Ledger(url).close()


def test_initialising_a_ledger_again_keeps_what_it_holds(ledger, url):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    with Ledger.initialise(url) as again:
        assert again.balance("taxi").spent == Rho.upper("1")


def test_a_ledger_of_a_newer_version_is_refused(ledger, url):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    raw(url, "UPDATE ledger_schema SET version = 99")
    for attempt in (Ledger, Ledger.initialise):
        with pytest.raises(LedgerError, match=r"schema 99, newer than the \d.*Upgrade spark-dph"):
            attempt(url)
    assert raw(url, "SELECT version FROM ledger_schema") == [(99,)]


def test_an_older_ledger_is_refused_until_it_is_brought_up_and_keeps_its_charges(
    ledger, url, monkeypatch
):
    ledger.reserve("taxi", "monday", cost(), POLICY)

    def next_step(connection):
        connection.exec_driver_sql("ALTER TABLE ledger_event ADD COLUMN reason TEXT")

    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, next_step))
    with pytest.raises(LedgerError, match="Bring it up with spark-dphist ledger init"):
        Ledger(url)
    with Ledger.initialise(url) as up:
        assert up.balance("taxi").spent == Rho.upper("1")
    assert raw(url, "SELECT version FROM ledger_schema") == [(len(migrations.STEPS),)]
    assert raw(url, "SELECT DISTINCT reason FROM ledger_event") == [(None,)]


@pytest.mark.usefixtures("ledger")
def test_a_step_that_fails_leaves_the_ledger_as_it_was(url, monkeypatch):
    def broken(connection):
        connection.exec_driver_sql("ALTER TABLE ledger_event ADD COLUMN reason TEXT")
        connection.exec_driver_sql("ALTER TABLE no_such_table ADD COLUMN reason TEXT")

    before = len(migrations.STEPS)
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, broken))
    with pytest.raises(LedgerError, match="no_such_table"):
        Ledger.initialise(url)
    assert raw(url, "SELECT version FROM ledger_schema") == [(before,)]
    assert "reason" not in _columns(url, "ledger_event")


def _columns(url: str, table: str) -> dict[str, bool]:
    engine = create_engine(url)
    columns = {c["name"]: c["nullable"] for c in inspect(engine).get_columns(table)}
    engine.dispose()
    return columns


@pytest.mark.usefixtures("ledger")
def test_the_steps_together_give_exactly_the_schema_the_code_uses(url):
    engine = create_engine(url)
    found = inspect(engine)
    assert set(found.get_table_names()) - {"sqlite_sequence"} == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        # SQLite reports a primary key of integers as nullable.
        key = [column.name for column in table.primary_key]
        assert {k: v for k, v in _columns(url, name).items() if k not in key} == {
            column.name: column.nullable for column in table.columns if column.name not in key
        }
        assert found.get_pk_constraint(name)["constrained_columns"] == key
        assert {
            (key["referred_table"], *key["constrained_columns"])
            for key in found.get_foreign_keys(name)
        } == {(key.column.table.name, key.parent.name) for key in table.foreign_keys}
        types = {column["name"]: column["type"].python_type for column in found.get_columns(name)}
        assert types == {
            column.name: getattr(column.type, "impl_instance", column.type).python_type
            for column in table.columns
        }
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_release SET state = 'lost'",
        "UPDATE ledger_release SET state = 'committed'",
        "UPDATE ledger_release SET data_set = 'nowhere'",
        "UPDATE ledger_data_set SET rho_cap = NULL",
        "INSERT INTO ledger_schema VALUES (2, 1)",
    ],
)
def test_the_database_itself_refuses_a_row_that_cannot_be(ledger, url, statement):
    ledger.reserve("taxi", "monday", cost(), POLICY)
    if url.startswith("sqlite"):
        with pytest.raises(LedgerError, match="constraint failed"):
            ledger._database.write(lambda connection: connection.exec_driver_sql(statement))
    else:
        with pytest.raises(LedgerError, match="violates"):
            ledger._database.write(lambda connection: connection.exec_driver_sql(statement))


# The commands


def test_the_commands_lead_a_data_set_from_its_caps_to_its_export(url):
    request = commands.CapsRequest(rho="3", epsilon=20.0, delta=1e-6, at_least={10: "1"})
    created = commands.init(url, "taxi", request)
    assert created["data_sets"] == ["taxi"]
    with Ledger(url) as ledger:
        ledger.reserve("taxi", "monday", cost("0.5"), POLICY)
    (shown,) = commands.show(url)
    assert shown["half_done"] == ["monday"]
    assert shown["limits"][0] == {
        **{"limit": "rho for everyone", "at_least": None},
        **{"cap": "3", "spent": "0.5", "left": "2.5"},
    }
    listed = commands.releases(url, "taxi", state="reserved")
    assert [(row["release_id"], row["rho"]) for row in listed] == [("monday", "0.5")]
    with pytest.raises(ConfigurationError, match="--nothing-was-published"):
        commands.abort(url, "monday", nothing_was_published=False)
    assert commands.abort(url, "monday", nothing_was_published=True)["state"] == "aborted"
    assert commands.show(url, "taxi")[0]["half_done"] == []
    exported = commands.export(url)
    for answer in (created, shown, listed, exported):
        json.dumps(answer)


def test_the_caps_command_changes_what_is_stated_and_keeps_the_rest(url):
    request = commands.CapsRequest(rho="3", epsilon=20.0, delta=1e-6, at_least={10: "1"})
    commands.init(url, "taxi", request)
    commands.caps(url, "taxi", commands.CapsRequest(rho="4"))
    with Ledger(url) as ledger:
        wanted = Caps.of(rho="4", epsilon=20.0, delta=1e-6, at_least={10: "1"})
        assert ledger.caps("taxi") == wanted
        commands.caps(url, "taxi", commands.CapsRequest(), drop=("epsilon", "at_least"))
        assert ledger.caps("taxi") == Caps.of(rho="4")
    with pytest.raises(ConfigurationError, match="needs a cap for everyone"):
        commands.caps(url, "taxi", commands.CapsRequest(), drop=("rho",))
    with pytest.raises(ConfigurationError, match="Did you mean 'epsilon'"):
        commands.caps(url, "taxi", commands.CapsRequest(), drop=("epsilom",))


def test_caps_without_a_data_set_are_refused_before_a_ledger_is_made(url):
    with pytest.raises(ConfigurationError, match="name it too"):
        commands.init(url, caps=commands.CapsRequest(rho=1))
    with pytest.raises(LedgerError, match="There is no ledger"):
        commands.show(url)


def test_an_unknown_state_is_answered_with_the_nearest(url):
    commands.init(url)
    with pytest.raises(ConfigurationError, match="Did you mean 'committed'"):
        commands.releases(url, state="commited")


def test_the_example_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/ledger.md", "exec"), {})  # noqa: S102
    assert capsys.readouterr().out.startswith("0.39999")


def test_every_column_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    for table in schema.metadata.tables.values():
        section = page.split(f"**{table.name}**", 1)[1].split("**ledger_", 1)[0]
        assert [c.name for c in table.columns if f"`{c.name}`" not in section] == []
