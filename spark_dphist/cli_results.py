"""The command line's ``total``, ``compare-releases``, ``metadata`` and ``card``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_dphist.card import card as card_of
from spark_dphist.history import read_audit
from spark_dphist.metadata import metadata_json
from spark_dphist.results.changes import changes
from spark_dphist.results.totals import totals
from spark_dphist.shown import key_text

AuditPath = Annotated[
    str,
    typer.Argument(metavar="AUDIT_PATH", help="What the two paths of a public audit begin with."),
]
Confidence = Annotated[
    float, typer.Option(help="Of each interval, for itself; strictly between 0 and 1.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs, all rows.")]
Show = Annotated[int, typer.Option("--show", metavar="N", min=0, help="Show the first N rows.")]


def total(
    audit: AuditPath,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="COLUMN", help="Keep this group column; may be repeated."),
    ] = None,
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
    show: Show = 20,
) -> None:
    """Sum released counts, with intervals that hold for the true totals; costs no budget."""
    added = totals(read_audit(audit), by or (), confidence=confidence)
    _print(added, len(by or ()), as_json, show)


def compare_releases(
    first: AuditPath,
    second: AuditPath,
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
    show: Show = 20,
) -> None:
    """Show how each group changed from one release to another; costs no budget."""
    audit = read_audit(first)
    changed = changes(audit, read_audit(second), confidence=confidence)
    _print(changed, len(audit.header.group_columns), as_json, show)


def metadata(audit: AuditPath) -> None:
    """Print what a release is and promises as JSON for programs."""
    typer.echo(metadata_json(read_audit(audit)))


def card(audit: AuditPath) -> None:
    """Print a page about a release as Markdown, to be published beside it."""
    typer.echo(card_of(read_audit(audit)), nl=False)


def _print(rows: pa.Table, keys: int, as_json: bool, show: int) -> None:
    if as_json:
        listed = [_fields(row, rows.column_names[:keys]) for row in rows.to_pylist()]
        typer.echo(json.dumps(listed, indent=2, allow_nan=False))
        return
    table = Table()
    for position, name in enumerate(rows.column_names):
        table.add_column(Text(name), justify="left" if position < keys else "right")
    for row in rows.slice(0, show).to_pylist():
        cells = list(row.values())
        shown = [*map(key_text, cells[:keys]), *map(_number, cells[keys:])]
        table.add_row(*[Text(cell) for cell in shown])
    Console().print(table)
    if rows.num_rows > show:
        typer.echo(f"and {rows.num_rows - show:,} more (--show N, or --json for all)")


def _fields(row: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {
        **({"key": {name: _json_value(row[name]) for name in keys}} if keys else {}),
        **{name: value for name, value in row.items() if name not in keys},
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
