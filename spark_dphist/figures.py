"""Drawings of a release on matplotlib axes: counts, budget and error against group size.

Everything drawn is public: policy, and numbers that were released. Lines differ by dash and
weight, not by colour alone. Matplotlib is optional: import this module only to draw.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from spark_dphist.accounting import (
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    least_fisher_coefficient,
    lower_bound_coefficient,
)
from spark_dphist.mechanisms import Mechanism
from spark_dphist.mechanisms.base import FloatArray
from spark_dphist.overview import ShownGroups
from spark_dphist.shown import power_text, shortened

_INK, _BLUE, _PALE, _GREY = "#1a1a1a", "#0b4f8a", "#cfe0ee", "#6b6b6b"
_MOST_LETTERS = 36
# Above this relative error the paper's bounds for small errors say nothing.
_SMALL_ERROR = 0.2
_MOST_CELLS_WITH_NUMBERS = 240


@contextmanager
def drawing_style() -> Iterator[None]:
    """Set what all figures share; nothing is left changed."""
    settings: dict[Any, Any] = {
        # Group keys are text of strangers: a dollar sign in one starts no formula.
        "text.parse_math": False,
        # Letters stay letters: they can be searched, read aloud and printed sharply.
        "svg.fonttype": "none",
        "svg.hashsalt": "spark_dphist",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.edgecolor": _GREY,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": False,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "legend.handlelength": 3.2,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # The reader's fonts draw the letters, not matplotlib's.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        yield


def drawn(axes: Axes | None, draw: Callable[[Axes], Axes], height: float = 4.2) -> Axes:
    """Draw on these axes, or on new ones that a notebook shows.

    Parameters
    ----------
    axes
        To draw on, or None.
    draw
        Draws on axes and returns them.
    height
        Of new axes, in inches.
    """
    with drawing_style():
        if axes is None:
            # Here, not at the top: a report needs no display.
            from matplotlib import pyplot

            _, axes = pyplot.subplots(figsize=(7.2, height))
        return draw(axes)


def bars_height(shown: ShownGroups) -> float:
    """Return the height in inches at which the labels of ``draw_counts`` can be read."""
    return 0.9 + 0.23 * (len(shown.rows) + (shown.gap is not None))


def draw_counts(axes: Axes, shown: ShownGroups, confidence: float) -> Axes:
    """Draw released counts as bars with their intervals, on a logarithmic scale from 1 on."""
    places = np.arange(len(shown.rows), dtype=np.float64)
    if shown.gap is not None:
        places[shown.gap :] += 1
        axes.text(
            0.01,
            shown.gap,
            f"… {shown.left_out:,} groups between are left out …",
            style="italic",
            color=_GREY,
            va="center",
            transform=axes.get_yaxis_transform(),
        )
    released = [(row.noisy_count, row.lower, row.upper) for row in shown.rows]
    noisy, low, high = np.maximum(np.array(released, dtype=np.float64).reshape(-1, 3).T, 0)
    axes.barh(places, noisy, height=0.66, color=_PALE, edgecolor=_BLUE, linewidth=0.8)
    axes.hlines(places, low, high, color=_INK, linewidth=1.3)
    for ends in (low, high):
        axes.plot(
            ends,
            places,
            linestyle="none",
            marker="|",
            markersize=6,
            color=_INK,
            mew=1.3,
            clip_on=False,
        )
    # Linear from 0 to 1, logarithmic beyond: a count may be 0.
    axes.set_xscale("symlog", linthresh=1, linscale=0.5)
    largest = max(float(np.max(high, initial=1)), 10.0)
    powers = [10.0**exponent for exponent in range(math.ceil(math.log10(largest)) + 1)]
    axes.xaxis.set_major_locator(FixedLocator([0, *powers]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "0" if x == 0 else power_text(x)))
    axes.set_xlim(0, largest * 1.15)
    axes.grid(visible=True, axis="x")
    axes.set_yticks(places, [row.short_label for row in shown.rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(float(np.max(places, initial=0.0)) + 0.7, -0.7)
    axes.set_xlabel(f"released count (bar) and {100 * confidence:.4g} % interval (line); log scale")
    return axes


def draw_heat_map(
    axes: Axes,
    values: FloatArray,
    rows: Sequence[str],
    columns: Sequence[str],
    names: tuple[str, str],
) -> Axes:
    """Draw released counts of two keys, darker for larger, with the numbers where they fit.

    Parameters
    ----------
    axes
        To draw on.
    values
        Released counts, shape (rows, columns); NaN where there is no such group.
    rows, columns
        Keys as text.
    names
        The two group columns.
    """
    largest = max(float(np.nanmax(values)), 10.0)
    norm = LogNorm(1, largest)
    colours = mpl.colormaps["Blues"]
    axes.set_facecolor("#ffffff")
    axes.pcolormesh(
        np.clip(values, 1, None), norm=norm, cmap=colours, edgecolors="white", linewidth=0.6
    )
    for row, column in np.argwhere(np.isnan(values)):
        axes.text(column + 0.5, row + 0.5, "–", ha="center", va="center", color=_GREY)
    if values.size <= _MOST_CELLS_WITH_NUMBERS:
        for row, column in np.argwhere(~np.isnan(values)):
            value = float(values[row, column])
            dark = norm(max(value, 1.0)) > 0.55
            axes.text(
                column + 0.5,
                row + 0.5,
                _brief(value),
                ha="center",
                va="center",
                fontsize=7.5,
                color="white" if dark else _INK,
            )
    axes.invert_yaxis()
    crowded = max(map(len, columns), default=0) * len(columns) > 70
    axes.set_xticks(
        np.arange(len(columns)) + 0.5,
        [shortened(label, 18) for label in columns],
        rotation=60 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor" if crowded else "default",
    )
    axes.set_yticks(np.arange(len(rows)) + 0.5, [shortened(label, _MOST_LETTERS) for label in rows])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel(shortened(names[1], _MOST_LETTERS))
    axes.set_ylabel(shortened(names[0], _MOST_LETTERS))
    return axes


def _brief(value: float) -> str:
    if value < 1e4:
        return f"{value:,.0f}"
    return f"{value / 1e3:,.0f}k" if value < 1e6 else f"{value / 1e6:,.1f}M"


def draw_budget(
    axes: Axes,
    mechanism: Mechanism,
    *,
    records: int,
    worst_rho: float,
    relative_error: float | None,
    released: FloatArray | None = None,
) -> Axes:
    """Draw the budget of a member against the size of its group, with what is known to be needed.

    Parameters
    ----------
    axes
        To draw on.
    mechanism, records
        Whose budget, and by how much one unit can change one count.
    worst_rho
        The bound for everyone, in rho.
    relative_error
        The promise, for the paper's bounds, which are about one record; None leaves them out.
    released
        Released counts, marked along the axis.

    Notes
    -----
    The bounds are limits of n**2 v(n) for large n (docs/optimality.md); they are drawn from the
    floor on.
    """
    sizes = _sizes(mechanism.floor, released)
    budget = mechanism.budget(sizes, records)
    if worst_rho == 0:
        axes.text(0.5, 0.5, "The budget is 0 at every size.", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return axes
    (ours,) = axes.plot(
        sizes,
        budget,
        color=_BLUE,
        linewidth=2.4,
        zorder=3,
        label=f"this release ({mechanism.name})",
    )
    everyone = axes.axhline(
        worst_rho,
        color=_INK,
        linewidth=1.3,
        linestyle=(0, (7, 2)),
        zorder=4,
        label="bound for everyone",
    )
    handles: list[Artist] = [ours, everyone]
    if relative_error is not None and 0 < relative_error < 1 and records == 1:
        handles += _draw_bounds(axes, relative_error, sizes[sizes >= mechanism.floor])
    _log_axes(axes, sizes, _size_label(released), "budget of a member (rho)")
    axes.set_ylim(float(np.min(budget)) / 8, worst_rho * 4)
    _mark_released(axes, released)
    _legend_below(axes, handles)
    return axes


def _draw_bounds(axes: Axes, relative_error: float, sizes: FloatArray) -> list[Artist]:
    squared = relative_error**2 * sizes**2
    drawn: list[Artist] = [
        *axes.plot(
            sizes,
            lower_bound_coefficient(relative_error) / sizes**2,
            color=_GREY,
            linewidth=1.4,
            linestyle=(0, (5, 2, 1, 2)),
            label="paper: no mechanism is below",
        ),
        *axes.plot(
            sizes,
            least_fisher_coefficient(relative_error) / squared,
            color="#8a5a00",
            linewidth=1.2,
            linestyle=(0, (1, 1.2)),
            zorder=3.5,
            label="least of all noise on the logarithm",
        ),
    ]
    if relative_error <= _SMALL_ERROR:
        band = axes.fill_between(
            sizes,
            SMALL_ERROR_LOWER / squared,
            SMALL_ERROR_UPPER / squared,
            color="#e3d9c6",
            linewidth=0,
            label="paper: the best for small errors is in here",
        )
        drawn.append(band)
    return drawn


def draw_error(
    axes: Axes,
    mechanism: Mechanism,
    *,
    relative_error: float | None,
    rounded: bool,
    confidence: float,
    released: FloatArray | None = None,
) -> Axes:
    """Draw expected error, its promised bound and the interval's half width against group size."""
    sizes = _sizes(mechanism.floor, released)
    error = mechanism.expected_absolute_error(sizes, rounded=rounded)
    low, high = mechanism.interval(mechanism.encode(sizes), confidence)
    handles: list[Artist] = [
        *axes.plot(sizes, error, color=_BLUE, linewidth=2.4, zorder=3, label="expected error")
    ]
    if relative_error is not None:
        handles += axes.plot(
            sizes,
            relative_error * np.maximum(sizes, mechanism.floor),
            color=_INK,
            linewidth=1.3,
            linestyle=(0, (7, 2)),
            zorder=4,
            label="promised: the expected error is below",
        )
    if mechanism.noise is not None:
        handles += axes.plot(
            sizes,
            (high - low) / 2,
            color=_GREY,
            linewidth=1.4,
            linestyle=(0, (1, 1.2)),
            label=f"half the width of the {100 * confidence:.4g} % interval",
        )
    _log_axes(axes, sizes, _size_label(released), "error, in records")
    _mark_released(axes, released)
    _legend_below(axes, handles)
    return axes


