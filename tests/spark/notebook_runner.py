"""Runs a Databricks notebook in source format on Spark Connect, with stand-ins for its globals.

    python notebook_runner.py NOTEBOOK FIGURES TIMES NAME=VALUE...

Runs all cells TIMES times and prints what was displayed as JSON on the last line. Figures are
saved in the folder FIGURES. The widgets have the given values.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pyspark.sql import SparkSession


def cells(source: str) -> list[str]:
    """Return the cells with code; the others are text, or commands of the notebook.

    What ``%pip`` would install, and the restart after it, tests/unit/test_databricks.py looks at.
    """
    _, *parts = source.split("\n# COMMAND ----------\n")
    return [part for part in parts if not part.strip().startswith("# MAGIC")]


def main(notebook: str, figures: str, times: str, *values: str) -> None:
    given = dict(value.split("=", maxsplit=1) for value in values)
    defaults: dict[str, str] = {}
    asked_secrets: list[str] = []
    displayed: list[str] = []

    def display(shown: Any) -> None:
        if isinstance(shown, Figure):
            shown.savefig(Path(figures) / f"{len(displayed)}.png")
            displayed.append("figure")
        elif isinstance(shown, pd.DataFrame):
            displayed.append(f"{len(shown)} rows")
        else:
            displayed.append(f"{len(shown.collect())} rows of Spark")

    def secret(scope: str, key: str) -> str:
        asked_secrets.append(f"{scope}/{key}")
        return "tiger"

    dbutils = SimpleNamespace(
        widgets=SimpleNamespace(
            text=defaults.__setitem__, get=lambda name: given.get(name, defaults[name])
        ),
        secrets=SimpleNamespace(get=secret),
        library=SimpleNamespace(restartPython=lambda: None),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to set", category=UserWarning)
        spark = (
            SparkSession.builder.remote("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
    digests = []
    code = cells(Path(notebook).read_text(encoding="utf-8"))
    for _ in range(int(times)):
        names: dict[str, Any] = {"spark": spark, "dbutils": dbutils, "display": display}
        for number, cell in enumerate(code, start=1):
            exec(compile(cell, f"cell {number}", "exec"), names)  # noqa: S102 - its purpose
        digests.append(names["release"].audit.header.counts_digest)
    kind = type(spark).__module__
    spark.stop()
    answer = {
        "session": kind,
        "displayed": displayed,
        "digests": digests,
        "secrets": asked_secrets,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
