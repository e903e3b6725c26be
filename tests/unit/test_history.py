"""Budgets of releases of the same groups add up, group by group and for everyone."""

import dataclasses
import datetime
import json
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_audit import example_header

from spark_dphist.accounting.composition import Rho
from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.audit import BUDGET_COLUMNS, PublicAudit, audit_groups, selection_json
from spark_dphist.cli import main
from spark_dphist.errors import ConfigurationError
from spark_dphist.history import group_history, read_audit
from spark_dphist.mechanisms import Constant, LinearLog, ShiftedLog

FIRST = ShiftedLog.calibrate(relative_error=0.3, floor=20)
SECOND = LinearLog.calibrate(relative_error=0.2, floor=50)
KEYS = {"city": ["Oslo", None, "Rome", ""], "month": pa.array([1, 2, None, 4], pa.int32())}


def released(noisy, width, keys=KEYS):
    noisy = np.array(noisy)
    return pa.table(
        {
            **keys,
            "noisy_count": noisy,
            "lower": np.maximum(noisy - width, 0),
            "upper": noisy + width,
        }
    )


def audit_of(mechanism, table, release_id, hour=0, **changes):
    header = example_header(
        release_id=release_id,
        created_at=datetime.datetime(2024, 5, 6, hour, tzinfo=datetime.UTC),
        mechanism=mechanism.name,
        worst_case_rho=mechanism.worst_case_budget(),
        key_set_size=table.num_rows,
        **changes,
    )
    return PublicAudit(header, audit_groups(table, mechanism, header.records_per_group))


def shuffled(table):
    return table.take([2, 0, 3, 1])


@pytest.fixture
def audits():
    return [
        audit_of(SECOND, shuffled(released([120, 30, 0, 900], 20)), "tuesday", 1),
        audit_of(FIRST, released([100, 40, 3, 1000], 10), "monday", 0),
    ]


def test_budgets_at_the_released_counts_add_up_whatever_the_order_of_the_rows(audits):
    composed = group_history(audits)
    assert [header.release_id for header in composed.releases] == ["monday", "tuesday"]
    rows = {(row["city"], row["month"]): row for row in composed.groups.to_pylist()}
    assert list(rows) == [("", 4), ("Oslo", 1), ("Rome", None), (None, 2)]
    expected = {
        ("Oslo", 1): FIRST.budget(100) + SECOND.budget(120),
        (None, 2): FIRST.budget(40) + SECOND.budget(30),
        ("Rome", None): FIRST.budget(3) + SECOND.budget(0),
        ("", 4): FIRST.budget(1000) + SECOND.budget(900),
    }
    for key, total in expected.items():
        assert rows[key]["rho_at_noisy_count"] == pytest.approx(float(total), rel=1e-14)
    oslo = rows["Oslo", 1]
    assert oslo["rho_upper"] == pytest.approx(float(FIRST.budget(90) + SECOND.budget(100)))
    assert oslo["rho_lower"] == pytest.approx(float(FIRST.budget(110) + SECOND.budget(140)))


def test_the_bracket_holds_the_composed_budget_where_all_intervals_hold_the_count():
    counts = np.array([100, 40, 3, 1000])
    made = [
        audit_of(mechanism, released(counts + shift, 5), name, hour)
        for hour, (mechanism, shift, name) in enumerate(
            [(FIRST, 2, "a"), (SECOND, -3, "b"), (FIRST, 4, "c")]
        )
    ]
    composed = group_history(made).groups.sort_by("month")
    realised = 2 * FIRST.budget(counts) + SECOND.budget(counts)
    realised = realised[[0, 1, 3, 2]]  # NULL months last
    assert np.all(composed["rho_lower"].to_numpy() <= realised)
    assert np.all(realised <= composed["rho_upper"].to_numpy())


def test_the_bound_for_everyone_is_the_exact_sum_of_the_worst_cases(audits):
    composed = group_history(audits)
    worst = [audit.header.worst_case_rho for audit in audits]
    assert composed.everyone == Rho.upper(worst[0]) + Rho.upper(worst[1])
    top = float(np.max(composed.groups["rho_upper"].to_numpy()))
    assert top <= composed.everyone.float_upper() * (1 + 1e-12)


