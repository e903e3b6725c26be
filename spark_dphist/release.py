"""One release from start to end: check, charge, count and add noise once, store, audit, publish.

What a caller holds afterwards is what was stored. The lazy plan is never handed out, as evaluating
it again after the data has changed would cancel the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.accounting.ledger import Ledger, State
from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.audit import (
    AuditHeader,
    PublicAudit,
    audit_groups,
    key_set_digest,
    parameters_json,
    versions_json,
)
from spark_dphist.errors import ConfigurationError, ReleaseError, SparkDphistError
from spark_dphist.request import ReleaseRequest, check_request, refuse_existing
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.bounding import bound_contributions, unit_field
from spark_dphist.spark.confidential import confidential_frame
from spark_dphist.spark.counts import count_groups
from spark_dphist.spark.failures import condition_of
from spark_dphist.spark.group_key import (
    PUBLISHED_COLUMNS,
    RESERVED_PREFIX,
    group_digest,
    quoted,
)
from spark_dphist.spark.noise import add_noise
from spark_dphist.spark.unlogged import unlogged
from spark_dphist.streams import ReleaseKey

Step = Callable[[str], None]

_DIGEST = RESERVED_PREFIX + "digest"


@dataclass(frozen=True)
class Release:
    """A finished release.

    ``counts`` reads what was stored: the group columns, ``noisy_count``, ``lower``, ``upper``.
    """

    release_id: str
    counts: DataFrame = field(repr=False)
    audit: PublicAudit = field(repr=False)


def run_release(
    spark: SparkSession,
    request: ReleaseRequest,
    *,
    ledger: Ledger | None = None,
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
    ledger
        Charged before anything confidential is read. Asking again for a release that it has as
        committed returns the stored one and reads no data.
    key
        For tests and reproductions only (``ReleaseKey.fixed_for_tests``); a fresh key otherwise.
    on_step
        Called with a sentence before each step.

    Raises
    ------
    ConfigurationError
        If the request is refused; no job has run on the data, nothing is charged.
    BudgetError
        If the ledger does not allow the release; nothing has been read.
    ReleaseError
        If a step failed; the message says what was published and what stays charged.

    Notes
    -----
    Privacy Guarantee: the published tables satisfy group-wise zCDP under adding or removing one
    privacy unit, with the budget ``mechanism.budget(n, records_per_group)`` for the members of a
    group of n, and ``worst_case_rho`` of the audit for everyone (docs/mechanisms.md).

    The order of reserving, staging, committing and publishing, and what a crash between any two
    of them leaves, is argued in docs/ledger.md.
    """
    on_step("checking the request")
    fields = check_request(spark, request)
    if ledger is not None and _is_committed(ledger, request):
        ledger.reserve(_dataset(request), request.release_id, request.cost(), request.policy())
        on_step("handing out the stored release")
        return _stored(spark, request)
    refuse_existing(spark, request)
    size = request.key_set.size(spark, fields)
    if ledger is not None:
        on_step("reserving the budget")
        ledger.reserve(_dataset(request), request.release_id, request.cost(), request.policy())
    release_key = ReleaseKey.generate() if key is None else key
    try:
        on_step(f"counting {size:,} groups and adding noise")
        with unlogged():
            _stage_counts(spark, request, fields, release_key)
        on_step("reading the stored release back and auditing it")
        audit = _stage_audit(spark, request, fields, size, fixed_key=release_key.is_fixed)
    except BaseException as error:
        for target in request.targets:
            target.discard(spark)
        _explain_failure(request, error, charged=ledger is not None)
        raise
    if ledger is not None:
        on_step("committing to the ledger")
        ledger.commit(request.release_id, _outputs(request, audit))
    on_step("publishing")
    _publish(spark, request)
    return Release(request.release_id, request.output.read(spark), audit)


def _explain_failure(request: ReleaseRequest, error: BaseException, *, charged: bool) -> None:
    """Raise a ``ReleaseError`` in place of an error that may quote a record."""
    if not isinstance(error, Exception):
        return
    reason = str(error) if isinstance(error, SparkDphistError) else condition_of(error)
    charge = (
        " It stays charged; once you are sure that nothing of it was seen, free it with: "
        f"spark-dphist ledger abort {request.release_id} --nothing-was-published"
        if charged
        else ""
    )
    raise ReleaseError(
        f"release {request.release_id!r} failed ({reason}). Nothing was published. The Spark "
        f"driver's log has the details; it may show records.{charge}"
    ) from None


def _dataset(request: ReleaseRequest) -> str:
    if request.dataset is None:
        raise ConfigurationError(
            "a ledger is given, but not which of its data sets the release is charged to: name "
            "it as 'dataset'"
        )
    return request.dataset


def _is_committed(ledger: Ledger, request: ReleaseRequest) -> bool:
    held = ledger.find(request.release_id)
    return held is not None and held.state is State.COMMITTED


def _outputs(request: ReleaseRequest, audit: PublicAudit) -> dict[str, object]:
    return {
        "counts": request.output.described,
        "audit_groups": request.audit_groups.described,
        "audit_header": request.audit_header.described,
        "key_set_digest": audit.header.key_set_digest,
        "key_set_size": audit.header.key_set_size,
    }


def _stored(spark: SparkSession, request: ReleaseRequest) -> Release:
    """Return a committed release as it is stored, moving into place what a crash left staged."""
    for target in request.targets:
        if target.is_staged(spark):
            target.publish(spark)
        elif not target.exists(spark):
            raise ReleaseError(
                f"release {request.release_id!r} is committed in the ledger, but nothing is at "
                f"{target.described!r} nor staged beside it. Restore it from a backup: making it "
                "again would spend the budget again."
            )
    audit = PublicAudit(
        AuditHeader.from_arrow(collect_arrow(request.audit_header.read(spark))),
        collect_arrow(request.audit_groups.read(spark)),
    )
    return Release(request.release_id, request.output.read(spark), audit)


def _publish(spark: SparkSession, request: ReleaseRequest) -> None:
    """Move audit and counts into place, the counts last."""
    published: list[str] = []
    for target in request.targets:
        try:
            target.publish(spark)
        except Exception as error:
            reason = str(error) if isinstance(error, SparkDphistError) else condition_of(error)
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
    records, unit = request.records, request.privacy_unit
    identifier = unit_field(records.schema, unit, request.input)
    if identifier is not None:
        records = bound_contributions(records, fields, unit, identifier, key)
    counts = count_groups(records, request.key_set.to_spark(spark, fields), fields)
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
        secret = confidential_frame(noisy, fields, request.mechanism, unit.records_per_group)
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
    mechanism, unit = request.mechanism, request.privacy_unit
    worst = read_worst_case(mechanism, unit, request.delta)
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
        privacy_unit=unit.described,
        records_per_unit=unit.max_records,
        records_per_group=unit.records_per_group,
        neighbouring="add or remove one privacy unit",
        worst_case_rho=worst.rho,
        delta=request.delta,
        epsilon=worst.epsilon,
        attacker_accuracy=worst.attacker_accuracy,
        dataset=request.dataset,
        fixed_release_key=fixed_key,
        versions=versions_json(spark.version),
    )
    audit = PublicAudit(header, audit_groups(released, mechanism, unit.records_per_group))
    for table, target in (
        (audit.groups, request.audit_groups),
        (header.to_arrow(), request.audit_header),
    ):
        target.stage_arrow(spark, table)
    return audit
