"""The public audit follows from public policy and released numbers, with sound brackets."""

import dataclasses
import hashlib
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from example_audit import example_header
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist import __version__
from spark_dphist.audit import (
    AUDIT_COLUMNS,
    BUDGET_COLUMNS,
    AuditHeader,
    PublicAudit,
    audit_groups,
)
from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms import Constant, LinearLog, ShiftedLog, publish
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.streams import GroupStreams, ReleaseKey

MECHANISMS = {
    "linear-log": LinearLog.calibrate(relative_error=0.3, floor=20),
    "minimal": ShiftedLog.calibrate(relative_error=0.3, floor=20),
    "unbiased": ShiftedLog.calibrate(relative_error=0.4, floor=10, drift="unbiased"),
    "strong noise": ShiftedLog(sigma=2.5, shift=1, floor=1),
    "weak noise": ShiftedLog(sigma=1e-3, shift=5, floor=1),
}
# numpy's vectorised logarithms may differ by a unit in the last place between shapes of arrays.
ULPS = 1 + 2.0**-50
COUNTS = np.concatenate([np.arange(200), np.geomspace(200, 1e12, 300).astype(np.int64)])


def released(mechanism, counts=COUNTS, rounding="nearest", key=b"\x01" * 32):
    """A true release of these counts under a fixed key, as a table."""
    digests = np.array(
        [list(hashlib.sha256(str(row).encode()).digest()) for row in range(len(counts))],
        dtype=np.uint8,
    )
    source = GroupStreams(ReleaseKey.fixed_for_tests(key), digests)
    made = publish(mechanism, counts, source, rounding=rounding)
    return pa.table(
        {
            "group": np.arange(len(counts)),
            "noisy_count": made.noisy_count,
            "lower": made.lower,
            "upper": made.upper,
        }
    )


def test_the_header_is_one_row_with_a_type_for_every_field():
    table = example_header().to_arrow()
    assert table.num_rows == 1
    assert table.column_names == [field.name for field in dataclasses.fields(AuditHeader)]
    types = {field.name: field.type for field in table.schema}
    assert types["created_at"] == pa.timestamp("us", "UTC")
    assert types["group_columns"] == pa.list_(pa.string())
    assert types["key_set_size"] == types["records_per_unit"] == pa.int64()
    assert types["fixed_release_key"] == pa.bool_()
    for name in ("worst_case_rho", "epsilon", "delta", "floor", "relative_error", "confidence"):
        assert types[name] == pa.float64()
    optional = {field.name for field in dataclasses.fields(AuditHeader) if "None" in field.type}
    assert {field.name for field in table.schema if field.nullable} == optional
    assert "relative_error" in optional


def test_the_header_keeps_every_value():
    given = example_header()
    row = example_header().to_arrow().to_pylist()[0]
    assert row == dataclasses.asdict(given)
    assert example_header(relative_error=None).to_arrow()["relative_error"].to_pylist() == [None]


def test_parameters_and_versions_are_json():
    row = example_header().to_arrow().to_pylist()[0]
    assert (
        json.loads(row["parameters"])
        == calibrate("shifted_log", relative_error=0.1, floor=50).parameters()
    )
    versions = json.loads(row["versions"])
    assert versions["spark"] == "4.3.0"
    assert versions["spark_dphist"] == __version__
    assert versions["numpy"] == np.__version__
    assert set(versions) >= {"python", "pyspark", "scipy", "pyarrow", "pandas", "cryptography"}


@pytest.mark.parametrize("records_per_unit", [1, 3])
@pytest.mark.parametrize("rounding", ["nearest", "none"])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_bracket_holds_the_budget_at_the_released_count(name, rounding, records_per_unit):
    mechanism = MECHANISMS[name]
    audited = audit_groups(released(mechanism, rounding=rounding), mechanism, records_per_unit)
    frame = audited.to_pandas()
    noisy = np.rint(np.maximum(frame.noisy_count, 0))
    inside = (np.ceil(frame.lower) <= noisy) & (noisy <= np.floor(frame.upper))
    # Under strong noise the minimal-error estimate lies below the interval at large counts.
    assert np.sum(inside) > len(frame) / 5
    assert np.all(frame.rho_lower <= frame.rho_upper)
    assert np.all(frame.rho_lower[inside] <= frame.rho_at_noisy_count[inside] * ULPS)
    assert np.all(frame.rho_at_noisy_count[inside] <= frame.rho_upper[inside] * ULPS)
    at_released = mechanism.budget(noisy, records_per_unit)
    np.testing.assert_allclose(frame.rho_at_noisy_count, at_released, rtol=1e-15)
    assert np.all(frame.rho_upper <= mechanism.worst_case_budget(records_per_unit) * ULPS)


