"""The command line's ``spark-dphist ledger`` group: set up a ledger, look at it, end dead runs."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from spark_dphist.accounting.ledger import commands
from spark_dphist.errors import ConfigurationError

app = typer.Typer(
    help="Set up and read the ledger of privacy budgets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Url = Annotated[
    str, typer.Argument(metavar="URL", help="sqlite:///PATH or postgresql+psycopg://USER@HOST/DB")
]
Dataset = Annotated[str | None, typer.Option(metavar="NAME", help="A data set of the ledger.")]
RhoCap = Annotated[str | None, typer.Option("--rho", help="Cap on the total zCDP budget.")]
Epsilon = Annotated[float | None, typer.Option(help="Cap on epsilon; needs --delta.")]
Delta = Annotated[float | None, typer.Option(help="The delta of --epsilon.")]
AtLeast = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COUNT=RHO", help="Cap for groups of at least COUNT records; may be repeated."
    ),
]
SelectionDelta = Annotated[
    str | None,
    typer.Option(help="Cap on the delta with which releases learn their key sets; 0: none may."),
]


@app.command()
def init(
    url: Url,
    dataset: Dataset = None,
    rho: RhoCap = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    at_least: AtLeast = None,
    selection_delta: SelectionDelta = None,
    privacy_unit: Annotated[
        str, typer.Option(help="'record', or the column that identifies a unit.")
    ] = "record",
) -> None:
    """Create a ledger, or add a data set with its caps to one."""
    request = _caps(rho, epsilon, delta, at_least, selection_delta)
    _print(commands.init(url, dataset, request, privacy_unit=privacy_unit))


@app.command()
def show(url: Url, dataset: Dataset = None) -> None:
    """Show caps, spent and left, and releases that did not finish."""
    _print(commands.show(url, dataset))


@app.command()
def caps(
    url: Url,
    dataset: Annotated[str, typer.Argument(metavar="DATASET")],
    rho: RhoCap = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    at_least: AtLeast = None,
    selection_delta: SelectionDelta = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Remove a kind of cap: rho, epsilon or at_least.")
    ] = None,
) -> None:
    """Change the caps of a data set; what is not stated stays."""
    request = _caps(rho, epsilon, delta, at_least, selection_delta)
    _print(commands.caps(url, dataset, request, drop=drop or ()))


@app.command()
def releases(
    url: Url,
    dataset: Dataset = None,
    state: Annotated[
        str | None, typer.Option(help="Only releases that are reserved, committed or aborted.")
    ] = None,
) -> None:
    """List releases in the order in which they were charged."""
    _print(commands.releases(url, dataset, state=state))


@app.command()
def abort(
    url: Url,
    release_id: Annotated[str, typer.Argument(metavar="RELEASE_ID")],
    nothing_was_published: Annotated[
        bool,
        typer.Option(
            "--nothing-was-published",
            help="Your word that nobody saw anything of it and that its run is dead.",
        ),
    ] = False,
) -> None:
    """Free the charge of a release that died before it published anything."""
    _print(commands.abort(url, release_id, nothing_was_published=nothing_was_published))


@app.command()
def export(url: Url) -> None:
    """Print the whole ledger as JSON, amounts as exact decimal text."""
    _print(commands.export(url))


def _caps(
    rho: str | None,
    epsilon: float | None,
    delta: float | None,
    at_least: list[str] | None,
    selection_delta: str | None,
) -> commands.CapsRequest:
    points = _points(at_least) if at_least else None
    return commands.CapsRequest(rho, epsilon, delta, points, selection_delta)


def _points(given: list[str]) -> dict[int, str]:
    points = {}
    for text in given:
        count, separator, rho = text.partition("=")
        if not (separator and count.strip().isdecimal()):
            raise ConfigurationError(
                f"--at-least takes COUNT=RHO, for example 1000=0.01, got {text!r}"
            )
        points[int(count)] = rho.strip()
    return points


def _print(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
