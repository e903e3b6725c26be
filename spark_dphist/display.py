"""Plans and audits as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from spark_dphist.audit import AuditHeader
from spark_dphist.plan import Plan, PlanRow


def plan_view(plan: Plan) -> RenderableType:
    """Show a plan, the worst case first."""
    table = Table(title="By group size (records in the group)", title_justify="left")
    for heading in ("records", "expected error", "promised below", "rho", "epsilon", "attacker"):
        table.add_column(heading, justify="right")
    for row in plan.rows:
        table.add_row(*_cells(row))
    return Group(*_head(plan), table, *_coefficients(plan), *_warnings(plan))


def _head(plan: Plan) -> Iterator[Text]:
    worst = plan.worst_case
    parameters = ", ".join(f"{name} = {value}" for name, value in _shown_parameters(plan))
    yield Text.assemble(
        ("Worst case, for everyone: ", "bold"),
        f"rho = {worst.rho:.4g}, epsilon = {worst.epsilon:.4g} at delta = {plan.delta:g}, "
        f"best attacker right in {worst.attacker_accuracy:.2%} of cases (50 % is guessing)",
    )
    yield Text(
        f"Promise: expected error below {plan.relative_error:g} x max(count, "
        f"{plan.mechanism.floor:g}); published counts are "
        f"{'rounded to integers' if plan.rounding == 'nearest' else 'not rounded'}"
    )
    yield Text(f"Mechanism: {plan.mechanism.name} ({parameters})")


def _shown_parameters(plan: Plan) -> Iterator[tuple[str, str]]:
    for name, value in plan.mechanism.parameters().items():
        yield name, f"{value:.6g}" if isinstance(value, float) else str(value)


def _cells(row: PlanRow) -> list[str]:
    return [
        f"{row.count:,}",
        f"{row.expected_error:,.4g}",
        f"{row.promised_error:,.4g}",
        f"{row.rho:.4g}",
        f"{row.epsilon:.4g}",
        f"{row.attacker_accuracy:.2%}",
    ]


def _coefficients(plan: Plan) -> Iterator[Text]:
    for name, value in plan.coefficients.items():
        yield Text(f"n² rho(n) for large n, {name}: {value:.4g}")


def _warnings(plan: Plan) -> Iterator[Text]:
    for warning in plan.warnings:
        yield Text.assemble(("Warning: ", "bold yellow"), warning)


def header_view(header: AuditHeader) -> RenderableType:
    """Show the header of a public audit."""
    table = Table(show_header=False, title=f"Audit of {header.release_id}", title_justify="left")
    for name in (
        "input",
        "output",
        "key_set_size",
        "mechanism",
        "parameters",
        "relative_error",
        "floor",
        "privacy_unit",
        "worst_case_rho",
        "epsilon",
        "delta",
        "attacker_accuracy",
        "fixed_release_key",
    ):
        table.add_row(name, str(getattr(header, name)))
    return table
