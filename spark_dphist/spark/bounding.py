"""Bound how many records of one privacy unit are counted, by that unit's records alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.spark.group_key import RESERVED_PREFIX, check_key_type, encoded_group_key, quoted
from spark_dphist.streams import ReleaseKey, digest_array, keyed_order

_ORDINAL = RESERVED_PREFIX + "ordinal"
_ORDER = RESERVED_PREFIX + "order"
_DIGEST = RESERVED_PREFIX + "digest"
_RANK = RESERVED_PREFIX + "rank"


def unit_field(schema: T.StructType, unit: PrivacyUnit, source: str) -> T.StructField | None:
    """Return the field of the unit's column, or None where records are units.

    Raises
    ------
    ConfigurationError
        If there is no such column or its type cannot identify a unit.
    """
    if unit.column is None:
        return None
    names = [field.name for field in schema.fields]
    same = [name for name in names if name.lower() == unit.column.lower()]
    if unit.column not in names:
        raise ConfigurationError(
            f"privacy unit column {unit.column!r} is not a column of {source}. "
            f"{did_you_mean(unit.column, names)}"
        )
    if len(same) > 1:
        raise ConfigurationError(
            f"{source} has several columns named {' and '.join(map(repr, same))}, which Spark does "
            "not tell apart: rename all but the one that identifies the privacy unit"
        )
    if unit.column.lower().startswith(RESERVED_PREFIX):
        raise ConfigurationError(
            f"privacy unit column {unit.column!r} has a name the release itself uses. Rename the "
            "column."
        )
    field = schema[unit.column]
    try:
        check_key_type(field)
    except ConfigurationError as error:
        # The mend for a group column is the mend here too.
        raise ConfigurationError(
            f"privacy unit column {unit.column!r} has type {field.dataType.simpleString()}, which "
            f"cannot identify a unit, as it cannot be a group key either: {error}"
        ) from None
    return field


def bound_contributions(
    records: DataFrame,
    fields: Sequence[T.StructField],
    unit: PrivacyUnit,
    identifier: T.StructField,
    key: ReleaseKey,
) -> DataFrame:
    """Keep at most ``unit.max_records`` records of each unit (or one per group and unit, as such).

    Parameters
    ----------
    records
        The confidential table.
    fields
        The group columns.
    unit
        The privacy unit and its bound.
    identifier
        The unit's column.
    key
        The release key, which decides what is kept.

    Returns
    -------
    DataFrame
        The group columns of the kept records.

    Notes
    -----
    What is kept of a unit depends on that unit's records and the release key alone, so adding or
    removing one unit changes only its own at most ``max_records`` records. Records without a unit
    (NULL) are dropped: they cannot be told apart from those of another unit, and one record more
    could change which of them are kept. Records of one unit in one group are interchangeable, so
    numbering them in any order keeps the same counts in every attempt.
    """
    groups = [quoted(field.name) for field in fields]
    identity = quoted(identifier.name)
    owned = records.where(identity.isNotNull()).select(
        *groups, *([] if identifier in fields else [identity])
    )
    if unit.distinct:
        numbered = owned.distinct().withColumn(_ORDINAL, F.lit(1))
    else:
        # Partitioned by unit first: the second window then needs no further shuffle.
        numbered = owned.repartition(identity).withColumn(
            _ORDINAL, F.row_number().over(Window.partitionBy(identity, *groups).orderBy(F.lit(1)))
        )
    encoded = F.concat(
        encoded_group_key([identifier]),
        F.lit("|"),
        encoded_group_key(fields),
        F.lit("|"),
        F.col(_ORDINAL).cast("string"),
    )
    digest = F.unhex(F.sha2(encoded.cast("binary"), 256))
    ranked = (
        numbered.withColumn(_DIGEST, digest)
        .withColumn(_ORDER, _keyed(key)(F.col(_DIGEST)))
        .withColumn(
            _RANK, F.row_number().over(Window.partitionBy(identity).orderBy(_ORDER, _DIGEST))
        )
    )
    return ranked.where(F.col(_RANK) <= unit.max_records).select(*groups)


def _keyed(key: ReleaseKey) -> Callable[..., Column]:
    def order(digest: pd.Series[Any]) -> pd.Series[Any]:
        digests = digest_array(digest)
        return pd.Series(keyed_order(key, digests))

    order.__annotations__ = {"digest": pd.Series, "return": pd.Series}
    return pandas_udf(order, T.LongType())  # type: ignore[call-overload,no-any-return]
