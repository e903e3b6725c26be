"""A release under a fixed key whose every number is pinned in tests/data/golden_release.json.

``PYTHONPATH=. python tests/spark/golden_release.py`` writes the file, on any supported pyspark.
If it comes out different from one commit to the next, noise is derived in another way, and releases
under fixed keys cannot be reproduced any more.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import registry
from spark_dphist.release import run_release
from spark_dphist.request import ReleaseRequest
from spark_dphist.session import open_session
from spark_dphist.spark.group_key import encoded_group_key
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget
from spark_dphist.streams import ReleaseKey

PINNED = Path(__file__).parents[1] / "data" / "golden_release.json"
KEY = ReleaseKey.fixed_for_tests(hashlib.sha256(b"golden release").digest())
MECHANISMS = ("linear_log", "shifted_log", "fixed_gaussian", "fixed_laplace")

# Half past one on the morning when Los Angeles sets its clocks back, twice, and a wall clock time
# that Los Angeles skips.
_GROUPS = """
SELECT *, (a + b + c) * (a + b + c) * (a + b + c) AS size FROM VALUES
  ('Zürich', DATE'1900-02-28', TIMESTAMP'2024-11-03 01:30:00-07:00', 0L),
  ('Zürich', DATE'1900-02-28', TIMESTAMP'2024-11-03 01:30:00-08:00', 1L),
  ('', DATE'2024-02-29', TIMESTAMP'1969-12-31 23:59:59.999999Z', 2L),
  (NULL, NULL, NULL, 3L) AS (place, day, instant, a)
CROSS JOIN VALUES
  (TIMESTAMP_NTZ'2024-03-10 02:30:00.12', CAST(-1234567.5 AS DECIMAL(12, 2)), X'00FF', 0L),
  (NULL, CAST(NULL AS DECIMAL(12, 2)), X'', 4L) AS (wall, amount, code, b)
CROSS JOIN VALUES (true, 0L), (false, 8L), (CAST(NULL AS BOOLEAN), 12L) AS (flag, c)
"""
COLUMNS = ["place", "day", "instant", "wall", "amount", "code", "flag"]


def golden_request(spark: SparkSession, directory: Path, mechanism: str) -> ReleaseRequest:
    """Return the request: 24 groups of 0 to 6859 records, by users of whom some have too many."""
    groups = spark.sql(_GROUPS)
    records = groups.where("size > 0").selectExpr(*COLUMNS, "explode(sequence(1L, size)) AS record")
    records = records.selectExpr(*COLUMNS, "record % 5000 AS user")
    some_undeclared = "CASE WHEN user = 7 THEN 'undeclared' ELSE place END AS place"
    output = PathTarget(str(directory / "counts"), "golden")
    return ReleaseRequest(
        records=records.selectExpr(some_undeclared, *COLUMNS[1:], "user"),
        input="golden records",
        columns=COLUMNS,
        key_set=KeySet.from_dataframe(groups.select(*COLUMNS)),
        mechanism=registry.calibrate(mechanism, relative_error=0.1, floor=50),
        relative_error=0.1,
        output=output,
        audit_groups=output.beside("_audit_groups"),
        audit_header=output.beside("_audit_header"),
        release_id="golden",
        privacy_unit=PrivacyUnit(column="user", max_records=20),
    )


def golden_numbers(spark: SparkSession, directory: Path, mechanism: str) -> dict[str, Any]:
    """Make the release and return all its numbers, keys encoded, in the order of the output."""
    request = golden_request(spark, directory, mechanism)
    release = run_release(spark, request, key=KEY)
    fields = [release.counts.schema[name] for name in COLUMNS]
    rows = release.counts.select(
        encoded_group_key(fields).alias("key"), "noisy_count", "lower", "upper"
    ).collect()
    header = release.audit.header
    return {
        "key_set_digest": header.key_set_digest,
        "counts_digest": header.counts_digest,
        "rows": [list(row) for row in rows],
    }


if __name__ == "__main__":
    session = open_session({"spark.master": "local[2]"})
    with tempfile.TemporaryDirectory() as folder:
        numbers = {name: golden_numbers(session, Path(folder) / name, name) for name in MECHANISMS}
    PINNED.write_text(json.dumps(numbers, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
