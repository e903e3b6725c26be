"""Audits of counts that a mechanism has really released, for tests of what is made of them."""

import hashlib
import json

import numpy as np
import pyarrow as pa
from example_audit import example_header

from spark_dphist.audit import PublicAudit, audit_groups
from spark_dphist.mechanisms import publish
from spark_dphist.streams import GroupStreams, ReleaseKey


def draw(mechanism, counts, name, *, rounding="nearest", confidence=0.95):
    """Release counts of any shape under a fixed key that is made from a name."""
    key = ReleaseKey.fixed_for_tests(hashlib.sha256(name.encode()).digest())
    flat = np.asarray(counts).ravel()
    digests = np.zeros((flat.size, 32), np.uint8)
    digests[:, :8] = np.arange(flat.size, dtype=np.int64).view(np.uint8).reshape(-1, 8)
    return publish(
        mechanism, flat, GroupStreams(key, digests), rounding=rounding, confidence=confidence
    )


def released_audit(
    mechanism, keys, counts, name, *, rounding="nearest", confidence=0.95, **changes
):
    published = draw(mechanism, counts, name, rounding=rounding, confidence=confidence)
    table = pa.table(
        {
            **keys,
            "noisy_count": published.noisy_count,
            "lower": published.lower,
            "upper": published.upper,
        }
    )
    header = example_header(
        release_id=name,
        group_columns=list(keys),
        key_set_size=table.num_rows,
        mechanism=mechanism.name,
        parameters=json.dumps(mechanism.parameters()),
        floor=mechanism.floor,
        rounding=rounding,
        confidence=confidence,
        **changes,
    )
    return PublicAudit(header, audit_groups(table, mechanism, 1))
