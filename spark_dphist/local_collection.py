"""A collection in the local model: noise each record once, store the reports, estimate the counts.

It takes the steps of a release: check, charge, stage once, read back, commit, publish.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.conversions import pure_attacker_accuracy_upper, pure_to_rho_upper
from spark_dphist.accounting.ledger import Ledger
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.audit import AuditHeader, versions_json
from spark_dphist.committed import committed_header, refuse_changed_counts, refuse_missing
from spark_dphist.errors import ConfigurationError, ReleaseError, SparkDphistError
from spark_dphist.local import LocalResponse, estimate_counts, local_response
from spark_dphist.local.responses import ResponseName
from spark_dphist.spark.arrow_exchange import dataframe_from_arrow
from spark_dphist.spark.bounding import unit_field
from spark_dphist.spark.executors import check_executors
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, key_fields
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.local_reports import (
    REFUSALS,
    REPORT,
    Domain,
    arranged,
    category_of,
    public_domain,
    randomise,
    report_type,
    support_of,
)
from spark_dphist.spark.places import OutputTarget, check_places
from spark_dphist.spark.summary import summarised_by_spark
from spark_dphist.spark.unlogged import unlogged
from spark_dphist.staged import commit_staged, discard_staged, what_remains
from spark_dphist.streams import ReleaseKey

# Whom a ledger's data set must protect to be charged: losses of other units do not add to this.
PRIVACY_UNIT = "report"
MAX_FILES = 10_000


@dataclass(frozen=True, kw_only=True)
class LocalRequest:
    """What one collection is to do; public but for the records themselves.

    Parameters
    ----------
    records
        The table to be noised, one record for each report.
    input
        How the table is called in the audit.
    input_path, input_table
        Where it lies, if it is a path or a table, so that no output is put inside it or over it.
    identifier
        The column that identifies a record.
    columns
        The columns whose values are reported, as one value.
    domain
        The public values: 2 to 10,000 of them.
    response
        ``local_randomised_response``, ``local_symmetric_unary_encoding`` or
        ``local_optimised_unary_encoding``.
    epsilon
        Of each report, in nats.
    outside
        The value of the domain, a tuple, for records whose own value is not in it. None: such a
        record is refused, and with it the collection.
    reports, output, audit_header
        Where reports, estimated counts and the audit's header go.
    files
        How many files the reports have, from 1 to 10,000, whatever the data.
    confidence, delta
        Of the intervals, and at which epsilon is read for the audit; it does not matter here.
    """

    records: DataFrame
    input: str
    input_path: str | None = None
    input_table: str | None = None
    identifier: str
    columns: Sequence[str]
    domain: KeySet
    response: ResponseName
    epsilon: float
    outside: Sequence[Any] | None = None
    reports: OutputTarget
    output: OutputTarget
    audit_header: OutputTarget
    files: int = 1
    release_id: str
    release_name: str = "collection"
    confidence: float = 0.95
    delta: float = 1e-6
    dataset: str | None = None

    @property
    def targets(self) -> list[OutputTarget]:
        """All places that are written, in the order in which they are published."""
        return [self.reports, self.audit_header, self.output]

    def cost(self, response: LocalResponse) -> PolicyCost:
        """Return what a ledger charges: epsilon for the unit ``report``."""
        return PolicyCost.from_pure_epsilon(
            self.epsilon,
            response.response_name,
            response.parameters(),
            privacy_unit=PRIVACY_UNIT,
        )

    def policy(self) -> dict[str, object]:
        """Return the rest of the public policy, for a ledger's record."""
        return {
            "name": self.release_name,
            "input": self.input,
            "identifier": self.identifier,
            "columns": list(self.columns),
            "outside": None if self.outside is None else [str(each) for each in self.outside],
            "reports": self.reports.described,
            "output": self.output.described,
            "audit_header": self.audit_header.described,
            "confidence": self.confidence,
            "delta": self.delta,
        }


