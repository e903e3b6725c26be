"""The audit is the same whoever writes it, as docs/audit.md describes it, and adds up."""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from key_encoding import encode
from pyspark.sql import functions as F
from releases import (
    COLUMNS,
    FIELDS,
    KEY,
    confidential_records,
    data_files,
    request_for,
    with_confidential_audit,
)

from spark_dphist import audit_stage
from spark_dphist.accounting.composition import Rho
from spark_dphist.audit import AUDIT_COLUMNS, BUDGET_COLUMNS
from spark_dphist.config import AuditSection
from spark_dphist.errors import ReleaseError
from spark_dphist.history import group_history, read_audit
from spark_dphist.mechanisms import LinearLog
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.release import run_release
from spark_dphist.request import MAX_COLLECTED_GROUPS
from spark_dphist.spark.key_set import KeySet
from spark_dphist.streams import ReleaseKey

DOCUMENTED = Path(__file__).parents[2] / "docs" / "audit.md"
COUNTS = {("AA", 1): 300, ("AA", 2): 4000, ("BB", None): 35, (None, 2): 7}
RELEASED = ("noisy_count", "lower", "upper")
EXTREMES = ("least_rho_at_noisy_count", "greatest_rho_at_noisy_count")
SECOND_KEY = ReleaseKey.fixed_for_tests(b"\x05" * 32)


@pytest.fixture(scope="module")
def records(spark):
    return confidential_records(spark, COUNTS)


def stored(folder):
    return pa.concat_tables([pq.read_table(path) for path in data_files(folder)])


def by_key(table, names):
    return {
        tuple(row[key] for key in COLUMNS): [row[name] for name in names]
        for row in table.to_pylist()
    }


def without(header, *names):
    return {name: value for name, value in asdict(header).items() if name not in names}


@pytest.mark.parametrize(
    ("mechanism", "rounding"),
    [("shifted_log", "nearest"), ("linear_log", "none"), ("fixed_laplace", "nearest")],
)
def test_the_audit_is_the_same_written_by_the_driver_or_by_spark(
    spark, records, tmp_path, mechanism, rounding
):
    made = {}
    for name, most, files in (("driver", 12, 1), ("spark", 11, 1), ("files", 0, 3)):
        request = request_for(
            spark,
            tmp_path / name,
            records=records,
            mechanism=calibrate(mechanism, relative_error=0.3, floor=20),
            rounding=rounding,
            max_collected_groups=most,
            files=files,
        )
        made[name] = run_release(spark, request, key=KEY)
    driver = stored(tmp_path / "driver" / "counts_audit_groups")
    for name in ("spark", "files"):
        other = stored(tmp_path / name / "counts_audit_groups")
        assert other.column_names == driver.column_names
        assert [field.type for field in other.schema] == [field.type for field in driver.schema]
        # The order is by key within each file.
        if name == "spark":
            assert other.select(COLUMNS).equals(driver.select(COLUMNS))
        assert by_key(other, RELEASED) == by_key(driver, RELEASED)
        # numpy's logarithms may differ by a unit in the last place between shapes of arrays.
        for key, budgets in by_key(driver, AUDIT_COLUMNS).items():
            assert by_key(other, AUDIT_COLUMNS)[key] == pytest.approx(budgets, rel=1e-13)
        differing = ("created_at", "output", *EXTREMES)
        here, there = made[name].audit.header, made["driver"].audit.header
        assert without(here, *differing) == without(there, *differing)
        for extreme in EXTREMES:
            assert getattr(here, extreme) == pytest.approx(getattr(there, extreme), rel=1e-13)
        assert made[name].audit.groups is None
        with pytest.raises(ReleaseError, match="more than were to be collected"):
            made[name].audit.to_pandas()
        assert made[name].audit_table.count() == 12
    assert made["driver"].audit.groups.to_pylist() == driver.to_pylist()
    assert 1 <= len(data_files(tmp_path / "files" / "counts_audit_groups")) <= 3


