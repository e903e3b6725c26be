"""Time synthetic records by number of rows and groups, for docs/synthetic-records.md.

Run with ``python benchmarks/synthetic_records.py`` (about two minutes); it prints a Markdown table.
The groups' counts are Zipf's, so that the first group has a large share of all rows.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_dphist.spark.synthetic import released_total, synthetic_records

CASES = ((1_000, 10_000_000), (1_000_000, 10_000_000), (1_000, 100_000_000))
FILES = 4


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    print("| groups | rows | largest group | seconds | largest of 4 files, rows |")
    print("|---:|---:|---:|---:|---:|")
    for groups, rows in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            count = F.ceil(F.lit(groups * 10.0) / (F.col("id") + 1)).alias("noisy_count")
            key = F.concat(F.lit("group-"), F.col("id").cast("string")).alias("key")
            spark.range(groups).select(key, count).write.parquet(str(folder / "counts"))
            counts = spark.read.parquet(str(folder / "counts"))
            start = time.perf_counter()
            total = released_total(counts)
            records = synthetic_records(counts, ["key"], total, rows=rows, seed=1, tasks=FILES)
            records.write.parquet(str(folder / "records"))
            seconds = time.perf_counter() - start
            stored = spark.read.parquet(str(folder / "records"))
            largest = stored.groupBy("key").count().agg(F.max("count")).first()[0]
            file = stored.groupBy(F.input_file_name()).count().agg(F.max("count")).first()[0]
            assert stored.count() == rows
            print(f"| {groups:,} | {rows:,} | {largest:,} | {seconds:.1f} | {file:,} |")


if __name__ == "__main__":
    main()
