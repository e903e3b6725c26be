"""Several groupings of the same data, adjusted until their totals agree: post-processing alone.

Generalised least squares under linear constraints, as in Hay, Rastogi, Miklau and Suciu (2010),
"Boosting the Accuracy of Differentially Private Histograms Through Consistency", with a weight for
every count. docs/consistency.md has the equations and what the intervals are worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy import sparse
from scipy.sparse.linalg import SuperLU, splu
from scipy.special import ndtri
from scipy.stats import chi2

from spark_dphist.audit import PublicAudit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import (
    Constant,
    FixedGaussian,
    FixedLaplace,
    LinearLog,
    Mechanism,
    ShiftedLog,
)
from spark_dphist.mechanisms.base import FloatArray, check_confidence
from spark_dphist.results.independence import check_independent_noise
from spark_dphist.results.sum_statistics import sum_statistic
from spark_dphist.results.totals import published_intervals, released_groups

# Makes the equations definite where constraints repeat each other; what it leaves is iterated away.
_REGULARISATION = 1e-10
_MOST_ITERATIONS = 20
# Totals agree when their difference is no more than this share of the counts in them.
_AGREEMENT = 1e-11
_COLUMNS_AT_ONCE = 256
# Below, noise alone is no explanation of how far the totals were apart.
_SUSPICIOUS = 1e-6


@dataclass(frozen=True)
class Grouping:
    """Independent noisy counts of disjoint groups that hold all records together.

    Parameters
    ----------
    name
        How the grouping is called in errors.
    keys
        The group columns, one row for each group; without columns for a single total.
    estimate
        Estimates without bias, in counts; shape (groups,).
    variance
        Of their noise, in squared counts; 0 for a count that is known exactly.
    lower, upper
        Bounds of each true count as they were before, in counts.
    """

    name: str
    keys: pa.Table
    estimate: FloatArray
    variance: FloatArray
    lower: FloatArray
    upper: FloatArray

    def __post_init__(self) -> None:
        size = self.estimate.size
        rows = {self.keys.num_rows} if self.columns else {1}
        arrays = (self.estimate, self.variance, self.lower, self.upper)
        if rows != {size} or any(each.shape != (size,) for each in arrays):
            raise ConfigurationError(
                f"grouping {self.name!r} needs one estimate, variance, lower and upper bound for "
                f"each of its {next(iter(rows))} keys, got {[each.shape for each in arrays]}"
            )
        if not (np.all(np.isfinite(self.estimate)) and np.all(np.isfinite(self.variance))):
            raise ConfigurationError(f"grouping {self.name!r} has a number that is not finite")
        if np.any(self.variance < 0):
            raise ConfigurationError(f"grouping {self.name!r} has a variance below 0")

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the group columns."""
        return tuple(self.keys.column_names)


@dataclass(frozen=True)
class Adjusted:
    """A grouping before, and the same counts after; arrays of shape (groups,), in counts."""

    before: Grouping
    estimate: FloatArray
    variance: FloatArray
    lower: FloatArray
    upper: FloatArray

    def to_arrow(self) -> pa.Table:
        """Return keys, ``estimate``, ``lower`` and ``upper`` after, and the same before.

        The columns before are named ``estimate_before``, ``lower_before`` and ``upper_before``.
        """
        table = self.before.keys
        for suffix, each in (("", self), ("_before", self.before)):
            for name in ("estimate", "lower", "upper"):
                column = pa.array(np.asarray(getattr(each, name), dtype=np.float64))
                field = pa.field(name + suffix, pa.float64(), False)
                # A table without columns has no rows to append to.
                has_columns = bool(table.column_names)
                table = (
                    table.append_column(field, column)
                    if has_columns
                    else pa.table([column], schema=pa.schema([field]))
                )
        return table


