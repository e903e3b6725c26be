"""Linear-log beside shifted log at the same promise: the tables and figures of docs/mechanisms.md.

Run with ``python benchmarks/mechanism_comparison.py`` (about a minute); it prints the tables as
Markdown and rewrites docs/figures/mechanism_budgets.svg and docs/figures/mechanism_errors.svg.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

from spark_dphist.accounting import SMALL_ERROR_LOWER, SMALL_ERROR_UPPER, lower_bound_coefficient
from spark_dphist.mechanisms import LinearLog, ShiftedLog, TransformMechanism

mpl.use("Agg")
import matplotlib.pyplot as plt

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
ERRORS = (0.01, 0.05, 0.1, 0.3, 0.5)
FLOORS = (1, 20, 100)
LARGE = 10**9

# The grid on which "below at every count" is looked at where it is not proved.
GRID_ERRORS = (*ERRORS, 0.2, 0.7, 0.9, 0.95, 0.98)
GRID_FLOORS = (1, 2, 5, 20, 100, 10_000)
GRID_SHIFTS = 2.0 ** np.arange(-14, 9)


def at_large_counts(mechanism: TransformMechanism) -> float:
    """n² v(n) at a billion."""
    return float(mechanism.budget(LARGE)) * LARGE**2


def promise_rows() -> Iterator[str]:
    yield "| r | floor | sigma | knee | v(1) | n²v | c = m: v(1) | n²v | c = m/4: v(1) | n²v |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for r in ERRORS:
        for floor in FLOORS:
            linear = LinearLog.calibrate(relative_error=r, floor=floor)
            cells = [f"{r:g}", f"{floor}", f"{linear.sigma:.5f}", f"{linear.knee:.2f}"]
            cells += [f"{linear.worst_case_budget():.3g}", f"{at_large_counts(linear):.4g}"]
            for share in (1.0, 0.25):
                shifted = ShiftedLog.calibrate(relative_error=r, floor=floor, shift=share * floor)
                for measure in (TransformMechanism.worst_case_budget, at_large_counts):
                    value, best = measure(shifted), measure(linear)
                    cells.append(f"{value:.3g} ({value / best:.1f}×)")
            yield "| " + " | ".join(cells) + " |"


def coefficient_rows() -> Iterator[str]:
    yield "| r | linear-log C | shifted log c = m: C | c = m/4: C | paper, every mechanism: C ≥ |"
    yield "|---|---|---|---|---|"
    for r in ERRORS:
        mechanisms = [LinearLog.calibrate(relative_error=r, floor=100)]
        mechanisms += [
            ShiftedLog.calibrate(relative_error=r, floor=100, shift=c) for c in (100, 25)
        ]
        cells = [f"{r**2 * at_large_counts(m):.5f}" for m in mechanisms]
        yield f"| {r:g} | " + " | ".join(cells) + f" | {r**2 * lower_bound_coefficient(r):.3g} |"
    yield f"| r → 0 | {SMALL_ERROR_UPPER:.5f} | {4 * SMALL_ERROR_UPPER:.5f} |" + (
        f" {25 / 16 * SMALL_ERROR_UPPER:.5f} | {SMALL_ERROR_LOWER:.5f} |"
    )


def counts_of(floor: float) -> npt.NDArray[np.float64]:
    spread = np.rint(np.geomspace(1, LARGE, 500))
    return np.unique(np.concatenate([np.arange(min(5 * floor + 50, 5000)), spread]))


def comparison_rows() -> Iterator[str]:
    yield "| r | largest ratio, closed form | largest ratio, exact | where (floor, shift, count) |"
    yield "|---|---|---|---|"
    for r in sorted(GRID_ERRORS):
        worst = {"closed_form": (0.0, ""), "exact": (0.0, "")}
        for floor in GRID_FLOORS:
            counts = counts_of(floor)
            budget = LinearLog.calibrate(relative_error=r, floor=floor).budget(counts)
            for share in GRID_SHIFTS:
                for method in ("closed_form", "exact"):
                    shifted = ShiftedLog.calibrate(
                        relative_error=r, floor=floor, shift=share * floor, method=method
                    )
                    ratio = budget / shifted.budget(counts)
                    where = f"{floor}, {share:.3g}·m, {counts[np.argmax(ratio)]:.0f}"
                    worst[method] = max(worst[method], (float(np.max(ratio)), where))
        closed, exact = worst["closed_form"], worst["exact"]
        yield f"| {r:g} | {closed[0]:.7f} | {exact[0]:.7f} | {exact[1]} |"


def draw_budgets() -> None:
    figure, axes = plt.subplots(2, 3, figsize=(12, 7), sharex=True)
    for column, (r, floor) in enumerate(((0.05, 1), (0.05, 100), (0.5, 20))):
        counts = np.unique(np.rint(np.geomspace(1, 1e5, 250)))
        linear = LinearLog.calibrate(relative_error=r, floor=floor)
        above, below = axes[0, column], axes[1, column]
        above.loglog(counts, linear.budget(counts), color="C0", label="linear-log")
        for color, share in (("C1", 1.0), ("C2", 0.25), ("C3", 0.01)):
            shifted = ShiftedLog.calibrate(relative_error=r, floor=floor, shift=share * floor)
            label = f"shifted log, c = {share:g} m"
            above.loglog(counts, shifted.budget(counts), color=color, label=label)
            ratio = shifted.budget(counts) / linear.budget(counts)
            below.loglog(counts, ratio, color=color, label=label)
        lower = lower_bound_coefficient(r) / counts**2
        above.loglog(counts, lower, "k:", label="paper: every mechanism, large n")
        if r <= 0.1:
            small = SMALL_ERROR_LOWER / r**2 / counts**2
            above.loglog(counts, small, "k--", label="paper: the same for small r")
        above.set_title(f"r = {r:g}, floor m = {floor}")
        above.set_ylabel("budget v(n), rho")
        below.axhline(1, color="C0")
        below.set_ylabel("v(n) / v(n) of linear-log")
        below.set_xlabel("count n")
        above.legend(fontsize=7)
    save(figure, "mechanism_budgets.svg")


def draw_errors() -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    floor = 100
    counts = np.unique(np.rint(np.geomspace(1, 3000, 250)))
    for axis, r in zip(axes, (0.1, 0.5), strict=True):
        for label, mechanism in (
            ("linear-log", LinearLog.calibrate(relative_error=r, floor=floor)),
            ("shifted log, c = m", ShiftedLog.calibrate(relative_error=r, floor=floor)),
            ("shifted log, c = m/4", ShiftedLog.calibrate(relative_error=r, floor=floor, shift=25)),
        ):
            error = mechanism.expected_absolute_error(counts, rounded=True)
            axis.semilogx(counts, error / np.maximum(counts, floor), label=label)
        axis.axhline(r, color="k", linestyle=":", label="promise")
        axis.axvline(floor, color="0.8", zorder=0)
        axis.set_title(f"r = {r:g}, floor m = {floor}")
        axis.set_xlabel("count x")
        axis.set_ylabel("E|x̂ − x| / max(x, m)")
        axis.set_ylim(0, 1.15 * r)
        axis.legend(fontsize=8, loc="lower right")
    save(figure, "mechanism_errors.svg")


def save(figure: mpl.figure.Figure, name: str) -> None:
    figure.tight_layout()
    # No date and fixed ids, so that a run without changes leaves the file as it is.
    figure.savefig(FIGURES / name, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    mpl.rcParams.update({"svg.hashsalt": "mechanism_comparison", "svg.fonttype": "none"})
    FIGURES.mkdir(parents=True, exist_ok=True)
    for rows in (promise_rows(), coefficient_rows(), comparison_rows()):
        print("\n".join(rows), end="\n\n")
    draw_budgets()
    draw_errors()


if __name__ == "__main__":
    main()
