"""The pages in docs: generated reference, links, and tables that a plan can compute again."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_dphist.config import parse_configuration
from spark_dphist.plan import make_plan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md"])


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", DOCS / "reference" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration.md", "cli.md", "api.md"])
def test_the_reference_is_what_the_code_says_now(page: str) -> None:
    stored = (DOCS / "reference" / page).read_text(encoding="utf-8")
    made = reference().PAGES[page]()
    assert stored == made, "run: python docs/reference/make.py"


def test_a_field_without_a_meaning_stops_the_reference() -> None:
    module = reference()
    del module.MEANINGS["OutputSection"]["files"]
    with pytest.raises(SystemExit, match=r"OutputSection.*files"):
        module.configuration_page()


def anchors(page: Path) -> set[str]:
    """Return the anchors that forges make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} does not exist"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target} has no such heading"


def test_the_index_lists_every_page() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([^)#\s]+)", index))
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        assert name == "README.md" or name in linked, f"docs/README.md does not list {name}"


def test_the_worst_cases_are_those_of_plans() -> None:
    text = (DOCS / "choosing.md").read_text(encoding="utf-8")
    table = text[text.index("<!-- table: worst cases -->") :].split("\n\n")[0]
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \|(.*)\|$", table, re.MULTILINE)
    assert len(rows) == 6
    for relative_error, floor, cells in rows:
        off, rho, epsilon, right = (float(cell.strip(" %")) for cell in cells.split("|"))
        worst = plan_of(float(relative_error), float(floor)).worst_case
        assert off == pytest.approx(float(relative_error) * float(floor))
        assert worst.rho == pytest.approx(rho, rel=5e-3)
        assert worst.epsilon == pytest.approx(epsilon, rel=5e-3)
        assert 100 * worst.attacker_accuracy == pytest.approx(right, abs=0.05)


def plan_of(relative_error: float, floor: float) -> Any:
    content = {
        "input": {"path": "records"},
        "groups": {"columns": ["group"], "keys": {"product": {"group": [1]}}},
        "mechanism": {"name": "linear_log", "relative_error": relative_error, "floor": floor},
        "output": {"path": "out"},
    }
    return make_plan(parse_configuration(content, "docs"))


@pytest.mark.parametrize("page", ["tutorial.md"])
def test_whole_configurations_in_a_page_are_valid(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- file: (\S+) -->\n```toml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for name, block in blocks:
        assert make_plan(parse_configuration(tomllib.loads(block), name)).warnings == ()
