"""Releases on a cluster of several processes, while executors die, stall and lack the package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from standalone import (
    REPOSITORY,
    SPARK_HOME,
    environment,
    requires_a_cluster,
    standalone_cluster,
    told,
)

import spark_dphist
from spark_dphist.accounting.ledger import Ledger

pytestmark = requires_a_cluster

HERE = Path(__file__).parent
GROUPS = 400
# Of 200,000 records, by n² mod 400: the squares.
SQUARES = {n * n % GROUPS for n in range(GROUPS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made / "bare"], check=True)
    older = made / "other" / "spark_dphist"
    older.mkdir(parents=True)
    (older / "__init__.py").write_text('__version__ = "0.0.9"\n')
    return made


def drive(master: str, folder: Path, *scenarios: str) -> dict[str, Any]:
    """Run one application that makes the releases of these scenarios, or of all."""
    paths = [HERE, REPOSITORY / "tests" / "spark", REPOSITORY / "tests", REPOSITORY]
    done = subprocess.run(
        [sys.executable, HERE / "faults_driver.py", master, folder, *scenarios],
        env=environment(
            PYSPARK_PYTHON=sys.executable, PYTHONPATH=":".join(str(path) for path in paths)
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, told(done)
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert [each["crash"] for each in read.values() if "crash" in each] == []
    return read


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    logs = folder / "cluster"
    logs.mkdir()
    with standalone_cluster(logs) as cluster:
        return drive(cluster.master, folder)


@pytest.fixture(scope="module")
def seen_on_local_cluster(folder: Path) -> dict[str, Any]:
    """Its executors are processes too, but on one host, where nothing is speculated on."""
    own = folder / "local-cluster"
    own.mkdir()
    read = drive("local-cluster[2,1,1024]", own, "killed")
    # local-cluster knows no other place for what executors write.
    shutil.rmtree(SPARK_HOME / "work" / read["killed"]["application"])
    return read


def stored(folder: Path, release: str, table: str = "counts") -> pa.Table:
    return pq.read_table(folder / "out" / release / table).sort_by("month")


def attempts_by_partition(traces: list[list[int]]) -> dict[int, dict[int, int]]:
    """Return how many batches each attempt at each partition has drawn."""
    drawn: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for partition, attempt, *_ in traces:
        drawn[partition][attempt] += 1
    return drawn


def assert_same_release(folder: Path, release: str, undisturbed: Path | None = None) -> None:
    for table in ("counts", "counts_audit_groups"):
        expected = stored(undisturbed or folder, "undisturbed", table)
        assert stored(folder, release, table).equals(expected)


def test_undisturbed_each_of_six_tasks_draws_noise(seen: dict[str, Any], folder: Path) -> None:
    assert seen["undisturbed"]["error"] is None
    assert set(attempts_by_partition(seen["undisturbed"]["traces"])) == set(range(6))
    counts = stored(folder, "undisturbed").to_pydict()
    assert counts["month"] == list(range(GROUPS))
    assert all(
        (count > 200) == (month in SQUARES)
        for month, count in zip(counts["month"], counts["noisy_count"], strict=True)
    )


def assert_begun_again(killed: dict[str, Any]) -> None:
    """An executor was killed, and what waited there at its second batch was drawn again."""
    assert killed["error"] is None
    assert killed["beside"] > 1
    attempts = attempts_by_partition(killed["traces"])
    assert any(len(of) > 1 for of in attempts.values())


def test_an_executor_killed_in_the_noise_stage_changes_no_draw(
    seen: dict[str, Any], folder: Path
) -> None:
    """It had finished a task and takes a half-done one with it, whose noise is then drawn again."""
    assert_begun_again(seen["killed"])
    assert_same_release(folder, "killed")


@pytest.mark.usefixtures("seen")
def test_an_executor_killed_on_local_cluster_changes_no_draw_either(
    seen_on_local_cluster: dict[str, Any], folder: Path
) -> None:
    """Compared with the undisturbed release of the standalone cluster: same records, same key."""
    assert_begun_again(seen_on_local_cluster["killed"])
    assert_same_release(folder / "local-cluster", "killed", undisturbed=folder)


def test_a_speculative_attempt_draws_the_same_and_each_group_is_published_once(
    seen: dict[str, Any], folder: Path
) -> None:
    """Both attempts write the confidential audit from the noise stage itself at the same time."""
    speculated = seen["speculated"]
    assert speculated["error"] is None
    assert len(speculated["beside"]) == 2, "each attempt waited for the other"
    drawn = attempts_by_partition(speculated["traces"])[0]
    assert len(drawn) == 2
    assert all(batches >= 2 for batches in drawn.values())
    assert_same_release(folder, "speculated")
    confidential = pq.read_table(folder / "vault" / "speculated").sort_by("month")
    columns = ["month", "noisy_count"]
    assert confidential.select(columns).equals(stored(folder, "undisturbed").select(columns))


def test_a_task_that_fails_for_good_leaves_a_charge_that_is_recognised_and_no_output(
    seen: dict[str, Any], folder: Path
) -> None:
    failed = seen["fails"]
    assert failed["attempts"] == 4, "Spark has tried as often as it does by default"
    assert failed["error"].startswith("ReleaseError: release 'fails' failed")
    assert "Nothing was published" in failed["error"]
    assert "4711" not in failed["error"]
    assert failed["left"] == []
    assert failed["state"] == "reserved"
    assert float(failed["charged"]) > 0
    assert failed["half_done"] == ["fails"]
    command = f"spark-dphist ledger abort sqlite:///{folder}/ledger.db fails"
    assert command in failed["error"]
    with Ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        ledger.verify()
        ledger.abort("fails", nothing_was_published=True)
        assert list(ledger.half_done("events")) == []


@pytest.mark.parametrize(
    ("executors", "message"),
    [
        ("lacking", "the executors lack spark_dphist, the driver has {here}. Ship the driver's"),
        ("outdated", "the executors have spark_dphist 0.0.9, the driver has {here}. Ship the"),
        ("incomplete", "cannot load it (ModuleNotFoundError: No module named 'numpy')"),
        ("no-python", 'function (IOException: Cannot run program "'),
        ("old-python", "Python in worker has different version"),
    ],
)
def test_executors_without_this_very_package_are_refused_before_anything_is_charged(
    seen: dict[str, Any], executors: str, message: str
) -> None:
    refused = seen[executors]
    assert refused["error"].startswith("ConfigurationError: ")
    assert message.format(here=spark_dphist.__version__) in refused["error"]
    assert "Nothing has been read, charged or written" in refused["error"]
    assert refused["state"] is None
    assert float(refused["charged"]) == 0
    assert refused["left"] == []
