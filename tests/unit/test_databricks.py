"""The Databricks bundle, its jobs and its notebook: whatever can be checked without Databricks."""

from __future__ import annotations

import ast
import copy
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from example_policy import GROUPS_AND_MECHANISM
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from spark_dphist import cli, session
from spark_dphist.intervals import load_for_interval, parse_interval

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "conf" / "databricks.yml"
NOTEBOOK = ROOT / "notebooks" / "release.py"
# Fields of bundles and of the Jobs API that are used, by where they are; * is any name.
FIELDS = {
    "": "bundle variables sync artifacts resources targets",
    "bundle": "name",
    "variables.*": "description default",
    "sync": "paths",
    "artifacts.*": "type path build dynamic_version",
    "resources": "jobs",
    "resources.jobs.*": "name max_concurrent_runs parameters tasks job_clusters environments",
    "resources.jobs.*.parameters": "name default",
    "resources.jobs.*.tasks": "task_key max_retries min_retry_interval_millis retry_on_timeout "
    "disable_auto_optimization job_cluster_key environment_key libraries python_wheel_task "
    "spark_python_task",
    "resources.jobs.*.tasks.python_wheel_task": "package_name entry_point parameters",
    "resources.jobs.*.tasks.spark_python_task": "python_file parameters",
    "resources.jobs.*.tasks.libraries": "whl pypi",
    "resources.jobs.*.tasks.libraries.pypi": "package",
    "resources.jobs.*.job_clusters": "job_cluster_key new_cluster",
    "resources.jobs.*.job_clusters.new_cluster": "spark_version node_type_id num_workers "
    "data_security_mode spark_env_vars spark_conf",
    "resources.jobs.*.job_clusters.new_cluster.spark_env_vars": "PGPASSWORD",
    "resources.jobs.*.job_clusters.new_cluster.spark_conf": "spark.io.encryption.enabled",
    "resources.jobs.*.environments": "environment_key spec",
    "resources.jobs.*.environments.spec": "environment_version dependencies",
    "targets.*": "mode default workspace run_as",
    "targets.*.workspace": "root_path",
    "targets.*.run_as": "service_principal_name",
}
NAMED_FREELY = {"variables", "artifacts", "resources.jobs", "targets"}


@pytest.fixture(scope="module")
def bundle() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(BUNDLE.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def tasks(bundle: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(job, task) for job in bundle["resources"]["jobs"].values() for task in job["tasks"]]


def unknown_fields(value: Any, place: str = "") -> list[str]:
    """Fields, at any depth, that are not among those that this place may have."""
    if isinstance(value, list):
        return [fault for each in value for fault in unknown_fields(each, place)]
    if not isinstance(value, dict):
        return []
    known = None if place in NAMED_FREELY else FIELDS.get(place, "").split()
    found = []
    for name, inner in value.items():
        if known is not None and name not in known:
            found.append(f"{place}.{name}")
        below = f"{place}.{'*' if known is None else name}".removeprefix(".")
        found += unknown_fields(inner, below)
    return found


def test_no_field_of_the_bundle_is_misspelt(bundle: dict[str, Any]) -> None:
    assert set(bundle) == set(FIELDS[""].split())
    assert unknown_fields(bundle) == []


def test_a_misspelt_field_is_found_at_any_depth(bundle: dict[str, Any]) -> None:
    for place in ["resources.jobs.visits", "targets.prod.workspace", "artifacts.wheel", "bundle"]:
        misspelt = copy.deepcopy(bundle)
        part = misspelt
        for name in place.split("."):
            part = part[name]
        part["max_concurent_runs"] = 1
        assert len(unknown_fields(misspelt)) == 1
    for where in ["job_clusters", "environments"]:
        misspelt = copy.deepcopy(bundle)
        (section,) = [
            job[where][0] for job in misspelt["resources"]["jobs"].values() if where in job
        ]
        (inner,) = [each for each in section.values() if isinstance(each, dict)]
        inner["enviroment"] = "3"
        assert len(unknown_fields(misspelt)) == 1


def test_the_bundle_has_a_wheel_task_and_a_serverless_task(bundle: dict[str, Any]) -> None:
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


def test_both_jobs_are_retried_for_the_interval_of_their_run(bundle: dict[str, Any]) -> None:
    """A retry with another id would spend again."""
    for job, task in tasks(bundle):
        (parameter,) = job["parameters"]
        assert parameter["name"] == "interval"
        # Of the run, not of the task: a repeated task finds the same.
        began = "{{job.start_time.iso_date}}"
        assert began in parameter["default"]
        asked = parse_interval(parameter["default"].replace(began, "2026-02-03"))
        assert asked.name == "2026-01"
        assert job["max_concurrent_runs"] == 1
        step = task.get("python_wheel_task") or task["spark_python_task"]
        assert "{{job.parameters.interval}}" in step["parameters"]
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
    *arguments, interval = task["parameters"]
    assert arguments == ["run", "${var.configuration}", "--interval"]
    assert interval == "{{job.parameters.interval}}"
    with pytest.raises(SystemExit) as left:
        cli.job(["run", "/no/such/file.toml", "--interval", "month before 2024-02-01"])
    assert left.value.code == 2


def test_production_lies_where_nobody_else_may_write(bundle: dict[str, Any]) -> None:
    home = "/Workspace/Users/${workspace.current_user.userName}/"
    assert bundle["targets"]["prod"]["workspace"]["root_path"].startswith(home)
    assert "/Shared" not in BUNDLE.read_text(encoding="utf-8")


def test_a_wheel_that_was_built_again_is_not_taken_for_the_cached_one(
    bundle: dict[str, Any],
) -> None:
    assert bundle["artifacts"]["wheel"]["dynamic_version"] is True


def brought(requirements: Iterable[str], project: dict[str, Any]) -> set[str]:
    """Names of everything that pip would install for requirements, as far as it is known here.

    The project's own dependencies and extras are those of pyproject.toml, others' are those of the
    installed packages.
    """
    queue, seen = [Requirement(each) for each in requirements], set()
    while queue:
        wanted = queue.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name == project["name"]:
            listed = [*project["dependencies"]]
            for extra in extras:
                listed += project["optional-dependencies"][extra]
        else:
            try:
                listed = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                listed = []
        queue += [
            each
            for each in map(Requirement, listed)
            if each.marker is None
            or any(each.marker.evaluate({"extra": extra}) for extra in ["", *extras])
        ]
    return {name for name, _ in seen}


def test_nothing_that_databricks_installs_brings_pyspark(
    bundle: dict[str, Any], project: dict[str, Any]
) -> None:
    """Another pyspark than that of Databricks stops a serverless session."""
    own = project["name"]
    libraries = [each for _, task in tasks(bundle) for each in task.get("libraries", [])]
    installed = [each.get("whl") or each["pypi"]["package"] for each in libraries]
    for job in bundle["resources"]["jobs"].values():
        for environment in job.get("environments", []):
            installed += environment["spec"]["dependencies"]
    requirements = [own if each.endswith(".whl") else each for each in installed]
    assert requirements.count(own) == 2
    (line,) = [line for line in NOTEBOOK.read_text(encoding="utf-8").splitlines() if "%pip" in line]
    requirements.append(line.split('"')[1].split("@")[0])
    everything = brought(requirements, project)
    # It looks through extras, and into the packages themselves.
    assert {"psycopg", "deltalake", "matplotlib", "contourpy", "numpy"} <= everything
    assert not {"pyspark", "databricks-connect", "pyspark-client"} & everything
    assert "pyspark" in brought([f"{own}[spark]"], project)


def test_who_tries_it_or_tests_it_gets_pyspark(project: dict[str, Any]) -> None:
    for extra in ["spark", "flights", "connect", "test"]:
        assert "pyspark" in brought([f"spark-dphist[{extra}]"], project)


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
        sys, "argv", ["it", "visits.toml", "2026-01", "spark-dphist/ledger-password"]
    )
    runpy.run_path(str(ROOT / "jobs" / "databricks_serverless.py"), run_name="__main__")
    assert asked == [("spark-dphist", "ledger-password")]
    assert ran == [(["run", "visits.toml", "--interval", "2026-01"], "tiger")]


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


