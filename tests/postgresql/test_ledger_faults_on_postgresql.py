"""A lost connection, a stuck holder and a wrong password: a clear error, nothing spent twice."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field

import psycopg
import pytest
from sqlalchemy import event

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import Caps, Ledger, LedgerBusyError, LedgerError, database

ONE = PolicyCost(Rho.upper("1"), "linear_log", {"sigma": 0.1})


@pytest.fixture
def ledger(url):
    with Ledger.initialise(url, by="keeper") as opened:
        opened.add_dataset("taxi", Caps.of(rho=10))
        yield opened


@dataclass
class Cut:
    """Ends the ledger's own server process, with pg_terminate_backend, at chosen moments."""

    cluster: object
    ledger: Ledger
    times: int
    before: str = ""
    after_commit: bool = False
    done: int = 0
    statements: list[str] = field(default_factory=list)

    def __enter__(self) -> Cut:
        engine = self.ledger._database._engine
        event.listen(engine, "before_cursor_execute", self.statement)
        self.commit = engine.dialect.do_commit
        engine.dialect.do_commit = self.do_commit
        return self

    def __exit__(self, *_: object) -> None:
        engine = self.ledger._database._engine
        event.remove(engine, "before_cursor_execute", self.statement)
        engine.dialect.do_commit = self.commit

    def cut(self, connection: psycopg.Connection) -> None:
        if self.done < self.times:
            self.done += 1
            with self.cluster.connect() as administrator:
                ended = administrator.execute(
                    "SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid]
                )
                assert ended.fetchone() == (True,)

    def statement(self, connection, _cursor, statement, *_) -> None:
        self.statements.append(statement)
        if self.before and statement.startswith(self.before):
            self.cut(connection.connection.dbapi_connection)

    def do_commit(self, connection) -> None:
        self.commit(connection)
        if self.after_commit and any(s.startswith("INSERT") for s in self.statements):
            # The server has committed; the answer is lost on the way.
            self.cut(connection.dbapi_connection)
            connection.dbapi_connection.execute("SELECT 1")


@pytest.mark.parametrize(
    "moment",
    [
        {"before": "SELECT ledger_data_set"},
        {"before": "INSERT INTO ledger_release"},
        {"before": "UPDATE ledger_data_set"},
        {"before": "INSERT INTO ledger_event"},
        {"after_commit": True},
    ],
)
def test_a_connection_lost_once_is_made_good_and_charged_once(cluster, ledger, moment):
    with Cut(cluster, ledger, 1, **moment) as cut:
        reservation = ledger.reserve("taxi", "monday", ONE, {})
    assert cut.done == 1
    assert reservation.token
    assert ledger.balance("taxi").spent == Rho.upper("1")
    assert [event.kind for event in ledger.history()] == ["dataset_added", "reserved"]
    assert ledger.reserve("taxi", "monday", ONE, {}, token=reservation.token).token
    ledger.verify()


@pytest.mark.parametrize("moment", [{"before": "UPDATE ledger_release"}, {"after_commit": True}])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_end_whose_connection_is_lost_is_recorded_once(cluster, ledger, moment, end):
    ledger.reserve("taxi", "monday", ONE, {})
    with Cut(cluster, ledger, 1, **moment) as cut:
        if end == "commit":
            ledger.commit("monday", {"path": "p"})
        else:
            ledger.abort("monday", nothing_was_published=True)
    assert cut.done == 1
    assert ledger.balance("taxi").spent == Rho.upper("1" if end == "commit" else "0")
    assert len(ledger.history()) == 3
    ledger.verify()


def test_a_connection_lost_every_time_is_an_error_and_charges_nothing(cluster, ledger):
    with (
        Cut(cluster, ledger, 100, before="INSERT INTO ledger_event") as cut,
        pytest.raises(LedgerError, match="terminating connection") as failed,
    ):
        ledger.reserve("taxi", "monday", ONE, {})
    assert cut.done > 1
    shown = "".join(traceback.format_exception(failed.value))
    assert "postgresql+psycopg://postgres@127.0.0.1:" in str(failed.value)
    assert "Publish nothing" in str(failed.value)
    assert cluster.password not in shown
    assert ledger.balance("taxi").spent == Rho(0)
    assert ledger.releases() == ()
    assert len(ledger.history()) == 1


def test_an_answer_lost_every_time_leaves_one_charge_and_says_to_publish_nothing(cluster, ledger):
    says = r"Publish nothing\. A charge that was recorded stays"
    with (
        Cut(cluster, ledger, 100, after_commit=True),
        pytest.raises(LedgerError, match=says),
    ):
        ledger.reserve("taxi", "monday", ONE, {})
    assert ledger.balance("taxi").spent == Rho.upper("1")
    assert [release.release_id for release in ledger.half_done()] == ["monday"]
    assert len(ledger.history()) == 2
    ledger.verify()


