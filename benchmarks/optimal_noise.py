"""How close to optimal is Gaussian noise in log space? The tables and figure of docs/optimality.md.

Run with ``python benchmarks/optimal_noise.py`` (about half a minute); it prints the tables as
Markdown and rewrites docs/figures/optimal_noise.svg.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np
from scipy.optimize import brentq
from scipy.special import ai_zeros, airy, airye, logsumexp, ndtri

from spark_dphist.accounting import (
    SMALL_ERROR_LEAST_FISHER,
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    gaussian_coefficient,
    least_fisher_coefficient,
    least_fisher_noise,
    lower_bound_coefficient,
)

mpl.use("Agg")
import matplotlib.pyplot as plt

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "optimal_noise.svg"
TABLE_ERRORS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)

AIRY_PRIME_ZERO = float(ai_zeros(1)[1][0])
# int psi'^2 / int psi^2 = |a|/3 for psi(z) = Ai(|z| + a): virial theorem of a linear potential.
AIRY_INFORMATION = -4 * AIRY_PRIME_ZERO / 3


def gaussian(relative_error: float) -> float:
    """C of Gaussian noise in log space whose error at large counts is exactly r."""
    sigma = float(ndtri((1 + relative_error) / 2))
    return relative_error**2 * gaussian_coefficient(sigma)


def airy_noise(relative_error: float) -> float:
    """r^2 I / 2 of Airy noise in log space, scaled to error r after its best drift."""
    z = np.linspace(-40, 40, 160_001)
    weights = airy(np.abs(z) + AIRY_PRIME_ZERO)[0] ** 2
    weights /= weights.sum()

    def excess(scale: float) -> float:
        # The best drift d solves E[e^Y sign(Y - d)] = 0: a median under the weights e^y.
        tilted = np.cumsum(weights * np.exp(scale * z))
        drift = np.interp(tilted[-1] / 2, tilted, scale * (z + (z[1] - z[0]) / 2))
        return float(weights @ np.abs(np.expm1(scale * z - drift))) - relative_error

    scale = float(brentq(excess, 0.1 * relative_error, 8 * relative_error))
    return relative_error**2 * AIRY_INFORMATION / scale**2 / 2


@dataclass(frozen=True)
class AiryCheck:
    largest_ratio: float
    shift: float
    order: float
    shifts: tuple[float, float]
    orders: tuple[float, float]


def check_airy_divergences() -> AiryCheck:
    """Largest D_alpha / (alpha I d^2 / 2) of Airy noise against itself shifted by d, on a grid."""
    step = 0.01
    z = np.arange(-400, 400 + step / 2, step)

    def log_density(points: np.ndarray) -> np.ndarray:
        x = np.abs(points) + AIRY_PRIME_ZERO
        scaled = airye(np.maximum(x, 0))[0]
        near = np.log(np.abs(airy(np.minimum(x, 0))[0]))
        far = np.log(np.abs(scaled)) - 2 / 3 * np.maximum(x, 0) ** 1.5
        return 2 * np.where(x < 0, near, far)

    base = log_density(z)
    total = logsumexp(base)
    orders = 1 + np.geomspace(1e-3, 1e4, 60)
    worst = (-np.inf, 0.0, 0.0)
    shifts = np.unique(np.round(np.geomspace(step, 4, 30) / step)).astype(int)
    for cells in shifts:
        moved = np.concatenate([log_density(z[:cells] - cells * step), base[:-cells]])
        for order in orders:
            if order * cells * step > 300:  # beyond it the integrand leaves the grid
                continue
            moment = logsumexp(order * moved + (1 - order) * base) - total
            divergence = moment / (order - 1)
            ratio = divergence / (order * AIRY_INFORMATION * (cells * step) ** 2 / 2)
            worst = max(worst, (ratio, cells * step, order))
    return AiryCheck(
        *worst,
        shifts=(step * shifts[0], step * shifts[-1]),
        orders=(orders[0], orders[-1]),
    )


def print_tables() -> None:
    print(
        "| r | paper's lower bound | C*(r) | Airy noise | Gaussian "
        "| Airy over C* | Gaussian over C* |"
    )
    print("|---|---|---|---|---|---|---|")
    for r in TABLE_ERRORS:
        lower = r**2 * lower_bound_coefficient(r)
        least, attained, normal = least_fisher_coefficient(r), airy_noise(r), gaussian(r)
        print(
            f"| {r:g} | {lower:.3g} | {least:.5f} | {attained:.5f} | {normal:.5f} "
            f"| {attained / least - 1:+.2%} | {normal / least - 1:+.2%} |"
        )
    print(
        f"| r → 0 | {SMALL_ERROR_LOWER:.5f} | {SMALL_ERROR_LEAST_FISHER:.5f} "
        f"| {SMALL_ERROR_LEAST_FISHER:.5f} | {SMALL_ERROR_UPPER:.5f} | +0.00% "
        f"| {SMALL_ERROR_UPPER / SMALL_ERROR_LEAST_FISHER - 1:+.2%} |"
    )
    crossing = brentq(lambda r: airy_noise(r) - gaussian(r), 0.2, 0.4)
    print(f"\nAiry noise beats Gaussian noise up to r = {crossing:.3f}.")
    check = check_airy_divergences()
    print(
        f"Airy noise, shifts {check.shifts[0]:g} to {check.shifts[1]:g} and orders "
        f"{check.orders[0]:g} to {check.orders[1]:g}: largest D_alpha / (alpha I d^2 / 2) = "
        f"{check.largest_ratio:.6f}, at shift {check.shift:g} and order {check.order:g}."
    )


def draw() -> None:
    errors = np.linspace(0.005, 0.95, 120)
    least = np.array([least_fisher_coefficient(r) for r in errors])
    normal = np.array([gaussian(r) for r in errors])
    attained = np.array([airy_noise(r) for r in errors])
    lower = np.array([r**2 * lower_bound_coefficient(r) for r in errors])
    style = {"svg.fonttype": "none", "svg.hashsalt": "optimal_noise", "font.size": 9}
    with plt.rc_context(style):
        figure, (all_bounds, excess, density) = plt.subplots(1, 3, figsize=(12, 3.8))
        all_bounds.plot(errors, normal, label="Gaussian noise")
        all_bounds.plot(errors, attained, "--", label="Airy noise")
        all_bounds.plot(errors, least, label="least Fisher information, C*(r)")
        all_bounds.plot(errors, lower, label="paper's lower bound for every r")
        all_bounds.plot([0], [SMALL_ERROR_LOWER], "k<", label="paper's lower bound, r → 0")
        all_bounds.set_yscale("log")
        all_bounds.set_ylim(1e-7, 1)
        all_bounds.set_xlabel("relative error r")
        all_bounds.set_ylabel("C = r² · lim n² v(n)")
        all_bounds.legend(fontsize=7, loc="lower left")
        excess.plot(errors, 100 * (normal / least - 1), label="Gaussian noise")
        excess.plot(errors, 100 * (attained / least - 1), "--", label="Airy noise")
        excess.set_xlim(0, 0.4)
        excess.set_ylim(0, 12)
        excess.set_xlabel("relative error r")
        excess.set_ylabel("above C*(r), %")
        excess.legend(fontsize=7)
        for r, color in ((0.1, "C2"), (0.5, "C4")):
            noise = least_fisher_noise(r)
            inside = (noise.log_noise > -6 * r) & (noise.log_noise < 4 * r)
            y, p = noise.log_noise[inside][::20], noise.density[inside][::20]
            sigma = float(ndtri((1 + r) / 2))
            curve = np.exp(-(((y + sigma**2) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
            density.plot(y / r, r * p, color=color, label=f"least Fisher information, r = {r:g}")
            density.plot(y / r, r * curve, ":", color=color, label=f"Gaussian, r = {r:g}")
        density.set_xlabel("log-space noise y / r")
        density.set_ylabel("density × r")
        density.set_ylim(0, 0.5)
        density.legend(fontsize=7, loc="upper right")
        figure.tight_layout()
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    print_tables()
    draw()
