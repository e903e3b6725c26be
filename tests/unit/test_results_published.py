"""Metadata for programs, a card for people, and the commands that print what results say."""

import json
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from released_counts import released_audit

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.audit import AuditHeader, PublicAudit, selection_json
from spark_dphist.card import card
from spark_dphist.cli import main
from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.metadata import metadata, metadata_json, metadata_schema
from spark_dphist.results.changes import changes
from spark_dphist.results.totals import totals

SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "release-metadata.schema.json"
KEYS = {"city": ["Oslo", None, "Rome"], "month": pa.array([1, 2, None], pa.int32())}


def audit_named(name="january", counts=(1000, 5, 300), **changed):
    mechanism = calibrate("shifted_log", relative_error=0.1, floor=50)
    return released_audit(mechanism, KEYS, np.array(counts), name, **changed)


def test_the_published_schema_is_the_one_that_metadata_follows():
    remade = metadata_schema()
    assert SCHEMA.read_text() == remade, (
        "remake it: python -c 'from spark_dphist.metadata import metadata_schema; "
        f'print(metadata_schema(), end="")\' > docs/schemas/{SCHEMA.name}'
    )
    jsonschema.Draft202012Validator.check_schema(json.loads(remade))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rounding": "none", "dataset": "visits", "relative_error": None},
        {"key_set_selection": json.dumps({"epsilon": 1.0}), "fixed_release_key": True},
    ],
)
def test_metadata_is_valid_json_of_that_schema_and_says_all_that_the_header_says(changed):
    audit = audit_named(**changed)
    read = json.loads(metadata_json(audit))
    jsonschema.validate(read, json.loads(SCHEMA.read_text()))
    assert set(AuditHeader.__annotations__) <= set(read)
    for name in ("release_id", "worst_case_rho", "key_set_digest", "privacy_unit", "confidence"):
        assert read[name] == getattr(audit.header, name)
    assert read["parameters"] == json.loads(audit.header.parameters)
    assert read["created_at"] == "2024-05-06T07:08:09.123456Z"


def test_metadata_describes_every_column():
    columns = {each["name"]: each for each in metadata(audit_named())["columns"]}
    assert list(columns) == audit_named().groups.column_names
    assert columns["month"]["type"] == "int32"
    assert [name for name, each in columns.items() if each["role"] == "key"] == ["city", "month"]
    assert metadata(PublicAudit(audit_named().header, None))["columns"] is None


def test_a_program_that_expects_the_schema_refuses_other_json():
    read = metadata(audit_named())
    for broken in ({**read, "worst_case_rho": "small"}, {**read, "seed": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, json.loads(SCHEMA.read_text()))


def test_a_card_says_what_for_whom_how_to_use_it_and_what_not():
    text = card(audit_named())
    for heading in ("What it is", "Whom it protects", "How to use it", "What it does not do"):
        assert f"## {heading}" in text
    header = audit_named().header
    for said in (header.key_set_digest, header.counts_digest, "`city`, `month`", "epsilon = 1.469"):
        assert said in text
    assert "biased (about -0.2% in large groups" in text
    assert "nobody adds up what several releases cost" in text
    assert "for tests only" not in text


def test_a_card_says_that_a_learnt_key_set_costs_every_member_more():
    selection = selection_json(KeySelection(epsilon=0.5, delta=1e-7))
    text = card(audit_named("x", key_set_selection=selection))
    assert "comes on top of it for every member" in text
    assert "rho = 0.1225 and delta = 10⁻⁷, comes" in text
    assert "comes on top" not in card(audit_named())


def test_a_card_warns_and_cannot_be_broken_by_names():
    text = card(
        audit_named("x", fixed_release_key=True, release_name="a|b <script> *x*", input="table `a`")
    )
    assert (
        "> **made with a fixed release key, for tests only: this release is not private**" in text
    )
    assert text.startswith("# a\\|b \\<script\\> \\*x\\*")
    assert "`` table `a` ``" in text


@pytest.mark.parametrize("name", ["linear_log", "fixed_gaussian", "constant"])
def test_every_mechanism_has_a_card(name):
    relative_error = 1.0 if name == "constant" else 0.1
    mechanism = calibrate(name, relative_error=relative_error, floor=50)
    text = card(released_audit(mechanism, KEYS, np.array([1000, 5, 300]), "y"))
    said = "say nothing of the data" if name == "constant" else "about"
    assert said in text
    assert ("about nothing" in text) == (name == "fixed_gaussian")


# The command line


@pytest.fixture
def stored(tmp_path):
    paths = []
    for name, counts in (("january", (1000, 5, 300)), ("february", (1500, 9, 100))):
        audit = audit_named(name, counts)
        for suffix, table in (("_groups", audit.groups), ("_header", audit.header.to_arrow())):
            (folder := tmp_path / f"{name}_audit{suffix}").mkdir()
            pq.write_table(table, folder / "part-00000.parquet")
        paths.append(str(tmp_path / f"{name}_audit"))
    return paths


@pytest.fixture
def line(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as leaving:
            main(list(arguments))
        printed = capsys.readouterr()
        return SimpleNamespace(code=leaving.value.code or 0, out=printed.out, err=printed.err)

    return run


def test_totals_and_changes_are_printed_for_people_and_for_programs(stored, line):
    audits = [audit_named(), audit_named("february", (1500, 9, 100))]
    done = line("total", stored[0], "--by", "city", "--show", "2")
    assert done.code == 0
    assert "Oslo" in done.out
    assert "and 1 more" in done.out
    read = json.loads(line("total", stored[0], "--json", "--confidence", "0.5").out)
    assert read == totals(audits[0], confidence=0.5).to_pylist()
    read = json.loads(line("compare-releases", *stored, "--json").out)
    assert [row["difference"] for row in read] == changes(*audits)["difference"].to_pylist()
    assert read[0]["key"] == {"city": "Oslo", "month": 1}
    assert "NULL" in line("compare-releases", *stored).out


def test_metadata_and_card_are_printed_as_they_are(stored, line):
    assert json.loads(line("metadata", stored[0]).out) == metadata(audit_named())
    assert line("card", stored[0]).out == card(audit_named())


def test_faults_leave_with_2_and_one_sentence(stored, line):
    done = line("total", stored[0], "--by", "citty")
    assert (done.code, done.out) == (2, "")
    assert "Did you mean 'city'" in done.err
    assert line("compare-releases", stored[0], stored[0]).code == 2
