"""The page: facts of a published release, filled into the template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spark_dphist import __version__
from spark_dphist.mechanisms import TransformMechanism
from spark_dphist.overview import heat_map, shown_groups, summary
from spark_dphist.plan import PlanRow, plan_row, sizes_to_show
from spark_dphist.report.advice import advice
from spark_dphist.report.limits import limitations
from spark_dphist.report.pictures import (
    Picture,
    budget_picture,
    counts_picture,
    error_picture,
    heat_picture,
)
from spark_dphist.report.source import LedgerState, PublishedRelease
from spark_dphist.shown import amount_text, count_text, printable, share_text
from spark_dphist.weaknesses import weak_settings


@dataclass(frozen=True)
class LimitRow:
    """One cap of the ledger as text; ``share`` of it is spent."""

    name: str
    cap: str
    spent: str
    left: str
    share: float


def render_report(release: PublishedRelease) -> str:
    """Return the report of a release as one HTML document.

    It has no scripts and refers to nothing outside itself. Everything in it follows from the
    public tables and the ledger; keys and names are escaped.
    """
    header = release.header
    shown = shown_groups(release.groups, header.group_columns)
    noisy = np.asarray(release.groups["noisy_count"].to_numpy(), dtype=np.float64)
    cells = heat_map(release.groups, header.group_columns)
    environment = Environment(
        loader=PackageLoader("spark_dphist.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_written,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        amount=amount_text, count=count_text, share=share_text, picture=_markup
    )
    page: str = environment.get_template("template.html").render(
        header=header,
        parameters=_parameters(release),
        versions=json.loads(header.versions),
        warnings=weak_settings(
            relative_error=header.relative_error,
            floor=header.floor,
            worst_rho=header.worst_case_rho,
            delta=header.delta,
            selection_rho=release.selection.rho_upper if release.selection else 0.0,
        ),
        shown=shown,
        summary=summary(release.groups, header.floor),
        sizes=_sizes(release),
        counts_picture=counts_picture(release, shown) if shown.rows else None,
        heat_picture=None if cells is None else heat_picture(release, cells),
        budget_picture=budget_picture(release, noisy),
        error_picture=error_picture(release, noisy),
        selection=release.selection,
        budget_falls=isinstance(release.mechanism, TransformMechanism),
        ledger=release.ledger,
        limits=[] if release.ledger is None else _limits(release.ledger),
        advice=advice(release, shown),
        limitations=limitations(release),
        checks=release.checks,
        version=__version__,
    )
    return page


def _written(value: Any) -> Any:
    """Write out control characters in names that strangers have chosen."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_text else value


def _markup(picture: Picture) -> Markup:
    # The only thing on the page that is not escaped: made by matplotlib and ElementTree, which
    # escape text themselves.
    return Markup(picture.svg)  # noqa: S704


def _parameters(release: PublishedRelease) -> list[tuple[str, str]]:
    parameters: dict[str, Any] = release.mechanism.parameters()
    return [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in parameters.items()
    ]


def _sizes(release: PublishedRelease) -> list[PlanRow]:
    header = release.header
    return [
        plan_row(
            release.mechanism,
            count,
            promised_error=(header.relative_error or np.nan) * max(count, header.floor),
            records=header.records_per_group,
            delta=header.delta,
            rounded=header.rounding == "nearest",
            confidence=header.confidence,
        )
        for count in sizes_to_show(header.floor)
    ]


def _limits(ledger: LedgerState) -> list[LimitRow]:
    return [
        LimitRow(
            limit.name,
            amount_text(limit.cap.float_upper()),
            amount_text(limit.spent.float_upper()),
            amount_text(limit.left.float_upper()),
            limit.spent.units / limit.cap.units if limit.cap.units else 1.0,
        )
        for limit in ledger.balance.stated
    ]
