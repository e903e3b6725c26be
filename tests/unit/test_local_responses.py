"""Reports of the local model: likelihood ratios, draws and estimates, by exact enumeration."""

import doctest
import itertools
import math
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dphist.errors import ConfigurationError
from spark_dphist.local import RandomisedResponse, UnaryEncoding, estimate_counts, local_response
from spark_dphist.local.estimate import variance_at
from spark_dphist.streams import GroupStreams, ReleaseKey

WORD = 2**64
NAMES = [
    "local_randomised_response",
    "local_symmetric_unary_encoding",
    "local_optimised_unary_encoding",
]
EPSILONS = [2.0**-10, 0.1, 0.5, 1.0, math.log(3), 5, 32]


class ScriptedWords:
    """The words of each row, in order."""

    def __init__(self, rows):
        self._words = np.array(rows, dtype=np.uint64).reshape(len(rows), -1, 2)

    def block(self, rows, index):
        return self._words[rows, index]


def distribution(response, value):
    """The exact probability of each report of a value, as fractions, and what it supports."""
    own, other = response.support_probabilities
    d = response.categories
    if isinstance(response, RandomisedResponse):
        supported = {(y,): [y] for y in range(d)}
        return {y: own if y == (value,) else other for y in supported}, supported
    found, supported = {}, {}
    for bits in itertools.product((False, True), repeat=d):
        chance = Fraction(1)
        for position, bit in enumerate(bits):
            p = own if position == value else other
            chance *= p if bit else 1 - p
        found[bits] = chance
        supported[bits] = [position for position, bit in enumerate(bits) if bit]
    return found, supported


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", NAMES)
def test_no_report_tells_two_values_apart_by_more_than_epsilon(name, epsilon):
    for d in (2, 3, 5):
        response = local_response(name, epsilon=epsilon, categories=d)
        reports = [distribution(response, value)[0] for value in range(d)]
        assert all(sum(each.values()) == 1 for each in reports)
        greatest = max(
            one[report] / two[report]
            for one, two in itertools.permutations(reports, 2)
            for report in one
        )
        assert greatest == response.likelihood_ratio
        with mpmath.workdps(120):
            exact = mpmath.exp(mpmath.mpf(repr(float(epsilon))))
            ratio = mpmath.mpf(greatest.numerator) / greatest.denominator
            assert ratio <= exact
            # And it is not far below it: words of 64 bits can tell that much.
            assert ratio >= exact * (1 - mpmath.exp(epsilon) * mpmath.mpf(2) ** -58)


@given(st.floats(2.0**-10, 32.0), st.integers(2, 10_000), st.sampled_from(NAMES))
def test_the_likelihood_ratio_keeps_to_epsilon_whatever_the_parameters(epsilon, d, name):
    response = local_response(name, epsilon=epsilon, categories=d)
    own, other = response.support_numerators
    assert 0 < other < own < WORD
    ratio = response.likelihood_ratio
    with mpmath.workdps(120):
        exact = mpmath.exp(mpmath.mpf(repr(epsilon)))
        assert mpmath.mpf(ratio.numerator) / ratio.denominator <= exact


@pytest.mark.parametrize("name", NAMES)
def test_estimates_are_unbiased_and_their_variance_is_the_stated_one_by_enumeration(name):
    d = 3
    response = local_response(name, epsilon=1.0, categories=d)
    own, other = response.support_probabilities
    for value in range(d):
        chances, supported = distribution(response, value)
        for category in range(d):
            estimates = {
                report: ((category in supported[report]) - other) / (own - other)
                for report in chances
            }
            mean = sum(chances[r] * estimates[r] for r in chances)
            assert mean == (category == value)
            variance = sum(chances[r] * estimates[r] ** 2 for r in chances) - mean**2
            stated = float(variance_at(response, float(category == value), 1))
            assert stated == pytest.approx(float(variance), rel=1e-12)
            for report in chances:
                made = estimate_counts(response, [category in supported[report]], 1)
                assert made.count[0] == pytest.approx(float(estimates[report]), rel=1e-12)
                at_estimate = max(float(variance_at(response, made.count[0], 1)), 0.0)
                assert made.variance[0] == pytest.approx(at_estimate, rel=1e-9)
                assert made.standard_error[0] == pytest.approx(math.sqrt(at_estimate), rel=1e-9)


@pytest.mark.parametrize("d", [2, 3, 7])
def test_randomised_response_gives_each_other_category_exactly_its_share_of_the_words(d):
    response = RandomisedResponse(epsilon=0.7, categories=d)
    own, other = response.support_numerators
    assert own + (d - 1) * other == WORD
    for value in range(d):
        others = [c for c in range(d) if c != value]
        edges = {}
        for position, category in enumerate(others):
            edges[position * other] = edges[(position + 1) * other - 1] = category
        edges[(d - 1) * other] = edges[WORD - 1] = value
        source = ScriptedWords([[word, 0] for word in edges])
        drawn = response.report(np.full(len(edges), value), source)
        assert drawn.tolist() == list(edges.values())


