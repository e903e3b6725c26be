"""The local model's stages: one noisy report for each record, and how many support each value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.errors import ConfigurationError
from spark_dphist.local import LocalResponse, UnaryEncoding
from spark_dphist.local.responses import MAX_CATEGORIES
from spark_dphist.spark.arrow_exchange import collect_arrow, dataframe_from_arrow
from spark_dphist.spark.group_key import RESERVED_PREFIX, encoded_group_key, quoted
from spark_dphist.spark.key_set import KeySet
from spark_dphist.streams import GroupStreams, ReleaseKey, digest_array

REPORT = "report"
CATEGORY = "category"
_ENCODED = RESERVED_PREFIX + "encoded"
_IDENTITY = RESERVED_PREFIX + "identity"
_MISSING = RESERVED_PREFIX + "missing"

# Why Spark refuses a record; they quote none, so an error may name them.
OUTSIDE = "a value lies outside the domain"
NO_IDENTIFIER = "a record has no identifier"
SAME_IDENTIFIER = "two records have the same identifier"
REFUSALS = (OUTSIDE, NO_IDENTIFIER, SAME_IDENTIFIER)


@dataclass(frozen=True)
class Domain:
    """The public values a report can be about, in the order of their encoded keys.

    ``table`` has the group columns, ``category`` (position, int) and the encoded key.
    """

    fields: tuple[T.StructField, ...]
    table: pa.Table

    @property
    def size(self) -> int:
        """How many values there are."""
        return int(self.table.num_rows)

    @property
    def keys(self) -> pa.Table:
        """The group columns alone, a row for each category in order."""
        return self.table.select([field.name for field in self.fields])

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return the table as a DataFrame."""
        return dataframe_from_arrow(spark, self.table)


def public_domain(spark: SparkSession, keys: KeySet, fields: Sequence[T.StructField]) -> Domain:
    """Collect a public key set as the domain of reports.

    Raises
    ------
    ConfigurationError
        If there are fewer than 2 values or more than 10,000.
    """
    size = keys.size(spark, fields)
    if not 2 <= size <= MAX_CATEGORIES:
        raise ConfigurationError(
            f"a report is about 2 to {MAX_CATEGORIES:,} values, the domain has {size:,}"
        )
    columns = [quoted(field.name) for field in fields]
    distinct = keys.to_spark(spark, fields).select(
        *columns, encoded_group_key(fields).alias(_ENCODED)
    )
    table = collect_arrow(distinct.distinct()).sort_by(_ENCODED)
    positions = pa.array(np.arange(table.num_rows, dtype=np.int32))
    return Domain(tuple(fields), table.append_column(CATEGORY, positions))


def category_of(spark: SparkSession, domain: Domain, value: Sequence[Any]) -> int:
    """Return the position of one value of the domain, a tuple of its columns.

    Raises
    ------
    ConfigurationError
        If it is not in the domain.
    """
    fields = domain.fields
    keys = KeySet.from_tuples([field.name for field in fields], [value]).to_spark(spark, fields)
    encoded = keys.select(encoded_group_key(fields).alias(_ENCODED)).first()
    assert encoded is not None  # noqa: S101 - one tuple gives one row
    known: list[str] = domain.table[_ENCODED].to_pylist()
    if encoded[0] not in known:
        raise ConfigurationError(
            f"outside = {tuple(value)!r} is not a value of the domain: add it there, so that it "
            "can be reported"
        )
    return known.index(encoded[0])