def test_more_groups_than_the_driver_can_hold_are_audited_by_spark(
    spark, records, tmp_path, monkeypatch
):
    """A release that is charged and stored is not given up for the driver's memory."""
    collect, failed = audit_stage.collect_arrow, []

    def too_large(frame):
        if not failed:
            failed.append(frame.columns)
            raise RuntimeError("Total size of serialized results is bigger than maxResultSize")
        return collect(frame)

    monkeypatch.setattr(audit_stage, "collect_arrow", too_large)
    release = run_release(spark, request_for(spark, tmp_path, records=records), key=KEY)
    assert set(COLUMNS) < set(failed[0])
    assert release.audit.groups is None
    assert release.audit_table.count() == release.audit.header.key_set_size == 12


def test_an_audit_collected_in_slices_has_every_group_once(spark, records, tmp_path, monkeypatch):
    whole = run_release(spark, request_for(spark, tmp_path / "whole", records=records), key=KEY)
    monkeypatch.setattr(audit_stage, "_COLLECTED_AT_ONCE", 5)
    collect, sizes = audit_stage.collect_arrow, []

    def counted(frame):
        table = collect(frame)
        sizes.append(table.num_rows)
        return table

    monkeypatch.setattr(audit_stage, "collect_arrow", counted)
    sliced = run_release(spark, request_for(spark, tmp_path / "sliced", records=records), key=KEY)
    assert len(sizes) == 3
    assert sum(sizes) == 12
    everything = (*RELEASED, *AUDIT_COLUMNS)
    assert by_key(sliced.audit.groups, everything) == by_key(whole.audit.groups, everything)
    differing = ("created_at", "output")
    assert without(sliced.audit.header, *differing) == without(whole.audit.header, *differing)


def test_a_key_set_with_duplicates_counts_once_on_both_ways(spark, records, tmp_path):
    keys = spark.createDataFrame([("AA", 1), ("BB", 2), ("AA", 1)], "carrier string, month int")
    digests = set()
    for most in (10, 0):
        request = request_for(
            spark,
            tmp_path / str(most),
            records=records,
            key_set=KeySet.from_dataframe(keys),
            max_collected_groups=most,
        )
        header = run_release(spark, request, key=KEY).audit.header
        assert header.key_set_size == 2
        digests.add((header.key_set_digest, header.counts_digest))
    assert len(digests) == 1


def test_the_digests_are_what_the_documentation_says(spark, records, tmp_path):
    """Computed here by a second encoder and in plain Python."""
    for rounding in ("nearest", "none"):
        request = request_for(
            spark, tmp_path / rounding, records=records, rounding=rounding, max_collected_groups=0
        )
        header = run_release(spark, request, key=KEY).audit.header
        buckets = {}
        for row in stored(tmp_path / rounding / "counts").to_pylist():
            group = hashlib.sha256(encode(FIELDS, [row[name] for name in COLUMNS])).digest()
            numbers = [row[name] for name in ("noisy_count", "lower", "upper")]
            each = group + struct.pack(">3q" if rounding == "nearest" else ">3d", *numbers)
            buckets.setdefault(group.hex()[:3], []).append((group, each))
        for part, made in ((0, header.key_set_digest), (1, header.counts_digest)):
            hashed = [
                hashlib.sha256(b"".join(pair[part] for pair in sorted(pairs))).digest()
                for _, pairs in sorted(buckets.items())
            ]
            assert made == hashlib.sha256(b"".join(hashed)).hexdigest()


def test_a_bias_below_the_floor_is_upwards_and_far_above_it_downwards(spark, records, tmp_path):
    release = run_release(spark, request_for(spark, tmp_path, records=records), key=KEY)
    frame = release.audit.to_pandas()
    noisy = frame.noisy_count.to_numpy()
    mechanism = request_for(spark, tmp_path, records=records).mechanism
    assert np.array_equal(frame.expected_bias, mechanism.expected_bias(np.maximum(noisy, 0)))
    assert np.all(frame.expected_bias[noisy == 0] > 0)
    assert np.all(frame.expected_bias[noisy > 200] < 0)


# docs/audit.md


def documented(heading):
    """Column names and types of the first table below a heading."""
    text = DOCUMENTED.read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}", 1)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:`(\w+)`|\*group columns\*) \| ([^|]+) \|", section, re.MULTILINE)
    return {name or None: kind.strip() for name, kind in rows}