def test_the_brackets_confidence_falls_with_the_number_of_releases(audits):
    assert group_history(audits[:1]).confidence == pytest.approx(0.95, abs=1e-12)
    both = group_history(audits).confidence
    assert both <= 0.9
    assert both == pytest.approx(0.9, abs=1e-12)
    many = [
        audit_of(FIRST, released([1, 2, 3, 4], 1), f"r{number}", confidence=0.5)
        for number in range(4)
    ]
    assert group_history(many).confidence == 0


def test_sums_are_rounded_outwards_and_zeros_stay_zero(audits):
    single = group_history(audits[:1]).groups.sort_by("month")
    given = audits[0].groups.sort_by("month")
    assert np.all(single["rho_upper"].to_numpy() >= given["rho_upper"].to_numpy())
    assert np.all(single["rho_lower"].to_numpy() <= given["rho_lower"].to_numpy())
    free = [audit_of(Constant(floor=20), released([10] * 4, 5), name) for name in "ab"]
    for name in BUDGET_COLUMNS:
        assert set(group_history(free).groups[name].to_pylist()) == {0.0}


def test_what_learning_the_key_set_cost_comes_on_top_in_every_group_and_its_deltas_add_up():
    table = released([100, 40, 3, 1000], 10)
    selections = [KeySelection(epsilon=0.5, delta=1e-7), KeySelection(epsilon=0.1, delta=3e-9)]
    learnt = [
        audit_of(FIRST, table, f"learnt-{hour}", hour, key_set_selection=selection_json(each))
        for hour, each in enumerate(selections)
    ]
    declared = audit_of(SECOND, table, "declared", 3)
    composed = group_history([*learnt, declared])
    without = [audit.groups.sort_by("month") for audit in (*learnt, declared)]
    on_top = sum(selection.rho_upper for selection in selections)
    assert on_top > 0.1
    made = composed.groups.sort_by("month")
    for name in BUDGET_COLUMNS:
        noise = sum(each[name].to_numpy() for each in without)
        assert made[name].to_numpy() == pytest.approx(noise + on_top, rel=1e-13)
    for row in range(4):
        exact = [Fraction(each["rho_upper"][row].as_py()) for each in without]
        exact += [Fraction(each.rho_upper) for each in selections]
        assert Fraction(made["rho_upper"][row].as_py()) >= sum(exact)
    assert composed.key_set_delta == Rho.upper("1.03e-7")
    assert group_history([declared]).key_set_delta == Rho()


@pytest.mark.parametrize(
    "values",
    [
        [True, False, None],
        [datetime.date(2024, 1, 1), None, datetime.date(1999, 1, 1)],
        [Decimal("1.50"), None, Decimal("-2.25")],
        [b"\x00", b"", None],
        [datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), None, None],
        [2**63 - 1, -(2**63), None],
    ],
)
def test_keys_of_every_type_are_matched(values):
    keys = {"key": pa.array(values)}
    changes = {"group_columns": ["key"]}
    first = audit_of(FIRST, released([10, 200, 3000], 5, keys), "a", **changes)
    table = released([10, 200, 3000], 5, keys).take([2, 1, 0])
    if values.count(None) > 1:
        table = released([10, 200, 3000], 5, keys)
    composed = group_history([first, audit_of(FIRST, table, "b", **changes)])
    totals = sorted(composed.groups["rho_at_noisy_count"].to_pylist(), reverse=True)
    assert totals == pytest.approx([2 * float(FIRST.budget(n)) for n in (10, 200, 3000)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_columns": ["month", "city"]}, "differ in group columns"),
        ({"key_set_digest": "00" * 32}, "differ in the key set"),
        ({"dataset": "bikes"}, r"differ in the data set \(parquet data/visits and bikes\)"),
        ({"input": "parquet other"}, "differ in the data set"),
        ({"privacy_unit": "all records of one 'user'"}, "differ in the privacy unit"),
        ({"records_per_unit": 4}, "differ in the bound on a unit's records"),
        ({"release_id": "monday"}, "'monday' is given twice"),
    ],
)
def test_releases_of_other_groups_data_or_units_do_not_add(audits, changes, message):
    other = audit_of(SECOND, released([1, 2, 3, 4], 1), **{"release_id": "c", "hour": 3} | changes)
    with pytest.raises(ConfigurationError, match=message):
        group_history([audits[1], other])


def test_groups_that_were_changed_in_storage_are_noticed(audits):
    keys = {**KEYS, "city": ["Oslo", None, "Roma", ""]}
    changed = audit_of(SECOND, released([1, 2, 3, 4], 1, keys), "changed", 3)
    with pytest.raises(ConfigurationError, match="hold different groups"):
        group_history([audits[0], changed])


