"""One configuration for every data interval: a template, and the interval that is filled in.

In the template's text ``@INTERVAL@`` stands for the interval as it is named (``2026-01``),
``@FROM@`` for its first day and ``@BEFORE@`` for the day after its last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
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
_PREVIOUS = re.compile(rf"({'|'.join(_KINDS)}) before ([12][0-9]{{3}}-[0-9]{{2}}-[0-9]{{2}})")


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
    last_day = _started(previous[1], first) - timedelta(days=1)
    return Interval(previous[1], _started(previous[1], last_day))


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
    following = parse_toml(Interval(wanted.kind, wanted.before).fill(text), str(path))
    for section, mend in {
        "input": "select the interval's records, for example where.day = { from = @FROM@, before "
        "= @BEFORE@ }",
        "output": "give each interval a place of its own, with @INTERVAL@ in its path or table",
    }.items():
        if getattr(configuration, section) == getattr(following, section):
            raise ConfigurationError(
                f"configuration {str(path)!r} has the same [{section}] in every interval: {mend}"
            )
    return with_release_id(configuration, f"{configuration.name}-{wanted.name}")
