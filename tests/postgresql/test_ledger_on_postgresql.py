"""Everything tests/unit/test_ledger.py says of SQLite holds on a real PostgreSQL."""

from __future__ import annotations

import pytest
import test_ledger
from test_ledger import *  # noqa: F403 - the tests are collected here with this folder's url
from test_ledger import ledger  # noqa: F401 - the fixture

# The one fixture that must not come along: this folder's conftest has its own.
globals().pop("url", None)


@pytest.fixture(autouse=True)
def _on_postgresql(url):
    assert url.startswith("postgresql+psycopg://")


def test_all_of_the_tests_came_along():
    wanted = {name for name in vars(test_ledger) if name.startswith("test_")}
    assert len(wanted) > 40
    assert wanted <= set(globals())
