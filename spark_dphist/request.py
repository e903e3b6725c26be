"""What one release is to do, and all that can be checked before a job runs."""

from __future__ import annotations

import re
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import get_args

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.policy import policy_cost, read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.delta_log import check_delta_log
from spark_dphist.errors import ConfigurationError
from spark_dphist.key_ranges import MAX_GROUPS
from spark_dphist.mechanisms import Mechanism, Rounding
from spark_dphist.spark.bounding import unit_field
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of, first_sentence_of
from spark_dphist.spark.group_key import key_fields, quoted
from spark_dphist.spark.key_origin import ConfidentialKeySetWarning, origin_warning
from spark_dphist.spark.key_set import KeySet, LearntKeys
from spark_dphist.spark.noise import published_fields
from spark_dphist.spark.places import OutputTarget, check_places
from spark_dphist.spark.storage import PathTarget, TableTarget, normalised_path

_RELEASE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# What a driver with Spark's default of 1 GB holds; docs/audit.md has the measurement.
MAX_COLLECTED_GROUPS = 5_000_000
# A file of this many groups has some megabytes, and is written in about a second.
GROUPS_PER_FILE = 500_000
# Formats that can write every group key; what others cannot write is found out beforehand.
FULL_FORMATS = ("parquet", "orc", "delta", "iceberg")
_TIMESTAMP_FORMAT = "spark.sql.parquet.outputTimestampType"


