"""Time a release against plain Spark that counts, joins and writes, side by side in one run.

    python benchmarks/release_time.py --rows 1e7 --groups 1e3 1e5 1e6 --repeats 5
    python benchmarks/release_time.py --generated --rows 1e6 1e7 1e8 1e9 --groups 1e3 1e5 1e6 1e7 \
        --figure time.svg
    python benchmarks/release_time.py --generated --rows 1e7 --groups 1e3 1e5 1e6 1e7 --repeats 1 \
        --audit spark --memory 1g --master "local-cluster[1,2,6144]"

Plain Spark: ``records.groupBy(key).count()``, joined to the key set, written as Parquet. The
release counts, adds noise and writes the same groups (its *job*), then reads its output back,
checks it and writes the audit. After a warm-up both run in turn, ``--repeats`` times or until two
minutes are over; medians and their ratios are printed. Every pair of rows and groups has a process
of its own. The peaks of memory, in MB, are those of the driver's Python and JVM after plain Spark
has run once, and at the end; with the master ``local-cluster`` the executors are not in that JVM.

Records are read from Parquet files written before, with a string key and two columns of payload;
``--generated`` makes bigint keys from ``spark.range`` on the fly, for more rows than fit on a disk.
Group sizes follow Zipf's law.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measuring import jvm_peak_mb, python_peak_mb, quiet_session, timed
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.release import run_release
from spark_dphist.request import MAX_COLLECTED_GROUPS, ReleaseRequest, new_release_id
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget

Steps = list[tuple[str, float]]
WARM_UP_ROWS = 10_000_000
ENOUGH_SECONDS = 120
COLUMNS = {
    "rows": ",",
    "groups": ",",
    "plain": ".2f",
    "job": ".2f",
    "whole": ".2f",
    "job ratio": ".2f",
    "whole ratio": ".2f",
    "checks": ".2f",
    "audit": ".2f",
    "Python before": "",
    "Python after": "",
    "JVM before": "",
    "JVM after": "",
}


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
) -> dict[str, float]:
    """Make a release and return the seconds of its steps, by the first word of their names."""
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
    ends = [*steps, ("", time.perf_counter())]
    return {name.split()[0]: end - start for (name, start), (_, end) in itertools.pairwise(ends)}


def measure(rows: int, groups: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one pair in this process."""
    spark = quiet_session(arguments.memory, arguments.master)
    collected = MAX_COLLECTED_GROUPS if arguments.audit == "collected" else 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def in_new_folder(work: Callable[[Path], dict[str, float] | None]) -> dict[str, float]:
            output = Path(tempfile.mkdtemp(dir=folder)) / "output"
            seconds, steps = timed(lambda: work(output))
            shutil.rmtree(output.parent)
            return {"": seconds, **(steps or {})}

        records, keys = make_tables(spark, folder, rows, groups, arguments.generated)
        few = records
        if arguments.generated and rows > WARM_UP_ROWS:
            few, _ = make_tables(spark, folder, WARM_UP_ROWS, groups, generated=True)
        in_new_folder(lambda output: plain(few, keys, output))
        python_before, jvm_before = python_peak_mb(), jvm_peak_mb(spark)
        in_new_folder(lambda output: release(spark, few, keys, output, collected))
        plains, releases = [], []
        start = time.perf_counter()
        while len(plains) < arguments.repeats and time.perf_counter() - start < ENOUGH_SECONDS:
            plains.append(in_new_folder(lambda output: plain(records, keys, output)))
            releases.append(
                in_new_folder(lambda output: release(spark, records, keys, output, collected))
            )
        jvm_peak = jvm_peak_mb(spark)

    def median(step: str, of: list[dict[str, float]]) -> float:
        return statistics.median(each[step] for each in of)

    without, job, whole = median("", plains), median("counting", releases), median("", releases)
    values = (
        *(rows, groups, without, job, whole, job / without, whole / without),
        *(median("checking", releases), median("reading", releases)),
        *(python_before, python_peak_mb(), jvm_before, jvm_peak),
    )
    return dict(zip(COLUMNS, values, strict=True))


def draw(cells: list[dict[str, float]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    styles = {"plain": ":", "job": "--", "whole": "-"}
    colours = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple")
    for groups, colour in zip(sorted({cell["groups"] for cell in cells}), colours, strict=False):
        chosen = [cell for cell in cells if cell["groups"] == groups]
        for name, style in styles.items():
            axes.plot(
                [cell["rows"] for cell in chosen],
                [cell[name] for cell in chosen],
                style,
                color=colour,
                marker="o",
                markersize=3,
                label=f"{groups:,.0f} groups: {name}",
            )
    axes.set(xscale="log", yscale="log", xlabel="records", ylabel="seconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=2)
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
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--figure")
    parser.add_argument("--cell", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        print(json.dumps(measure(*arguments.cell, arguments)))
        return
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---:|" * len(COLUMNS), flush=True)
    cells = []
    for rows, groups in itertools.product(arguments.rows, arguments.groups):
        pair = [str(int(rows)), str(int(groups))]
        command = [sys.executable, __file__, *sys.argv[1:], "--cell", *pair]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        cell = json.loads(answer.stdout.splitlines()[-1])
        cells.append(cell)
        texts = [format(cell[name], form) for name, form in COLUMNS.items()]
        print("| " + " | ".join(texts) + " |", flush=True)
    if arguments.figure:
        draw(cells, arguments.figure)


if __name__ == "__main__":
    main()
