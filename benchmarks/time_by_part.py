"""Where the time of a release's job goes: its plan put together part by part, beside plain Spark.

    python benchmarks/time_by_part.py --rows 1e7 --groups 1e6 --repeats 6
    python benchmarks/time_by_part.py --generated --rows 1e8 --groups 1e7 --repeats 2

Each line writes the same groups as Parquet, with one part more than the line before. Medians of
runs in turn, after a warm-up.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from measuring import quiet_session, timed
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import pandas_udf
from release_time import make_tables, plain

from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.request import GROUPS_PER_FILE
from spark_dphist.spark.counts import TRUE_COUNT, count_groups
from spark_dphist.spark.group_key import group_digest
from spark_dphist.spark.noise import add_noise, published_fields
from spark_dphist.spark.ordering import sorted_within
from spark_dphist.streams import ReleaseKey

PUBLISHED = T.StructType(published_fields("nearest"))


@pandas_udf(PUBLISHED)
def through_python(count: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(dict.fromkeys(PUBLISHED.names, count))


@pandas_udf(PUBLISHED)
def through_python_with_digest(_digest: pd.Series, count: pd.Series) -> pd.DataFrame:
    return pd.DataFrame(dict.fromkeys(PUBLISHED.names, count))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--groups", type=float, default=1e6)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--generated", action="store_true")
    arguments = parser.parse_args()
    spark = quiet_session()
    groups = int(arguments.groups)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records, keys = make_tables(spark, folder, int(arguments.rows), groups, arguments.generated)
        fields = [records.schema["key"]]
        files = max(-(-groups // GROUPS_PER_FILE), 1)
        counts = count_groups(records, keys, fields, files)
        count = F.col(TRUE_COUNT)

        def answered(answer) -> DataFrame:
            return counts.select("key", answer.alias("published")).select("key", "published.*")

        def noisy() -> DataFrame:
            mechanism = ShiftedLog.calibrate(relative_error=0.1, floor=50)
            return add_noise(counts, fields, mechanism, ReleaseKey.generate())

        parts: dict[str, Callable[[], DataFrame]] = {
            "counts of the declared groups": lambda: counts,
            "and through Python as three columns": lambda: answered(through_python(count)),
            "and the digest of each key": lambda: answered(
                through_python_with_digest(group_digest(fields), count)
            ),
            "and noise and intervals": noisy,
            "and in the order of the keys: the job": lambda: sorted_within(noisy(), fields),
        }
        works: dict[str, Callable[[str], None]] = {
            "plain Spark": lambda output: plain(records, keys, Path(output)),
            **{
                label: lambda output, part=part: part().write.parquet(output)
                for label, part in parts.items()
            },
        }
        taken: dict[str, list[float]] = {label: [] for label in works}
        for repeat in range(arguments.repeats + 1):
            for label, work in works.items():
                output = f"{name}/output"
                seconds, _ = timed(lambda work=work, output=output: work(output))
                shutil.rmtree(output)
                if repeat:
                    taken[label].append(seconds)
    medians = {label: statistics.median(seconds) for label, seconds in taken.items()}
    print("| part | seconds | of plain |\n|---|---:|---:|")
    for label, seconds in medians.items():
        print(f"| {label} | {seconds:.2f} | {seconds / medians['plain Spark']:.2f} |")


if __name__ == "__main__":
    main()
