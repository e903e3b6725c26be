"""Summarise released rows in Spark's partitions, as the driver does with collected ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from spark_dphist.audit_summary import BUCKET_SCHEMA, AuditSummary, summarised_buckets
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, RESERVED_PREFIX, group_digest, quoted

_GROUP = RESERVED_PREFIX + "group"


def summarised_by_spark(
    frame: DataFrame, fields: Sequence[T.StructField], rho: str | None = None
) -> AuditSummary:
    """Summarise a table without collecting its rows.

    Parameters
    ----------
    frame
        The group columns, and the published numbers if the table has them.
    fields
        The group columns.
    rho
        The column of the budgets; without it they are taken for 0.
    """
    numbers = [name for name in PUBLISHED_COLUMNS if name in frame.columns]
    budgets = [] if rho is None else [rho]

    def summarise(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        if held:
            table = pa.Table.from_batches(held)
            yield from summarised_buckets(
                table[_GROUP],
                [table[name].to_numpy() for name in numbers],
                np.zeros(len(table)) if rho is None else table[rho].to_numpy(),
            ).to_batches()

    buckets = (
        frame.select(group_digest(fields).alias(_GROUP), *map(quoted, [*numbers, *budgets]))
        # By the first 12 bits: a bucket is not shared between partitions.
        .repartition(F.substring(F.hex(F.substring(_GROUP, 1, 2)), 1, 3))
        .mapInArrow(summarise, from_arrow_schema(BUCKET_SCHEMA))
    )
    return AuditSummary.of_buckets(collect_arrow(buckets))
