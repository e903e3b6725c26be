"""Small releases for tests: a confidential table, a request, and what a release left behind."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.request import ReleaseRequest
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget
from spark_dphist.streams import ReleaseKey

KEY = ReleaseKey.fixed_for_tests(hashlib.sha256(b"releases").digest())
MECHANISM = ShiftedLog.calibrate(relative_error=0.3, floor=20)
COLUMNS = ["carrier", "month"]
FIELDS = [T.StructField("carrier", T.StringType()), T.StructField("month", T.IntegerType())]
# Counts that stand out: none is small, round or near another.
TRUE_COUNTS = {
    ("AA", 1): 10477,
    ("AA", 2): 7919,
    ("BB", 1): 15485,
    ("BB", None): 3571,
    (None, 2): 27449,
    ("", 1): 61961,
}
KEYS = KeySet.product({"carrier": ["AA", "BB", "", None], "month": [1, 2, None]})
KEY_SET_SIZE = 12


def confidential_records(spark: SparkSession, counts: dict[Any, int] = TRUE_COUNTS) -> DataFrame:
    schema = T.StructType([*FIELDS, T.StructField("n", T.IntegerType())])
    groups = spark.createDataFrame([(*group, count) for group, count in counts.items()], schema)
    repeated = groups.selectExpr("carrier", "month", "explode(sequence(1, n)) AS passenger")
    return repeated.union(spark.createDataFrame([("undeclared", 1, 1)] * 5, repeated.schema))


def request_for(
    spark: SparkSession, directory: Path, *, release_id: str = "r1", **changes: Any
) -> ReleaseRequest:
    """Return a request that writes to ``directory/counts`` and beside it."""
    output = changes.pop("output", PathTarget(str(directory / "counts"), release_id))
    records = changes.pop("records", None)
    request = ReleaseRequest(
        records=confidential_records(spark) if records is None else records,
        input="test records",
        columns=COLUMNS,
        key_set=KEYS,
        mechanism=MECHANISM,
        relative_error=0.3,
        output=output,
        audit_groups=output.beside("_audit_groups"),
        audit_header=output.beside("_audit_header"),
        release_id=release_id,
    )
    return replace(request, **changes)


def with_confidential_audit(request: ReleaseRequest, path: Path | str) -> ReleaseRequest:
    return replace(request, confidential_audit=PathTarget(str(path), request.release_id))


def entries(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} if directory.exists() else set()


def data_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("part-*"))
