"""Whether a key set looks as if it had been taken from the confidential data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession

from spark_dphist.key_ranges import confidential_key_set
from spark_dphist.spark.failures import SPARK_ERRORS
from spark_dphist.spark.group_key import quoted
from spark_dphist.spark.key_set import KeySet


class ConfidentialKeySetWarning(UserWarning):
    """The key set seems to have been taken from the data that it is to protect."""


def origin_warning(
    spark: SparkSession, key_set: KeySet, records: DataFrame, columns: Sequence[str]
) -> str | None:
    """Return a warning if the key set shares files or its plan with the records.

    Runs no job: Spark lists the files that each would read, and compares plans. What is copied to
    another table, or collected and declared value by value, cannot be seen. A reference table that
    the records were joined with is one of their files too.
    """
    keys = key_set.stored(spark)
    if keys is None:
        return None
    try:
        shared = set(keys.inputFiles()) & set(records.inputFiles())
        if shared:
            return confidential_key_set("both read the same files")
        if any(_same(keys, derived) for derived in _usual_derivations(records, keys, columns)):
            return confidential_key_set("it is computed from the input")
    except SPARK_ERRORS:
        # A table without files or a plan that cannot be compared: nothing is known.
        return None
    return None


def _usual_derivations(
    records: DataFrame, keys: DataFrame, columns: Sequence[str]
) -> Iterator[DataFrame]:
    yield records
    names = [name for name in keys.columns if name in columns] or list(columns)
    chosen = records.select(*[quoted(name) for name in names])
    yield from (chosen, chosen.distinct(), chosen.dropDuplicates())
    yield records.dropDuplicates(names).select(*[quoted(name) for name in names])
    grouped = records.groupBy(*[quoted(name) for name in names]).count()
    yield grouped.select(*[quoted(name) for name in names])


def _same(one: DataFrame, other: DataFrame) -> bool:
    return one.semanticHash() == other.semanticHash()