@dataclass(frozen=True)
class Collection:
    """A finished collection, as it is stored.

    ``counts`` has the group columns, ``noisy_count`` (the unbiased estimate), ``lower``, ``upper``
    and ``standard_error``; ``reports`` the column ``report``.
    """

    release_id: str
    reports: DataFrame = field(repr=False)
    counts: DataFrame = field(repr=False)
    header: AuditHeader = field(repr=False)


def collect_locally(
    spark: SparkSession,
    request: LocalRequest,
    *,
    ledger: Ledger | None = None,
    key: ReleaseKey | None = None,
) -> Collection:
    """Noise every record for itself, store the reports, and publish the counts they estimate.

    Parameters
    ----------
    spark
        A classic or Connect session, on the side that may see the records.
    request
        What to do.
    ledger
        Charged before a record is read. Its data set must protect the unit ``report``.
    key
        For tests and reproductions only; a fresh key otherwise.

    Raises
    ------
    ConfigurationError
        If the request is refused; nothing has been read or charged.
    BudgetError
        If the ledger does not allow it; nothing has been read.
    ReleaseError
        If a step failed; nothing was published, and what is charged stays charged.

    Notes
    -----
    Privacy Guarantee: each report is epsilon-DP in the local model (docs/local-model.md). That a
    record was there is not hidden.
    """
    if key is not None and not key.is_fixed:
        raise ConfigurationError(
            "a key is only taken from the caller for tests, and then marked in the audit: make it "
            "with ReleaseKey.fixed_for_tests, or leave it out for a fresh one"
        )
    if type(request.files) is not int or not 1 <= request.files <= MAX_FILES:
        raise ConfigurationError(
            f"files must be an integer from 1 to {MAX_FILES:,}, got {request.files!r}"
        )
    called = f"the input {request.input}"
    fields = key_fields(request.records.schema, request.columns, called)
    unit = PrivacyUnit(column=request.identifier)
    identifier = unit_field(request.records.schema, unit, called)
    assert identifier is not None  # noqa: S101 - the unit has a column
    places = {"reports": request.reports, "output": request.output}
    check_places(
        spark,
        {**places, "audit header": request.audit_header},
        None,
        request.input_path,
        request.input_table,
    )
    domain = public_domain(spark, request.domain, fields)
    response = local_response(request.response, epsilon=request.epsilon, categories=domain.size)
    outside = None if request.outside is None else category_of(spark, domain, request.outside)
    if ledger is not None and ledger.find(request.release_id) is not None:
        # Refused, unless it is committed; nothing is charged.
        _reserve(ledger, request, response)
        return _stored(spark, request, response, fields, _committed_digest(ledger, request))
    for target in request.targets:
        target.refuse_existing(spark)
    check_executors(spark)
    own_key = ReleaseKey.generate() if key is None else key
    try:
        with unlogged():
            drawn = randomise(
                spark, request.records, identifier, domain, response, own_key, outside=outside
            )
            reports = arranged(drawn, request.files)
            _ = reports.schema
    except SPARK_ERRORS as error:
        raise ConfigurationError(f"Spark cannot read {called} ({condition_of(error)})") from None
    if ledger is not None and _reserve(ledger, request, response):
        return _stored(spark, request, response, fields, _committed_digest(ledger, request))
    try:
        with unlogged():
            request.reports.stage(reports)
        header = _estimate(spark, request, domain, response, fixed_key=own_key.is_fixed)
    except BaseException as error:
        remaining = discard_staged(spark, request.targets)
        if not isinstance(error, Exception):
            raise
        raise ReleaseError(
            f"collection {request.release_id!r} failed ({_reason(error)}). Nothing was published."
            + what_remains(remaining)
            + (" It stays charged." if ledger is not None else "")
        ) from None
    if ledger is not None:
        outputs = {"counts_digest": header.counts_digest}
        commit_staged(spark, ledger, "collection", request.release_id, request.targets, outputs)
    return _stored(spark, request, response, fields, header.counts_digest)


