"""The distribution of an estimate as smooth pieces: a normal or a lognormal one between levels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import erf, ndtr

FloatArray = npt.NDArray[np.float64]

# Keeps logarithms finite where the distribution function is 0 to the last bit.
_LEAST_RATIO = 1e-290


class Piece(Protocol):
    """A distribution with a location parameter, of which an estimate follows a part.

    Levels and locations are in counts and broadcast against each other.
    """

    def standardised(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """Return z with P(estimate < level) = Φ(z)."""
        ...

    def level_at(self, location: FloatArray, z: float) -> FloatArray:
        """Return the level at standardised noise z."""
        ...

    def mean_shortfall(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(level - estimate)⁺, the integral of the distribution function below level."""
        ...

    def mean_excess(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """Return E(estimate - level)⁺, the integral of 1 - F above level."""
        ...

    def density_derivatives(
        self, location: FloatArray, level: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the first, third and fifth derivative of the distribution function."""
        ...

    def smooth_from(self, length_scale: float) -> float:
        """Return the level from which on F varies on at least this length scale, in counts."""
        ...


@dataclass(frozen=True)
class Segment:
    """The part of an estimate's distribution from level ``begin`` to level ``end``.

    ``location`` holds the piece's location for each true count.
    """

    begin: float
    end: float
    piece: Piece
    location: FloatArray


@dataclass(frozen=True)
class Lognormal:
    """location * exp(sigma Z - drift) - shift, for a standard normal Z."""

    sigma: float
    drift: float
    shift: float = 0.0

    def standardised(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``."""
        ratio = np.maximum((level + self.shift) / location, _LEAST_RATIO)
        return np.asarray((np.log(ratio) + self.drift) / self.sigma)

    def level_at(self, location: FloatArray, z: float) -> FloatArray:
        """See ``Piece``."""
        return np.asarray(location * math.exp(self.sigma * z - self.drift) - self.shift)

    def mean_shortfall(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``; Black 1976."""
        # E(b - aW)⁺ = b Φ(z) - a e^{σ²/2 - d} Φ(z - σ), and a e^{σ²/2 - d} = b e^{σ²/2 - σz}; in a
        # form that does not cancel where sigma is small.
        z = self.standardised(location, level)
        growth = np.expm1(self.sigma**2 / 2 - self.sigma * z)
        return np.asarray(
            (level + self.shift) * (self._gap(z) - growth * ndtr(z - self.sigma)), dtype=np.float64
        )

    def mean_excess(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``; Black 1976."""
        z = self.standardised(location, level)
        growth = np.expm1(self.sigma**2 / 2 - self.sigma * z)
        return np.asarray(
            (level + self.shift) * (self._gap(z) + growth * ndtr(self.sigma - z)), dtype=np.float64
        )

    def density_derivatives(
        self, location: FloatArray, level: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """See ``Piece``."""
        z, distance = self.standardised(location, level), level + self.shift
        # The n-th derivative of G(ln w) is w^-n times the sum of s(n, k) G^(k)(ln w), with the
        # Stirling numbers of the first kind s; here G^(k) = (-1)^(k-1) He_{k-1}(z) φ(z) / σ^k.
        first = _normal_density(z) / self.sigma
        second, third = -first * z / self.sigma, first * (z**2 - 1) / self.sigma**2
        fourth = -first * z * (z**2 - 3) / self.sigma**3
        fifth = first * (z**4 - 6 * z**2 + 3) / self.sigma**4
        return (
            first / distance,
            (2 * first - 3 * second + third) / distance**3,
            (24 * first - 50 * second + 35 * third - 10 * fourth + fifth) / distance**5,
        )

    def smooth_from(self, length_scale: float) -> float:
        """See ``Piece``."""
        return length_scale / min(self.sigma, 1.0) - self.shift

    @property
    def relative_error(self) -> float:
        """E|e^{σZ - d} - 1|: the error per unit of location where nothing is clipped."""
        # erf(d / (σ√2)) + e^{σ²/2 - d} erf((σ² - d) / (σ√2)), which is 2Φ(σ) - 1 for d = σ².
        root = self.sigma * math.sqrt(2)
        growth = math.exp(self.sigma**2 / 2 - self.drift)
        return math.erf(self.drift / root) + growth * math.erf((self.sigma**2 - self.drift) / root)

    def rounding_surplus_upper(self, location: float) -> float:
        """Bound what rounding to the nearest integer adds to the expected error, in counts.

        (density at the mode - density at the true count) / 8, and never more than 1/2;
        docs/mechanisms.md has the proof.
        """
        sigma, drift = self.sigma, self.drift
        rise = math.exp(drift + sigma**2 / 2) - math.exp(-((drift / sigma) ** 2) / 2)
        return min(rise / (8 * sigma * math.sqrt(2 * math.pi) * location), 0.5)

    def _gap(self, z: FloatArray) -> FloatArray:
        """Φ(z) - Φ(z - σ), without cancellation near 0 and in the tails."""
        near = (erf(z / math.sqrt(2)) - erf((z - self.sigma) / math.sqrt(2))) / 2
        tail = ndtr(-np.abs(z - self.sigma / 2) + self.sigma / 2) - ndtr(
            -np.abs(z - self.sigma / 2) - self.sigma / 2
        )
        return np.where(np.abs(z) < 1, near, tail)


@dataclass(frozen=True)
class Normal:
    """location + deviation * Z, for a standard normal Z."""

    deviation: float

    def standardised(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``."""
        return np.asarray((level - location) / self.deviation)

    def level_at(self, location: FloatArray, z: float) -> FloatArray:
        """See ``Piece``."""
        return np.asarray(location + self.deviation * z)

    def mean_shortfall(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``."""
        z = self.standardised(location, level)
        return np.asarray(self.deviation * (z * ndtr(z) + _normal_density(z)))

    def mean_excess(self, location: FloatArray, level: FloatArray) -> FloatArray:
        """See ``Piece``."""
        z = self.standardised(location, level)
        return np.asarray(self.deviation * (_normal_density(z) - z * ndtr(-z)))

    def density_derivatives(
        self, location: FloatArray, level: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """See ``Piece``."""
        z = self.standardised(location, level)
        first = _normal_density(z) / self.deviation
        return (
            first,
            first * (z**2 - 1) / self.deviation**2,
            first * (z**4 - 6 * z**2 + 3) / self.deviation**4,
        )

    def smooth_from(self, length_scale: float) -> float:
        """See ``Piece``: everywhere or nowhere."""
        return -math.inf if self.deviation >= length_scale else math.inf


def _normal_density(z: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))
