"""How much each group changed between two releases, with intervals; post-processing alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import ndtr

from spark_dphist.audit import AuditHeader, PublicAudit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant
from spark_dphist.mechanisms.base import FloatArray, TransformMechanism, check_confidence
from spark_dphist.results.independence import check_independent_noise
from spark_dphist.results.intervals import PublishedIntervals, outwards
from spark_dphist.results.totals import published_intervals, released_groups

CHANGE_COLUMNS = (
    "noisy_count_first",
    "noisy_count_second",
    "difference",
    "difference_lower",
    "difference_upper",
    "ratio",
    "ratio_lower",
    "ratio_upper",
)

# A quarter of the disc is covered by so many corners.
_CORNERS = 64


def changes(first: PublicAudit, second: PublicAudit, *, confidence: float = 0.95) -> pa.Table:
    """Compare two releases of the same groups, group by group: second minus and over first.

    Parameters
    ----------
    first, second
        Public audits with their groups, of one key set; of different data, such as two months, or
        of the same.
    confidence
        Of each group, that its difference and its ratio both lie within their intervals; for
        itself, not of all groups at once.

    Returns
    -------
    pyarrow.Table
        The group columns and ``CHANGE_COLUMNS``: both released counts, their difference (in
        counts) and ratio, and bounds on those of the true counts. ``ratio`` is null where the
        first released count is not above 0, ``ratio_upper`` where the first count may be 0.

    Raises
    ------
    ConfigurationError
        If the releases are not about the same groups, or are one and the same; or if both were
        made with fixed release keys, as their noise may then be the same.

    Notes
    -----
    Costs no budget. Two true counts lie, with the stated probability, in a region that the noisy
    transformed counts give: for Gaussian noise a disc whose radius is a quantile of the Rayleigh
    distribution, otherwise the product of two intervals. The bounds are the extremes over it.
    """
    check_confidence(confidence)
    check_independent_noise([first.header, second.header])
    _check_comparable(first.header, second.header)
    keys = first.header.group_columns
    tables = [_by_key(released_groups(audit), keys) for audit in (first, second)]
    result, other = (table.select(keys) for table in tables)
    if not result.equals(other.cast(result.schema)):
        raise ConfigurationError(
            f"the stored audits of {first.header.release_id!r} and {second.header.release_id!r} "
            "hold different groups, although their headers agree: one of them was changed"
        )
    published = [
        published_intervals(audit.header, table)
        for audit, table in zip((first, second), tables, strict=True)
    ]
    before, after = (table["noisy_count"].to_numpy() for table in tables)
    difference, ratio = _extremes(published[0], published[1], confidence)
    rounded = published[0].rounded and published[1].rounded
    low, high = outwards(*difference, rounded)
    values = (
        before,
        after,
        after - before,
        low,
        high,
        _null_unless(before > 0, after / np.where(before > 0, before, 1)),
        pa.array(ratio[0]),
        _null_unless(np.isfinite(ratio[1]), ratio[1]),
    )
    for name, each in zip(CHANGE_COLUMNS, values, strict=True):
        array = each if isinstance(each, pa.Array) else pa.array(each)
        nullable = name in ("ratio", "ratio_upper")
        result = result.append_column(pa.field(name, array.type, nullable), array)
    return result


def _null_unless(known: npt.NDArray[np.bool_], values: FloatArray) -> pa.Array:
    return pa.array(values, mask=~known)


def _check_comparable(first: AuditHeader, second: AuditHeader) -> None:
    for what, one, other in (
        ("group columns", first.group_columns, second.group_columns),
        ("the key set", first.key_set_digest, second.key_set_digest),
        ("the privacy unit", first.privacy_unit, second.privacy_unit),
    ):
        if one != other:
            raise ConfigurationError(
                f"releases {first.release_id!r} and {second.release_id!r} differ in {what} "
                f"({one} and {other}), so their counts cannot be compared group by group. Compare "
                "releases of one key set, or totals by the columns that they share"
            )


def _by_key(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    return table.sort_by([(key, "ascending") for key in keys]).combine_chunks()


Bounds = tuple[FloatArray, FloatArray]


def _extremes(
    first: PublishedIntervals, second: PublishedIntervals, confidence: float
) -> tuple[Bounds, Bounds]:
    """Return bounds on second - first and on second / first."""
    size = first.upper.shape
    least, greatest = np.full(size, np.inf), np.full(size, -np.inf)
    smallest, largest = np.full(size, np.inf), np.zeros(size)
    # Both functions rise with the second count and fall with the first, so over a box they are
    # extreme at its corners.
    for one, other in _covering_boxes(first, second, confidence):
        first_low, first_high = first.at(one)
        second_low, second_high = second.at(other)
        least = np.minimum(least, second_low - first_high)
        greatest = np.maximum(greatest, second_high - first_low)
        smallest = np.minimum(smallest, _over(second_low, first_high, 0.0))
        largest = np.maximum(largest, _over(second_high, first_low, math.inf))
    return (least, greatest), (smallest, largest)


def _over(numerator: FloatArray, denominator: FloatArray, otherwise: float) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator > 0, numerator / denominator, otherwise)


def _covering_boxes(
    first: PublishedIntervals, second: PublishedIntervals, confidence: float
) -> list[tuple[float, float]]:
    """Return pairs of confidences whose intervals' products cover the region of both counts."""
    mechanisms = (first.mechanism, second.mechanism)
    if not all(isinstance(each, TransformMechanism) for each in mechanisms) or any(
        isinstance(each, Constant) for each in mechanisms
    ):
        # Noise is independent.
        return [(math.sqrt(confidence), math.sqrt(confidence))]
    # P(Z1² + Z2² <= r²) = 1 - e^{-r²/2}; between two angles the disc lies within the box of the
    # cosine of the smaller and the sine of the larger.
    radius = math.sqrt(-2 * math.log1p(-confidence))
    angles = np.linspace(0, math.pi / 2, _CORNERS + 1)
    across, up = radius * np.cos(angles[:-1]), radius * np.sin(angles[1:])
    return [
        (float(2 * ndtr(a) - 1), float(2 * ndtr(b) - 1)) for a, b in zip(across, up, strict=True)
    ]
