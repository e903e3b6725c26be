"""One configuration for every data interval: a template, and the interval that is filled in.

In the template's text ``@INTERVAL@`` stands for the interval as it is named (``2026-01``),
``@FROM@`` for its first day and ``@BEFORE@`` for the day after its last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from spark_dphist.config import (
    PLACEHOLDER,
    ReleaseConfiguration,
    parse_toml,
    read_text,
    with_release_id,
)
from spark_dphist.errors import ConfigurationError

_NAME = re.compile(r"([12][0-9]{3})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")
_KINDS = ("year", "month", "day")
# Where a day begins first.
_EARLIEST_ZONE = timedelta(hours=14)
_PREVIOUS = re.compile(rf"({'|'.join(_KINDS)}) before ([12][0-9]{{3}}-[0-9]{{2}}-[0-9]{{2}})")


# What an interval must have of its own: the section, what it says, and the mend.
_PLACES: tuple[tuple[str, Callable[[ReleaseConfiguration], str | None], str], ...] = (
    (
        "input",
        lambda configuration: configuration.input.counted,
        "select the interval's records, for example where.day = { from = @FROM@, before = "
        "@BEFORE@ }",
    ),
    (
        "output",
        lambda configuration: configuration.output.described,
        "give each interval a place of its own, with @INTERVAL@ in its path or table",
    ),
    (
        "audit",
        lambda configuration: configuration.audit.path or configuration.audit.table,
        "put @INTERVAL@ into its path or table, or leave it out: it then lies beside the output",
    ),
    (
        "confidential_audit",
        lambda configuration: getattr(configuration.confidential_audit, "path", None),
        "put @INTERVAL@ into its path",
    ),
)


@dataclass(frozen=True)
class Interval:
    """A calendar year, month or day.

    Parameters
    ----------
    kind
        ``year``, ``month`` or ``day``.
    first
        Its first day.
    """

    kind: str
    first: date

    @property
    def name(self) -> str:
        """The interval by ISO 8601: ``2026``, ``2026-01`` or ``2026-01-31``."""
        return self.first.isoformat()[: {"year": 4, "month": 7, "day": 10}[self.kind]]

    @property
    def before(self) -> date:
        """The first day after it."""
        # Some day of the next one.
        later = self.first + timedelta(days={"year": 367, "month": 32, "day": 1}[self.kind])
        return _started(self.kind, later)

    def fill(self, text: str) -> str:
        """Return a template's text with its placeholders replaced."""
        values = {"INTERVAL": self.name, "FROM": str(self.first), "BEFORE": str(self.before)}
        return PLACEHOLDER.sub(lambda found: values[found[1]], text)


def _started(kind: str, day: date) -> date:
    """Return the first day of the year, month or day that a day lies in."""
    return {"year": day.replace(month=1, day=1), "month": day.replace(day=1), "day": day}[kind]


def _last_before(kind: str, day: date) -> Interval:
    """Return the last whole year, month or day before a day."""
    return Interval(kind, _started(kind, _started(kind, day) - timedelta(days=1)))


def parse_interval(text: str) -> Interval:
    """Return the named interval, or the last whole one before a day (``month before 2026-02-03``).

    The second form is for schedulers that know the day of a run and cannot compute with it.

    Raises
    ------
    ConfigurationError
        If the text is neither, or names no day of the calendar.
    """
    previous = _PREVIOUS.fullmatch(text)
    named = _NAME.fullmatch(previous[2] if previous else text)
    if named is None:
        raise ConfigurationError(_expected(text))
    year, month, day = named.groups()
    try:
        first = date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        raise ConfigurationError(_expected(text)) from None
    if previous is None:
        return Interval("day" if day else "month" if month else "year", first)
    return _last_before(previous[1], first)


def _expected(text: str) -> str:
    return (
        f"interval: got {text!r}, expected a year, a month or a day such as 2026, 2026-01 or "
        "2026-01-31, or the last one before a day, such as 'month before 2026-02-03'"
    )


def load_for_interval(path: str | Path, interval: str) -> ReleaseConfiguration:
    """Read a template, fill an interval in, and make the release id of its name and the interval.

    Raises
    ------
    ConfigurationError
        If the interval is none, or the configuration is not valid; also if what it counts or where
        it publishes is the same in every interval, or it has a release id of its own.
    """
    wanted = parse_interval(interval)
    text = read_text(path)
    configuration = parse_toml(wanted.fill(text), str(path))
    if configuration.release_id is not None:
        raise ConfigurationError(
            f"configuration {str(path)!r} has a 'release_id', but with an interval the id is made "
            "of 'name' and the interval: leave it out"
        )
    other = _in_another_interval(wanted, text, str(path))
    for section, place_of, mend in _PLACES:
        place = place_of(configuration)
        if place is not None and place == place_of(other):
            raise ConfigurationError(
                f"configuration {str(path)!r} has the same [{section}] in every interval: {mend}"
            )
    return with_release_id(configuration, f"{configuration.name}-{wanted.name}", str(path))


def _in_another_interval(wanted: Interval, text: str, source: str) -> ReleaseConfiguration:
    """Return the template's configuration for the next interval, or else for the one before."""
    try:
        return parse_toml(Interval(wanted.kind, wanted.before).fill(text), source)
    except ConfigurationError:
        return parse_toml(_last_before(wanted.kind, wanted.first).fill(text), source)


def refuse_unfinished(interval: str, now: datetime) -> None:
    """Refuse an interval whose last day is not over, anywhere.

    Its release would be final: asking for it again returns it, and records that came later are
    not in it.

    Parameters
    ----------
    interval
        As ``parse_interval`` takes it.
    now
        The time, with its time zone.

    Raises
    ------
    ConfigurationError
        If it is not over.
    """
    wanted = parse_interval(interval)
    if (now.astimezone(UTC) + _EARLIEST_ZONE).date() < wanted.before:
        raise ConfigurationError(
            f"interval {wanted.name} is not over before {wanted.before}: a release of it would "
            "lack the records that are still to come, and the budget is spent only once. Name an "
            "interval that is over."
        )
