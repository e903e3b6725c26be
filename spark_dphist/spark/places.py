"""Where a release may write: outside its input, each table apart, the confidential far from all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from pyspark.sql import SparkSession

from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.storage import PathTarget, TableTarget, before_pattern, lies_within

OutputTarget = PathTarget | TableTarget


def check_places(
    spark: SparkSession,
    public: Mapping[str, OutputTarget],
    confidential: PathTarget | None,
    input_path: str | None,
    input_table: str | None,
) -> None:
    """Refuse places that are the same, lie in one another or cannot be used.

    Parameters
    ----------
    spark
        Knows where its tables are stored.
    public
        What is published, by what it is called in an error.
    confidential
        The confidential audit, if there is one.
    input_path, input_table
        Where the confidential data lies; patterns in a path are taken for their directory.

    Raises
    ------
    ConfigurationError
        Naming both places and the mend.
    """
    everything = {**public, **({"confidential audit": confidential} if confidential else {})}
    for name, place in everything.items():
        _check_usable(name, place)
    paths = {name: place.path for name, place in public.items() if isinstance(place, PathTarget)}
    for (name, place), (other, second) in combinations(public.items(), 2):
        if place.described == second.described or (
            name in paths and other in paths and _overlap(paths[name], paths[other])
        ):
            raise ConfigurationError(
                f"{name} {place.described!r} and {other} {second.described!r} must be different "
                "places, neither inside the other. Choose another place for one of them."
            )
    if input_path is not None:
        records = before_pattern(input_path)
        for name, place in everything.items():
            if isinstance(place, PathTarget) and _overlap(place.path, records):
                raise ConfigurationError(
                    f"{name} path {place.path!r} and the input {input_path!r} lie in one another. "
                    "Put what is written outside the confidential data."
                )
    if input_table is not None:
        for name, place in everything.items():
            if isinstance(place, TableTarget) and (
                _qualified(spark, place.table) == _qualified(spark, input_table)
            ):
                raise ConfigurationError(
                    f"{name} table {place.table!r} is the input itself. Choose another table."
                )
    if confidential is not None:
        for place in public.values():
            if isinstance(place, TableTarget) and (warehouse := _warehouse(spark, place.table)):
                paths[f"warehouse of table {place.table}"] = warehouse
        for name, path in paths.items():
            if _overlap(confidential.path, path):
                raise ConfigurationError(
                    f"the confidential audit {confidential.path!r} and the {name} path {path!r} "
                    "lie in one another. Realised budgets give the true counts away: keep them "
                    "apart, where only those can read who may read the data."
                )


def _check_usable(name: str, place: OutputTarget) -> None:
    for option in place.options:
        if option.lower() == "path":
            raise ConfigurationError(
                f"the {name} has the writer's option {option!r}, which would put it elsewhere. "
                "Remove the option, and give the place itself."
            )
    if isinstance(place, PathTarget) and before_pattern(place.path) != place.path:
        raise ConfigurationError(
            f"{name} path {place.path!r} has one of the characters *, ?, [ and {{, which Spark "
            "reads as a pattern of several paths. Choose another name."
        )


def _overlap(path: str, other: str) -> bool:
    return lies_within(path, other) or lies_within(other, path)


def _warehouse(spark: SparkSession, table: str) -> str | None:
    """Return where a table's catalog keeps its files, as far as settings say."""
    parts = table.split(".")
    catalog = parts[0].strip("`") if len(parts) > 2 else spark.catalog.currentCatalog()
    own: str | None = spark.conf.get(f"spark.sql.catalog.{catalog}.warehouse", None)
    return own or spark.conf.get("spark.sql.warehouse.dir", None)


def _qualified(spark: SparkSession, table: str) -> tuple[str, ...]:
    """Return a table's name with catalog and schema, as catalogs compare it."""
    parts = [part.strip("`").lower() for part in table.split(".")]
    current = [spark.catalog.currentCatalog().lower(), spark.catalog.currentDatabase().lower()]
    return (*current[: max(3 - len(parts), 0)], *parts)
