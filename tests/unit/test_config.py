"""Configurations as a new user gets them wrong: the message has place, got, expected and mend."""

import copy
import datetime
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.config import (
    ReleaseConfiguration,
    load_configuration,
    parse_configuration,
    with_release_id,
)
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import Constant, ShiftedLog

FLIGHTS = Path(__file__).parents[2] / "conf" / "flights.toml"
GOOD = {
    "input": {"path": "data/visits.parquet"},
    "groups": {
        "columns": ["city", "month"],
        "keys": {"product": {"city": ["Oslo", "Bergen"], "month": [1, 2]}},
    },
    "mechanism": {"relative_error": 0.2, "floor": 20},
    "output": {"path": "out/visits"},
}
ABSENT = object()


def changed(**fields):
    """GOOD with fields replaced; dots of a place are written as double underscores."""
    content = copy.deepcopy(GOOD)
    for place, value in fields.items():
        *sections, last = place.split("__")
        section = content
        for name in sections:
            section = section.setdefault(name, {})
        if value is ABSENT:
            del section[last]
        else:
            section[last] = value
    return content


def message(content, calibrated=False):
    """What the user reads."""

    def load():
        configuration = parse_configuration(content, "x.toml")
        return configuration.mechanism.calibrated() if calibrated else configuration

    with pytest.raises(ConfigurationError) as caught:
        load()
    return str(caught.value)


def test_the_shipped_configuration_is_valid_and_keeps_its_values():
    configuration = load_configuration(FLIGHTS)
    assert configuration.groups.columns == ["origin", "carrier", "month"]
    assert configuration.mechanism.calibrated().floor == 50
    assert configuration.privacy.delta == 1e-6
    assert configuration.output.rounding == "nearest"
    assert configuration.output.mode == "error"


