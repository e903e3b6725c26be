"""The command line's ``spark-dphist report``: one HTML file about a release, for people."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spark_dphist.accounting.ledger import Ledger
from spark_dphist.audit import AuditHeader, PublicAudit
from spark_dphist.cli_interval import IntervalOption, configuration_at
from spark_dphist.config import ReleaseConfiguration
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.optional import needing

if TYPE_CHECKING:
    # They import what not everybody has, or what takes a while.
    from spark_dphist.report import PublishedRelease
    from spark_dphist.spark.places import OutputTarget


def report(
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="Path of a release's counts or audit, or its TOML configuration.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write; the release's id with .html otherwise."),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The ledger it was charged to; that of CONFIG otherwise."),
    ] = None,
    interval: IntervalOption = None,
) -> None:
    """Write a report of a release as one HTML file, from its public tables alone."""
    with needing("spark-dphist report", "report"):
        from spark_dphist.report import render_report
    configuration = configuration_at(release, interval) if release.endswith(".toml") else None
    if configuration is None and interval is not None:
        raise ConfigurationError(
            f"--interval is filled into a configuration, and {release!r} is a release's path: "
            "leave it out, or name the TOML file"
        )
    if ledger is None and configuration is not None and configuration.ledger is not None:
        ledger = configuration.ledger.url
    with _opened(ledger) as opened:
        published = _published(release, configuration, opened)
    file = output if output is not None else Path(f"{published.header.release_id}.html")
    page = render_report(published)
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ReleaseError(
            f"the report cannot be written to {str(file)!r}: {error.strerror}. Name another file "
            "with --output."
        ) from None
    typer.echo(str(file))


def _opened(url: str | None) -> AbstractContextManager[Ledger | None]:
    return nullcontext(None) if url is None else Ledger(url)


def _published(
    path: str, configuration: ReleaseConfiguration | None, ledger: Ledger | None
) -> PublishedRelease:
    from spark_dphist.report import public_release, read_release

    if configuration is None:
        return read_release(path, ledger)
    # Here, not at the top: reports of named paths need no pyspark.
    with needing("spark-dphist report of a configuration", "spark"):
        from spark_dphist.from_config import audit_places
        from spark_dphist.spark.storage import PathTarget

    groups, header = audit_places(configuration)
    if isinstance(groups, PathTarget) and "://" not in groups.path:
        return read_release(groups.path, ledger)
    return public_release(_read_with_spark(configuration, groups, header), ledger)


def _read_with_spark(
    configuration: ReleaseConfiguration, groups: OutputTarget, header: OutputTarget
) -> PublicAudit:
    """Read a public audit from a catalog or another file system; no other table is opened."""
    from spark_dphist.session import open_session
    from spark_dphist.spark.arrow_exchange import collect_arrow
    from spark_dphist.spark.failures import SPARK_ERRORS, condition_of

    most = configuration.audit.max_collected_groups
    with Console(stderr=True).status("reading the audit with Spark"):
        spark = open_session(configuration.spark.settings)
        try:
            read = AuditHeader.from_arrow(collect_arrow(header.read(spark)))
            if read.key_set_size > most:
                raise ConfigurationError(
                    f"release {read.release_id!r} has {read.key_set_size:,} groups, more than are "
                    f"collected ({most:,}). Raise [audit] max_collected_groups, or copy the two "
                    "tables of the audit to local Parquet and name their path."
                )
            return PublicAudit(read, collect_arrow(groups.read(spark)))
        except SPARK_ERRORS as error:
            raise ConfigurationError(
                f"the audit {groups.described!r} cannot be read ({condition_of(error)}). Was the "
                "release made? Check the name and your permissions."
            ) from None
