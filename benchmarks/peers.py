"""Release the same counts with other libraries, each in an environment of its own.

    python benchmarks/peers.py --rows 1e6 --groups 1e3 \
        --python tumult=/path/to/env/bin/python pipelinedp=... opendp=...

The environments are optional; a library without one is left out. They need ``tmlt.analytics``;
``pipeline-dp``, ``pyspark<4`` and ``setuptools``; ``opendp[polars]``. Every library reads the same
Parquet file, counts the same declared groups with the smallest noise that its accounting allows
for the same worst case (rho-zCDP where it has it, else the pure epsilon with epsilon^2 / 2 = rho),
and writes Parquet. Each has a process, and of two runs there the first, with the start of Spark, is
not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import quiet_session

RELATIVE_ERROR, FLOOR = 0.1, 50


def with_spark_dphist(folder: Path, output: Path, rho: float) -> None:
    """Release by the policy that ``rho`` is the worst case of."""
    from spark_dphist.mechanisms import LinearLog
    from spark_dphist.release import run_release
    from spark_dphist.request import ReleaseRequest, new_release_id
    from spark_dphist.spark.key_set import KeySet
    from spark_dphist.spark.storage import PathTarget

    spark = quiet_session("4g")
    release_id = new_release_id("peers")
    target = PathTarget(str(output), release_id)
    mechanism = LinearLog.calibrate(relative_error=RELATIVE_ERROR, floor=FLOOR)
    assert math.isclose(mechanism.budget(1), rho)
    request = ReleaseRequest(
        records=spark.read.parquet(str(folder / "records")),
        input="generated",
        columns=["key"],
        key_set=KeySet.from_dataframe(spark.read.parquet(str(folder / "keys"))),
        mechanism=mechanism,
        relative_error=RELATIVE_ERROR,
        output=target,
        audit_groups=target.beside("_audit_groups"),
        audit_header=target.beside("_audit_header"),
        release_id=release_id,
    )
    run_release(spark, request)


def with_tumult(folder: Path, output: Path, rho: float) -> None:
    from tmlt.analytics import AddOneRow, KeySet, QueryBuilder, RhoZCDPBudget, Session

    spark = quiet_session("4g")
    budget = RhoZCDPBudget(rho)
    session = Session.from_dataframe(
        privacy_budget=budget,
        source_id="records",
        dataframe=spark.read.parquet(str(folder / "records")),
        protected_change=AddOneRow(),
    )
    keys = KeySet.from_dataframe(spark.read.parquet(str(folder / "keys")))
    query = QueryBuilder("records").groupby(keys).count(name="noisy_count")
    session.evaluate(query, budget).write.parquet(str(output))


def with_pipelinedp(folder: Path, output: Path, rho: float) -> None:
    import pipeline_dp

    spark = quiet_session("4g")
    backend = pipeline_dp.SparkRDDBackend(spark.sparkContext)
    accountant = pipeline_dp.NaiveBudgetAccountant(
        total_epsilon=math.sqrt(2 * rho), total_delta=0.0
    )
    engine = pipeline_dp.DPEngine(accountant, backend)
    records = spark.read.parquet(str(folder / "records")).select("value", "key").rdd.map(tuple)
    keys = [row[0] for row in spark.read.parquet(str(folder / "keys")).collect()]
    counts = engine.aggregate(
        records,
        pipeline_dp.AggregateParams(
            noise_kind=pipeline_dp.NoiseKind.LAPLACE,
            metrics=[pipeline_dp.Metrics.COUNT],
            max_partitions_contributed=1,
            max_contributions_per_partition=1,
        ),
        pipeline_dp.DataExtractors(
            privacy_id_extractor=lambda row: row[0],
            partition_extractor=lambda row: row[1],
            value_extractor=lambda _: 0,
        ),
        public_partitions=keys,
    )
    accountant.compute_budgets()
    released = counts.map(lambda pair: (pair[0], float(pair[1].count)))
    spark.createDataFrame(released, "key string, noisy_count double").write.parquet(str(output))


def with_opendp(folder: Path, output: Path, rho: float) -> None:
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    keys = pl.scan_parquet(f"{folder}/keys/*.parquet")
    context = dp.Context.compositor(
        data=pl.scan_parquet(f"{folder}/records/*.parquet").select("key"),
        privacy_unit=dp.unit_of(contributions=1),
        privacy_loss=dp.loss_of(rho=rho),
        split_evenly_over=1,
    )
    query = context.query().group_by("key").agg(dp.len()).with_keys(keys)
    query.release().collect().write_parquet(output)


LIBRARIES = {
    "spark_dphist": with_spark_dphist,
    "tumult": with_tumult,
    "pipelinedp": with_pipelinedp,
    "opendp": with_opendp,
}


def run_library(name: str, folder: Path, rho: float) -> None:
    """Run one library twice, here, and print seconds and the errors of the second run."""
    import pyarrow.parquet as pq

    for _ in range(2):
        output = Path(tempfile.mkdtemp(dir=folder)) / "output"
        start = time.perf_counter()
        LIBRARIES[name](folder, output, rho)
        elapsed = time.perf_counter() - start
    table = pq.read_table(output).to_pandas()
    noisy = dict(zip(table["key"], table.drop(columns="key").iloc[:, 0], strict=True))
    true = json.loads((folder / "true.json").read_text())
    errors = [abs(noisy[key] - count) for key, count in true.items()]
    relative = [
        error / max(count, FLOOR) for error, count in zip(errors, true.values(), strict=True)
    ]
    largest = max(relative[: len(relative) // 100])
    print(json.dumps({"seconds": elapsed, "mean": sum(relative) / len(relative), "top": largest}))


def make_tables(rows: int, groups: int, folder: Path) -> float:
    """Write records, keys and true counts; return the worst-case rho of spark_dphist's policy."""
    from pyspark.sql import functions as F
    from release_time import make_tables as make_parquet

    from spark_dphist.mechanisms import LinearLog

    spark = quiet_session("4g")
    records, keys = make_parquet(spark, folder, rows, groups, generated=False)
    counts = keys.join(records.groupBy("key").count(), "key", "left")
    found = counts.select("key", F.coalesce("count", F.lit(0)).alias("count")).collect()
    ordered = sorted(found, key=lambda row: -row["count"])
    (folder / "true.json").write_text(json.dumps({row["key"]: row["count"] for row in ordered}))
    spark.stop()
    return float(LinearLog.calibrate(relative_error=RELATIVE_ERROR, floor=FLOOR).budget(1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--groups", type=float, default=1e3)
    parser.add_argument("--python", nargs="*", default=[], metavar="LIBRARY=PYTHON")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--rho", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        run_library(arguments.library, Path(arguments.folder), arguments.rho)
        return
    pythons = {"spark_dphist": sys.executable} | dict(
        pair.split("=", maxsplit=1) for pair in arguments.python
    )
    folder = Path(tempfile.mkdtemp())
    try:
        rho = make_tables(int(arguments.rows), int(arguments.groups), folder)
        print(
            f"{arguments.rows:,.0f} rows, {arguments.groups:,.0f} groups, worst case rho {rho:.4f}"
        )
        print("| library | seconds | mean error | greatest error in the largest 1 % of groups |")
        print("|---|---:|---:|---:|", flush=True)
        for name, python in pythons.items():
            command = [python, __file__, "--library", name, "--folder", str(folder)]
            answer = subprocess.run(
                [*command, "--rho", repr(rho)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python},
            )
            cell = json.loads(answer.stdout.splitlines()[-1])
            print(
                f"| {name} | {cell['seconds']:.1f} | {cell['mean']:.2%} | {cell['top']:.4%} |",
                flush=True,
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
