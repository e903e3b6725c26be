"""What several releases of the same groups have cost together, from their stored public audits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark_dphist.accounting.composition import Rho
from spark_dphist.audit import BUDGET_COLUMNS, AuditHeader, PublicAudit
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.base import FloatArray

_GROUPS, _HEADER = "_groups", "_header"


@dataclass(frozen=True)
class GroupHistory:
    """Releases of one key set of one data set, composed; public, as it follows from audits alone.

    Parameters
    ----------
    releases
        The headers, in the order in which they were made.
    groups
        One row for each group: its key, and the sums over the releases of ``rho_at_noisy_count``,
        ``rho_lower`` and ``rho_upper`` under the same names, in rho, each with what learning the
        releases' key sets cost every unit; sums rounded outwards.
    confidence
        The sums of ``rho_lower`` and ``rho_upper`` bracket the realised V(n) of a group with at
        least this probability (union bound over the releases' intervals).
    everyone
        sum_j of the worst cases, exact: holds for every unit, wherever its records are.
    key_set_delta
        sum_j of the delta of learnt key sets, exact: all budgets here are of approximate zCDP with
        this delta; 0 where every key set was declared.
    """

    releases: tuple[AuditHeader, ...]
    groups: pa.Table
    confidence: float
    everyone: Rho
    key_set_delta: Rho


def group_history(audits: Sequence[PublicAudit]) -> GroupHistory:
    """Compose releases of the same groups: V(n) = sum_j v_j(n), group by group.

    Parameters
    ----------
    audits
        Public audits of different releases of one data set, with their groups.

    Raises
    ------
    ConfigurationError
        If there is none, one was given twice, or they are not about the same groups, data and
        privacy unit.

    Notes
    -----
    zCDP budgets add (Bun and Steinke 2016, Lemma 1.7), and so do the rho and the delta of learnt
    key sets (their Lemma 8.2), which cost the members of every group the same. The released counts
    of one group differ between the releases, so the sum at the released counts is an estimate; the
    bracket holds wherever all the intervals hold the true count.
    """
    ordered = sorted(audits, key=lambda audit: (audit.header.created_at, audit.header.release_id))
    headers = tuple(audit.header for audit in ordered)
    if not headers:
        raise ConfigurationError("there is no audit to compose: name at least one")
    _check_same(headers)
    keys = headers[0].group_columns
    tables = [_by_key(audit, keys) for audit in ordered]
    first = tables[0].select(keys)
    for header, table in zip(headers, tables, strict=True):
        if not table.select(keys).equals(first):
            raise ConfigurationError(
                f"the stored audits of {headers[0].release_id!r} and {header.release_id!r} hold "
                "different groups, although their headers agree: one of them was changed"
            )
    learnt = [json.loads(each.key_set_selection) for each in headers if each.key_set_selection]
    on_top = [np.full(first.num_rows, float(each["rho"])) for each in learnt]
    groups = first
    for name in BUDGET_COLUMNS:
        towards = -np.inf if name == "rho_lower" else np.inf
        total = _summed([*(table[name].to_numpy() for table in tables), *on_top], towards)
        groups = groups.append_column(pa.field(name, pa.float64(), False), pa.array(total))
    missed = sum(1 - header.confidence for header in headers)
    return GroupHistory(
        releases=headers,
        groups=groups,
        confidence=max(0.0, 1 - missed - len(headers) * 2.0**-50),
        everyone=Rho(sum(Rho.upper(header.worst_case_rho).units for header in headers)),
        key_set_delta=Rho(sum(Rho.upper(str(each["delta"])).units for each in learnt)),
    )


def read_audit(path: str) -> PublicAudit:
    """Read a public audit from where a release put it on a local path.

    Parameters
    ----------
    path
        What the two tables' paths begin with: ``OUTPUT_audit`` of ``OUTPUT_audit_groups`` and
        ``OUTPUT_audit_header``; either of these will do too.

    Raises
    ------
    ConfigurationError
        If there is no audit at the path, or it is not one that this version writes.
    """
    stem = path.rstrip("/").removesuffix(_GROUPS).removesuffix(_HEADER)
    tables = {suffix: stem + suffix for suffix in (_HEADER, _GROUPS)}
    for table in tables.values():
        if not Path(table).exists():
            raise ConfigurationError(
                f"there is no audit at {path!r}: {table!r} does not exist. {_mend(path)}"
            )
    try:
        header = AuditHeader.from_arrow(pyarrow.parquet.read_table(tables[_HEADER]))
        return PublicAudit(header, pyarrow.parquet.read_table(tables[_GROUPS]))
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"the audit at {path!r} cannot be read ({type(error).__name__}): it is not Parquet, or "
            "not one that this version of spark-dphist writes"
        ) from None


def _mend(path: str) -> str:
    if "://" in path:
        return (
            "Only local paths are read here: copy the two tables of the audit to one, or read them "
            "with Spark as a PublicAudit (docs/reference/api.md)."
        )
    beside = f"{path.rstrip('/')}_audit"
    if Path(beside + _HEADER).exists():
        return f"Did you mean {beside!r}? That is the audit of these counts."
    return (
        "Name what the paths '..._audit_groups' and '..._audit_header' of a release begin with: "
        "its output's path and '_audit', unless [audit] says otherwise. Was the release made?"
    )


def _check_same(headers: tuple[AuditHeader, ...]) -> None:
    first = headers[0]
    seen = set()
    for header in headers:
        if header.release_id in seen:
            raise ConfigurationError(f"the audit of release {header.release_id!r} is given twice")
        seen.add(header.release_id)
        for what, one, other in (
            ("group columns", first.group_columns, header.group_columns),
            ("the key set", first.key_set_digest, header.key_set_digest),
            ("the data set", _data(first), _data(header)),
            ("the privacy unit", first.privacy_unit, header.privacy_unit),
            ("the bound on a unit's records", first.records_per_unit, header.records_per_unit),
        ):
            if one != other:
                raise ConfigurationError(
                    f"releases {first.release_id!r} and {header.release_id!r} differ in {what} "
                    f"({one} and {other}): a group of the one is no group of the other. Only the "
                    "worst cases add then, which is what a ledger does"
                )


def _data(header: AuditHeader) -> str:
    return header.dataset if header.dataset is not None else header.input


def _by_key(audit: PublicAudit, keys: list[str]) -> pa.Table:
    if audit.groups is None:
        raise ConfigurationError(
            f"the audit of release {audit.header.release_id!r} comes without its "
            f"{audit.header.key_set_size:,} groups: read it with them, or add up the stored tables "
            "with Spark"
        )
    return audit.groups.sort_by([(key, "ascending") for key in keys]).combine_chunks()


def _summed(columns: Sequence[FloatArray], towards: float) -> FloatArray:
    total = np.zeros_like(columns[0])
    for column in columns:
        # Nothing is rounded where 0 is added.
        total = np.where(column == 0, total, np.nextafter(total + column, towards))
    return total
