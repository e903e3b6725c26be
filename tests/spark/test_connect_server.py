"""A Spark Connect server in a process of its own, which gets the package from its client alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from built_package import ZIP, build
from golden_release import PINNED
from reserved_port import reserved_port

SCRIPT = Path(pyspark.__file__).parent / "sbin" / "start-connect-server.sh"

# However the package is installed in this Python: the server's workers find it in an archive only.
SITECUSTOMIZE = """
import importlib.machinery, sys

class FromArchives:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "spark_dphist":
            archives = [each for each in sys.path if each.endswith(".zip")]
            found = importlib.machinery.PathFinder.find_spec(name, archives)
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r} in an archive", name=name)
            return found

sys.meta_path.insert(0, FromArchives)
"""

CLIENT = """
import json, sys
from pathlib import Path
from golden_release import golden_numbers
from pyspark.sql import SparkSession
from spark_dphist.errors import ConfigurationError

address, archive, directory = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
try:
    golden_numbers(spark, Path(directory) / "before", "linear_log")
except ConfigurationError as error:
    print("REFUSED", error)
spark.addArtifacts(archive, pyfile=True)
print("NUMBERS", json.dumps(golden_numbers(spark, Path(directory) / "after", "linear_log")))
"""


def environment(**more: str) -> dict[str, str]:
    """Return this process's variables without those that lead to its own Spark or its modules."""
    unwanted = ("SPARK_", "PYSPARK_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "PYSPARK_PYTHON": sys.executable, **more}


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture
def server(tmp_path: Path, port: int) -> Iterator[str]:
    """Start a server at this port of the loopback device and return its address."""
    pytest.importorskip("grpc_status", reason="Spark Connect is not installed")
    if not SCRIPT.exists():
        pytest.skip("pyspark 3.5 has no Connect server of its own")
    (tmp_path / "server").mkdir()
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(SITECUSTOMIZE)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(SCRIPT), "--wait", "--master", "local[2]", *options],
            cwd=tmp_path / "server",
            env=environment(
                PYTHONPATH=str(tmp_path / "hook"),
                SPARK_LOG_DIR=str(tmp_path / "server"),
                SPARK_PID_DIR=str(tmp_path / "server"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own, which ends whatever the script has started.
            start_new_session=True,
        )
    try:
        wait_for(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-3000:]}")


@pytest.mark.usefixtures("same_on_connect")
def test_a_server_without_the_package_gets_it_from_its_client_and_makes_the_golden_release(
    server: str, tmp_path: Path
) -> None:
    build(tmp_path / "dist")
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, server, tmp_path / "dist" / ZIP, tmp_path],
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    refused, numbers = (
        [line.removeprefix(word) for line in ran.stdout.splitlines() if line.startswith(word)]
        for word in ("REFUSED ", "NUMBERS ")
    )
    assert refused, ran.stderr[-3000:]
    assert "the executors lack spark_dphist" in refused[0]
    assert not (tmp_path / "before").exists()
    assert numbers, ran.stderr[-3000:]
    assert json.loads(numbers[0]) == json.loads(PINNED.read_text(encoding="utf-8"))["linear_log"]