@pytest.mark.parametrize("records_per_unit", [1, 3])
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_bracket_holds_the_realised_budget_wherever_the_interval_holds_the_count(
    name, records_per_unit
):
    mechanism = MECHANISMS[name]
    frame = audit_groups(released(mechanism), mechanism, records_per_unit).to_pandas()
    covered = (frame.lower <= COUNTS) & (frame.upper >= COUNTS)
    realised = mechanism.budget(COUNTS, records_per_unit)
    assert np.mean(covered) > 0.9
    assert np.all(frame.rho_lower[covered] <= realised[covered] * ULPS)
    assert np.all(realised[covered] <= frame.rho_upper[covered] * ULPS)


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([1, 2, 5]))
def test_the_budget_over_a_range_bounds_every_count_in_it(start, length, records_per_unit):
    mechanism = MECHANISMS["minimal"]
    counts = np.arange(start, start + length + 1)
    budgets = mechanism.budget(counts, records_per_unit)
    least, greatest = mechanism.budget_over(start, start + length, records_per_unit)
    assert least <= np.min(budgets) * ULPS
    assert np.max(budgets) / ULPS <= greatest <= np.max(budgets) * ULPS


def test_a_negative_released_count_is_audited_as_zero():
    mechanism = MECHANISMS["unbiased"]
    made = released(mechanism, np.zeros(500, dtype=np.int64))
    negative = made["noisy_count"].to_numpy() < 0
    assert np.any(negative)
    frame = audit_groups(made, mechanism, 1).to_pandas()
    at_zero = float(mechanism.budget(0))
    np.testing.assert_allclose(frame.rho_at_noisy_count[negative], at_zero, rtol=1e-15)
    assert np.all(frame.noisy_count == made["noisy_count"].to_numpy())
    assert np.all(np.isfinite(frame[list(BUDGET_COLUMNS)]))


def test_a_constant_release_is_audited_with_budget_zero():
    mechanism = Constant(floor=20)
    frame = audit_groups(released(mechanism), mechanism, 1).to_pandas()
    assert np.all(frame[list(BUDGET_COLUMNS)] == 0)


def test_the_audit_of_equal_releases_is_equal_whatever_the_true_counts():
    mechanism = MECHANISMS["minimal"]
    table = pa.table({"group": [1], "noisy_count": [40], "lower": [31], "upper": [55]})
    audited = audit_groups(table, mechanism, 1)
    assert audited.column_names == ["group", "noisy_count", "lower", "upper", *AUDIT_COLUMNS]
    assert audited.to_pylist()[0] == {
        "group": 1,
        "noisy_count": 40,
        "lower": 31,
        "upper": 55,
        "rho_at_noisy_count": pytest.approx(float(mechanism.budget(40)), rel=1e-15),
        "rho_lower": pytest.approx(float(mechanism.budget(55)), rel=1e-15),
        "rho_upper": pytest.approx(float(mechanism.budget(31)), rel=1e-15),
        "expected_bias": pytest.approx(float(mechanism.expected_bias(40)), rel=1e-12),
    }
    assert not any(audited.schema.field(name).nullable for name in AUDIT_COLUMNS)


@pytest.mark.parametrize(
    ("arrow", "pandas"),
    [
        (pa.int8(), pd.Int8Dtype()),
        (pa.int16(), pd.Int16Dtype()),
        (pa.int32(), pd.Int32Dtype()),
        (pa.int64(), pd.Int64Dtype()),
    ],
)
def test_integer_keys_with_nulls_stay_integers_in_pandas(arrow, pandas):
    largest = 2 ** (arrow.bit_width - 1) - 1
    table = pa.table({"key": pa.array([None, largest, 0], arrow), "noisy_count": [1, 2, 3]})
    frame = PublicAudit(example_header(), table).to_pandas()
    assert frame["key"].dtype == pandas
    assert frame["key"].isna().tolist() == [True, False, False]
    assert int(frame["key"][1]) == largest


def test_an_audit_too_large_to_collect_says_so():
    with pytest.raises(ReleaseError, match=r"12,345 groups, more than .* max_collected_groups"):
        PublicAudit(example_header(), None).to_pandas()


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_the_bias_is_the_mechanisms_at_the_released_count(name):
    mechanism = MECHANISMS[name]
    frame = audit_groups(released(mechanism), mechanism, 1).to_pandas()
    at = np.rint(np.maximum(frame.noisy_count, 0))
    np.testing.assert_array_equal(frame.expected_bias, mechanism.expected_bias(at))
    assert np.all(np.isfinite(frame.expected_bias))
