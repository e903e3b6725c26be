"""What executors answer, and which sessions are asked; tests/cluster asks real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_dphist import __version__
from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.executors import _compare, _is_local

HERE = (__version__, None)


def test_executors_of_this_version_are_accepted() -> None:
    _compare({HERE})


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({(None, None)}, "the executors lack spark_dphist"),
        ({(None, None), HERE}, "some executors lack spark_dphist"),
        ({("0.0.8", None), ("0.0.9", "ImportError: x")}, "some executors have .* 0.0.8 and 0.0.9"),
        ({("0.0.9", None)}, f"the executors have spark_dphist 0.0.9, the driver has {__version__}"),
        ({HERE, (__version__, "ImportError: scipy")}, r"cannot load it \(ImportError: scipy\)"),
    ],
)
def test_one_executor_that_differs_is_enough_to_refuse(
    found: set[tuple[str | None, str | None]], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _compare(found)


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,3]", True),
        ("local-cluster[2,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://local:443", False),
        (None, False),
    ],
)
def test_only_the_executors_of_local_mode_are_not_asked(master: str | None, local: bool) -> None:
    session: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda *_: master))
    assert _is_local(session) is local


def test_a_connect_session_is_asked_even_if_its_server_is_local() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    assert not _is_local(connect())
