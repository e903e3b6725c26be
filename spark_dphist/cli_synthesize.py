"""The command line's ``spark-dphist synthesize``: records for tools that want records."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from spark_dphist.optional import needing


def synthesize(
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE", help="The path of released counts, their public audit beside it."
        ),
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="Where the records go.")],
    rows: Annotated[
        int | None,
        typer.Option(min=0, help="How many records; as many as were released if left out."),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the rounding of the groups' shares; it protects nothing.")
    ] = 0,
    files: Annotated[int, typer.Option(min=1, help="How many files, and tasks, to write.")] = 1,
    file_format: Annotated[
        str, typer.Option("--format", help="As Spark names it: parquet, csv, orc, json.")
    ] = "parquet",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace synthetic records that stand there.")
    ] = False,
) -> None:
    """Make synthetic records from a release's public counts; costs no budget."""
    # Here, not at the top: --help must not wait for pyspark.
    with needing("spark-dphist synthesize", "spark"):
        from spark_dphist import synthesize as making
        from spark_dphist.session import open_session
        from spark_dphist.spark.storage import from_working_directory

    target = making.synthetic_target(
        from_working_directory(output), file_format=file_format, overwrite=overwrite
    )
    with Console(stderr=True).status("starting Spark") as status:
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        spark = open_session(quiet)
        published = making.read_release(spark, from_working_directory(release))
        status.update("making records")
        made = making.synthesize(spark, published, target, rows=rows, seed=seed, files=files)
    mark = made.mark
    typer.echo(
        f"{mark.rows:,} synthetic records of release {mark.release_id} ({mark.groups:,} groups, "
        f"{mark.released_total:,} records released)\n"
        f"records  {mark.output}\n"
        f"mark     {mark.output}{making.MARK_SUFFIX}"
    )
