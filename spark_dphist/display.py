"""Plans, audits and released counts for a terminal of 80 columns, or a file.

Whatever somebody may want to copy (paths, ids, digests) stands alone at the end of an unwrapped
line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.ledger import Charge
from spark_dphist.accounting.policy import Reading
from spark_dphist.audit import AuditHeader
from spark_dphist.comparison import Candidate, Comparison
from spark_dphist.plan import Plan, PlanRow
from spark_dphist.targets import Target

if TYPE_CHECKING:
    # Its package imports what takes a while.
    from spark_dphist.verification import Claim, Verification


def plan_view(plan: Plan) -> RenderableType:
    """Show a plan, the worst case first."""
    table = Table(
        title="By group size (records in the group)",
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
    )
    interval = f"{100 * plan.confidence:.4g}% interval"
    for heading in (
        "records",
        "expected error",
        "promised below",
        interval,
        "rho",
        "epsilon",
        "attacker",
    ):
        table.add_column(heading, justify="right")
    for row in plan.rows:
        table.add_row(*_cells(row))
    return Group(*_head(plan), table, _reading_aid(), *_coefficients(plan), *_warnings(plan))


def target_view(target: Target) -> RenderableType:
    """Show what was found, and what the next smaller value would cost."""
    section = target.configuration.mechanism
    kept = {
        "relative_error": f"at floor {section.floor:g}",
        "floor": f"at relative error {section.relative_error:g}",
    }
    lines = [
        Text.assemble(
            ("Least ", "bold"),
            (target.sought.replace("_", " "), "bold"),
            f" with rho at most {_amount(target.cap)} for everyone, {kept[target.sought]}, "
            f"by {section.name}:",
        ),
        Text(f"  {target.sought} = {_written(target.found)}", "bold"),
    ]
    if target.refused is not None:
        cost = "cannot be calibrated"
        if target.refused_rho is not None:
            cost = f"would cost {_amount(target.refused_rho)}"
        lines.append(Text(f"It costs {_amount(target.rho)}; {_written(target.refused)} {cost}."))
    return Group(*lines, Text("Write it into [mechanism] of the configuration. Its plan:"), Text())


def _written(value: float) -> str:
    """Return a value as somebody writes it into a configuration, no digit lost."""
    return str(int(value)) if value.is_integer() else repr(value)


def _reading_aid() -> Text:
    return Text(
        "Interval: as published where the noise is at its median. Attacker: how often the best "
        "guess whether one unit is in the data is right, at even odds.",
        "dim",
    )


def _head(plan: Plan) -> Iterator[Text]:
    worst = plan.worst_case
    parameters = _listed(plan.mechanism.parameters())
    yield Text.assemble(
        ("Worst case, for everyone: ", "bold"),
        f"rho = {worst.rho:.4g}, epsilon = {worst.epsilon:.4g} at delta = {plan.delta:g}, "
        f"best attacker right in {worst.attacker_accuracy:.2%} of cases (50% is guessing)",
    )
    yield Text(
        f"Promise: expected error below {plan.relative_error:g} x max(count, "
        f"{plan.mechanism.floor:g}); published counts are "
        f"{'rounded to integers' if plan.rounding == 'nearest' else 'not rounded'}"
    )
    yield Text(f"Input: {plan.input}")
    yield Text(f"Privacy unit: {plan.privacy_unit.described}")
    if plan.key_set_size is not None:
        yield Text(f"Key set: {plan.key_set_size:,} groups")
    elif plan.selection is None:
        yield Text("Key set: a table, counted before the release")
    if plan.selection is not None:
        yield Text(f"Key set: {_selection(plan.selection.parameters())}")
    yield Text(f"Mechanism: {plan.mechanism.name} ({parameters})")


def _selection(stated: Mapping[str, Any]) -> str:
    return (
        f"learnt with epsilon = {stated['epsilon']:g}, delta = {stated['delta']:g}, "
        f"{stated['groups_per_unit']} group(s) of a unit, by {stated['mechanism']}; rho = "
        f"{stated['rho']:.4g} of the worst case; a group of {stated['count_kept_half_the_time']:,} "
        "units is kept half of the time"
    )


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cells(row: PlanRow) -> list[str]:
    return [
        f"{row.count:,}",
        _error(row.expected_error),
        _error(row.promised_error),
        f"{_error(row.lower)} to {_error(row.upper)}",
        f"{row.rho:.4g}",
        f"{row.epsilon:.4g}",
        f"{row.attacker_accuracy:.2%}",
    ]


def _error(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e12 else f"{value:.4g}"


def _coefficients(plan: Plan) -> Iterator[Text]:
    for name, value in plan.coefficients.items():
        yield Text(f"n² rho(n) for large n, {name}: {value:.4g}")


def _warnings(plan: Plan) -> Iterator[Text]:
    for warning in plan.warnings:
        yield Text.assemble(("Warning: ", "bold yellow"), warning)


def comparison_view(comparison: Comparison) -> RenderableType:
    """Show all mechanisms, once at one promise on the error and once at one worst-case budget."""
    floor, counts = comparison.floor, comparison.counts
    promise = (
        f"Same promise: expected error below {comparison.relative_error:g} x max(count, {floor:g})"
    )
    budget = f"Same worst case for everyone: rho = {comparison.rho:.4g}"
    return Group(
        *_side_by_side(promise, comparison.equal_promise, counts),
        *_side_by_side(budget, comparison.equal_budget, counts),
        Text(
            "A lower rho protects better. Attacker: how often the best guess whether one unit is "
            "in the data is right, at even odds (50% is guessing). Worst: at the count where it is "
            f"largest, for the expected error in units of max(count, {floor:g})."
        ),
    )


def _side_by_side(
    title: str, candidates: Sequence[Candidate], counts: Sequence[int]
) -> Iterator[RenderableType]:
    table = Table(title=title, title_justify="left", box=box.HORIZONTALS, padding=(0, 1, 0, 0))
    table.add_column("group size")
    for heading in (*(f"{count:,}" for count in counts), "worst"):
        table.add_column(heading, justify="right")
    blocks: dict[str, list[list[str]]] = {"rho": [], "attacker": [], "expected error": []}
    for candidate in candidates:
        if candidate.worst_case is None:
            continue
        everyone: list[PlanRow | Reading] = [*candidate.rows, candidate.worst_case]
        name = f" {candidate.name}"
        errors = [_brief(row.expected_error) for row in candidate.rows]
        blocks["rho"].append([name, *(_budget(reading.rho) for reading in everyone)])
        blocks["attacker"].append([name, *(f"{it.attacker_accuracy:.1%}" for it in everyone)])
        blocks["expected error"].append([name, *errors, f"{candidate.relative_error:.3g} x"])
    for heading, rows in blocks.items():
        table.add_row(Text(heading, "bold"))
        for cells in rows:
            table.add_row(*cells)
    yield table
    for candidate in candidates:
        if candidate.refusal is not None:
            yield Text(f"{candidate.name}: {candidate.refusal}")
    yield Text()


def _brief(error: float) -> str:
    return f"{error:,.0f}" if 1000 <= error < 1e5 else f"{error:.3g}"


def _budget(rho: float) -> str:
    return f"{rho:.3g}" if rho >= 1e-4 else f"{rho:.2g}"


def verification_view(verification: Verification) -> RenderableType:
    """Show a verification, a row for each claim."""
    table = Table(box=box.HORIZONTALS, show_lines=True, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("claim, and how it was checked")
    table.add_column("measured", justify="right", no_wrap=True)
    table.add_column("allowed", justify="right", no_wrap=True)
    table.add_column("false\nalarm", justify="right", no_wrap=True)
    for claim in verification.claims:
        where = f" Worst at {claim.at}." if claim.at else ""
        table.add_row(
            Text("pass", "green") if claim.passed else Text("FAIL", "bold red"),
            Text.assemble((claim.claim, "bold"), f"\n{claim.how}.{where}"),
            _measure(claim.measured),
            _allowed(claim),
            f"{claim.false_alarm_rate:.0e}" if claim.false_alarm_rate else "0",
        )
    failed = [claim for claim in verification.claims if not claim.passed]
    verdict = f"{len(failed)} of {len(verification.claims)} claims FAILED: do not release"
    if not failed:
        verdict = f"All {len(verification.claims)} claims withstood"
    return Group(
        Text(f"Mechanism: {verification.mechanism} ({_listed(verification.parameters)})"),
        table,
        Text(
            f"{verdict}. A correct mechanism fails a run with probability at most "
            f"{verification.false_alarm_rate:.1g}."
        ),
    )


def _measure(value: float) -> str:
    if 0 < abs(value - 1) < 1e-5:
        return f"1 {'+' if value > 1 else '-'} {abs(value - 1):.0e}"
    return f"{value:.5f}" if 1e-4 <= abs(value) < 10 and value != 1 else f"{value:.3g}"


def _allowed(claim: Claim) -> str:
    low, high = _measure(claim.lower), _measure(claim.upper)
    if claim.strict:
        return f"< {high}"
    if claim.lower == -math.inf:
        return f"<= {high}"
    if claim.upper == math.inf:
        return f">= {low}"
    return f"{low}\nto {high}"


def budget_lines(dataset: str, charges: Iterable[Charge], half_done: Sequence[str]) -> str:
    """Return what a release asks of each limit of a data set, and which runs did not finish."""
    lines = [f"Budget of data set {dataset!r} (rho):"]
    for charge in charges:
        limit = charge.limit
        verdict = "fits" if charge.fits else "DOES NOT FIT"
        lines.append(
            f"  {limit.name}: limit {_amount(limit.cap)}, spent {_amount(limit.spent)}, "
            f"requested {_amount(charge.asked)}, left {_amount(limit.left)}: {verdict}"
        )
    if half_done:
        lines.append(
            "  Reserved but not finished (running, or dead and still charged): "
            f"{', '.join(half_done)}"
        )
    return "\n".join(lines)


def _amount(rho: Rho) -> str:
    return f"{rho.float_upper():.6g}"


def header_lines(header: AuditHeader, places: Mapping[str, str]) -> str:
    """Return what the header of a public audit promises, and further places, a line each."""
    shown = {
        "release": header.release_id,
        "mechanism": f"{header.mechanism} ({_listed(json.loads(header.parameters))})",
        "promise": _promise(header),
        "privacy unit": header.privacy_unit,
        "worst case": f"rho = {header.worst_case_rho:.4g}, epsilon = {header.epsilon:.4g} "
        f"at delta = {header.delta:g}",
        "attacker": f"right in at most {header.attacker_accuracy:.2%} of cases (50% is guessing)",
        "groups": f"{header.key_set_size:,}",
        **(
            {"key set": _selection(json.loads(header.key_set_selection))}
            if header.key_set_selection
            else {}
        ),
        "input": header.input,
        **({"snapshot": header.input_snapshot} if header.input_snapshot else {}),
        "counts": header.output,
        **places,
    }
    if header.fixed_release_key:
        shown["WARNING"] = "made with a fixed release key, for tests only: do not publish it"
    width = max(map(len, shown))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown.items())


def _promise(header: AuditHeader) -> str:
    if header.relative_error is None:
        return "not stated"
    return f"expected error below {header.relative_error:g} x max(count, {header.floor:g})"


def released_rows(groups: pa.Table, most: int) -> str:
    """Return the first released counts with their keys and intervals as lines of columns.

    Parameters
    ----------
    groups
        The groups of a public audit, of which the budget columns are left out.
    most
        How many rows to show.
    """
    end = groups.column_names.index("upper") + 1
    shown = groups.select(groups.column_names[:end]).slice(0, most)
    keys = len(shown.column_names) - 3
    columns = [
        _column(name, shown[name].to_pylist(), is_count=position >= keys)
        for position, name in enumerate(shown.column_names)
    ]
    return "\n".join("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def _column(name: str, values: list[Any], is_count: bool) -> list[str]:
    show = _count if is_count else _key
    cells = [name, *map(show, values)]
    width = max(map(len, cells))
    is_text = any(isinstance(value, str) for value in values)
    return [cell.ljust(width) if is_text else cell.rjust(width) for cell in cells]


def _count(value: float) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _key(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return value.hex()
    # A line break or a control character in a key must not break the columns or the terminal.
    return "".join(part if part.isprintable() else repr(part)[1:-1] for part in str(value))
