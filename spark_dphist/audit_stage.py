"""Write a release's public audit from what was stored, and check what was stored against it.

Up to ``max_collected_groups`` groups the driver collects the released rows and writes the audit
itself; beyond, Spark writes it and the driver collects a summary of a few thousand rows. The
numbers are computed by the same functions on both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.audit import (
    AUDIT_COLUMNS,
    AuditHeader,
    AuditSummary,
    PublicAudit,
    as_digests,
    audit_columns,
    audit_groups,
    combined_digest,
    parameters_json,
    row_bytes,
    selection_json,
    summarise,
    versions_json,
)
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.mechanisms import Mechanism
from spark_dphist.request import FULL_FORMATS, ReleaseRequest
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, RESERVED_PREFIX, group_digest, quoted
from spark_dphist.spark.ordering import ordered_by_key

# What the JVM of a driver with Spark's default of 1 GB hands over in one piece.
_COLLECTED_AT_ONCE = 1_000_000
_GROUP = RESERVED_PREFIX + "group"
_ROW = RESERVED_PREFIX + "row"
_PAIRS = RESERVED_PREFIX + "pairs"
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
        numbers = [groups[name].to_numpy() for name in PUBLISHED_COLUMNS]
        summary = summarise(collected[_GROUP], *numbers, rho=groups[AUDIT_COLUMNS[0]].to_numpy())
        request.audit_groups.stage_arrow(spark, groups)
    else:
        audited = _with_audit_columns(stored, mechanism, records)
        request.audit_groups.stage(ordered_by_key(audited, fields, request.file_count(size)))
        summary = summarised_by_spark(request.audit_groups.read_staged(spark), fields)
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
    header = AuditHeader.from_arrow(collect_arrow(request.audit_header.read_current(spark)))
    if header.release_id != request.release_id or header.counts_digest != committed_digest:
        raise ReleaseError(
            f"release {request.release_id!r} is committed in the ledger, but what stands at "
            f"{request.audit_header.described!r} is not it (it says {header.release_id!r}): it was "
            "replaced. Restore it from a backup: making it again would spend the budget again."
        )
    declared = summarised_by_spark(request.key_set.to_spark(spark, fields).distinct(), fields)
    if declared.key_set_digest != header.key_set_digest:
        raise ConfigurationError(
            f"release {request.release_id!r} was made for another key set, of "
            f"{header.key_set_size} groups. Choose a new release id: it is a new release and is "
            "charged anew."
        )
    counts = summarised_by_spark(
        request.output.read_current(spark, request.released_schema(fields)), fields
    )
    if counts.counts_digest != header.counts_digest:
        raise ReleaseError(
            f"the counts at {request.output.described!r} are not the ones that release "
            f"{request.release_id!r} was audited with: they were changed or replaced since. "
            "Restore them from a backup: making them again would spend the budget again."
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


def _row_bytes(*columns: Column | str) -> Column:
    def pack(
        group: pd.Series[Any],
        noisy_count: pd.Series[Any],
        lower: pd.Series[Any],
        upper: pd.Series[Any],
    ) -> pd.Series[Any]:
        rows = row_bytes(
            as_digests(b"".join(group)), *(each.to_numpy() for each in (noisy_count, lower, upper))
        )
        return pd.Series([row.tobytes() for row in rows])

    pack.__annotations__ = dict.fromkeys(
        ("group", "noisy_count", "lower", "upper", "return"), pd.Series
    )
    return pandas_udf(pack, T.BinaryType())(*columns)  # type: ignore[call-overload,no-any-return]


def summarised_by_spark(frame: DataFrame, fields: Sequence[T.StructField]) -> AuditSummary:
    """Do what ``summarise`` does without collecting rows; what the frame lacks stays out."""
    rho = F.col(AUDIT_COLUMNS[0]) if AUDIT_COLUMNS[0] in frame.columns else F.lit(0.0)
    group, counted = group_digest(fields), PUBLISHED_COLUMNS[0] in frame.columns
    row = _row_bytes(group, *PUBLISHED_COLUMNS) if counted else group
    pair = F.struct(F.hex(_GROUP).alias("group"), F.hex(_ROW).alias("row"))
    buckets = (
        frame.select("*", group.alias(_GROUP), row.alias(_ROW))
        .groupBy(F.substring(F.hex(_GROUP), 1, 3).alias("bucket"))
        .agg(
            F.sort_array(F.collect_list(pair)).alias(_PAIRS),
            F.min(rho).alias("least"),
            F.max(rho).alias("greatest"),
        )
        .select(
            "bucket",
            "least",
            "greatest",
            F.size(_PAIRS).cast("bigint").alias("rows"),
            F.size(F.array_distinct(f"{_PAIRS}.group")).cast("bigint").alias("groups"),
            *[
                F.unhex(F.sha2(F.unhex(F.array_join(f"{_PAIRS}.{name}", "")), 256)).alias(name)
                for name in ("group", "row")
            ],
        )
    )
    rows = collect_arrow(buckets).sort_by("bucket").to_pylist()
    return AuditSummary(
        rows=sum(row["rows"] for row in rows),
        groups=sum(row["groups"] for row in rows),
        key_set_digest=combined_digest(row["group"] for row in rows),
        counts_digest=combined_digest(row["row"] for row in rows),
        least_rho_at_noisy_count=min((row["least"] for row in rows), default=0.0),
        greatest_rho_at_noisy_count=max((row["greatest"] for row in rows), default=0.0),
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
