"""Between the rows of a ledger and the values it gives."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from spark_dphist.accounting.composition import PolicyCost, Rho, canonical_json
from spark_dphist.accounting.ledger.models import Caps, Event, Release, State


def cap_columns(caps: Caps) -> dict[str, object]:
    """Return the columns that hold a data set's caps."""
    return {
        "rho_cap": caps.rho,
        "epsilon_cap": caps.epsilon,
        "delta": caps.delta,
        "epsilon_rho_cap": caps.epsilon_rho,
        "selection_delta_cap": caps.selection_delta,
    }


def caps_detail(caps: Caps) -> dict[str, object]:
    """Return caps as JSON values, for the history."""
    columns = cap_columns(caps)
    plain = {key: str(value) if isinstance(value, Rho) else value for key, value in columns.items()}
    return {**plain, "at_least": [[count, str(cap)] for count, cap in caps.at_least]}


def cost_columns(cost: PolicyCost) -> dict[str, object]:
    """Return the columns of a release that hold its cost."""
    return {
        "rho": cost.rho_upper,
        "rho_at_least": canonical_json([[count, str(rho)] for count, rho in cost.at_least]),
        "noise": cost.noise,
        "pure_epsilon": cost.pure_epsilon,
        "delta": cost.delta,
        "mechanism": cost.mechanism,
        "parameters": canonical_json(cost.parameters),
        "privacy_unit": cost.privacy_unit,
        "records_per_unit": cost.records_per_unit,
    }


def as_release(row: Row[Any]) -> Release:
    """Read a release."""
    cost = PolicyCost(
        row.rho,
        row.mechanism,
        json.loads(row.parameters),
        privacy_unit=row.privacy_unit,
        records_per_unit=row.records_per_unit,
        at_least=tuple((count, Rho.upper(rho)) for count, rho in json.loads(row.rho_at_least)),
        noise=row.noise,
        pure_epsilon=row.pure_epsilon,
        delta=row.delta,
    )
    return Release(
        row.release_id,
        row.data_set,
        State(row.state),
        cost,
        json.loads(row.policy),
        row.software,
        row.reserved_at,
        row.reserved_by,
        row.ended_at,
        row.ended_by,
        None if row.output is None else json.loads(row.output),
    )


def as_event(row: Row[Any]) -> Event:
    """Read a line of the history."""
    return Event(
        row.sequence,
        row.at,
        row.by_whom,
        row.kind,
        row.data_set,
        row.release_id,
        json.loads(row.detail),
    )


_JSON_COLUMNS = {"rho_at_least", "parameters", "policy", "output", "detail"}


def plain_row(row: Row[Any]) -> dict[str, object]:
    """Return a row as JSON values, without the digest of its token."""
    plain: dict[str, object] = {}
    for key, value in row._mapping.items():
        if key == "token_sha256":
            continue
        if isinstance(value, Rho):
            plain[key] = str(value)
        elif isinstance(value, datetime):
            plain[key] = value.isoformat()
        elif key in _JSON_COLUMNS and value is not None:
            plain[key] = json.loads(value)
        else:
            plain[key] = value
    return plain
