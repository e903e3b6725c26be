"""The ledger: one transaction per step, under a lock, decided by public policy alone."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from sqlalchemy import URL, Connection, Row, insert, select, text, update

from spark_dphist import __version__
from spark_dphist.accounting.composition import (
    PolicyCost,
    Rho,
    canonical_json,
    total_delta_upper,
)
from spark_dphist.accounting.ledger import migrations, queries, rows, schema
from spark_dphist.accounting.ledger.database import Database
from spark_dphist.accounting.ledger.errors import (
    BudgetExceededError,
    HalfDoneReleaseError,
    LedgerError,
    ReleaseConflictError,
)
from spark_dphist.accounting.ledger.models import (
    Balance,
    Caps,
    Charge,
    Event,
    Release,
    Reservation,
    State,
    checked_name,
    checked_release_id,
)
from spark_dphist.errors import ConfigurationError

# What a reservation taken up again must have been charged.
_COST_COLUMNS = ("rho", "rho_at_least", "pure_epsilon", "delta")

# Any constant will do, as long as all versions of this package use the same.
_INITIALISE_LOCK = 0x5DF157


class Ledger:
    """What every data set may cost, what its releases have cost, and where each release stands.

    Privacy guarantee: the sum of the worst-case rho of all releases that are reserved or
    committed never exceeds a data set's caps as they stood when each was reserved, with any number
    of processes at work and whichever of them dies. A release that is not recorded here is not
    covered. The argument is in docs/ledger.md.

    Parameters
    ----------
    url
        ``sqlite:///path/to/ledger.db`` on a local disk, or
        ``postgresql+psycopg://user@host/database``.
    by
        Who is asking, for the record; the operating system's user by default.

    Raises
    ------
    LedgerError
        If there is no ledger there, it cannot be reached, or its schema is not this version's.
    ConfigurationError
        If the address is not one of the two kinds.
    """

    def __init__(self, url: str | URL, *, by: str | None = None) -> None:
        self._database = Database(url)
        self._by = checked_name("user name", by if by is not None else _user())
        version = self._database.read(migrations.version_of)
        if version is None:
            raise self._database.missing()
        if version < len(migrations.STEPS):
            raise LedgerError(
                f"The ledger at {self.location} has schema {version}, this version of spark-dphist "
                f"needs {len(migrations.STEPS)}. Bring it up with spark-dphist ledger init; what "
                "it holds is kept."
            )
        _refuse_newer(self.location, version)

    @classmethod
    def initialise(cls, url: str | URL, *, by: str | None = None) -> Ledger:
        """Create a ledger, or bring an older one's schema up; what it holds is kept.

        Parameters
        ----------
        url, by
            As for ``Ledger``. On PostgreSQL the database must exist.

        Raises
        ------
        LedgerError
            If the place cannot be written, or holds the ledger of a newer version.
        """
        database = Database(url, create=True)

        def create(connection: Connection) -> None:
            if not database.is_sqlite:
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _INITIALISE_LOCK}
                )
            version = migrations.version_of(connection) or 0
            _refuse_newer(database.location, version)
            if version < len(migrations.STEPS):
                migrations.bring_up(connection, version)

        database.write(create)
        return cls(url, by=by)

    @property
    def location(self) -> str:
        """Address of the ledger without its password."""
        return self._database.location

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self.location!r})"

    # Data sets and caps

    def add_dataset(self, name: str, caps: Caps, *, privacy_unit: str = "record") -> Balance:
        """Enter a data set with its caps.

        Parameters
        ----------
        name
            1 to 256 printable characters.
        caps
            See ``Caps.of``.
        privacy_unit
            Whom the caps protect: ``record`` or the name of the unit's column. Every release must
            be accounted for the same unit, since losses of different units do not add.

        Raises
        ------
        ConfigurationError
            If the data set is there already.
        """
        checked_name("data set's name", name)
        checked_name("privacy unit", privacy_unit)

        def add(connection: Connection) -> Balance:
            if connection.execute(queries.select_dataset(name)).one_or_none() is not None:
                raise ConfigurationError(
                    f"Data set {name!r} is in the ledger already; its caps change with "
                    "spark-dphist ledger caps."
                )
            connection.execute(
                insert(schema.data_set).values(
                    name=name,
                    privacy_unit=privacy_unit,
                    rho_spent=Rho(0),
                    selection_delta_spent=Rho(0),
                    created_at=_now(),
                    created_by=self._by,
                    **rows.cap_columns(caps),
                )
            )
            queries.replace_cap_points(connection, name, caps)
            detail = {"privacy_unit": privacy_unit, **rows.caps_detail(caps)}
            self._record(connection, "dataset_added", name, None, detail)
            return queries.balance_of(connection, name)

        return self._database.write(add)

    def set_caps(self, dataset: str, caps: Caps) -> Balance:
        """Replace a data set's caps; what is spent stays spent.

        Caps on rho below what is spent already are allowed: nothing is left then. What releases so
        far have spent at new counts is computed from their recorded costs.

        Raises
        ------
        ConfigurationError
            If there is no such data set, or the cap on the delta for learnt key sets is below what
            is spent of it.
        """

        def change(connection: Connection) -> Balance:
            spent = queries.dataset_row(connection, dataset, lock=True).selection_delta_spent
            if caps.selection_delta < spent:
                # epsilon_rho leaves the cap aside from delta: that has to cover the past too.
                raise ConfigurationError(
                    f"The delta for learnt key sets of data set {dataset!r} cannot be capped below "
                    f"what is spent: cap {caps.selection_delta}, spent {spent}. Set "
                    f"--selection-delta {spent}, which allows for no further one."
                )
            connection.execute(
                update(schema.data_set)
                .where(schema.data_set.c.name == dataset)
                .values(**rows.cap_columns(caps))
            )
            queries.replace_cap_points(connection, dataset, caps)
            self._record(connection, "caps_set", dataset, None, rows.caps_detail(caps))
            return queries.balance_of(connection, dataset)

        return self._database.write(change)

    def datasets(self) -> tuple[str, ...]:
        """Return the names of the data sets, in order."""
        return self._database.read(queries.dataset_names)

    def caps(self, dataset: str) -> Caps:
        """Return a data set's caps as declared.

        Raises
        ------
        ConfigurationError
            If there is no such data set.
        """
        return self._database.read(lambda connection: queries.caps_of(connection, dataset))

    def balance(self, dataset: str) -> Balance:
        """Return caps, spent and left of a data set.

        Raises
        ------
        ConfigurationError
            If there is no such data set.
        """
        return self._database.read(lambda connection: queries.balance_of(connection, dataset))

    def quote(self, dataset: str, cost: PolicyCost) -> tuple[Charge, ...]:
        """Return what a release would ask of each limit, charging nothing.

        Only ``reserve`` decides: others may spend in between.
        """

        def ask(connection: Connection) -> tuple[Charge, ...]:
            balance = queries.balance_of(connection, dataset)
            _check_unit(balance, cost)
            return balance.charges(cost)

        return self._database.read(ask)

    # The life of a release

    def reserve(
        self,
        dataset: str,
        release_id: str,
        cost: PolicyCost,
        policy: Mapping[str, object],
        *,
        token: str | None = None,
    ) -> Reservation:
        """Charge a release before it reads anything.

        Asking again for a committed release of the same policy returns it as stored and charges
        nothing: hand out its stored result without touching data.

        Parameters
        ----------
        dataset
            Name of the data set.
        release_id
            Unique in the ledger, for ever.
        cost
            What the release costs a privacy unit, from its public policy.
        policy
            The public policy, JSON values only; never a record, a count or a key.
        token
            The token of this caller's own reservation, to take up a release it reserved itself.

        Returns
        -------
        Reservation
            Durably recorded by the time it is returned.

        Raises
        ------
        BudgetExceededError
            If a cap does not leave what the release would cost; it names them.
        HalfDoneReleaseError
            If another run reserved the id and did not end.
        ReleaseConflictError
            If the id belongs to another data set or policy, or was aborted.
        ConfigurationError
            If there is no such data set, or the cost is about another privacy unit.
        LedgerError
            If the ledger cannot be written: nothing may be read or published.
        """
        checked_release_id(release_id)
        policy_text = canonical_json(policy)
        # Made before the transaction, so that a transaction run again after a lost connection
        # knows its own reservation.
        own = token if token is not None else secrets.token_urlsafe(32)

        def take(connection: Connection) -> Reservation:
            balance = queries.balance_of(connection, dataset, lock=True)
            _check_unit(balance, cost)
            row = connection.execute(queries.select_release(release_id)).one_or_none()
            if row is not None:
                return _asked_again(row, dataset, cost, policy_text, own, self.location)
            charges = balance.charges(cost)
            refused = [charge for charge in charges if not charge.fits]
            if refused:
                raise BudgetExceededError(dataset, release_id, refused)
            connection.execute(
                insert(schema.release).values(
                    release_id=release_id,
                    data_set=dataset,
                    state=State.RESERVED.value,
                    **rows.cost_columns(cost),
                    policy=policy_text,
                    software=__version__,
                    token_sha256=_digest(own),
                    reserved_at=_now(),
                    reserved_by=self._by,
                )
            )
            queries.shift_spent(connection, balance, cost, sign=1)
            detail = {"rho": str(cost.rho_upper)}
            self._record(connection, "reserved", dataset, release_id, detail)
            return Reservation(queries.release_of(connection, release_id), own)

        return self._database.write(take)

    def commit(self, release_id: str, output: Mapping[str, object]) -> Release:
        """Record that a release has its result; the last step before it may be shown.

        Parameters
        ----------
        release_id
            A reserved release. Committing it again with the same output changes nothing.
        output
            Where the result is, and whatever else is public about it; JSON values only.

        Raises
        ------
        ReleaseConflictError
            If the release was aborted (its result must not be shown), or committed with another
            output.
        """
        output_text = canonical_json(output)

        def end(connection: Connection) -> Release:
            held, _ = queries.held_release(connection, release_id)
            if held.state is State.COMMITTED:
                if canonical_json(held.output) == output_text:
                    return held
                raise ReleaseConflictError(
                    f"Release {release_id!r} was committed at {_moment(held)} with another output. "
                    "Its result is the one recorded; discard the new one."
                )
            if held.state is State.ABORTED:
                raise ReleaseConflictError(
                    f"Release {release_id!r} was aborted at {_moment(held)} by {held.ended_by} as "
                    "unpublished and is no longer charged. Discard its result: nothing of it may "
                    "be shown."
                )
            self._end(connection, held, State.COMMITTED, output_text)
            return queries.release_of(connection, release_id)

        return self._database.write(end)

    def abort(self, release_id: str, *, nothing_was_published: bool) -> Release:
        """End a reserved release of which nothing was or will be shown, and free its charge.

        Parameters
        ----------
        release_id
            A reserved release. Aborting it again changes nothing. Its id stays taken.
        nothing_was_published
            Must be True: the operator's word that nobody saw anything of it and that its run is
            dead.

        Raises
        ------
        ConfigurationError
            If ``nothing_was_published`` is not True.
        ReleaseConflictError
            If the release is committed.
        """
        if nothing_was_published is not True:
            raise ConfigurationError(
                f"Release {release_id!r} stays charged: only a release of which nothing was "
                "published can be aborted, and somebody has to say so "
                "(--nothing-was-published)."
            )

        def end(connection: Connection) -> Release:
            held, balance = queries.held_release(connection, release_id)
            if held.state is State.ABORTED:
                return held
            if held.state is State.COMMITTED:
                raise ReleaseConflictError(
                    f"Release {release_id!r} was committed at {_moment(held)} by {held.ended_by}: "
                    "it may have been seen and stays charged."
                )
            queries.shift_spent(connection, balance, held.cost, sign=-1)
            self._end(connection, held, State.ABORTED, None)
            return queries.release_of(connection, release_id)

        return self._database.write(end)

    # Looking

    def release(self, release_id: str) -> Release:
        """Return a release as stored.

        Raises
        ------
        ConfigurationError
            If there is no such release.
        """
        return self._database.read(lambda connection: queries.release_of(connection, release_id))

    def find(self, release_id: str) -> Release | None:
        """Return a release as stored, or None if there is no such release."""
        wanted = queries.select_release(release_id)

        def look(connection: Connection) -> Release | None:
            row = connection.execute(wanted).one_or_none()
            return None if row is None else rows.as_release(row)

        return self._database.read(look)

    def releases(
        self, dataset: str | None = None, *, state: State | None = None
    ) -> tuple[Release, ...]:
        """Return releases in the order of their reservation, of one data set or all."""

        def look(connection: Connection) -> tuple[Release, ...]:
            table = schema.release
            wanted = select(table).order_by(table.c.reserved_at, table.c.release_id)
            if dataset is not None:
                queries.dataset_row(connection, dataset)
                wanted = wanted.where(table.c.data_set == dataset)
            if state is not None:
                wanted = wanted.where(table.c.state == State(state).value)
            return tuple(rows.as_release(row) for row in connection.execute(wanted))

        return self._database.read(look)

    def half_done(self, dataset: str | None = None) -> tuple[Release, ...]:
        """Return the releases that are reserved: running now, or left by a run that died."""
        return self.releases(dataset, state=State.RESERVED)

    def history(self, dataset: str | None = None) -> tuple[Event, ...]:
        """Return every change in the order it was made."""

        def look(connection: Connection) -> tuple[Event, ...]:
            table = schema.event
            wanted = select(table).order_by(table.c.sequence)
            if dataset is not None:
                queries.dataset_row(connection, dataset)
                wanted = wanted.where(table.c.data_set == dataset)
            return tuple(rows.as_event(row) for row in connection.execute(wanted))

        return self._database.read(look)

    def verify(self) -> None:
        """Check that every running total is the exact sum of its releases.

        Raises
        ------
        LedgerError
            If one is not: somebody changed the tables by hand.
        """

        def look(connection: Connection) -> list[str]:
            wrong = []
            for name in queries.dataset_names(connection):
                costs = queries.charged_costs(connection, name)
                balance = queries.balance_of(connection, name)
                for limit in (*balance.limits, balance.selection):
                    expected = (
                        total_delta_upper(costs)
                        if limit.of_delta
                        else queries.spent_upper(costs, limit.at_least)
                    )
                    if limit.spent != expected:
                        wrong.append(
                            f"data set {name!r}, {limit.name}: recorded {limit.spent}, "
                            f"releases sum to {expected}"
                        )
            return wrong

        wrong = self._database.read(look)
        if wrong:
            raise LedgerError(
                f"The ledger at {self.location} was changed by hand: {'; '.join(wrong)}. "
                "Let nothing run until the larger amount is recorded."
            )

    def export(self) -> list[dict[str, object]]:
        """Return everything but the tokens' digests as JSON values, one dict per row.

        The key ``table`` says which table the row is of: ``data_set``, ``cap_point``, ``release``
        or ``event``. Amounts are exact decimal text.
        """

        def look(connection: Connection) -> list[dict[str, object]]:
            tables = (schema.data_set, schema.cap_point, schema.release, schema.event)
            return [
                {"table": table.name.removeprefix("ledger_"), **rows.plain_row(row)}
                for table in tables
                for row in connection.execute(select(table).order_by(*table.primary_key))
            ]

        return self._database.read(look)

    def _end(self, connection: Connection, held: Release, state: State, output: str | None) -> None:
        connection.execute(
            update(schema.release)
            .where(schema.release.c.release_id == held.release_id)
            .values(state=state.value, ended_at=_now(), ended_by=self._by, output=output)
        )
        detail = {"rho": str(held.rho), "output": None if output is None else json.loads(output)}
        self._record(connection, state.value, held.dataset, held.release_id, detail)

    def _record(
        self,
        connection: Connection,
        kind: str,
        dataset: str,
        release_id: str | None,
        detail: Mapping[str, object],
    ) -> None:
        connection.execute(
            insert(schema.event).values(
                at=_now(),
                by_whom=self._by,
                kind=kind,
                data_set=dataset,
                release_id=release_id,
                detail=canonical_json(detail),
            )
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _moment(held: Release) -> str:
    return f"{held.ended_at:%Y-%m-%d %H:%M:%S} UTC"


def _refuse_newer(location: str, version: int) -> None:
    if version > len(migrations.STEPS):
        raise LedgerError(
            f"The ledger at {location} has schema {version}, newer than the "
            f"{len(migrations.STEPS)} this version of spark-dphist ({__version__}) knows. Upgrade "
            "spark-dphist; an older version could miss charges."
        )


def _check_unit(balance: Balance, cost: PolicyCost) -> None:
    if cost.privacy_unit != balance.privacy_unit:
        raise ConfigurationError(
            f"The caps of data set {balance.dataset!r} protect the privacy unit "
            f"{balance.privacy_unit!r}, the release is accounted for {cost.privacy_unit!r}. "
            f"Account it for {balance.privacy_unit!r}: losses of different units do not add."
        )


def _asked_again(
    row: Row[Any], dataset: str, cost: PolicyCost, policy_text: str, token: str, location: str
) -> Reservation:
    held = rows.as_release(row)
    release_id = held.release_id
    if held.dataset != dataset:
        raise ReleaseConflictError(
            f"Release id {release_id!r} belongs to data set {held.dataset!r}, not {dataset!r}. "
            "Choose a new id."
        )
    wanted = {**rows.cost_columns(cost), "policy": policy_text}
    of_policy = ("policy", "mechanism", "parameters", "noise", "privacy_unit", "records_per_unit")
    differing = [key for key in of_policy if row._mapping[key] != wanted[key]]
    if differing:
        raise ReleaseConflictError(
            f"Release id {release_id!r} was {held.state} under another policy; it differs in "
            f"{', '.join(differing)}. Choose a new id: a changed policy is a new release and is "
            "charged anew."
        )
    if held.state is State.ABORTED:
        raise ReleaseConflictError(
            f"Release {release_id!r} was aborted at {_moment(held)} by {held.ended_by}. "
            "Choose a new id."
        )
    if held.state is State.COMMITTED:
        return Reservation(held, None)
    if not secrets.compare_digest(row.token_sha256, _digest(token)):
        raise HalfDoneReleaseError(held, location)
    if any(row._mapping[key] != wanted[key] for key in _COST_COLUMNS):
        raise ReleaseConflictError(
            f"Release {release_id!r} was reserved at another cost than is asked now. Abort it if "
            "nothing was published, and choose a new id."
        )
    return Reservation(held, token)
