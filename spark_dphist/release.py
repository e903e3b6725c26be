"""One release from start to end: check, count and add noise once, store, read back, audit, publish.

What a caller holds afterwards is what was stored. The lazy plan is never handed out, as evaluating
it again after the data has changed would cancel the noise.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.audit import (
    AuditHeader,
    PublicAudit,
    audit_groups,
    key_set_digest,
    parameters_json,
    promise_of,
    versions_json,
)
from spark_dphist.errors import ConfigurationError, ReleaseError, SparkDphistError
from spark_dphist.mechanisms import Mechanism, Rounding
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.confidential import confidential_frame
from spark_dphist.spark.counts import count_groups
from spark_dphist.spark.group_key import (
    PUBLISHED_COLUMNS,
    RESERVED_PREFIX,
    group_digest,
    key_fields,
    quoted,
)
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.noise import add_noise
from spark_dphist.spark.storage import PathTarget, TableTarget, lies_within
from spark_dphist.streams import ReleaseKey

Step = Callable[[str], None]
OutputTarget = PathTarget | TableTarget

_DIGEST = RESERVED_PREFIX + "digest"


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
    privacy_unit: str = "record"
    records_per_unit: int = 1

    @property
    def targets(self) -> list[OutputTarget]:
        """All places that are written, in the order in which they are published."""
        confidential = [self.confidential_audit] if self.confidential_audit else []
        return [*confidential, self.audit_groups, self.audit_header, self.output]


@dataclass(frozen=True)
class Release:
    """A finished release.

    ``counts`` reads what was stored: the group columns, ``noisy_count``, ``lower``, ``upper``.
    """

    release_id: str
    counts: DataFrame = field(repr=False)
    audit: PublicAudit = field(repr=False)


def check_request(spark: SparkSession, request: ReleaseRequest) -> list[T.StructField]:
    """Check all that can be known before a job runs, and return the group columns' fields.

    Raises
    ------
    ConfigurationError
        With what was got, what was expected and the mend.
    """
    try:
        schema = request.records.schema
    except PySparkException as error:
        raise ConfigurationError(
            f"the input {request.input} cannot be read ({_condition(error)}). Check the path or "
            "table, its format and your permissions."
        ) from None
    fields = key_fields(schema, request.columns, f"the input {request.input}")
    request.key_set.to_spark(spark, fields)
    _check_places(request)
    for target in request.targets:
        target.refuse_existing(spark)
    return fields


def _check_places(request: ReleaseRequest) -> None:
    public = {
        "output": request.output,
        "audit": request.audit_groups,
        "audit header": request.audit_header,
    }
    paths = {name: place.path for name, place in public.items() if isinstance(place, PathTarget)}
    names = [place.described for place in request.targets]
    if len(set(names)) < len(names):
        raise ConfigurationError("output, audit and confidential audit must be different places")
    if request.input_path is not None:
        for name, path in paths.items():
            if lies_within(path, request.input_path) or lies_within(request.input_path, path):
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


def run_release(
    spark: SparkSession,
    request: ReleaseRequest,
    *,
    key: ReleaseKey | None = None,
    on_step: Step = lambda _: None,
) -> Release:
    """Make a release and publish it with its audit.

    Parameters
    ----------
    spark
        A classic or Connect session.
    request
        What to release.
    key
        For tests and reproductions only (``ReleaseKey.fixed_for_tests``); a fresh key otherwise.
    on_step
        Called with a sentence before each step.

    Raises
    ------
    ConfigurationError
        If the request is refused; no job has run.
    ReleaseError
        If a step failed; nothing was published and nothing half-written was left behind.

    Notes
    -----
    Privacy Guarantee: the published tables satisfy group-wise zCDP under adding or removing one
    record, with the budget ``mechanism.budget(n)`` for the members of a group of n records, and
    ``worst_case_rho`` of the audit for everyone (docs/mechanisms.md).
    """
    on_step("checking the request")
    fields = check_request(spark, request)
    release_key = ReleaseKey.generate() if key is None else key
    size = request.key_set.size(spark, fields)
    try:
        on_step(f"counting {size:,} groups and adding noise")
        _stage_counts(spark, request, fields, release_key)
        on_step("reading the stored release back and auditing it")
        audit = _stage_audit(spark, request, fields, size, fixed_key=release_key.is_fixed)
    except BaseException as error:
        for target in request.targets:
            target.discard(spark)
        if isinstance(error, SparkDphistError) or not isinstance(error, Exception):
            raise
        # The cause may quote a record, so it is named but not shown.
        raise ReleaseError(
            f"release {request.release_id!r} failed ({_condition(error)}). Nothing was published. "
            "The Spark driver's log has the details; it may show records."
        ) from None
    on_step("publishing")
    _publish(spark, request)
    return Release(request.release_id, request.output.read(spark), audit)


def _publish(spark: SparkSession, request: ReleaseRequest) -> None:
    """Move audit and counts into place, the counts last."""
    published: list[str] = []
    for target in request.targets:
        try:
            target.publish(spark)
        except Exception as error:
            reason = str(error) if isinstance(error, SparkDphistError) else _condition(error)
            raise ReleaseError(
                f"release {request.release_id!r} is complete, but could not be moved to "
                f"{target.described!r}: {reason}. Published so far: "
                f"{', '.join(published) or 'nothing'}. What is missing stands beside its place, "
                "under a name with 'staging' and the release id; move it by hand."
            ) from None
        published.append(target.described)


def _stage_counts(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    key: ReleaseKey,
) -> None:
    counts = count_groups(request.records, request.key_set.to_spark(spark, fields), fields)
    keeps_truth = request.confidential_audit is not None
    noisy = add_noise(
        counts,
        fields,
        request.mechanism,
        key,
        rounding=request.rounding,
        confidence=request.confidence,
        keep_true_count=keeps_truth,
    )
    if request.confidential_audit is not None:
        # One evaluation only: the public output is taken from what the confidential audit stored.
        secret = confidential_frame(noisy, fields, request.mechanism, request.records_per_unit)
        request.confidential_audit.stage(secret)
        noisy = request.confidential_audit.read_staged(spark)
    columns = [quoted(each.name) for each in fields]
    published = noisy.select(*columns, *PUBLISHED_COLUMNS)
    request.output.stage(_ordered(published, columns, request.files))


def _ordered(frame: DataFrame, columns: Sequence[Column], files: int) -> DataFrame:
    """Order by key in a fixed number of partitions, which depends on the key set alone."""
    split = frame.repartition(1) if files == 1 else frame.repartitionByRange(files, *columns)
    return split.sortWithinPartitions(*columns)


def _stage_audit(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    size: int,
    *,
    fixed_key: bool,
) -> PublicAudit:
    stored = request.output.read_staged(spark)
    collected = collect_arrow(stored.select("*", group_digest(fields).alias(_DIGEST)))
    digest = key_set_digest(collected[_DIGEST], size)
    released = collected.drop_columns([_DIGEST])
    mechanism, k = request.mechanism, request.records_per_unit
    rho, epsilon, accuracy = promise_of(mechanism, k, request.delta)
    header = AuditHeader(
        release_id=request.release_id,
        release_name=request.release_name,
        created_at=datetime.now(UTC),
        input=request.input,
        output=request.output.described,
        group_columns=[each.name for each in fields],
        key_set_size=size,
        key_set_digest=digest,
        mechanism=mechanism.name,
        parameters=parameters_json(mechanism),
        relative_error=request.relative_error,
        floor=mechanism.floor,
        rounding=request.rounding,
        confidence=request.confidence,
        privacy_unit=request.privacy_unit,
        records_per_unit=k,
        neighbouring="add or remove one privacy unit",
        worst_case_rho=rho,
        delta=request.delta,
        epsilon=epsilon,
        attacker_accuracy=accuracy,
        fixed_release_key=fixed_key,
        versions=versions_json(spark.version),
    )
    audit = PublicAudit(header, audit_groups(released, mechanism, k))
    for table, target in (
        (audit.groups, request.audit_groups),
        (header.to_arrow(), request.audit_header),
    ):
        target.stage_arrow(spark, table)
    return audit


def _condition(error: BaseException) -> str:
    """Name a Spark error without its message, which may quote data."""
    condition = None
    if isinstance(error, PySparkException):
        get_condition = getattr(error, "getCondition", error.getErrorClass)
        condition = get_condition()
    return condition or type(error).__name__
