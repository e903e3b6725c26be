"""Which records and which snapshot a configuration asks for: no SQL, and no two read the same."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from spark_dphist.config import InputSection, parse_configuration, with_release_id
from spark_dphist.errors import ConfigurationError
from spark_dphist.plan import make_plan


def content(**source: Any) -> dict[str, Any]:
    return {
        "input": {"table": "lake.db.visits", **source},
        "groups": {"columns": ["region"], "keys": {"product": {"region": ["north"]}}},
        "mechanism": {"relative_error": 0.1, "floor": 50},
        "output": {"path": "out"},
    }


def counted(**source: Any) -> str:
    section: InputSection = parse_configuration(content(**source), "test").input
    return section.counted


DAY = datetime.date(2013, 1, 1)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({}, "table lake.db.visits"),
        ({"snapshot": 7}, "table lake.db.visits at snapshot 7"),
        (
            {"where": {"day": {"from": DAY, "before": datetime.date(2013, 2, 1)}}},
            "table lake.db.visits where day from 2013-01-01 before 2013-02-01",
        ),
        (
            {"where": {"m": [1, 2], "c": {"values": ["DE"], "include_null": True}}},
            "table lake.db.visits where m in (1, 2) and c in ('DE', NULL)",
        ),
        ({"where": {"c": {"include_null": True}}}, "table lake.db.visits where c in (NULL)"),
    ],
)
def test_what_is_counted_is_said_in_one_line_and_shown_by_the_plan(
    source: dict[str, Any], says: str
) -> None:
    assert counted(**source) == says
    assert make_plan(parse_configuration(content(**source), "test")).input == says


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["a, b"], ["a", "b"]),
        (["a", "', '"], ["a', '"]),
        (["1"], [1]),
        (["NULL"], {"include_null": True}),
        ([DAY], ["2013-01-01"]),
        ({"from": 1, "before": 2}, {"from": "1 before 2"}),
    ],
)
def test_two_selections_never_read_the_same(one: Any, other: Any) -> None:
    """The ledger tells policies apart by these words."""
    assert counted(where={"c": one}) != counted(where={"c": other})


def test_a_column_cannot_pass_for_a_condition() -> None:
    assert counted(where={"a": [1], "b": [2]}) != counted(where={"a in (1) and b": [2]})


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"where": "rand() < 0.5"}, "'where' is no SQL"),
        ({"where": {"day": "2013-01-01"}}, "Write one value as a list too"),
        ({"where": {"day": {"form": DAY}}}, "Did you mean 'from'"),
        ({"where": {"day": {"from": 1, "values": [1]}}}, "got both"),
        ({"where": {"day": {}}}, "got neither"),
        ({"where": {"day": []}}, "at least 1"),
        ({"where": {"day": [0.5]}}, "cannot be a float"),
        ({"snapshot": "7; DROP TABLE visits"}, "the digits of a snapshot id"),
        ({"snapshot": "month-end"}, "the digits of a snapshot id"),
        ({"snapshot": -1}, "the digits of a snapshot id"),
        ({"snapshot": True}, "the digits of a snapshot id"),
    ],
)
def test_what_is_no_condition_or_no_snapshot_is_refused_with_the_mend(
    source: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration(content(**source), "test")
    assert says in str(caught.value)


def test_another_release_id_keeps_the_selection() -> None:
    given = parse_configuration(
        content(snapshot="7", where={"day": {"from": DAY}, "c": {"values": ["DE"]}}), "test"
    )
    assert with_release_id(given, "r2").input == given.input