def test_a_mechanism_gets_its_options_and_its_default_is_the_shifted_log():
    configuration = parse_configuration(
        changed(mechanism__shift=3, mechanism__drift="unbiased"), ""
    )
    mechanism = configuration.mechanism.calibrated()
    assert isinstance(mechanism, ShiftedLog)
    assert (mechanism.shift, mechanism.drift) == (3, "unbiased")
    constant = changed(mechanism__name="constant", mechanism__relative_error=1.5)
    assert isinstance(parse_configuration(constant, "").mechanism.calibrated(), Constant)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (changed(inptu={}), ["inptu: unknown field", "Did you mean 'input'?"]),
        (changed(output__fils=2), ["output.fils: unknown field", "Did you mean 'files'?"]),
        (changed(privacy__delat=1e-9), ["privacy.delat: unknown", "Did you mean 'delta'?"]),
        (
            changed(groups__keys__product__city={"values": ["Oslo"], "include_nul": True}),
            ["groups.keys.product.city.include_nul: unknown", "Did you mean 'include_null'?"],
        ),
        (changed(spark__setings={}), ["spark.setings: unknown", "Did you mean 'settings'?"]),
        (changed(audit__pth="x"), ["audit.pth: unknown", "Did you mean 'path'?"]),
        (changed(groups__key={}), ["groups.key: unknown", "Did you mean 'keys'?"]),
        (changed(mechanism__name="shifted_lg"), ["mechanism: ", "Did you mean 'shifted_log'?"]),
        (changed(mechanism__shfit=2), ["mechanism: 'shfit' is no", "Did you mean 'shift'?"]),
        (
            changed(mechanism__relativ_error=0.1),
            ["mechanism: 'relativ_error' is no", "Did you mean 'relative_error'?"],
        ),
        (
            changed(mechanism__relativ_error=0.1, mechanism__relative_error=ABSENT),
            [
                "mechanism.relative_error: missing",
                "Rename 'relativ_error' to 'relative_error'?",
            ],
        ),
        (
            changed(mechanism__drift="unbaised"),
            ["mechanism.drift", "got 'unbaised'", "Did you mean 'unbiased'?"],
        ),
        (
            changed(mechanism__method="exakt"),
            ["mechanism.method", "'closed_form'", "got 'exakt'", "Did you mean 'exact'?"],
        ),
        (
            changed(mechanism__name="constant", mechanism__relative_error=1, mechanism__shift=2),
            ["'shift' is no option of the mechanism 'constant'", "'floor'"],
        ),
        (changed(output__rounding="neares"), ["output.rounding", "Did you mean 'nearest'?"]),
        (changed(output__mode="append"), ["output.mode", "'error' or 'overwrite'", "'append'"]),
    ],
)
def test_a_misspelt_name_gets_its_place_and_the_nearest_name(content, parts):
    got = message(content)
    for part in parts:
        assert part in got


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (changed(mechanism__relative_error="0.1"), ["a number, got '0.1'", "Remove the quotes"]),
        (changed(mechanism__relative_error=True), ["relative_error: expected a number, got true"]),
        (changed(mechanism__relative_error=[0.1]), ["relative_error: expected a number", "a list"]),
        (changed(mechanism__floor="20"), ["mechanism.floor: expected a number, got '20'"]),
        (changed(mechanism__shift="20"), ["mechanism.shift: expected a number, got '20'"]),
        (changed(mechanism__shift=True), ["mechanism.shift: expected a number, got true"]),
        (changed(mechanism__drift=3), ["mechanism.drift: expected 'minimal_error'", "got 3"]),
        (changed(mechanism__name=3), ["mechanism.name: expected text in quotes, got 3"]),
        (changed(privacy__delta="1e-6"), ["privacy.delta: expected a number, got '1e-6'"]),
        (changed(privacy__max_records="3"), ["privacy.max_records: expected an integer"]),
        (changed(privacy__unit=3), ["privacy.unit: expected text in quotes, got 3"]),
        (changed(ledger={"url": 3, "dataset": "x"}), ["ledger.url: expected text in quotes"]),
        (changed(output__files="3"), ["output.files: expected an integer, got '3'"]),
        (changed(output__files=1.0), ["output.files: expected an integer, got 1.0"]),
        (changed(output__files=True), ["output.files: expected an integer, got true"]),
        (changed(output__path=7), ["output.path: expected text in quotes, got 7", "Put it in"]),
        (changed(groups__columns="city"), ["columns: expected a list", "Write one", "['city']"]),
        (changed(groups__columns=[1, 2]), ["groups.columns.0: expected text in quotes, got 1"]),
        (changed(groups__keys__product__city="Oslo"), ["product.city", "got 'Oslo'", "['Oslo']"]),
        (
            changed(groups__keys={"tuples": ["Oslo"]}),
            ["groups.keys.tuples.0: expected a list", "got 'Oslo'"],
        ),
        (
            changed(groups__keys__product__city={"values": ["Oslo"], "include_null": "yes"}),
            ["include_null: expected true or false, got 'yes'"],
        ),
        (changed(input="data.parquet"), ["input: expected a section, got 'data.parquet'"]),
        (changed(mechanism=0.1), ["mechanism: expected a section, got 0.1"]),
        (changed(spark__settings=["a"]), ["spark.settings: expected a table, got a list"]),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(content, parts):
    got = message(content)
    for part in parts:
        assert part in got


