"""The largest noise that keeps the promise on the error, certified at every integer count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import erfinv

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.lattice import SIGMA_RANGE
from spark_dphist.mechanisms.pieces import FloatArray

# Where the promise binds in the limit of large counts, sigma is chosen such that at most this many
# counts have to be looked at one by one; it costs some 1e-9 of sigma.
_MOST_SINGLE_COUNTS = 2**14

# Calibration keeps this many margins from the boundary; the search that certifies its result asks
# for one.
CALIBRATION_MARGINS = 1.5


class Promising(Protocol):
    """What calibration needs to know of a mechanism."""

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise, in nats."""
        ...

    @property
    def floor(self) -> float:
        """The floor of the promise, in counts."""
        ...

    @property
    def tail_start(self) -> int:
        """A count, not below the floor, from which on ``tail_error_upper`` holds."""
        ...

    def tail_error_upper(self, count: int) -> float:
        """Bound count * (error / x), rounded or not, over all integers x from this count on."""
        ...

    def find_violation_below_tail(self, allowed_error: float) -> float | None:
        """Return a count below ``tail_start`` with an error not below allowed * max(x, floor)."""
        ...

    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return the expected absolute error at these counts."""
        ...


MechanismT = TypeVar("MechanismT", bound=Promising)


def refuse_trivial_promise(relative_error: float) -> None:
    """Refuse promises that need no data at all.

    Raises
    ------
    ConfigurationError
        If the relative error is 1 or more.
    """
    if relative_error >= 1:
        raise ConfigurationError(
            f"relative_error must be below 1, got {relative_error!r}: a constant keeps that "
            "promise without touching the data. Use the mechanism 'constant', or a smaller "
            "relative_error."
        )


def refuse_tiny_noise(relative_error: float, sigma: float) -> None:
    """Refuse promises that need less noise than the lattice carries.

    Raises
    ------
    ConfigurationError
        If sigma is below ``SIGMA_RANGE``.
    """
    if sigma < 2 * SIGMA_RANGE[0]:
        raise ConfigurationError(
            f"relative_error {relative_error!r} asks for noise of sigma {sigma:.3g}, expected at "
            f"least {2 * SIGMA_RANGE[0]:.3g}: that is next to no privacy. Choose a larger "
            "relative_error, or a shift that is not so large against the floor."
        )


def promise_margin(sigma: float) -> float:
    """Return the relative distance to keep from the promised error.

    It covers what separates the shipped mechanism from the formulas: lattice, encoding and decoding
    err by at most 9.4 * 2**-52 nats together, against an error of about 0.8 sigma; 2**-43 is for
    the evaluation of the formulas. docs/mechanisms.md adds it up.
    """
    return 2.0**-43 + 2.0**-48 / sigma


def worst_error(mechanism: Promising, count: npt.ArrayLike) -> FloatArray:
    """Return the larger of the expected errors of the estimate and of its nearest integer."""
    return np.maximum(
        mechanism.expected_absolute_error(count),
        mechanism.expected_absolute_error(count, rounded=True),
    )


def largest(
    make: Callable[[float], MechanismT],
    relative_error: float,
    *,
    high: float,
    binding: npt.ArrayLike,
    margins: float = CALIBRATION_MARGINS,
) -> MechanismT:
    """Return the mechanism of the largest parameter that keeps the promise at every count.

    Parameters
    ----------
    make
        Makes the mechanism of a given parameter; its errors grow with the parameter.
    relative_error
        The promise r, below 1.
    high
        The parameter is not looked for above this.
    binding
        Counts at which the promise may bind, to start from.
    margins
        How many margins the expected error keeps from the promise.

    Notes
    -----
    Cutting planes: solve for the parameter at the counts seen to bind, search all counts for a
    violation (``find_violation``), add it, and repeat. What is returned has passed the search.
    """
    counts = np.unique(np.asarray(binding, dtype=np.float64))
    for _ in range(200):
        mechanism = make(_solve(make, relative_error, counts, high, margins))
        violation = find_violation(mechanism, relative_error)
        if violation is None:
            return mechanism
        counts = np.append(counts, violation)
    raise ConfigurationError(
        f"no noise was found that keeps relative_error {relative_error!r} at every count. "
        "Choose a larger shift or another relative_error."
    )


def _solve(
    make: Callable[[float], MechanismT],
    relative_error: float,
    counts: FloatArray,
    high: float,
    margins: float,
) -> float:
    """Return the parameter up to ``high`` from which on the promise fails at these counts."""

    def excess(parameter: float) -> float:
        mechanism = make(parameter)
        ratio = worst_error(mechanism, counts) / np.maximum(counts, mechanism.floor)
        last = _last_single_count(mechanism)
        tail = mechanism.tail_error_upper(last) / last
        allowed = relative_error * (1 - margins * promise_margin(mechanism.sigma))
        return max(float(np.max(ratio)), tail) / allowed - 1

    if excess(high) < 0:
        return high
    low = high / 2
    while excess(low) >= 0:
        high, low = low, low / 2
    root = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-14))
    return root * (1 - 2e-14)


def find_violation(mechanism: Promising, relative_error: float) -> float | None:
    """Return a count at which the promise is not kept with a margin, or None if there is none.

    None is a proof for every integer count, without an upper limit, and for both the estimate and
    its nearest integer: below ``tail_start`` by the mechanism's own search, then one by one, and by
    ``tail_error_upper`` from some count on.
    """
    allowed = relative_error * (1 - promise_margin(mechanism.sigma))
    violation = mechanism.find_violation_below_tail(allowed)
    if violation is not None:
        return violation
    start, last = mechanism.tail_start, _last_single_count(mechanism)
    end, span = start, 1
    while mechanism.tail_error_upper(end) >= allowed * end:
        if end >= last:
            return float(end)
        end, span = min(start + span, last), 2 * span
    counts = np.arange(start, end, dtype=np.float64)
    ratio = worst_error(mechanism, counts) / counts
    failed = ratio >= allowed
    return float(counts[np.argmax(ratio)]) if np.any(failed) else None


def _last_single_count(mechanism: Promising) -> int:
    return max(mechanism.tail_start, _MOST_SINGLE_COUNTS)


def largest_useful_sigma(relative_error: float) -> float:
    """Return the sigma at which the promise fails in the limit of large counts, Φ⁻¹((1 + r) / 2).

    No drift has a smaller E|e^{σZ - d} - 1| than 2Φ(σ) - 1, that of d = σ².
    """
    return min(math.sqrt(2) * float(erfinv(relative_error)), SIGMA_RANGE[1])
