"""Errors are of one family, and suggestions name what exists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.errors import (
    BudgetError,
    ConfigurationError,
    ReleaseError,
    SparkDphistError,
    did_you_mean,
    near_names,
)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(ConfigurationError, ValueError), (ReleaseError, RuntimeError), (BudgetError, RuntimeError)],
)
def test_errors_are_caught_as_ours_or_as_the_builtin_they_specialise(kind, builtin):
    assert issubclass(kind, SparkDphistError)
    assert issubclass(kind, builtin)


def test_the_nearest_names_come_first_and_at_most_two():
    known = ["relative_error", "relative_errors", "relative", "floor"]
    assert near_names("relativ_error", known) == ["relative_error", "relative_errors"]


def test_case_does_not_hide_a_name_and_is_shown_as_it_is():
    assert did_you_mean("CARRIER", ["Origin", "Carrier"]) == "Did you mean 'Carrier'?"


def test_without_a_near_name_all_are_listed():
    assert did_you_mean("zzz", ["a", "b"]) == "Known are: 'a', 'b'."


def test_a_long_list_is_cut_and_says_so():
    sentence = did_you_mean("zzz", [f"column{i}" for i in range(25)])
    assert sentence.endswith("'column19' and 5 more.")
    assert "column20" not in sentence


def test_nothing_to_choose_from_is_said():
    assert did_you_mean("x", []) == "There is nothing to choose from."


def test_what_is_not_text_gets_a_suggestion_all_the_same():
    assert did_you_mean(3, ["a"]) == "Known are: 'a'."  # type: ignore[arg-type]


@given(st.text(), st.lists(st.text(), max_size=5))
def test_only_known_names_are_suggested(got, known):
    assert set(near_names(got, known)) <= set(known)
    assert did_you_mean(got, known)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_a_name_that_exists_is_its_own_nearest_up_to_case(known):
    assert near_names(known[0], known)[0].lower() == known[0].lower()
