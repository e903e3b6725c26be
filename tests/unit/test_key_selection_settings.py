"""A learnt key set as a configuration states it, a plan prices it and people read it."""

import doctest
import io
import json
from pathlib import Path

import pytest
from example_audit import example_header
from rich.console import Console

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.audit import AuditHeader, selection_json
from spark_dphist.comparison import compare_mechanisms
from spark_dphist.config import parse_configuration
from spark_dphist.display import header_lines, plan_view
from spark_dphist.errors import ConfigurationError
from spark_dphist.plan import make_plan
from spark_dphist.targets import find_target


def content(select, **privacy):
    return {
        "input": {"path": "visits.parquet"},
        "groups": {"columns": ["city", "month"], "keys": {"select": select}},
        "mechanism": {"name": "linear_log", "relative_error": 0.3, "floor": 20},
        "privacy": privacy,
        "output": {"path": "out"},
    }


def parsed(select, **privacy):
    return parse_configuration(content(select, **privacy), "x.toml")


def message(given):
    with pytest.raises(ConfigurationError) as caught:
        parse_configuration(given, "x.toml")
    return str(caught.value)


def test_a_configuration_says_how_the_key_set_is_learnt():
    learnt = parsed({"epsilon": 0.5, "delta": 1e-7})
    assert learnt.selection == KeySelection(epsilon=0.5, delta=1e-7)
    select = {"epsilon": 1, "delta": 1e-8, "groups_per_unit": 4}
    assert parsed(select, unit="user", max_records=9).selection.groups_per_unit == 4


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (content({"epsilon": 0.5}), ["groups.keys.select.delta", "missing"]),
        (content({"epsilon": 0, "delta": 1e-7}), ["groups.keys.select: ", "epsilon", "got 0"]),
        (content({"epsilon": 0.5, "delta": 1e-6}), ["must be below privacy.delta = 1e-06"]),
        (
            content({"epsilon": 0.5, "delta": 1e-7, "groups_per_unit": 3}),
            ["needs the column that tells units apart", "privacy.unit"],
        ),
        (
            content({"epsilon": 0.5, "delta": 1e-7, "group_per_unit": 3}),
            ["groups.keys.select.group_per_unit", "Did you mean 'groups_per_unit'?"],
        ),
        (
            {
                **content({}),
                "groups": {
                    "columns": ["city"],
                    "keys": {"table": "cities", "select": {"epsilon": 1.0, "delta": 1e-7}},
                },
            },
            ["learn it from the data by 'select'", "got 'table' and 'select'"],
        ),
    ],
)
def test_a_selection_that_cannot_be_is_refused_with_its_place_and_the_mend(given, parts):
    got = message(given)
    for part in parts:
        assert part in got


def test_a_plan_shows_the_selection_apart_and_in_the_worst_case_and_warns_of_the_keys():
    plan = make_plan(parsed({"epsilon": 0.5, "delta": 1e-7}))
    alone = read_worst_case(plan.mechanism, plan.privacy_unit, 1e-6)
    assert plan.worst_case.rho > alone.rho + 0.12
    assert plan.cost().rho_upper >= Rho.upper(plan.worst_case.rho) or (
        plan.cost().rho_upper.float_upper() == pytest.approx(plan.worst_case.rho, rel=1e-12)
    )
    assert plan.cost().delta == Rho.upper("1e-7")
    (warning,) = [each for each in plan.warnings if "'city', 'month'" in each]
    assert "become public" in warning
    stated = json.loads(plan.to_json())["key_set_selection"]
    assert stated == plan.selection.parameters()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(plan_view(plan))
    shown = " ".join(console.export_text().split())
    assert "Key set: learnt with epsilon = 0.5, delta = 1e-07, 1 group(s) of a unit" in shown
    assert f"a group of {stated['count_kept_half_the_time']} units is kept half" in shown
    declared = content({})
    declared["groups"]["keys"] = {"table": "cities"}
    plain = make_plan(parse_configuration(declared, "x.toml"))
    assert json.loads(plain.to_json())["key_set_selection"] is None
    assert not any("become public" in each for each in plain.warnings)


def test_a_selection_that_takes_most_of_a_weak_budget_is_blamed_for_it():
    plan = make_plan(parsed({"epsilon": 2.0, "delta": 1e-7}))
    worst, taken = plan.worst_case.rho, plan.selection.rho_upper
    assert worst - taken < 0.5 < 1 < worst
    little, _ = plan.warnings
    assert f"rho = {worst:.3g}, which is little privacy" in little
    assert f"Learning the key set takes {taken:.3g} of it" in little
    assert "Lower the selection's epsilon, or declare the key set." in little
    assert "smallest groups" not in little
    assert "floor" not in little


def test_small_groups_that_take_most_of_a_weak_budget_are_blamed_for_it():
    given = content({"epsilon": 0.5, "delta": 1e-7})
    given["mechanism"]["floor"] = 1
    plan = make_plan(parse_configuration(given, "x.toml"))
    assert plan.worst_case.rho - plan.selection.rho_upper > 1
    little = plan.warnings[0]
    assert f"rho = {plan.worst_case.rho:.3g}, which is little privacy" in little
    assert f"takes {plan.selection.rho_upper:.3g} of it" in little
    assert "Raise the floor" in little
    assert "Lower the selection's epsilon" not in little


def test_a_comparison_has_the_selection_in_every_worst_case_as_a_plan_has():
    learnt = parsed({"epsilon": 2.0, "delta": 1e-7})
    plan, compared = make_plan(learnt), compare_mechanisms(learnt)
    assert compared.rho == plan.worst_case.rho
    for candidates in (compared.equal_promise, compared.equal_budget):
        made = {candidate.name: candidate.worst_case for candidate in candidates}
        assert made["linear_log"] == plan.worst_case
        for worst in filter(None, made.values()):
            assert worst.rho >= plan.selection.rho_upper
    for candidate in compared.equal_budget:
        if candidate.worst_case and candidate.name != "constant":
            assert candidate.worst_case.rho == pytest.approx(compared.rho, rel=1e-5)
            assert candidate.worst_case.rho <= compared.rho


def test_an_audit_header_keeps_and_shows_how_the_key_set_was_learnt():
    selection = KeySelection(epsilon=0.5, delta=1e-7, groups_per_unit=3)
    learnt = example_header(key_set_selection=selection_json(selection))
    assert AuditHeader.from_arrow(learnt.to_arrow()) == learnt
    shown = " ".join(header_lines(learnt, {}).split())
    assert "key set learnt with epsilon = 0.5, delta = 1e-07, 3 group(s)" in shown
    assert "by gaussian_threshold" in shown
    declared = example_header()
    assert "key set" not in header_lines(declared, {})
    # As an older version stored it.
    stored = declared.to_arrow().drop_columns(["key_set_selection"])
    assert AuditHeader.from_arrow(stored) == declared


def test_the_numbers_of_the_documentation_are_those_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "key-selection.md"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted >= 3
    assert failed == 0


def test_the_best_promise_within_a_cap_pays_for_the_key_set_first():
    learnt = parsed({"epsilon": 0.5, "delta": 1e-7})
    found = find_target(learnt, "relative_error", Rho.lower("0.2"))
    assert make_plan(found.configuration).cost().rho_upper == found.rho <= Rho.lower("0.2")
    assert found.refused_rho > Rho.lower("0.2")
    with pytest.raises(ConfigurationError, match=r"learning the key set alone costs rho = 0\.1225"):
        find_target(learnt, "floor", Rho.lower("0.12"))
