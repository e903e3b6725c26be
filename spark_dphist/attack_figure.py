"""The picture of an attack: success and error by group size, of fixed and of growing noise.

Matplotlib is optional (the extra ``plots``) and imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_dphist.attack import AttackedRelease, AttackReport, best_possible_accuracy
from spark_dphist.errors import ConfigurationError
from spark_dphist.optional import needing
from spark_dphist.verification.samples import Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = ("svg", "png", "pdf")

# Of Okabe and Ito, told apart by every kind of colour vision; line and marker tell them apart too.
_CONFIGURED: dict[str, Any] = {"color": "#0072B2", "linestyle": "-", "marker": "o"}
_OTHERS: tuple[dict[str, Any], ...] = (
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#7A7A7A", "linestyle": ":", "marker": "^"},
)
_MARKER: dict[str, Any] = {"markersize": 5.5, "markerfacecolor": "white", "markeredgewidth": 1.5}
_TICKS = {1: "1", 100: "100", 10_000: "10,000", 1_000_000: "1 million"}
_CURVE_POINTS = 160


@dataclass(frozen=True)
class _Series:
    release: AttackedRelease
    style: dict[str, Any]


def save_figure(report: AttackReport, path: Path) -> None:
    """Draw the report and save it in the format that the path's suffix names.

    Raises
    ------
    ConfigurationError
        If the suffix is none of ``FORMATS``, the directory does not exist, or matplotlib is not
        installed.
    """
    check_figure(path)
    import matplotlib as mpl

    # Letters as outlines, so that the picture looks the same wherever it is shown.
    settings: Any = {"svg.hashsalt": "spark_dphist attack", "svg.fonttype": "path", "font.size": 10}
    with mpl.rc_context(settings):
        figure = draw(report)
        kind = path.suffix.removeprefix(".").lower()
        undated = {"CreationDate" if kind == "pdf" else "Date": None} if kind != "png" else None
        figure.savefig(path, dpi=160, metadata=undated)


def check_figure(path: Path) -> None:
    """Refuse a path that no figure can be saved to, before anything is computed."""
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        raise ConfigurationError(
            f"figure {str(path)!r} must end in one of {', '.join('.' + each for each in FORMATS)}"
        )
    if not path.parent.is_dir():
        raise ConfigurationError(
            f"figure {str(path)!r} cannot be saved: there is no directory {str(path.parent)!r}. "
            "Make it first."
        )
    with needing("the figure", "plots"):
        import matplotlib.figure  # noqa: F401


def draw(report: AttackReport) -> Figure:
    """Return the figure: the attacker's accuracy on the left, the error on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 5.2))
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    series = _series(report)
    _draw_accuracy(left, report, series)
    _draw_errors(right, report, series)
    figure.suptitle(message(report), x=0.012, y=0.98, ha="left", fontsize=15, fontweight="bold")
    figure.legend(
        handles=[_handle(each) for each in series],
        loc="upper left",
        bbox_to_anchor=(0.003, 0.925),
        ncols=len(series),
        frameon=False,
        fontsize=10,
        handlelength=3,
        columnspacing=1.6,
    )
    figure.text(0.012, 0.015, _caption(report), va="bottom", fontsize=9, color="0.3")
    figure.subplots_adjust(left=0.075, right=0.97, top=0.785, bottom=0.265, wspace=0.26)
    return figure


def message(report: AttackReport) -> str:
    """Return what the picture says, from what was found."""
    first, last = report.configured.sizes[0], report.configured.last
    if last.best_possible - 0.5 > 0.5 * (first.best_possible - 0.5):
        return "The noise is of one size: groups of every size are equally exposed"
    return "The larger the group, the better this release hides who is in it"


def _series(report: AttackReport) -> list[_Series]:
    others = [
        _Series(release, style)
        for release, style in zip(report.releases[:-1], _OTHERS, strict=False)
    ]
    return [*others, _Series(report.configured, _CONFIGURED)]


