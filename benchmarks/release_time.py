"""Time a whole release against plain Spark that counts, joins and writes, side by side in one run.

    python benchmarks/release_time.py --rows 10000000 --groups 1000 100000 1000000 --repeats 5

Plain Spark: ``records.groupBy(key).count()``, joined to the key set, written as Parquet. The
release does the same with noise, reads its output back, checks it and writes the audit table.
Both run ``--repeats`` times in turn after a warm-up; medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.release import run_release
from spark_dphist.request import ReleaseRequest, new_release_id
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget


def make_data(spark: SparkSession, folder: Path, rows: int, groups: int) -> None:
    """Write records whose group sizes follow a power law, with a payload, and the key set."""
    group = F.floor(F.pow(F.rand(seed=1), 2.0) * groups).cast("bigint")
    records = spark.range(rows).select(
        F.concat(F.lit("group-"), group.cast("string")).alias("key"),
        F.col("id").alias("value"),
        F.rand(seed=2).alias("payload"),
    )
    records.write.parquet(str(folder / "records"))
    keys = spark.range(groups).select(F.concat(F.lit("group-"), F.col("id")).alias("key"))
    keys.write.parquet(str(folder / "keys"))


def plain(records: DataFrame, keys: DataFrame, output: Path) -> None:
    counts = records.groupBy("key").count()
    joined = keys.join(counts, "key", "left").select("key", F.coalesce("count", F.lit(0)))
    joined.toDF("key", "count").write.parquet(str(output))


def release(spark: SparkSession, records: DataFrame, keys: DataFrame, output: Path) -> None:
    release_id = new_release_id("benchmark")
    target = PathTarget(str(output), release_id)
    request = ReleaseRequest(
        records=records,
        input="generated",
        columns=["key"],
        key_set=KeySet.from_dataframe(keys),
        mechanism=ShiftedLog.calibrate(relative_error=0.1, floor=50),
        relative_error=0.1,
        output=target,
        audit_groups=target.beside("_audit_groups"),
        audit_header=target.beside("_audit_header"),
        release_id=release_id,
    )
    run_release(spark, request)


def timed(work: Callable[[Path], None], folder: Path) -> float:
    output = Path(tempfile.mkdtemp(dir=folder)) / "output"
    start = time.perf_counter()
    work(output)
    elapsed = time.perf_counter() - start
    shutil.rmtree(output.parent)
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "8g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    print(f"pyspark {spark.version}, local[2], {arguments.rows:,} rows, medians of seconds")
    print("| groups | plain Spark | release with audit | ratio |")
    print("|---:|---:|---:|---:|")
    for groups in arguments.groups:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_data(spark, folder, arguments.rows, groups)
            records = spark.read.parquet(str(folder / "records"))
            keys = spark.read.parquet(str(folder / "keys"))
            works = {
                "plain": lambda output, r=records, k=keys: plain(r, k, output),
                "release": lambda output, r=records, k=keys: release(spark, r, k, output),
            }
            times: dict[str, list[float]] = {name: [] for name in works}
            for repeat in range(arguments.repeats + 1):
                for name, work in works.items():
                    elapsed = timed(work, folder)
                    if repeat:
                        times[name].append(elapsed)
            middle = {name: statistics.median(values) for name, values in times.items()}
            ratio = middle["release"] / middle["plain"]
            print(
                f"| {groups:,} | {middle['plain']:.2f} | {middle['release']:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
