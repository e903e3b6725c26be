"""The one path by which a ledger's schema comes to be: numbered steps, each run once, in order.

A step is never edited after a release of this package has shipped it; a change of ``schema`` comes
with a new step. A test holds that all steps together give exactly ``schema.metadata``.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, select

from spark_dphist.accounting.ledger.schema import ledger_schema

Step = Callable[[Connection], None]


def _create(connection: Connection) -> None:
    sequence = (
        "INTEGER PRIMARY KEY AUTOINCREMENT"
        if connection.dialect.name == "sqlite"
        else "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    for statement in (
        """CREATE TABLE ledger_schema (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            version INTEGER NOT NULL)""",
        """CREATE TABLE ledger_data_set (
            name TEXT NOT NULL PRIMARY KEY,
            privacy_unit TEXT NOT NULL,
            rho_cap TEXT,
            epsilon_cap DOUBLE PRECISION,
            delta DOUBLE PRECISION,
            epsilon_rho_cap TEXT,
            rho_spent TEXT NOT NULL,
            created_at TEXT NOT NULL,
            created_by TEXT NOT NULL,
            CHECK (rho_cap IS NOT NULL OR epsilon_rho_cap IS NOT NULL),
            CHECK ((epsilon_cap IS NULL) = (epsilon_rho_cap IS NULL)),
            CHECK ((epsilon_cap IS NULL) = (delta IS NULL)))""",
        """CREATE TABLE ledger_cap_point (
            data_set TEXT NOT NULL REFERENCES ledger_data_set (name),
            at_least BIGINT NOT NULL CHECK (at_least >= 1),
            rho_cap TEXT NOT NULL,
            rho_spent TEXT NOT NULL,
            PRIMARY KEY (data_set, at_least))""",
        """CREATE TABLE ledger_release (
            release_id TEXT NOT NULL PRIMARY KEY,
            data_set TEXT NOT NULL REFERENCES ledger_data_set (name),
            state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'aborted')),
            rho TEXT NOT NULL,
            rho_at_least TEXT NOT NULL,
            noise TEXT NOT NULL,
            pure_epsilon DOUBLE PRECISION,
            mechanism TEXT NOT NULL,
            parameters TEXT NOT NULL,
            privacy_unit TEXT NOT NULL,
            records_per_unit BIGINT NOT NULL CHECK (records_per_unit >= 1),
            policy TEXT NOT NULL,
            software TEXT NOT NULL,
            token_sha256 TEXT NOT NULL,
            reserved_at TEXT NOT NULL,
            reserved_by TEXT NOT NULL,
            ended_at TEXT,
            ended_by TEXT,
            output TEXT,
            CHECK ((state = 'reserved') = (ended_at IS NULL)),
            CHECK ((state = 'reserved') = (ended_by IS NULL)),
            CHECK ((state = 'committed') = (output IS NOT NULL)))""",
        "CREATE INDEX ledger_release_by_data_set ON ledger_release (data_set, state)",
        f"""CREATE TABLE ledger_event (
            sequence {sequence},
            at TEXT NOT NULL,
            by_whom TEXT NOT NULL,
            kind TEXT NOT NULL,
            data_set TEXT NOT NULL,
            release_id TEXT,
            detail TEXT NOT NULL)""",
        "INSERT INTO ledger_schema (id, version) VALUES (1, 0)",
    ):
        connection.exec_driver_sql(statement)


def _add_delta_of_learnt_key_sets(connection: Connection) -> None:
    for table, column in (
        ("ledger_data_set", "selection_delta_cap"),
        ("ledger_data_set", "selection_delta_spent"),
        ("ledger_release", "delta"),
    ):
        connection.exec_driver_sql(
            f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT '0'"
        )


STEPS: tuple[Step, ...] = (_create, _add_delta_of_learnt_key_sets)


def version_of(connection: Connection) -> int | None:
    """Return the schema's version, or None where there is no ledger."""
    if not inspect(connection).has_table(ledger_schema.name):
        return None
    version: int = connection.execute(select(ledger_schema.c.version)).scalar_one()
    return version


def bring_up(connection: Connection, version: int) -> None:
    """Run the steps after ``version`` inside the caller's transaction."""
    for step in STEPS[version:]:
        step(connection)
    connection.execute(ledger_schema.update().values(version=len(STEPS)))