TYPES = {
    "string": (pa.string(),),
    "string, nullable": (pa.string(),),
    "double": (pa.float64(),),
    "double, nullable": (pa.float64(),),
    "int64": (pa.int64(),),
    "boolean": (pa.bool_(),),
    "timestamp": (pa.timestamp("us", "UTC"),),
    "int64 or double": (pa.int64(), pa.float64()),
    "as `noisy_count`": (pa.int64(), pa.float64()),
    "list of string": (pa.list_(pa.string()),),
}


def assert_documented(folder, heading):
    described = documented(heading)
    schema = stored(folder).schema
    names = [name for name in schema.names if name not in COLUMNS]
    assert [name for name in described if name is not None] == names
    for name in names:
        kind = schema.field(name).type
        if pa.types.is_list(kind):
            kind = pa.list_(kind.value_type)
        assert kind in TYPES[described[name]], name
    return schema


@pytest.mark.parametrize("rounding", ["nearest", "none"])
@pytest.mark.parametrize("most", [12, 0])
def test_the_files_have_the_documented_columns(spark, records, tmp_path, rounding, most):
    request = request_for(
        spark,
        tmp_path / "public",
        records=records,
        rounding=rounding,
        max_collected_groups=most,
        relative_error=None,
    )
    request = with_confidential_audit(request, tmp_path / "vault")
    run_release(spark, request, key=KEY)
    groups = assert_documented(tmp_path / "public" / "counts_audit_groups", "Groups")
    header = assert_documented(tmp_path / "public" / "counts_audit_header", "Header")
    secret = assert_documented(tmp_path / "vault", "Confidential")
    assert groups.names == [*COLUMNS, "noisy_count", "lower", "upper", *AUDIT_COLUMNS]
    assert documented("Groups").keys() >= {None}
    described = documented("Header")
    for name in header.names:
        assert header.field(name).nullable == ("nullable" in described[name])
    assert secret.names[-2:] == ["confidential_true_count", "confidential_rho"]


# History


def test_stored_audits_of_one_grouping_compose(spark, records, tmp_path):
    first = request_for(spark, tmp_path / "one", records=records, release_id="r1")
    second = request_for(
        spark,
        tmp_path / "two",
        records=records,
        release_id="r2",
        mechanism=LinearLog.calibrate(relative_error=0.2, floor=30),
        files=3,
        max_collected_groups=0,
    )
    made = [
        run_release(spark, first, key=KEY),
        run_release(spark, second, key=SECOND_KEY),
    ]
    composed = group_history(
        [read_audit(str(tmp_path / name / "counts_audit")) for name in ("two", "one")]
    )
    assert [header.release_id for header in composed.releases] == ["r1", "r2"]
    assert composed.everyone == Rho(
        sum(Rho.upper(each.audit.header.worst_case_rho).units for each in made)
    )
    # The oracle: Spark adds up the stored tables, NULL keys matched.
    both = made[0].audit_table.unionByName(made[1].audit_table)
    sums = both.groupBy(*COLUMNS).agg(*[F.sum(name).alias(name) for name in BUDGET_COLUMNS])
    expected = {(row.carrier, row.month): row for row in sums.collect()}
    assert composed.groups.num_rows == len(expected) == 12
    for row in composed.groups.to_pylist():
        for name in BUDGET_COLUMNS:
            total = expected[row["carrier"], row["month"]][name]
            assert row[name] == pytest.approx(total, rel=1e-14)
    realised = {
        key: float(first.mechanism.budget(count) + second.mechanism.budget(count))
        for key, count in COUNTS.items()
    }
    held = sum(
        row["rho_lower"] <= realised[key] <= row["rho_upper"]
        for row in composed.groups.to_pylist()
        if (key := (row["carrier"], row["month"])) in realised
    )
    # The keys are fixed; each of the four is missed with probability 0.1 at most.
    assert held >= 3


def test_the_limit_of_collected_groups_is_the_same_everywhere():
    limit = AuditSection().max_collected_groups
    assert limit == MAX_COLLECTED_GROUPS == 5_000_000
    assert f"{limit:,}" in DOCUMENTED.read_text(encoding="utf-8")
