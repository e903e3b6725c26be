"""The selection stage: which groups of the confidential table may be named, drawn once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms.partition_selection import PartitionSelection
from spark_dphist.spark.bounding import bound_contributions
from spark_dphist.spark.group_key import RESERVED_PREFIX, group_digest, quoted
from spark_dphist.streams import GroupStreams, ReleaseKey, digest_array

_UNITS = RESERVED_PREFIX + "units"


def select_keys(
    records: DataFrame,
    fields: Sequence[T.StructField],
    identifier: T.StructField | None,
    selection: KeySelection,
    key: ReleaseKey,
) -> DataFrame:
    """Keep the groups of the table that the selection draws, by their numbers of units.

    Parameters
    ----------
    records
        The confidential table.
    fields
        The group columns.
    identifier
        The unit's column, or None where each record is a unit of its own.
    selection
        How groups are kept.
    key
        The release key. Both what is counted of a unit and what is drawn come from a key derived
        from it for this purpose, so they are independent of the release.

    Returns
    -------
    DataFrame
        The group columns, one row for each kept group; never a group without units. It is lazy, and
        must be evaluated against one state of the data only: materialise it once and hand out what
        was stored.

    Notes
    -----
    Privacy Guarantee: (epsilon, delta)-DP of ``selection`` under adding or removing one unit
    (docs/key-selection.md). A unit is counted at most once in a group, and in ``groups_per_unit``
    groups at most, which depend on its own records and the key alone.
    """
    own_key = ReleaseKey(key.derive(b"key-selection"), key.is_fixed)
    columns = [quoted(field.name) for field in fields]
    if identifier is None:
        counted = records.select(*columns)
    else:
        unit = PrivacyUnit(
            column=identifier.name, max_records=selection.groups_per_unit, distinct=True
        )
        counted = bound_contributions(records, fields, unit, identifier, own_key)
    groups = counted.groupBy(*columns).agg(F.count(F.lit(1)).alias(_UNITS))
    kept = _keeper(selection.mechanism, own_key)
    return groups.where(kept(group_digest(fields), F.col(_UNITS))).select(*columns)


def _keeper(mechanism: PartitionSelection, key: ReleaseKey) -> Callable[..., Column]:
    def keep(digest: pd.Series[Any], units: pd.Series[Any]) -> pd.Series[Any]:
        digests = digest_array(digest)
        count = units.to_numpy(dtype=np.int64)
        return pd.Series(mechanism.keep(count, GroupStreams(key, digests)))

    keep.__annotations__ = {"digest": pd.Series, "units": pd.Series, "return": pd.Series}
    return pandas_udf(keep, T.BooleanType())  # type: ignore[call-overload,no-any-return]
