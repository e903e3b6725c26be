"""What is kept of a unit depends on its own records and the release key alone."""

import datetime
import decimal
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql import types as T
from scipy.stats import chi2

from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.errors import ConfigurationError
from spark_dphist.spark.bounding import bound_contributions, unit_field
from spark_dphist.spark.counts import TRUE_COUNT, count_groups
from spark_dphist.streams import ReleaseKey

KEY = ReleaseKey.fixed_for_tests(b"\x07" * 32)
OTHER_KEY = ReleaseKey.fixed_for_tests(b"\x08" * 32)


def bounded(records, columns, unit, key=KEY):
    fields = [records.schema[name] for name in columns]
    identifier = unit_field(records.schema, unit, "the input")
    return bound_contributions(records, fields, unit, identifier, key)


def kept(records, columns, unit, key=KEY):
    """The kept records as a multiset of group keys."""
    return Counter(tuple(row) for row in bounded(records, columns, unit, key).collect())


def unit_of(records, distinct=False):
    return PrivacyUnit(column="user", max_records=records, distinct=distinct)


@pytest.fixture(scope="module")
def rows():
    """300 users with 1 to 30 records in groups of their own, so a kept group names its user."""
    generator = np.random.default_rng(5)
    return [
        (user, f"{user}:{group}")
        for user in range(300)
        for group in generator.integers(0, 6, generator.integers(1, 31))
    ]


@pytest.fixture(scope="module")
def records(spark, rows):
    return spark.createDataFrame(rows, "user bigint, place string").cache()


def by_user(multiset):
    users = {}
    for (place,), number in multiset.items():
        users.setdefault(int(place.split(":")[0]), Counter())[place] = number
    return users


@pytest.mark.parametrize("most", [1, 3, 100])
def test_at_most_so_many_records_of_each_unit_are_kept_and_all_where_there_are_fewer(
    records, rows, most
):
    owned = Counter(user for user, _ in rows)
    had = by_user(Counter((place,) for _, place in rows))
    left = by_user(kept(records, ["place"], unit_of(most)))
    assert set(left) == set(owned)
    for user, number in owned.items():
        assert left[user].total() == min(most, number)
        assert left[user] <= had[user]


@pytest.mark.parametrize("distinct", [False, True])
def test_adding_or_removing_other_units_does_not_change_what_is_kept_of_one(
    spark, rows, records, distinct
):
    unit = unit_of(3, distinct)
    everyone = by_user(kept(records, ["place"], unit))
    fewer = [(user, place) for user, place in rows if user % 3]
    more = [(1000 + number, f"{1000 + number}:{number % 2}") for number in range(500)]
    others = spark.createDataFrame(fewer + more, records.schema)
    without = by_user(kept(others, ["place"], unit))
    assert all(without[user] == everyone[user] for user in everyone if user % 3)
    assert set(everyone) - set(without) == {user for user in everyone if user % 3 == 0}


def test_neighbouring_data_sets_differ_by_what_the_unit_was_promised(spark):
    """150 small data sets with and without one of their units, counted in two jobs."""
    generator = np.random.default_rng(11)
    cases = range(150)
    removed = {case: int(generator.integers(0, 6)) for case in cases}
    rows = [
        (case, f"{case}/{user}", int(group))
        for case in cases
        for user in range(6)
        for group in generator.integers(0, 4, generator.integers(0, 12))
    ]
    schema = "data_set int, user string, place int"
    groups = spark.createDataFrame([(c, g) for c in cases for g in range(4)], schema.replace(
        "user string, ", ""
    ))  # fmt: skip
    without = [row for row in rows if row[1] != f"{row[0]}/{removed[row[0]]}"]
    assert len(without) < len(rows)

    def counts(listed, unit):
        frame = spark.createDataFrame(listed, schema)
        fields = [frame.schema[name] for name in ("data_set", "place")]
        counted = count_groups(bounded(frame, ["data_set", "place"], unit), groups, fields, 1)
        return {(row[0], row[1]): row[TRUE_COUNT] for row in counted.collect()}

    for unit in (unit_of(1), unit_of(3), unit_of(2, distinct=True)):
        before, after = counts(rows, unit), counts(without, unit)
        assert set(before) == set(after) == {(case, group) for case in cases for group in range(4)}
        reached_group = reached_total = 0
        for case in cases:
            change = [before[case, group] - after[case, group] for group in range(4)]
            assert min(change) >= 0
            reached_group = max(reached_group, *change)
            reached_total = max(reached_total, sum(change))
        # Bounded, and not by accident: some data set reaches each bound.
        assert reached_group == unit.records_per_group
        assert reached_total == unit.max_records


