"""The digests and numbers that an audit's header has of all released rows together."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pyarrow as pa
import pytest

from spark_dphist.audit_summary import AuditSummary, summarised_buckets
from spark_dphist.errors import ReleaseError


def digest_of(bucket, *, last):
    """A digest whose first 12 bits are the bucket."""
    return (bucket << 244 | last).to_bytes(32, "big")


def summary(*rows, rho=None):
    """Summary of rows given as (group digest, three released numbers)."""
    digests = pa.chunked_array([pa.array([row[0] for row in rows], pa.binary())])
    kind = np.float64 if rows and isinstance(rows[0][1][0], float) else np.int64
    numbers = np.array([row[1] for row in rows], dtype=kind).reshape(-1, 3).T
    budgets = np.array(rho or [0.5] * len(rows))
    return AuditSummary.of_buckets(summarised_buckets(digests, list(numbers), budgets))


ROWS = [
    (digest_of(bucket, last=number), (number - 3, -number, 2**62 + number))
    for number, bucket in enumerate([5, 0, 5, 4095, 16, 5])
]


def test_the_digests_do_not_depend_on_the_order_but_on_the_rows():
    made = summary(*ROWS)
    assert summary(*ROWS[::-1]) == made
    other_group = [(digest_of(5, last=99), ROWS[0][1]), *ROWS[1:]]
    assert summary(*other_group).key_set_digest != made.key_set_digest
    for position in range(3):
        numbers = list(ROWS[0][1])
        numbers[position] += 1
        other_number = [(ROWS[0][0], tuple(numbers)), *ROWS[1:]]
        assert summary(*other_number).key_set_digest == made.key_set_digest
        assert summary(*other_number).counts_digest != made.counts_digest
    exchanged = [(ROWS[0][0], ROWS[2][1]), ROWS[1], (ROWS[2][0], ROWS[0][1]), *ROWS[3:]]
    assert summary(*exchanged).counts_digest != made.counts_digest


@pytest.mark.parametrize(("number", "layout"), [(int, ">3q"), (float, ">3d")])
def test_the_digest_is_the_hash_of_the_hashes_of_4096_buckets(number, layout):
    rows = [(group, tuple(map(number, numbers))) for group, numbers in ROWS]
    buckets = {}
    for group, numbers in sorted(rows):
        packed = (group, group + struct.pack(layout, *numbers))
        buckets.setdefault(int.from_bytes(group[:2], "big") >> 4, []).append(packed)
    assert list(buckets) == [0, 5, 16, 4095]
    for part, made in ((0, summary(*rows).key_set_digest), (1, summary(*rows).counts_digest)):
        hashed = [
            hashlib.sha256(b"".join(pair[part] for pair in pairs)).digest()
            for pairs in buckets.values()
        ]
        assert made == hashlib.sha256(b"".join(hashed)).hexdigest()


@pytest.mark.parametrize("shared_bytes", [7, 8, 20, 31])
def test_digests_are_ordered_as_byte_strings_wherever_they_differ(shared_bytes):
    start = b"\x01" * shared_bytes
    rows = [
        (start + bytes([last]) + bytes(31 - shared_bytes), (last, 0, 0))
        for last in (200, 0, 7, 255)
    ]
    assert summary(*rows).groups == 4
    assert summary(*rows) == summary(*rows[::-1])
    ordered = b"".join(group for group, _ in sorted(rows))
    digest = hashlib.sha256(hashlib.sha256(ordered).digest()).hexdigest()
    assert summary(*rows).key_set_digest == digest


def test_the_summary_has_the_least_and_the_greatest_budget():
    made = summary(*ROWS, rho=[0.5, 0.25, 1.0, 0.75, 0.5, 0.5])
    assert (made.least_rho_at_noisy_count, made.greatest_rho_at_noisy_count) == (0.25, 1.0)


def test_the_budgets_of_no_groups_are_0_as_a_learnt_key_set_may_be_empty():
    made = summary()
    assert (made.least_rho_at_noisy_count, made.greatest_rho_at_noisy_count) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("rows", "declared", "message"),
    [
        (ROWS, 7, "has 6 rows for 6 groups, but 7 groups were declared"),
        (ROWS, 5, "has 6 rows for 6 groups, but 5 groups were declared"),
        ([*ROWS, ROWS[0]], 7, "has 7 rows for 6 groups, but 7 groups were declared"),
        ([*ROWS, ROWS[0]], 6, "has 7 rows for 6 groups, but 6 groups were declared"),
        ([], 1, "has 0 rows for 0 groups, but 1 groups were declared"),
    ],
)
def test_a_missing_extra_or_repeated_group_stops_the_release(rows, declared, message):
    with pytest.raises(ReleaseError, match=f"{message}. Nothing was published"):
        summary(*rows).check_complete(declared)
    summary(*ROWS).check_complete(6)


def summarised_apart(*places, rho):
    """Buckets of ROWS, summarised in places that have some of the rows each."""
    parts = []
    for chosen in places:
        digests = pa.chunked_array([pa.array([ROWS[row][0] for row in chosen], pa.binary())])
        numbers = np.array([ROWS[row][1] for row in chosen]).T
        parts.append(summarised_buckets(digests, list(numbers), rho[chosen]))
    return pa.concat_tables(parts)


def test_buckets_summarised_in_different_places_add_up():
    rho = np.linspace(0.25, 1.0, len(ROWS))
    buckets = summarised_apart([4, 3], [0, 1, 2, 5], rho=rho)
    assert AuditSummary.of_buckets(buckets) == summary(*ROWS, rho=list(rho))


def test_a_bucket_that_was_summarised_in_two_places_stops_the_release():
    buckets = summarised_apart([0, 1, 3], [2, 4, 5], rho=np.full(len(ROWS), 0.5))
    with pytest.raises(ReleaseError, match="in two places"):
        AuditSummary.of_buckets(buckets)


def test_without_numbers_the_rows_are_the_keys():
    digests = pa.chunked_array([pa.array([row[0] for row in ROWS], pa.binary())])
    keys = AuditSummary.of_buckets(summarised_buckets(digests, [], np.zeros(len(ROWS))))
    assert keys.key_set_digest == keys.counts_digest == summary(*ROWS).key_set_digest
