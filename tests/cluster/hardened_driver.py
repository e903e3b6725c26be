"""A release under hardened settings. Run by spark-submit in the tests: ``FOLDER NAME...``.

Prints JSON: what Spark says of its settings, and what the shuffle files on disk look like.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from releases import KEY, request_for
from waiting import wait_for

from spark_dphist.release import run_release

# Spark reads these without declaring them.
UNDECLARED = {"spark.network.crypto.cipher", "spark.network.crypto.authEngineVersion"}


def unknown_settings(java, names):
    """Names that this Spark does not know and would therefore silently ignore."""
    for declared_in in ("package$", "Network$", "Python$", "UI$"):
        java.java.lang.Class.forName(f"org.apache.spark.internal.config.{declared_in}")
    entry = java.org.apache.spark.internal.config.ConfigEntry
    return [name for name in names if entry.findEntry(name) is None and name not in UNDECLARED]


def executors(spark):
    return spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1


def main(folder, names):
    spark = SparkSession.builder.getOrCreate()
    # Spark begins with the first of them.
    wait_for(lambda: executors(spark) >= 2, "two executors")
    run_release(spark, request_for(spark, folder / "out"), key=KEY)
    # Held, so that its shuffle files stay, as those of a running release do.
    counted = spark.range(100).selectExpr("concat('a group ', id % 3) AS g").groupBy("g").count()
    counted.collect()
    shuffled = [path.read_bytes() for path in (folder / "local").rglob("shuffle_*.data")]
    seen = {
        "application": spark.sparkContext.applicationId,
        "settings": dict(spark.sparkContext.getConf().getAll()),
        "unknown": unknown_settings(spark.sparkContext._jvm, names),
        "executors": executors(spark),
        "shuffle_files": len(shuffled),
        "shuffle_files_with_a_group": sum(b"a group" in content for content in shuffled),
    }
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
