"""Totals over groups, with intervals that hold for the true totals; post-processing alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import ndtri

from spark_dphist.audit import AuditHeader, PublicAudit
from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.mechanisms import Constant
from spark_dphist.mechanisms.base import FloatArray, check_confidence
from spark_dphist.results.intervals import PublishedIntervals, outwards
from spark_dphist.results.sum_statistics import Chances, SumStatistic, sum_statistic

TOTAL_COLUMNS = ("groups", "noisy_total", "estimate", "lower", "upper")

# Shares of the allowed failures: all noise within bounds, the bound on the sum of squares, and the
# rest in two tails.
_BOX, _SPREAD = 0.1, 0.1
# Up to so many groups, adding the groups' own intervals may give the narrower interval.
_FEW = 64


def totals(
    audit: PublicAudit, by: Sequence[str] | str = (), *, confidence: float = 0.95
) -> pa.Table:
    """Sum released counts over groups, with an interval for each true total.

    Parameters
    ----------
    audit
        The public audit of a release, with its groups.
    by
        Group columns to keep: one total for each combination of their values; none for one total
        of all groups.
    confidence
        Each interval contains its true total with at least this probability; for itself, not all
        at once.

    Returns
    -------
    pyarrow.Table
        The ``by`` columns; ``groups`` (int64, how many were added), ``noisy_total`` (the sum of the
        released counts), ``estimate`` (float64, an estimate without the bias of those, always
        within the interval), ``lower`` and ``upper`` (counts; of the released counts' type).

    Raises
    ------
    ConfigurationError
        If a column of ``by`` is none of the group columns, the confidence is not between 0 and 1,
        or the audit comes without its groups.

    Notes
    -----
    Costs no budget. Noise is independent between groups, so the relative error of a total falls
    with the number of its groups; released counts may be biased, so the sum of many of them can
    lie outside the interval. docs/using-results.md has definition and proof.
    """
    check_confidence(confidence)
    header, table = audit.header, released_groups(audit)
    columns = _checked_columns(by, header)
    published = published_intervals(header, table)
    noisy = table["noisy_count"].to_numpy()
    order, starts, sizes, keys = _grouped(table, columns)
    statistic = sum_statistic(published.mechanism)
    estimate, lower, upper = (np.zeros(sizes.size) for _ in range(3))
    # Totals of equally many groups are computed together, as arrays of shape (totals, groups).
    for size in np.unique(sizes[sizes > 0]):
        now = np.flatnonzero(sizes == size)
        rows = order[starts[now][:, None] + np.arange(size)]
        estimate[now], lower[now], upper[now] = _bounds(
            published.select(rows), noisy[rows], statistic, confidence
        )
    # A key set that was learnt may be empty: the total of no groups is 0 for certain.
    empty = np.zeros(sizes.size, noisy.dtype)
    added = np.add.reduceat(noisy[order], starts) if order.size else empty
    # Of the same type as the counts.
    low, high = outwards(lower, upper, published.rounded)
    for name, values in zip(
        TOTAL_COLUMNS,
        (sizes, added, estimate, low, high),
        strict=True,
    ):
        kind = pa.from_numpy_dtype(values.dtype)
        keys = keys.append_column(pa.field(name, kind, False), pa.array(values))
    return keys.sort_by([(name, "ascending") for name in columns]) if columns else keys


def released_groups(audit: PublicAudit) -> pa.Table:
    """Return the groups of an audit, or refuse one that comes without them."""
    if audit.groups is None:
        raise ConfigurationError(
            f"the audit of release {audit.header.release_id!r} comes without its "
            f"{audit.header.key_set_size:,} groups: read the stored table on a machine that holds "
            "it (spark_dphist.history.read_audit), or raise max_collected_groups"
        )
    return audit.groups.combine_chunks()


def published_intervals(header: AuditHeader, table: pa.Table) -> PublishedIntervals:
    """Return the released intervals with the policy that the header states."""
    return PublishedIntervals(
        mechanism=header.calibrated_mechanism(),
        lower=table["lower"].to_numpy().astype(np.float64),
        upper=table["upper"].to_numpy().astype(np.float64),
        confidence=header.confidence,
        rounded=header.rounding == "nearest",
    )


def _checked_columns(by: Sequence[str] | str, header: AuditHeader) -> list[str]:
    columns = [by] if isinstance(by, str) else list(by)
    for name in columns:
        if name not in header.group_columns:
            raise ConfigurationError(
                f"{name!r} is not a group column of release {header.release_id!r}, so there are no "
                f"totals by it. {did_you_mean(name, header.group_columns)}"
            )
        if columns.count(name) > 1:
            raise ConfigurationError(f"group column {name!r} is named twice in 'by'")
    return columns


def _grouped(
    table: pa.Table, columns: list[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], pa.Table]:
    """Return rows ordered by total, where each total starts, how many rows it has, and its keys."""
    if not columns:
        rows = np.arange(table.num_rows)
        return rows, np.zeros(1, np.int64), np.array([rows.size]), pa.table({"": [0]}).select([])
    position = "__dphist_position"
    numbered = table.select(columns).append_column(position, pa.array(np.arange(table.num_rows)))
    listed = numbered.group_by(columns, use_threads=False).aggregate([(position, "list")])
    lists = listed[f"{position}_list"].combine_chunks()
    sizes = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), dtype=np.int64)
    order = np.asarray(lists.flatten().to_numpy(), dtype=np.int64)
    return order, np.cumsum(sizes) - sizes, sizes, listed.select(columns)


def _bounds(
    published: PublishedIntervals,
    noisy: npt.NDArray[Any],
    statistic: SumStatistic | None,
    confidence: float,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return estimates and bounds for totals over the last axis."""
    groups = noisy.shape[-1]
    if isinstance(published.mechanism, Constant):
        # Its counts say nothing of the data.
        low, high = np.sum(published.lower, axis=-1), np.sum(published.upper, axis=-1)
        return np.sum(noisy, axis=-1, dtype=np.float64), low, high
    together = _sum_of_intervals(published, confidence)
    if statistic is None:
        return np.clip(np.sum(noisy, axis=-1, dtype=np.float64), *together), *together
    estimate, *concentrated = _concentrated(published, statistic, confidence)
    few = groups <= _FEW and _adding_is_narrower(published, groups, statistic, confidence)
    low, high = together if few else concentrated
    return np.clip(estimate, low, high), low, high


def _adding_is_narrower(
    published: PublishedIntervals, groups: int, statistic: SumStatistic, confidence: float
) -> bool:
    """Compare both intervals for groups of ten floors each; from public policy alone.

    Choosing the narrower one for the released counts would choose after the noise is drawn, and
    the interval would no longer keep its probability.
    """
    mechanism = published.mechanism
    count = np.full((1, groups), 10.0 * np.ceil(mechanism.floor))
    low, high = mechanism.interval(mechanism.encode(count), published.confidence)
    lower, upper = (each.astype(np.float64) for each in outwards(low, high, published.rounded))
    typical = PublishedIntervals(mechanism, lower, upper, published.confidence, published.rounded)
    added = _sum_of_intervals(typical, confidence)
    _, *concentrated = _concentrated(typical, statistic, confidence)
    return bool(np.all(added[1] - added[0] <= concentrated[1] - concentrated[0]))


def _sum_of_intervals(
    published: PublishedIntervals, confidence: float
) -> tuple[FloatArray, FloatArray]:
    # Noise is independent: all intervals hold with the product of their probabilities.
    low, high = published.at(confidence ** (1 / published.upper.shape[-1]))
    return np.sum(low, axis=-1), np.sum(high, axis=-1)


def _concentrated(
    published: PublishedIntervals, statistic: SumStatistic, confidence: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    missed = 1 - confidence
    each = (1 - _BOX * missed) ** (1 / published.upper.shape[-1])
    low, high = published.at(each)
    chances = Chances(
        scales=float(ndtri(0.5 + each / 2)),
        tail=(1 - _BOX - _SPREAD) * missed / 2,
        spread=_SPREAD * missed,
    )
    seen = statistic.evidence(published, low, high, chances)
    slack = 1e-9 * (np.abs(seen.estimate) + 1)
    lower = seen.estimate - seen.greatest_bias - seen.above - slack
    upper = seen.estimate - seen.least_bias + seen.below + slack
    lower = np.maximum(lower, np.sum(low, axis=-1))
    upper = np.minimum(upper, np.sum(high, axis=-1))
    return seen.estimate, np.minimum(lower, upper), np.maximum(upper, 0.0)