@pytest.mark.parametrize(
    "place",
    [
        "input",
        "groups",
        "mechanism",
        "output",
        "groups__columns",
        "groups__keys",
        "mechanism__relative_error",
        "mechanism__floor",
    ],
)
def test_a_missing_field_is_named(place):
    where = place.replace("__", ".")
    assert f"  {where}: missing, but required." in message(changed(**{place: ABSENT}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "place",
    [
        "mechanism__relative_error",
        "mechanism__floor",
        "mechanism__shift",
        "privacy__delta",
        "output__confidence",
    ],
)
def test_every_number_must_be_finite(place, bad):
    where = place.replace("__", ".")
    got = message(changed(**{place: bad}), calibrated=True)
    assert f"{where}: expected a finite number, got {bad!r}" in got


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (changed(mechanism__relative_error=0), ["relative_error must be", "got 0.0", "5 %"]),
        (changed(mechanism__relative_error=-0.1), ["relative_error must be", "got -0.1"]),
        (
            changed(mechanism__relative_error=1),
            ["below 1, got 1.0", "Use the mechanism 'constant'"],
        ),
        (changed(mechanism__relative_error=1e-12), ["asks for noise", "larger relative_error"]),
        (changed(mechanism__floor=0), ["floor must be", "from 1", "got 0.0"]),
        (changed(mechanism__floor=0.99), ["floor must be", "got 0.99"]),
        (changed(mechanism__floor=-5), ["floor must be", "got -5.0"]),
        (changed(mechanism__floor=1e30), ["floor must be", "got 1e+30"]),
        (changed(mechanism__shift=0), ["shift must be", "above 0", "got 0", "Leave it out"]),
        (changed(mechanism__shift=-1), ["shift must be", "got -1"]),
        (
            changed(mechanism__name="constant", mechanism__relative_error=0.5),
            ["does not keep", "0.5", "Use a mechanism with noise"],
        ),
    ],
)
def test_a_promise_that_makes_no_sense_is_refused_with_the_mend(content, parts):
    got = message(content, calibrated=True)
    assert "mechanism: " in got
    for part in parts:
        assert part in got


@pytest.mark.parametrize(
    ("place", "value", "part"),
    [
        ("privacy__delta", 0, "privacy.delta: expected more than 0, got 0."),
        ("privacy__delta", 1, "privacy.delta: expected less than 1, got 1."),
        ("privacy__delta", -1e-6, "privacy.delta: expected more than 0, got -1e-06."),
        ("output__confidence", 95, "output.confidence: expected less than 1, got 95."),
        ("output__confidence", 0, "output.confidence: expected more than 0, got 0."),
        ("output__files", 0, "output.files: expected at least 1, got 0."),
        ("output__files", 10**6, "output.files: expected at most 10000, got 1000000."),
        ("name", "a/b", "name: expected 1 to 128 letters, digits"),
        ("name", "../../etc", "name: expected 1 to 128 letters, digits"),
        ("release_id", "x\n", "release_id: expected 1 to 128 letters, digits"),
        ("output__format", "", "output.format: expected text that is not empty, got ''"),
    ],
)
def test_a_value_out_of_range_is_named_with_the_range(place, value, part):
    assert part in message(changed(**{place: value}))


@pytest.mark.parametrize("section", ["input", "output"])
def test_a_place_is_either_a_path_or_a_table(section):
    both = message(changed(**{f"{section}__table": "lake.visits"}))
    assert f"{section}: expected either 'path' or 'table', got both" in both
    neither = message(changed(**{section: {"format": "parquet"}}))
    assert f"{section}: expected either 'path' or 'table', got neither" in neither
    empty = message(changed(**{f"{section}__path": ""}))
    assert f"{section}.path: expected text that is not empty" in empty


def test_the_audit_goes_to_one_place():
    got = message(changed(audit={"path": "a", "table": "b"}))
    assert "audit: expected either 'path' or 'table', got both" in got


