"""What a release will cost and how good it will be, before any data is touched."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

import numpy as np

from spark_dphist import notebook
from spark_dphist.accounting import (
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    gaussian_coefficient,
    least_fisher_coefficient,
    lower_bound_coefficient,
)
from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.policy import Reading, policy_cost, read_budget, read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.config import ReleaseConfiguration
from spark_dphist.errors import ConfigurationError
from spark_dphist.key_ranges import confidential_key_set
from spark_dphist.mechanisms import Mechanism
from spark_dphist.optional import needing
from spark_dphist.shown import amount_text, share_text
from spark_dphist.weaknesses import weak_settings

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class PlanRow:
    """What members and users of a group of ``count`` records get.

    ``rho`` is a zCDP budget, ``epsilon`` its reading at the plan's delta, ``attacker_accuracy``
    the best membership guess at even odds; errors are in counts. ``lower`` and ``upper`` are the
    interval that is published where the noise is 0, its median: half of the intervals of groups of
    this size lie higher, half lower.
    """

    count: int
    expected_error: float
    promised_error: float
    lower: float
    upper: float
    rho: float
    epsilon: float
    attacker_accuracy: float


@dataclass(frozen=True)
class Plan:
    """A release as its public policy alone determines it; the worst case comes first."""

    input: str
    mechanism: Mechanism
    relative_error: float
    delta: float
    rounding: str
    confidence: float
    privacy_unit: PrivacyUnit
    selection: KeySelection | None
    worst_case: Reading
    rows: tuple[PlanRow, ...]
    warnings: tuple[str, ...]
    key_set_size: int | None = None

    @property
    def coefficients(self) -> dict[str, float]:
        """The mechanism's limit of n**2 rho(n), and what no mechanism can pass."""
        sigma = getattr(self.mechanism, "sigma", None)
        if sigma is None:
            return {}
        return {
            "this mechanism, 1 / (2 sigma²)": float(gaussian_coefficient(sigma)),
            "least of all noise on the logarithm": float(
                least_fisher_coefficient(self.relative_error) / self.relative_error**2
            ),
            "the paper's bounds on the best for small r, upper": SMALL_ERROR_UPPER
            / self.relative_error**2,
            "the paper's bounds on the best for small r, lower": SMALL_ERROR_LOWER
            / self.relative_error**2,
            "lower bound for any mechanism": float(lower_bound_coefficient(self.relative_error)),
        }

    def cost(self) -> PolicyCost:
        """Return what a ledger charges for the release."""
        promise = {"relative_error": self.relative_error, "floor": self.mechanism.floor}
        return policy_cost(self.mechanism, self.privacy_unit, promise, self.selection)

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as pandas, one for each group size; columns as in ``PlanRow``."""
        # Here, not at the top: the command line needs none.
        import pandas as pd

        return pd.DataFrame([asdict(row) for row in self.rows])

    def plot(self, axes: Axes | None = None, *, of: Literal["budget", "error"] = "budget") -> Axes:
        """Draw the budget of a member, or the expected error, against group size.

        Parameters
        ----------
        axes
            Matplotlib's, to draw on; new ones otherwise.
        of
            ``budget`` or ``error``.

        Raises
        ------
        ConfigurationError
            If matplotlib is not installed, or there is no such drawing.
        """
        with needing("plot()", "plots"):
            from spark_dphist import figures
        if of == "budget":
            return figures.drawn(
                axes,
                lambda on: figures.draw_budget(
                    on,
                    self.mechanism,
                    records=self.privacy_unit.records_per_group,
                    worst_rho=self.worst_case.rho,
                    relative_error=self.relative_error,
                ),
            )
        if of == "error":
            return figures.drawn(
                axes,
                lambda on: figures.draw_error(
                    on,
                    self.mechanism,
                    relative_error=self.relative_error,
                    rounded=self.rounding == "nearest",
                    confidence=self.confidence,
                ),
            )
        raise ConfigurationError(f"a plan draws 'budget' or 'error', got {of!r}")

    def _repr_html_(self) -> str:
        worst = self.worst_case
        facts = [
            (
                "worst case, for everyone",
                f"rho = {amount_text(worst.rho)}, epsilon = {amount_text(worst.epsilon)} at "
                f"delta = {amount_text(self.delta)}",
            ),
            ("best attacker", f"right in at most {share_text(worst.attacker_accuracy)} of cases"),
            ("privacy unit", self.privacy_unit.described),
            (
                "promise",
                f"expected error below {share_text(self.relative_error)} of "
                f"max(count, {amount_text(self.mechanism.floor)})",
            ),
            ("mechanism", self.mechanism.name),
        ]
        headings = ["records", "expected error", "promised below", "interval", "rho", "epsilon"]
        rows = [
            [
                f"{row.count:,}",
                amount_text(row.expected_error),
                amount_text(row.promised_error),
                f"{amount_text(row.lower)} to {amount_text(row.upper)}",
                amount_text(row.rho),
                amount_text(row.epsilon),
            ]
            for row in self.rows
        ]
        caption = f"By group size; {share_text(self.confidence)} interval at the noise's median"
        return notebook.card(
            "Plan of a release",
            facts,
            [notebook.table(caption, headings, rows, 0)],
            warnings=self.warnings,
        )

    def to_json(
        self,
        budget: Mapping[str, object] | None = None,
        target: Mapping[str, object] | None = None,
    ) -> str:
        """Return the plan for programs: the fields of this class, and of ``PlanRow``, by name.

        ``mechanism`` is its name, with ``parameters`` beside it; ``budget`` is what a ledger says
        of it and ``target`` the search that it comes from, JSON values, or null.
        """
        fields = {
            "input": self.input,
            "mechanism": self.mechanism.name,
            "parameters": self.mechanism.parameters(),
            "relative_error": self.relative_error,
            "floor": self.mechanism.floor,
            "delta": self.delta,
            "rounding": self.rounding,
            "confidence": self.confidence,
            "privacy_unit": self.privacy_unit.described,
            "records_per_unit": self.privacy_unit.max_records,
            "key_set_size": self.key_set_size,
            "key_set_selection": self.selection.parameters() if self.selection else None,
            "worst_case": asdict(self.worst_case),
            "rows": [asdict(row) for row in self.rows],
            "warnings": self.warnings,
            "budget": budget,
            "target": target,
        }
        return json.dumps(fields, indent=2, allow_nan=False)


def make_plan(configuration: ReleaseConfiguration) -> Plan:
    """Calibrate the mechanism and evaluate its public functions; reads nothing but the argument.

    Raises
    ------
    ConfigurationError
        If the promise cannot be kept by the mechanism.
    """
    section = configuration.mechanism
    mechanism = section.calibrated()
    unit, delta = configuration.privacy.privacy_unit, configuration.privacy.delta
    rows = plan_rows(configuration, mechanism, section.relative_error)
    selection = configuration.selection
    worst = read_worst_case(mechanism, unit, delta, selection)
    return Plan(
        input=configuration.input.counted,
        mechanism=mechanism,
        relative_error=section.relative_error,
        delta=delta,
        rounding=configuration.output.rounding,
        confidence=configuration.output.confidence,
        privacy_unit=unit,
        selection=selection,
        worst_case=worst,
        rows=rows,
        warnings=weak_settings(
            relative_error=section.relative_error,
            floor=section.floor,
            worst_rho=worst.rho,
            delta=delta,
            selection_rho=selection.rho_upper if selection else 0.0,
            rows=configuration.input.rows,
        )
        + learnt_keys_warnings(configuration.groups.columns, selection)
        + same_place_warnings(configuration),
        key_set_size=configuration.groups.declared_size,
    )


def same_place_warnings(configuration: ReleaseConfiguration) -> tuple[str, ...]:
    """Return a warning if the key set is declared to be the input, or lies in the same place."""
    keys, source = configuration.groups.keys, configuration.input
    if keys.table is not None and keys.table == source.table:
        return (confidential_key_set(f"both are the table {keys.table}"),)
    if keys.path is not None and source.path is not None:
        places = [PurePath(keys.path), PurePath(source.path)]
        if places[0].is_relative_to(places[1]) or places[1].is_relative_to(places[0]):
            return (confidential_key_set(f"{keys.path} and {source.path} are the same place"),)
    return ()


def learnt_keys_warnings(columns: Sequence[str], selection: KeySelection | None) -> tuple[str, ...]:
    """Return what somebody must know who lets a release learn its key set."""
    if selection is None:
        return ()
    return (
        "The key set is learnt from the data: the values of "
        f"{', '.join(map(repr, columns))} in every group that is kept become public as they stand. "
        "If one of them can be personal or secret in itself (a name, an address, free text), "
        "declare the key set instead.",
    )


def plan_rows(
    configuration: ReleaseConfiguration, mechanism: Mechanism, relative_error: float
) -> tuple[PlanRow, ...]:
    """Evaluate a mechanism at small, middling and large counts, the floor among them.

    Parameters
    ----------
    configuration
        Names floor, privacy unit, delta, rounding and confidence.
    mechanism, relative_error
        Whose promise it is; not necessarily those of the configuration.
    """
    output, privacy = configuration.output, configuration.privacy
    floor = configuration.mechanism.floor
    return tuple(
        plan_row(
            mechanism,
            count,
            promised_error=relative_error * max(count, floor),
            records=privacy.privacy_unit.records_per_group,
            delta=privacy.delta,
            rounded=output.rounding == "nearest",
            confidence=output.confidence,
        )
        for count in sizes_to_show(floor)
    )


def sizes_to_show(floor: float) -> list[int]:
    """Return the group sizes of a plan, in rising order."""
    return sorted({1, 10, math.ceil(floor), 1_000, 1_000_000})


def plan_row(
    mechanism: Mechanism,
    count: int,
    *,
    promised_error: float,
    records: int,
    delta: float,
    rounded: bool,
    confidence: float,
) -> PlanRow:
    """Evaluate a mechanism at one count that is no data: a group size to plan for.

    Parameters
    ----------
    mechanism, count
        Which, and at how many records.
    promised_error
        In counts.
    records
        By how much one unit can change the count of one group.
    delta, rounded, confidence
        How the budget is read, whether integers are published, and the interval's confidence.
    """
    low, high = (float(bound) for bound in mechanism.interval(mechanism.encode(count), confidence))
    reading = read_budget(mechanism, float(mechanism.budget(count, records)), records, delta)
    return PlanRow(
        count=count,
        expected_error=float(mechanism.expected_absolute_error(count, rounded=rounded)),
        promised_error=promised_error,
        lower=float(np.floor(low)) if rounded else low,
        upper=float(np.ceil(high)) if rounded else high,
        **asdict(reading),
    )
