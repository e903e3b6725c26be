"""The noise stage: a pandas UDF that publishes each partition's counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.mechanisms import Mechanism, Rounding, publish
from spark_dphist.spark.counts import TRUE_COUNT
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, RESERVED_PREFIX, group_digest, quoted
from spark_dphist.streams import GroupStreams, ReleaseKey, digest_array

_PUBLISHED = RESERVED_PREFIX + "published"


def add_noise(
    counts: DataFrame,
    fields: Sequence[T.StructField],
    mechanism: Mechanism,
    key: ReleaseKey,
    *,
    rounding: Rounding = "nearest",
    confidence: float = 0.95,
    keep_true_count: bool = False,
) -> DataFrame:
    """Replace the true counts by noisy ones and their intervals.

    Parameters
    ----------
    counts
        What ``count_groups`` returns.
    fields
        The group columns.
    mechanism
        What is promised.
    key
        The release key. It travels in the UDF's closure, never in the plan.
    rounding
        ``nearest`` publishes bigint, ``none`` double.
    confidence
        Of the interval.
    keep_true_count
        Whether to keep the true counts as well: for the confidential audit alone.

    Returns
    -------
    DataFrame
        The group columns, ``noisy_count``, ``lower`` and ``upper``. It is lazy, and a group's noise
        depends on the release key and the group's key alone, so that retries, speculation and
        repartitioning do not change it. It must be evaluated against one state of the data only:
        materialise it once and hand out what was stored.
    """
    published_type = T.StructType(published_fields(rounding))
    published = _publisher(mechanism, key, published_type, rounding, confidence)
    columns = [quoted(field.name) for field in fields]
    kept = [F.col(TRUE_COUNT)] if keep_true_count else []
    return counts.select(
        *columns, *kept, published(group_digest(fields), F.col(TRUE_COUNT)).alias(_PUBLISHED)
    ).select(*columns, *kept, *[F.col(f"{_PUBLISHED}.{name}") for name in PUBLISHED_COLUMNS])


def published_fields(rounding: Rounding) -> list[T.StructField]:
    """Return the published columns: bigint where rounded to the nearest integer, else double."""
    number = T.LongType() if rounding == "nearest" else T.DoubleType()
    return [T.StructField(name, number) for name in PUBLISHED_COLUMNS]


def _publisher(
    mechanism: Mechanism,
    key: ReleaseKey,
    published_type: T.StructType,
    rounding: Rounding,
    confidence: float,
) -> Callable[..., Column]:
    def publish_batch(digest: pd.Series[Any], count: pd.Series[Any]) -> pd.DataFrame:
        digests = digest_array(digest)
        published = publish(
            mechanism,
            count.to_numpy(dtype=np.int64),
            GroupStreams(key, digests),
            rounding=rounding,
            confidence=confidence,
        )
        return pd.DataFrame({name: getattr(published, name) for name in PUBLISHED_COLUMNS})

    # Type hints as objects, which pandas_udf reads to find the kind of UDF.
    publish_batch.__annotations__ = {
        "digest": pd.Series,
        "count": pd.Series,
        "return": pd.DataFrame,
    }
    return pandas_udf(publish_batch, published_type)  # type: ignore[call-overload,no-any-return]
