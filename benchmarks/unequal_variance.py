"""Why N(n, r² n²) is refused as a mechanism: the table and figure of docs/refuted.md.

Run with ``python benchmarks/unequal_variance.py`` (a few seconds); it prints the table as Markdown
and rewrites docs/figures/unequal_variance.svg.
"""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np

from spark_dphist.mechanisms import LinearLog
from spark_dphist.mechanisms.refuted import divergence_order, unequal_variance_divergence

mpl.use("Agg")
import matplotlib.pyplot as plt

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "unequal_variance.svg"
RELATIVE_ERROR = 0.1
FLOOR = 10
COUNTS = (10, 100, 1000)

# E|N(0, s²)| = s sqrt(2 / pi), so this deviation has the relative error of the other mechanism.
DEVIATION = RELATIVE_ERROR * math.sqrt(math.pi / 2)


def per_order(orders: np.ndarray, count: int) -> np.ndarray:
    """D_alpha / alpha, the larger of the two directions: what a zCDP budget has to bound."""
    down = unequal_variance_divergence(orders, count, count - 1, DEVIATION)
    up = unequal_variance_divergence(orders, count - 1, count, DEVIATION)
    return np.maximum(down, up) / orders


def print_table(linear_log: LinearLog) -> None:
    print(
        "| n | infinite from order | D_α/α at α = 1.01 | half way | at 99.9 % | linear-log's rho |"
    )
    print("|---|---|---|---|---|---|")
    for count in COUNTS:
        limit = divergence_order(count, count - 1)
        shares = per_order(np.array([1.01, (1 + limit) / 2, 1 + 0.999 * (limit - 1)]), count)
        numbers = " | ".join(f"{share:.4g}" for share in shares)
        print(f"| {count} | {limit:.2f} | {numbers} | {float(linear_log.budget(count)):.4g} |")


def draw(linear_log: LinearLog) -> None:
    style = {"svg.fonttype": "none", "svg.hashsalt": "unequal_variance", "font.size": 9}
    with plt.rc_context(style):
        figure, axes = plt.subplots(figsize=(7.5, 4.5))
        for number, count in enumerate(COUNTS):
            limit = divergence_order(count, count - 1)
            near = limit - (limit - 1) * np.geomspace(0.5, 1e-7, 200)
            orders = np.concatenate([np.geomspace(1.001, near[0], 200), near])
            color = f"C{number}"
            axes.plot(
                orders, per_order(orders, count), color=color, label=f"N(n, r²n²), n = {count}"
            )
            axes.axvline(limit, color=color, linewidth=0.8, linestyle=":")
            budget = float(linear_log.budget(count))
            axes.axhline(budget, color=color, linestyle="--", label=f"linear-log, n = {count}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(1, 1000)
        axes.set_ylim(1e-5, 1e4)
        axes.set_xlabel("order α")
        axes.set_ylabel("D_α / α between n and n − 1, nats")
        axes.legend(fontsize=7, loc="upper left")
        figure.tight_layout()
        FIGURE.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    linear_log = LinearLog.calibrate(relative_error=RELATIVE_ERROR, floor=FLOOR)
    print_table(linear_log)
    draw(linear_log)


if __name__ == "__main__":
    main()