def new_release_id(name: str) -> str:
    """Return an id that no other release has: the name, the time in UTC and random digits."""
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """Everything that decides about one release; public but for the records themselves.

    Parameters
    ----------
    records
        The confidential table.
    input
        How the table is called in the audit.
    input_path
        Where it lies, if it is a path, so that no output is put inside it.
    input_snapshot
        Which snapshot of it ``records`` reads, if its format keeps any; for the audit.
    columns
        The group columns.
    key_set
        The groups to publish: public ones, or how they are learnt (``KeySet.select``).
    mechanism
        The mechanism, calibrated.
    relative_error
        The promise that the mechanism was calibrated to, for the audit.
    output
        Where the noisy counts go.
    audit_groups, audit_header
        Where the two tables of the public audit go.
    confidential_audit
        Where true counts and realised budgets go, if anywhere.
    files
        How many files the output has, whatever the data; by default one for each
        ``GROUPS_PER_FILE`` declared groups.
    rounding, confidence, delta
        What is published and how budgets are read.
    privacy_unit
        Whom the release protects; each record by default.
    dataset
        The data set that a ledger charges.
    max_collected_groups
        Up to how many groups the driver collects what was released, to write its audit; beyond,
        Spark writes it. docs/audit.md says how much memory that takes.
    max_groups
        More declared groups than that are taken for a mistake.
    delta_log
        A directory of Delta tables to which the audit is appended once it is published.
    """

    records: DataFrame
    input: str
    input_path: str | None = None
    input_table: str | None = None
    input_snapshot: str | None = None
    columns: Sequence[str]
    key_set: KeySet
    mechanism: Mechanism
    relative_error: float | None = None
    output: OutputTarget
    audit_groups: OutputTarget
    audit_header: OutputTarget
    confidential_audit: PathTarget | None = None
    files: int | None = None
    rounding: Rounding = "nearest"
    confidence: float = 0.95
    delta: float = 1e-6
    release_name: str = "release"
    release_id: str
    privacy_unit: PrivacyUnit = field(default_factory=PrivacyUnit)
    dataset: str | None = None
    max_collected_groups: int = MAX_COLLECTED_GROUPS
    max_groups: int = MAX_GROUPS
    delta_log: str | None = None

    @property
    def targets(self) -> list[OutputTarget]:
        """All places that are written, in the order in which they are published."""
        confidential = [self.confidential_audit] if self.confidential_audit else []
        learnt = [self.learnt_keys] if self.learnt_keys else []
        return [*confidential, self.audit_groups, self.audit_header, *learnt, self.output]

    @property
    def selection(self) -> KeySelection | None:
        """How the key set is learnt, if it is."""
        return self.key_set.selection if isinstance(self.key_set, LearntKeys) else None

    @property
    def learnt_keys(self) -> OutputTarget | None:
        """Where a learnt key set is stored and published: beside the counts."""
        return None if self.selection is None else self.output.beside("_key_set")

    def file_count(self, declared: int) -> int:
        """Return how many files the tables of so many declared groups have."""
        return self.files or max(-(-declared // GROUPS_PER_FILE), 1)

    def released_schema(self, fields: Sequence[T.StructField]) -> T.StructType:
        """Return the schema of what is published: the group columns and the numbers."""
        keys = [T.StructField(field.name, field.dataType, True) for field in fields]
        return T.StructType([*keys, *published_fields(self.rounding)])

    def cost(self) -> PolicyCost:
        """Return what a ledger charges, from public policy alone."""
        promise = {"relative_error": self.relative_error, "floor": self.mechanism.floor}
        return policy_cost(self.mechanism, self.privacy_unit, promise, self.selection)

    def policy(self) -> dict[str, object]:
        """Return the rest of the public policy, for a ledger's record."""
        return {
            "name": self.release_name,
            "input": self.input,
            "output": self.output.described,
            "audit_groups": self.audit_groups.described,
            "audit_header": self.audit_header.described,
            "confidential_audit": self.confidential_audit.described
            if self.confidential_audit
            else None,
            "group_columns": list(self.columns),
            "privacy_unit": self.privacy_unit.described,
            "rounding": self.rounding,
            "confidence": self.confidence,
            "delta": self.delta,
            **({"learnt_keys": self.learnt_keys.described} if self.learnt_keys else {}),
        }


def check_request(spark: SparkSession, request: ReleaseRequest) -> list[T.StructField]:
    """Check schema, key set and places before a job runs, and return the group columns' fields.

    Raises
    ------
    ConfigurationError
        With what was got, what was expected and the mend.
    """
    _check_parameters(request)
    try:
        schema = request.records.schema
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"the input {request.input} cannot be read ({condition_of(error)}). Check the path or "
            "table, its format and your permissions."
        ) from None
    if request.records.isStreaming:
        raise ConfigurationError(
            f"the input {request.input} is a stream, and each release is of one state of the data. "
            "Write the stream to a table and release that."
        )
    fields = key_fields(schema, request.columns, f"the input {request.input}")
    _check_cases(spark, schema, request)
    unit_field(schema, request.privacy_unit, f"the input {request.input}")
    request.key_set.to_spark(spark, fields)
    origin = origin_warning(spark, request.key_set, request.records, request.columns)
    if origin is not None:
        warnings.warn(origin, ConfidentialKeySetWarning, stacklevel=3)
    _check_selection(spark, request, fields)
    public: dict[str, OutputTarget] = {
        "output": request.output,
        "audit": request.audit_groups,
        "audit header": request.audit_header,
    }
    if request.delta_log is not None:
        public["log of releases"] = PathTarget(request.delta_log, request.release_id)
        check_delta_log(normalised_path(request.delta_log))
    if request.learnt_keys is not None:
        public["key set"] = request.learnt_keys
    check_places(spark, public, request.confidential_audit, request.input_path, request.input_table)
    return fields


def declared_groups(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField]
) -> int:
    """Return the number of declared groups, duplicates counted; may run a job on the key set.

    Raises
    ------
    ConfigurationError
        If there are none, or more than ``max_groups``.
    """
    size = request.key_set.rows(spark, fields)
    if size > request.max_groups:
        raise ConfigurationError(
            f"the key set has {size:,} groups, more than max_groups = {request.max_groups:,}. "
            "Check that it is the table that was meant, or raise 'max_groups'."
        )
    return size


def refuse_existing(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField]
) -> None:
    """Refuse a request whose places are taken, or whose output format cannot hold its columns.

    A committed release is handed out before this.
    """
    for target in request.targets:
        target.refuse_existing(spark)
    written_for_sure = request.output.format.lower() in ("parquet", "orc")
    if not written_for_sure or isinstance(request.output, TableTarget):
        _rehearse(spark, request, fields)


