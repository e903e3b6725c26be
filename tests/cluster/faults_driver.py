"""The driver of one application on a real cluster, which makes releases while things break.

``faults_driver.py MASTER FOLDER [SCENARIO...]`` prints, as its last line, JSON with what it saw of
each release: of those that are named, or of all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from releases import KEY, MECHANISM, request_for, with_confidential_audit
from standalone import REPOSITORY, SETTINGS
from waiting import wait_for

from spark_dphist.accounting.ledger import Caps, Ledger
from spark_dphist.mechanisms import ShiftedLog
from spark_dphist.release import run_release
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.storage import PathTarget

GROUPS = 400
BATCH = 16
# Of the noise stage, which writes a file in each.
PARTITIONS = 6


@dataclass(frozen=True, kw_only=True)
class Watched(ShiftedLog):
    """The mechanism of every release here; each batch that has its noise leaves a file.

    ``waits`` says which tasks stop after their first batch until the file ``go`` is there.
    """

    folder: str = ""
    waits: str = "none"

    def decode(self, lattice):
        from pyspark import TaskContext

        task = TaskContext.get()
        if task is not None:
            folder = Path(self.folder)
            partition, attempt = task.partitionId(), task.taskAttemptId()
            mine = f"{partition}-{attempt}-"
            batch = len(list(folder.glob(f"{mine}*")))
            (folder / f"{mine}{batch}").write_text(json.dumps([os.getpid(), task.attemptNumber()]))
            concerned = {
                "none": False,
                # The first two partitions, one for each executor, get through.
                "second wave": partition >= 2,
                # Every attempt, so that none is finished before another has begun.
                "first partition": partition == 0,
            }
            deadline = time.monotonic() + 60
            while batch == 1 and concerned[self.waits] and not (folder / "go").exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("nobody said go")
                time.sleep(0.05)
        return super().decode(lattice)


def watched(folder, waits="none"):
    folder.mkdir()
    parameters = {each.name: getattr(MECHANISM, each.name) for each in fields(MECHANISM)}
    return Watched(**parameters, folder=str(folder), waits=waits)


def traces(folder):
    """What the batches left: (partition, attempt id, batch, process id, attempt number)."""
    return [
        (*map(int, path.name.split("-")), *json.loads(path.read_text() or "[0, 0]"))
        for path in folder.glob("*-*-*")
    ]


def executor_above(process):
    """Return the executor's JVM that a Python worker belongs to."""
    while process > 1:
        if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{process}/cmdline").read_bytes():
            return process
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    raise LookupError("no executor above the worker")


def kill_an_executor_that_has_finished_a_task_and_is_at_another(folder):
    def victims():
        executors = {}
        for partition, attempt, batch, process, _ in traces(folder):
            if process:
                executors.setdefault(executor_above(process), []).append(
                    (partition, attempt, batch)
                )
        for executor, seen in executors.items():
            partitions = {partition for partition, _, _ in seen}
            if any(p < 2 for p in partitions) and any(p >= 2 and b == 1 for p, _, b in seen):
                return executor
        return None

    victim = wait_for(victims, "an executor at its second task")
    os.kill(victim, signal.SIGKILL)
    return victim


def see_two_attempts(folder):
    """Both wait at their second batch until this returns, so they are at work at the same time."""

    def both():
        waiting = [each for each in traces(folder) if each[0] == 0 and each[2] == 1]
        return waiting if len(waiting) == 2 else None

    return wait_for(both, "a speculative attempt at partition 0 beside the first")