def randomise(
    spark: SparkSession,
    records: DataFrame,
    identifier: T.StructField,
    domain: Domain,
    response: LocalResponse,
    key: ReleaseKey,
    *,
    outside: int | None = None,
) -> DataFrame:
    """Replace each record by one noisy report about its value.

    Parameters
    ----------
    spark
        The session.
    records
        The table to be noised: one record for each report.
    identifier
        The column that identifies a record; its stream of random bits depends on it.
    domain
        The values.
    response
        What is reported, for as many categories as the domain has.
    key
        The key of this collection. Whoever knows it can take the noise off.
    outside
        The category of records whose value is not in the domain. None: they are refused.

    Returns
    -------
    DataFrame
        The column ``report`` alone: an int (category), or an array of a boolean for each category.
        It is lazy: materialise it once. It fails, without showing a record, if an identifier is
        NULL or there twice, or a value is outside the domain and ``outside`` is None.

    Notes
    -----
    Privacy Guarantee: ``response.epsilon``-DP in the local model for each report. Two records of
    one identifier would share their noise, and one report would tell about the other, so they are
    refused.
    """
    fields = domain.fields
    identity = encoded_group_key([identifier])
    values = records.select(
        quoted(identifier.name).isNull().alias(_MISSING),
        F.unhex(F.sha2(identity.cast("binary"), 256)).alias(_IDENTITY),
        encoded_group_key(fields).alias(_ENCODED),
    )
    known = F.broadcast(domain.to_spark(spark).select(_ENCODED, CATEGORY))
    joined = values.join(known, _ENCODED, "left")
    times = F.count(F.lit(1)).over(Window.partitionBy(_IDENTITY))
    found = (
        F.coalesce(F.col(CATEGORY), F.lit(outside))
        if outside is not None
        else F.when(F.col(CATEGORY).isNull(), _refused(OUTSIDE)).otherwise(F.col(CATEGORY))
    )
    checked = (
        F.when(F.col(_MISSING), _refused(NO_IDENTIFIER))
        .when(times > 1, _refused(SAME_IDENTIFIER))
        .otherwise(found)
    )
    prepared = joined.select(_IDENTITY, checked.alias(CATEGORY))
    return prepared.select(_reporter(response, key)(_IDENTITY, CATEGORY).alias(REPORT))


def arranged(reports: DataFrame, files: int) -> DataFrame:
    """Put reports into so many partitions, and into an order, that depend on the reports alone.

    Parameters
    ----------
    reports
        What ``randomise`` gives, in partitions and an order that identifiers decide and Spark's
        settings and the sizes of shuffled true values.
    files
        How many partitions, a public number. Equal reports lie in the same one.

    Notes
    -----
    Privacy Guarantee: what is stored is a function of the multiset of reports, so it is
    post-processing of them (docs/local-model.md). Each report is drawn before it is moved.
    """
    split = reports.repartition(files, F.xxhash64(REPORT)) if files > 1 else reports.repartition(1)
    return split.sortWithinPartitions(F.xxhash64(REPORT), REPORT)


def report_type(response: LocalResponse) -> T.DataType:
    """Return the type of the column ``report``."""
    if isinstance(response, UnaryEncoding):
        return T.ArrayType(T.BooleanType())
    return T.IntegerType()


def support_of(reports: DataFrame, response: LocalResponse) -> tuple[npt.NDArray[np.int64], int]:
    """Count how many reports support each category, and all of them; both are public.

    Parameters
    ----------
    reports
        What ``randomise`` gave, read back.
    response
        What they were drawn with.
    """
    if isinstance(response, UnaryEncoding):
        supporting = reports.select(F.posexplode(REPORT)).where("col").select("pos")
    else:
        supporting = reports.select(F.col(REPORT).alias("pos"))
    counted = supporting.groupBy("pos").agg(F.count(F.lit(1)).alias("n")).collect()
    support = np.zeros(response.categories, dtype=np.int64)
    for row in counted:
        support[row["pos"]] = row["n"]
    return support, reports.count()


def _refused(reason: str) -> Column:
    return F.raise_error(F.lit(f"spark_dphist: {reason}, so nothing is reported")).cast("int")


def _reporter(response: LocalResponse, key: ReleaseKey) -> Callable[..., Column]:
    own_key = ReleaseKey(key.derive(b"local-reports"), key.is_fixed)

    def report(identity: pd.Series[Any], category: pd.Series[Any]) -> pd.Series[Any]:
        digests = digest_array(identity)
        drawn = response.report(category.to_numpy(dtype=np.int64), GroupStreams(own_key, digests))
        return pd.Series(list(drawn))

    report.__annotations__ = {"identity": pd.Series, "category": pd.Series, "return": pd.Series}
    return pandas_udf(report, report_type(response))  # type: ignore[call-overload,no-any-return]
