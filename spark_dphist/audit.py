"""The audit of a release: what was promised to whom, and what each group's members got.

The public audit is a function of public policy and of the released numbers. The budget is an
invertible function of the count, so the realised budgets are as confidential as the counts: they
go to the confidential audit alone (``spark_dphist.spark.confidential``).
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from spark_dphist import __version__, notebook
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms import Mechanism
from spark_dphist.mechanisms.registry import restored
from spark_dphist.optional import needing
from spark_dphist.overview import MOST_IN_NOTEBOOK, shown_groups
from spark_dphist.shown import amount_text, share_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame, SparkSession

BUDGET_COLUMNS = ("rho_at_noisy_count", "rho_lower", "rho_upper")
# What the audit says of each group beside what was released.
AUDIT_COLUMNS = (*BUDGET_COLUMNS, "expected_bias")


@dataclass(frozen=True)
class AuditHeader:
    """What one release promised; public. Budgets are in rho (zCDP), epsilon in nats.

    ``worst_case_rho`` bounds the budget of every privacy unit, whatever the data; ``epsilon`` is
    its (epsilon, delta) reading and ``attacker_accuracy`` the best membership guess at even odds.
    docs/audit.md describes every field.
    """

    release_id: str
    release_name: str
    created_at: datetime
    input: str
    input_snapshot: str | None
    output: str
    group_columns: list[str]
    key_set_size: int
    key_set_digest: str
    key_set_selection: str | None
    counts_digest: str
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
    least_rho_at_noisy_count: float
    greatest_rho_at_noisy_count: float
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
        # What an older version's header lacks is what it could not say.
        optional = (name for name, kind in cls.__annotations__.items() if kind.endswith("| None"))
        row = {**dict.fromkeys(optional), **row}
        return cls(**{name: row[name] for name in cls.__annotations__})

    def calibrated_mechanism(self) -> Mechanism:
        """Return the mechanism with the parameters that the header states.

        Raises
        ------
        ConfigurationError
            If this version has no such mechanism (as for a collection in the local model), or one
            of these parameters has others.
        """
        return restored(self.mechanism, json.loads(self.parameters))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was promised to whom, the worst case first, as names and text for people."""
        promise = "not stated"
        if self.relative_error is not None:
            promise = (
                f"expected error below {share_text(self.relative_error)} of "
                f"max(count, {amount_text(self.floor)})"
            )
        charged = "not charged to a ledger"
        if self.dataset is not None:
            charged = f"charged to the data set {self.dataset}"
        return [
            (
                "worst case, for everyone",
                f"rho = {amount_text(self.worst_case_rho)}, epsilon = {amount_text(self.epsilon)} "
                f"at delta = {amount_text(self.delta)}",
            ),
            ("best attacker", f"right in at most {share_text(self.attacker_accuracy)} of cases"),
            ("privacy unit", self.privacy_unit),
            ("promise", promise),
            ("mechanism", self.mechanism),
            ("groups", f"{self.key_set_size:,}"),
            ("budget", charged),
        ]

    @property
    def cautions(self) -> list[str]:
        """What somebody must know before they look at the numbers."""
        if not self.fixed_release_key:
            return []
        return ["made with a fixed release key, for tests only: this release is not private"]


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

    ``groups`` has one row for each group: its key, ``noisy_count``, ``lower``, ``upper`` and
    ``AUDIT_COLUMNS``; see ``audit_columns``. It is None where there are more groups than the
    driver collects: the audit is then in storage alone (``Release.audit_table``).
    """

    header: AuditHeader
    groups: pa.Table | None

    def to_pandas(self) -> pd.DataFrame:
        """Return the groups as pandas, integer keys with NULLs kept integers.

        Raises
        ------
        ReleaseError
            If the groups were not collected.
        """
        return pandas_of(self._collected())

    def to_spark(self, spark: SparkSession) -> DataFrame:
        """Return the groups as a DataFrame of one partition, whose columns keep their types.

        Raises
        ------
        ReleaseError
            If the groups were not collected.
        """
        # Here, not at the top: an audit can be read without Spark.
        from spark_dphist.spark.arrow_exchange import dataframe_from_arrow

        return dataframe_from_arrow(spark, self._collected())

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the budget of a member against group size, with the released counts marked.

        Parameters
        ----------
        axes
            Matplotlib's, to draw on; new ones otherwise.

        Raises
        ------
        ConfigurationError
            If matplotlib is not installed.
        ReleaseError
            If the groups were not collected.
        """
        noisy = self._collected()["noisy_count"].to_numpy().astype(np.float64)
        header = self.header
        with needing("plot()", "plots"):
            from spark_dphist import figures
        return figures.drawn(
            axes,
            lambda on: figures.draw_budget(
                on,
                header.calibrated_mechanism(),
                records=header.records_per_group,
                worst_rho=header.worst_case_rho,
                relative_error=header.relative_error,
                released=noisy,
            ),
        )

    def _repr_html_(self) -> str:
        header, tables = self.header, []
        if self.groups is not None:
            shown = shown_groups(self.groups, header.group_columns, MOST_IN_NOTEBOOK)
            tables = [notebook.budget_table(shown, header.group_columns)]
        title = f"Public audit of release {header.release_id}"
        return notebook.card(title, header.facts, tables, warnings=header.cautions)

    def _collected(self) -> pa.Table:
        if self.groups is None:
            raise ReleaseError(
                f"the audit has {self.header.key_set_size:,} groups, more than were to be "
                "collected. Read the stored table, or raise max_collected_groups."
            )
        return self.groups


