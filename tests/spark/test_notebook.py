"""The Databricks notebook makes a release with figures on a Spark Connect session of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from spark_dphist.accounting.ledger import Caps, Ledger

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("same_on_connect")
def test_the_notebook_releases_once_and_draws_its_figures(tmp_path: Path) -> None:
    if os.environ.get("SPARK_DPHIST_TEST_CONNECT") == "1":
        pytest.skip("has a Connect session of its own, once in CI is enough")
    if pyspark.__version__.startswith("3.5."):
        pytest.skip("pyspark 3.5 has no Connect server of its own")
    pytest.importorskip("matplotlib")
    regions = ["north"] * 40_000 + ["south"] * 900 + [None] * 70
    pq.write_table(pa.table({"region": regions}), tmp_path / "visits-2024-01.parquet")
    with Ledger.initialise(f"sqlite:///{tmp_path}/ledger.db", by="keeper") as ledger:
        ledger.add_dataset("visits", Caps.of(rho=1))
    configuration = tmp_path / "visits.toml"
    configuration.write_text(
        f"""
        name = "visits"
        [input]
        path = "{tmp_path}/visits-@INTERVAL@.parquet"
        [groups]
        columns = ["region"]
        keys.product.region = {{ values = ["north", "south", "west"], include_null = true }}
        [mechanism]
        name = "linear_log"
        relative_error = 0.1
        floor = 50
        [ledger]
        url = "sqlite:///{tmp_path}/ledger.db"
        dataset = "visits"
        [output]
        path = "{tmp_path}/out/visits-@INTERVAL@"
        """
    )
    figures = tmp_path / "figures"
    figures.mkdir()
    widgets = [
        f"configuration={configuration}",
        "interval=2024-01",
        "ledger_password=spark-dphist/ledger-password",
    ]
    runner = str(Path(__file__).with_name("notebook_runner.py"))
    environment = {
        **os.environ,
        "MPLBACKEND": "Agg",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        # Any free port, beside the servers of other tests.
        "SPARK_TESTING": "1",
    }
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_LOCAL_REMOTE", "PGPASSWORD"):
        environment.pop(name, None)
    ran = subprocess.run(
        [sys.executable, runner, str(ROOT / "notebooks/release.py"), str(figures), "2", *widgets],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-6000:]
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["session"] == "pyspark.sql.connect.session"
    once = ["5 rows", "figure", "figure", "4 rows of Spark", "figure", "figure"]
    assert answer["displayed"] == [*once, *once]
    assert all(each.stat().st_size > 5_000 for each in figures.glob("*.png"))
    assert len(list(figures.glob("*.png"))) == 8
    # Run again for the same interval, it hands out the stored release.
    first, second = answer["digests"]
    assert first == second
    with Ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        (charged,) = ledger.releases("visits")
        assert charged.release_id == "visits-2024-01"
    assert pq.read_table(tmp_path / "out/visits-2024-01").num_rows == 4
    assert answer["secrets"] == ["spark-dphist/ledger-password"] * 2
    assert "tiger" not in ran.stdout + ran.stderr
