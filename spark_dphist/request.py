"""What one release is to do, and all that can be checked before a job runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.policy import policy_cost
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Mechanism, Rounding
from spark_dphist.spark.bounding import unit_field
from spark_dphist.spark.failures import condition_of
from spark_dphist.spark.group_key import key_fields
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget, TableTarget, before_pattern, lies_within

OutputTarget = PathTarget | TableTarget

MAX_COLLECTED_GROUPS = 5_000_000
# Formats that do not keep the types of what is written, so that it cannot be checked.
_LOSSY_FORMATS = ("csv", "json", "text", "xml")


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
    columns
        The group columns.
    key_set
        The public groups to publish.
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
        How many files the output has, whatever the data.
    rounding, confidence, delta
        What is published and how budgets are read.
    privacy_unit
        Whom the release protects; each record by default.
    dataset
        The data set that a ledger charges.
    max_collected_groups
        Up to how many groups the driver collects what was released, to write its audit; beyond,
        Spark writes it. docs/audit.md says how much memory that takes.
    """

    records: DataFrame
    input: str
    input_path: str | None = None
    columns: Sequence[str]
    key_set: KeySet
    mechanism: Mechanism
    relative_error: float | None = None
    output: OutputTarget
    audit_groups: OutputTarget
    audit_header: OutputTarget
    confidential_audit: PathTarget | None = None
    files: int = 1
    rounding: Rounding = "nearest"
    confidence: float = 0.95
    delta: float = 1e-6
    release_name: str = "release"
    release_id: str
    privacy_unit: PrivacyUnit = field(default_factory=PrivacyUnit)
    dataset: str | None = None
    max_collected_groups: int = MAX_COLLECTED_GROUPS

    @property
    def targets(self) -> list[OutputTarget]:
        """All places that are written, in the order in which they are published."""
        confidential = [self.confidential_audit] if self.confidential_audit else []
        return [*confidential, self.audit_groups, self.audit_header, self.output]

    def cost(self) -> PolicyCost:
        """Return what a ledger charges, from public policy alone."""
        promise = {"relative_error": self.relative_error, "floor": self.mechanism.floor}
        return policy_cost(self.mechanism, self.privacy_unit, promise)

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
        }


def check_request(spark: SparkSession, request: ReleaseRequest) -> list[T.StructField]:
    """Check schema, key set and places before a job runs, and return the group columns' fields.

    Raises
    ------
    ConfigurationError
        With what was got, what was expected and the mend.
    """
    try:
        schema = request.records.schema
    except PySparkException as error:
        raise ConfigurationError(
            f"the input {request.input} cannot be read ({condition_of(error)}). Check the path or "
            "table, its format and your permissions."
        ) from None
    fields = key_fields(schema, request.columns, f"the input {request.input}")
    unit_field(schema, request.privacy_unit, f"the input {request.input}")
    request.key_set.to_spark(spark, fields)
    _check_places(request)
    return fields


def refuse_existing(spark: SparkSession, request: ReleaseRequest) -> None:
    """Refuse a request whose places are taken; a committed release is handed out before this."""
    for target in request.targets:
        target.refuse_existing(spark)


def _check_places(request: ReleaseRequest) -> None:
    public = {
        "output": request.output,
        "audit": request.audit_groups,
        "audit header": request.audit_header,
    }
    paths = {name: place.path for name, place in public.items() if isinstance(place, PathTarget)}
    if request.output.format.lower() in _LOSSY_FORMATS:
        raise ConfigurationError(
            f"output format {request.output.format!r} does not keep the types of the columns, so "
            "the stored release cannot be checked. Use 'parquet', 'orc', 'delta' or 'iceberg', and "
            "convert what was published."
        )
    names = [place.described for place in request.targets]
    if len(set(names)) < len(names):
        raise ConfigurationError("output, audit and confidential audit must be different places")
    if request.input_path is not None:
        records = before_pattern(request.input_path)
        for name, path in paths.items():
            if lies_within(path, records) or lies_within(records, path):
                raise ConfigurationError(
                    f"{name} path {path!r} and the input {request.input_path!r} lie in one "
                    "another. Put what is published outside the confidential data."
                )
    if request.confidential_audit is not None:
        secret = request.confidential_audit.path
        for name, path in paths.items():
            if lies_within(secret, path) or lies_within(path, secret):
                raise ConfigurationError(
                    f"the confidential audit {secret!r} and the {name} path {path!r} lie in one "
                    "another. Realised budgets give the true counts away: keep them apart, where "
                    "only those can read who may read the data."
                )
