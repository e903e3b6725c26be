"""What an audit's header says of all released rows together: digests, numbers, least and greatest.

Groups are put in buckets by the first 12 bits of their digest. A bucket is summarised where all its
rows are, on the driver or in one of Spark's partitions, so that nobody has to hold all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_dphist.errors import ReleaseError
from spark_dphist.streams import DIGEST_BYTES

_HASH = pa.binary(DIGEST_BYTES)
BUCKET_SCHEMA = pa.schema(
    [
        ("bucket", pa.int64()),
        ("rows", pa.int64()),
        ("groups", pa.int64()),
        # Of variable length, as Spark knows no other binary type.
        ("group_hash", pa.binary()),
        ("row_hash", pa.binary()),
        ("least", pa.float64()),
        ("greatest", pa.float64()),
    ]
)


@dataclass(frozen=True)
class AuditSummary:
    """What a header says of all released rows together.

    ``rows`` and ``groups`` are the numbers of rows and of distinct keys; the digests are SHA-256 as
    hexadecimal digits, whatever the order of the rows (docs/audit.md); the budgets are in rho, 0
    where there is no group.
    """

    rows: int
    groups: int
    key_set_digest: str
    counts_digest: str
    least_rho_at_noisy_count: float
    greatest_rho_at_noisy_count: float

    @classmethod
    def of_buckets(cls, buckets: pa.Table) -> Self:
        """Summarise all buckets that have rows, in any order, each of them there once.

        Parameters
        ----------
        buckets
            With the schema ``BUCKET_SCHEMA``.

        Raises
        ------
        ReleaseError
            If a bucket is there twice.
        """
        rows = buckets.sort_by("bucket").to_pylist()
        if len({row["bucket"] for row in rows}) < len(rows):
            raise ReleaseError(
                "Spark has summarised a part of the stored release in two places, so that its "
                "digest would be wrong. Nothing was published."
            )
        return cls(
            rows=sum(row["rows"] for row in rows),
            groups=sum(row["groups"] for row in rows),
            key_set_digest=hashlib.sha256(b"".join(row["group_hash"] for row in rows)).hexdigest(),
            counts_digest=hashlib.sha256(b"".join(row["row_hash"] for row in rows)).hexdigest(),
            least_rho_at_noisy_count=min((row["least"] for row in rows), default=0.0),
            greatest_rho_at_noisy_count=max((row["greatest"] for row in rows), default=0.0),
        )

    def check_complete(self, declared: int) -> None:
        """Stop a release in which a group is missing, extra or there twice.

        Raises
        ------
        ReleaseError
            With the numbers of rows and groups, which are public.
        """
        if not self.rows == self.groups == declared:
            raise ReleaseError(
                f"the stored release has {self.rows} rows for {self.groups} groups, but "
                f"{declared} groups were declared. Nothing was published."
            )


def summarised_buckets(
    group_digests: pa.ChunkedArray,
    numbers: Sequence[npt.NDArray[Any]],
    rho: npt.NDArray[np.float64],
) -> pa.Table:
    """Summarise each bucket that has rows.

    Parameters
    ----------
    group_digests
        32 bytes for each row: SHA-256 of its encoded key.
    numbers
        ``noisy_count``, ``lower`` and ``upper`` as released, shape (rows,), int64 or float64; or
        nothing, where only keys are summarised.
    rho
        Budgets at the released counts, shape (rows,).

    Returns
    -------
    pyarrow.Table
        With the schema ``BUCKET_SCHEMA``, in rising order of the buckets.
    """
    groups = _as_array(group_digests)
    if not groups.size:
        return BUCKET_SCHEMA.empty_table()
    order = _byte_order(groups)
    groups = np.take(groups.view(f"V{DIGEST_BYTES}"), order, axis=0).view(np.uint8)
    rows = _row_bytes(groups, [values[order] for values in numbers])
    bucket = groups[:, 0].astype(np.int64) * 16 + groups[:, 1] // 16
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    is_new = np.ones(len(groups), dtype=np.int64)
    is_new[1:] = np.any(groups[1:] != groups[:-1], axis=1)
    ordered_rho = rho[order]
    values = [
        bucket[starts],
        np.diff(starts, append=len(groups)),
        np.add.reduceat(is_new, starts),
        [_hashed(part) for part in np.split(groups, starts)[1:]],
        [_hashed(part) for part in np.split(rows, starts)[1:]],
        np.minimum.reduceat(ordered_rho, starts),
        np.maximum.reduceat(ordered_rho, starts),
    ]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(values, BUCKET_SCHEMA.types, strict=True)],
        schema=BUCKET_SCHEMA,
    )


def _row_bytes(
    groups: npt.NDArray[np.uint8], numbers: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.uint8]:
    """Return what ``counts_digest`` hashes of each row, uint8.

    The group's digest, then each number in 8 bytes, most significant byte first: int64 in two's
    complement or float64 in IEEE 754.
    """
    if not numbers:
        return groups
    stacked = np.stack(numbers, axis=1)
    packed = stacked.astype(stacked.dtype.newbyteorder(">")).view(np.uint8)
    return np.concatenate([groups, packed], axis=1)


def _as_array(digests: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    # Through a buffer: as Python objects, millions of digests would take three times the memory.
    fixed = pa.concat_arrays(digests.cast(_HASH).chunks or [pa.array([], _HASH)])
    joined = memoryview(fixed.buffers()[1] or b"")[: DIGEST_BYTES * len(fixed)]
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def _byte_order(digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return the order of the digests as byte strings."""
    words = digests.view(">u8").astype(np.uint64)
    order = np.argsort(words[:, 0])
    # That decides but for equal groups, or once in 2**60 releases.
    if np.any(words[order[1:], 0] == words[order[:-1], 0]):
        order = np.lexsort(words.T[::-1])
    return order


def _hashed(rows: npt.NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(rows.tobytes()).digest()
