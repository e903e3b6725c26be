"""The noise as the public parameters state it, apart from the object that draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    FixedGaussian,
    FixedLaplace,
    Mechanism,
    TransformMechanism,
)

# Above this scale the sum over the integers is the integral to the last bit of a double.
_SMOOTH_SCALE = 16.0
# How far the logarithm of theta is varied at most.
_REACHES = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class StatedNoise:
    """A discrete Gaussian or Laplace distribution, an exponential family P(z) ~ exp(-theta T(z)).

    T is z**2 with theta = 1/2, or the absolute value of z with theta = 1, in units of the scale.
    """

    distribution: DiscreteGaussian | DiscreteLaplace

    @property
    def is_gaussian(self) -> bool:
        """Whether the noise is Gaussian; otherwise it is Laplace."""
        return isinstance(self.distribution, DiscreteGaussian)

    @property
    def scale(self) -> float:
        """The scale in integer steps."""
        if isinstance(self.distribution, DiscreteGaussian):
            return math.sqrt(self.distribution.variance)
        return float(1 / self.distribution.epsilon)

    def rho_lower(self, shift: int) -> Fraction:
        """Return the zCDP budget of moving an integer by ``shift``, rounded down, in rho."""
        if isinstance(self.distribution, DiscreteGaussian):
            # Canonne, Kamath, Steinke 2020, Theorem 14; with equality at integer orders.
            return Fraction(shift * shift) / (2 * self.distribution.variance)
        epsilon = float(self.distribution.epsilon * shift) * (1 - 2.0**-50)
        return Fraction(epsilon * math.tanh(epsilon / 2) * (1 - 2.0**-50))

    def tail(self, value: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return P(N >= value) for any integers."""
        above = self.distribution.tail(np.maximum(value, 0))
        below = 1 - self.distribution.tail(np.maximum(1 - value, 0))
        return np.where(value >= 0, above, below)

    def statistic(self, noise: npt.NDArray[np.int64]) -> float:
        """Return the mean of T, which alone tells the scale."""
        size = np.abs(noise / self.scale)
        return float(np.mean(size**2 if self._theta == 0.5 else size))

    def statistic_interval(self, size: int, rate: float) -> tuple[float, float]:
        """Return what the mean of T over ``size`` draws is outside of with probability ``rate``.

        Chernoff's bound: the mean is beyond t(theta') with probability at most
        exp(-size KL(theta' || theta)).
        """
        allowed = math.log(2 / rate) / size

        def excess(logarithm: float) -> float:
            other = self._theta * math.exp(logarithm)
            gain = (self._theta - other) * self._mean(other)
            return gain - self._log_partition(other) + self._log_partition(self._theta) - allowed

        def end(sign: int) -> float:
            reach = next((r for r in _REACHES if excess(sign * r) > 0), None)
            if reach is None:
                # Next to no noise: even a mean of 0 is not rare.
                return 0.0 if sign > 0 else math.inf
            root = float(brentq(excess, sign * 1e-12, sign * reach, xtol=1e-14))
            return self._mean(self._theta * math.exp(root))

        return end(1), end(-1)

    @property
    def expected_statistic(self) -> float:
        """E T."""
        return self._mean(self._theta)

    @property
    def _theta(self) -> float:
        return 0.5 if isinstance(self.distribution, DiscreteGaussian) else 1.0

    def _log_partition(self, theta: float) -> float:
        if self._theta == 1.0:
            # sum of q**|z| = (1 + q) / (1 - q), q = exp(-theta / scale).
            x = theta / self.scale
            return math.log1p(math.exp(-x)) - math.log(-math.expm1(-x))
        if self.scale / math.sqrt(2 * theta) > _SMOOTH_SCALE:
            return -math.log(theta) / 2 + math.log(math.pi * self.scale**2) / 2
        return math.log(float(np.sum(self._weights(theta))))

    def _mean(self, theta: float) -> float:
        if self._theta == 1.0:
            # 1 / sinh(x), without overflow.
            x = theta / self.scale
            return -2 * math.exp(-x) / (self.scale * math.expm1(-2 * x))
        if self.scale / math.sqrt(2 * theta) > _SMOOTH_SCALE:
            return 1 / (2 * theta)
        weights = self._weights(theta)
        return float(np.sum(weights * self._grid(theta) ** 2) / np.sum(weights))

    def _weights(self, theta: float) -> npt.NDArray[np.float64]:
        return np.exp(-theta * self._grid(theta) ** 2)

    def _grid(self, theta: float) -> npt.NDArray[np.float64]:
        reach = math.ceil(40 * self.scale / math.sqrt(2 * theta))
        return np.arange(-reach, reach + 1) / self.scale


def stated_noise(mechanism: Mechanism) -> StatedNoise | None:
    """Return the noise that the public parameters state; None for a mechanism without noise.

    Raises
    ------
    ConfigurationError
        If the mechanism adds noise but its parameters do not say which.
    """
    parameters = mechanism.parameters()
    if isinstance(mechanism, TransformMechanism):
        return StatedNoise(DiscreteGaussian.power_of_two(parameters["scale_bits"]))
    if isinstance(mechanism, FixedGaussian):
        return StatedNoise(DiscreteGaussian(Fraction(parameters["scale"]) ** 2))
    if isinstance(mechanism, FixedLaplace):
        return StatedNoise(DiscreteLaplace(Fraction(parameters["epsilon"])))
    if mechanism.noise is None:
        return None
    raise ConfigurationError(
        f"mechanism {mechanism.name!r} does not state its noise, so it cannot be verified. "
        "Describe its noise in spark_dphist/verification/stated_noise.py."
    )
