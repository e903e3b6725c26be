"""What learning a key set costs, and the selection that costs no more than it may.

docs/key-selection.md proves the claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_dphist.accounting.conversions import gaussian_delta_upper, pure_to_rho_upper
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.partition_selection import (
    DELTA_RANGE,
    EPSILON_RANGE,
    SCALE_BITS,
    OptimalSelection,
    PartitionSelection,
    ThresholdSelection,
    as_written,
    check_range,
)

# Beyond, a threshold would be so high that no key set could be learnt.
MAX_GROUPS_PER_UNIT = 10_000

# Statistical distance of one draw from a rounded Gaussian: 1/(40 s**2) at s = 2**44 steps
# (docs/ledger.md, "The lattice in the tight bound").
_LATTICE_DISTANCE = 2.0**-93
# Covers a few sums, products, expm1 and log1p of doubles.
_ROUNDING = 2.0**-40
# Shares of delta that the noise may take; the best is kept.
_SHARES = np.concatenate([np.geomspace(1e-3, 0.5, 20), 1 - np.geomspace(0.45, 1e-3, 20)])


@dataclass(frozen=True, kw_only=True)
class KeySelection:
    """How a key set is learnt from the data.

    Parameters
    ----------
    epsilon, delta
        The selection is (epsilon, delta)-DP for one privacy unit; epsilon in nats.
    groups_per_unit
        In how many groups a unit is counted at most, once in each: k.

    Raises
    ------
    ConfigurationError
        If a parameter is out of its range, or no noise keeps to epsilon and delta.

    Notes
    -----
    Privacy Guarantee: (epsilon, delta)-DP, and ``delta_upper``-approximate ``rho_upper``-zCDP (Bun
    and Steinke 2016, Definition 8.1), under adding or removing one unit that is counted once in
    each of at most k groups. For k = 1 it is the optimal selection, for k > 1 a threshold on
    counts with Gaussian noise. A release for the learnt key set composes with it: the rho add,
    and so do the delta (their Lemma 8.2).
    """

    epsilon: float
    delta: float
    groups_per_unit: int = 1

    def __post_init__(self) -> None:
        check_range("the selection's epsilon", self.epsilon, EPSILON_RANGE)
        check_range("the selection's delta", self.delta, DELTA_RANGE)
        check_range("groups_per_unit", self.groups_per_unit, (1, MAX_GROUPS_PER_UNIT))
        if type(self.groups_per_unit) is not int:
            raise ConfigurationError(
                f"groups_per_unit must be a whole number, got {self.groups_per_unit!r}"
            )
        _ = self.mechanism

    @cached_property
    def mechanism(self) -> PartitionSelection:
        """What decides about each group."""
        if self.groups_per_unit == 1:
            return OptimalSelection(epsilon=self.epsilon, delta=self.delta)
        return _threshold(self.epsilon, self.delta, self.groups_per_unit)

    @cached_property
    def rho_upper(self) -> float:
        """The rho of its approximate zCDP, in nats, rounded up."""
        mechanism = self.mechanism
        if isinstance(mechanism, ThresholdSelection):
            # Canonne, Kamath, Steinke 2020, Theorem 14, for a shift in k groups.
            ratio = mechanism.unit_steps / 2.0**SCALE_BITS
            return math.nextafter(self.groups_per_unit * ratio * ratio / 2, math.inf) * (
                1 + _ROUNDING
            )
        return float(pure_to_rho_upper(self.epsilon))

    @cached_property
    def delta_upper(self) -> Fraction:
        """The delta of its approximate zCDP, rounded up; at most ``delta`` as it is written."""
        mechanism = self.mechanism
        if isinstance(mechanism, ThresholdSelection):
            passing = np.array([mechanism.single_unit_upper])
            failing = _total_delta_upper(passing, np.zeros(1), self.groups_per_unit)
            return Fraction(float(failing[0]))
        return as_written(self.delta)

    def parameters(self) -> dict[str, Any]:
        """Return all that is public about the selection, JSON values: for plan, audit, ledger."""
        return {
            "mechanism": self.mechanism.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "groups_per_unit": self.groups_per_unit,
            "rho": self.rho_upper,
            "count_kept_half_the_time": self.mechanism.count_kept_half_the_time(),
            **self.mechanism.parameters(),
        }


def threshold_delta_upper(selection: ThresholdSelection, epsilon: float, k: int) -> float:
    """Return a delta such that a threshold on counts is (epsilon, delta)-DP.

    Parameters
    ----------
    selection
        The threshold.
    epsilon
        In nats.
    k
        In how many groups a unit is counted at most.

    Notes
    -----
    max over j of 1 - (1 - p)**j (1 - d(k - j)): in j of its groups the unit is alone, p bounds the
    probability that one of these is kept, and d(i) is the noise's delta for i other groups
    (docs/key-selection.md, Theorem 2).
    """
    ratio = np.array([selection.unit_steps / 2.0**SCALE_BITS])
    alone = np.arange(k + 1)
    noise = _noise_delta_upper(k - alone, ratio, epsilon)
    passing = np.full(k + 1, selection.single_unit_upper)
    return float(np.max(_total_delta_upper(passing, noise[:, 0], alone)))


def _threshold(epsilon: float, delta: float, k: int) -> ThresholdSelection:
    """Return the threshold that keeps half of the least groups, of those that keep to delta."""
    ratios = _greatest_ratios(epsilon, delta * _SHARES, k)
    alone = np.arange(1, k + 1)
    noise = _noise_delta_upper(k - alone, ratios, epsilon)
    # 1 - (1 - p)**j (1 - d) <= delta, solved for p.
    rest = np.log1p(-delta) - np.log1p(-noise)
    allowed = -np.expm1(rest / alone[:, np.newaxis])
    passing = np.min(allowed, axis=0) * (1 - 2 * _ROUNDING)
    found: ThresholdSelection | None = None
    for ratio, most in zip(ratios.tolist(), passing.tolist(), strict=True):
        steps = math.floor(ratio * 2.0**SCALE_BITS)
        if steps < 1 or not most > 0:
            continue
        selection = ThresholdSelection.with_passing_probability(steps, min(most, 0.5))
        if found is None or selection.threshold < found.threshold:
            found = selection
    if found is None or threshold_delta_upper(found, epsilon, k) > delta:
        raise ConfigurationError(
            f"no key set can be learnt at epsilon = {epsilon:g} and delta = {delta:g} with "
            f"groups_per_unit = {k}. Allow a larger epsilon or delta, or count a unit in fewer "
            "groups."
        )
    return found


def _greatest_ratios(
    epsilon: float, noise_delta: npt.NDArray[np.float64], k: int
) -> npt.NDArray[np.float64]:
    """Return the greatest 1/sigma at which the noise of k groups keeps to each delta."""
    low, high = np.full(noise_delta.shape, 2.0**-43), np.full(noise_delta.shape, 2.0**5)
    for _ in range(60):
        middle = np.sqrt(low * high)
        fits = _noise_delta_upper(np.array([k]), middle, epsilon)[0] <= noise_delta
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.asarray(low)


def _noise_delta_upper(
    groups: npt.NDArray[np.int64], ratios: npt.NDArray[np.float64], epsilon: float
) -> npt.NDArray[np.float64]:
    """Bound the delta of the noise of so many groups (first axis) at each 1/sigma (second)."""
    groups = groups[:, np.newaxis]
    mu = np.sqrt(groups) * ratios * (1 + _ROUNDING)
    # The shift of several independent Gaussians is one shift of sqrt(sum of squares), and each
    # draw is that far from a Gaussian.
    distance = groups * (1 + math.exp(epsilon)) * _LATTICE_DISTANCE
    delta = gaussian_delta_upper(mu, epsilon) + distance
    return np.minimum(delta * (1 + _ROUNDING), 1 - 2.0**-53)


def _total_delta_upper(
    passing: npt.NDArray[np.float64], noise: npt.NDArray[np.float64], alone: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    # 1 - (1 - p)**j (1 - d), without cancellation.
    total = -np.expm1(np.asarray(alone) * np.log1p(-passing) + np.log1p(-noise))
    return np.asarray(total * (1 + _ROUNDING))
