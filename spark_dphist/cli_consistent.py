"""The command line's ``spark-dphist consistent``: releases of the same data, made to agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet
import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_dphist.errors import ConfigurationError
from spark_dphist.history import read_audit

if TYPE_CHECKING:
    # It imports what takes a while.
    from spark_dphist.consistency import Adjusted, Consistency


def consistent(
    audits: Annotated[
        list[str],
        typer.Argument(
            metavar="AUDIT_PATH...", help="What the two paths of a public audit begin with."
        ),
    ],
    confidence: Annotated[
        float, typer.Option(help="Of each interval after, approximately.")
    ] = 0.95,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for programs, all groups.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIRECTORY", help="Write RELEASE_ID.parquet for each, all groups."),
    ] = None,
    show: Annotated[
        int, typer.Option("--show", metavar="N", min=0, help="Show the first N groups of each.")
    ] = 10,
) -> None:
    """Adjust releases of the same data by several groupings until their totals agree."""
    # Here, not at the top: it takes a while to import.
    from spark_dphist.consistency import consistent_releases

    found = consistent_releases([read_audit(path) for path in audits], confidence=confidence)
    if output is not None:
        _write(found, output)
    if as_json:
        typer.echo(json.dumps(_fields(found), indent=2, allow_nan=False))
    else:
        Console().print(consistency_view(found, show))
    if output is not None:
        typer.echo(f"Written to {output}", err=True)


def _write(found: Consistency, directory: Path) -> None:
    files = {
        directory / f"{adjusted.before.name}.parquet": adjusted for adjusted in found.groupings
    }
    for file in files:
        if file.exists():
            raise ConfigurationError(
                f"{str(file)!r} exists and is not overwritten: choose another directory, or remove "
                "it"
            )
    directory.mkdir(parents=True, exist_ok=True)
    for file, adjusted in files.items():
        pyarrow.parquet.write_table(adjusted.to_arrow(), file)


def _fields(found: Consistency) -> dict[str, Any]:
    return {
        "confidence": found.confidence,
        "constraints": found.constraints,
        "disagreement_before": found.disagreement_before,
        "disagreement_after": found.disagreement_after,
        "p_value": found.p_value,
        "negative": found.negative,
        "warnings": list(found.warnings),
        "groupings": [
            {
                "release_id": adjusted.before.name,
                "groups": [
                    {
                        "key": {key: _json_value(row[key]) for key in adjusted.before.columns},
                        **{key: row[key] for key in row if key not in adjusted.before.columns},
                    }
                    for row in adjusted.to_arrow().to_pylist()
                ],
            }
            for adjusted in found.groupings
        ],
    }


def consistency_view(found: Consistency, most: int) -> RenderableType:
    """Show the first groups of each grouping with their intervals before and after."""
    return Group(
        *(part for adjusted in found.groupings for part in _table(adjusted, most)),
        Text(
            f"{found.constraints:,} totals differed by up to {found.disagreement_before:,.6g} and "
            f"now agree (p = {found.p_value:.3g} that noise alone puts them so far apart). The "
            f"intervals after hold with a probability of about {found.confidence:g} each."
        ),
        *(
            [Text(f"{found.negative:,} estimates are below 0 and left so: clipped, they disagree.")]
            if found.negative
            else []
        ),
        *(Text.assemble(("Warning: ", "bold yellow"), warning) for warning in found.warnings),
    )


def _table(adjusted: Adjusted, most: int) -> list[RenderableType]:
    rows: pa.Table = adjusted.to_arrow()
    table = Table(title=adjusted.before.name, title_justify="left", box=box.HORIZONTALS)
    for key in adjusted.before.columns:
        table.add_column(Text(key))
    for heading in ("before", "interval", "after", "interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.slice(0, most).to_pylist():
        keys = [_cell(row[key]) for key in adjusted.before.columns]
        numbers = [
            text
            for suffix in ("_before", "")
            for text in (
                _count(row["estimate" + suffix]),
                f"{_count(row['lower' + suffix])} to {_count(row['upper' + suffix])}",
            )
        ]
        table.add_row(*keys, *numbers)
    if rows.num_rows <= most:
        return [table]
    return [table, Text(f"and {rows.num_rows - most:,} more groups (--show N, or --json for all)")]


def _count(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="italic")
    text = value.hex() if isinstance(value, bytes) else str(value)
    return Text("".join(each if each.isprintable() else repr(each)[1:-1] for each in text))
