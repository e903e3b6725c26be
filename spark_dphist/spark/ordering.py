"""The order of what is stored: by key alone, so that nothing about it depends on the data."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.spark.group_key import quoted


def ordered_by_key(frame: DataFrame, fields: Sequence[T.StructField], files: int) -> DataFrame:
    """Put each key into one of a fixed number of partitions, each of them ordered by key.

    Which partition that is depends on the key alone. Range partitioning would order the partitions
    among themselves too, but it takes their bounds from a sample of what the shuffle delivers,
    which depends on the data.
    """
    columns = [quoted(field.name) for field in fields]
    # By a hash of the columns: Spark takes partitioning by the columns for done by the count.
    split = frame.repartition(1) if files == 1 else frame.repartition(files, F.xxhash64(*columns))
    return sorted_within(split, fields)


def sorted_within(frame: DataFrame, fields: Sequence[T.StructField]) -> DataFrame:
    """Order each partition by key, NULL first."""
    return frame.sortWithinPartitions(*[quoted(field.name) for field in fields])
