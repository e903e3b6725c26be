"""Peak memory of the driver for a release of many groups, its audit collected or written by Spark.

    python benchmarks/audit_memory.py --groups 1000000 --collected
    python benchmarks/audit_memory.py --groups 1000000

One release per process. Prints the peak resident memory of the Python driver (``ru_maxrss``)
before and after the release, the peak of the JVM (``VmHWM``; in local mode it is the executor as
well), and the seconds that the release took.
"""

from __future__ import annotations

import argparse
import tempfile
import time

from measuring import jvm_peak_mb, python_peak_mb, quiet_session
from pyspark.sql import functions as F

from spark_dphist.mechanisms import LinearLog
from spark_dphist.release import run_release
from spark_dphist.request import ReleaseRequest, new_release_id
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000_000)
    parser.add_argument("--collected", action="store_true")
    parser.add_argument("--driver-memory", default="1g")
    arguments = parser.parse_args()
    spark = quiet_session(arguments.driver_memory)
    keys = spark.range(arguments.groups).select(
        F.concat(F.lit("group-"), F.col("id")).alias("place"),
        (F.col("id") % 12).cast("int").alias("month"),
    )
    with tempfile.TemporaryDirectory() as folder:
        output = PathTarget(f"{folder}/counts", new_release_id("memory"))
        request = ReleaseRequest(
            records=keys.union(keys),
            input="generated",
            columns=["place", "month"],
            key_set=KeySet.from_dataframe(keys),
            mechanism=LinearLog.calibrate(relative_error=0.1, floor=50),
            relative_error=0.1,
            output=output,
            audit_groups=output.beside("_audit_groups"),
            audit_header=output.beside("_audit_header"),
            release_id=output.release_id,
            max_collected_groups=arguments.groups if arguments.collected else 0,
        )
        before, start = python_peak_mb(), time.perf_counter()
        run_release(spark, request)
        print(
            f"{arguments.groups:,} groups, {'collected' if arguments.collected else 'by Spark'}, "
            f"driver memory {arguments.driver_memory}: Python {before} MB before, "
            f"{python_peak_mb()} MB at its peak; JVM {jvm_peak_mb(spark)} MB; "
            f"{time.perf_counter() - start:.1f} s"
        )


if __name__ == "__main__":
    main()
