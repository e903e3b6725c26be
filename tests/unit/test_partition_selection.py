"""Which groups may be named: exact probabilities, exact draws, and what they promise."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_sources import RandomWords

from spark_dphist.accounting.key_selection import KeySelection, threshold_delta_upper
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.grid import ONE, GridProbabilities, exponential_lower
from spark_dphist.mechanisms.partition_selection import (
    SCALE_BITS,
    OptimalSelection,
    ThresholdSelection,
)

PAIRS = [(0.5, 0.02), (1.0, 1e-5), (0.1, 1e-6), (2.0**-10, 2.0**-20), (8.0, 1e-12), (64.0, 0.5)]
POSITIVE = st.floats(2.0**-6, 64.0)


class ScriptedBlocks:
    """The first block of each row is a given integer of 128 bits."""

    def __init__(self, blocks):
        self._words = np.array([[b >> 64, b % 2**64] for b in blocks], dtype=np.uint64)

    def block(self, rows, index):
        assert index == 0
        return self._words[rows]


DELTAS = st.floats(2.0**-80, 0.5)


# The grid


@given(st.fractions(0, 64))
def test_the_rational_below_an_exponential_is_below_and_near(exponent):
    bound = exponential_lower(exponent)
    with mpmath.workdps(100):
        exact = mpmath.exp(mpmath.mpf(exponent.numerator) / exponent.denominator)
        distance = exact - mpmath.mpf(bound.numerator) / bound.denominator
        assert 0 < distance < mpmath.mpf(2) ** -127


@given(st.lists(st.integers(0, ONE - 1), min_size=1, max_size=4), st.data())
def test_a_block_is_below_a_probability_exactly_if_it_is_as_an_integer(numerators, data):
    near = st.one_of(
        st.integers(0, ONE - 1),
        st.sampled_from([(n + d) % ONE for n in numerators for d in (-1, 0, 1)]),
    )
    blocks = data.draw(st.lists(near, min_size=len(numerators), max_size=len(numerators)))
    words = np.array([[b >> 64, b & (2**64 - 1)] for b in blocks], dtype=np.uint64)
    drawn = GridProbabilities(numerators).draw(np.arange(len(numerators)), words)
    assert drawn.tolist() == [b < n for b, n in zip(blocks, numerators, strict=True)]


# The optimal selection


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_the_promise_holds_exactly_between_all_neighbouring_counts(epsilon, delta):
    selection = OptimalSelection(epsilon=epsilon, delta=delta)
    growth, table, limit = selection.growth, selection.numerators, Fraction(repr(delta)) * ONE
    with mpmath.workdps(100):
        exact = mpmath.exp(mpmath.mpf(repr(epsilon)))
        assert mpmath.mpf(growth.numerator) / growth.denominator < exact
    assert table[0] == 0
    # From the last one on every count is kept surely.
    for fewer, more in itertools.pairwise([*table, ONE, ONE]):
        assert fewer <= more
        assert more <= growth * fewer + limit
        assert ONE - fewer <= growth * (ONE - more) + limit
    # The other two directions follow from monotony.


@settings(max_examples=40)
@given(POSITIVE, DELTAS)
def test_the_promise_holds_exactly_for_any_parameters(epsilon, delta):
    selection = OptimalSelection(epsilon=epsilon, delta=delta)
    numerators, growth = selection.numerators, selection.growth
    limit = Fraction(repr(delta)) * ONE
    assert numerators[0] == 0
    assert numerators[-1] == ONE
    for fewer, more in itertools.pairwise(numerators):
        assert fewer <= more <= growth * fewer + limit
        assert ONE - fewer <= growth * (ONE - more) + limit


@pytest.mark.parametrize(("epsilon", "delta"), PAIRS)
def test_the_probabilities_are_those_of_the_papers_theorem(epsilon, delta):
    selection = OptimalSelection(epsilon=epsilon, delta=delta)
    with mpmath.workdps(80):
        e, d = mpmath.mpf(repr(epsilon)), mpmath.mpf(repr(delta))
        # arXiv:2006.03684, Theorem 1.
        first = 1 + math.floor(
            mpmath.log((mpmath.exp(e) + 2 * d - 1) / ((mpmath.exp(e) + 1) * d)) / e
        )
        at_first = mpmath.expm1(first * e) / mpmath.expm1(e) * d
        last = first + math.floor(mpmath.log(1 + mpmath.expm1(e) / d * (1 - at_first)) / e)
        for count in sorted({*range(40), first - 1, first, first + 1, last - 1, last, last + 1}):
            if count <= first:
                exact = mpmath.expm1(count * e) / mpmath.expm1(e) * d
            elif count <= last:
                m = count - first
                exact = -mpmath.expm1(-m * e) * (1 + d / mpmath.expm1(e)) + mpmath.exp(-m * e) * (
                    at_first
                )
            else:
                exact = mpmath.mpf(1)
            got = mpmath.mpf(selection.numerators[min(count, len(selection.numerators) - 1)]) / ONE
            assert -(mpmath.mpf(10) ** -25) < got - exact <= mpmath.mpf(10) ** -50


def test_the_probabilities_are_those_of_googles_library():
    # google/differential-privacy, cc/algorithms/partition-selection_test.cc: six and eight users.
    published = {6: 0.58840484458, 8: 0.86807080625}
    selection = OptimalSelection(epsilon=0.5, delta=0.02)
    for count, kept in published.items():
        assert selection.keep_probability(count) == pytest.approx(kept, abs=5e-12)
    assert selection.keep_probability(15) == 1
    # python-dp 1.1.5, pydp.algorithms.partition_selection.create_partition_strategy(
    # "truncated_geometric", epsilon, delta, 1).probability_of_keep(count)
    for epsilon, delta, kept in (
        (1.0, 1e-5, {5: 0.0008579102488372162, 11: 0.3484477384533132, 15: 0.9880721172346895}),
        (0.1, 1e-6, {50: 0.001401653249775236, 109: 0.5151173422079605, 200: 0.9999553624561841}),
    ):
        selection = OptimalSelection(epsilon=epsilon, delta=delta)
        got = selection.keep_probability(list(kept))
        np.testing.assert_allclose(got, list(kept.values()), rtol=1e-13)


def test_draws_keep_exactly_the_blocks_below_the_probability():
    selection = OptimalSelection(epsilon=0.5, delta=0.02)
    at_six = selection.numerators[6]
    edges = [at_six - 1, at_six, 0, ONE - 1, ONE - 1, 0, ONE - 1]
    counts = [6, 6, 0, len(selection.numerators) - 2, len(selection.numerators) - 1, 1, 10**12]
    kept = selection.keep(counts, ScriptedBlocks(edges))
    assert kept.tolist() == [True, False, False, False, True, True, True]


def test_the_count_kept_half_the_time_is_the_first_with_half_the_probability():
    for selection in (
        OptimalSelection(epsilon=0.1, delta=1e-6),
        KeySelection(epsilon=1.0, delta=1e-6, groups_per_unit=4).mechanism,
    ):
        count = selection.count_kept_half_the_time()
        assert selection.keep_probability(count) >= 0.5 > selection.keep_probability(count - 1)


# The threshold


@pytest.mark.parametrize("k", [2, 3, 17, 400])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-9), (4.0, 1e-5)])
def test_a_threshold_keeps_to_epsilon_and_delta_however_the_units_groups_lie(epsilon, delta, k):
    selection = KeySelection(epsilon=epsilon, delta=delta, groups_per_unit=k)
    threshold = selection.mechanism
    with mpmath.workdps(40):
        steps = mpmath.mpf(2) ** SCALE_BITS
        beyond = (threshold.threshold_steps - threshold.unit_steps) / steps
        alone = mpmath.ncdf(-beyond) + mpmath.npdf(beyond) / steps
        assert alone <= threshold.single_unit_upper <= alone * (1 + mpmath.mpf(2) ** -38)
        for new in range(k + 1):
            # Balle and Wang 2018, Theorem 8, for a shift in k - new independent coordinates.
            mu = mpmath.sqrt(k - new) * threshold.unit_steps / steps
            noise = mpmath.mpf(0)
            if new < k:
                noise = mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(
                    -mu / 2 - epsilon / mu
                )
            assert 1 - (1 - alone) ** new * (1 - noise) <= delta
    assert threshold_delta_upper(threshold, epsilon, k) <= delta
    # And it is not needlessly high: at a threshold 1 % lower or a noise 1 % smaller it fails.
    lower = ThresholdSelection(
        unit_steps=threshold.unit_steps, threshold_steps=int(threshold.threshold_steps * 0.99)
    )
    assert threshold_delta_upper(lower, epsilon, k) > delta
    assert selection.delta_upper <= delta


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_promise_of_a_threshold_holds_for_every_set_of_outcomes_of_a_small_case(k):
    # All outcomes of k groups that one unit joins, some of them new: P(S) - e^epsilon Q(S) is
    # greatest where it is summed over the outcomes with P > e^epsilon Q.
    epsilon, delta = 1.0, 1e-3
    selection = KeySelection(epsilon=epsilon, delta=delta, groups_per_unit=max(k, 2)).mechanism
    counts = range(0, int(selection.threshold) + 30, 3)
    for before in itertools.combinations_with_replacement(counts, k):
        without = [float(selection.keep_probability(n)) for n in before]
        with_unit = [float(selection.keep_probability(n + 1)) for n in before]
        for p, q in ((with_unit, without), (without, with_unit)):
            excess = 0.0
            for outcome in itertools.product((True, False), repeat=k):
                a = math.prod(x if kept else 1 - x for x, kept in zip(p, outcome, strict=True))
                b = math.prod(x if kept else 1 - x for x, kept in zip(q, outcome, strict=True))
                excess += max(0.0, a - math.exp(epsilon) * b)
            assert excess <= delta * (1 + 1e-9)


def test_a_group_without_units_is_never_kept_whatever_the_words():
    # The noise alone reaches this threshold about once in forty times.
    selection = KeySelection(epsilon=1.0, delta=0.4, groups_per_unit=2).mechanism
    assert selection.threshold < 2 * selection.sigma
    optimal = OptimalSelection(epsilon=1.0, delta=0.5)
    nobody = np.zeros(4096, dtype=np.int64)
    assert not selection.keep(nobody, RandomWords(3)).any()
    assert not optimal.keep(nobody, ScriptedBlocks([n * (ONE // 4096) for n in range(4096)])).any()


def test_a_threshold_adds_the_noise_of_the_exact_sampler_and_nothing_overflows():
    selection = ThresholdSelection(unit_steps=3 << SCALE_BITS >> 3, threshold_steps=9 << SCALE_BITS)
    counts = np.array([1, 20, 23, 24, 25, 30, 2**40, 2**62] * 50)
    source = RandomWords(5)
    noise = DiscreteGaussian.power_of_two(SCALE_BITS).sample(source, counts.size)
    exact = [
        int(count) * selection.unit_steps + int(drawn) >= selection.threshold_steps
        for count, drawn in zip(counts, noise, strict=True)
    ]
    assert selection.keep(counts, source).tolist() == exact
    assert 0 < sum(exact[2::8]) < 50


@pytest.mark.parametrize("k", [2, 10, 100])
def test_a_threshold_costs_the_rho_of_its_noise_and_the_delta_of_a_new_group(k):
    selection = KeySelection(epsilon=1.0, delta=1e-6, groups_per_unit=k)
    threshold = selection.mechanism
    exact = Fraction(k * threshold.unit_steps**2, 2 * 4**SCALE_BITS)
    assert exact <= Fraction(selection.rho_upper) <= exact * (1 + Fraction(1, 10**11))
    with mpmath.workdps(40):
        failing = 1 - (1 - mpmath.mpf(threshold.single_unit_upper)) ** k
        assert failing <= float(selection.delta_upper) <= failing * (1 + mpmath.mpf(10) ** -11)


def test_what_cannot_be_learnt_is_refused_with_the_mend():
    with pytest.raises(ConfigurationError, match=r"count a unit in fewer groups"):
        KeySelection(epsilon=2.0**-10, delta=2.0**-80, groups_per_unit=10_000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a number from 0.000977 to 64, got 0.0"),
        ({"epsilon": math.nan}, "got nan"),
        ({"epsilon": True}, "got True"),
        ({"delta": 0.0}, "delta must be a number from 8.27e-25 to 0.5, got 0.0"),
        ({"delta": 0.7}, "got 0.7"),
        ({"groups_per_unit": 0}, "groups_per_unit must be a number from 1 to"),
        ({"groups_per_unit": 1.5}, "groups_per_unit must be a whole number"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        KeySelection(**{"epsilon": 1.0, "delta": 1e-6, **changes})


@pytest.mark.parametrize(
    ("k", "kept"),
    # python-dp 1.1.5 (Google's library): create_partition_strategy("gaussian", 1.0, 1e-6, k)
    # .probability_of_keep(count); it gives half of delta to the noise and half to the threshold.
    [
        (2, {20: 0.02559070673895314, 40: 0.9011818657512294}),
        (5, {40: 0.11398276765991211}),
        (20, {80: 0.07980455569243428}),
    ],
)
def test_a_threshold_keeps_more_than_googles_at_the_same_epsilon_and_delta(k, kept):
    selection = KeySelection(epsilon=1.0, delta=1e-6, groups_per_unit=k).mechanism
    for count, theirs in kept.items():
        assert theirs < selection.keep_probability(count) < 3 * theirs