@pytest.mark.parametrize("optimised", [True, False])
def test_unary_bits_are_set_below_their_probability_and_not_at_it(optimised):
    response = UnaryEncoding(epsilon=0.7, categories=3, optimised=optimised)
    own, other = response.support_numerators
    below, at = [own - 1, other - 1, other - 1, 0], [own, other, other, 0]
    source = ScriptedWords([below, at, [0, 0, 0, 0], [WORD - 1] * 4])
    drawn = response.report(np.zeros(4, dtype=np.int64), source)
    assert drawn.tolist() == [[True] * 3, [False] * 3, [True] * 3, [False] * 3]


def test_the_probabilities_are_the_published_ones():
    e = math.exp(1.5)
    for response, p, q in (
        (RandomisedResponse(epsilon=1.5, categories=10), e / (e + 9), 1 / (e + 9)),
        (
            UnaryEncoding(epsilon=1.5, categories=10, optimised=False),
            math.exp(0.75) / (math.exp(0.75) + 1),
            1 / (math.exp(0.75) + 1),
        ),
        (UnaryEncoding(epsilon=1.5, categories=10, optimised=True), 0.5, 1 / (e + 1)),
    ):
        own, other = map(float, response.support_probabilities)
        assert own == pytest.approx(p, rel=1e-12)
        assert other == pytest.approx(q, rel=1e-12)
    # Wang, Blocki, Li, Jha 2017, Table 1: variance of a value nobody has, for each report.
    assert variance_at(RandomisedResponse(epsilon=1.5, categories=10), 0, 1) == pytest.approx(
        (10 - 2 + e) / (e - 1) ** 2, rel=1e-12
    )
    optimised = UnaryEncoding(epsilon=1.5, categories=10, optimised=True)
    assert variance_at(optimised, 0, 1) == pytest.approx(4 * e / (e - 1) ** 2, rel=1e-12)
    symmetric = UnaryEncoding(epsilon=1.5, categories=10, optimised=False)
    half = math.exp(0.75)
    assert variance_at(symmetric, 0, 1) == pytest.approx(half / (half - 1) ** 2, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_estimates_hit_the_counts_and_intervals_cover_them_as_often_as_stated(name):
    # 400 histograms of 2,000 reports. False alarms: means off by 5 standard errors, or a coverage
    # below 0.9 at a stated 0.95 for 1,200 intervals (below 1e-9).
    d, rounds, held = 3, 400, np.array([1500, 450, 50])
    response = local_response(name, epsilon=1.0, categories=d)
    generator = np.random.Generator(np.random.Philox(3))
    digests = generator.integers(0, 256, (int(held.sum()), 32), dtype=np.uint8)
    category = np.repeat(np.arange(d), held)
    counts, covered = [], 0
    for one in range(rounds):
        key = ReleaseKey.fixed_for_tests(one.to_bytes(32, "big"))
        drawn = response.report(category, GroupStreams(key, digests))
        support = np.bincount(drawn, minlength=d) if drawn.ndim == 1 else drawn.sum(axis=0)
        made = estimate_counts(response, support, category.size)
        counts.append(made.count)
        covered += int(np.sum((made.lower <= held) & (held <= made.upper)))
    expected = variance_at(response, held, category.size)
    error = np.mean(counts, axis=0) - held
    assert np.all(np.abs(error) < 5 * np.sqrt(expected / rounds))
    np.testing.assert_allclose(np.var(counts, axis=0), expected, rtol=0.5)
    assert 0.9 < covered / (rounds * d) < 0.985


def test_intervals_narrow_with_less_confidence_and_stay_within_the_number_of_reports():
    response = RandomisedResponse(epsilon=0.5, categories=4)
    wide = estimate_counts(response, [0, 20, 40, 40], 100, 0.99)
    narrow = estimate_counts(response, [0, 20, 40, 40], 100, 0.5)
    assert wide.count[0] < 0
    assert np.all((wide.lower >= 0) & (wide.upper <= 100))
    assert np.all(narrow.upper - narrow.lower <= wide.upper - wide.lower)
    assert np.all(wide.variance >= 0)
    with pytest.raises(ConfigurationError, match="confidence"):
        estimate_counts(response, [1, 1, 1, 1], 4, 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0}, "epsilon must be a number from 0.000977 to 32, got 0"),
        ({"epsilon": 33.0}, "got 33.0"),
        ({"categories": 1}, "categories must be a whole number from 2 to 10,000, got 1"),
        ({"categories": 2.5}, "got 2.5"),
        ({"name": "local_randomized_response"}, "Did you mean 'local_randomised_response'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes, message):
    given = {"name": NAMES[0], "epsilon": 1.0, "categories": 5, **changes}
    with pytest.raises(ConfigurationError, match=message):
        local_response(given.pop("name"), **given)


def test_a_category_out_of_range_reports_nothing_and_is_not_shown():
    response = RandomisedResponse(epsilon=1.0, categories=3)
    with pytest.raises(ConfigurationError, match="outside 0 to 2") as raised:
        response.report(np.array([0, 77]), ScriptedWords([[0, 0], [0, 0]]))
    assert "77" not in str(raised.value)


def test_the_numbers_of_the_documentation_are_those_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "local-model.md"
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert attempted >= 5
    assert failed == 0