def test_nothing_and_an_audit_without_its_groups_are_refused(audits):
    with pytest.raises(ConfigurationError, match="no audit to compose"):
        group_history([])
    with pytest.raises(ConfigurationError, match="'monday' comes without its 4 groups"):
        group_history([PublicAudit(audits[1].header, None)])


# From storage, and on the command line


@pytest.fixture
def stored(audits, tmp_path):
    paths = []
    for audit in audits:
        stem = tmp_path / f"{audit.header.release_id}_audit"
        for suffix, table in (("_groups", audit.groups), ("_header", audit.header.to_arrow())):
            (folder := tmp_path / f"{stem.name}{suffix}").mkdir()
            pq.write_table(table, folder / "part-00000.parquet")
            (folder / "_SUCCESS").touch()
        paths.append(str(stem))
    return paths


def test_an_audit_is_read_as_it_was_written(audits, stored):
    for path, audit in zip(stored, audits, strict=True):
        for form in (path, path + "_groups", path + "_header/"):
            read = read_audit(form)
            assert read.header == audit.header
            assert read.groups.equals(audit.groups)


def test_what_is_no_audit_is_refused(tmp_path, stored):
    with pytest.raises(ConfigurationError, match=r"no audit at .*nowhere"):
        read_audit(str(tmp_path / "nowhere"))
    pq.write_table(pa.table({"x": [1]}), f"{stored[0]}_header/part-00000.parquet")
    with pytest.raises(ConfigurationError, match="not one that this version"):
        read_audit(stored[0])
    (tmp_path / "tuesday_audit_header" / "part-00000.parquet").write_text("nonsense")
    with pytest.raises(ConfigurationError, match="it is not Parquet"):
        read_audit(stored[0])


@pytest.fixture
def line(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(["history", *arguments])
        printed = capsys.readouterr()
        return SimpleNamespace(code=leaving.value.code or 0, out=printed.out, err=printed.err)

    return run


def test_the_command_line_shows_sums_bracket_and_the_bound_for_everyone(stored, line, audits):
    done = line(*stored, "--show", "2")
    assert done.code == 0
    assert done.out.index("monday") < done.out.index("tuesday")
    total = sum(audit.header.worst_case_rho for audit in audits)
    assert f"for everyone: rho = {total:.4g}" in done.out
    assert "probability 0.9 or more" in done.out.replace("\n", " ")
    assert "and 2 more groups" in done.out
    assert "Oslo" in done.out
    assert "Rome" not in done.out
    assert "NULL" in line(*stored).out


def test_the_command_line_gives_programs_every_group(stored, line, audits):
    read = json.loads(line(*stored, "--json").out)
    composed = group_history(audits)
    assert [release["release_id"] for release in read["releases"]] == ["monday", "tuesday"]
    assert Rho.upper(read["everyone_rho"]) == composed.everyone
    assert read["confidence"] == composed.confidence
    assert [group["key"] for group in read["groups"]] == [
        {"city": "", "month": 4},
        {"city": "Oslo", "month": 1},
        {"city": "Rome", "month": None},
        {"city": None, "month": 2},
    ]
    for name in BUDGET_COLUMNS:
        assert [group[name] for group in read["groups"]] == composed.groups[name].to_pylist()


def test_the_command_line_states_the_deltas_of_learnt_key_sets(audits, tmp_path, line):
    selection = selection_json(KeySelection(epsilon=0.5, delta=1e-7))
    stem = tmp_path / "learnt_audit"
    header = dataclasses.replace(audits[1].header, key_set_selection=selection)
    pq.write_table(audits[1].groups, f"{stem}_groups")
    pq.write_table(header.to_arrow(), f"{stem}_header")
    shown = " ".join(line(str(stem)).out.split())
    assert "learnt key sets add delta = 1e-07 for every unit" in shown
    assert json.loads(line(str(stem), "--json").out)["key_set_delta"] == "0.0000001"


def test_of_declared_key_sets_no_delta_is_shown(stored, line):
    assert "delta" not in line(*stored).out
    assert json.loads(line(*stored, "--json").out)["key_set_delta"] == "0"


def test_faults_leave_with_2_and_one_sentence(stored, line):
    done = line(stored[0], stored[0])
    assert done.code == 2
    assert done.err.startswith("Error: the audit of release 'tuesday' is given twice")
    assert "Traceback" not in done.err
