"""Ranges and bins of keys, from the API and from a configuration, before Spark is started."""

import datetime
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.config import parse_configuration
from spark_dphist.errors import ConfigurationError
from spark_dphist.key_ranges import bin_labels, dates, integers
from spark_dphist.plan import make_plan

DATE = datetime.date
DATES = st.dates(DATE(1900, 1, 1), DATE(2100, 1, 1))


def configuration(groups, source='path = "x"'):
    text = f"""
[input]
{source}
[mechanism]
relative_error = 0.3
floor = 20
[output]
path = "y"
[groups]
{groups}
"""
    return parse_configuration(tomllib.loads(text), "test")


def configured(groups):
    return configuration(groups).groups


def test_integers_are_counted_from_one_end_to_the_other():
    assert list(integers(1, 12)) == list(range(1, 13))
    assert list(integers(-5, 7, 5)) == [-5, 0, 5]
    assert list(integers(3, 3)) == [3]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("day", ["2024-02-28", "2024-02-29", "2024-03-01"]),
        ("week", ["2024-02-28"]),
        ("month", ["2024-02-28"]),
    ],
)
def test_dates_go_over_the_ends_of_months(every, expected):
    made = dates(DATE(2024, 2, 28), DATE(2024, 3, 1), every)
    assert [date.isoformat() for date in made] == expected


def test_months_and_years_keep_the_day():
    months = dates(DATE(2023, 11, 15), DATE(2024, 2, 15), "month")
    assert [date.isoformat() for date in months] == [
        "2023-11-15",
        "2023-12-15",
        "2024-01-15",
        "2024-02-15",
    ]
    assert dates(DATE(2023, 11, 15), DATE(2024, 2, 14), "month")[-1] == DATE(2024, 1, 15)
    assert dates(DATE(2020, 2, 1), DATE(2023, 1, 31), "year") == [
        DATE(2020, 2, 1),
        DATE(2021, 2, 1),
        DATE(2022, 2, 1),
    ]


@given(DATES, DATES, st.sampled_from(["day", "week", "month", "year"]))
def test_a_range_of_dates_rises_within_its_ends_and_could_not_go_on(start, stop, every):
    start = start.replace(day=min(start.day, 28))
    if stop < start:
        start, stop = stop.replace(day=min(stop.day, 28)), start
    made = dates(start, stop, every)
    assert made[0] == start
    assert made == sorted(set(made))
    longest = {"day": 1, "week": 7, "month": 31, "year": 366}[every]
    assert made[-1] <= stop < made[-1] + datetime.timedelta(days=longest)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: integers(3, 2), "range from 3 to 2 is empty"),
        (lambda: integers(1, 5, 0), "step of a range must be at least 1"),
        (lambda: integers(1, 10**9), "1,000,000,000 values, more than 10,000,000"),
        (lambda: dates(DATE(2024, 1, 2), DATE(2024, 1, 1)), "is empty"),
        (lambda: dates(DATE(2024, 1, 31), DATE(2024, 9, 1), "month"), "which not every month has"),
        (lambda: dates(DATE(2024, 1, 1), DATE(2024, 9, 1), "moth"), "Did you mean 'month'"),
        (lambda: bin_labels([]), "at least one edge"),
        (lambda: bin_labels([1, 1]), "edges must rise, but 1 follows 1"),
        (lambda: bin_labels([-0.0, 0.0]), "edges must rise"),
        (lambda: bin_labels([float("nan")]), "must be finite, got nan"),
        (lambda: bin_labels([1, DATE(2024, 1, 1)]), "must be of one type"),
        (lambda: bin_labels(range(2000)), "2,000 edges are more than 1,000"),
        (lambda: bin_labels([1, 2, 3], ["low"]), "make 2 bins between them, got 1 labels"),
        (lambda: bin_labels([1, 2, 3], ["a", "a"]), "two bins have the label 'a'"),
        (lambda: bin_labels([1, 2], ["(-inf, 1)"]), r"two bins have the label '\(-inf, 1\)'"),
    ],
)
def test_what_is_no_range_or_no_bins_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_labels_say_which_numbers_are_in_a_bin():
    assert bin_labels([0, 10, 20]) == ["(-inf, 0)", "[0, 10)", "[10, 20)", "[20, inf)"]
    assert bin_labels([-0.0, 0.5]) == ["(-inf, 0.0)", "[0.0, 0.5)", "[0.5, inf)"]
    assert bin_labels([0, 18, 65], ["minor", "adult"])[1:3] == ["minor", "adult"]
    assert bin_labels([DATE(2024, 1, 1)]) == ["(-inf, 2024-01-01)", "[2024-01-01, inf)"]


# In a configuration


