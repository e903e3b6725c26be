"""The largest noise that keeps the promise on the error, certified at every integer count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.lattice import MAX_COUNT

# Relative distance kept from the boundary of the promise. It covers the error formulas (a few
# 1e-15), the discreteness of the noise and decoding in doubles, and makes the promise strict.
SIGMA_MARGIN = 4e-13

FloatArray = npt.NDArray[np.float64]


class Calibratable(Protocol):
    """What calibration needs to know of a mechanism."""

    @property
    def floor(self) -> float:
        """The floor of the promise, in counts."""
        ...

    def expected_absolute_error(self, count: npt.ArrayLike, rounded: bool = False) -> FloatArray:
        """Return the expected absolute error at these counts."""
        ...


MechanismT = TypeVar("MechanismT", bound=Calibratable)


def refuse_trivial_promise(relative_error: float) -> None:
    """Refuse promises that need no data at all.

    Raises
    ------
    ConfigurationError
        If the relative error is 1 or more.
    """
    if relative_error >= 1:
        raise ConfigurationError(
            f"relative_error {relative_error!r} is 1 or more: a constant keeps that promise "
            "without touching the data. Use the mechanism 'constant', or a smaller relative_error."
        )


def worst_error(mechanism: Calibratable, count: npt.ArrayLike) -> FloatArray:
    """Return the larger of the expected errors of the estimate and of its nearest integer."""
    return np.maximum(
        mechanism.expected_absolute_error(count),
        mechanism.expected_absolute_error(count, rounded=True),
    )


def largest_sigma(
    make: Callable[[float], MechanismT],
    relative_error: float,
    *,
    guess: float,
    limit: float,
) -> MechanismT:
    """Return the mechanism with the largest sigma that keeps the promise at every integer count.

    Parameters
    ----------
    make
        Makes the mechanism of a given sigma. Its errors must not fall with the count at or above
        the floor, nor exceed the one at the floor below it.
    relative_error
        The promise r, below 1.
    guess
        A sigma that keeps or nearly keeps it.
    limit
        The sigma at which the promise fails in the limit of large counts: the answer is below.

    Notes
    -----
    Cutting planes: solve for sigma at the counts seen to bind, search all counts for a violation
    (``find_violation``), add it, and repeat. What is returned has passed the search.
    """
    binding = np.array([np.ceil(make(guess).floor), np.floor(make(guess).floor)])
    ceiling = limit * (1 - SIGMA_MARGIN)
    for _ in range(200):
        sigma = _solve(make, relative_error, binding, ceiling) * (1 - SIGMA_MARGIN)
        mechanism = make(sigma)
        violation = find_violation(mechanism, relative_error)
        if violation is None:
            return mechanism
        binding = np.append(binding, violation)
    raise ConfigurationError(
        f"no sigma was found that keeps relative_error {relative_error!r} at every count. "
        "Choose a larger shift or another relative_error."
    )


def _solve(
    make: Callable[[float], MechanismT],
    relative_error: float,
    counts: FloatArray,
    ceiling: float,
) -> float:
    """Return the sigma up to ``ceiling`` at which the promise begins to fail at these counts."""

    def excess(sigma: float) -> float:
        mechanism = make(sigma)
        allowed = relative_error * np.maximum(counts, mechanism.floor)
        return float(np.max(worst_error(mechanism, counts) / allowed)) - 1

    if excess(ceiling) < 0:
        return ceiling
    low = ceiling
    while excess(low) >= 0:
        low /= 2
    return float(brentq(excess, low, min(2 * low, ceiling), xtol=1e-300, rtol=1e-14))


def find_violation(mechanism: Calibratable, relative_error: float) -> float | None:
    """Return a count at which the promise fails, or None if it holds at every integer count.

    Both errors rise with the count from the floor on: for a fixed draw of the noise the estimate
    moves away from the count as the count grows (docs/mechanisms.md). So a range [a, b] is proved
    by error(b) < r a; ranges that are not proved are halved until they are single counts.
    """
    floor = mechanism.floor
    start = np.ceil(floor)
    low = np.unique(np.rint(np.geomspace(start, MAX_COUNT, 400)))
    high = np.append(low[1:] - 1, MAX_COUNT)
    low, high = np.append(low, np.floor(floor)), np.append(high, np.floor(floor))
    while low.size:
        error = worst_error(mechanism, high)
        failed = error >= relative_error * np.maximum(high, floor)
        if np.any(failed):
            ratio = error / np.maximum(high, floor)
            return float(high[np.argmax(ratio)])
        open_ranges = error >= relative_error * np.maximum(low, floor)
        low, high = low[open_ranges], high[open_ranges]
        middle = np.floor((low + high) / 2)
        low, high = np.concatenate([low, middle + 1]), np.concatenate([middle, high])
        nonempty = low <= high
        low, high = low[nonempty], high[nonempty]
    return None
