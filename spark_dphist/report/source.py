"""What a report is made from: the two tables of a public audit, and a ledger; nothing else is read.

A confidential audit beside them is never opened, and a table with columns that no public audit has
is refused by its schema, before a row is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.ledger import Balance, Ledger, State
from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.audit import AUDIT_COLUMNS, AuditHeader, PublicAudit, audit_columns
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.history import read_audit
from spark_dphist.mechanisms import Mechanism

RELEASED_COLUMNS = ("noisy_count", "lower", "upper")
"""The released numbers beside the keys."""

CONFIDENTIAL_COLUMNS = ("confidential_true_count", "confidential_rho")
"""What only a confidential audit has."""

# Budgets are recomputed by the same code, perhaps with another numpy.
_ACCURACY = 1e-9


@dataclass(frozen=True)
class LedgerState:
    """What a ledger says of a release and its data set now; public, as a ledger is."""

    location: str
    balance: Balance
    charged: float
    state: State
    releases: int
    half_done: tuple[str, ...]


@dataclass(frozen=True)
class PublishedRelease:
    """A release as its public tables state it, and what was checked of it, in sentences.

    ``selection`` is how the key set was learnt from the data, None where it was declared.
    """

    header: AuditHeader
    groups: pa.Table
    mechanism: Mechanism
    selection: KeySelection | None
    ledger: LedgerState | None
    checks: tuple[str, ...]


def read_release(path: str, ledger: Ledger | None = None) -> PublishedRelease:
    """Read a release from where its public audit lies on a local path, and check it.

    Parameters
    ----------
    path
        Of the counts, or of either table of the audit, or what the audit's paths begin with.
    ledger
        That the release was charged to, to show its state.

    Raises
    ------
    ConfigurationError
        If there is no public audit there.
    ReleaseError
        If the audit contradicts itself or the ledger.
    """
    plain = path.rstrip("/")
    beside = f"{plain}_audit"
    stem = beside if Path(f"{beside}_header").exists() else plain
    for suffix in ("_header", "_groups"):
        stem = stem.removesuffix(suffix)
    groups = Path(f"{stem}_groups")
    if groups.exists():
        names = _stored_columns(groups)
        if names is not None:
            refuse_other_columns(names, str(groups))
    return public_release(read_audit(stem), ledger)


def public_release(audit: PublicAudit, ledger: Ledger | None = None) -> PublishedRelease:
    """Check a public audit against itself and a ledger; see ``read_release``."""
    header, groups = audit.header, audit.groups
    if groups is None:
        raise ConfigurationError(
            f"the audit of release {header.release_id!r} comes without its "
            f"{header.key_set_size:,} groups: make the report from the stored tables"
        )
    refuse_other_columns(groups.column_names, f"release {header.release_id!r}")
    mechanism = header.calibrated_mechanism()
    selection = _selection(header)
    checks = [
        _check_groups(header, groups),
        _check_worst_case(header, mechanism, selection),
        _check_budgets(header, groups, mechanism),
    ]
    state = None
    if ledger is not None:
        state, sentence = _ledger_state(header, ledger)
        checks.append(sentence)
    return PublishedRelease(header, groups, mechanism, selection, state, tuple(checks))


def refuse_other_columns(names: Sequence[str], where: str) -> None:
    """Refuse a table that is no public audit of groups, going by its columns.

    Raises
    ------
    ConfigurationError
        If a column of the public audit is missing, or one is named as confidential.
    """
    confidential = [name for name in names if name in CONFIDENTIAL_COLUMNS]
    missing = [name for name in (*RELEASED_COLUMNS, *AUDIT_COLUMNS) if name not in names]
    if confidential or missing:
        raise ConfigurationError(
            f"{where} is not the public audit of a release: "
            + (f"it has {confidential[0]!r}" if confidential else f"it lacks {missing[0]!r}")
            + ". A report is made from public tables alone: name the counts of a release, or what "
            "the paths '..._audit_groups' and '..._audit_header' begin with."
        )


def _stored_columns(groups: Path) -> list[str] | None:
    try:
        return list(pa.dataset.dataset(groups, format="parquet").schema.names)
    except (pa.ArrowException, OSError):
        # The reader of audits says what is wrong.
        return None


def _check_groups(header: AuditHeader, groups: pa.Table) -> str:
    expected = [*header.group_columns, *RELEASED_COLUMNS, *AUDIT_COLUMNS]
    if groups.column_names != expected:
        raise _contradiction(header, f"the groups have the columns {groups.column_names}")
    if groups.num_rows != header.key_set_size:
        raise _contradiction(
            header,
            f"the header states {header.key_set_size:,} groups, {groups.num_rows:,} are there",
        )
    return f"All {groups.num_rows:,} groups of the key set are there, with no other columns."


def _selection(header: AuditHeader) -> KeySelection | None:
    if header.key_set_selection is None:
        return None
    stated = json.loads(header.key_set_selection)
    return KeySelection(
        epsilon=stated["epsilon"],
        delta=stated["delta"],
        groups_per_unit=stated["groups_per_unit"],
    )


def _check_worst_case(
    header: AuditHeader, mechanism: Mechanism, selection: KeySelection | None
) -> str:
    unit = PrivacyUnit(
        column="unit",
        max_records=header.records_per_unit,
        distinct=header.records_per_group < header.records_per_unit,
    )
    rho = read_worst_case(mechanism, unit, header.delta, selection).rho
    if not np.isclose(rho, header.worst_case_rho, rtol=_ACCURACY, atol=0):
        raise _contradiction(
            header, f"its mechanism costs everyone rho = {rho:.6g}, not {header.worst_case_rho:.6g}"
        )
    return "The bound for everyone was computed again from the mechanism's parameters and agrees."


def _check_budgets(header: AuditHeader, groups: pa.Table, mechanism: Mechanism) -> str:
    noisy, lower, upper = (groups[name].to_numpy() for name in RELEASED_COLUMNS)
    if np.any(lower > upper):
        raise _contradiction(header, "an interval ends before it begins")
    columns = audit_columns(noisy, lower, upper, mechanism, header.records_per_group)
    for name, values in columns.items():
        if not np.allclose(groups[name].to_numpy(), values, rtol=_ACCURACY, atol=_ACCURACY):
            raise _contradiction(header, f"{name!r} does not follow from the released numbers")
    return (
        "Budgets and bias of every group were computed again from the released numbers and agree, "
        "so they tell nothing beyond these."
    )


def _ledger_state(header: AuditHeader, ledger: Ledger) -> tuple[LedgerState, str]:
    held = ledger.find(header.release_id)
    if held is None:
        raise _contradiction(
            header,
            f"the ledger at {ledger.location} does not have it. Name the ledger that it was "
            "charged to, or none",
        )
    digest = (held.output or {}).get("counts_digest")
    if held.state is State.COMMITTED and digest != header.counts_digest:
        raise _contradiction(header, "the ledger has other numbers under its id")
    if held.state is State.ABORTED:
        raise _contradiction(header, "the ledger says that nothing of it was published")
    dataset = held.dataset
    state = LedgerState(
        location=ledger.location,
        balance=ledger.balance(dataset),
        charged=held.rho.float_upper(),
        state=held.state,
        releases=len(ledger.releases(dataset, state=State.COMMITTED)),
        half_done=tuple(other.release_id for other in ledger.half_done(dataset)),
    )
    return state, "The ledger has this release as charged, with the digest of these numbers."


def _contradiction(header: AuditHeader, what: str) -> ReleaseError:
    return ReleaseError(
        f"the audit of release {header.release_id!r} does not hold: {what}. If it was changed or "
        "replaced, restore it from a backup; no report was written"
    )
