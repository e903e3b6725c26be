"""What a ledger's transactions read and change; the caller holds the transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, Select, insert, select, update

from spark_dphist.accounting.composition import PolicyCost, Rho
from spark_dphist.accounting.ledger import rows, schema
from spark_dphist.accounting.ledger.models import Balance, Caps, Limit, Release, State
from spark_dphist.errors import ConfigurationError, did_you_mean


def select_dataset(name: str) -> Select[Any]:
    """Select one data set's row."""
    return select(schema.data_set).where(schema.data_set.c.name == name)


def select_release(release_id: str) -> Select[Any]:
    """Select one release's row."""
    return select(schema.release).where(schema.release.c.release_id == release_id)


def dataset_names(connection: Connection) -> tuple[str, ...]:
    """Return the names of all data sets, in order."""
    return tuple(
        connection.scalars(select(schema.data_set.c.name).order_by(schema.data_set.c.name))
    )


def dataset_row(connection: Connection, dataset: str, *, lock: bool = False) -> Row[Any]:
    """Return a data set's row, held until the transaction ends if ``lock``.

    One row stands for the whole balance: whoever holds it decides alone. SQLite has the lock since
    BEGIN IMMEDIATE and ignores FOR UPDATE.

    Raises
    ------
    ConfigurationError
        If there is no such data set; with the nearest names.
    """
    wanted = select_dataset(dataset)
    row = connection.execute(wanted.with_for_update() if lock else wanted).one_or_none()
    if row is None:
        raise ConfigurationError(
            f"Data set {dataset!r} is not in the ledger. "
            f"{did_you_mean(dataset, dataset_names(connection))}"
        )
    return row


def balance_of(connection: Connection, dataset: str, *, lock: bool = False) -> Balance:
    """Return what a data set may cost and has cost."""
    row = dataset_row(connection, dataset, lock=lock)
    limits = []
    if row.rho_cap is not None:
        limits.append(Limit("rho for everyone", row.rho_cap, row.rho_spent))
    if row.epsilon_rho_cap is not None:
        name = f"epsilon {row.epsilon_cap:g} at delta {row.delta:g} for everyone"
        limits.append(Limit(name, row.epsilon_rho_cap, row.rho_spent))
    points = select(schema.cap_point).where(schema.cap_point.c.data_set == dataset)
    for point in connection.execute(points.order_by(schema.cap_point.c.at_least)):
        name = f"rho in groups of at least {point.at_least}"
        limits.append(Limit(name, point.rho_cap, point.rho_spent, point.at_least))
    selection = Limit(
        "delta for learnt key sets",
        row.selection_delta_cap,
        row.selection_delta_spent,
        of_delta=True,
    )
    return Balance(dataset, row.privacy_unit, tuple(limits), selection)


def caps_of(connection: Connection, dataset: str) -> Caps:
    """Return a data set's caps as declared."""
    row = dataset_row(connection, dataset)
    table = schema.cap_point
    points = connection.execute(
        select(table.c.at_least, table.c.rho_cap)
        .where(table.c.data_set == dataset)
        .order_by(table.c.at_least)
    )
    return Caps(
        row.rho_cap,
        row.epsilon_cap,
        row.delta,
        row.epsilon_rho_cap,
        tuple((point.at_least, point.rho_cap) for point in points),
        row.selection_delta_cap,
    )


def charged_costs(connection: Connection, dataset: str) -> list[PolicyCost]:
    """Return the costs of all releases that are reserved or committed."""
    wanted = select(schema.release).where(
        schema.release.c.data_set == dataset, schema.release.c.state != State.ABORTED.value
    )
    return [rows.as_release(row).cost for row in connection.execute(wanted)]


def spent_upper(costs: list[PolicyCost], at_least: int | None) -> Rho:
    """Sum costs in rho exactly: the worst cases, or those for groups of at least a count."""
    return Rho(
        sum(
            (cost.rho_upper if at_least is None else cost.rho_at_least_upper(at_least)).units
            for cost in costs
        )
    )


def shift_spent(connection: Connection, balance: Balance, cost: PolicyCost, *, sign: int) -> None:
    """Add a cost to every running total of a locked data set (sign 1), or take it off (-1)."""
    after = {
        (charge.limit.at_least, charge.limit.of_delta): Rho(
            charge.limit.spent.units + sign * charge.asked.units
        )
        for charge in balance.charges(cost)
    }
    for (at_least, of_delta), spent in after.items():
        if at_least is None:
            table, row = schema.data_set, schema.data_set.c.name == balance.dataset
        else:
            table = schema.cap_point
            row = (table.c.data_set == balance.dataset) & (table.c.at_least == at_least)
        column = "selection_delta_spent" if of_delta else "rho_spent"
        connection.execute(update(table).where(row).values({column: spent}))


def replace_cap_points(connection: Connection, dataset: str, caps: Caps) -> None:
    """Put a data set's caps by count in place, with what is spent at each."""
    table = schema.cap_point
    connection.execute(table.delete().where(table.c.data_set == dataset))
    costs = charged_costs(connection, dataset)
    for count, cap in caps.at_least:
        connection.execute(
            insert(table).values(
                data_set=dataset, at_least=count, rho_cap=cap, rho_spent=spent_upper(costs, count)
            )
        )


def held_release(connection: Connection, release_id: str) -> tuple[Release, Balance]:
    """Return a release and its data set's balance, which is locked: neither can change."""
    # A release never changes its data set, so the first look needs no lock; all decide in the
    # order data set, release.
    balance = balance_of(connection, release_of(connection, release_id).dataset, lock=True)
    return release_of(connection, release_id), balance


def release_of(connection: Connection, release_id: str) -> Release:
    """Return a release as stored; refuse one that is not there."""
    row = connection.execute(select_release(release_id)).one_or_none()
    if row is None:
        known = connection.scalars(select(schema.release.c.release_id).limit(1000)).all()
        raise ConfigurationError(
            f"Release {release_id!r} is not in the ledger. {did_you_mean(str(release_id), known)}"
        )
    return rows.as_release(row)
