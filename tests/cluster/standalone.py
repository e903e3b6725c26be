"""A Spark cluster of several processes on loopback: one Master and two Workers of one core each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from waiting import wait_for

SPARK_HOME = Path(pyspark.__file__).parent
REPOSITORY = Path(__file__).parents[2]
# Short lives: the second compiler would take longer than it saves.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": _QUICK_START,
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _QUICK_START,
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "6",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Processes are found and killed by /proc, and Linux has the whole of 127.0.0.0/8.
requires_a_cluster = [
    pytest.mark.spark,
    pytest.mark.skipif(
        os.environ.get("SPARK_DPHIST_TEST_CONNECT") == "1",
        reason="these clusters have classic sessions of their own",
    ),
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or int(pyspark.__version__.split(".")[0]) < 4,
        reason="needs Linux, and pyspark 4 with which these clusters were tried",
    ),
]


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    master: str
    folder: Path


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that knows nothing of this checkout or the suite's session."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON"))
    }
    return {
        **kept,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _QUICK_START,
        **more,
    }


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    started: list[subprocess.Popen[bytes]] = []

    def start(role: str, *arguments: str, ready: str, host: str = "127.0.0.1") -> str:
        log = folder / f"{role}-{len(started)}.log"
        spark_class = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{role}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*spark_class, "--host", host, "--webui-port", "0", *arguments],
                env=environment(SPARK_LOCAL_IP=host),
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
        return wait_for(lambda: re.search(ready, log.read_text()), f"{role}, see {log}")[0]

    try:
        master = start("master.Master", "--port", "0", ready=r"spark://127\.0\.0\.1:\d+")
        size = ("--cores", "1", "--memory", "700m", "--work-dir", str(folder / "work"))
        # Two hosts, as Spark never puts two attempts at one task on the same.
        for host in ("127.0.0.1", "127.0.0.2"):
            ready = "Successfully registered with master"
            start("worker.Worker", *size, master, ready=ready, host=host)
        yield Cluster(master, folder)
    finally:
        for process in started:
            # With it go the executors and their Python workers, which it has started.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def submit(
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    settings: Mapping[str, str] = SETTINGS,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run spark-submit in a directory, with further environment variables."""
    configured = [each for item in settings.items() for each in ("--conf", "=".join(item))]
    return subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *configured, *map(str, arguments)],
        env=environment(**{"PYSPARK_PYTHON": sys.executable, **more}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def told(done: subprocess.CompletedProcess[str]) -> str:
    """What a process wrote, without the stacks of Java."""
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if not re.match(r"\s+(at |\.\.\. )|\d\d/", line))
