"""One release from start to end: check, charge, count and add noise once, store, audit, publish.

What a caller holds afterwards is what was stored. The lazy plan is never handed out, as evaluating
it again after the data has changed would cancel the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist import notebook
from spark_dphist.accounting.ledger import Ledger
from spark_dphist.audit import PublicAudit, pandas_of
from spark_dphist.audit_stage import audit_schema, stage_audit, stored_audit
from spark_dphist.card import card
from spark_dphist.committed import refuse_missing
from spark_dphist.delta_log import append_audit
from spark_dphist.errors import ConfigurationError, ReleaseError, SparkDphistError
from spark_dphist.metadata import metadata
from spark_dphist.optional import needing
from spark_dphist.overview import MOST_IN_NOTEBOOK, shown_groups
from spark_dphist.request import (
    ReleaseRequest,
    check_request,
    declared_groups,
    refuse_existing,
)
from spark_dphist.results.changes import changes
from spark_dphist.results.totals import totals
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.bounding import bound_contributions, unit_field
from spark_dphist.spark.confidential import confidential_frame
from spark_dphist.spark.counts import count_groups
from spark_dphist.spark.executors import check_executors
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of
from spark_dphist.spark.group_key import PUBLISHED_COLUMNS, quoted
from spark_dphist.spark.key_selection import select_keys
from spark_dphist.spark.key_set import LearntKeys
from spark_dphist.spark.noise import add_noise
from spark_dphist.spark.ordering import ordered_by_key, sorted_within
from spark_dphist.spark.storage import normalised_path
from spark_dphist.spark.unlogged import unlogged
from spark_dphist.staged import abort_command, commit_staged, discard_staged, what_remains
from spark_dphist.streams import ReleaseKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Step = Callable[[str], None]


@dataclass(frozen=True)
class Release:
    """A finished release.

    ``counts`` reads what was stored: the group columns, ``noisy_count``, ``lower``, ``upper``;
    ``audit_table`` reads the stored audit of the groups, which ``audit`` holds if there are not
    too many to collect.
    """

    release_id: str
    counts: DataFrame = field(repr=False)
    audit_table: DataFrame = field(repr=False)
    audit: PublicAudit = field(repr=False)

    def to_spark(self) -> DataFrame:
        """Return ``counts``."""
        return self.counts

    def to_pandas(self) -> pd.DataFrame:
        """Return what was released as pandas, integer keys with NULLs kept integers."""
        return pandas_of(self._audited().select(self.counts.columns))

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw released counts with their intervals; of many groups the largest and the smallest.

        Parameters
        ----------
        axes
            Matplotlib's, to draw on; new ones otherwise.

        Raises
        ------
        ConfigurationError
            If matplotlib is not installed.
        """
        with needing("plot()", "plots"):
            from spark_dphist import figures
        header = self.audit.header
        shown = shown_groups(self._audited(), header.group_columns)
        return figures.drawn(
            axes,
            lambda on: figures.draw_counts(on, shown, header.confidence),
            figures.bars_height(shown),
        )

    def total(self, by: Sequence[str] | str = (), *, confidence: float = 0.95) -> pa.Table:
        """Sum the released counts over groups, with valid intervals; see ``results.totals``.

        ``by`` names the group columns to keep: one total of all groups by default.
        """
        audit = PublicAudit(self.audit.header, self._audited())
        return totals(audit, by, confidence=confidence)

    def compared_with(self, earlier: Release, *, confidence: float = 0.95) -> pa.Table:
        """Return how each group changed since an earlier release; see ``results.changes``."""
        both = (PublicAudit(each.audit.header, each._audited()) for each in (earlier, self))
        return changes(*both, confidence=confidence)

    def metadata(self) -> dict[str, Any]:
        """Return what the release is and promises, as JSON values with a published schema."""
        return metadata(self.audit)

    def card(self) -> str:
        """Return a page about the release as Markdown, from its public audit alone."""
        return card(self.audit)

    def _audited(self) -> pa.Table:
        """Return the audit's groups, collected where they were not."""
        if self.audit.groups is not None:
            return self.audit.groups
        return collect_arrow(self.audit_table)

    def _repr_html_(self) -> str:
        header, groups = self.audit.header, self.audit.groups
        # Showing a release starts no job.
        tables, notes = [], ["Too many groups to be collected: read .counts with Spark."]
        if groups is not None:
            shown = shown_groups(groups, header.group_columns, MOST_IN_NOTEBOOK)
            notes = []
            tables = [notebook.counts_table(shown, header.group_columns, header.confidence)]
        title = f"Release {self.release_id}"
        return notebook.card(title, header.facts, tables, warnings=header.cautions, notes=notes)


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
    group of n, and ``worst_case_rho`` of the audit for everyone (docs/mechanisms.md). A learnt key
    set makes that approximate zCDP, and costs all groups alike (docs/key-selection.md).

    The order of reserving, staging, committing and publishing, and what a crash between any two
    of them leaves, is argued in docs/release.md.
    """
    on_step("checking the request")
    fields = check_request(spark, request)
    if key is not None and not key.is_fixed:
        raise ConfigurationError(
            "a release key is only taken from the caller for tests, and then marked in the audit: "
            "make it with ReleaseKey.fixed_for_tests, or leave it out for a fresh one"
        )
    request = _forgetting_learnt_keys(request)
    if ledger is not None and ledger.find(request.release_id) is not None:
        # Refused, unless it is committed; nothing is charged.
        _reserve(ledger, request)
        check_executors(spark)
        return _hand_out(spark, request, fields, ledger, on_step)
    refuse_existing(spark, request, fields)
    check_executors(spark)
    release_key = ReleaseKey.generate() if key is None else key
    size, noisy = _planned(spark, request, fields, release_key)
    if ledger is not None:
        for left in ledger.half_done(_dataset(request)):
            on_step(f"release {left.release_id!r} is half done: running, or dead and still charged")
        on_step("reserving the budget")
        if _reserve(ledger, request):
            # Another run has committed it since the first look.
            return _hand_out(spark, request, fields, ledger, on_step)
    try:
        if request.selection is not None:
            on_step("learning the key set")
            request = _learn_keys(spark, request, fields, release_key)
            size = request.key_set.rows(spark, fields)
            noisy = _noisy_counts(spark, request, fields, release_key, request.file_count(size))
        # How many were learnt is shown once it is committed.
        groups = "the learnt" if request.selection is not None else f"up to {size:,}"
        on_step(f"counting {groups} groups and adding noise")
        with unlogged():
            _stage_counts(spark, request, fields, noisy, request.file_count(size))
        on_step("reading the stored release back and auditing it")
        audit = stage_audit(spark, request, fields, size, fixed_key=release_key.is_fixed)
        for target in request.targets:
            if not target.is_staged(spark):
                raise ReleaseError(f"what was staged beside {target.described!r} has vanished")
    except BaseException as error:
        remaining = discard_staged(spark, request.targets)
        _explain_failure(request, error, remaining, ledger)
        raise
    if ledger is not None:
        on_step("committing to the ledger")
        _commit(spark, request, audit, ledger)
    on_step("publishing")
    _publish(spark, request, committed=ledger is not None)
    return _released(spark, request, fields, audit)


def _reserve(ledger: Ledger, request: ReleaseRequest) -> bool:
    """Charge the release, or return that it is committed already."""
    reservation = ledger.reserve(
        _dataset(request), request.release_id, request.cost(), request.policy()
    )
    return reservation.already_committed


def _dataset(request: ReleaseRequest) -> str:
    if request.dataset is None:
        raise ConfigurationError(
            "a ledger is given, but not which of its data sets the release is charged to: name "
            "it as 'dataset'"
        )
    return request.dataset


def _explain_failure(
    request: ReleaseRequest, error: BaseException, remaining: list[str], ledger: Ledger | None
) -> None:
    """Raise a ``ReleaseError`` in place of an error that may quote a record."""
    if not isinstance(error, Exception):
        return
    charge = (
        " It stays charged; once you are sure that nothing of it was seen, free it with: "
        f"{abort_command(ledger, request.release_id)}. Then choose a new release id."
        if ledger is not None
        else ""
    )
    raise ReleaseError(
        f"release {request.release_id!r} failed ({_reason(error)}). Nothing was published. The "
        f"Spark driver's log has the details; it may show records.{what_remains(remaining)}{charge}"
    ) from None


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SparkDphistError) else condition_of(error)


def _commit(
    spark: SparkSession, request: ReleaseRequest, audit: PublicAudit, ledger: Ledger
) -> None:
    outputs = {
        "counts": request.output.described,
        "audit_groups": request.audit_groups.described,
        "audit_header": request.audit_header.described,
        "key_set_size": audit.header.key_set_size,
        "key_set_digest": audit.header.key_set_digest,
        # Binds the charge to these very numbers: a second draw under the same id is refused.
        "counts_digest": audit.header.counts_digest,
        **({"learnt_keys": request.learnt_keys.described} if request.learnt_keys else {}),
    }
    commit_staged(spark, ledger, "release", request.release_id, request.targets, outputs)


def _hand_out(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    ledger: Ledger,
    on_step: Step,
) -> Release:
    """Return a committed release as it is stored, moving into place what a crash left staged."""
    on_step("handing out the stored release")
    refuse_missing(spark, "release", request.release_id, request.targets)
    request = _with_stored_keys(spark, request, fields)
    recorded = ledger.release(request.release_id).output or {}
    audit = stored_audit(spark, request, fields, recorded.get("counts_digest"))
    _publish(spark, request, committed=True)
    return _released(spark, request, fields, audit)


def _released(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    audit: PublicAudit,
) -> Release:
    if request.delta_log is not None:
        append_audit(normalised_path(request.delta_log), audit)
    return Release(
        request.release_id,
        request.output.read(spark, request.released_schema(fields)),
        request.audit_groups.read(spark, audit_schema(request, fields)),
        audit,
    )


def _publish(spark: SparkSession, request: ReleaseRequest, *, committed: bool) -> None:
    """Move what is staged of audit and counts into place, the counts last."""
    mend = (
        "Mend the place and ask for the same release id again: the rest is published as it stands."
        if committed
        else "Move it by hand."
    )
    published: list[str] = []
    for target in request.targets:
        try:
            if target.is_staged(spark):
                target.publish(spark)
        except Exception as error:
            raise ReleaseError(
                f"release {request.release_id!r} is complete, but could not be moved to "
                f"{target.described!r}: {_reason(error)} Published so far: "
                f"{', '.join(published) or 'nothing'}. What is missing stands beside its place, "
                f"under a name with 'staging' and the release id. {mend}"
            ) from None
        published.append(target.described)


def _forgetting_learnt_keys(request: ReleaseRequest) -> ReleaseRequest:
    """Return the request without the groups that another release has learnt."""
    if request.selection is None:
        return request
    return replace(request, key_set=LearntKeys(request.selection))


def _learn_keys(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    key: ReleaseKey,
) -> ReleaseRequest:
    """Draw the key set once, stage it, and return the request with what was stored."""
    if request.learnt_keys is not None:
        with unlogged():
            selected = _selected_keys(request, fields, key)
            request.learnt_keys.stage(ordered_by_key(selected, fields, request.files or 1))
    return _with_stored_keys(spark, request, fields)


def _selected_keys(
    request: ReleaseRequest, fields: Sequence[T.StructField], key: ReleaseKey
) -> DataFrame:
    assert request.selection is not None  # noqa: S101 - callers have looked
    identifier = unit_field(request.records.schema, request.privacy_unit, request.input)
    return select_keys(request.records, fields, identifier, request.selection, key)


def _with_stored_keys(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField]
) -> ReleaseRequest:
    if request.selection is None or request.learnt_keys is None:
        return request
    schema = T.StructType([T.StructField(each.name, each.dataType, True) for each in fields])
    stored = request.learnt_keys.read_current(spark, schema)
    return replace(request, key_set=LearntKeys(request.selection, stored))


def _planned(
    spark: SparkSession, request: ReleaseRequest, fields: Sequence[T.StructField], key: ReleaseKey
) -> tuple[int, DataFrame]:
    """Count the declared groups, public ones, while Spark plans the release."""
    expected = request.file_count(declared=0)
    with ThreadPoolExecutor(max_workers=1) as background:
        counting = background.submit(declared_groups, spark, request, fields)
        noisy = _noisy_counts(spark, request, fields, key, expected)
        size = counting.result()
    if request.file_count(size) != expected:
        noisy = _noisy_counts(spark, request, fields, key, request.file_count(size))
    return size, noisy


def _noisy_counts(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    key: ReleaseKey,
    files: int,
) -> DataFrame:
    """Plan the release; what Spark cannot plan is refused before anything is charged or read."""
    records, unit = request.records, request.privacy_unit
    try:
        with unlogged():
            identifier = unit_field(records.schema, unit, request.input)
            if identifier is not None:
                records = bound_contributions(records, fields, unit, identifier, key)
            noisy = add_noise(
                count_groups(records, request.key_set.to_spark(spark, fields), fields, files),
                fields,
                request.mechanism,
                key,
                rounding=request.rounding,
                confidence=request.confidence,
                keep_true_count=request.confidential_audit is not None,
            )
            # On Connect a plan is analysed when its schema is asked for.
            _ = noisy.schema
            if request.selection is not None:
                _ = _selected_keys(request, fields, key).schema
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"Spark cannot count {request.input} by {', '.join(map(repr, request.columns))} "
            f"({condition_of(error)}). Check the names of the columns, which Spark compares "
            "without regard to case."
        ) from None
    return noisy


def _stage_counts(
    spark: SparkSession,
    request: ReleaseRequest,
    fields: Sequence[T.StructField],
    noisy: DataFrame,
    files: int,
) -> None:
    columns = [quoted(each.name) for each in fields]
    if request.confidential_audit is None:
        request.output.stage(sorted_within(noisy.select(*columns, *PUBLISHED_COLUMNS), fields))
        return
    # One evaluation only: the public output is taken from what the confidential audit stored.
    records = request.privacy_unit.records_per_group
    secret = confidential_frame(noisy, fields, request.mechanism, records)
    request.confidential_audit.stage(sorted_within(secret, fields))
    published = request.confidential_audit.read_staged(spark)
    request.output.stage(
        ordered_by_key(published.select(*columns, *PUBLISHED_COLUMNS), fields, files)
    )
