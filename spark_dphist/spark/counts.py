"""The count stage: how many records each declared group has, in one shuffle."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.spark.group_key import RESERVED_PREFIX, quoted

TRUE_COUNT = RESERVED_PREFIX + "true_count"
_WEIGHT = RESERVED_PREFIX + "weight"
_DECLARED = RESERVED_PREFIX + "declared"


def count_groups(records: DataFrame, keys: DataFrame, fields: Sequence[T.StructField]) -> DataFrame:
    """Count the records of every declared group; the result is confidential.

    Parameters
    ----------
    records
        The confidential table; only its group columns are read.
    keys
        The key set, with exactly the group columns; duplicates are harmless.
    fields
        The group columns.

    Returns
    -------
    DataFrame
        The group columns and ``TRUE_COUNT`` (bigint, never NULL): one row for each distinct key of
        the key set, 0 for groups without records. NULL is a key of its own.

    Notes
    -----
    Records (weight 1) and keys (weight 0) are grouped together, so that one shuffle does what a
    grouping and a join would do in two, and NULL needs no special care.
    """
    names = [field.name for field in fields]
    columns = [quoted(name) for name in names]
    weighted = records.select(
        *columns, F.lit(1).cast("bigint").alias(_WEIGHT), F.lit(False).alias(_DECLARED)
    )
    declared = keys.select(
        *columns, F.lit(0).cast("bigint").alias(_WEIGHT), F.lit(True).alias(_DECLARED)
    )
    return (
        weighted.union(declared)
        .groupBy(*columns)
        .agg(
            F.coalesce(F.sum(_WEIGHT), F.lit(0)).alias(TRUE_COUNT),
            F.max(_DECLARED).alias(_DECLARED),
        )
        .where(F.col(_DECLARED))
        .select(*columns, TRUE_COUNT)
    )
