"""The command line: ``spark-dphist plan``, ``verify``, ``run``, ``history`` and ``ledger``.

Exit codes: 0 done, 1 the release or a verified claim failed, 2 the configuration or the request is
wrong, 3 the budget does not allow it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from spark_dphist import (
    __version__,
    cli_attack,
    cli_consistent,
    cli_history,
    cli_ledger,
    cli_report,
    cli_results,
    cli_synthesize,
)
from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger import Charge, Ledger, commands
from spark_dphist.cli_interval import IntervalOption, configuration_at
from spark_dphist.comparison import compare_mechanisms
from spark_dphist.config import LedgerSection, ReleaseConfiguration, with_release_id
from spark_dphist.display import (
    budget_lines,
    comparison_view,
    header_lines,
    plan_view,
    released_rows,
    target_view,
    verification_view,
)
from spark_dphist.errors import BudgetError, ConfigurationError, SparkDphistError
from spark_dphist.intervals import refuse_unfinished
from spark_dphist.optional import needing
from spark_dphist.plan import Plan, make_plan
from spark_dphist.targets import Target, find_target

app = typer.Typer(
    help="Differentially private histograms on Spark, with better privacy for larger groups.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: boxes would wrap the paths in a message.
    rich_markup_mode=None,
)

app.add_typer(cli_ledger.app, name="ledger")
app.command()(cli_attack.attack)
app.command()(cli_consistent.consistent)
app.command()(cli_history.history)
app.command()(cli_synthesize.synthesize)
app.command()(cli_report.report)
app.command()(cli_results.total)
app.command("compare-releases")(cli_results.compare_releases)
app.command()(cli_results.metadata)
app.command()(cli_results.card)


class Sought(StrEnum):
    """What ``plan --target`` looks for."""

    RELATIVE_ERROR = "relative-error"
    FLOOR = "floor"

    @property
    def field(self) -> Literal["relative_error", "floor"]:
        """The field of the configuration's mechanism."""
        return "floor" if self is Sought.FLOOR else "relative_error"


ConfigurationPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML configuration")]


@app.command()
def plan(
    config: ConfigurationPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show all mechanisms beside the configured one.")
    ] = False,
    target: Annotated[
        Sought | None,
        typer.Option(
            help="Look for the least one within --rho, the other as configured, and plan with it."
        ),
    ] = None,
    rho: Annotated[
        str | None,
        typer.Option(metavar="RHO", help="The cap of --target on the zCDP budget of everyone."),
    ] = None,
    interval: IntervalOption = None,
) -> None:
    """Show cost and accuracy of a release; touch no data."""
    configuration = configuration_at(config, interval)
    found = _target(configuration, target, rho, compare)
    if found is not None:
        configuration = found.configuration
    if compare:
        compared = compare_mechanisms(configuration)
        if as_json:
            typer.echo(compared.to_json())
        else:
            Console().print(comparison_view(compared))
        return
    planned = make_plan(configuration)
    if as_json:
        budget = _budget_rows(configuration.ledger, planned) if configuration.ledger else None
        typer.echo(planned.to_json(budget, found.as_json() if found else None))
    else:
        if found is not None:
            Console().print(target_view(found))
        Console().print(plan_view(planned))
        if configuration.ledger is not None:
            typer.echo(_budget_lines(configuration.ledger, planned))


def _target(
    configuration: ReleaseConfiguration, sought: Sought | None, rho: str | None, compare: bool
) -> Target | None:
    if sought is None:
        if rho is not None:
            raise ConfigurationError(
                "--rho is the cap of a search: say what to look for with --target relative-error "
                "or --target floor"
            )
        return None
    if compare:
        raise ConfigurationError("--target looks at one mechanism: leave out --compare")
    if rho is None:
        raise ConfigurationError(
            "--target needs a cap on the budget of everyone: name it, for example --rho 0.1"
        )
    return find_target(configuration, sought.field, Rho.lower(rho))


@app.command()
def verify(
    config: ConfigurationPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    interval: IntervalOption = None,
) -> None:
    """Check what the mechanism promises, on draws of its own; touch no data."""
    configuration = configuration_at(config, interval)
    mechanism = configuration.mechanism.calibrated()
    # Here, not at the top: it takes a while to import.
    from spark_dphist import verification

    with Console(stderr=True).status("drawing"):
        verified = verification.verify(
            mechanism,
            relative_error=configuration.mechanism.relative_error,
            unit=configuration.privacy.privacy_unit,
            rounding=configuration.output.rounding,
            confidence=configuration.output.confidence,
        )
    if as_json:
        typer.echo(verified.to_json())
    else:
        Console().print(verification_view(verified))
    if not verified.passed:
        raise typer.Exit(1)


