"""Runs iceberg_cases.py on two catalogs, in processes of their own: their Spark has another jar."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.spark


# A Hadoop catalog cannot rename a table, Hive's can: there only publication differs.
@pytest.mark.parametrize(
    ("catalog", "cases"), [("hadoop", ""), ("hive", "one_commit or asking_again")]
)
def test_releases_from_and_into_iceberg_tables(catalog: str, cases: str, tmp_path: Path) -> None:
    if not pyspark.__version__.startswith("3.5."):
        pytest.skip(f"Iceberg's jar is for pyspark 3.5, this is {pyspark.__version__}")
    if find_spec("snowpark_connect_deps_iceberg") is None:
        pytest.skip("needs Iceberg's jar: pip install snowpark-connect-deps-iceberg==1.0.1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", cases]
    ran = subprocess.run(
        [
            *command,
            f"--basetemp={tmp_path}/cases",
            str(Path(__file__).with_name("iceberg_cases.py")),
        ],
        env={**os.environ, "ICEBERG_CATALOG": catalog},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    assert " skipped" not in ran.stdout
