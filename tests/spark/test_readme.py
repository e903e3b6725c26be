"""The README's examples do what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from spark_dphist.config import load_configuration, parse_configuration
from spark_dphist.plan import make_plan

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def flights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    origins = ["EWR"] * 300 + ["JFK"] * 200 + ["SFO"] * 10
    pd.DataFrame({"origin": origins}).to_parquet(tmp_path / "data" / "flights.parquet")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("flights", "spark")
def test_the_notebook_example_releases_the_declared_groups() -> None:
    (example,) = code_blocks("python")
    assert len(example.strip().splitlines()) <= 16

    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - the README's own code

    released = {row["origin"]: row for row in names["release"].counts.collect()}  # type: ignore[attr-defined]
    assert set(released) == {"EWR", "JFK", "LGA"}
    # The key is fresh: noise leads out of these bounds with probability below 1e-14.
    assert 150 < released["EWR"]["noisy_count"] < 500
    assert released["LGA"]["lower"] <= released["LGA"]["noisy_count"] < 50


def test_the_configuration_example_is_valid_and_says_what_it_costs() -> None:
    (example,) = code_blocks("toml")

    plan = make_plan(parse_configuration(tomllib.loads(example), "README.md"))

    assert plan.mechanism.name == "linear_log"
    assert plan.privacy_unit.max_records == 20


def test_the_table_of_budgets_is_what_plan_computes() -> None:
    table = README[README.index("| records in the group |") :].split("\n\n")[0]
    heading, *rows = re.findall(r"^\| (records in the group|[\d,]+) \|(.*)\|$", table, re.MULTILINE)
    names = re.findall(r"`(\w+)`", heading[1])
    assert names == ["fixed_gaussian", "shifted_log", "linear_log"]
    content = load_configuration(ROOT / "conf" / "flights.toml").model_dump(exclude_unset=True)
    assert len(rows) == 4
    for column, name in enumerate(names):
        content["mechanism"] = {"name": name, "relative_error": 0.1, "floor": 50.0}
        mechanism = make_plan(parse_configuration(content, "flights")).mechanism
        for count, cells in rows:
            shown = float(cells.split("|")[column])
            assert float(mechanism.budget(int(count.replace(",", "")))) == pytest.approx(
                shown, rel=5e-3
            )
