"""Time a release against plain Spark that counts, joins and writes, side by side in one run.

    python benchmarks/release_time.py --rows 1e7 --groups 1e3 1e5 1e6 --repeats 5
    python benchmarks/release_time.py --generated --rows 1e8 1e9 --groups 1e3 1e7 --audit spark \
        --repeats 1 --figure time.svg

Plain Spark: ``records.groupBy(key).count()``, joined to the key set, written as Parquet. The
release counts, adds noise and writes the same groups (its *job*), then reads its output back,
checks it and writes the audit. Both run ``--repeats`` times in turn after a warm-up; medians and
their ratios are printed, with the seconds of each step. Every pair of rows and groups has a process
of its own, so that the peak memory of the Python driver is its own.

Records are read from Parquet files written before, with a string key and two columns of payload;
``--generated`` makes bigint keys from ``spark.range`` on the fly, for more rows than fit on a disk.
Group sizes follow Zipf's law.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.release import run_release
from spark_dphist.request import MAX_COLLECTED_GROUPS, ReleaseRequest, new_release_id
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget

Steps = list[tuple[str, float]]


def zipf(groups: int) -> Column:
    """Group numbers whose frequency falls as 1 / (number + 1)."""
    uniform = F.pmod(F.xxhash64("id"), F.lit(2**53)) / F.lit(2.0**53)
    return (F.floor(F.exp(uniform * F.lit(math.log(groups + 1)))) - 1).cast("bigint")


def make_tables(
    spark: SparkSession, folder: Path, rows: int, groups: int, generated: bool
) -> tuple[DataFrame, DataFrame]:
    """Return the records and the key set."""
    if generated:
        records = spark.range(rows).select(zipf(groups).alias("key"))
        return records, spark.range(groups).select(F.col("id").alias("key"))
    name = F.concat(F.lit("group-"), zipf(groups).cast("string"))
    records = spark.range(rows).select(
        name.alias("key"), F.col("id").alias("value"), F.rand(seed=2).alias("payload")
    )
    keys = spark.range(groups).select(F.concat(F.lit("group-"), F.col("id")).alias("key"))
    for table, frame in (("records", records), ("keys", keys)):
        frame.write.parquet(str(folder / table))
    return spark.read.parquet(str(folder / "records")), spark.read.parquet(str(folder / "keys"))


def plain(records: DataFrame, keys: DataFrame, output: Path) -> None:
    counts = records.groupBy("key").count()
    joined = keys.join(counts, "key", "left").select("key", F.coalesce("count", F.lit(0)))
    joined.toDF("key", "count").write.parquet(str(output))


def release(
    spark: SparkSession, records: DataFrame, keys: DataFrame, output: Path, collected: int
) -> Steps:
    """Make a release and return when each of its steps began."""
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
        max_collected_groups=collected,
    )
    steps: Steps = []
    run_release(spark, request, on_step=lambda step: steps.append((step, time.perf_counter())))
    return [*steps, ("", time.perf_counter())]


def seconds(steps: Steps) -> dict[str, float]:
    """Seconds of each step, under the first word of its name."""
    return {name.split()[0]: end - start for (name, start), (_, end) in itertools.pairwise(steps)}


def in_turn(folder: Path, repeats: int, works: dict[str, Callable[[Path], object]]) -> dict:
    """Seconds and results of each work, by repeat, without the warm-up."""
    taken: dict[str, list] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            output = Path(tempfile.mkdtemp(dir=folder)) / "output"
            start = time.perf_counter()
            result = work(output)
            elapsed = time.perf_counter() - start
            shutil.rmtree(output.parent)
            if repeat:
                taken[name].append((elapsed, result))
    return taken


def measure(rows: int, groups: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one pair in this process."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", arguments.memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    collected = MAX_COLLECTED_GROUPS if arguments.audit == "collected" else 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records, keys = make_tables(spark, folder, rows, groups, arguments.generated)
        taken = in_turn(
            folder,
            arguments.repeats,
            {
                "plain": lambda output: plain(records, keys, output),
                "release": lambda output: release(spark, records, keys, output, collected),
            },
        )
    steps = [seconds(result) for _, result in taken["release"]]
    return {
        "rows": rows,
        "groups": groups,
        "plain": statistics.median(elapsed for elapsed, _ in taken["plain"]),
        "release": statistics.median(elapsed for elapsed, _ in taken["release"]),
        **{step: statistics.median(each[step] for each in steps) for step in steps[0]},
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def draw(cells: list[dict[str, float]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for groups, marker in zip(sorted({cell["groups"] for cell in cells}), "osD^v", strict=False):
        chosen = [cell for cell in cells if cell["groups"] == groups]
        for name, style in (("plain", "--"), ("release", "-")):
            label = f"{name}, {groups:,} groups"
            points = [cell["rows"] for cell in chosen], [cell[name] for cell in chosen]
            axes.plot(*points, style, marker=marker, label=label)
    axes.set(xscale="log", yscale="log", xlabel="records", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, nargs="+", default=[1e7])
    parser.add_argument("--groups", type=float, nargs="+", default=[1e3, 1e5, 1e6])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--generated", action="store_true")
    parser.add_argument("--audit", choices=["collected", "spark"], default="collected")
    parser.add_argument("--memory", default="8g")
    parser.add_argument("--figure")
    parser.add_argument("--cell", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if arguments.cell:
        print(json.dumps(measure(*arguments.cell, arguments)))
        return
    print("| rows | groups | plain | job | whole | job ratio | whole ratio | audit | driver MB |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    cells = []
    for rows in arguments.rows:
        for groups in arguments.groups:
            pair = [str(int(rows)), str(int(groups))]
            command = [sys.executable, __file__, *sys.argv[1:], "--cell", *pair]
            answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            cell = json.loads(answer.stdout.splitlines()[-1])
            cells.append(cell)
            job, whole = cell["counting"], cell["release"]
            print(
                f"| {cell['rows']:,} | {cell['groups']:,} | {cell['plain']:.2f} | {job:.2f} "
                f"| {whole:.2f} | {job / cell['plain']:.2f} | {whole / cell['plain']:.2f} "
                f"| {cell['reading']:.2f} | {cell['megabytes']} |",
                flush=True,
            )
    if arguments.figure:
        draw(cells, arguments.figure)


if __name__ == "__main__":
    main()
