"""Write a release's public audit from what was stored, and check what was stored against it.

Up to ``max_collected_groups`` groups the driver collects the released rows and writes the audit
itself; beyond, Spark writes it and the driver collects a summary of a few thousand rows. The
numbers are computed by the same functions on both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.audit import (
    AUDIT_COLUMNS,
    AuditHeader,
    PublicAudit,
    audit_columns,
    audit_groups,
    parameters_json,
    selection_json,
    versions_json,
)
from spark_dphist.audit_summary import AuditSummary, summarised_buckets
from spark_dphist.committed import committed_header, refuse_changed_counts
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.mechanisms import Mechanism
from spark_dphist.request import FULL_FORMATS, ReleaseRequest
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, RESERVED_PREFIX, group_digest, quoted
from spark_dphist.spark.summary import summarised_by_spark

# What the JVM of a driver with Spark's default of 1 GB hands over in one piece.
_COLLECTED_AT_ONCE = 1_000_000
_GROUP = RESERVED_PREFIX + "group"
_RHO = AUDIT_COLUMNS[0]
_AUDIT = RESERVED_PREFIX + "audit"


def stage_audit(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    size: int,
    *,
    fixed_key: bool,
) -> PublicAudit:
    """Stage both tables of the public audit, from the staged counts.

    Parameters
    ----------
    spark, request
        Of the release.
    fields
        The group columns.
    size
        How many groups were declared, duplicates counted.
    fixed_key
        Whether the release key was a fixed one.

    Raises
    ------
    ReleaseError
        If a group is missing, extra or there twice.
    """
    stored = request.output.read_staged(spark, request.released_schema(fields))
    mechanism, records = request.mechanism, request.privacy_unit.records_per_group
    groups = None
    digested = stored.select("*", group_digest(fields).alias(_GROUP))
    collected = _collected(digested, fields, size) if size <= request.max_collected_groups else None
    if collected is not None:
        groups = audit_groups(collected.drop_columns([_GROUP]), mechanism, records)
        with ThreadPoolExecutor(max_workers=1) as background:
            writing = background.submit(request.audit_groups.stage_arrow, spark, groups)
            numbers = [groups[name].to_numpy() for name in PUBLISHED_COLUMNS]
            rho = groups[_RHO].to_numpy()
            summary = AuditSummary.of_buckets(summarised_buckets(collected[_GROUP], numbers, rho))
            writing.result()
    else:
        # The counts are published, so that the audit may be split and ordered as they are.
        audited = _with_audit_columns(stored, mechanism, records)
        request.audit_groups.stage(audited.coalesce(request.file_count(size)))
        summary = summarised_by_spark(request.audit_groups.read_staged(spark), fields, _RHO)
    # The exact size of a key set is only counted where duplicates may be behind a difference.
    declared = size if summary.groups == size else request.key_set.size(spark, fields)
    summary.check_complete(declared)
    if request.output.format.lower() not in FULL_FORMATS or any(
        isinstance(field.dataType, T.TimestampType) for field in fields
    ):
        _check_keys_are_kept(spark, request, fields, summary)
    header = _header(spark, request, fields, summary, fixed_key=fixed_key)
    request.audit_header.stage_arrow(spark, header.to_arrow())
    return PublicAudit(header, groups)


def _collected(frame: DataFrame, fields: Sequence[T.StructField], size: int) -> pa.Table | None:
    """Collect a stored table, or return None if it is too much for the driver.

    Large ones come in slices by key, as the driver's JVM holds a whole one before it hands it over.
    """
    slices = max(-(-size // _COLLECTED_AT_ONCE), 1)
    part = F.pmod(F.xxhash64(*[quoted(field.name) for field in fields]), F.lit(slices))
    frames = [frame] if slices == 1 else [frame.where(part == each) for each in range(slices)]
    try:
        return pa.concat_tables(collect_arrow(each) for each in frames)
    except Exception:
        # spark.driver.maxResultSize or the driver's memory. The release is charged and stored, so
        # that it is not given up for that; if reading fails, it fails on the other way too.
        return None


def _check_keys_are_kept(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    summary: AuditSummary,
) -> None:
    """Refuse a format or a session that writes other keys, such as timestamps cut short."""
    declared = summarised_by_spark(request.key_set.to_spark(spark, fields).distinct(), fields)
    if declared.key_set_digest != summary.key_set_digest:
        raise ReleaseError(
            f"format {request.output.format!r}, as this session writes it, does not keep the group "
            "keys as they were declared. Use 'parquet', without shortened timestamps "
            "(spark.sql.parquet.outputTimestampType), and convert what was published."
        )


def audit_schema(request: ReleaseRequest, fields: Sequence[T.StructField]) -> T.StructType:
    """Return the schema of the audit of the groups."""
    numbers = [T.StructField(name, T.DoubleType()) for name in AUDIT_COLUMNS]
    return T.StructType([*request.released_schema(fields).fields, *numbers])


def stored_audit(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    committed_digest: object,
) -> PublicAudit:
    """Read a committed release's audit, staged or published, and check that all of it is its own.

    Parameters
    ----------
    spark, request, fields
        Of the release.
    committed_digest
        The digest of the counts that the ledger has recorded.

    Raises
    ------
    ConfigurationError
        If the request asks for other groups than the release has.
    ReleaseError
        If what stands there is another release's, or was changed since.
    """
    release_id, at = request.release_id, request.audit_header
    header = committed_header(spark, "release", release_id, at, committed_digest)
    declared = summarised_by_spark(request.key_set.to_spark(spark, fields).distinct(), fields)
    if declared.key_set_digest != header.key_set_digest:
        raise ConfigurationError(
            f"release {request.release_id!r} was made for another key set, of "
            f"{header.key_set_size} groups. Choose a new release id: it is a new release and is "
            "charged anew."
        )
    refuse_changed_counts(
        spark, "release", header, request.output, fields, request.released_schema(fields)
    )
    if header.key_set_size > request.max_collected_groups:
        return PublicAudit(header, None)
    stored = request.audit_groups.read_current(spark, audit_schema(request, fields))
    return PublicAudit(header, _collected(stored, fields, header.key_set_size))


def _with_audit_columns(stored: DataFrame, mechanism: Mechanism, records: int) -> DataFrame:
    def audit(
        noisy_count: pd.Series[Any], lower: pd.Series[Any], upper: pd.Series[Any]
    ) -> pd.DataFrame:
        columns = audit_columns(
            noisy_count.to_numpy(), lower.to_numpy(), upper.to_numpy(), mechanism, records
        )
        return pd.DataFrame(columns)

    audit.__annotations__ = {
        "noisy_count": pd.Series,
        "lower": pd.Series,
        "upper": pd.Series,
        "return": pd.DataFrame,
    }
    kind = T.StructType([T.StructField(name, T.DoubleType()) for name in AUDIT_COLUMNS])
    audited = pandas_udf(audit, kind)(*PUBLISHED_COLUMNS)  # type: ignore[call-overload]
    return stored.select("*", audited.alias(_AUDIT)).select(
        *[quoted(name) for name in stored.columns],
        *[F.col(f"{_AUDIT}.{name}").alias(name) for name in AUDIT_COLUMNS],
    )


def _header(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    summary: AuditSummary,
    *,
    fixed_key: bool,
) -> AuditHeader:
    mechanism, unit = request.mechanism, request.privacy_unit
    worst = read_worst_case(mechanism, unit, request.delta, request.selection)
    return AuditHeader(
        release_id=request.release_id,
        release_name=request.release_name,
        created_at=datetime.now(UTC),
        input=request.input,
        input_snapshot=request.input_snapshot,
        output=request.output.described,
        group_columns=[each.name for each in fields],
        key_set_size=summary.groups,
        key_set_digest=summary.key_set_digest,
        key_set_selection=selection_json(request.selection),
        counts_digest=summary.counts_digest,
        mechanism=mechanism.name,
        parameters=parameters_json(mechanism),
        relative_error=request.relative_error,
        floor=mechanism.floor,
        rounding=request.rounding,
        confidence=request.confidence,
        privacy_unit=unit.described,
        records_per_unit=unit.max_records,
        records_per_group=unit.records_per_group,
        neighbouring="add or remove one privacy unit",
        worst_case_rho=worst.rho,
        delta=request.delta,
        epsilon=worst.epsilon,
        attacker_accuracy=worst.attacker_accuracy,
        least_rho_at_noisy_count=summary.least_rho_at_noisy_count,
        greatest_rho_at_noisy_count=summary.greatest_rho_at_noisy_count,
        dataset=request.dataset,
        fixed_release_key=fixed_key,
        versions=versions_json(spark.version),
    )
