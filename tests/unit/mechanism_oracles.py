"""Independent ways to compute what mechanisms promise: quadrature, sums, exact integers."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from scipy.special import ndtr

from spark_dphist.mechanisms import LinearLog, ShiftedLog, TransformMechanism

REFERENCES = json.loads(
    (Path(__file__).parents[1] / "data" / "reference_values.json").read_text(encoding="utf-8")
)
DRIFTS = {
    "sigma^2": "minimal_error",
    "0": "median_unbiased",
    "0.045": "unbiased",
    "0.32": "unbiased",
}


def transform(mechanism: TransformMechanism, count: Any) -> mpmath.mpf:
    """Evaluate f at 60 digits, from its definition."""
    with mpmath.workdps(60):
        x = mpmath.mpf(count)
        if isinstance(mechanism, ShiftedLog):
            return mpmath.log(x + mpmath.mpf(mechanism.shift))
        knee = mpmath.mpf(mechanism.knee)
        return x / knee if x <= knee else 1 + mpmath.log(x / knee)


def exact_budget(mechanism: TransformMechanism, count: int, records: int = 1) -> mpmath.mpf:
    """Evaluate step_k(n)**2 / (2 sigma**2) at 60 digits."""
    with mpmath.workdps(60):
        here = transform(mechanism, count)
        step = max(
            transform(mechanism, count + records) - here,
            here - transform(mechanism, max(count - records, 0)),
        )
        return step**2 / (2 * mpmath.mpf(mechanism.sigma) ** 2)


def estimate(mechanism: TransformMechanism, count: int, z: Any) -> mpmath.mpf:
    """Decode f(count) + sigma z as the class documents it."""
    y = transform(mechanism, count) + mpmath.mpf(mechanism.sigma) * z
    drift = mpmath.mpf(mechanism.drift_value)
    if isinstance(mechanism, ShiftedLog):
        value = mpmath.exp(y - drift) - mpmath.mpf(mechanism.shift)
        return max(value, mpmath.mpf(0)) if mechanism.drift != "unbiased" else value
    if y <= 1:
        return max(y, mpmath.mpf(0)) * mechanism.knee
    return mechanism.knee * mpmath.exp(max(y - 1 - drift, mpmath.mpf(0)))


def mean_of(mechanism: TransformMechanism, count: int, function: Any) -> mpmath.mpf:
    """Integrate function(estimate) over the noise, between the points where it may bend."""
    sigma, here = mpmath.mpf(mechanism.sigma), transform(mechanism, count)
    drift = mpmath.mpf(mechanism.drift_value)
    bends = [drift / sigma]
    if isinstance(mechanism, ShiftedLog):
        bends.append((mpmath.log(mechanism.shift) + drift - here) / sigma)
    else:
        bends += [-here / sigma, mpmath.mpf(0), (1 - here) / sigma, (1 + drift - here) / sigma]
    points = sorted(
        {*(max(min(b, mpmath.mpf(14)), mpmath.mpf(-14)) for b in bends), -14, -5, 5, 14}
    )
    return mpmath.quad(
        lambda z: function(estimate(mechanism, count, z)) * mpmath.npdf(z), points, maxdegree=8
    )


def summed_rounded_error(mechanism: TransformMechanism, count: int) -> float:
    """Sum P(nearest integer <= j) below the count and its complement above, every j one by one."""
    reach = np.exp(9.5 * mechanism.sigma)
    if isinstance(mechanism, ShiftedLog):
        shift = mechanism.shift
        low = -int(np.ceil(shift)) if mechanism.drift == "unbiased" else 0
        j = np.arange(low, int((count + shift) * reach) + 5, dtype=np.float64)
        argument = np.log(np.maximum(j + 0.5 + shift, 1e-290) / (count + shift))
        z = (argument + mechanism.drift_value) / mechanism.sigma
    else:
        knee = mechanism.knee
        j = np.arange(0, int(max(count, knee) * reach) + 5, dtype=np.float64)
        here = count / knee if count <= knee else 1 + np.log(count / knee)
        at_the_knee = (j + 0.5 == knee) & (np.rint(knee) == j)
        inverse = np.where(
            (j + 0.5 > knee) | at_the_knee,
            1 + mechanism.drift_value + np.log((j + 0.5) / knee),
            (j + 0.5) / knee,
        )
        z = (inverse - here) / mechanism.sigma
    return float(np.sum(ndtr(np.where(j < count, z, -z)).astype(np.longdouble)))


def budget_of_integers(mechanism: TransformMechanism, first: int, second: int) -> Fraction:
    """Return the exact rho of the two shipped integers: their distance**2 / (2 * 4**scale_bits)."""
    a, b = (int(v) for v in mechanism.encode([first, second]))
    return Fraction((a - b) ** 2, 2 * 4**mechanism.lattice.scale_bits)


def any_mechanism(kind: str, sigma: float, size: float, floor: float = 1.0) -> TransformMechanism:
    """Return a mechanism with ``size`` as its shift or knee."""
    if kind == "shifted_log":
        return ShiftedLog(sigma=sigma, shift=size, floor=floor)
    return LinearLog(sigma=sigma, knee=size, floor=floor)
