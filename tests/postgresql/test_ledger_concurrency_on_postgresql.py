"""What tests/unit/test_ledger_concurrency.py says of SQLite holds on a real PostgreSQL."""

from __future__ import annotations

import pytest
from test_ledger_concurrency import (  # noqa: F401 - collected here with this folder's url
    test_a_process_killed_at_any_step_loses_no_charge_and_publishes_nothing_uncharged,
    test_of_eight_processes_asking_for_the_last_three_units_exactly_three_get_one,
    test_of_four_processes_asking_for_the_same_release_exactly_one_gets_it,
    test_processes_killed_at_random_moments_leave_every_run_charged,
)


@pytest.fixture(autouse=True)
def _on_postgresql(url):
    assert url.startswith("postgresql+psycopg://")
