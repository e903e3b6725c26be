"""The budget function: checked at many counts against the integers that are really released."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.mechanisms import MAX_COUNT, Mechanism, TransformMechanism
from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.verification.claim import Claim
from spark_dphist.verification.stated_noise import StatedNoise

# Two evaluations of one budget may differ by this much.
_ROUNDING = 1 + 2.0**-46


def encoding_of_each_count(mechanism: Mechanism, counts: FloatArray) -> Claim:
    """Check that the integer a count becomes depends on nothing but this count."""
    together = mechanism.encode(counts)
    shuffled = np.random.default_rng(0).permutation(counts.size)
    changed = np.flatnonzero(mechanism.encode(counts[shuffled]) != together[shuffled])
    few = shuffled[:: max(1, counts.size // 500)]
    alone = [int(mechanism.encode(counts[[i]])[0]) for i in few]
    differing = int(changed.size + np.count_nonzero(together[few] != alone))
    return Claim(
        claim="What a group's count is encoded as depends on that count alone",
        how=f"{counts.size:,} counts encoded together, reordered and one by one",
        measured=differing,
        upper=0.0,
    )


def budget_of_released_integers(
    mechanism: Mechanism, noise: StatedNoise | None, counts: FloatArray, records: int
) -> Claim:
    """Check the budget of every count against the exact one of its encoded neighbours.

    In exact arithmetic: the shift of the integers costs shift**2 / (2 scale**2) with Gaussian
    noise. No draws are needed, so too small a budget is found at every count, however tiny it is.
    """
    stated = [Fraction(float(rho)) for rho in mechanism.budget(counts, records)]
    here = [int(step) for step in mechanism.encode(counts)]
    ratio, where, distances = 0.0, "", _distances(records)
    for distance in distances:
        for sign in (1, -1):
            neighbours = np.maximum(counts + sign * distance, 0.0)
            there = [int(step) for step in mechanism.encode(neighbours)]
            for i, allowed in enumerate(stated):
                found = _ratio(noise, there[i] - here[i], allowed)
                if found > ratio:
                    ratio = found
                    where = f"counts {counts[i]:,.0f} and {neighbours[i]:,.0f}"
    return Claim(
        claim="The stated budget covers both neighbours",
        how=f"Exact budget of the encoded integers at {counts.size:,} counts, "
        f"{_listed(distances)} more or fewer. Measured: exact / stated",
        measured=ratio,
        upper=1.0,
        at=where,
    )


def _ratio(noise: StatedNoise | None, shift: int, allowed: Fraction) -> float:
    """Return the exact budget as a share of the one allowed; above 1 only if it is."""
    if shift == 0:
        return 0.0
    if noise is None:
        return math.inf
    exact = noise.rho_lower(shift)
    if exact <= allowed:
        return min(float(exact / allowed), 1.0)
    return max(float(exact / allowed), math.nextafter(1.0, 2.0)) if allowed else math.inf


def _distances(records: int) -> list[int]:
    powers = [2**i for i in range(records.bit_length()) if 2**i < records]
    return [*powers, records]


def _listed(distances: list[int]) -> str:
    if distances == [1]:
        return "one record"
    return ", ".join(map(str, distances)) + " records"


def budget_never_rises(mechanism: Mechanism, counts: FloatArray) -> Claim:
    """Check that members of larger groups never pay more, for one record per unit."""
    budget = mechanism.budget(counts)
    # A quotient of budgets of 0 says nothing.
    positive = budget[:-1] > 0
    rise = np.where(positive, budget[1:] / np.where(positive, budget[:-1], 1), 1 + budget[1:])
    worst = int(np.argmax(rise))
    return Claim(
        claim="The budget of one record never rises with the count",
        how=f"At {counts.size:,} counts. Measured: largest quotient of a budget and the one before",
        measured=float(rise[worst]),
        upper=_ROUNDING,
        at=f"count {counts[worst + 1]:,.0f}",
    )


def worst_case_covers(
    mechanism: Mechanism, noise: StatedNoise | None, counts: FloatArray, unit: PrivacyUnit
) -> Claim:
    """Check the worst case against exact budgets of a unit in one group or spread over several."""
    worst_case = Fraction(unit.worst_case_rho_upper(mechanism))
    ratio, where = 0.0, ""
    for records, groups in _splits(unit):
        steps = mechanism.encode(counts + records) - mechanism.encode(counts)
        found = _ratio(noise, int(np.max(np.abs(steps))), worst_case / groups)
        if found > ratio:
            ratio, where = found, f"records in one group: {records:,}, groups: {groups:,}"
    return Claim(
        claim="The worst case covers all of a unit's records, wherever they are",
        how="Exact budgets of the encoded integers, by how the records are split. "
        "Measured: exact / stated",
        measured=ratio,
        upper=1.0,
        at=where,
    )


def _splits(unit: PrivacyUnit) -> Iterable[tuple[int, int]]:
    for records in {*_distances(unit.records_per_group), min(3, unit.records_per_group)}:
        yield records, max(unit.max_records // records, 1)


def limit_of_the_budget(mechanism: Mechanism) -> Claim | None:
    """Check n**2 v(n) -> 1 / (2 sigma**2), for mechanisms that are logarithmic at large counts."""
    if not isinstance(mechanism, TransformMechanism):
        return None
    parameters = mechanism.parameters()
    sigma, shift = parameters["sigma"], parameters.get("shift", 0.0)
    location = shift or parameters["knee"]
    n = float(np.rint(min(1e4 * (mechanism.floor + location), MAX_COUNT / 2)))
    # step = ln(1 + 1 / (n - 1 + c)) lies between 1 / (n + c) and 1 / (n - 1 + c); the lattice may
    # add two of its steps and 2**-50 nats.
    lattice = 2.0**-50 + 2 * sigma * 2.0 ** -parameters["scale_bits"]
    return Claim(
        claim="n² v(n) approaches 1 / (2 sigma²)",
        how=f"At n = {n:,.0f}. Measured: n² v(n) 2 sigma²; its bounds meet at 1 for large n",
        measured=float(mechanism.budget(n)) * n**2 * 2 * sigma**2,
        lower=(n / (n + shift)) ** 2 / _ROUNDING,
        upper=(n / (n - 1 + shift) + n * lattice) ** 2 * _ROUNDING,
        at=f"count {n:,.0f}",
    )