def pandas_of(released: pa.Table) -> pd.DataFrame:
    """Return a table as pandas, integer columns with NULLs kept integers."""
    integers = {
        pa.int64(): pd.Int64Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int8(): pd.Int8Dtype(),
    }
    frame: pd.DataFrame = released.to_pandas(types_mapper=integers.get)
    return frame


def audit_columns(
    noisy_count: npt.NDArray[Any],
    lower: npt.NDArray[Any],
    upper: npt.NDArray[Any],
    mechanism: Mechanism,
    records_per_group: int,
) -> dict[str, npt.NDArray[np.float64]]:
    """Compute ``AUDIT_COLUMNS`` from released numbers and public policy alone.

    Parameters
    ----------
    noisy_count, lower, upper
        As released, shape (groups,), int64 or float64; negative estimates count as 0.
    mechanism, records_per_group
        Public policy.

    Returns
    -------
    dict
        float64 arrays of shape (groups,): ``rho_at_noisy_count`` (the budget at the released count,
        rho), ``rho_lower`` and ``rho_upper`` (its bounds over the interval, so that they bracket
        the realised budget with the interval's confidence) and ``expected_bias`` (E(estimate)
        minus the count, in counts, before rounding, if the count were the released one).
    """
    noisy, low, high = (
        np.maximum(values.astype(np.float64), 0.0) for values in (noisy_count, lower, upper)
    )
    nearest = np.rint(noisy)
    least, greatest = mechanism.budget_over(low, high, records_per_group)
    values = (
        mechanism.budget(nearest, records_per_group),
        least,
        greatest,
        mechanism.expected_bias(nearest),
    )
    return dict(zip(AUDIT_COLUMNS, values, strict=True))


def audit_groups(released: pa.Table, mechanism: Mechanism, records_per_group: int) -> pa.Table:
    """Add ``AUDIT_COLUMNS`` to the released table.

    Parameters
    ----------
    released
        The read-back of the release: group columns, ``noisy_count``, ``lower`` and ``upper``.
    mechanism, records_per_group
        Public policy.
    """
    noisy, lower, upper = (released[name].to_numpy() for name in ("noisy_count", "lower", "upper"))
    columns = audit_columns(noisy, lower, upper, mechanism, records_per_group)
    for name, values in columns.items():
        released = released.append_column(pa.field(name, pa.float64(), False), pa.array(values))
    return released


def selection_json(selection: KeySelection | None) -> str | None:
    """Return how a key set was learnt and what it cost, as JSON; None where it was declared."""
    return None if selection is None else json.dumps(selection.parameters(), sort_keys=True)


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
        versions[package] = _version_of(package)
    return json.dumps(versions, sort_keys=True)


def _version_of(package: str) -> str:
    # Whatever is wrong: by now the release is charged and drawn. Where pyspark was not installed by
    # pip, there is no metadata of it.
    try:
        return version(package)
    except Exception:
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))