@pytest.mark.parametrize("distinct", [False, True])
def test_order_partitions_and_adaptive_execution_do_not_change_what_is_kept(
    spark, rows, records, settings, distinct
):
    unit = unit_of(3, distinct)
    expected = kept(records, ["place"], unit)
    shuffled = [rows[i] for i in np.random.default_rng(2).permutation(len(rows))]
    for frame in (
        spark.createDataFrame(shuffled, records.schema).repartition(7),
        spark.createDataFrame(rows[::-1], records.schema).coalesce(1),
    ):
        assert kept(frame, ["place"], unit) == expected
    with settings({"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "3"}):
        assert kept(spark.createDataFrame(shuffled, records.schema), ["place"], unit) == expected
    assert kept(records, ["place"], unit) == expected


def test_another_key_keeps_others(records):
    here, there = (by_user(kept(records, ["place"], unit_of(2), key)) for key in (KEY, OTHER_KEY))
    differing = sum(here[user] != there[user] for user in here)
    assert differing > len(here) / 3


@pytest.mark.statistical
def test_every_choice_among_a_units_records_is_equally_likely(spark):
    """Chi-squared on 15 pairs out of 6, and on a unit with records in one group; 1e-6 each."""
    users = 3000
    apart = spark.range(users).select(
        F.col("id").alias("user"),
        F.explode(F.sequence(F.lit(0), F.lit(5))).alias("group"),
    )
    named = apart.select("user", F.concat_ws(":", "user", "group").alias("place"))
    chosen = Counter(
        tuple(sorted(int(place.split(":")[1]) for place in places))
        for places in by_user(kept(named, ["place"], unit_of(2))).values()
    )
    pairs = list(combinations(range(6), 2))
    assert sum(chosen.values()) == users
    assert _distance([chosen[pair] for pair in pairs], [1 / 15] * 15) < chi2.isf(1e-6, 14)

    # Three records in a, two in b, one in c: records are chosen, not groups.
    crowded = apart.select(
        "user",
        F.concat_ws(
            ":", "user", F.element_at(F.array(*map(F.lit, "aaabbc")), F.col("group") + 1)
        ).alias("place"),
    )
    compositions = Counter(
        "".join(sorted(place.split(":")[1] for place in places.elements()))
        for places in by_user(kept(crowded, ["place"], unit_of(2))).values()
    )
    expected = {"aa": 3 / 15, "ab": 6 / 15, "ac": 3 / 15, "bb": 1 / 15, "bc": 2 / 15}
    seen = [compositions[name] for name in expected]
    assert _distance(seen, list(expected.values())) < chi2.isf(1e-6, 4)
    # The test sees a choice by group: then aa and ab would be rarer.
    assert _distance(seen, [1 / 9, 3 / 9, 3 / 9, 1 / 9, 1 / 9]) > chi2.isf(1e-6, 4)


def _distance(seen, probabilities):
    seen, expected = np.array(seen), np.array(probabilities) * sum(seen)
    return float(np.sum((seen - expected) ** 2 / expected))


def test_records_without_a_unit_are_dropped_and_groups_that_are_null_are_kept(spark):
    frame = spark.createDataFrame(
        [(None, "a"), (None, "a"), (None, None), (1, None), (1, None), (2, "a")],
        "user int, place string",
    )
    assert kept(frame, ["place"], unit_of(2)) == {(None,): 2, ("a",): 1}
    assert kept(frame, ["place"], unit_of(1)) == {(None,): 1, ("a",): 1}
    assert kept(frame, ["place"], unit_of(2, distinct=True)) == {(None,): 1, ("a",): 1}


def test_distinct_counting_counts_a_unit_once_in_each_of_so_many_groups(spark):
    visits = [(user, place) for user in range(20) for place in "aaabbc" for _ in range(4)]
    frame = spark.createDataFrame(visits, "user int, place string")
    everywhere = kept(frame, ["place"], unit_of(3, distinct=True))
    assert everywhere == {("a",): 20, ("b",): 20, ("c",): 20}
    twice = kept(frame, ["place"], unit_of(2, distinct=True))
    assert twice.total() == 40
    assert max(twice.values()) < 20


def test_the_unit_may_be_a_group_column(spark):
    frame = spark.createDataFrame(
        [(1, "a")] * 5 + [(1, "b")] * 5 + [(2, "a"), (None, "a")], "user int, place string"
    )
    alone = kept(frame, ["user"], unit_of(3))
    assert alone == {(1,): 3, (2,): 1}
    both = kept(frame, ["place", "user"], unit_of(3))
    assert both.total() == 4
    assert both["a", 2] == 1
    assert both["a", 1] + both["b", 1] == 3
    assert kept(frame, ["place", "user"], unit_of(5, distinct=True)) == {
        ("a", 1): 1,
        ("b", 1): 1,
        ("a", 2): 1,
    }


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("tinyint", [1, -1]),
        ("bigint", [2**63 - 1, -(2**63)]),
        ("string", ["1:a|", "1:a|v1"]),
        ("boolean", [True, False]),
        ("date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        ("timestamp", [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 1)]),
        ("decimal(38,18)", [decimal.Decimal("1e-18"), decimal.Decimal(0)]),
        ("binary", [b"", b"\x00"]),
    ],
)
def test_units_of_every_key_type_are_told_apart(spark, kind, values):
    frame = spark.createDataFrame(
        [(value, place) for value in values for place in "abc" for _ in range(2)],
        f"user {kind}, place string",
    )
    assert kept(frame, ["place"], unit_of(4)).total() == 8
    assert kept(frame, ["place"], unit_of(6)).total() == 12


def test_odd_column_names_are_taken_as_they_are(spark):
    schema = T.StructType(
        [T.StructField("us`er.id", T.IntegerType()), T.StructField("pl.a`ce", T.StringType())]
    )
    frame = spark.createDataFrame([(1, "a"), (1, "a"), (2, "b")], schema)
    unit = PrivacyUnit(column="us`er.id", max_records=1)
    assert kept(frame, ["pl.a`ce"], unit) == {("a",): 1, ("b",): 1}


@pytest.mark.parametrize("kind", ["double", "float", "array<int>", "map<int,int>", "struct<a:int>"])
def test_a_unit_that_cannot_be_told_apart_is_refused(spark, kind):
    schema = spark.createDataFrame([], f"user {kind}, place string").schema
    with pytest.raises(ConfigurationError, match="privacy unit column 'user' has type"):
        unit_field(schema, unit_of(2), "the input")


def test_a_collated_unit_is_refused(spark):
    if int(spark.version.split(".")[0]) < 4:
        pytest.skip("Spark 3 has no collations")
    schema = spark.sql("SELECT 'a' COLLATE UTF8_LCASE AS user").schema
    with pytest.raises(ConfigurationError, match=r"privacy unit column 'user'.*UTF8_BINARY"):
        unit_field(schema, unit_of(2), "the input")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("usr int, place string", "'user' is not a column of the input. Did you mean 'usr'?"),
        ("USER int, place string", "'user' is not a column of the input. Did you mean 'USER'?"),
        ("user int, USER int", "several columns named 'user' and 'USER'"),
    ],
)
def test_a_missing_or_ambiguous_unit_is_refused_with_the_nearest_name(spark, schema, message):
    given = spark.createDataFrame([], schema).schema
    with pytest.raises(ConfigurationError, match=message.replace("?", r"\?")):
        unit_field(given, unit_of(2), "the input")


