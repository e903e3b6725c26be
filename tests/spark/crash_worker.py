"""A process that makes a release with a ledger and is killed in the middle of it. Run by the tests.

``crash_worker.py FOLDER ID WHERE [overwrite]`` uses the JVM that the environment names, as a
notebook does; ``crash_worker.py --own-jvm FOLDER ID WHERE`` starts one, in which tasks are run
again, and first checks that a task's second attempt keeps the same records of a unit.

WHERE is the first word of a step, ``job`` (killed by the function that reads the records),
``target-N`` (after N targets were published), ``moved`` (after the first was moved into place) or
``end``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path

from releases import KEY, confidential_records, request_for, with_confidential_audit

from spark_dphist.accounting.ledger import Ledger
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.release import run_release
from spark_dphist.spark import storage
from spark_dphist.spark.bounding import bound_contributions, unit_field
from spark_dphist.spark.storage import PathTarget


def attached_session():
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    running = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(running)
    return SparkSession(SparkContext(gateway=gateway, jsc=java_context))


def own_session():
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]")
    for name in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(name, "false")
    return builder.config("spark.sql.shuffle.partitions", "3").getOrCreate()


def check_second_attempts(spark):
    """Compare what is kept of each unit with and without first attempts that die half-way."""

    def dies_at_first(batches):
        from pyspark import TaskContext

        for batch in batches:
            if TaskContext.get().attemptNumber() == 0:
                yield batch.iloc[: len(batch) // 2]
                raise RuntimeError("the first attempt dies")
            yield batch

    records = spark.range(4000).selectExpr("id % 97 AS user", "concat(id % 97, ':', id % 7) AS g")
    fields = [records.schema["g"]]
    unit = PrivacyUnit(column="user", max_records=3)
    identifier = unit_field(records.schema, unit, "the records")
    kept = [
        Counter(
            row.g for row in bound_contributions(given, fields, unit, identifier, KEY).collect()
        )
        for given in (records, records.mapInPandas(dies_at_first, records.schema))
    ]
    assert kept[0] == kept[1]
    assert kept[0].total() == 97 * 3
    print("second attempts keep the same", flush=True)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def killing(records, driver):
    def kill(batches):
        import os
        import signal
        from contextlib import suppress

        # Other partitions may have killed it already.
        with suppress(ProcessLookupError):
            os.kill(driver, signal.SIGKILL)
        yield from batches

    return records.mapInArrow(kill, records.schema)


def die_when_published(targets):
    publish, done = PathTarget.publish, []

    def counted(self, spark):
        publish(self, spark)
        done.append(self)
        if len(done) == targets:
            die()

    PathTarget.publish = counted


def main(arguments):
    own = "--own-jvm" in arguments
    folder, release_id, where, *rest = [each for each in arguments if each != "--own-jvm"]
    spark = own_session() if own else attached_session()
    if own:
        check_second_attempts(spark)
    records = confidential_records(spark, {("AA", 1): 300, (None, 2): 40})
    if where == "job":
        records = killing(records, os.getpid())
    elif where.startswith("target-"):
        die_when_published(int(where.removeprefix("target-")))
    elif where == "moved":
        storage._delete = lambda *_: die()

    def step(sentence):
        if sentence.split()[0] == where:
            die()

    run_release(
        spark,
        crash_request(spark, Path(folder), release_id, records, overwrite=bool(rest)),
        ledger=Ledger(f"sqlite:///{folder}/ledger.db"),
        on_step=step,
    )
    die()


def crash_request(spark, folder, release_id, records, *, overwrite=False):
    """The request of the process that is killed, and of the one that asks again."""
    place = PathTarget(
        str(folder / "out" / ("shared" if overwrite else release_id)),
        release_id,
        mode="overwrite" if overwrite else "error",
    )
    request = request_for(
        spark,
        folder / "out",
        output=place,
        release_id=release_id,
        dataset="flights",
        records=records,
    )
    return with_confidential_audit(request, folder / "vault" / release_id)


if __name__ == "__main__":
    main(sys.argv[1:])
