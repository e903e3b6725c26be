"""The values a ledger takes and gives."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from fractions import Fraction

from spark_dphist.accounting.composition import Number, PolicyCost, Rho, delta_left_lower
from spark_dphist.accounting.conversions import rho_lower
from spark_dphist.errors import ConfigurationError

_RELEASE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class State(enum.StrEnum):
    """Where a release stands; both ends are final."""

    RESERVED = "reserved"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Caps:
    """What a data set's releases may cost one privacy unit in total.

    Use ``Caps.of``. At least one of ``rho`` and ``epsilon`` is set; where both are, both hold.

    Parameters
    ----------
    rho
        Cap on the sum of the releases' worst-case rho.
    epsilon, delta
        All releases together stay (epsilon, delta)-DP through zCDP.
    epsilon_rho
        The largest rho that epsilon at delta allows, rounded down.
    at_least
        Pairs (count, rho), counts rising: for groups of at least ``count`` records the sum of the
        releases' rho stays at or below ``rho``.
    selection_delta
        Cap on the sum of the delta with which releases learn their key sets; 0 allows none to.
        It is part of ``delta``: ``epsilon_rho`` is what epsilon allows at the rest.
    """

    rho: Rho | None
    epsilon: float | None = None
    delta: float | None = None
    epsilon_rho: Rho | None = None
    at_least: tuple[tuple[int, Rho], ...] = ()
    selection_delta: Rho = field(default_factory=Rho)

    @classmethod
    def of(
        cls,
        rho: Number | Rho | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        at_least: Mapping[int, Number | Rho] | None = None,
        selection_delta: Number | Rho = 0,
    ) -> Caps:
        """Return the caps as declared; amounts are rounded down to 1e-30 rho.

        A float means its shortest decimal text: 0.3 is three tenths.

        Raises
        ------
        ConfigurationError
            If there is no cap for everyone, epsilon comes without delta or the reverse, a value
            is out of range, a cap for larger groups is above one for smaller ones, or the delta
            for learnt key sets leaves nothing of delta.
        """
        if rho is None and epsilon is None:
            raise ConfigurationError(
                "A data set needs a cap for everyone: rho, or epsilon at delta. Caps for groups of "
                "at least a count come on top of it."
            )
        if (epsilon is None) != (delta is None):
            raise ConfigurationError(
                f"A cap on epsilon needs a delta and the reverse, got epsilon={epsilon!r}, "
                f"delta={delta!r}."
            )
        for_selection = declared(selection_delta)
        if for_selection >= Rho.lower(1):
            raise ConfigurationError(
                f"The delta for learnt key sets is a probability below 1, got {for_selection}."
            )
        epsilon_rho = None
        if epsilon is not None and delta is not None:
            left = float(delta)
            if for_selection > Rho(0):
                left = delta_left_lower(left, for_selection)
                if left <= 0:
                    raise ConfigurationError(
                        f"The delta for learnt key sets ({for_selection}) leaves nothing of the "
                        f"cap's delta = {delta:g}. Lower the one or raise the other."
                    )
            epsilon_rho = Rho.lower(rho_lower(float(epsilon), left))
        points = tuple(sorted((count, declared(cap)) for count, cap in (at_least or {}).items()))
        for count, _ in points:
            if type(count) is not int or not 1 <= count < 2**63:
                raise ConfigurationError(
                    f"A cap by count starts at a whole number of records >= 1, got {count!r}."
                )
        for (smaller, above), (larger, below) in itertools.pairwise(points):
            if below > above:
                raise ConfigurationError(
                    f"The cap for groups of at least {larger} records ({below}) is above the one "
                    f"for at least {smaller} ({above}) and could never be reached. Lower it."
                )
        return cls(
            None if rho is None else declared(rho),
            None if epsilon is None else float(epsilon),
            None if delta is None else float(delta),
            epsilon_rho,
            points,
            for_selection,
        )


def declared(amount: Number | Rho) -> Rho:
    """Return an amount somebody wrote down, rounded down; a float means its shortest text."""
    if isinstance(amount, Rho):
        return amount
    if isinstance(amount, float):
        return Rho.lower(repr(float(amount)))
    if isinstance(amount, bool) or not isinstance(amount, int | str | Decimal | Fraction):
        raise ConfigurationError(f"A cap is a number of nats, at least 0, got {amount!r}.")
    return Rho.lower(amount)


@dataclass(frozen=True)
class Limit:
    """One cap and what of it is spent.

    Parameters
    ----------
    name
        What the cap is on, in words.
    cap, spent
        In rho. ``spent`` is above ``cap`` only where a cap was lowered afterwards.
    at_least
        Smallest group size the cap is about; None for the caps that hold for everyone.
    of_delta
        Whether it is the cap on the delta of learnt key sets; amounts are probabilities then.
    """

    name: str
    cap: Rho
    spent: Rho
    at_least: int | None = None
    of_delta: bool = False

    @property
    def left(self) -> Rho:
        """What may still be spent, at least 0."""
        return self.cap - self.spent if self.cap > self.spent else Rho(0)


@dataclass(frozen=True)
class Charge:
    """What a release asks of one limit."""

    limit: Limit
    asked: Rho

    @property
    def fits(self) -> bool:
        """Whether spent and asked together stay at or below the cap."""
        return self.limit.spent + self.asked <= self.limit.cap


@dataclass(frozen=True)
class Balance:
    """A data set's limits on rho, the caps for everyone first, and the one on delta."""

    dataset: str
    privacy_unit: str
    limits: tuple[Limit, ...]
    selection: Limit

    @property
    def stated(self) -> tuple[Limit, ...]:
        """The limits to show: that on delta is left out where no key set may be learnt."""
        return (*self.limits, *([self.selection] if self.selection.cap > Rho(0) else []))

    @property
    def tightest(self) -> Limit:
        """The cap for everyone that leaves least."""
        return min((limit for limit in self.limits if limit.at_least is None), key=lambda x: x.left)

    @property
    def cap(self) -> Rho:
        """Cap of the tightest limit for everyone."""
        return self.tightest.cap

    @property
    def spent(self) -> Rho:
        """Sum of the worst-case rho of all releases that are reserved or committed."""
        return self.tightest.spent

    @property
    def left(self) -> Rho:
        """What the tightest limit for everyone leaves."""
        return self.tightest.left

    def charges(self, cost: PolicyCost) -> tuple[Charge, ...]:
        """Return what a release of this cost asks of each limit."""
        of_rho = (
            Charge(
                limit,
                cost.rho_upper
                if limit.at_least is None
                else cost.rho_at_least_upper(limit.at_least),
            )
            for limit in self.limits
        )
        of_delta = [Charge(self.selection, cost.delta)] if cost.delta > Rho(0) else []
        return (*of_rho, *of_delta)