def test_a_unit_with_a_name_of_our_own_is_refused(spark):
    schema = spark.createDataFrame([], "__dphist_rank int, place string").schema
    unit = PrivacyUnit(column="__dphist_rank", max_records=2)
    with pytest.raises(ConfigurationError, match="name the release itself uses"):
        unit_field(schema, unit, "the input")


@settings(max_examples=5)
@given(st.data())
def test_small_tables_are_bounded_as_a_plain_loop_says(spark, data):
    """At most k of each user, all of those with fewer, and nobody else's."""
    rows = data.draw(
        st.lists(
            st.tuples(st.none() | st.integers(0, 5), st.none() | st.sampled_from("ab")), max_size=40
        )
    )
    most = data.draw(st.integers(1, 4))
    frame = spark.createDataFrame(rows, "user int, place string")
    for distinct in (False, True):
        each = Counter((user, place) for user, place in rows if user is not None)
        if distinct:
            each = Counter(set(each))
        per_user = Counter()
        for (user, _), number in each.items():
            per_user[user] += number
        left = kept(frame, ["user", "place"], unit_of(most, distinct))
        assert left <= each
        per_user_left = Counter()
        for (user, _), number in left.items():
            per_user_left[user] += number
        assert per_user_left == {user: min(most, number) for user, number in per_user.items()}
