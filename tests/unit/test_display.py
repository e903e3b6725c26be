"""What a terminal of 80 columns shows can be read, and copied from."""

import datetime
import decimal
import io

import pyarrow as pa
import pytest
from example_audit import example_header
from rich.console import Console

from spark_dphist.config import parse_configuration
from spark_dphist.display import header_lines, plan_view, released_rows
from spark_dphist.plan import make_plan

LONG_PATH = "/very/long" * 20 + "/[bold]visits[/]"


def shown_plan(width=80, **mechanism):
    content = {
        "input": {"path": "x"},
        "groups": {"columns": ["a"], "keys": {"tuples": [[1]]}},
        "mechanism": mechanism,
        "output": {"path": "y"},
    }
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(plan_view(make_plan(parse_configuration(content, "x.toml"))))
    return console.export_text()


def header(**changes):
    return example_header(**{"input": f"parquet {LONG_PATH}", "output": LONG_PATH} | changes)


def test_a_plan_starts_with_the_worst_case_and_fits_80_columns():
    text = shown_plan(relative_error=0.1, floor=50)
    assert text.startswith("Worst case, for everyone: rho = 0.04986, epsilon = 1.")
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "Warning" not in text


@pytest.mark.parametrize(
    "cells",
    [
        ["1 ", "1.682", "5", "0.04986", "56.27%"],
        ["50 ", "4.995", "5", "0.01284", "53.19%"],
        ["1,000,000", "50,002", "100,000", "1.271e-10", "50.00%"],
    ],
)
def test_a_plan_has_a_row_for_each_group_size(cells):
    lines = shown_plan(relative_error=0.1, floor=50).splitlines()
    assert any(all(cell in line for cell in cells) for line in lines)


def test_the_warnings_of_a_plan_are_shown():
    text = " ".join(shown_plan(relative_error=0.1, floor=1).split())
    assert text.count("Warning: ") == 2
    assert "rho = 61.1, which is little privacy" in text


def test_a_plan_of_a_constant_is_shown_too():
    text = shown_plan(name="constant", relative_error=1.5, floor=20)
    assert "rho = 0, epsilon = 0" in text
    assert "n² rho(n)" not in text


def test_the_header_puts_paths_whole_at_the_end_of_a_line():
    lines = header_lines(header(), {"audit": LONG_PATH + "_audit"}).splitlines()
    assert any(line.split("  ")[-1].strip() == f"parquet {LONG_PATH}" for line in lines)
    assert next(line for line in lines if line.startswith("counts")).endswith(f" {LONG_PATH}")
    assert lines[-1].startswith("audit")
    assert lines[-1].endswith(f" {LONG_PATH}_audit")


def test_the_header_says_what_was_promised_to_whom():
    text = header_lines(header(), {})
    assert "shifted_log (drift = minimal_error, floor = 50" in text
    assert "expected error below 0.1 x max(count, 50)" in text
    assert "rho = 0.04986, epsilon = 1.469 at delta = 1e-06" in text
    assert "12,345" in text
    assert "WARNING" not in text
    assert "privacy unit  record\n" in text
    assert "not stated" in header_lines(header(relative_error=None), {})


def test_a_fixed_release_key_is_shouted():
    assert "WARNING" in header_lines(header(fixed_release_key=True), {})


def groups(**keys):
    rows = len(next(iter(keys.values())))
    numbers = {
        "noisy_count": pa.array([1234567] * rows, pa.int64()),
        "lower": pa.array([0] * rows, pa.int64()),
        "upper": pa.array([7654321] * rows, pa.int64()),
    }
    rho = {name: [0.001] * rows for name in ("rho_at_noisy_count", "rho_lower", "rho_upper")}
    return pa.table(keys | numbers | rho)


def test_released_rows_have_keys_and_counts_and_no_budget_columns():
    text = released_rows(groups(origin=["EWR", "JFK"], carrier=["9E", "AA"], month=[1, 12]), 10)
    assert text.splitlines() == [
        "origin  carrier  month  noisy_count  lower      upper",
        "EWR     9E           1    1,234,567      0  7,654,321",
        "JFK     AA          12    1,234,567      0  7,654,321",
    ]


def test_no_more_rows_than_asked_for_are_shown():
    assert len(released_rows(groups(month=list(range(100))), 7).splitlines()) == 8
    assert len(released_rows(groups(month=[1, 2]), 7).splitlines()) == 3
    assert len(released_rows(groups(month=pa.array([], pa.int64())), 7).splitlines()) == 1


def test_keys_of_every_type_are_readable_and_null_is_no_text():
    shown = released_rows(
        groups(
            text=["NULL", None],
            number=pa.array([None, 2**53 + 1], pa.int64()),
            flag=[True, None],
            day=[datetime.date(2013, 1, 1), None],
            price=[decimal.Decimal("1.10"), None],
            digest=[b"\x00\xff", None],
        ),
        2,
    ).splitlines()
    assert shown[1].split()[:6] == ["NULL", "NULL", "True", "2013-01-01", "1.10", "00ff"]
    assert shown[2].split()[:6] == ["NULL", "9007199254740993", "NULL", "NULL", "NULL", "NULL"]


def test_a_key_cannot_break_the_lines_or_command_the_terminal():
    text = released_rows(groups(city=["a\nb\t\x1b[31m", "[bold]x[/]", "Ålesund"]), 3)
    assert len(text.splitlines()) == 4
    assert "\x1b" not in text
    assert r"a\nb\t\x1b[31m" in text
    assert "[bold]x[/]" in text
    assert "Ålesund" in text


def test_unrounded_counts_are_shown_with_two_decimals():
    table = pa.table({"key": [1], "noisy_count": [1234.567], "lower": [0.0], "upper": [2e6]})
    assert released_rows(table, 1).splitlines()[1].split() == [
        "1",
        "1,234.57",
        "0.00",
        "2,000,000.00",
    ]
