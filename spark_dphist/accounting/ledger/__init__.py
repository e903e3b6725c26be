"""Budgets that cannot be overspent: every release is charged before it reads anything.

The protocol, the argument for each crash point and the schema are in docs/ledger.md.
"""

from spark_dphist.accounting.ledger.errors import (
    BudgetExceededError,
    HalfDoneReleaseError,
    LedgerBusyError,
    LedgerError,
    ReleaseConflictError,
)
from spark_dphist.accounting.ledger.models import (
    Balance,
    Caps,
    Charge,
    Event,
    Limit,
    Release,
    Reservation,
    State,
)
from spark_dphist.accounting.ledger.store import Ledger

__all__ = [
    "Balance",
    "BudgetExceededError",
    "Caps",
    "Charge",
    "Event",
    "HalfDoneReleaseError",
    "Ledger",
    "LedgerBusyError",
    "LedgerError",
    "Limit",
    "Release",
    "ReleaseConflictError",
    "Reservation",
    "State",
]