@dataclass(frozen=True)
class Consistency:
    """Groupings whose totals agree.

    Parameters
    ----------
    groupings
        In the order in which they were given.
    confidence
        Of each interval after, approximately.
    constraints
        How many totals were made to agree.
    disagreement_before, disagreement_after
        The largest difference of two totals that should be equal, in counts.
    p_value
        How likely noise alone puts the totals as far apart as they were, or further; approximate.
    negative
        How many estimates are below 0 after. They are left as they are: clipping them would make
        the totals disagree again.
    notes
        What else makes the result doubtful.
    """

    groupings: tuple[Adjusted, ...]
    confidence: float
    constraints: int
    disagreement_before: float
    disagreement_after: float
    p_value: float
    negative: int
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on what makes the result doubtful."""
        if self.p_value >= _SUSPICIOUS:
            return self.notes
        return (
            *self.notes,
            f"the totals were further apart than noise explains (p = {self.p_value:.1g}): the "
            "groupings may count different records, for example where one key set leaves some out",
        )


def make_consistent(groupings: Sequence[Grouping], *, confidence: float = 0.95) -> Consistency:
    """Adjust counts as little as possible so that all common totals agree.

    For every two groupings and every combination of values of the columns that both have, the sums
    over the rest are equal afterwards; without common columns the grand totals are.

    Parameters
    ----------
    groupings
        Of the same records.
    confidence
        Of the intervals after.

    Raises
    ------
    ConfigurationError
        If there are fewer than two groupings, one has a key twice, their key sets do not fit
        together, or counts that are known exactly contradict each other.

    Notes
    -----
    With y the estimates, V their variances (diagonal) and A x = 0 the constraints, the result is
    x = y - V A' (A V A')^+ A y, which minimises sum (x_i - y_i)^2 / V_i, and its variances are
    those of this linear map at fixed V, the diagonal of V - V A' (A V A')^+ A V: never above V.
    """
    check_confidence(confidence)
    _check(groupings)
    constraints = _constraints(groupings)
    y = np.concatenate([grouping.estimate for grouping in groupings])
    v = np.concatenate([grouping.variance for grouping in groupings])
    size = abs(constraints) @ np.abs(y)
    gap = constraints @ y
    solver = _Solver.of(constraints, v)
    solver.check_known(gap, size)
    x = y
    remaining = gap
    for _ in range(_MOST_ITERATIONS):
        if np.all(np.abs(remaining) <= _AGREEMENT * size):
            break
        x = x - v * (constraints.T @ solver.solve(remaining))
        remaining = constraints @ x
    variance = np.clip(v - v**2 * solver.quadratic(constraints), 0.0, v)
    half_width = float(ndtri(0.5 + confidence / 2)) * np.sqrt(variance)
    lower, upper = np.maximum(x - half_width, 0.0), np.maximum(x + half_width, 0.0)
    ends = np.cumsum([grouping.estimate.size for grouping in groupings])[:-1]
    parts = (np.split(each, ends) for each in (x, variance, lower, upper))
    return Consistency(
        groupings=tuple(
            Adjusted(grouping, *after) for grouping, *after in zip(groupings, *parts, strict=True)
        ),
        confidence=confidence,
        constraints=constraints.shape[0],
        disagreement_before=float(np.max(np.abs(gap), initial=0.0)),
        disagreement_after=float(np.max(np.abs(remaining), initial=0.0)),
        p_value=float(chi2.sf(gap @ solver.solve(gap), max(constraints.shape[0], 1))),
        negative=int(np.sum(x < 0)),
    )


def consistent_releases(audits: Sequence[PublicAudit], *, confidence: float = 0.95) -> Consistency:
    """Adjust releases of one data set until their common totals agree.

    Parameters
    ----------
    audits
        Public audits of the releases, with their groups.
    confidence
        Of the intervals after.

    Raises
    ------
    ConfigurationError
        As ``make_consistent`` and ``released_grouping``; or if the releases are not about the same
        data set, input (with its filter), snapshot and privacy unit, one is given twice, or two
        were made with fixed release keys, as their noise may then be the same.
    """
    headers = [audit.header for audit in audits]
    check_independent_noise(headers)
    for header in headers[1:]:
        for what, one, other in (
            ("the data set", headers[0].dataset, header.dataset),
            # A ledger's data set may be released month by month.
            ("the input", headers[0].input, header.input),
            ("the snapshot of the input", headers[0].input_snapshot, header.input_snapshot),
            ("the privacy unit", headers[0].privacy_unit, header.privacy_unit),
        ):
            if one != other:
                raise ConfigurationError(
                    f"releases {headers[0].release_id!r} and {header.release_id!r} differ in "
                    f"{what} ({one} and {other}), so their totals need not agree"
                )
    notes = []
    if headers and headers[0].records_per_unit > 1:
        notes.append(
            f"each release counts {headers[0].records_per_unit:,} records at most of a unit, of "
            "its own choice: where units have more, the true counts need not agree exactly"
        )
    learnt = [header.release_id for header in headers if header.key_set_selection is not None]
    if learnt:
        notes.append(
            f"the key sets of releases {', '.join(learnt)} were learnt from the data and leave out "
            "small groups, with their records: the true totals need not agree exactly"
        )
    adjusted = make_consistent(
        [released_grouping(audit) for audit in audits], confidence=confidence
    )
    return replace(adjusted, notes=tuple(notes))


def released_grouping(audit: PublicAudit) -> Grouping:
    """Return what a release's public audit says as a grouping.

    Parameters
    ----------
    audit
        With its groups.

    Raises
    ------
    ConfigurationError
        If the audit comes without its groups, the mechanism's counts have no variance, or the
        release counts distinct units, whose counts do not add up to that of the whole.

    Notes
    -----
    The estimates are recomputed from the published upper bounds, which reach below 0 on the
    noise's own scale: released counts are clipped at 0 and may be biased, and many of them would
    pull their total (``spark_dphist.results.sum_statistics``).
    """
    header = audit.header
    if header.records_per_group < header.records_per_unit:
        raise ConfigurationError(
            f"release {header.release_id!r} counts distinct units in each group, and a unit may be "
            "in several: such counts do not add up to the count of the whole, so there is nothing "
            "to make agree. Release counts of records."
        )
    table = released_groups(audit)
    published = published_intervals(header, table)
    statistic = sum_statistic(published.mechanism)
    if statistic is None:
        raise ConfigurationError(
            f"release {header.release_id!r} was made by {header.mechanism!r}, whose counts say "
            "nothing of the data. Leave it out."
        )
    estimate = statistic.estimate(published)
    return Grouping(
        name=header.release_id,
        keys=table.select(header.group_columns),
        estimate=estimate,
        variance=noise_variance(published.mechanism, np.maximum(estimate, 0.0)),
        lower=published.lower,
        upper=published.upper,
    )


def noise_variance(mechanism: Mechanism, count: FloatArray) -> FloatArray:
    """Return the variance, in squared counts, of a mechanism's unbiased estimate at these counts.

    Notes
    -----
    A lognormal e^{σZ - σ²/2} has the variance e^{σ²} - 1. For ``linear_log`` the slope of the
    estimate is at most that of the lognormal above the knee, and the knee below, so its variance is
    at most the one returned, and equal to it far from the knee. The rounding of published bounds is
    left out.
    """
    if isinstance(mechanism, ShiftedLog):
        return np.asarray((count + mechanism.shift) ** 2 * np.expm1(mechanism.sigma**2))
    if isinstance(mechanism, LinearLog):
        below = (mechanism.sigma * mechanism.knee) ** 2
        above = count**2 * np.expm1(mechanism.sigma**2)
        return np.maximum(below, np.where(count > mechanism.knee, above, below))
    if isinstance(mechanism, FixedGaussian):
        return np.full(count.shape, mechanism.scale**2)
    if isinstance(mechanism, FixedLaplace):
        # 2 q / (1 - q)^2, q = exp(-epsilon).
        return np.full(count.shape, 0.5 / np.sinh(mechanism.epsilon / 2) ** 2)
    if isinstance(mechanism, Constant):
        return np.full(count.shape, np.inf)
    raise ConfigurationError(f"the noise of mechanism {mechanism.name!r} has no known variance")


def _check(groupings: Sequence[Grouping]) -> None:
    if len(groupings) < 2:
        raise ConfigurationError(
            f"at least two groupings can be made to agree, got {len(groupings)}"
        )
    for grouping in groupings:
        keys = _tuples(grouping, grouping.columns)
        if len(set(keys)) < len(keys):
            twice, _ = Counter(keys).most_common(1)[0]
            raise ConfigurationError(f"grouping {grouping.name!r} has the key {twice!r} twice")


def _tuples(grouping: Grouping, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    if not columns:
        return [()] * grouping.estimate.size
    return list(zip(*(grouping.keys[name].to_pylist() for name in columns), strict=True))


def _constraints(groupings: Sequence[Grouping]) -> sparse.csr_array:
    """Return A, a row for each pair of totals that must be equal."""
    starts = np.cumsum([0, *(grouping.estimate.size for grouping in groupings)])
    blocks = []
    for i, j, columns in _links(groupings):
        first, second = (_tuples(groupings[each], columns) for each in (i, j))
        rows = {key: row for row, key in enumerate(dict.fromkeys(first))}
        _check_keys(groupings[i], groupings[j], columns, rows, dict.fromkeys(second))
        row = np.array([rows[key] for key in (*first, *second)])
        column = np.concatenate([np.arange(starts[each], starts[each + 1]) for each in (i, j)])
        sign = np.repeat([1.0, -1.0], [len(first), len(second)])
        blocks.append(sparse.coo_array((sign, (row, column)), shape=(len(rows), starts[-1])))
    return sparse.csr_array(sparse.vstack(blocks))


def _links(groupings: Sequence[Grouping]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield pairs of groupings with their common columns, but for what follows from others."""
    pairs = []
    for i, j in combinations(range(len(groupings)), 2):
        common = set(groupings[i].columns) & set(groupings[j].columns)
        columns = tuple(name for name in groupings[i].columns if name in common)
        pairs.append((i, j, columns))
    linked: list[tuple[int, int, frozenset[str]]] = []
    # Agreement on more columns implies that on fewer.
    for i, j, columns in sorted(pairs, key=lambda pair: -len(pair[2])):
        reached, found = {i}, True
        while found:
            steps = [pair for *pair, on in linked if on >= set(columns)]
            new = {end for a, b in steps for end in (a, b) if {a, b} & reached} - reached
            reached, found = reached | new, bool(new)
        if j not in reached:
            linked.append((i, j, frozenset(columns)))
            yield i, j, columns


