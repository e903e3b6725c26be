"""How small a budget can get: the paper's bounds, and the best noise in log space.

For a promise of relative error r the budget falls like v(n) ~ c/n^2, and C = r^2 c compares
mechanisms of different r (see docs/optimality.md). None of these numbers is a privacy claim: they
say how far a mechanism is from what is possible.

The paper: "Better Privacy Guarantees for Larger Groups", arXiv:2607.14406.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import brentq

from spark_dphist.errors import ConfigurationError

SMALL_ERROR_LOWER = math.pi / (4 * math.e**2)
"""No mechanism has a smaller limit of r^2 n^2 v(n) as r falls to 0 (the paper's small-r bound)."""

SMALL_ERROR_UPPER = 1 / math.pi
"""Gaussian noise in log space reaches this limit of r^2 n^2 v(n) as r falls to 0."""

SMALL_ERROR_LEAST_FISHER = 8 * 1.018792971647471089**3 / 27
"""Limit of ``least_fisher_coefficient`` as r falls to 0: 8 |a|^3 / 27, a the first zero of Ai'."""


def lower_bound_coefficient(relative_error: float) -> float:
    """Return c such that any mechanism with the promise has liminf n^2 v(n) >= c.

    (1 - r)^6 / (128 r^2 (1 + r)^2), the paper's lower bound for every r.

    Parameters
    ----------
    relative_error
        r in (0, 1).

    Raises
    ------
    ConfigurationError
        If ``relative_error`` is outside (0, 1).
    """
    r = _relative_error(relative_error)
    return math.pow(1 - r, 6) / (128 * r * r * math.pow(1 + r, 2))


def gaussian_coefficient(sigma: float) -> float:
    """Return the limit of n^2 v(n) for Gaussian noise in log space: 1 / (2 sigma^2).

    Parameters
    ----------
    sigma
        Standard deviation of the noise in log space, positive.

    Raises
    ------
    ConfigurationError
        If ``sigma`` is not a positive finite number.
    """
    if not 0 < sigma < math.inf:
        raise ConfigurationError(
            f"sigma = {sigma} is not acceptable: expected a positive finite number, the standard "
            "deviation in log space that a mechanism's calibrate(...) returns."
        )
    return 1 / (2 * sigma**2)


@dataclass(frozen=True)
class LeastFisherNoise:
    """The noise of least Fisher information in log space, as densities on a grid.

    Attributes
    ----------
    relative_error
        r = E|e^Y - 1|.
    information
        Fisher information I of the location family ln x + Y.
    multiplier
        -dI/dr, what a larger relative error would save.
    log_noise
        Grid points y, increasing; not equally spaced.
    density
        Density of Y at each grid point.
    """

    relative_error: float
    information: float
    multiplier: float
    log_noise: NDArray[np.float64]
    density: NDArray[np.float64]

    @property
    def coefficient(self) -> float:
        """C* = r^2 I / 2, to be compared with r^2 n^2 v(n) of a mechanism."""
        return self.relative_error**2 * self.information / 2


def least_fisher_noise(relative_error: float, intervals: int = 4000) -> LeastFisherNoise:
    """Return the noise Y of least Fisher information I with E|e^Y - 1| <= r.

    Among location families ln x + Y the limit of n^2 v(n) is I/2 at best (docs/optimality.md
    states what is assumed). I is the least 4 int psi'^2 over psi^2 = density, a convex problem,
    hence by duality the greatest E(m) - m r over multipliers m, where E(m) is the ground energy of
    -4 psi'' + m |e^y - 1| psi. Solved on a grid by a tridiagonal eigenproblem.

    Parameters
    ----------
    relative_error
        r in (0, 1).
    intervals
        Grid intervals on either side of 0; the error falls with its square. With the default the
        coefficient is within 1e-5 of itself for r in [0.001, 0.99].

    Raises
    ------
    ConfigurationError
        If ``relative_error`` is outside (0, 1).
    """
    r = _relative_error(relative_error)
    # The left tail is some 1/(1 - r) long.
    reach = max(1000.0, 50 / (1 - r))

    def excess(log_multiplier: float) -> float:
        return _ground_state(math.exp(log_multiplier), reach, intervals)[1] - r

    # For small r, m r^3 tends to 4 (2 |a| / 3)^3 = 1.253 (Airy); no ground state below m = 1.2.
    log_multiplier = float(brentq(excess, 0.0, math.log(20 + 4 / r**3), xtol=1e-9))
    multiplier = math.exp(log_multiplier)
    energy, _, points, density = _ground_state(multiplier, reach, intervals)
    return LeastFisherNoise(r, energy - multiplier * r, multiplier, points, density)


def least_fisher_coefficient(relative_error: float) -> float:
    """Return C* = r^2 I / 2 of ``least_fisher_noise``, to be compared with r^2 n^2 v(n).

    Parameters
    ----------
    relative_error
        r in (0, 1).

    Raises
    ------
    ConfigurationError
        If ``relative_error`` is outside (0, 1).
    """
    return least_fisher_noise(relative_error).coefficient


def _ground_state(
    multiplier: float, reach: float, intervals: int
) -> tuple[float, float, NDArray[np.float64], NDArray[np.float64]]:
    """Return ground energy, E|e^Y - 1|, grid and density of -4 psi'' + multiplier |e^y - 1| psi.

    The grid reaches ``reach`` Airy lengths to the left.
    """
    # Airy's length rules near 0. To the left the potential levels off and psi decays slowly for r
    # near 1; to the right it is a wall.
    length = (4 / multiplier) ** (1 / 3)
    left = length * np.sinh(np.linspace(np.arcsinh(reach), 0, intervals + 1))
    right = np.linspace(0, min(12 * length, math.log1p(1e4)), intervals + 1)
    points = np.concatenate([-left[:-1], right])
    gaps = np.diff(points)
    weights = (gaps[:-1] + gaps[1:]) / 2
    inner = points[1:-1]
    distance = np.abs(np.expm1(inner))
    # Finite volumes, psi = 0 at both ends, scaled by sqrt(weights) to keep the matrix symmetric.
    diagonal = 4 * (1 / gaps[:-1] + 1 / gaps[1:]) / weights + multiplier * distance
    off_diagonal = -4 / gaps[1:-1] / np.sqrt(weights[:-1] * weights[1:])
    energies, states = eigh_tridiagonal(diagonal, off_diagonal, select="i", select_range=(0, 0))
    mass = states[:, 0] ** 2
    return float(energies[0]), float(mass @ distance), inner, mass / weights


def _relative_error(relative_error: float) -> float:
    if not 0 < relative_error < 1:
        raise ConfigurationError(
            f"relative_error = {relative_error} is not acceptable: expected a number strictly "
            "between 0 and 1. From 1 on a constant keeps the promise and no budget is needed."
        )
    return float(relative_error)
