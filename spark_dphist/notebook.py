"""HTML for notebooks: a heading, facts and a table, all text escaped, in any colour scheme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from spark_dphist.shown import amount_text, count_text, printable, share_text

if TYPE_CHECKING:
    from spark_dphist.overview import ShownGroups

_BOX = "border: 1px solid; border-radius: 4px; padding: .6em 1em; max-width: 60em"
_TABLE = "border-collapse: collapse; margin: .5em 0"
_LEFT = "text-align: left; padding: .15em .8em .15em 0"
_RIGHT = "text-align: right; padding: .15em .8em"


def card(
    title: str,
    facts: Iterable[tuple[str, str]],
    tables: Iterable[str] = (),
    *,
    warnings: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return one block of HTML.

    Parameters
    ----------
    title, facts, warnings, notes
        Plain text; facts as names with values.
    tables
        Made by ``table``.
    """
    rows = "".join(
        f'<tr><th scope="row" style="{_LEFT}">{_text(name)}</th>'
        f'<td style="{_LEFT}">{_text(value)}</td></tr>'
        for name, value in facts
    )
    cautions = "".join(f"<p><strong>Warning:</strong> {_text(text)}</p>" for text in warnings)
    remarks = "".join(f"<p>{_text(text)}</p>" for text in notes)
    return (
        f'<div style="{_BOX}"><p><strong>{_text(title)}</strong></p>{cautions}'
        f'<table style="{_TABLE}"><tbody>{rows}</tbody></table>{"".join(tables)}{remarks}</div>'
    )


def _text(text: str) -> str:
    return escape(printable(text))


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], keys: int) -> str:
    """Return a table of text, the first ``keys`` columns to the left, the others to the right."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        styles = [_LEFT if place < keys else _RIGHT for place in range(len(texts))]
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f'<{tag}{scope} style="{style}">{_text(text)}</{tag}>'
            for style, text in zip(styles, texts, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<table style="{_TABLE}"><caption style="{_LEFT}">{_text(caption)}</caption>'
        f"<thead><tr>{cells('th', headings)}</tr></thead><tbody>{body}</tbody></table>"
    )


def counts_table(shown: ShownGroups, group_columns: Sequence[str], confidence: float) -> str:
    """Return released counts with their intervals as a table."""
    rows = [
        [*row.keys, *map(count_text, (row.noisy_count, row.lower, row.upper))] for row in shown.rows
    ]
    return table(
        f"Released counts with {share_text(confidence)} intervals{shown.described}",
        [*group_columns, "released", "at least", "at most"],
        rows,
        len(group_columns),
    )


def budget_table(shown: ShownGroups, group_columns: Sequence[str]) -> str:
    """Return the budgets at the released counts, and their bounds, as a table."""
    rows = [
        [*row.keys, count_text(row.noisy_count), amount_text(row.rho), amount_text(row.rho_upper)]
        for row in shown.rows
    ]
    return table(
        f"Budget of a member, in rho{shown.described}",
        [*group_columns, "released", "rho at released count", "at most"],
        rows,
        len(group_columns),
    )