def _reserve(ledger: Ledger, request: LocalRequest, response: LocalResponse) -> bool:
    if request.dataset is None:
        raise ConfigurationError(
            "a ledger is given, but not which of its data sets the collection is charged to: name "
            "it as 'dataset'"
        )
    reservation = ledger.reserve(
        request.dataset, request.release_id, request.cost(response), request.policy()
    )
    return reservation.already_committed


def _estimate(
    spark: SparkSession,
    request: LocalRequest,
    domain: Domain,
    response: LocalResponse,
    *,
    fixed_key: bool,
) -> AuditHeader:
    """Estimate from the stored reports, and stage counts and header."""
    support, number = support_of(request.reports.read_staged(spark, _schema(response)), response)
    made = estimate_counts(response, support, number, request.confidence)
    values = (made.count, made.lower, made.upper, made.standard_error)
    table: pa.Table = domain.keys
    for name, column in zip((*PUBLISHED_COLUMNS, "standard_error"), values, strict=True):
        table = table.append_column(pa.field(name, pa.float64(), False), pa.array(column))
    request.output.stage(dataframe_from_arrow(spark, table))
    summary = summarised_by_spark(request.output.read_staged(spark), domain.fields)
    summary.check_complete(domain.size)
    rho = float(pure_to_rho_upper(request.epsilon))
    header = AuditHeader(
        release_id=request.release_id,
        release_name=request.release_name,
        created_at=datetime.now(UTC),
        input=request.input,
        input_snapshot=None,
        output=request.output.described,
        group_columns=[each.name for each in domain.fields],
        key_set_size=summary.groups,
        key_set_digest=summary.key_set_digest,
        key_set_selection=None,
        counts_digest=summary.counts_digest,
        mechanism=response.response_name,
        parameters=json.dumps({**response.parameters(), "reports": number}, sort_keys=True),
        relative_error=None,
        # There is no promise on the error: the counts' standard_error says what it is.
        floor=0.0,
        rounding="none",
        confidence=request.confidence,
        privacy_unit=f"local: one report, of one value of {request.identifier!r}",
        records_per_unit=1,
        records_per_group=1,
        neighbouring="local: replace the value of one report",
        worst_case_rho=rho,
        delta=request.delta,
        epsilon=request.epsilon,
        attacker_accuracy=float(pure_attacker_accuracy_upper(request.epsilon)),
        least_rho_at_noisy_count=rho,
        greatest_rho_at_noisy_count=rho,
        dataset=request.dataset,
        fixed_release_key=fixed_key,
        versions=versions_json(spark.version),
    )
    request.audit_header.stage_arrow(spark, header.to_arrow())
    return header


def _committed_digest(ledger: Ledger, request: LocalRequest) -> object:
    return (ledger.release(request.release_id).output or {}).get("counts_digest")


def _stored(
    spark: SparkSession,
    request: LocalRequest,
    response: LocalResponse,
    fields: Sequence[T.StructField],
    committed_digest: object,
) -> Collection:
    """Check that what stands there is the committed collection, publish what is staged, return it.

    Nothing is published unless all of it is this collection's.
    """
    release_id, at = request.release_id, request.audit_header
    refuse_missing(spark, "collection", release_id, request.targets)
    header = committed_header(spark, "collection", release_id, at, committed_digest)
    refuse_changed_counts(spark, "collection", header, request.output, fields)
    for target in request.targets:
        if target.is_staged(spark):
            target.publish(spark)
    reports = request.reports.read(spark, _schema(response))
    return Collection(request.release_id, reports, request.output.read(spark), header)


def _schema(response: LocalResponse) -> T.StructType:
    return T.StructType([T.StructField(REPORT, report_type(response))])


def _reason(error: Exception) -> str:
    if isinstance(error, SparkDphistError):
        return str(error)
    named = (reason for reason in REFUSALS if reason in str(error))
    return next(named, condition_of(error))
