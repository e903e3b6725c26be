"""What the ``spark-dphist ledger`` commands do; each gives JSON values to print."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_dphist.accounting.composition import Number
from spark_dphist.accounting.ledger.models import Balance, Caps, Charge, Release, State
from spark_dphist.accounting.ledger.store import Ledger
from spark_dphist.errors import ConfigurationError, did_you_mean

_KINDS = ("rho", "epsilon", "at_least")


@dataclass(frozen=True)
class CapsRequest:
    """Caps as an operator states them; amounts are text or numbers of nats."""

    rho: Number | None = None
    epsilon: float | None = None
    delta: float | None = None
    at_least: Mapping[int, Number] | None = None
    selection_delta: Number | None = None

    def stated(self) -> bool:
        """Whether anything is stated."""
        given = (self.rho, self.epsilon, self.delta, self.at_least, self.selection_delta)
        return any(x is not None for x in given)


def init(
    url: str,
    dataset: str | None = None,
    caps: CapsRequest | None = None,
    *,
    privacy_unit: str = "record",
) -> dict[str, object]:
    """Create a ledger or bring its schema up, and enter a data set if one is named."""
    if dataset is None and caps is not None and caps.stated():
        raise ConfigurationError("Caps are on a data set: name it too.")
    with Ledger.initialise(url) as ledger:
        if dataset is not None:
            asked = caps or CapsRequest()
            wanted = Caps.of(
                asked.rho,
                epsilon=asked.epsilon,
                delta=asked.delta,
                at_least=asked.at_least,
                selection_delta=asked.selection_delta or 0,
            )
            ledger.add_dataset(dataset, wanted, privacy_unit=privacy_unit)
        return {"ledger": ledger.location, "data_sets": list(ledger.datasets())}


def show(url: str, dataset: str | None = None) -> list[dict[str, object]]:
    """Return cap, spent and left of one data set or all, and the releases that are half done.

    Raises
    ------
    LedgerError
        If the running totals are not the sums of the releases.
    """
    with Ledger(url) as ledger:
        ledger.verify()
        names = ledger.datasets() if dataset is None else (dataset,)
        return [
            {**balance_rows(ledger.balance(name)), "half_done": _ids(ledger.half_done(name))}
            for name in names
        ]


def caps(
    url: str, dataset: str, request: CapsRequest, *, drop: Collection[str] = ()
) -> dict[str, object]:
    """Change a data set's caps: what is stated replaces its kind, what is not stated stays.

    Parameters
    ----------
    url, dataset, request
        ``at_least`` replaces all caps by count together.
    drop
        Kinds of cap to remove: ``rho``, ``epsilon``, ``at_least``.
    """
    for kind in drop:
        if kind not in _KINDS:
            raise ConfigurationError(f"No kind of cap is {kind!r}. {did_you_mean(kind, _KINDS)}")
    with Ledger(url) as ledger:
        now = ledger.caps(dataset)
        both = request.epsilon is not None or request.delta is not None
        wanted = Caps.of(
            request.rho if request.rho is not None else None if "rho" in drop else now.rho,
            epsilon=request.epsilon if both else None if "epsilon" in drop else now.epsilon,
            delta=request.delta if both else None if "epsilon" in drop else now.delta,
            at_least=request.at_least
            if request.at_least is not None
            else {}
            if "at_least" in drop
            else dict(now.at_least),
            selection_delta=now.selection_delta
            if request.selection_delta is None
            else request.selection_delta,
        )
        return balance_rows(ledger.set_caps(dataset, wanted))


def releases(
    url: str, dataset: str | None = None, *, state: str | None = None
) -> list[dict[str, object]]:
    """Return releases in the order of their reservation."""
    if state is not None and state not in tuple(State):
        raise ConfigurationError(f"No state is {state!r}. {did_you_mean(state, State)}")
    with Ledger(url) as ledger:
        wanted = None if state is None else State(state)
        return [release_row(release) for release in ledger.releases(dataset, state=wanted)]


def abort(url: str, release_id: str, *, nothing_was_published: bool) -> dict[str, object]:
    """End a release of which nothing was published, and free its charge."""
    with Ledger(url) as ledger:
        return release_row(ledger.abort(release_id, nothing_was_published=nothing_was_published))


def export(url: str) -> list[dict[str, object]]:
    """Return the whole ledger, one dict per row; see ``Ledger.export``."""
    with Ledger(url) as ledger:
        return ledger.export()


def balance_rows(balance: Balance) -> dict[str, object]:
    """Return a balance as JSON values; amounts are exact decimal text, in rho unless named."""
    return {
        "data_set": balance.dataset,
        "privacy_unit": balance.privacy_unit,
        "limits": [
            {
                "limit": limit.name,
                "at_least": limit.at_least,
                "cap": str(limit.cap),
                "spent": str(limit.spent),
                "left": str(limit.left),
            }
            for limit in balance.stated
        ],
    }


def charge_rows(charges: tuple[Charge, ...]) -> list[dict[str, object]]:
    """Return what ``plan`` and ``run`` show: each limit's cap, spent, requested and left."""
    return [
        {
            "limit": charge.limit.name,
            "cap": str(charge.limit.cap),
            "spent": str(charge.limit.spent),
            "requested": str(charge.asked),
            "left": str(charge.limit.left),
            "fits": charge.fits,
        }
        for charge in charges
    ]


def release_row(release: Release) -> dict[str, object]:
    """Return a release as JSON values."""
    return {
        "release_id": release.release_id,
        "data_set": release.dataset,
        "state": release.state.value,
        "rho": str(release.rho),
        "delta": str(release.cost.delta),
        "mechanism": release.cost.mechanism,
        "parameters": dict(release.cost.parameters),
        "privacy_unit": release.cost.privacy_unit,
        "records_per_unit": release.cost.records_per_unit,
        "policy": dict(release.policy),
        "software": release.software,
        "reserved_at": release.reserved_at.isoformat(),
        "reserved_by": release.reserved_by,
        "ended_at": None if release.ended_at is None else release.ended_at.isoformat(),
        "ended_by": release.ended_by,
        "output": None if release.output is None else dict(release.output),
    }


def _ids(listed: tuple[Release, ...]) -> list[str]:
    return [release.release_id for release in listed]
