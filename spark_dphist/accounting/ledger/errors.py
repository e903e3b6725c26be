"""What can go wrong with a ledger; no message ever holds a password."""

from __future__ import annotations

from collections.abc import Sequence

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger.models import Charge, Release
from spark_dphist.errors import BudgetError, SparkDphistError


class LedgerError(SparkDphistError, RuntimeError):
    """The ledger could not do what was asked; what it has recorded stays charged."""


class LedgerBusyError(LedgerError):
    """Others held the ledger for too long; nothing was recorded, asking again is safe."""


class ReleaseConflictError(LedgerError):
    """A release id is taken by another policy or data set, or its state forbids the step."""


class HalfDoneReleaseError(ReleaseConflictError):
    """A release was reserved by another run, which has died or is still running.

    Attributes
    ----------
    release
        What the ledger holds; it stays charged.
    """

    def __init__(self, release: Release, location: str) -> None:
        self.release = release
        super().__init__(
            f"Release {release.release_id!r} on data set {release.dataset!r} was reserved at "
            f"{release.reserved_at:%Y-%m-%d %H:%M:%S} UTC by {release.reserved_by} and never "
            f"committed: its run died or is still running. It stays charged with rho = "
            f"{release.rho}. If that run is dead and nothing of it was published: "
            f"spark-dphist ledger abort {location} {release.release_id} --nothing-was-published, "
            "then choose a new release id."
        )


class BudgetExceededError(BudgetError):
    """A cap does not leave what a release would cost; nothing was recorded or read.

    Attributes
    ----------
    dataset
        Name of the data set.
    charges
        Every cap that does not leave enough.
    cap, spent, asked, left
        Amounts of the first of them.
    """

    def __init__(self, dataset: str, release_id: str, charges: Sequence[Charge]) -> None:
        self.dataset = dataset
        self.charges = tuple(charges)
        first = self.charges[0]
        self.cap: Rho = first.limit.cap
        self.spent: Rho = first.limit.spent
        self.asked: Rho = first.asked
        self.left: Rho = first.limit.left
        refused = "; ".join(
            f"{charge.limit.name}: cap {charge.limit.cap}, spent {charge.limit.spent}, "
            f"asked {charge.asked}, left {charge.limit.left}"
            f"{'' if charge.limit.of_delta else ' (rho)'}"
            for charge in self.charges
        )
        super().__init__(
            f"The budget of data set {dataset!r} does not allow release {release_id!r}. {refused}. "
            "Lower the cost (a larger relative error or floor), or have the data set's owner "
            "raise the cap with spark-dphist ledger caps."
        )