class Session:
    def __init__(self, master, folder):
        self.folder = folder
        builder = SparkSession.builder.master(master).appName("faults")
        settings = {
            **SETTINGS,
            # Several batches in each task.
            "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH),
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.minTaskRuntime": "2s",
            "spark.speculation.quantile": "0.5",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        # For the workers alone: what the executors have in common cannot be taken back.
        self.spark.sparkContext.environment["PYTHONPATH"] = str(REPOSITORY)
        self.ledger = Ledger.initialise(f"sqlite:///{folder}/ledger.db")
        self.ledger.add_dataset("events", Caps.of(rho=100))

    def request(self, name, mechanism, records=None):
        if records is None:
            records = self.spark.range(200_000, numPartitions=4).select(
                (F.col("id") * F.col("id") % GROUPS).cast("int").alias("month")
            )
        place = self.folder / "out" / name
        return request_for(
            self.spark,
            place,
            output=PathTarget(str(place / "counts"), name),
            release_id=name,
            dataset="events",
            records=records,
            columns=["month"],
            key_set=KeySet.product({"month": list(range(GROUPS))}),
            mechanism=mechanism,
            files=PARTITIONS,
        )

    def run(self, request):
        """Make the release and tell how it ended."""
        before = self.ledger.balance("events").spent
        error = None
        try:
            run_release(self.spark, request, ledger=self.ledger, key=KEY)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            shown = traceback.format_exc()
            error = shown if "ReleaseError" not in shown and "Configur" not in shown else error
        held = self.ledger.find(request.release_id)
        return {
            "error": error,
            "state": held.state.value if held else None,
            "charged": str(self.ledger.balance("events").spent - before),
            "half_done": [each.release_id for each in self.ledger.half_done("events")],
            "left": sorted(
                path.name for path in (self.folder / "out" / request.release_id).glob("*")
            ),
        }

    def watched_run(self, name, waits="none", beside=None, *, vault=None):
        watching = self.folder / f"watch-{name}"
        request = self.request(name, watched(watching, waits))
        if vault:
            request = with_confidential_audit(request, vault / name)

        def look():
            try:
                return beside(watching)
            finally:
                (watching / "go").touch()

        with ThreadPoolExecutor() as pool:
            looking = pool.submit(look) if beside else None
            seen = self.run(request)
            beside_it = looking.result() if looking else None
        application = self.spark.sparkContext.applicationId
        return {
            **seen,
            "application": application,
            "beside": beside_it,
            "traces": traces(watching),
        }

    def failing_for_good(self):
        folder = self.folder / "attempts"
        folder.mkdir()
        directory = str(folder)

        def fails(batches):
            import uuid

            (Path(directory) / uuid.uuid4().hex).touch()
            raise ValueError("record 4711 is not what was expected")
            yield from batches

        records = self.request("any", MECHANISM).records.coalesce(1)
        seen = self.run(
            self.request("fails", MECHANISM, records.mapInPandas(fails, records.schema))
        )
        return {**seen, "attempts": len(list(folder.iterdir()))}

    def with_executors_that(self, name, python, path):
        """Run with another Python and PYTHONPATH on the executors."""
        context = self.spark.sparkContext
        kept = context.pythonExec, dict(context.environment)
        context.pythonExec = str(python)
        context.environment["PYTHONPATH"] = str(path)
        try:
            return self.run(self.request(name, MECHANISM))
        finally:
            context.pythonExec = kept[0]
            context.environment.update(kept[1])

    def with_another_python_than_the_driver(self):
        self.spark.sparkContext.pythonVer = "3.1"
        return self.run(self.request("old-python", MECHANISM))


def main(master, folder, *wanted):
    session = Session(master, folder)
    bare, other = folder / "bare" / "bin" / "python", folder / "other"
    scenarios = {
        "undisturbed": lambda: session.watched_run("undisturbed"),
        "killed": lambda: session.watched_run(
            "killed", "second wave", kill_an_executor_that_has_finished_a_task_and_is_at_another
        ),
        "speculated": lambda: session.watched_run(
            "speculated",
            "first partition",
            see_two_attempts,
            vault=folder / "vault",
        ),
        "fails": session.failing_for_good,
        "lacking": lambda: session.with_executors_that("lacking", bare, folder / "empty"),
        "outdated": lambda: session.with_executors_that("outdated", bare, other),
        "incomplete": lambda: session.with_executors_that("incomplete", bare, REPOSITORY),
        "no-python": lambda: session.with_executors_that("no-python", folder / "none", other),
        "old-python": session.with_another_python_than_the_driver,
    }
    seen = {}
    for name in wanted or scenarios:
        began = time.monotonic()
        try:
            seen[name] = scenarios[name]()
        except Exception:
            seen[name] = {"crash": traceback.format_exc()}
        print(name, round(time.monotonic() - began, 1), file=sys.stderr)
    print(json.dumps(seen))
    session.spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
