"""The audit of a release: what was promised to whom, and what each group's members got.

The public audit is a function of public policy and of the released numbers. The budget is an
invertible function of the count, so the realised budgets are as confidential as the counts: they
go to the confidential audit alone (``spark_dphist.spark.confidential``).
"""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa

from spark_dphist import __version__
from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms import Mechanism

BUDGET_COLUMNS = ("rho_at_noisy_count", "rho_lower", "rho_upper")


@dataclass(frozen=True)
class AuditHeader:
    """What one release promised; public. Budgets are in rho (zCDP), epsilon in nats.

    ``worst_case_rho`` bounds the budget of every privacy unit, whatever the data; ``epsilon`` is
    its (epsilon, delta) reading and ``attacker_accuracy`` the best membership guess at even odds.
    """

    release_id: str
    release_name: str
    created_at: datetime
    input: str
    output: str
    group_columns: list[str]
    key_set_size: int
    key_set_digest: str
    mechanism: str
    parameters: str
    relative_error: float | None
    floor: float
    rounding: str
    confidence: float
    privacy_unit: str
    records_per_unit: int
    records_per_group: int
    neighbouring: str
    worst_case_rho: float
    delta: float
    epsilon: float
    attacker_accuracy: float
    dataset: str | None
    fixed_release_key: bool
    versions: str

    def to_arrow(self) -> pa.Table:
        """Return the header as a table of one row; parameters and versions are JSON."""
        fields = [
            pa.field(name, _ARROW_TYPES[annotation], nullable=annotation.endswith("| None"))
            for name, annotation in type(self).__annotations__.items()
        ]
        return pa.Table.from_pylist([self.__dict__], schema=pa.schema(fields))

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Self:
        """Return the header that a stored header table holds."""
        (row,) = table.to_pylist()
        return cls(**{name: row[name] for name in cls.__annotations__})


_ARROW_TYPES = {
    "str": pa.string(),
    "datetime": pa.timestamp("us", "UTC"),
    "list[str]": pa.list_(pa.string()),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "str | None": pa.string(),
    "bool": pa.bool_(),
}


@dataclass(frozen=True)
class PublicAudit:
    """The public audit of one release.

    ``groups`` has one row for each group: its key, ``noisy_count``, ``lower``, ``upper``,
    ``rho_at_noisy_count`` (the budget at the released count) and ``rho_lower``, ``rho_upper``
    (the budget over the interval, so they bracket the realised one with the same confidence).
    """

    header: AuditHeader
    groups: pa.Table

    def to_pandas(self) -> pd.DataFrame:
        """Return the groups as pandas, integer keys with NULLs kept integers."""
        integers = {
            pa.int64(): pd.Int64Dtype(),
            pa.int32(): pd.Int32Dtype(),
            pa.int16(): pd.Int16Dtype(),
            pa.int8(): pd.Int8Dtype(),
        }
        frame: pd.DataFrame = self.groups.to_pandas(types_mapper=integers.get)
        return frame


def audit_groups(released: pa.Table, mechanism: Mechanism, records_per_unit: int) -> pa.Table:
    """Add the budget columns to the released table.

    Parameters
    ----------
    released
        The read-back of the release: group columns, ``noisy_count``, ``lower`` and ``upper``.
    mechanism, records_per_unit
        Public policy.
    """
    noisy, lower, upper = (
        np.maximum(released[name].to_numpy().astype(np.float64), 0.0)
        for name in ("noisy_count", "lower", "upper")
    )
    least, greatest = mechanism.budget_over(lower, upper, records_per_unit)
    at_released = mechanism.budget(np.rint(noisy), records_per_unit)
    for name, values in zip(BUDGET_COLUMNS, (at_released, least, greatest), strict=True):
        released = released.append_column(pa.field(name, pa.float64(), False), pa.array(values))
    return released


def key_set_digest(digests: pa.ChunkedArray, expected_size: int) -> str:
    """Return one SHA-256 for the set of groups, whatever their order, after checking it.

    Parameters
    ----------
    digests
        The 32-byte digests of the groups that were released.
    expected_size
        How many distinct groups were declared.

    Raises
    ------
    ReleaseError
        If a group is missing, extra or there twice.
    """
    # Byte strings of one length: numpy's order of them, which ignores trailing zeros, is theirs.
    ordered = np.sort(np.frombuffer(b"".join(digests.to_pylist()), dtype="S32"))
    distinct = ordered.size - int(np.sum(ordered[1:] == ordered[:-1]))
    if not ordered.size == distinct == expected_size:
        raise ReleaseError(
            f"the stored release has {ordered.size} rows for {distinct} groups, but "
            f"{expected_size} groups were declared. Nothing was published."
        )
    return hashlib.sha256(ordered.tobytes()).hexdigest()


def parameters_json(mechanism: Mechanism) -> str:
    """Return the mechanism's public parameters as JSON."""
    return json.dumps(mechanism.parameters(), sort_keys=True)


def versions_json(spark_version: str) -> str:
    """Return the versions that a release was made with, as JSON."""
    versions: dict[str, Any] = {
        "spark_dphist": __version__,
        "spark": spark_version,
        "python": platform.python_version(),
    }
    for package in ("pyspark", "numpy", "scipy", "pyarrow", "pandas", "cryptography"):
        versions[package] = version(package)
    return json.dumps(versions, sort_keys=True)
