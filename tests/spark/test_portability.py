"""What must not depend on the machine, and what must not be used so that Connect works."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_group_key import PINNED

import spark_dphist

PACKAGE = Path(spark_dphist.__file__).parent
CLASSIC_ONLY = {"sparkContext", "_sc", "_jvm", "_jsc", "_jdf", "rdd", "SparkContext", "accumulator"}
# What is evicted from a cache is evaluated again, and noise must not be drawn again.
KEPT = {"cache", "persist", "checkpoint", "localCheckpoint", "cacheTable", "CACHE", "StorageLevel"}

ELSEWHERE = """
from pathlib import Path
import test_group_key, releases
from pyspark.sql import SparkSession
from spark_dphist.release import run_release
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
keys = [key for key, _ in test_group_key.PINNED]
print("KEYS", test_group_key.encodings(spark, test_group_key.FIELDS, keys))
request = releases.request_for(spark, Path({directory!r}))
release = run_release(spark, request, key=releases.KEY)
print("DIGESTS", release.audit.header.key_set_digest, release.audit.header.counts_digest)
"""


def sources() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 20
    return found


def names_used(*kinds: type[ast.AST]) -> set[tuple[str, str]]:
    """What the package names, by file: in nodes of these kinds, and in texts (``getattr``, SQL)."""
    used = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= {(path.name, word) for word in node.value.split()[:1]}
            elif isinstance(node, kinds):
                used.add((path.name, node.attr if isinstance(node, ast.Attribute) else node.id))
    assert any(name == "mapInArrow" for _, name in used)
    return used


def test_the_package_uses_nothing_that_spark_connect_lacks() -> None:
    used = names_used(ast.Attribute, ast.Name)
    assert not {(path, name) for path, name in used if name in CLASSIC_ONLY}


def test_the_package_caches_no_table() -> None:
    used = names_used(ast.Attribute)  # a bare `cache` is functools'
    assert not {(path, name) for path, name in used if name in KEPT}


def test_the_package_compares_with_no_class_of_classic_data_frames() -> None:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "isinstance":
                assert "DataFrame" not in ast.unparse(node), path
                assert "Column" not in ast.unparse(node), path


@pytest.fixture(scope="module")
def at_home(spark, tmp_path_factory) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    import releases

    from spark_dphist.release import run_release

    request = releases.request_for(spark, tmp_path_factory.mktemp("home"))
    header = run_release(spark, request, key=releases.KEY).audit.header
    return header.key_set_digest, header.counts_digest


@pytest.mark.usefixtures("same_on_connect")
def test_a_turkish_machine_on_samoa_makes_the_same_release(
    tmp_path: Path, at_home: tuple[str, str]
) -> None:
    """Locale and time zone of JVM and Python, not of the session alone."""
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE.format(directory=str(tmp_path))],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
            "JAVA_TOOL_OPTIONS": "-Duser.language=tr -Duser.country=TR "
            "-Duser.timezone=Pacific/Apia -XX:TieredStopAtLevel=1",
            "TZ": "Pacific/Apia",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONHASHSEED": "7",
        },
        capture_output=True,
        check=False,
        timeout=240,
    )
    printed = ran.stdout.decode(errors="replace")
    assert f"KEYS {[text for _, text in PINNED]}" in printed, ran.stderr[-3000:]
    assert "DIGESTS {} {}".format(*at_home) in printed, ran.stderr[-3000:]
