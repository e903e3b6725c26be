"""The promise on the error: at every count by closed form, at some by simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from spark_dphist.mechanisms import (
    MAX_COUNT,
    LinearLog,
    Mechanism,
    PublishedCounts,
    Rounding,
    ShiftedLog,
)
from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.mechanisms.calibration import find_violation
from spark_dphist.verification.bounds import mean_lower, probability_upper
from spark_dphist.verification.claim import FALSE_ALARM_RATE, Claim

_MOST_DENSE = 2**15
_GRID = 4000
# Simulated errors are cut at this many times the promised one: a bound on the mean needs a bound
# on the variable.
_CAP = 8.0


def many_counts(floor: float) -> FloatArray:
    """Return every count up to several floors, then a geometric grid up to 2**47."""
    dense = np.arange(min(int(4 * floor) + 1024, _MOST_DENSE), dtype=np.float64)
    around = np.arange(-2, 4) + np.floor(floor)
    grid = np.rint(np.geomspace(dense[-1], MAX_COUNT / 2, _GRID))
    return np.unique(np.concatenate([dense, around[around >= 0], grid]))


def error_at_every_count(mechanism: Mechanism, relative_error: float, rounding: Rounding) -> Claim:
    """Check E|published - x| < r max(x, floor) by closed form, strictly."""
    counts = many_counts(mechanism.floor)
    how = f"Closed form at {counts.size:,} counts: all up to {_dense_end(counts):,}, then a grid"
    if isinstance(mechanism, ShiftedLog | LinearLog):
        violation = find_violation(mechanism, relative_error)
        if violation is None:
            how += "; between them and in the limit by a search that proves it"
        else:
            # With doubles published this may be a violation of the nearest integer alone.
            counts = np.append(counts, violation)
    promised = relative_error * np.maximum(counts, mechanism.floor)
    error = mechanism.expected_absolute_error(counts, rounded=rounding == "nearest")
    worst = int(np.argmax(error / promised))
    return Claim(
        claim=f"The expected error is below {relative_error:g} x max(count, {mechanism.floor:g})",
        how=f"{how}. Measured: error / promise",
        measured=float(error[worst] / promised[worst]),
        upper=1.0,
        strict=True,
        at=f"count {counts[worst]:,.0f}",
    )


def _dense_end(counts: FloatArray) -> int:
    return int(counts[np.argmax(np.diff(counts) > 1)])


def simulated_error(
    mechanism: Mechanism,
    relative_error: float,
    rounding: Rounding,
    published: Mapping[int, PublishedCounts],
) -> list[Claim]:
    """Check that draws contradict neither the promise nor the closed form of the error."""
    rate = FALSE_ALARM_RATE / len(published)
    counts = np.array(list(published), dtype=np.float64)
    promised = relative_error * np.maximum(counts, mechanism.floor)
    stated = mechanism.expected_absolute_error(counts, rounded=rounding == "nearest")
    lower = np.array(
        [
            mean_lower(np.abs(drawn.noisy_count - float(count)), _CAP * allowed, rate)
            for (count, drawn), allowed in zip(published.items(), promised, strict=True)
        ]
    )
    size = next(iter(published.values())).noisy_count.size
    how = f"Lower confidence bound from {size:,} published numbers at each of {counts.size} counts"
    claims: list[Claim] = []
    for claim, unit, allowed in (
        ("Published numbers keep the promise", "the promise", promised),
        ("The stated expected error is not below the true one", "the stated error", stated),
    ):
        # Where no error is stated, none may be seen.
        ratio = np.where(allowed > 0, lower / np.where(allowed > 0, allowed, 1), 1 + lower)
        worst = int(np.argmax(ratio))
        claims.append(
            Claim(
                claim=claim,
                how=f"{how}. Measured: bound / {unit}",
                measured=float(ratio[worst]),
                upper=1.0,
                at=f"count {counts[worst]:,.0f}",
                # One bound serves both claims: if it holds, neither fails.
                false_alarm_rate=FALSE_ALARM_RATE if not claims else 0.0,
            )
        )
    return claims


def interval_coverage(published: Mapping[int, PublishedCounts], confidence: float) -> Claim:
    """Check that published intervals contain the true count as often as stated."""
    rate = FALSE_ALARM_RATE / len(published)
    upper = {
        count: float(
            probability_upper(
                np.count_nonzero((drawn.lower <= count) & (count <= drawn.upper)),
                drawn.lower.size,
                rate,
            )
        )
        for count, drawn in published.items()
    }
    worst = min(upper, key=lambda count: upper[count])
    return Claim(
        claim=f"Intervals contain the true count with probability {confidence:g}",
        how="Upper confidence bound of the coverage of the same published numbers",
        measured=upper[worst],
        lower=confidence,
        upper=1.0,
        at=f"count {worst:,}",
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def simulated_counts(floor: float) -> list[int]:
    """Return the counts at which the error is simulated."""
    return sorted({0, 1, math.ceil(floor), math.ceil(10 * floor), 1_000_000})