@app.command()
def run(
    config: ConfigurationPath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything up to the first job, then stop.")
    ] = False,
    interval: IntervalOption = None,
    release_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The release's id, by default of its name and --interval; a retry with the same "
            "id returns what was committed and spends nothing.",
        ),
    ] = None,
    show: Annotated[
        int, typer.Option("--show", metavar="N", min=0, help="Print the first N released rows.")
    ] = 0,
) -> None:
    """Make the release: write noisy counts and audit."""
    configuration = configuration_at(config, interval)
    if interval is not None:
        refuse_unfinished(interval, datetime.now(UTC))
        if configuration.ledger is None:
            typer.echo(
                "Warning: without a [ledger] nothing remembers this interval, and another try is a "
                "release of its own that nothing counts",
                err=True,
            )
    if release_id is not None:
        configuration = with_release_id(configuration, release_id)
    planned = make_plan(configuration)
    for warning in planned.warnings:
        typer.echo(f"Warning: {warning}", err=True)
    if configuration.ledger is not None:
        typer.echo(_budget_lines(configuration.ledger, planned), err=True)
    # Here, not at the top: plan and --help must not wait for pyspark, nor need it.
    with needing("spark-dphist run", "spark"):
        from spark_dphist.from_config import request_from
        from spark_dphist.release import run_release
        from spark_dphist.request import check_request, declared_groups, refuse_existing
        from spark_dphist.session import open_session
        from spark_dphist.spark.arrow_exchange import collect_arrow

    with _echoed_warnings(planned), Console(stderr=True).status("starting Spark") as status:
        spark = open_session(configuration.spark.settings)
        request = request_from(spark, configuration)
        if dry_run:
            fields = check_request(spark, request)
            refuse_existing(spark, request, fields)
            size = declared_groups(spark, request, fields)
            status.stop()
            Console().print(plan_view(planned))
            if planned.selection is None:
                typer.echo(f"The key set has {size:,} groups.")
            if request.input_snapshot is not None:
                typer.echo(f"Input snapshot: {request.input_snapshot}")
            typer.echo(
                "Dry run: everything was checked, no job was run on the data, nothing was written."
            )
            return
        with _ledger(configuration.ledger) as ledger:
            release = run_release(spark, request, ledger=ledger, on_step=status.update)
    charged = "none: this release is not counted against any cap"
    if configuration.ledger is not None:
        charged = f"charged to data set {configuration.ledger.dataset!r}"
    places = {
        "ledger": charged,
        "audit": request.audit_groups.described,
        "audit header": request.audit_header.described,
    }
    typer.echo(header_lines(release.audit.header, places))
    if show:
        groups = release.audit.groups
        if groups is None:
            groups = collect_arrow(release.counts.limit(show))
        typer.echo("\n" + released_rows(groups, show))


@contextmanager
def _echoed_warnings(planned: Plan) -> Iterator[None]:
    """Print this package's warnings as sentences, unless the plan has said as much."""

    def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
        if not category.__module__.startswith("spark_dphist"):
            before(message, category, *details, **more)
        elif not any(str(message).split("(")[0] in said for said in planned.warnings):
            typer.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        before = warnings.showwarning
        warnings.showwarning = show
        yield


def _ledger(section: LedgerSection | None) -> AbstractContextManager[Ledger | None]:
    return nullcontext(None) if section is None else Ledger(section.url)


def _budget_lines(section: LedgerSection, planned: Plan) -> str:
    charges, half_done = _budget(section, planned)
    return budget_lines(section.dataset, charges, half_done)


def _budget_rows(section: LedgerSection, planned: Plan) -> dict[str, object]:
    charges, half_done = _budget(section, planned)
    return {
        "data_set": section.dataset,
        "limits": commands.charge_rows(charges),
        "half_done": half_done,
    }


def _budget(section: LedgerSection, planned: Plan) -> tuple[tuple[Charge, ...], list[str]]:
    with Ledger(section.url) as ledger:
        charges = ledger.quote(section.dataset, planned.cost())
        return charges, [left.release_id for left in ledger.half_done(section.dataset)]


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        app(args=arguments, prog_name="spark-dphist")
    except SparkDphistError as error:
        typer.echo(f"Error: {error}", err=True)
        codes = {ConfigurationError: 2, BudgetError: 3}
        raise SystemExit(
            next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
        ) from None


def job(arguments: list[str] | None = None) -> None:
    """Run the command line like ``main``, but return when all went well.

    For schedulers that call an entry point and may take even ``SystemExit(0)`` for a failure.
    """
    try:
        main(arguments)
    except SystemExit as left:
        if left.code:
            raise


if __name__ == "__main__":
    main()
