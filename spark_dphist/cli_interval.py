"""The option ``--interval`` of every command that takes a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_dphist.config import ReleaseConfiguration, load_configuration
from spark_dphist.intervals import load_for_interval

IntervalOption = Annotated[
    str | None,
    typer.Option(
        "--interval",
        metavar="INTERVAL",
        help="The configuration is a template: fill in this year, month or day (2026-01), or the "
        "last one before a day ('month before 2026-02-03').",
    ),
]


def configuration_at(path: str | Path, interval: str | None) -> ReleaseConfiguration:
    """Read a configuration, or a template for an interval."""
    return load_configuration(path) if interval is None else load_for_interval(path, interval)
