"""Connections and transactions of a ledger, and what their failures mean.

Every transaction has its own connection: nothing goes stale between the reservation and the end
of a long job, and nothing is shared by a fork.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from spark_dphist.accounting.ledger.errors import LedgerBusyError, LedgerError
from spark_dphist.errors import ConfigurationError, did_you_mean

T = TypeVar("T")

_DRIVERS = ("sqlite", "postgresql+psycopg")
_WAIT_SECONDS = 30
_ATTEMPTS = 4

# 40001 serialization failure, 40P01 deadlock, 23505 somebody inserted the same key first: the
# transaction left no trace and sees the other's work the next time.
_RETRIED = {"40001", "40P01", "23505"}
_BUSY = {"55P03"}
_READ_ONLY = {"25006", "42501"}
_FULL = {"53100"}


class Database:
    """Where a ledger is kept.

    Parameters
    ----------
    url
        ``sqlite:///path`` or ``postgresql+psycopg://user@host/database``.
    create
        Let SQLite create the file.

    Raises
    ------
    ConfigurationError
        If the address is not one of the two kinds, or the driver is not installed.
    """

    def __init__(self, url: str | URL, *, create: bool = False) -> None:
        parsed = _parsed(url)
        self.location = _location(parsed)
        self._creates = create
        self._password = parsed.password
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self._path = Path(str(parsed.database)).absolute() if self.is_sqlite else None
        if self._path is not None:
            self._engine = _sqlite_engine(self._path, create=create)
        else:
            self._engine = _postgresql_engine(parsed)

    def close(self) -> None:
        """Let go of everything; a closed database opens again when it is used."""
        self._engine.dispose()

    def read(self, action: Callable[[Connection], T]) -> T:
        """Run an action that changes nothing, on one consistent state."""
        options = (
            {}
            if self.is_sqlite
            else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        )
        try:
            with (
                self._engine.connect().execution_options(**options) as connection,
                connection.begin(),
            ):
                return action(connection)
        except SQLAlchemyError as error:
            raise self._explained(error) from None

    def write(self, action: Callable[[Connection], T]) -> T:
        """Run an action as one transaction: all of it is recorded, durably, or none of it.

        After a lost connection the action runs again, and the first commit may or may not have
        arrived: the action must see its own work and not do it twice.
        On SQLite the write lock is taken before the first read; on PostgreSQL the action locks the
        data set's row.

        Raises
        ------
        LedgerError
            If the transaction cannot be run; the message names the ledger without its password.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with (
                    self._engine.connect().execution_options(ledger_write=True) as connection,
                    connection.begin(),
                ):
                    if not self.is_sqlite:
                        connection.exec_driver_sql(_POSTGRESQL_TRANSACTION)
                    return action(connection)
            except SQLAlchemyError as error:
                if attempt == _ATTEMPTS or not _passes(error):
                    raise self._explained(error) from None
        raise AssertionError("unreachable")

    def missing(self) -> LedgerError:
        """Say that there is no ledger here, and the mend."""
        return LedgerError(
            f"There is no ledger at {self.location}. A ledger is only created on purpose: "
            "spark-dphist ledger init. If there was one, do not create it anew: restore it, "
            "because its charges still count."
        )

    def _explained(self, error: SQLAlchemyError) -> LedgerError:
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        if self._password:
            text = text.replace(str(self._password), "***")
        state = getattr(cause, "sqlstate", None)
        code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
        if self._path is not None and code == sqlite3.SQLITE_CANTOPEN:
            if not self._path.parent.is_dir():
                return LedgerError(
                    f"There is no folder {self._path.parent} for the ledger at {self.location}. "
                    "Check the path, or create the folder first."
                )
            if not self._path.exists() and not self._creates:
                return self.missing()
        if code == sqlite3.SQLITE_BUSY or state in _BUSY:
            return LedgerBusyError(
                f"The ledger at {self.location} was held by others for more than "
                f"{_WAIT_SECONDS} s ({text}). Nothing was recorded; ask again."
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or state in _READ_ONLY:
            mend = "Give this user write access to it (on SQLite to the file and its folder)."
        elif code == sqlite3.SQLITE_FULL or state in _FULL:
            mend = "Make room on its disk; a charge is recorded entirely or not at all."
        elif code == sqlite3.SQLITE_NOTADB:
            mend = "The file is something else; check the path."
        elif code == sqlite3.SQLITE_CORRUPT:
            mend = "Restore it from a backup and re-enter the releases made since, before any run."
        else:
            mend = (
                "Publish nothing. A charge that was recorded stays; "
                "spark-dphist ledger releases lists them."
            )
        return LedgerError(f"The ledger at {self.location} failed: {text}. {mend}")


# A session that hangs must not hold the lock for ever, and a charge must be on disk before a
# release runs, whatever the server's defaults.
_POSTGRESQL_TRANSACTION = f"""
SELECT set_config('lock_timeout', '{_WAIT_SECONDS}s', true),
       set_config('idle_in_transaction_session_timeout', '{2 * _WAIT_SECONDS}s', true),
       set_config('synchronous_commit',
                  CASE current_setting('synchronous_commit')
                  WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)
"""


def _passes(error: SQLAlchemyError) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or getattr(error.orig, "sqlstate", None) in _RETRIED


def _parsed(url: str | URL) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The text is not repeated: it may hold a password.
        raise ConfigurationError(
            "The ledger's address cannot be read. Expected sqlite:///path/to/ledger.db or "
            "postgresql+psycopg://user@host/database."
        ) from None
    if parsed.drivername not in _DRIVERS:
        raise ConfigurationError(
            f"A ledger cannot be kept in {parsed.drivername!r}. "
            f"{did_you_mean(parsed.drivername, _DRIVERS)}"
        )
    if parsed.drivername == "sqlite" and parsed.query:
        raise ConfigurationError(
            f"A ledger in SQLite takes no options, got {', '.join(sorted(parsed.query))}. "
            "Give the path alone."
        )
    if parsed.drivername == "sqlite" and (
        parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:")
    ):
        raise ConfigurationError(
            "A ledger in memory forgets what was spent. Name a file: sqlite:///path/to/ledger.db."
        )
    return parsed


def _location(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{Path(str(url.database)).absolute()}"
    # Without the query: it may hold secrets too.
    return URL.create(
        url.drivername, url.username, None, url.host, url.port, url.database
    ).render_as_string(hide_password=True)


def _sqlite_engine(path: Path, *, create: bool) -> Engine:
    mode = "rwc" if create else "rw"
    uri = f"file:{quote(str(path))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        # SQLAlchemy, not the driver, decides where a transaction begins.
        return sqlite3.connect(uri, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA foreign_keys = ON")
        # EXTRA also syncs the folder when the journal goes: with FULL a power cut just after a
        # commit can bring the journal back and undo the charge.
        connection.execute("PRAGMA synchronous = EXTRA")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock before the caps are read; two readers that both upgrade
        # later would both have seen the old balance.
        writes = connection.get_execution_options().get("ledger_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql_engine(url: URL) -> Engine:
    try:
        return create_engine(
            url, poolclass=NullPool, isolation_level="READ COMMITTED", hide_parameters=True
        )
    except ImportError:
        raise ConfigurationError(
            "A ledger on PostgreSQL needs psycopg, which is not installed: "
            "pip install 'spark-dphist[postgresql]'."
        ) from None
