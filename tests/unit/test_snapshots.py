"""What is asked of Spark for a Delta table, which no Spark here can read: a stand-in answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.snapshots import read_path, read_table


class Asked:
    """A session with one Delta table; answers what Delta's documentation says, and takes notes."""

    def __init__(self, versions: int) -> None:
        self.versions = versions
        self.statements: list[str] = []
        self.options: dict[str, str] = {}
        self.loaded: list[str] = []
        self.read = SimpleNamespace(
            format=lambda _: SimpleNamespace(options=lambda **values: self.with_options(values))
        )

    def table(self, name: str) -> Any:
        return SimpleNamespace(schema=name)

    def sql(self, statement: str) -> Any:
        self.statements.append(statement)
        rows = []
        if statement.startswith("DESCRIBE TABLE EXTENDED"):
            pairs = [
                ("Provider", "string"),
                ("# Detailed Table Information", ""),
                ("Provider", "delta"),
            ]
            rows = [SimpleNamespace(col_name=name, data_type=kind) for name, kind in pairs]
        elif statement.startswith("DESCRIBE HISTORY"):
            rows = [SimpleNamespace(version=self.versions - 1)]
        return SimpleNamespace(schema="columns", collect=lambda: rows)

    def with_options(self, values: Mapping[str, str]) -> Asked:
        self.options |= values
        return self

    def option(self, name: str, value: str) -> Asked:
        return self.with_options({name: value})

    def load(self, path: str) -> Any:
        self.loaded.append(path)
        return SimpleNamespace(schema="columns")


@pytest.fixture
def asked() -> Asked:
    return Asked(versions=8)


def test_a_delta_table_is_read_at_the_last_version_of_its_history(asked: Any) -> None:
    assert read_table(asked, "lake.db.visits").snapshot == "7"
    assert asked.statements[-2:] == [
        "DESCRIBE HISTORY lake.db.visits LIMIT 1",
        "SELECT * FROM lake.db.visits VERSION AS OF 7",
    ]


def test_a_delta_table_is_read_at_the_version_that_is_asked_for(asked: Any) -> None:
    assert read_table(asked, "lake.db.visits", "3").snapshot == "3"
    assert asked.statements[-1] == "SELECT * FROM lake.db.visits VERSION AS OF 3"
    assert not [each for each in asked.statements if "HISTORY" in each]


def test_a_delta_path_is_read_by_the_option_of_its_reader(asked: Any) -> None:
    assert read_path(asked, "/lake/visits", "delta", {"a": "b"}).snapshot == "7"
    assert asked.statements == ["DESCRIBE HISTORY delta.`/lake/visits` LIMIT 1"]
    assert asked.options == {"a": "b", "versionAsOf": "7"}
    assert asked.loaded == ["/lake/visits"]


def test_other_paths_have_no_snapshot(asked: Any) -> None:
    assert read_path(asked, "/lake/visits", "parquet", {}).snapshot is None
    with pytest.raises(ConfigurationError, match="keeps no snapshots"):
        read_path(asked, "/lake/visits", "orc", {}, snapshot="3")
