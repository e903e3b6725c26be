"""One configuration for every interval: what is counted, where it goes and the id follow it."""

from __future__ import annotations

import datetime
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import pytest
from example_policy import GROUPS_AND_MECHANISM
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist import cli
from spark_dphist.cli import main
from spark_dphist.config import load_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.intervals import (
    Interval,
    load_for_interval,
    parse_interval,
    refuse_unfinished,
)

TEMPLATE = f"""
name = "visits"
[input]
path = "lake/visits"
where.day = {{ from = @FROM@, before = @BEFORE@ }}
{GROUPS_AND_MECHANISM}
[output]
path = "public/visits-@INTERVAL@"
"""
days = st.dates(min_value=datetime.date(1001, 1, 1), max_value=datetime.date(2999, 12, 31))
kinds = st.sampled_from(["year", "month", "day"])


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "visits.toml"
    file.write_text(TEMPLATE, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("text", "name", "first", "before"),
    [
        ("2026", "2026", "2026-01-01", "2027-01-01"),
        ("2026-02", "2026-02", "2026-02-01", "2026-03-01"),
        ("2026-12", "2026-12", "2026-12-01", "2027-01-01"),
        ("2028-02-29", "2028-02-29", "2028-02-29", "2028-03-01"),
        ("month before 2026-02-03", "2026-01", "2026-01-01", "2026-02-01"),
        ("month before 2026-01-01", "2025-12", "2025-12-01", "2026-01-01"),
        ("day before 2028-03-01", "2028-02-29", "2028-02-29", "2028-03-01"),
        ("year before 2026-12-31", "2025", "2025-01-01", "2026-01-01"),
    ],
)
def test_an_interval_is_named_or_is_the_last_one_before_a_day(
    text: str, name: str, first: str, before: str
) -> None:
    interval = parse_interval(text)
    assert (interval.name, str(interval.first), str(interval.before)) == (name, first, before)


@pytest.mark.parametrize(
    "text",
    [
        *["", "26-01", "2026-1", "2026-13", "2026-02-30", "2026-01-01T05", "0001-01", "2026-01\n"],
        *["../2026-01", "2026-01; rm", '2026-01"', "２０２６-01", "last month", "2026-W05"],
        *["month before 2026-02", "month before", "Month before 2026-02-03", "@INTERVAL@"],
        *["week before 2026-02-03", "month before 2026-02-30", "{{job.parameters.interval}}"],
    ],
)
def test_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigurationError, match="such as 2026, 2026-01 or 2026-01-31"):
        parse_interval(text)


@given(days, kinds)
def test_intervals_of_a_kind_follow_each_other_without_a_gap(day: datetime.date, kind: str) -> None:
    last = parse_interval(f"{kind} before {day}")
    assert parse_interval(last.name) == last
    assert last.first < last.before <= day < Interval(kind, last.before).before


