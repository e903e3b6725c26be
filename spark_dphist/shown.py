"""Keys and numbers of a release as text for people, in figures and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

SEPARATOR = " · "
"""Between the columns of a key."""

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_MOST_LETTERS = 200


def key_text(value: Any) -> str:
    """Return one group key as text of printable characters.

    NULL stands for a missing key; texts that could be taken for it, or for nothing, are quoted.
    """
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return value.hex()
    text = str(value)
    if text in ("", "NULL") or text != text.strip():
        return f'"{text}"'
    return shortened(printable(text), _MOST_LETTERS)


def printable(text: str) -> str:
    """Return a text with control characters, and marks that turn its direction, written out."""
    return "".join(
        each if each.isprintable() or each == _NO_BREAK_SPACE else repr(each)[1:-1] for each in text
    )


def shortened(text: str, letters: int) -> str:
    """Return a text of at most this many letters."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def fitted(parts: Sequence[str], letters: int) -> str:
    """Join the parts of a key, the longest shortened until all of it has this many letters."""
    limit = max(map(len, parts), default=0)
    while limit > 4 and sum(min(len(part), limit) + 3 for part in parts) - 3 > letters:
        limit -= 1
    return SEPARATOR.join(shortened(part, limit) for part in parts)


def count_text(value: float) -> str:
    """Return a released number: integers in full, others with two decimals."""
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def amount_text(value: float, digits: int = 4) -> str:
    """Return a number of counts or a budget with so many digits."""
    if 1000 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    if value == 0 or 1e-4 <= abs(value) < 1000:
        return f"{value:.{digits}g}"
    fraction, exponent = f"{value:.{digits - 1}e}".split("e")
    power = f"10{_superscript(int(exponent))}"
    whole = fraction.removesuffix("." + "0" * (digits - 1))
    return power if whole == "1" else f"{whole} × {power}"


def share_text(value: float) -> str:
    """Return a probability or a relative size in per cent."""
    return f"{100 * value:.4g}{_NO_BREAK_SPACE}%"


def power_text(value: float) -> str:
    """Return a power of ten for an axis: 1, 1,000, 10⁶."""
    exponent = round(math.log10(value))
    if 0 <= exponent < 6:
        return f"{10**exponent:,}"
    return f"10{_superscript(exponent)}"


def _superscript(exponent: int) -> str:
    return str(exponent).translate(_SUPERSCRIPTS)
