"""The Databricks bundle, its jobs and its notebook: whatever can be checked without Databricks."""

from __future__ import annotations

import ast
import os
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from spark_dphist import cli, session

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "conf" / "databricks.yml"
NOTEBOOK = ROOT / "notebooks" / "release.py"
# Fields of the Jobs API that are used, by where they are.
TASK_FIELDS = {
    "task_key",
    "max_retries",
    "min_retry_interval_millis",
    "retry_on_timeout",
    "disable_auto_optimization",
    "job_cluster_key",
    "environment_key",
    "libraries",
    "python_wheel_task",
    "spark_python_task",
}


@pytest.fixture(scope="module")
def bundle() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(BUNDLE.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tasks(bundle: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(job, task) for job in bundle["resources"]["jobs"].values() for task in job["tasks"]]


def test_the_bundle_has_a_wheel_task_and_a_serverless_task(bundle: dict[str, Any]) -> None:
    assert set(bundle) == {"bundle", "variables", "sync", "artifacts", "resources", "targets"}
    for _, task in tasks(bundle):
        assert set(task) <= TASK_FIELDS
    (wheel,) = [task for _, task in tasks(bundle) if "python_wheel_task" in task]
    (serverless,) = [task for _, task in tasks(bundle) if "environment_key" in task]
    assert "job_cluster_key" in wheel
    assert "job_cluster_key" not in serverless
    assert serverless["disable_auto_optimization"] is True


def test_every_task_runs_on_what_its_job_declares(bundle: dict[str, Any]) -> None:
    for job, task in tasks(bundle):
        clusters = {each["job_cluster_key"] for each in job.get("job_clusters", [])}
        environments = {each["environment_key"] for each in job.get("environments", [])}
        assert task.get("job_cluster_key") in {*clusters, None}
        assert task.get("environment_key") in {*environments, None}
        assert ("job_cluster_key" in task) != ("environment_key" in task)


def test_the_entry_point_and_the_package_are_the_project_s(
    bundle: dict[str, Any], project: dict[str, Any]
) -> None:
    (task,) = [
        each["python_wheel_task"] for _, each in tasks(bundle) if "python_wheel_task" in each
    ]
    assert task["package_name"].replace("_", "-") == project["name"]
    module, function = project["scripts"][task["entry_point"]].split(":")
    assert getattr(sys.modules[module], function) is cli.job


def test_all_files_that_the_bundle_names_exist(bundle: dict[str, Any]) -> None:
    folder = BUNDLE.parent
    named = [
        task["spark_python_task"]["python_file"]
        for _, task in tasks(bundle)
        if "spark_python_task" in task
    ]
    assert named
    for path in [*named, *bundle["sync"]["paths"], bundle["artifacts"]["wheel"]["path"]]:
        assert (folder / path).resolve().exists(), path
    assert (folder / bundle["artifacts"]["wheel"]["path"] / "pyproject.toml").is_file()


def test_both_jobs_are_retried_under_the_release_id_of_their_run(bundle: dict[str, Any]) -> None:
    """A retry with another id would spend again."""
    for job, task in tasks(bundle):
        (parameter,) = job["parameters"]
        assert parameter["name"] == "release_id"
        assert job["max_concurrent_runs"] == 1
        step = task.get("python_wheel_task") or task["spark_python_task"]
        assert "{{job.parameters.release_id}}" in step["parameters"]
        assert task["max_retries"] <= 1
        assert task["retry_on_timeout"] is False


def test_no_secret_stands_in_the_bundle(bundle: dict[str, Any]) -> None:
    (cluster,) = [
        each["new_cluster"]
        for job in bundle["resources"]["jobs"].values()
        for each in job.get("job_clusters", [])
    ]
    assert cluster["spark_env_vars"]["PGPASSWORD"].startswith("{{secrets/")
    declared = set(bundle["variables"])
    used = BUNDLE.read_text(encoding="utf-8").split("${var.")[1:]
    assert {each.split("}")[0] for each in used} == declared


def test_the_parameters_of_the_wheel_task_are_a_command_line(bundle: dict[str, Any]) -> None:
    (task,) = [
        each["python_wheel_task"] for _, each in tasks(bundle) if "python_wheel_task" in each
    ]
    *arguments, release_id = task["parameters"]
    assert arguments == ["run", "${var.configuration}", "--release-id"]
    with pytest.raises(SystemExit) as left:
        cli.job(["run", "/no/such/file.toml", "--release-id", "visits-2024-01-01"])
    assert left.value.code == 2
    assert release_id


def test_a_job_that_went_well_returns(capsys: pytest.CaptureFixture[str]) -> None:
    cli.job(["--version"])
    assert capsys.readouterr().out.strip()


def test_the_serverless_job_fetches_the_password_and_runs_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, ran = [], []
    secrets = SimpleNamespace(get=lambda scope, key: asked.append((scope, key)) or "tiger")
    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = SimpleNamespace(secrets=secrets)  # type: ignore[attr-defined]
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    monkeypatch.setattr(
        cli, "job", lambda arguments: ran.append((arguments, os.environ["PGPASSWORD"]))
    )
    monkeypatch.setenv("PGPASSWORD", "")
    monkeypatch.setattr(
        sys, "argv", ["it", "visits.toml", "visits-1", "spark-dphist/ledger-password"]
    )
    runpy.run_path(str(ROOT / "jobs" / "databricks_serverless.py"), run_name="__main__")
    assert asked == [("spark-dphist", "ledger-password")]
    assert ran == [(["run", "visits.toml", "--release-id", "visits-1"], "tiger")]


def test_on_databricks_no_java_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        def appName(self, _: str) -> Builder:  # noqa: N802 - pyspark's name
            return self

        def getOrCreate(self) -> str:  # noqa: N802
            return "the session of the runtime"

    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "16.4")
    monkeypatch.setattr(session, "check_java", lambda: pytest.fail("looked for Java"))
    fake = SimpleNamespace(builder=Builder(), getActiveSession=lambda: None)
    monkeypatch.setattr(session, "SparkSession", fake)
    assert session.open_session({}) == "the session of the runtime"


def test_the_notebook_is_in_source_format() -> None:
    source = NOTEBOOK.read_text(encoding="utf-8")
    first, *cells = source.split("\n# COMMAND ----------\n")
    assert first.startswith("# Databricks notebook source\n# MAGIC %md\n")
    assert len(cells) > 10
    for cell in cells:
        lines = cell.strip().splitlines()
        magic = [line.startswith("# MAGIC") for line in lines]
        assert all(magic) or not any(magic)
        if not any(magic):
            ast.parse(cell)
    wheels = [line for line in source.splitlines() if line.startswith("# MAGIC %pip")]
    assert len(wheels) == 1


def test_the_notebook_installs_this_version(project: dict[str, Any]) -> None:
    from spark_dphist import __version__

    (line,) = [line for line in NOTEBOOK.read_text(encoding="utf-8").splitlines() if "%pip" in line]
    assert f"spark_dphist-{__version__}-py3-none-any.whl" in line
    extras = line.split("[")[1].split("]")[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