def _rehearse(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField]
) -> None:
    """Stage and remove an empty table, so that nothing is charged for what cannot be written."""
    # Under a name of its own, so that nothing of another run is in its way or removed with it.
    trial = replace(request.output, release_id=new_release_id("rehearsal"))
    try:
        trial.stage(spark.createDataFrame([], request.released_schema(fields)))
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"the output {request.output.described!r} cannot be written as "
            f"{request.output.format!r}: {first_sentence_of(error)}. Check the name and your "
            "permissions. If the format cannot hold the group columns: use 'parquet', and "
            "convert what was published."
        ) from None
    finally:
        trial.discard(spark)
    if request.output.format.lower() not in FULL_FORMATS:
        _rehearse_keys(spark, request, fields, trial)


def _rehearse_keys(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    trial: OutputTarget,
) -> None:
    """Stage the declared groups with zeros for numbers, and compare the keys that come back.

    Some formats write two keys alike: by default Spark's CSV does so with NULL and empty text.
    """
    names = [quoted(field.name) for field in fields]
    numbers = published_fields(request.rounding)
    zeros = [F.lit(0).cast(field.dataType).alias(field.name) for field in numbers]
    keys = request.key_set.to_spark(spark, fields).select(*names).distinct()
    try:
        trial.stage(keys.select(*names, *zeros))
        kept = trial.read_staged(spark, request.released_schema(fields)).select(*names)
        lost = keys.exceptAll(kept).limit(1).count()
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"the key set cannot be written as {request.output.format!r} ({condition_of(error)}). "
            "Use 'parquet', and convert what was published."
        ) from None
    finally:
        trial.discard(spark)
    if lost:
        raise ConfigurationError(
            f"the format {request.output.format!r} does not keep every group key of this key set: "
            "it writes some of them alike, or changes them. Use 'parquet', and convert what was "
            "published. (Spark's csv keeps NULL and the empty string apart with "
            'output.options.nullValue = "NULL", if no key is that text.)'
        )


def _check_cases(spark: SparkSession, schema: T.StructType, request: ReleaseRequest) -> None:
    """Refuse group columns of whose name the input has another in other letters' case."""
    if str(spark.conf.get("spark.sql.caseSensitive", None)).lower() == "true":
        return
    for column in request.columns:
        alike = [name for name in schema.names if name.lower() == column.lower()]
        if len(alike) > 1:
            raise ConfigurationError(
                f"the input {request.input} has columns named {' and '.join(map(repr, alike))}, "
                "which this session does not tell apart: rename all but one of them, or set "
                "spark.sql.caseSensitive to true"
            )


def _check_selection(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField]
) -> None:
    selection = request.selection
    if selection is None:
        return
    if request.privacy_unit.column is None and selection.groups_per_unit != 1:
        raise ConfigurationError(
            f"groups_per_unit = {selection.groups_per_unit}, but each record is a privacy unit of "
            "its own, and lies in one group: leave it out, or name the column that identifies a "
            "unit"
        )
    read_worst_case(request.mechanism, request.privacy_unit, request.delta, selection)
    if request.output.format.lower() not in FULL_FORMATS:
        raise ConfigurationError(
            f"the output's format is {request.output.format!r}, which may change the keys it "
            "stores. A learnt key set is stored and then looked up in the data, where its groups "
            f"might not be found again. Use one of {', '.join(FULL_FORMATS)}, and convert what was "
            "published."
        )
    shortened = spark.conf.get(_TIMESTAMP_FORMAT, None) == "TIMESTAMP_MILLIS"
    if shortened and any(isinstance(field.dataType, T.TimestampType) for field in fields):
        raise ConfigurationError(
            "this session shortens the timestamps it stores to milliseconds, so a learnt key set "
            f"could not be found again in the data. Unset {_TIMESTAMP_FORMAT}."
        )


def _check_parameters(request: ReleaseRequest) -> None:
    faults = {
        "files": request.files is not None
        and not (isinstance(request.files, int) and 1 <= request.files <= 10_000)
        and "an integer from 1 to 10,000",
        "confidence": not 0 < request.confidence < 1 and "a number between 0 and 1",
        "delta": not 0 < request.delta < 1 and "a number between 0 and 1",
        "rounding": request.rounding not in get_args(Rounding) and "'nearest' or 'none'",
        # It becomes part of the names of files and tables.
        "release_id": not _RELEASE_ID.fullmatch(request.release_id)
        and "letters, digits and ._- (the first no sign), at most 128",
    }
    for name, expected in faults.items():
        if expected:
            raise ConfigurationError(f"{name} must be {expected}, got {getattr(request, name)!r}")
