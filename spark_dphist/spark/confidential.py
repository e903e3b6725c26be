"""The confidential audit: true counts and realised budgets, never beside anything public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.mechanisms import Mechanism
from spark_dphist.spark.counts import TRUE_COUNT
from spark_dphist.spark.group_key import CONFIDENTIAL_COLUMNS, PUBLISHED_COLUMNS, quoted

# Stored with the column by formats that keep metadata (Parquet among them).
CONFIDENTIAL = {"spark_dphist.confidential": "true"}


def confidential_frame(
    noisy: DataFrame,
    fields: Sequence[T.StructField],
    mechanism: Mechanism,
    records_per_unit: int,
) -> DataFrame:
    """Return group columns, published columns, ``confidential_true_count`` and ``..._rho``.

    Parameters
    ----------
    noisy
        What ``add_noise(..., keep_true_count=True)`` returns.
    fields
        The group columns.
    mechanism, records_per_unit
        For the budget that each group's members spent, in rho, rounded up.

    Notes
    -----
    The budget is an invertible function of the true count. Both columns carry the metadata
    ``CONFIDENTIAL`` and a name that says what they are.
    """

    def realised_rho(count: pd.Series[Any]) -> pd.Series[Any]:
        return pd.Series(mechanism.budget(count.to_numpy(dtype=np.int64), records_per_unit))

    realised_rho.__annotations__ = {"count": pd.Series, "return": pd.Series}
    rho = pandas_udf(realised_rho, T.DoubleType())  # type: ignore[call-overload]
    true_count_column, rho_column = CONFIDENTIAL_COLUMNS
    return noisy.select(
        *[quoted(field.name) for field in fields],
        *PUBLISHED_COLUMNS,
        F.col(TRUE_COUNT).alias(true_count_column, metadata=CONFIDENTIAL),
        rho(F.col(TRUE_COUNT)).alias(rho_column, metadata=CONFIDENTIAL),
    )