def _check_keys(
    first: Grouping,
    second: Grouping,
    columns: tuple[str, ...],
    first_keys: dict[tuple[Any, ...], Any],
    second_keys: dict[tuple[Any, ...], Any],
) -> None:
    for one, other, missing in (
        (first, second, [key for key in first_keys if key not in second_keys]),
        (second, first, [key for key in second_keys if key not in first_keys]),
    ):
        if missing:
            shown = ", ".join(f"{n} = {v!r}" for n, v in zip(columns, missing[0], strict=True))
            more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise ConfigurationError(
                f"grouping {one.name!r} has the key {shown}{more}, of which {other.name!r} has no "
                "group: they do not count the same records, so their totals need not agree. "
                "Release both with key sets that fit together."
            )


@dataclass(frozen=True)
class _Solver:
    """Factors of A V A', scaled to a diagonal of 1; rows without noise are left out."""

    scale: FloatArray
    known: npt.NDArray[np.bool_]
    factors: SuperLU | None

    @classmethod
    def of(cls, constraints: sparse.csr_array, variance: FloatArray) -> _Solver:
        weighted = constraints @ sparse.diags_array(variance) @ constraints.T
        diagonal = weighted.diagonal()
        known = diagonal == 0
        scale = np.where(known, 0.0, 1 / np.sqrt(np.where(known, 1.0, diagonal)))
        if known.all():
            return cls(scale, known, None)
        scaled = sparse.diags_array(scale) @ weighted @ sparse.diags_array(scale)
        # A row of zeros gets a 1, so that it stays out of the way.
        added = sparse.diags_array(np.where(known, 1.0, _REGULARISATION))
        return cls(scale, known, splu(sparse.csc_matrix(scaled + added)))

    def check_known(self, gap: FloatArray, size: FloatArray) -> None:
        if np.any(self.known & (np.abs(gap) > _AGREEMENT * size)):
            raise ConfigurationError(
                "counts that are known exactly (variance 0) contradict each other: their totals "
                f"differ by up to {np.max(np.abs(gap[self.known])):g}"
            )

    def solve(self, right: FloatArray) -> FloatArray:
        if self.factors is None:
            return np.zeros_like(right)
        scale = self.scale if right.ndim == 1 else self.scale[:, None]
        return np.asarray(scale * self.factors.solve(scale * right))

    def quadratic(self, constraints: sparse.csr_array) -> FloatArray:
        """Return a' (A V A')^+ a for every column a of A."""
        columns = sparse.csc_array(constraints)
        # Groups that are in the same totals have the same column.
        first: dict[tuple[bytes, bytes], int] = {}
        position = np.empty(columns.shape[1], dtype=np.int64)
        distinct: list[int] = []
        for column, (start, end) in enumerate(
            zip(columns.indptr[:-1], columns.indptr[1:], strict=True)
        ):
            signature = columns.indices[start:end].tobytes(), columns.data[start:end].tobytes()
            if signature not in first:
                first[signature] = len(distinct)
                distinct.append(column)
            position[column] = first[signature]
        values = np.empty(len(distinct))
        for start in range(0, len(distinct), _COLUMNS_AT_ONCE):
            chosen = columns[:, distinct[start : start + _COLUMNS_AT_ONCE]].toarray()
            values[start : start + _COLUMNS_AT_ONCE] = np.sum(chosen * self.solve(chosen), axis=0)
        return values[position]
