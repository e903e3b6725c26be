"""The Spark session of the command line, after checking that this machine can have one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_dphist.errors import ConfigurationError, ReleaseError

_LEAST_JAVA = {3: 8, 4: 17}
_SECONDS_TO_ANSWER = 60


def check_java() -> None:
    """Refuse a machine without a Java that this pyspark runs on, in one sentence with the mend.

    Raises
    ------
    ConfigurationError
        If there is no Java, it does not run, or it is too old.
    """
    spark_line = int(pyspark.__version__.split(".")[0])
    least = _LEAST_JAVA.get(spark_line, 17)
    mend = (
        f"Install Java {max(least, 17)} (Debian and Ubuntu: apt-get install "
        "openjdk-17-jre-headless) or point JAVA_HOME at one."
    )
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME ({home})" if home else "PATH"
        raise ConfigurationError(
            f"Spark needs Java {least} or newer; none was found in {where}. {mend}"
        )
    version = _java_version(java)
    if version is None:
        raise ConfigurationError(f"{java} is there, but does not run as Java. {mend}")
    if version < least:
        raise ConfigurationError(
            f"pyspark {pyspark.__version__} needs Java {least} or newer, got Java "
            f"{version} ({java}). {mend}"
        )


def _java_version(java: str) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS_TO_ANSWER,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found and not answer.returncode else None


def open_session(settings: Mapping[str, str]) -> SparkSession:
    """Return the running session, or start one with these settings.

    Under spark-submit, in a notebook and with SPARK_REMOTE set, the session is the environment's.

    Raises
    ------
    ConfigurationError
        If this machine has no Java that fits; see ``check_java``.
    ReleaseError
        If Spark does not start; nothing has been read.
    """
    remote = "SPARK_REMOTE" in os.environ or "spark.remote" in settings
    # spark-submit has started a JVM already and says where; Databricks always has.
    running = "PYSPARK_GATEWAY_PORT" in os.environ or "DATABRICKS_RUNTIME_VERSION" in os.environ
    if not (remote or running) and SparkSession.getActiveSession() is None:
        check_java()
    # Workers must run this very Python, whatever 'python3' is on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("spark-dphist")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ReleaseError(
            f"Spark did not start: {reason} Nothing was read or published. Check [spark.settings]; "
            "what Java wrote above says more."
        ) from None
