"""Do the executors run this very version of the package? Asked before anything is charged."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import spark_dphist
from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of

# Spark splits them into a task for each core that it has at the moment.
_ROWS = 1024
_FOUND = T.StructType(
    [T.StructField("version", T.StringType()), T.StructField("fault", T.StringType())]
)
_NOTHING_DONE = "Nothing has been read, charged or written."


def check_executors(spark: SparkSession) -> None:
    """Refuse a session whose executors cannot run the noise stage of this version.

    A job without data asks on every core. Where the driver's own machine is the executor, and its
    Python the workers', there is nothing to ask, and no job is run.

    Raises
    ------
    ConfigurationError
        If executors lack the package or one of its dependencies, or have another version of it.
    """
    other = None
    if _is_local(spark):
        other = _other_python()
        if other is None:
            return

    # Nested, so that it is pickled by value: executors without the package can run it.
    def installed(_: int) -> tuple[str | None, str | None]:
        try:
            import spark_dphist
        except ModuleNotFoundError:
            return None, None
        try:
            import spark_dphist.spark.noise  # with all that the executors need
        except Exception as error:
            return spark_dphist.__version__, f"{type(error).__name__}: {error}"
        return spark_dphist.__version__, None

    # Without Arrow, which executors may lack.
    asked = F.udf(installed, _FOUND, useArrow=False)("id").alias("found")
    try:
        rows = spark.range(_ROWS).select(asked).select("found.version", "found.fault").collect()
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            f"the executors cannot run a Python function ({_cause(error)}). They need Python "
            f"{sys.version_info.major}.{sys.version_info.minor} like the driver, where "
            f"spark.pyspark.python or PYSPARK_PYTHON says. {_NOTHING_DONE}"
        ) from None
    try:
        _compare({(row.version, row.fault) for row in rows})
    except ConfigurationError as error:
        if other is None:
            raise
        raise ConfigurationError(
            f"this machine's Spark runs its workers with {other}, not with {sys.executable}: set "
            f"the environment's PYSPARK_PYTHON to the latter before the session starts ({error})"
        ) from None


def _compare(found: set[tuple[str | None, str | None]]) -> None:
    """Raise an error unless all executors have this version and can load it."""
    here = spark_dphist.__version__
    ship = (
        f"Ship the driver's to them: spark-submit --py-files spark_dphist-{here}.zip, or a packed "
        f"environment with --archives (docs/deploy.md). {_NOTHING_DONE}"
    )
    # Where only some of several executors differ, the job has met each kind.
    some = "some executors" if len({version for version, _ in found}) > 1 else "the executors"
    if any(version is None for version, _ in found):
        raise ConfigurationError(f"{some} lack spark_dphist, the driver has {here}. {ship}")
    others = sorted({version for version, _ in found if version and version != here})
    if others:
        raise ConfigurationError(
            f"{some} have spark_dphist {' and '.join(others)}, the driver has {here}. {ship}"
        )
    faults = sorted({fault for _, fault in found if fault})
    if faults:
        raise ConfigurationError(
            f"executors have spark_dphist {here}, but cannot load it ({'; '.join(faults)}). "
            "Install its dependencies on them, or ship a packed environment with --archives "
            f"(docs/deploy.md). {_NOTHING_DONE}"
        )


def _is_local(spark: SparkSession) -> bool:
    """Return whether driver and executors share one machine and one environment."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        # The server's environment is never known to be the client's.
        return False
    master = spark.conf.get("spark.master", None) or ""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _other_python() -> str | None:
    """Return the Python of local workers if it may be another one than this.

    Spark starts workers by name: ``python3``, unless PYSPARK_PYTHON says otherwise.
    """
    named = os.environ.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(named)
    # Links are not followed: those of a virtual environment lead out of it.
    if found is not None and Path(found).absolute().parent == Path(sys.executable).parent:
        return None
    return found or named


def _cause(error: Exception) -> str:
    """Name what went wrong; the job reads no data, so its message cannot quote any."""
    text = str(error)
    # The last line of a Python traceback, or the innermost of the errors on Java's first line.
    python: list[str] = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", text, re.MULTILINE)
    java: list[str] = re.findall(r"\w+(?:Error|Exception): (?!.*\w(?:Error|Exception): ).+", text)
    named = python[-1:] or java[:1] or [condition_of(error)]
    return str(named[0])[:300].strip().rstrip(".")
