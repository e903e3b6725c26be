"""The figures of a report as SVG elements, each with what it says in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_dphist.figures import (
    bars_height,
    draw_budget,
    draw_counts,
    draw_error,
    draw_heat_map,
    drawing_style,
)
from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.overview import HeatMap, ShownGroups
from spark_dphist.report.source import PublishedRelease
from spark_dphist.report.svg import inline_svg
from spark_dphist.shown import amount_text, count_text, key_text, share_text

_WIDTH = 7.2


@dataclass(frozen=True)
class Picture:
    """One figure: ``svg`` is markup of our own, the rest is text."""

    name: str
    svg: str
    caption: str


def counts_picture(release: PublishedRelease, shown: ShownGroups) -> Picture:
    """Draw released counts with their intervals, sorted."""
    header, rows = release.header, shown.rows
    which = f"all {len(rows):,} groups"
    if shown.gap is not None:
        which = (
            f"the {shown.gap} largest and the {len(rows) - shown.gap} smallest of "
            f"{header.key_set_size:,} groups"
        )
    first, last = rows[0], rows[-1]
    description = (
        f"Horizontal bars for {which}, from the largest to the smallest, on a logarithmic scale. "
        f"Largest: {first.label} with {count_text(first.noisy_count)}, interval "
        f"{count_text(first.lower)} to {count_text(first.upper)}. Smallest: {last.label} with "
        f"{count_text(last.noisy_count)}, interval {count_text(last.lower)} to "
        f"{count_text(last.upper)}. The table below has all numbers."
    )
    return _picture(
        "counts",
        "Released counts with their intervals",
        description,
        f"Released counts of {which}. The bar is the released count, the line with two ends is its "
        f"{share_text(header.confidence)} interval. The scale is logarithmic: each step is ten "
        "times as many records.",
        bars_height(shown),
        lambda axes: draw_counts(axes, shown, header.confidence),
    )


def heat_picture(release: PublishedRelease, cells: HeatMap) -> Picture:
    """Draw released counts by two keys."""
    one, other = map(key_text, release.header.group_columns)
    largest = np.unravel_index(int(np.nanargmax(cells.values)), cells.values.shape)
    row, column = (int(position) for position in largest)
    missing = int(np.sum(np.isnan(cells.values)))
    description = (
        f"A grid of {len(cells.rows)} rows ({one}) and {len(cells.columns)} columns ({other}), "
        f"darker where the released count is larger. Largest: {cells.rows[row]} and "
        f"{cells.columns[column]} with {count_text(float(cells.values[row, column]))}."
    )
    dashes = " A dash: no such group was declared." if missing else ""
    return _picture(
        "heat",
        f"Released counts by {one} and {other}",
        description,
        f"Released counts by {one} and {other}; darker is more, on a logarithmic scale (10k is "
        f"10,000).{dashes}",
        0.9 + 0.27 * len(cells.rows),
        lambda axes: draw_heat_map(axes, cells.values, cells.rows, cells.columns, (one, other)),
    )


def budget_picture(release: PublishedRelease, noisy: FloatArray) -> Picture:
    """Draw the budget against group size, with the paper's bounds."""
    header, mechanism = release.header, release.mechanism
    sizes = [1, 1000, 1_000_000]
    budgets = mechanism.budget(sizes, header.records_per_group)
    values = ", ".join(
        f"{amount_text(float(rho))} at {size:,}" for size, rho in zip(sizes, budgets, strict=True)
    )
    bounds = (
        " The bounds are limits for large groups and small errors, about one record."
        if header.records_per_group == 1 and header.relative_error is not None
        else " The paper's bounds are about one record for each unit and are not drawn here."
    )
    return _picture(
        "budget",
        "Privacy budget of a member against the size of its group",
        f"A curve on logarithmic axes. Budget in rho: {values} records; the bound for everyone is "
        f"{amount_text(header.worst_case_rho)}.",
        "How much a release can tell about one member of a group, by the size of the group. Lower "
        f"is more private. Small marks at the bottom: released counts.{bounds}",
        3.7,
        lambda axes: draw_budget(
            axes,
            mechanism,
            records=header.records_per_group,
            worst_rho=header.worst_case_rho,
            relative_error=header.relative_error,
            released=noisy,
        ),
    )


def error_picture(release: PublishedRelease, noisy: FloatArray) -> Picture:
    """Draw the expected error against group size, with its promise."""
    header, mechanism = release.header, release.mechanism
    rounded = header.rounding == "nearest"
    sizes = [1, 1000, 1_000_000]
    errors = mechanism.expected_absolute_error(sizes, rounded=rounded)
    values = ", ".join(
        f"{amount_text(float(error))} at {size:,}"
        for size, error in zip(sizes, errors, strict=True)
    )
    return _picture(
        "error",
        "Expected error against group size",
        f"Curves on logarithmic axes. Expected error in records: {values} records.",
        "How far a released count is from the true one on average, by the size of the group, both "
        "in records. The dashed line is what was promised.",
        3.5,
        lambda axes: draw_error(
            axes,
            mechanism,
            relative_error=header.relative_error,
            rounded=rounded,
            confidence=header.confidence,
            released=noisy,
        ),
    )


def _picture(
    name: str,
    title: str,
    description: str,
    caption: str,
    height: float,
    draw: Callable[[Axes], Axes],
) -> Picture:
    with drawing_style():
        figure = Figure(figsize=(_WIDTH, height))
        draw(figure.add_subplot())
        svg = inline_svg(figure, f"figure-{name}", title, description)
    return Picture(name, svg, caption)