def test_a_product_may_have_ranges_and_bins():
    groups = configured(
        """
columns = ["month", "day", "age"]
[groups.keys.product]
month = { from = 1, to = 12 }
day = { from = 2024-01-01, to = 2024-12-31, every = "month", include_null = true }
[groups.bins.age]
column = "years"
edges = [0, 18, 65]
labels = ["minor", "adult"]
"""
    )
    values = groups.product_values
    assert values["month"] == list(range(1, 13))
    assert values["day"] == [*[DATE(2024, month, 1) for month in range(1, 13)], None]
    assert values["age"] == ["(-inf, 0)", "minor", "adult", "[65, inf)", None]
    assert groups.declared_size == 12 * 13 * 5


def test_bins_alone_need_no_keys_and_their_edges_may_be_a_range():
    groups = configured(
        'columns = ["a"]\nbins.a = { column = "x", edges = { from = 0, to = 100, step = 10 } }'
    )
    assert groups.declared_size == 13
    few = configured(
        'columns = ["a"]\nbins.a = { column = "x", edges = [0, 1] }\nkeys.product.a = ["[0, 1)"]'
    )
    assert few.product_values == {"a": ["[0, 1)"]}


BINS = 'columns = ["a"]\nbins.a = { column = "x", edges = [0, 1] }\n'


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ('columns = ["m"]\nkeys.product.m = { from = 1 }', "'to' is missing"),
        (
            'columns = ["m"]\nkeys.product.m = { from = 1, to = 3, evry = 1 }',
            "'evry' is no part of a range. Did you mean 'every'",
        ),
        ('columns = ["m"]\nkeys.product.m = { from = 1, to = 3, every = "day" }', "not 'every'"),
        ('columns = ["m"]\nkeys.product.m = { from = 1.0, to = 3 }', "got 1.0 and 3"),
        ('columns = ["m"]\nkeys.product.m = { from = true, to = 3 }', "got True and 3"),
        (
            'columns = ["m"]\nkeys.product.m = { from = "2024-01-01", to = "2024-01-03" }',
            "Write both without quotes",
        ),
        (
            'columns = ["m"]\nkeys.product.m = { from = 2024-01-01, to = 2024-01-03, step = 2 }',
            "not 'step'",
        ),
        (
            'columns = ["a", "b"]\nkeys.product.a = { from = 1, to = 10000 }\n'
            "keys.product.b = { from = 1, to = 10000 }",
            "100,000,000 groups, more than max_groups = 10,000,000",
        ),
        ('max_groups = 1\ncolumns = ["a"]\nkeys.tuples = [[1], [2]]', "2 groups, more than max"),
        (BINS + 'keys.product.a = ["[0,1)"]', r"'\[0,1\)', which is not the label of a bin"),
        (
            BINS.replace("bins.a", "bins.b") + "keys.product.a = [1]",
            "bins has the column 'b', which is not one of",
        ),
        (BINS.replace("[0, 1]", '["x"]'), "an edge in quotes is a decimal"),
        (BINS.replace("[0, 1]", "[true]"), "expected a number or a date as an edge, got True"),
        (BINS.replace("[0, 1]", "7"), "expected a list of edges"),
        (BINS.replace("[0, 1]", "[1, 0]"), "edges must rise, but 0 follows 1"),
    ],
)
def test_faults_in_a_configuration_are_named(groups, message):
    with pytest.raises(ConfigurationError, match=message):
        configured(groups)


def test_a_plan_shows_how_many_groups_are_declared():
    assert make_plan(configuration('columns = ["a"]\nkeys.tuples = [[1], [2]]')).key_set_size == 2
    assert make_plan(configuration(BINS)).key_set_size == 4
    table = configuration('columns = ["a"]\nkeys.table = "public.keys"')
    assert make_plan(table).key_set_size is None


@pytest.mark.parametrize(
    ("source", "keys", "suspected"),
    [
        ('table = "db.visits"', 'table = "db.visits"', True),
        ('table = "db.visits"', 'table = "db.cities"', False),
        ('path = "data/visits"', 'path = "data/visits/"', True),
        ('path = "data"', 'path = "data/visits"', True),
        ('path = "data/visits"', 'path = "data/visits_keys"', False),
        ('path = "data/visits"', 'table = "visits"', False),
    ],
)
def test_a_key_set_in_the_inputs_own_place_is_warned_of_with_the_reason(source, keys, suspected):
    planned = make_plan(configuration(f'columns = ["a"]\nkeys = {{ {keys} }}', source))
    said = [text for text in planned.warnings if "taken from the confidential data" in text]
    assert bool(said) == suspected
    assert all("one record gives that record away" in text for text in said)


def test_the_example_of_the_documentation_is_a_configuration():
    page = (Path(__file__).parents[2] / "docs" / "key-sets.md").read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    assert (
        configuration(example.replace("[groups]\n", "", 1)).groups.declared_size == 3 * 12 * 12 * 5
    )
