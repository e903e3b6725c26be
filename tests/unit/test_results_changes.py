"""Two releases compared group by group: differences and ratios around the true ones."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from released_counts import released_audit

from spark_dphist.audit import PublicAudit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import LinearLog, ShiftedLog
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.results.changes import CHANGE_COLUMNS, changes

NAMES = ["shifted_log", "linear_log", "fixed_gaussian", "fixed_laplace"]
FIRST = ShiftedLog.calibrate(relative_error=0.1, floor=50)
SECOND = LinearLog.calibrate(relative_error=0.1, floor=50)
KEYS = {"city": ["Oslo", None, "Rome"], "month": pa.array([1, 2, None], pa.int32())}


def audits(first=FIRST, second=SECOND, before=(100, 0, 5000), after=(180, 4, 5000), **changed):
    one = released_audit(first, KEYS, before, "january", **changed)
    order = [2, 0, 1]
    keys = {name: pa.array(values).take(order) for name, values in KEYS.items()}
    return one, released_audit(second, keys, np.array(after)[order], "february", **changed)


def by_city(table):
    return {row["city"]: row for row in table.to_pylist()}


def test_groups_are_matched_by_key_and_compared_second_with_first():
    first, second = audits()
    rows = by_city(changes(first, second))
    before = {row["city"]: row["noisy_count"] for row in first.groups.to_pylist()}
    after = {row["city"]: row["noisy_count"] for row in second.groups.to_pylist()}
    assert list(rows["Oslo"]) == ["city", "month", *CHANGE_COLUMNS]
    for city, row in rows.items():
        assert (row["noisy_count_first"], row["noisy_count_second"]) == (before[city], after[city])
        assert row["difference"] == after[city] - before[city]
        assert row["difference_lower"] <= row["difference"] <= row["difference_upper"]
    assert rows["Oslo"]["ratio"] == pytest.approx(after["Oslo"] / before["Oslo"])
    assert rows["Oslo"]["ratio_lower"] < 1.8 < rows["Oslo"]["ratio_upper"]


def test_a_ratio_to_nothing_has_no_upper_bound():
    row = by_city(changes(*audits()))[None]
    assert row["ratio_upper"] is None
    assert row["ratio_lower"] >= 0


@pytest.mark.parametrize("name", NAMES)
def test_intervals_hold_the_true_change_about_as_often_as_stated(name):
    # Of 4000 groups at 95 %, fewer than 3700 covered happens with probability below 1e-12.
    mechanism = calibrate(name, relative_error=0.2, floor=20)
    before = np.repeat([0, 15, 30, 2000], 1000)
    after = np.repeat([10, 15, 60, 1500], 1000)
    keys = {"x": np.arange(4000)}
    made = changes(
        released_audit(mechanism, keys, before, "first"),
        released_audit(mechanism, keys, after, "second"),
    )
    low, high = made["difference_lower"].to_numpy(), made["difference_upper"].to_numpy()
    least = made["ratio_lower"].to_numpy()
    most = np.nan_to_num(made["ratio_upper"].to_numpy(zero_copy_only=False), nan=np.inf)
    difference = (low <= after - before) & (after - before <= high)
    true = np.where(before > 0, after / np.maximum(before, 1), np.inf)
    ratio = (least <= true) & (true <= most)
    assert np.sum(difference & ratio) >= 3800


@pytest.mark.parametrize("name", ["shifted_log", "linear_log"])
def test_gaussian_noise_gives_narrower_intervals_than_two_separate_ones(name):
    mechanism = calibrate(name, relative_error=0.1, floor=50)
    keys = {"x": [1]}
    first = released_audit(mechanism, keys, [10_000], "a", rounding="none", confidence=0.95**0.5)
    second = released_audit(mechanism, keys, [10_000], "b", rounding="none", confidence=0.95**0.5)
    (row,) = changes(first, second).to_pylist()
    (one,), (other,) = first.groups.to_pylist(), second.groups.to_pylist()
    separate = (other["upper"] - one["lower"]) - (other["lower"] - one["upper"])
    assert row["difference_upper"] - row["difference_lower"] < 0.85 * separate


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"release_id": "january"}, "'january' is given twice"),
        ({"group_columns": ["month", "city"]}, "differ in group columns"),
        ({"key_set_digest": "00" * 32}, "differ in the key set"),
        ({"privacy_unit": "all records of one 'user'"}, "differ in the privacy unit"),
    ],
)
def test_releases_that_are_not_comparable_are_refused(changed, message):
    first, second = audits()
    other = PublicAudit(dataclasses.replace(second.header, **changed), second.groups)
    with pytest.raises(ConfigurationError, match=message):
        changes(first, other)


def test_two_releases_with_fixed_keys_may_share_their_noise_and_are_refused():
    with pytest.raises(ConfigurationError, match="noise may be the same"):
        changes(*audits(fixed_release_key=True))


def test_groups_that_were_changed_in_storage_are_noticed():
    first, second = audits()
    moved = second.groups.set_column(0, "city", pa.array(["Oslo", None, "Roma"]))
    with pytest.raises(ConfigurationError, match="hold different groups"):
        changes(first, PublicAudit(second.header, moved))