def test_the_confidential_audit_needs_a_path_of_its_own():
    assert "confidential_audit.path: missing" in message(changed(confidential_audit={}))


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (
            changed(groups__keys__tuples=[["Oslo", 1]]),
            ["groups.keys: ", "exactly one of", "got 'product' and 'tuples'"],
        ),
        (changed(groups__keys={}), ["groups.keys: ", "exactly one of", "got none"]),
        (changed(groups__keys={"tuples": []}), ["keys.tuples: expected at least 1", "got none"]),
        (changed(groups__columns=[]), ["groups.columns: expected at least 1", "got none"]),
        (changed(groups__keys={"product": {}}), ["lacks the column 'city'", "declare"]),
        (changed(groups__keys__product__city=[]), ["product.city: ", "no values", "declare"]),
        (changed(groups__columns=["city", "city"]), ["column 'city' is named twice"]),
        (
            changed(groups__columns=["city", "mnth"]),
            ["keys.product has the column 'month'", "Did you mean 'mnth'?"],
        ),
        (
            changed(groups__columns=["city", "month", "year"]),
            ["keys.product lacks the column 'year'", "declare its values"],
        ),
        (
            changed(groups__keys={"tuples": [["Oslo", 1], ["Bergen"]]}),
            ["number 2 of keys.tuples has 1 values, expected 2"],
        ),
        (changed(groups__keys__product__month=[1.0, 2.0]), ["month.values.0: ", "float", "1.0"]),
        (changed(groups__keys__product__month=[float("nan")]), ["month.values.0: ", "float"]),
        (changed(groups__keys__product__month=[[1]]), ["month.values.0: ", "got [1]"]),
        (
            changed(groups__keys={"tuples": [["Oslo", datetime.time(8)]]}),
            ["groups.keys.tuples.0.1: ", "expected text, an integer, a date"],
        ),
    ],
)
def test_a_key_set_that_cannot_be_is_refused_without_reading_data(content, parts):
    got = message(content)
    for part in parts:
        assert part in got


def test_a_bound_on_records_needs_the_column_that_tells_units_apart():
    got = message(changed(privacy__max_records=5))
    assert "privacy: " in got
    assert 'unit = "user_id"' in got
    unit = parse_configuration(
        changed(privacy={"unit": "user_id", "max_records": 5}), "x.toml"
    ).privacy.privacy_unit
    assert (unit.column, unit.max_records, unit.distinct) == ("user_id", 5, False)


def test_another_release_id_changes_nothing_else_and_is_checked_too():
    before = parse_configuration(changed(mechanism__shift=3), "x.toml")
    after = with_release_id(before, "visits-2024-05")
    assert after.release_id == "visits-2024-05"
    assert after == before.model_copy(update={"release_id": "visits-2024-05"})
    with pytest.raises(ConfigurationError, match=r"release_id: expected 1 to 128 letters"):
        with_release_id(before, "2024-05/06")


def test_null_is_declared_by_name_and_is_a_value_like_any_other():
    content = changed(groups__keys__product__city={"values": [], "include_null": True})
    keys = parse_configuration(content, "x.toml").groups.keys
    assert keys.product["city"].all_values == [None]
    assert keys.product["month"].all_values == [1, 2]


def test_dates_and_timestamps_of_toml_are_key_values():
    content = tomllib.loads("values = [2013-01-01, 2013-01-01T00:00:00Z, true, 'x']")
    configuration = parse_configuration(changed(groups__keys__product__month=content), "x.toml")
    assert configuration.groups.keys.product["month"].values == content["values"]


@pytest.mark.parametrize(
    "place",
    [
        "release_key",
        "key",
        "seed",
        "random_seed",
        "secret",
        "output__key",
        "privacy__seed",
        "spark__release_key",
        "mechanism__seed",
        "mechanism__noise_key",
        "input__key",
        "confidential_audit__key_hex",
    ],
)
def test_a_release_key_in_a_file_is_refused_and_never_repeated(place):
    secret = "00c0ffee" * 8
    got = message(changed(confidential_audit={"path": "x"}) | changed(**{place: secret}))
    assert "the release key is never read from a file" in got
    assert "Remove this field" in got
    assert secret not in got
    assert place.rsplit("__", maxsplit=1)[-1] in got


def test_every_fault_is_listed_once_in_one_message():
    content = changed(
        inptu={},
        output__files=0,
        privacy__delta=2,
        mechanism__floor="x",
        groups__columns=[],
    )
    lines = message(content).split("\n")
    assert lines[0] == "configuration 'x.toml' is not valid:"
    places = [line.strip().split(":")[0] for line in lines[1:]]
    assert sorted(places) == [
        "groups.columns",
        "inptu",
        "mechanism.floor",
        "output.files",
        "privacy.delta",
    ]


