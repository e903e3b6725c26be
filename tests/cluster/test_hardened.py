"""The release under conf/spark-hardened.conf, on a cluster that local-cluster starts."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from releases import KEY, request_for
from standalone import REPOSITORY, SETTINGS, SPARK_HOME, requires_a_cluster, submit, told

from spark_dphist.release import run_release

pytestmark = requires_a_cluster

HARDENED = REPOSITORY / "conf" / "spark-hardened.conf"
SETTING = re.compile(r"^(spark\.\S+)\s+(.+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hardened")


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    private = folder / "private.conf"
    private.touch(mode=0o600)
    secret = secrets.token_hex(32)
    private.write_text(f"{HARDENED.read_text()}\nspark.authenticate.secret {secret}\n")
    settings = {
        **{name: value for name, value in SETTINGS.items() if name != "spark.ui.enabled"},
        "spark.master": "local-cluster[2,1,1024]",
        "spark.executorEnv.PYTHONPATH": str(REPOSITORY),
        "spark.local.dir": str(folder / "local"),
        # Ids have the second in them, and what executors write lies under the id: not another's.
        "spark.deploy.appIdPattern": f"app-{os.getpid()}-%s-%04d",
        # So that a search in the files could find something.
        "spark.cleaner.referenceTracking": "false",
        "spark.shuffle.compress": "false",
        "spark.sql.classic.shuffleDependency.fileCleanup.enabled": "false",
    }
    names = dict(SETTING.findall(HARDENED.read_text()))
    script = Path(__file__).with_name("hardened_driver.py")
    done = submit(
        ["--properties-file", private, script, folder, *names],
        cwd=folder,
        settings=settings,
        PYTHONPATH=f"{REPOSITORY}/tests/spark:{REPOSITORY}/tests:{REPOSITORY}",
    )
    assert done.returncode == 0, told(done)
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # local-cluster knows no other place for them.
    written_by_executors = SPARK_HOME / "work" / read["application"]
    logs = [(written_by_executors / number / "stderr").read_text() for number in ("0", "1")]
    shutil.rmtree(written_by_executors)
    return {**read, "logs": logs, "secret": secret}


def test_two_executors_authenticate_themselves_and_do_not_log_the_secret(
    seen: dict[str, Any],
) -> None:
    assert seen["executors"] == 2
    for log in seen["logs"]:
        assert "authentication enabled" in log
        assert seen["secret"] not in log


def test_no_group_can_be_read_in_the_shuffle_files(seen: dict[str, Any]) -> None:
    """Without encryption it can: they are not compressed here."""
    assert seen["shuffle_files"] > 0
    assert seen["shuffle_files_with_a_group"] == 0


def test_every_hardened_setting_is_known_to_spark_and_in_force(seen: dict[str, Any]) -> None:
    settings = dict(SETTING.findall(HARDENED.read_text()))
    assert len(settings) == 14
    assert {name: seen["settings"].get(name) for name in settings} == settings
    assert seen["unknown"] == []


def test_directly_above_every_hardened_setting_stands_its_own_comment() -> None:
    """And not the heading of a section, which starts with ``# --``."""
    lines = HARDENED.read_text().splitlines()
    above = {line: lines[number - 1] for number, line in enumerate(lines) if SETTING.match(line)}
    assert [line for line, comment in above.items() if not re.match("# (?!--)", comment)] == []


@pytest.mark.usefixtures("seen")
def test_the_release_is_the_one_of_local_mode(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """Same records, same key: two executor processes, encryption and local threads agree."""
    run_release(spark, request_for(spark, tmp_path), key=KEY)
    for table in ("counts", "counts_audit_groups"):
        assert pq.read_table(folder / "out" / table).equals(pq.read_table(tmp_path / table))


def test_secrets_are_redacted_wherever_spark_shows_its_settings(seen: dict[str, Any]) -> None:
    pattern = re.compile(seen["settings"]["spark.redaction.regex"])
    secret = [
        "spark.authenticate.secret",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.fixed.token",
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net",
        "spark.ssl.keyPassword",
        "javax.jdo.option.ConnectionPassword",
        "spark.hadoop.google.cloud.auth.service.account.private.key",
    ]
    assert [name for name in secret if not pattern.search(name)] == []
    assert not pattern.search("spark.app.name")
