"""Errors that say what was got, what was expected and the nearest mend.

None of them ever carries a record, a true count or a seed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SparkDphistError(Exception):
    """Base class of every error this package raises on purpose."""


class ConfigurationError(SparkDphistError, ValueError):
    """A value the caller chose is not acceptable; nothing has been read or spent."""


class ReleaseError(SparkDphistError, RuntimeError):
    """A release could not be completed; the message says what was and was not published."""


class BudgetError(SparkDphistError, RuntimeError):
    """The privacy budget does not allow the request; nothing has been read."""


def near_names(got: str, known: Iterable[str]) -> list[str]:
    """Return at most two known names that look like the one got, the nearest first."""
    folded = {str(name).lower(): str(name) for name in known}
    close = difflib.get_close_matches(str(got).lower(), list(folded), n=2, cutoff=0.6)
    return [folded[match] for match in close]


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """Return a sentence with the nearest known names, or the list of all when none is near.

    Parameters
    ----------
    got
        The name that was not found.
    known
        The names that exist; shown to the caller, so they must be public.
    """
    names = [str(name) for name in known]
    close = near_names(got, names)
    if close:
        return f"Did you mean {' or '.join(map(repr, close))}?"
    if not names:
        return "There is nothing to choose from."
    shown = ", ".join(repr(name) for name in names[:20])
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"Known are: {shown}{more}."
