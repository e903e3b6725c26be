"""The command line: ``spark-dphist plan`` and ``spark-dphist run``.

Exit codes: 0 done, 1 the release failed, 2 the configuration or the request is wrong, 3 the budget
does not allow it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spark_dphist import __version__
from spark_dphist.config import load_configuration
from spark_dphist.display import header_lines, plan_view, released_rows
from spark_dphist.errors import BudgetError, ConfigurationError, SparkDphistError
from spark_dphist.plan import make_plan

app = typer.Typer(
    help="Differentially private histograms on Spark, with better privacy for larger groups.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: boxes would wrap the paths in a message.
    rich_markup_mode=None,
)

ConfigurationPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML configuration")]


@app.command()
def plan(
    config: ConfigurationPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Show cost and accuracy of a release; touch no data."""
    planned = make_plan(load_configuration(config))
    if as_json:
        typer.echo(planned.to_json())
    else:
        Console().print(plan_view(planned))


@app.command()
def run(
    config: ConfigurationPath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything up to the first job, then stop.")
    ] = False,
    show: Annotated[
        int, typer.Option("--show", metavar="N", min=0, help="Print the first N released rows.")
    ] = 0,
) -> None:
    """Make the release: write noisy counts and audit."""
    progress = Console(stderr=True)
    configuration = load_configuration(config)
    plan_of_release = make_plan(configuration)
    # Here, not at the top: plan and --help must not wait for pyspark.
    from spark_dphist.from_config import request_from
    from spark_dphist.release import check_request, run_release
    from spark_dphist.session import open_session

    with progress.status("starting Spark") as status:
        spark = open_session(configuration.spark.settings)
        request = request_from(spark, configuration)
        if dry_run:
            check_request(spark, request)
            status.stop()
            Console().print(plan_view(plan_of_release))
            typer.echo("Dry run: everything was checked, no job was run, nothing was written.")
            return
        release = run_release(spark, request, on_step=status.update)
    places = {
        "audit": request.audit_groups.described,
        "audit header": request.audit_header.described,
    }
    typer.echo(header_lines(release.audit.header, places))
    for warning in plan_of_release.warnings:
        typer.echo(f"Warning: {warning}", err=True)
    if show:
        typer.echo("\n" + released_rows(release.audit.groups, show))


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


if __name__ == "__main__":
    main()