def test_a_template_gives_each_interval_its_records_its_place_and_its_id(template: Path) -> None:
    january = load_for_interval(template, "2026-01")
    assert january.release_id == "visits-2026-01"
    assert january.input.counted == (
        "parquet lake/visits where day from 2026-01-01 before 2026-02-01"
    )
    assert january.output.path == "public/visits-2026-01"
    assert load_for_interval(template, "month before 2026-02-28") == january


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("where.day", "# where.day", r"same \[input\] in every interval: select"),
        ("visits-@INTERVAL@", "visits", r"same \[output\] in every interval: give"),
        ('name = "visits"', 'release_id = "x-@INTERVAL@"', "'release_id'.*leave it out"),
        ("floor = 50", "floor = @FLOOR@", "is not TOML"),
        ("where.day", 'options.label = "@INTERVAL@" # where.day', r"the same \[input\]"),
        ('visits-@INTERVAL@"', 'visits"\noptions.label = "@INTERVAL@"', r"the same \[output\]"),
        ("[output]", '[audit]\npath = "public/audit"\n[output]', r"the same \[audit\]"),
        ("[output]", '[audit]\ntable = "audit"\n[output]', r"the same \[audit\]"),
        ("[output]", '[confidential_audit]\npath = "vault"\n[output]', "_audit\\] in every"),
        ('"visits"', f'"{"x" * 125}"', "visits.toml' is not valid:\n.*release_id"),
    ],
)
def test_a_template_that_would_count_or_publish_the_same_again_is_refused(
    template: Path, old: str, new: str, said: str
) -> None:
    template.write_text(TEMPLATE.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        load_for_interval(template, "2026-01")


def test_audits_of_each_interval_are_as_good_as_those_beside_the_output(template: Path) -> None:
    audits = (
        '[audit]\npath = "public/audit-@INTERVAL@"\n'
        '[confidential_audit]\npath = "vault/@INTERVAL@"\n[output]'
    )
    template.write_text(TEMPLATE.replace("[output]", audits), encoding="utf-8")
    assert load_for_interval(template, "2026-01").audit.path == "public/audit-2026-01"


def test_the_last_interval_that_a_template_can_have_is_as_good_as_the_others(
    template: Path,
) -> None:
    days = 'columns = ["day"]\nkeys.product.day = { from = @FROM@, to = 2026-12-31 }'
    old = 'columns = ["region"]\nkeys.product.region = ["north", "south"]'
    template.write_text(TEMPLATE.replace(old, days), encoding="utf-8")
    assert load_for_interval(template, "2026-12-31").release_id == "visits-2026-12-31"


def test_decimal_edges_of_bins_survive_the_release_id(template: Path) -> None:
    bins = (
        'columns = ["price", "day"]\n'
        'bins.price = { column = "amount", edges = ["0.5", "1.5", "3"] }\n'
        "keys.product.day = [2026-01-01, 2026-01-02]"
    )
    old = 'columns = ["region"]\nkeys.product.region = ["north", "south"]'
    template.write_text(TEMPLATE.replace(old, bins), encoding="utf-8")
    configuration = load_for_interval(template, "2026-01")
    assert configuration.groups.bins["price"].edges == [Decimal("0.5"), Decimal("1.5"), Decimal(3)]


@pytest.mark.parametrize(
    ("now", "refused"),
    [
        ("2026-01-15T00:00+00:00", True),
        ("2026-01-31T09:59+00:00", True),
        # The first of February on Kiritimati.
        ("2026-01-31T10:00+00:00", False),
        ("2026-02-01T00:00+14:00", False),
        ("2026-01-31T23:59-12:00", False),
        ("2026-03-01T00:00+00:00", False),
    ],
)
def test_an_interval_is_refused_until_it_is_over_somewhere(now: str, refused: bool) -> None:
    for interval in ("2026-01", "month before 2026-02-03"):
        with (
            pytest.raises(ConfigurationError, match="2026-01 is not over before 2026-02-01")
            if refused
            else nullcontext()
        ):
            refuse_unfinished(interval, datetime.datetime.fromisoformat(now))


def test_a_run_refuses_an_unfinished_interval_and_warns_of_one_that_nothing_remembers(
    template: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: object) -> None:
        raise ConfigurationError("far enough")

    monkeypatch.setattr(cli, "make_plan", stop)
    for interval, said, goes_on in (
        ("2999-12", "interval 2999-12 is not over before 3000-01-01", False),
        ("2013-12", "without a [ledger] nothing remembers this interval", True),
    ):
        with pytest.raises(SystemExit) as left:
            cli.main(["run", str(template), "--interval", interval])
        assert left.value.code == 2
        error = " ".join(capsys.readouterr().err.split())
        assert said in error
        assert ("far enough" in error) is goes_on


def test_a_template_without_an_interval_is_named_as_one(template: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"template: it has @FROM@.*--interval 2026-01"):
        load_configuration(template)


def test_the_command_line_plans_an_interval(
    template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", str(template), "--interval", "month before 2026-02-03"])
    assert left.value.code == 0
    # The table may be wrapped anywhere.
    assert "day from 2026-01-01 before 2026-02-01" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["plan", "verify", "attack", "run", "report"])
def test_every_command_of_a_configuration_refuses_an_odd_interval(
    template: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, str(template), "--interval", "2026-01/.."])
    assert left.value.code == 2
    assert "interval: got '2026-01/..'" in capsys.readouterr().err


def test_the_report_looks_where_the_interval_was_published(
    template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, said in [
        ([str(template), "--interval", "2026-01"], "public/visits-2026-01_audit'"),
        (["public/visits", "--interval", "2026-01"], "'public/visits' is a release's path"),
    ]:
        with pytest.raises(SystemExit) as left:
            main(["report", *arguments])
        assert left.value.code == 2
        assert said in capsys.readouterr().err
