"""The count stage: how many records each declared group has, in one shuffle of the records."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.spark.group_key import RESERVED_PREFIX, quoted

TRUE_COUNT = RESERVED_PREFIX + "true_count"
_DECLARED = RESERVED_PREFIX + "declared"
_AS_MANY_AS_THERE_ARE = 1_000_000


def count_groups(
    records: DataFrame, keys: DataFrame, fields: Sequence[T.StructField], partitions: int
) -> DataFrame:
    """Count the records of every declared group; the result is confidential.

    Parameters
    ----------
    records
        The confidential table; only its group columns are read.
    keys
        The key set, with exactly the group columns; duplicates are harmless.
    fields
        The group columns.
    partitions
        How many partitions the result has, whatever the data.

    Returns
    -------
    DataFrame
        The group columns and ``TRUE_COUNT`` (bigint, never NULL): one row for each distinct key of
        the key set, 0 for groups without records. NULL is a key of its own. Which partition a group
        is in depends on its key alone.

    Notes
    -----
    The records go through one shuffle. Their counts and the declared keys (of count 0) then meet in
    the shuffle that makes the partitions, and are added up there: it does what a join would, NULL
    needs no special care, and no group is moved once more to be stored.
    """
    names = [field.name for field in fields]
    columns = [quoted(name) for name in names]
    counted = records.groupBy(*columns).agg(F.count(F.lit(1)).alias(TRUE_COUNT))
    # Coalescing hides how the keys are partitioned. If that were known and as the counts are, Spark
    # would leave out the shuffle below, and the number of files would follow from the data's size.
    declared = keys.coalesce(_AS_MANY_AS_THERE_ARE).select(
        *columns, F.lit(0).cast("bigint").alias(TRUE_COUNT), F.lit(True).alias(_DECLARED)
    )
    together = counted.withColumn(_DECLARED, F.lit(False)).union(declared)
    split = (
        together.repartition(1) if partitions == 1 else together.repartition(partitions, *columns)
    )
    return (
        split.groupBy(*columns)
        .agg(
            F.coalesce(F.sum(TRUE_COUNT), F.lit(0)).alias(TRUE_COUNT),
            F.max(_DECLARED).alias(_DECLARED),
        )
        .where(F.col(_DECLARED))
        .select(*columns, TRUE_COUNT)
    )
