"""The command line's ``spark-dphist attack``: what an attacker learns from groups of every size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_dphist.cli_interval import IntervalOption, configuration_at

if TYPE_CHECKING:
    # Its package imports what takes a while.
    from spark_dphist.attack import AttackedSize, AttackReport


def attack(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML configuration")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    figure: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Draw it as well, to a file .svg, .png or .pdf."),
    ] = None,
    interval: IntervalOption = None,
) -> None:
    """Guess who is in groups of every size, from draws of its own; touch no data."""
    configuration = configuration_at(config, interval)
    mechanism = configuration.mechanism.calibrated()
    # Here, not at the top: they take a while to import.
    from spark_dphist import attack as attacking
    from spark_dphist.attack_figure import check_figure, save_figure

    if figure is not None:
        check_figure(figure)
    with Console(stderr=True).status("publishing invented counts and guessing"):
        report = attacking.attack_release(
            mechanism,
            relative_error=configuration.mechanism.relative_error,
            unit=configuration.privacy.privacy_unit,
            rounding=configuration.output.rounding,
        )
    if as_json:
        typer.echo(report.to_json())
    else:
        Console().print(attack_view(report))
    if figure is not None:
        save_figure(report, figure)
        typer.echo(f"Figure: {figure}", err=True)


def attack_view(report: AttackReport) -> RenderableType:
    """Show the attacks, a row for each group size, in 80 columns."""
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0))
    table.add_column("\nrecords", justify="right", no_wrap=True)
    for number, _ in enumerate(report.releases, start=1):
        table.add_column(f"({number})\nmeasured", justify="right", no_wrap=True)
        table.add_column("best\npossible", justify="right", no_wrap=True)
    for row in zip(*(release.sizes for release in report.releases), strict=True):
        cells = [cell for size in row for cell in _cells(size)]
        table.add_row(f"{row[0].count:,}", *cells)
    return Group(
        Text(f"Privacy unit: {report.privacy_unit.described}"),
        Text(
            f"Promise: expected error below {report.relative_error:g} x max(count, "
            f"{report.floor:g})"
        ),
        *(
            Text(f"({number}) {release.label}")
            for number, release in enumerate(report.releases, start=1)
        ),
        table,
        Text(
            f"How often an attacker is right who sees a group's published count and guesses "
            f"whether the unit's records ({report.records}) are in it, at even odds (50% is "
            f"guessing): measured in {report.scored:,} guesses each, within "
            f"{report.half_width:.2%} with {report.confidence:.0%} confidence for all together, "
            "and the best that is possible for any attacker."
        ),
    )


def _cells(size: AttackedSize) -> tuple[str, str]:
    return f"{size.accuracy:.2%}", f"{size.best_possible:.3%}"
