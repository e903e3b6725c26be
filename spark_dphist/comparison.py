"""All mechanisms side by side: at one promise on the error, and at one worst-case budget."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from scipy.optimize import brentq

from spark_dphist.accounting.policy import Reading, read_worst_case
from spark_dphist.config import ReleaseConfiguration
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant, FixedGaussian, FixedLaplace, Mechanism
from spark_dphist.mechanisms.registry import calibrate, calibrators
from spark_dphist.plan import PlanRow, plan_rows

# Budgets are equal to this relative accuracy, and never above the one to be matched.
_ACCURACY = 1e-6
_RELATIVE_ERRORS = (1e-5, 1 - 1e-5)


@dataclass(frozen=True)
class Candidate:
    """One mechanism of a comparison, or the sentence why there is none.

    ``relative_error`` is the least r with expected error <= r * max(count, floor) that is known to
    hold at every count.
    """

    name: str
    mechanism: Mechanism | None = None
    relative_error: float | None = None
    worst_case: Reading | None = None
    rows: tuple[PlanRow, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All mechanisms, calibrated to the configured promise and to the configured one's budget."""

    configured: str
    relative_error: float
    floor: float
    rho: float
    delta: float
    equal_promise: tuple[Candidate, ...]
    equal_budget: tuple[Candidate, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts of the candidates' rows."""
        rows = next(candidate.rows for candidate in self.equal_promise if candidate.rows)
        return tuple(row.count for row in rows)

    def to_json(self) -> str:
        """Return the comparison for programs: the fields of these classes, by name."""
        fields = {
            "configured": self.configured,
            "relative_error": self.relative_error,
            "floor": self.floor,
            "rho": self.rho,
            "delta": self.delta,
            "equal_promise": [_as_json(candidate) for candidate in self.equal_promise],
            "equal_budget": [_as_json(candidate) for candidate in self.equal_budget],
        }
        return json.dumps(fields, indent=2, allow_nan=False)


def _as_json(candidate: Candidate) -> dict[str, object]:
    if candidate.mechanism is None or candidate.worst_case is None:
        return {"mechanism": candidate.name, "refusal": candidate.refusal}
    return {
        "mechanism": candidate.name,
        "parameters": candidate.mechanism.parameters(),
        "relative_error": candidate.relative_error,
        "worst_case": asdict(candidate.worst_case),
        "rows": [asdict(row) for row in candidate.rows],
    }


def compare_mechanisms(configuration: ReleaseConfiguration) -> Comparison:
    """Calibrate every mechanism to the configured promise, and to the same worst-case budget.

    Options in the configuration belong to its own mechanism; the others have their defaults.

    Raises
    ------
    ConfigurationError
        If the configured mechanism cannot keep the promise.
    """
    section = configuration.mechanism
    configured = section.calibrated()
    promise = section.relative_error
    unit, delta = configuration.privacy.privacy_unit, configuration.privacy.delta
    # Of the counts alone: the selection costs the same beside every mechanism.
    rho = _worst_rho(configuration, configured)

    def at_promise(name: str) -> tuple[Mechanism, float]:
        if name == section.name:
            return configured, promise
        return _calibrated(configuration, name, promise), promise

    def at_budget(name: str) -> tuple[Mechanism, float]:
        if name == section.name:
            return configured, promise
        return _with_worst_case(configuration, name, rho)

    return Comparison(
        configured=section.name,
        relative_error=promise,
        floor=section.floor,
        rho=read_worst_case(configured, unit, delta, configuration.selection).rho,
        delta=delta,
        equal_promise=_candidates(configuration, at_promise),
        equal_budget=_candidates(configuration, at_budget),
    )


def _candidates(
    configuration: ReleaseConfiguration, make: Callable[[str], tuple[Mechanism, float]]
) -> tuple[Candidate, ...]:
    unit, delta = configuration.privacy.privacy_unit, configuration.privacy.delta
    candidates = []
    for name in calibrators():
        try:
            mechanism, relative_error = make(name)
        except ConfigurationError as error:
            candidates.append(Candidate(name, refusal=str(error)))
            continue
        candidates.append(
            Candidate(
                name,
                mechanism,
                relative_error,
                read_worst_case(mechanism, unit, delta, configuration.selection),
                plan_rows(configuration, mechanism, relative_error),
            )
        )
    return tuple(candidates)


def _calibrated(configuration: ReleaseConfiguration, name: str, relative_error: float) -> Mechanism:
    floor = configuration.mechanism.floor
    return calibrate(name, relative_error=relative_error, floor=floor)


def _worst_rho(configuration: ReleaseConfiguration, mechanism: Mechanism) -> float:
    return configuration.privacy.privacy_unit.worst_case_rho_upper(mechanism)


def _with_worst_case(
    configuration: ReleaseConfiguration, name: str, rho: float
) -> tuple[Mechanism, float]:
    """Return the most accurate mechanism of this name within the budget, and its relative error."""
    floor = configuration.mechanism.floor
    if name == Constant.name:
        # |floor / 2 - x| / max(x, floor) approaches 1 for large x.
        return Constant(floor=floor), 1.0
    if rho == 0:
        raise ConfigurationError("no noise has a budget of 0.")
    fixed: dict[str, Callable[..., Mechanism]] = {
        FixedGaussian.name: FixedGaussian.for_budget,
        FixedLaplace.name: FixedLaplace.for_budget,
    }
    if name in fixed:
        # For k records a unit pays from 1 to k**2 times what it pays for one.
        k = configuration.privacy.max_records
        one = _within(
            lambda one: _worst_rho(configuration, fixed[name](one, floor=floor)),
            rho,
            safe=rho / (2 * k**2),
            beyond=2 * rho,
        )
        mechanism = fixed[name](one, floor=floor)
        return mechanism, _relative_error(mechanism)

    def worst(relative_error: float) -> float:
        return _worst_rho(configuration, _calibrated(configuration, name, relative_error))

    low, high = _RELATIVE_ERRORS
    if worst(high) > rho:
        raise ConfigurationError(
            f"its counts cost more than rho = {rho:.3g} for every relative error below 1."
        )
    beyond = min(configuration.mechanism.relative_error, high)
    while worst(beyond) <= rho:
        if beyond == low:
            return _calibrated(configuration, name, low), low
        beyond = max(beyond / 2, low)
    relative_error = _within(worst, rho, safe=min(2 * beyond, high), beyond=beyond)
    return _calibrated(configuration, name, relative_error), relative_error


def _within(cost: Callable[[float], float], rho: float, *, safe: float, beyond: float) -> float:
    """Return a parameter whose cost is at most rho, and at least (1 - _ACCURACY) rho.

    The cost is monotone; it is above rho at ``beyond``. From ``safe`` on the way leads further away
    from there until the cost is within rho.
    """
    while cost(safe) > rho:
        beyond, safe = safe, safe * (safe / beyond)
    logarithm = brentq(
        lambda t: math.log(cost(math.exp(t)) / rho), math.log(safe), math.log(beyond), xtol=1e-9
    )
    parameter = math.exp(float(logarithm))
    step = math.copysign(_ACCURACY / 8, math.log(safe / beyond))
    while cost(parameter) > rho:
        parameter *= math.exp(step)
    return parameter


def _relative_error(mechanism: Mechanism) -> float:
    """Return the relative error of fixed noise, which is largest next to the floor."""
    counts = np.array([math.floor(mechanism.floor), math.ceil(mechanism.floor)], dtype=np.float64)
    error = mechanism.expected_absolute_error(counts)
    return float(np.max(error / np.maximum(counts, mechanism.floor)))
