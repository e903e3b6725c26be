"""Inputs in formats that keep snapshots (Iceberg, Delta): which one is read, and reading just it.

A snapshot is resolved before anything is charged, so that what is checked, counted and named in
the audit is one state of the data, whatever is written to the table meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of

SNAPSHOT_FORMATS = ("iceberg", "delta")


@dataclass(frozen=True)
class PinnedInput:
    """A table as it stood: ``snapshot`` is None where the format keeps none."""

    records: DataFrame = field(repr=False)
    snapshot: str | None


def read_table(spark: SparkSession, table: str, snapshot: str | None = None) -> PinnedInput:
    """Read a table of the catalog at a snapshot, the current one if none is given.

    Parameters
    ----------
    spark
        A classic or Connect session.
    table
        Its name, qualified as needed. Of a view no snapshot is known, whatever it reads.
    snapshot
        Snapshot id (Iceberg) or version (Delta), in digits.

    Raises
    ------
    ConfigurationError
        If the table keeps no snapshots although one is asked for, has none yet, or not this one.
    """
    # Checks that it is the name of a table and no more, before it becomes part of a statement.
    current = spark.table(table)
    _ = current.schema
    provider = _provider(spark, table)
    if provider not in SNAPSHOT_FORMATS:
        _refuse_snapshot(f"table {table}", provider, snapshot)
        return PinnedInput(current, None)
    if provider == "iceberg":
        found = snapshot or _current_of_iceberg(spark.table(f"{table}.refs"), table)
    else:
        found = snapshot or _current_of_delta(spark, table)
    # In SQL: on Spark 3.5 Iceberg ignores the reader's option versionAsOf, without a word.
    statement = f"SELECT * FROM {table} VERSION AS OF {found}"  # noqa: S608 - checked above
    return _pinned(lambda: spark.sql(statement), table, found)


def read_path(
    spark: SparkSession,
    path: str,
    kind: str,
    options: Mapping[str, str],
    schema: str | None = None,
    snapshot: str | None = None,
) -> PinnedInput:
    """Read a path at a snapshot, the current one if none is given; see ``read_table``.

    Parameters
    ----------
    spark, path
        What Spark's reader takes.
    kind, options
        The format and its options.
    schema
        Declared columns, for formats that have no schema of their own.
    snapshot
        Snapshot id or version, in digits.
    """
    reader = spark.read.format(kind).options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    if kind.lower() == "iceberg":
        references = spark.read.format(kind).load(f"{path}#refs")
        found = snapshot or _current_of_iceberg(references, path)
        return _pinned(lambda: reader.option("snapshot-id", found).load(path), path, found)
    if kind.lower() == "delta":
        found = snapshot or _current_of_delta(spark, f"delta.`{path.replace('`', '``')}`")
        return _pinned(lambda: reader.option("versionAsOf", found).load(path), path, found)
    _refuse_snapshot(f"path {path}", kind, snapshot)
    return PinnedInput(reader.load(path), None)


def _pinned(read: Callable[[], DataFrame], called: str, snapshot: str) -> PinnedInput:
    try:
        records = read()
        _ = records.schema
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"snapshot {snapshot} of the input {called} cannot be read ({condition_of(error)}): "
            "there is none, or it has expired. Choose one that the table's history lists."
        ) from None
    return PinnedInput(records, snapshot)


def _refuse_snapshot(called: str, kind: str | None, snapshot: str | None) -> None:
    if snapshot is not None:
        raise ConfigurationError(
            f"the input {called} ({kind or 'a view'}) keeps no snapshots, so that snapshot "
            f"{snapshot} cannot be read. Remove 'snapshot', or use an Iceberg or Delta table."
        )


def _provider(spark: SparkSession, table: str) -> str | None:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    names = [row.col_name for row in rows]
    if "# Detailed Table Information" not in names:
        return None
    # The columns, which come before it, may be called Provider too.
    details = rows[names.index("# Detailed Table Information") :]
    return next((row.data_type.lower() for row in details if row.col_name == "Provider"), None)


def _current_of_iceberg(references: DataFrame, called: str) -> str:
    main = references.where("name = 'main'").select("snapshot_id").collect()
    if not main:
        raise ConfigurationError(
            f"the input {called} has no snapshot yet: nothing was ever written to it. Write to it "
            "first; an append of no rows will do."
        )
    return str(main[0].snapshot_id)


def _current_of_delta(spark: SparkSession, table: str) -> str:
    return str(spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").collect()[0].version)
