"""Ranges and bins of group keys as lists of values and of labels; no Spark."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

from spark_dphist.errors import ConfigurationError, did_you_mean

Every = Literal["day", "week", "month", "year"]
Edge = int | float | Decimal | datetime.date

# A typing error in a product or the wrong table soon makes more groups than that.
MAX_GROUPS = 10_000_000
# More values than anybody means to publish; a typing error makes that many.
MOST_VALUES = 10_000_000
# Each row is compared with about log2 of them, but Spark has to compile all.
MOST_EDGES = 1_000

# The last day that every month has.
_SAFE_DAY = 28


def integers(start: int, stop: int, step: int = 1) -> range:
    """Return the integers from start to stop, both included where the step hits them.

    Raises
    ------
    ConfigurationError
        If the step is not positive, the range is empty or has more than ``MOST_VALUES`` values.
    """
    if step < 1:
        raise ConfigurationError(f"the step of a range must be at least 1, got {step}")
    values = range(start, stop + 1, step)
    _check_length(len(values), start, stop)
    return values


def dates(start: datetime.date, stop: datetime.date, every: Every = "day") -> list[datetime.date]:
    """Return dates from start to stop: each day, or the same day of each week, month or year.

    Parameters
    ----------
    start, stop
        Both included where they are hit.
    every
        How far one date is from the next. Months and years count from a day that all of them have.

    Raises
    ------
    ConfigurationError
        If the range is empty or has more than ``MOST_VALUES`` values, the unit is unknown, or it
        would count months from a day after the 28th.
    """
    if every not in get_args(Every):
        raise ConfigurationError(
            f"every {every!r} is not a length of time. {did_you_mean(every, get_args(Every))}"
        )
    if every in ("day", "week"):
        days = 1 if every == "day" else 7
        number = max((stop - start).days // days + 1, 0)
        _check_length(number, start, stop)
        return [start + datetime.timedelta(days=days * step) for step in range(number)]
    if start.day > _SAFE_DAY:
        raise ConfigurationError(
            f"a range by {every} cannot start on day {start.day}, which not every month has: start "
            f"it on the 1st, or on day {_SAFE_DAY} at the latest"
        )
    months = 1 if every == "month" else 12
    span = (stop.year - start.year) * 12 + stop.month - start.month - (stop.day < start.day)
    number = max(span // months + 1, 0)
    _check_length(number, start, stop)
    return [_months_later(start, months * step) for step in range(number)]


def bin_labels(edges: Sequence[Edge], labels: Sequence[str] | None = None) -> list[str]:
    """Return the labels of all bins in order: below the edges, between them, from the last on.

    Parameters
    ----------
    edges
        At least one, strictly rising. Edges a and b that follow each other are the bin [a, b).
    labels
        For the bins between the edges; ``[a, b)`` otherwise. The two outer ones are always called
        ``(-inf, a)`` and ``[b, inf)``.

    Raises
    ------
    ConfigurationError
        If edges do not rise or are too many, or labels are repeated or not one for each bin.
    """
    if not edges:
        raise ConfigurationError("bins need at least one edge")
    if len(edges) > MOST_EDGES:
        raise ConfigurationError(
            f"{len(edges):,} edges are more than {MOST_EDGES:,}. Bin the column in a view of the "
            "input, and group by that"
        )
    for edge in edges:
        if type(edge) is not type(edges[0]) and not _are_numbers(edge, edges[0]):
            raise ConfigurationError(f"edges must be of one type, got {edges[0]} and {edge}")
        if isinstance(edge, float | Decimal) and not math.isfinite(edge):
            raise ConfigurationError(f"edges must be finite, got {edge}")
    for low, high in itertools.pairwise(edges):
        if not low < high:  # type: ignore[operator]
            raise ConfigurationError(f"edges must rise, but {high} follows {low}")
    # -0.0 is 0.
    texts = [str(edge + 0.0) if isinstance(edge, float) else str(edge) for edge in edges]
    between = [f"[{low}, {high})" for low, high in itertools.pairwise(texts)]
    if labels is not None:
        if len(labels) != len(between):
            raise ConfigurationError(
                f"{len(edges)} edges make {len(between)} bins between them, got {len(labels)} "
                "labels. What is below and above has labels of its own"
            )
        between = list(labels)
    named = [f"(-inf, {texts[0]})", *between, f"[{texts[-1]}, inf)"]
    for label in named:
        if named.count(label) > 1:
            raise ConfigurationError(f"two bins have the label {label!r}")
    return named


def values_of(declared: dict[str, Any]) -> list[Any]:
    """Return the values of a range as a configuration declares it.

    Parameters
    ----------
    declared
        ``from`` and ``to``, two integers or two dates; ``step`` for integers, ``every`` for dates.

    Raises
    ------
    ConfigurationError
        If it declares no range.
    """
    known = ("from", "to", "step", "every")
    for name in declared:
        if name not in known:
            raise ConfigurationError(f"{name!r} is no part of a range. {did_you_mean(name, known)}")
    for name in ("from", "to"):
        if name not in declared:
            raise ConfigurationError(f"a range needs 'from' and 'to', and {name!r} is missing")
    start, stop = declared["from"], declared["to"]
    if type(start) is int and type(stop) is int:
        step = declared.get("step", 1)
        if "every" in declared or type(step) is not int:
            raise ConfigurationError("a range of integers has an integer 'step', not 'every'")
        return list(integers(start, stop, step))
    if type(start) is datetime.date and type(stop) is datetime.date:
        if "step" in declared:
            raise ConfigurationError("a range of dates has 'every', not 'step'")
        return list(dates(start, stop, declared.get("every", "day")))
    raise ConfigurationError(
        "a range is from one integer or date to another, got "
        f"{start!r} and {stop!r}. Write both without quotes"
    )


def confidential_key_set(reason: str) -> str:
    """Return a warning that a key set seems to come from the data that it is to protect."""
    return (
        f"The key set seems to have been taken from the confidential data itself ({reason}). Then "
        "the release tells which groups exist, and a group with one record gives that record away, "
        "whatever the noise. Declare the groups from public knowledge, or let them be learnt at a "
        "cost (docs/key-sets.md)."
    )


def _are_numbers(*values: object) -> bool:
    return all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool) for value in values
    )


def _months_later(date: datetime.date, months: int) -> datetime.date:
    position = date.year * 12 + date.month - 1 + months
    return date.replace(year=position // 12, month=position % 12 + 1)


def _check_length(number: int, start: object, stop: object) -> None:
    if number < 1:
        raise ConfigurationError(f"the range from {start} to {stop} is empty")
    if number > MOST_VALUES:
        raise ConfigurationError(
            f"the range from {start} to {stop} has {number:,} values, more than {MOST_VALUES:,}"
        )