def test_settings_and_options_may_be_written_as_toml_values():
    content = changed(
        spark={"settings": {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 8}},
        input__options={"header": True, "sep": ""},
    )
    configuration = parse_configuration(content, "x.toml")
    assert configuration.spark.settings == {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
    }
    assert configuration.input.options == {"header": "true", "sep": ""}


def test_a_setting_with_unquoted_dots_gets_the_mend():
    content = changed(**tomllib.loads("[spark.settings]\nspark.ui.enabled = false"))
    got = message(content)
    assert "spark.settings.spark: " in got
    assert "written in quotes" in got


def test_a_wrong_setting_is_named_but_its_value_is_not_shown():
    content = changed(input__options={"secret.access": ["hunter2"]})
    got = message(content)
    assert "input.options.secret.access: expected text" in got
    assert "hunter2" not in got


def test_a_configuration_cannot_be_changed_after_it_was_checked():
    configuration = parse_configuration(GOOD, "x.toml")
    with pytest.raises(ValueError, match="frozen"):
        configuration.mechanism.floor = 1  # type: ignore[misc]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["path", "table", "columns", "keys", "product", "tuples", "name", "x"]
                ),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    ),
    st.sampled_from(sorted(ReleaseConfiguration.model_fields)),
)
def test_whatever_stands_in_a_section_it_is_accepted_or_refused_with_its_place(value, section):
    refusal = None
    try:
        parse_configuration(changed(**{section: value}), "x.toml")
    except ConfigurationError as error:
        refusal = str(error)
    assert refusal is None or f"\n  {section}" in refusal


def test_a_missing_file_gets_the_nearest_one(tmp_path):
    (tmp_path / "visits.toml").write_text("")
    with pytest.raises(ConfigurationError, match=r"does not exist.*Did you mean.*visits.toml"):
        load_configuration(tmp_path / "visit.toml")


def test_a_missing_file_without_neighbours_or_directory_says_so(tmp_path):
    with pytest.raises(ConfigurationError, match=r"does not exist. There is no \*.toml file in"):
        load_configuration(tmp_path / "visit.toml")
    with pytest.raises(ConfigurationError, match=r"does not exist. There is no directory"):
        load_configuration(tmp_path / "nowhere" / "visit.toml")


def test_a_directory_is_not_a_configuration(tmp_path):
    (tmp_path / "visits.toml").write_text("")
    with pytest.raises(ConfigurationError, match=r"is a directory, expected a TOML file.*visits"):
        load_configuration(tmp_path)


def test_what_is_not_toml_is_refused_with_the_line(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("name = 'visits'\n[input]\npath = data/visits\n")
    with pytest.raises(ConfigurationError, match=r"is not TOML: .*line 3.*in quotes"):
        load_configuration(file)


def test_what_is_not_utf8_is_refused_with_the_position(tmp_path):
    file = tmp_path / "x.toml"
    file.write_bytes("name = 'Ålesund'".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"is not UTF-8 \(byte 0xc5 at position 8\)"):
        load_configuration(file)


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path):
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xef\xbb\xbf" + FLIGHTS.read_bytes().replace(b"\n", b"\r\n"))
    assert load_configuration(file) == load_configuration(FLIGHTS)


def test_an_empty_file_lacks_the_four_sections(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text("")
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(file)
    places = [line.strip().split(":")[0] for line in str(caught.value).split("\n")[1:]]
    assert places == ["input", "groups", "mechanism", "output"]


@pytest.mark.parametrize("kind", ["csv", "json", "JSON", "xml"])
def test_a_format_without_a_schema_needs_a_declared_one(kind):
    got = message(changed(input__format=kind))
    assert "input" in got
    assert "needs a declared 'schema'" in got
    declared = changed(input__format=kind, input__schema="origin STRING")
    assert parse_configuration(declared, "test").input.declared_schema == "origin STRING"


@pytest.mark.parametrize("option", ["inferSchema", "samplingRatio", "mergeSchema"])
def test_a_schema_is_never_found_in_the_confidential_records(option):
    got = message(changed(input__options={option: "true"}))
    assert f"option '{option}'" in got
    assert "declare 'schema'" in got
