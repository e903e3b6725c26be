"""The command line: ``spark-dphist plan`` and ``spark-dphist run``.

Exit codes: 0 done, 1 the release failed, 2 the configuration or the request is wrong, 3 the budget
does not allow it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from spark_dphist import __version__
from spark_dphist.config import load_configuration
from spark_dphist.display import header_view, plan_view
from spark_dphist.errors import BudgetError, ConfigurationError, SparkDphistError
from spark_dphist.plan import make_plan

app = typer.Typer(
    help="Differentially private histograms on Spark, with better privacy for larger groups.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigurationPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML configuration")]


@app.command()
def plan(config: ConfigurationPath) -> None:
    """Show what a release would cost and how good it would be; touches no data."""
    Console().print(plan_view(make_plan(load_configuration(config))))


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
    """Make the release and write the noisy counts and the audit table."""
    console, progress = Console(), Console(stderr=True)
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
            console.print(plan_view(plan_of_release))
            console.print("Dry run: everything was checked, no job was run, nothing was written.")
            return
        release = run_release(spark, request, on_step=status.update)
    console.print(header_view(release.audit.header))
    console.print(
        f"Released {release.audit.header.key_set_size:,} groups to {request.output.described}"
    )
    console.print(f"Audit: {request.audit_groups.described}, {request.audit_header.described}")
    if show:
        frame = release.audit.to_pandas().head(show)
        table = Table(*[str(name) for name in frame.columns])
        for row in frame.itertuples(index=False):
            table.add_row(
                *[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]
            )
        console.print(table)


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
        Console(stderr=True).print(f"[bold red]Error:[/] {type(error).__name__}", style="red")
        print(str(error), file=sys.stderr)
        codes = {ConfigurationError: 2, BudgetError: 3}
        raise SystemExit(
            next((code for kind, code in codes.items() if isinstance(error, kind)), 1)
        ) from None


if __name__ == "__main__":
    main()