def _draw_accuracy(axes: Axes, report: AttackReport, series: Sequence[_Series]) -> None:
    from matplotlib.ticker import MaxNLocator

    for each in series:
        sizes, style = each.release.sizes, each.style
        counts = np.array([size.count for size in sizes])
        curve = np.unique(np.rint(np.geomspace(counts[0], counts[-1], _CURVE_POINTS))).astype(int)
        best = [
            best_possible_accuracy(
                each.release.mechanism, Pair(n - report.records, n, report.records)
            )
            for n in curve.tolist()
        ]
        axes.plot(curve, _percent(best), **_line(style), linewidth=1.8)
        measured = _percent([size.accuracy for size in sizes])
        ends = [
            measured - _percent([size.accuracy_lower for size in sizes]),
            _percent([size.accuracy_upper for size in sizes]) - measured,
        ]
        axes.errorbar(
            counts,
            measured,
            yerr=ends,
            fmt=style["marker"],
            color=style["color"],
            **_MARKER,
            capsize=3,
            elinewidth=1.1,
            zorder=3,
        )
    axes.axhline(50, color="0.35", linewidth=1)
    smallest = report.configured.sizes[0].count
    axes.text(smallest, 50, "a coin toss", va="bottom", color="0.35", fontsize=9)
    attacks = [size for each in series for size in each.release.sizes]
    least = 100 * min(0.5, *(size.accuracy_lower for size in attacks))
    most = 100 * max(size.accuracy_upper for size in attacks)
    axes.set_ylim(least - 0.04 * (most - least), most + 0.04 * (most - least))
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axes.set_title("How often the best attacker is right", loc="left", fontsize=11)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    _finish(axes)


def _handle(series: _Series) -> Line2D:
    from matplotlib.lines import Line2D

    return Line2D(
        [],
        [],
        **series.style,
        **_MARKER,
        linewidth=1.8,
        label=series.release.label,
    )


def _draw_errors(axes: Axes, report: AttackReport, series: Sequence[_Series]) -> None:
    for each in series:
        sizes, style = each.release.sizes, each.style
        counts = np.array([size.count for size in sizes])
        curve = np.unique(np.rint(np.geomspace(counts[0], counts[-1], _CURVE_POINTS)))
        expected = each.release.mechanism.expected_absolute_error(curve, True) / curve
        axes.plot(curve, 100 * expected, **_line(style), linewidth=1.8)
        axes.plot(
            counts,
            _percent([size.mean_error / size.count for size in sizes]),
            style["marker"],
            color=style["color"],
            **_MARKER,
            zorder=3,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    axes.set_title("What it costs: mean error / group size", loc="left", fontsize=11)
    _shade_surplus(axes, report)
    _finish(axes)


def _shade_surplus(axes: Axes, report: AttackReport) -> None:
    """Mark the accuracy of fixed noise that the promise did not ask for."""
    ends = np.array([report.floor, report.configured.last.count])
    fixed, configured = (
        100 * release.mechanism.expected_absolute_error(ends, True) / ends
        for release in (report.fixed, report.configured)
    )
    if not np.all(configured[1] > 4 * fixed[1]):
        return
    counts = np.geomspace(ends[0], ends[1], _CURVE_POINTS)
    below, above = (
        100 * release.mechanism.expected_absolute_error(counts, True) / counts
        for release in (report.fixed, report.configured)
    )
    axes.fill_between(counts, below, above, where=above > below, color="0.93", zorder=0)
    axes.text(
        0.8 * ends[1],
        configured[1] / 2,
        "accuracy that\nnobody asked for,\nturned into privacy",
        ha="right",
        va="top",
        fontsize=9,
    )


def _finish(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: _TICKS.get(round(value), ""))
    axes.set_xlabel("records in the group")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _caption(report: AttackReport) -> str:
    records = "record is" if report.records == 1 else f"{report.records} records are"
    whose = f"one person's {records}" if report.privacy_unit.column else f"one {records}"
    return (
        f"The attacker sees a group's published count and guesses, at even odds, whether {whose} "
        "in it.\n"
        f"Promise: mean error below {100 * report.relative_error:g} % of the group, and below "
        f"{report.relative_error * report.floor:g} in groups of less than {report.floor:,.0f}.\n"
        "Lines: the best that any attacker can do, and the expected error. Points: attacks on "
        "numbers that the real code published,\n"
        f"{report.scored:,} guesses each: within {100 * report.half_width:.2f} points (bars) with "
        f"{100 * report.confidence:g} % confidence for all of them together."
    )


def _line(style: dict[str, Any]) -> dict[str, Any]:
    return {"color": style["color"], "linestyle": style["linestyle"]}


def _percent(values: Sequence[float]) -> Any:
    return 100 * np.asarray(values)
