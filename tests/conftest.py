"""One Spark session for the whole suite, started when the first test asks for it.

``SPARK_DPHIST_TEST_CONNECT=1`` makes it a Spark Connect session, whose server this process starts.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import settings as hypothesis_settings
from reserved_port import reserved_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_CONNECT = os.environ.get("SPARK_DPHIST_TEST_CONNECT") == "1"

# How long an example takes depends on what else runs on this machine.
hypothesis_settings.register_profile("at any speed", deadline=None)
hypothesis_settings.load_profile("at any speed")

_SPARK_TESTS = Path(__file__).parent / "spark"
_LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
"""


class SessionSettings(Protocol):
    """Sets SQL settings of the session for the length of a ``with`` block."""

    def __call__(self, values: dict[str, str]) -> AbstractContextManager[None]: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_SPARK_TESTS):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def event_log_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("event_log")


@pytest.fixture(scope="session")
def driver_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the JVM logs to, instead of the screen."""
    return tmp_path_factory.mktemp("driver_log") / "driver.log"


@pytest.fixture(scope="session")
def connect_port() -> Iterator[int]:
    """Return a port for the server of a Connect session, so that another one is no trouble."""
    with reserved_port() as port:
        yield port


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory,
    event_log_directory: Path,
    driver_log: Path,
    connect_port: int,
) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Workers of a Connect server do not start in this directory.
    root, known = str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *([known] if known else [])])
    log4j = tmp_path_factory.mktemp("log4j") / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=driver_log))
    # Many small jobs: the second compiler would take longer than it saves. Without it Java has room
    # for 48 MB of compiled code unless told otherwise, and the plans of all tests need more.
    java_options = (
        "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
        f"-Dlog4j2.configurationFile={log4j.as_uri()}"
    )
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": event_log_directory.as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.log.level": "INFO",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("spark_dphist tests")
    if ON_CONNECT:
        settings["spark.connect.grpc.binding.port"] = str(connect_port)
        _let_remote_local_use(connect_port)
        builder = builder.remote("local[2]")
    else:
        builder = builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        # The Connect client sets them on its own server at start, and then once more, in vain.
        warnings.filterwarnings("ignore", message="Failed to set", category=UserWarning)
        session = builder.getOrCreate()
    yield session
    session.stop()


def _let_remote_local_use(port: int) -> None:
    """The client takes the default port, even of a server that was told to use another one."""
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    DefaultChannelBuilder.default_port = staticmethod(lambda: port)  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def classic_only() -> None:
    """Skip what needs a session of its own kind, which a Connect client cannot start."""
    if ON_CONNECT:
        pytest.skip("needs a classic session, not a Spark Connect client")


@pytest.fixture(scope="session")
def same_on_connect() -> None:
    """Skip on Connect what only uses Spark in processes of its own."""
    if ON_CONNECT:
        pytest.skip("uses processes of its own, as with a classic session")


@pytest.fixture
def settings(spark: SparkSession) -> SessionSettings:
    @contextmanager
    def changed(values: dict[str, str]) -> Iterator[None]:
        before = {name: spark.conf.get(name, None) for name in values}
        for name, value in values.items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, value)

    return changed
