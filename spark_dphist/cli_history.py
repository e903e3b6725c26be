"""The command line's ``spark-dphist history``: what releases of the same groups cost together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_dphist.audit import BUDGET_COLUMNS
from spark_dphist.history import GroupHistory, group_history, read_audit


def history(
    audits: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDIT_PATH...", help="What the two paths of a public audit begin with."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs, all groups.")
    ] = False,
    show: Annotated[
        int, typer.Option("--show", metavar="N", min=0, help="Show the first N groups.")
    ] = 20,
) -> None:
    """Add up, group by group, what stored releases of the same groups have cost."""
    composed = group_history([read_audit(path) for path in audits])
    if as_json:
        typer.echo(json.dumps(_fields(composed), indent=2, allow_nan=False))
    else:
        Console().print(_view(composed, show))


def _fields(composed: GroupHistory) -> dict[str, Any]:
    keys = composed.releases[0].group_columns
    return {
        "releases": [
            {
                "release_id": header.release_id,
                "created_at": header.created_at.isoformat(),
                "mechanism": header.mechanism,
                "worst_case_rho": header.worst_case_rho,
            }
            for header in composed.releases
        ],
        "privacy_unit": composed.releases[0].privacy_unit,
        "everyone_rho": str(composed.everyone),
        "key_set_delta": str(composed.key_set_delta),
        "confidence": composed.confidence,
        "groups": [
            {
                "key": {key: _json_value(row[key]) for key in keys},
                **{name: row[name] for name in BUDGET_COLUMNS},
            }
            for row in composed.groups.to_pylist()
        ],
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _view(composed: GroupHistory, most: int) -> RenderableType:
    return Group(*_head(composed), *_table(composed, most))


def _head(composed: GroupHistory) -> Iterator[Text]:
    for header in composed.releases:
        yield Text(
            f"{header.created_at:%Y-%m-%d %H:%M} UTC  {header.release_id}: {header.mechanism}, "
            f"worst case rho = {header.worst_case_rho:.4g}"
        )
    yield Text(f"Privacy unit: {composed.releases[0].privacy_unit}")
    yield Text(
        f"Together, for everyone: rho = {composed.everyone.float_upper():.4g}; the bracket of a "
        f"group holds its realised rho with probability {composed.confidence:.4g} or more"
    )
    if composed.key_set_delta.units:
        yield Text(
            f"The learnt key sets add delta = {composed.key_set_delta.float_upper():.4g} for every "
            "unit; their rho is in all budgets here"
        )


def _table(composed: GroupHistory, most: int) -> Iterator[Table | Text]:
    groups, keys = composed.groups, composed.releases[0].group_columns
    if not most:
        return
    table = Table()
    for key in keys:
        table.add_column(Text(key))
    for heading in ("rho at released counts", "at least", "at most"):
        table.add_column(heading, justify="right")
    for row in groups.slice(0, most).to_pylist():
        table.add_row(
            *[_cell(row[key]) for key in keys], *[f"{row[name]:.4g}" for name in BUDGET_COLUMNS]
        )
    yield table
    if groups.num_rows > most:
        yield Text(f"and {groups.num_rows - most:,} more groups (--show N, or --json for all)")


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="italic")
    text = value.hex() if isinstance(value, bytes) else str(value)
    return Text("".join(each if each.isprintable() else repr(each)[1:-1] for each in text))
