"""What the benchmarks that run Spark share: a session, peaks of memory, seconds."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet_session(memory: str = "8g", master: str = "local[2]") -> SparkSession:
    """Start Spark with this memory for the driver; 6 GB for each executor where it has its own."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(master)
        .config("spark.driver.memory", memory)
        .config("spark.executor.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def python_peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def jvm_peak_mb(spark: SparkSession) -> int:
    process = spark._jvm.java.lang.ProcessHandle.current().pid()
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a work took, and its result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