def test_a_session_that_holds_a_data_set_makes_others_wait_and_then_give_up(
    cluster, ledger, database_name, monkeypatch
):
    monkeypatch.setattr(
        database,
        "_POSTGRESQL_TRANSACTION",
        database._POSTGRESQL_TRANSACTION.replace("'30s'", "'300ms'"),
    )
    with cluster.connect(database_name) as holder, holder.transaction():
        holder.execute("SELECT * FROM ledger_data_set WHERE name = 'taxi' FOR UPDATE")
        with pytest.raises(LedgerBusyError, match=r"lock timeout.*Nothing was recorded"):
            ledger.reserve("taxi", "monday", ONE, {})
    assert ledger.balance("taxi").spent == Rho(0)
    assert ledger.reserve("taxi", "monday", ONE, {}).token


def test_one_data_set_being_held_does_not_stop_another(cluster, ledger, database_name):
    ledger.add_dataset("bikes", Caps.of(rho=10))
    with cluster.connect(database_name) as holder, holder.transaction():
        holder.execute("SELECT * FROM ledger_data_set WHERE name = 'taxi' FOR UPDATE")
        assert ledger.reserve("bikes", "monday", ONE, {}).token


def test_charges_are_durable_even_where_the_server_defaults_to_losing_them(
    cluster, ledger, database_name
):
    with cluster.connect() as administrator:
        administrator.execute(f"ALTER DATABASE {database_name} SET synchronous_commit = off")
    engine = ledger._database._engine
    used = ledger._database.write(
        lambda connection: connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
    )
    with engine.connect() as plain:
        assert plain.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
    assert used == "on"


def test_a_database_that_defaults_to_serializable_still_decides_rightly(
    cluster, ledger, database_name
):
    with cluster.connect() as administrator:
        administrator.execute(
            f"ALTER DATABASE {database_name} SET default_transaction_isolation = 'serializable'"
        )
    level = ledger._database.write(
        lambda connection: connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
    )
    assert level == "read committed"


def test_a_read_only_server_is_named(cluster, ledger, database_name):
    with cluster.connect() as administrator:
        administrator.execute(
            f"ALTER DATABASE {database_name} SET default_transaction_read_only = on"
        )
    with pytest.raises(LedgerError, match=r"read-only transaction.*write access"):
        ledger.reserve("taxi", "monday", ONE, {})
    assert ledger.balance("taxi").spent == Rho(0)


def test_a_wrong_password_is_not_repeated(cluster, database_name):
    wrong = "wrong-horse-battery"
    with pytest.raises(LedgerError, match="password authentication failed") as failed:
        Ledger(cluster.address(database_name, password=wrong))
    assert wrong not in "".join(traceback.format_exception(failed.value))


def test_a_password_in_the_options_is_not_repeated(cluster, database_name):
    wrong = "wrong-horse-battery"
    address = cluster.address(database_name).replace(f":{cluster.password}", "")
    with pytest.raises(LedgerError, match="authentication failed") as failed:
        Ledger(f"{address}?password={wrong}")
    assert wrong not in "".join(traceback.format_exception(failed.value))
    opened = Ledger.initialise(f"{address}?password={cluster.password}")
    assert cluster.password not in repr(opened)
    opened.close()


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(LedgerError, match=r"postgresql\+psycopg://me@127.0.0.1:1/db.*refused"):
        Ledger("postgresql+psycopg://me:secret@127.0.0.1:1/db")


@pytest.mark.usefixtures("ledger")
def test_a_role_that_may_only_read_can_look_but_not_charge(cluster, database_name):
    with cluster.connect(database_name) as administrator:
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            administrator.execute(f"CREATE ROLE reader LOGIN PASSWORD '{cluster.password}'")
        administrator.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    address = cluster.address(database_name).replace("//postgres:", "//reader:")
    with Ledger(address) as looking:
        assert looking.balance("taxi").spent == Rho(0)
        with pytest.raises(LedgerError, match=r"permission denied.*write access"):
            looking.reserve("taxi", "monday", ONE, {})


def test_the_rights_the_documentation_names_are_enough_to_release(cluster, ledger, database_name):
    ledger.set_caps("taxi", Caps.of(rho=10, at_least={10: 5}))
    with cluster.connect(database_name) as administrator:
        with contextlib.suppress(psycopg.errors.DuplicateObject):
            administrator.execute(f"CREATE ROLE runner LOGIN PASSWORD '{cluster.password}'")
        administrator.execute(
            "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO runner"
        )
    address = cluster.address(database_name).replace("//postgres:", "//runner:")
    with Ledger(address) as running:
        running.reserve("taxi", "monday", ONE, {})
        running.commit("monday", {})
        running.reserve("taxi", "tuesday", ONE, {})
        running.abort("tuesday", nothing_was_published=True)
        with pytest.raises(LedgerError, match="permission denied"):
            running.set_caps("taxi", Caps.of(rho=100))
    assert ledger.balance("taxi").spent == Rho.upper("1")