def _sizes(floor: float, released: FloatArray | None) -> FloatArray:
    largest = 0.0 if released is None else float(np.max(released, initial=0))
    end = max(1e6, 10 * floor, largest)
    sizes = np.geomspace(1, 10 ** math.ceil(math.log10(end)), 400)
    return np.unique(np.rint(np.append(sizes, [math.floor(floor), math.ceil(floor)])))


def _log_axes(axes: Axes, sizes: FloatArray, x_label: str, y_label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=9))
        axis.set_major_formatter(FuncFormatter(lambda x, _: power_text(x)))
        axis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.set_xlim(1, float(sizes[-1]))
    axes.grid(visible=True)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def _size_label(released: FloatArray | None) -> str:
    marks = "" if released is None else " (small marks: released counts)"
    return f"records in the group{marks}"


def _mark_released(axes: Axes, released: FloatArray | None) -> None:
    if released is None or not len(released):
        return
    # No more than can be told apart.
    marks = np.unique(np.round(np.log10(np.maximum(released, 1)), 2))
    axes.plot(
        10**marks,
        np.full(marks.size, 0.025),
        linestyle="none",
        marker="|",
        markersize=8,
        color=_INK,
        mew=0.7,
        transform=axes.get_xaxis_transform(),
    )


def _legend_below(axes: Axes, handles: list[Artist]) -> None:
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.46, -0.17), ncols=2)