@dataclass(frozen=True)
class Release:
    """One release as the ledger holds it.

    Parameters
    ----------
    release_id, dataset, state
        Which, on what, and where it stands.
    cost, policy
        What it was charged with and the public policy it was charged for.
    software
        Version of this package that reserved it.
    reserved_at, reserved_by
        UTC and who.
    ended_at, ended_by
        When and by whom it was committed or aborted; None while it is reserved.
    output
        Where the result is and what else the committing run recorded; None until then.
    """

    release_id: str
    dataset: str
    state: State
    cost: PolicyCost
    policy: Mapping[str, object]
    software: str
    reserved_at: datetime
    reserved_by: str
    ended_at: datetime | None = None
    ended_by: str | None = None
    output: Mapping[str, object] | None = None

    @property
    def rho(self) -> Rho:
        """Worst-case rho it is charged with."""
        return self.cost.rho_upper


@dataclass(frozen=True)
class Reservation:
    """The answer to a reservation.

    Parameters
    ----------
    release
        The release as stored.
    token
        Proof that this caller made the reservation; None if the release is committed already and
        its stored result is to be handed out.
    """

    release: Release
    token: str | None = field(repr=False)

    @property
    def already_committed(self) -> bool:
        """Whether the stored result must be handed out instead of reading data again."""
        return self.release.state is State.COMMITTED


@dataclass(frozen=True)
class Event:
    """One line of the ledger's history."""

    sequence: int
    at: datetime
    by: str
    kind: str
    dataset: str
    release_id: str | None
    detail: Mapping[str, object]


def checked_name(what: str, name: str) -> str:
    """Return a data set's, unit's or person's name if it is 1 to 256 printable characters."""
    if not isinstance(name, str) or not 1 <= len(name) <= 256 or not name.isprintable():
        raise ConfigurationError(f"A {what} is 1 to 256 printable characters, got {name!r}.")
    return name


def checked_release_id(release_id: str) -> str:
    """Return a release id if it can serve in a path and on a command line unquoted."""
    if not isinstance(release_id, str) or not _RELEASE_ID.fullmatch(release_id):
        raise ConfigurationError(
            "A release id is 1 to 128 letters, digits, '.', '_', ':' or '-', the first a letter "
            f"or digit, got {release_id!r}."
        )
    return release_id