def test_the_documented_template_gives_each_interval_its_own(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "databricks.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    template = tmp_path / "visits.toml"
    template.write_text("".join([*blocks, GROUPS_AND_MECHANISM]), encoding="utf-8")
    january = load_for_interval(template, "month before 2026-02-03")
    assert january.release_id == "visits-2026-01"
    assert january.input.counted.endswith("where day from 2026-01-01 before 2026-02-01")
    # The tables that analysts get to read are those that are published.
    granted = re.findall(r"GRANT SELECT ON TABLE (\S+) TO `analysts`", page)
    published = january.output.table
    assert published is not None
    suffixes = ["", "_audit_groups", "_audit_header"]
    assert granted == [f"{published[:-1]}{suffix}`" for suffix in suffixes]
    assert january.confidential_audit is not None
    assert january.confidential_audit.path.endswith("visits-2026-01")


@pytest.mark.parametrize("who", ["releases", "analysts", "privacy_officers"])
def test_who_may_read_may_use_the_schema_and_the_catalog_too(who: str) -> None:
    """Unity Catalog asks for all three."""
    page = (ROOT / "docs" / "databricks.md").read_text(encoding="utf-8")
    grants = re.findall(r"GRANT ([A-Z, ]+) ON \w+ (\S+) TO `(\w+)`;", page)
    held = {
        (right, where) for rights, where, to in grants if to == who for right in rights.split(", ")
    }
    needed = {
        ".".join(where.split(".")[:2])
        for right, where in held
        if right in ("SELECT", "READ VOLUME", "WRITE VOLUME", "MODIFY", "CREATE TABLE")
    }
    assert needed
    assert {("USE SCHEMA", schema) for schema in needed} <= held
    assert ("USE CATALOG", "main") in held


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
    (wheel,) = [number for number, cell in enumerate(cells) if "# MAGIC %pip" in cell]
    # What was imported before stays loaded otherwise.
    assert "\ndbutils.library.restartPython()\n" in cells[wheel + 1]
    assert all(cell.strip().startswith("# MAGIC") for cell in cells[:wheel])


def test_the_notebook_installs_this_version(project: dict[str, Any]) -> None:
    from spark_dphist import __version__

    (line,) = [line for line in NOTEBOOK.read_text(encoding="utf-8").splitlines() if "%pip" in line]
    assert f"spark_dphist-{__version__}-py3-none-any.whl" in line
    extras = line.split("[")[1].split("]")[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
