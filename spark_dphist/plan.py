"""What a release will cost and how good it will be, before any data is touched."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from spark_dphist.accounting import (
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    gaussian_coefficient,
    least_fisher_coefficient,
    lower_bound_coefficient,
)
from spark_dphist.accounting.composition import PolicyCost
from spark_dphist.accounting.policy import Reading, policy_cost, read_budget, read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.config import ReleaseConfiguration
from spark_dphist.mechanisms import Mechanism

# Above this, epsilon says next to nothing for a table of people.
_LARGEST_DELTA = 1e-3


@dataclass(frozen=True)
class PlanRow:
    """What members and users of a group of ``count`` records get.

    ``rho`` is a zCDP budget, ``epsilon`` its reading at the plan's delta, ``attacker_accuracy``
    the best membership guess at even odds; errors are in counts.
    """

    count: int
    expected_error: float
    promised_error: float
    rho: float
    epsilon: float
    attacker_accuracy: float


@dataclass(frozen=True)
class Plan:
    """A release as its public policy alone determines it; the worst case comes first."""

    mechanism: Mechanism
    relative_error: float
    delta: float
    rounding: str
    privacy_unit: PrivacyUnit
    worst_case: Reading
    rows: tuple[PlanRow, ...]
    warnings: tuple[str, ...]

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
        return policy_cost(self.mechanism, self.privacy_unit, promise)

    def to_json(self, budget: Mapping[str, object] | None = None) -> str:
        """Return the plan for programs: the fields of this class, and of ``PlanRow``, by name.

        ``mechanism`` is its name, with ``parameters`` beside it; ``budget`` is what a ledger says
        of it, JSON values, or null.
        """
        fields = {
            "mechanism": self.mechanism.name,
            "parameters": self.mechanism.parameters(),
            "relative_error": self.relative_error,
            "floor": self.mechanism.floor,
            "delta": self.delta,
            "rounding": self.rounding,
            "privacy_unit": self.privacy_unit.described,
            "records_per_unit": self.privacy_unit.max_records,
            "worst_case": asdict(self.worst_case),
            "rows": [asdict(row) for row in self.rows],
            "warnings": self.warnings,
            "budget": budget,
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
    worst = read_worst_case(mechanism, unit, delta)
    return Plan(
        mechanism=mechanism,
        relative_error=section.relative_error,
        delta=delta,
        rounding=configuration.output.rounding,
        privacy_unit=unit,
        worst_case=worst,
        rows=rows,
        warnings=tuple(_warnings(configuration, worst.rho)),
    )


def plan_rows(
    configuration: ReleaseConfiguration, mechanism: Mechanism, relative_error: float
) -> tuple[PlanRow, ...]:
    """Evaluate a mechanism at small, middling and large counts, the floor among them.

    Parameters
    ----------
    configuration
        Names floor, privacy unit, delta and rounding.
    mechanism, relative_error
        Whose promise it is; not necessarily those of the configuration.
    """
    floor, delta = configuration.mechanism.floor, configuration.privacy.delta
    rounded = configuration.output.rounding == "nearest"
    records = configuration.privacy.privacy_unit.records_per_group

    def row(count: int) -> PlanRow:
        reading = read_budget(mechanism, float(mechanism.budget(count, records)), records, delta)
        return PlanRow(
            count=count,
            expected_error=float(mechanism.expected_absolute_error(count, rounded=rounded)),
            promised_error=relative_error * max(count, floor),
            **asdict(reading),
        )

    return tuple(row(count) for count in sorted({1, 10, math.ceil(floor), 1_000, 1_000_000}))


def _warnings(configuration: ReleaseConfiguration, worst_rho: float) -> Iterator[str]:
    promised = configuration.mechanism.relative_error * configuration.mechanism.floor
    if worst_rho > 1:
        yield (
            f"Members of the smallest groups have rho = {worst_rho:.3g}, which is little privacy. "
            "Raise the floor, or allow a larger relative error."
        )
    if promised < 0.5:
        yield (
            f"The promise asks for an error below {promised:.3g} records even in a group of one, "
            "so the released count tells whether that one record is there. A floor of 20 to 100 "
            "protects small groups far better."
        )
    if configuration.privacy.delta > _LARGEST_DELTA:
        yield (
            f"delta = {configuration.privacy.delta:g} lets epsilon fail for one person in "
            f"{1 / configuration.privacy.delta:,.0f}. Choose it well below one in the number of "
            "people in the data."
        )
