"""What one build gives, shipped to a cluster whose machines do not have the package."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from built_package import WHEEL, ZIP, build
from standalone import (
    REPOSITORY,
    SETTINGS,
    Cluster,
    requires_a_cluster,
    standalone_cluster,
    submit,
    told,
)

pytestmark = requires_a_cluster

JOB = REPOSITORY / "jobs" / "release.py"
CONFIGURATION = """
name = "months"
[input]
path = "records.parquet"
[groups]
columns = ["month"]
[groups.keys.product]
month = [1, 2, 3]
[mechanism]
name = "linear_log"
relative_error = 0.2
floor = 50
[output]
path = "out/months"
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dist")
    build(made)
    return made


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all that the package needs, but not the package."""
    folder = tmp_path_factory.mktemp("machine") / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    link_dependencies(folder)
    found = subprocess.run(
        [folder / "bin" / "python", "-c", "import numpy, spark_dphist"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={},
        check=False,
    )
    if "No module named 'spark_dphist'" not in found.stderr:
        pytest.skip("the package itself, not a link to this checkout, is installed here")
    return folder / "bin" / "python"


def link_dependencies(environment: Path) -> None:
    """Give it the packages of this Python; .pth files among them are not followed."""
    # As a statement, since venv-pack takes a plain path for an editable package.
    line = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})"
    (site_packages(environment) / "dependencies.pth").write_text(line + "\n")


def site_packages(environment: Path) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return environment / "lib" / version / "site-packages"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A directory with nothing but a configuration and its data."""
    (tmp_path / "release.toml").write_text(CONFIGURATION)
    # So far apart that fresh noise puts them in another order with probability below 1e-19.
    months = [1] * 30_000 + [2] * 500
    pq.write_table(pa.table({"month": months}), tmp_path / "records.parquet")
    return tmp_path


def assert_released(directory: Path) -> None:
    counts = pq.read_table(directory / "out" / "months").to_pydict()
    assert counts["month"] == [1, 2, 3]
    assert counts["noisy_count"][0] > counts["noisy_count"][1] > counts["noisy_count"][2]


def test_one_build_gives_the_same_wheel_and_zip_each_time(dist: Path, tmp_path: Path) -> None:
    names = sorted([WHEEL, ZIP])
    assert build(tmp_path) == names
    assert len({(folder / name).read_bytes() for folder in (dist, tmp_path) for name in names}) == 1
    inside = zipfile.ZipFile(dist / ZIP).namelist()
    assert "spark_dphist/spark/noise.py" in inside
    packaged = {name for name in inside if name.endswith(".py")}
    source = {
        str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "spark_dphist").rglob("*.py")
    }
    assert packaged == source


def test_without_the_zip_the_driver_of_a_cluster_is_told_how_to_ship_it(
    cluster: Cluster, dist: Path, python: Path, empty: Path
) -> None:
    """The driver alone has the package."""
    done = submit(
        ["--master", cluster.master, JOB, "release.toml"],
        cwd=empty,
        PYTHONPATH=str(dist / ZIP),
        PYSPARK_PYTHON=str(python),
    )
    assert done.returncode == 2, told(done)
    said = told(done)
    assert "Error: the executors lack spark_dphist" in said
    assert f"--py-files {ZIP}" in said
    assert not (empty / "out").exists()


def test_the_zip_runs_a_release_with_py_files(
    cluster: Cluster, dist: Path, python: Path, empty: Path
) -> None:
    done = submit(
        ["--master", cluster.master, "--py-files", dist / ZIP, JOB, "release.toml"],
        cwd=empty,
        PYSPARK_PYTHON=str(python),
    )
    assert done.returncode == 0, told(done)
    assert_released(empty)


@pytest.mark.usefixtures("python")
def test_a_packed_environment_runs_a_release_with_archives(
    cluster: Cluster, dist: Path, empty: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It is small: the dependencies are linked from this machine, only the package is packed."""
    venv_pack = pytest.importorskip("venv_pack")
    made = tmp_path_factory.mktemp("packed")
    environment = made / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    link_dependencies(environment)
    zipfile.ZipFile(dist / ZIP).extractall(site_packages(environment))
    archive = made / "environment.tar.gz"
    venv_pack.pack(prefix=str(environment), output=str(archive))
    settings = {
        **SETTINGS,
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": str(environment / "bin" / "python"),
    }
    done = submit(
        ["--master", cluster.master, "--archives", f"{archive}#environment", JOB, "release.toml"],
        cwd=empty,
        settings=settings,
        PYSPARK_PYTHON="",
    )
    assert done.returncode == 0, told(done)
    assert_released(empty)
