"""What the discrete Gaussian and the discrete Laplace sampler share: exactness, bit by bit."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import pickle
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from word_sources import REAL_BITS, ConstantWords, EveryWord, RandomWords, RealNumbers

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.mechanisms import DiscreteGaussian, DiscreteLaplace
from spark_dphist.mechanisms.exact_bits import (
    FURTHER_BLOCKS,
    ExponentialWeights,
    Uniform,
    is_below_exponential,
)

Sampler = DiscreteGaussian | DiscreteLaplace

# Scales below, at and above powers of two, down to nearly no noise.
SMALL = [
    DiscreteGaussian(Fraction(1, 10)),
    DiscreteGaussian(Fraction(1)),
    DiscreteGaussian(Fraction(25, 4)),
    DiscreteGaussian(Fraction(16)),
    DiscreteLaplace(Fraction(3)),
    DiscreteLaplace(Fraction(1)),
    DiscreteLaplace(Fraction(2, 5)),
    DiscreteLaplace(Fraction(1, 4)),
]
LARGE = [
    DiscreteGaussian(Fraction(4) ** 44),
    DiscreteGaussian(Fraction(4) ** 57),
    DiscreteGaussian(Fraction(2) ** 101 + Fraction(1, 3)),
    DiscreteLaplace(Fraction(1, 2**50)),
    DiscreteLaplace(Fraction(7, 10**9)),
]


def with_word_bits(sampler: Sampler, word_bits: int) -> Sampler:
    if isinstance(sampler, DiscreteGaussian):
        return DiscreteGaussian(sampler.variance, word_bits=word_bits)
    return DiscreteLaplace(sampler.epsilon, word_bits=word_bits)


def exponent(sampler: Sampler, magnitude: int) -> Fraction:
    if isinstance(sampler, DiscreteGaussian):
        return Fraction(magnitude) ** 2 / (2 * sampler.variance)
    return magnitude * sampler.epsilon


def weight(sampler: Sampler, magnitude: int) -> mpmath.mpf:
    g = exponent(sampler, magnitude)
    return mpmath.exp(-mpmath.mpf(g.numerator) / g.denominator)


def multiple_probabilities(sampler: Sampler, digits: int) -> list[mpmath.mpf]:
    """P(I <= i), to at least 10**-digits."""
    weights = []
    while not weights or weights[-1] > mpmath.mpf(10) ** -(digits + 3):
        weights.append(weight(sampler, len(weights) << sampler.block_bits))
    total = mpmath.fsum(weights)
    return [part / total for part in itertools.accumulate(weights)]


@functools.cache
def total_weight(sampler: Sampler, step: int = 1) -> mpmath.mpf:
    """The sum of the weights of 0, step, 2 step, ... to 15 digits."""
    return mpmath.fsum(
        weight(sampler, step * i) for i in range(math.ceil(45 * 2**sampler.block_bits / step))
    )


def pmf(sampler: Sampler, value: int) -> float:
    return float(weight(sampler, abs(value)) / (2 * total_weight(sampler) - 1))


def to_real(value: mpmath.mpf, above: int) -> int:
    """The multiple of 2**-240 next to value from below, or (1) from above."""
    return int(mpmath.floor(value * mpmath.mpf(2) ** 240) + above) << (REAL_BITS - 240)


@pytest.mark.parametrize("sampler", SMALL, ids=str)
@pytest.mark.parametrize("word_bits", [3, 5, 6])
def test_all_words_together_give_the_stated_probabilities(sampler: Sampler, word_bits: int) -> None:
    """Enumerates every value of the words of one attempt: no randomness, no tolerance.

    A word stands for an interval of real numbers. Where it decides, the outcome is the same for
    the whole interval, so the decided share bounds each probability from below, and with the
    undecided share from above.
    """
    if sampler.block_bits + 2 * word_bits > 14:
        word_bits = (14 - sampler.block_bits) // 2
    outcomes = []
    for further in (0, 2**64 - 2):
        source = EveryWord(word_bits, sampler.block_bits, further)
        drawn = with_word_bits(sampler, word_bits).sample(source, source.size)
        outcomes.append(np.where(source.rejected, 2**62, drawn))
    decided = ~source.undecided
    assert np.array_equal(outcomes[0][decided], outcomes[1][decided])

    block = 1 << sampler.block_bits
    mass = total_weight(sampler, block)
    seen = set(outcomes[0].tolist()) | set(outcomes[1].tolist())
    for value in seen - {2**62}:
        # One attempt returns z with probability w(z) / (2 block sum of w(block i)).
        exact = weight(sampler, abs(value)) / (2 * block * mass)
        both = (outcomes[0] == value) & (outcomes[1] == value)
        either = (outcomes[0] == value) | (outcomes[1] == value)
        between = np.minimum(outcomes[0], outcomes[1]) <= value
        between &= np.maximum(outcomes[0], outcomes[1]) >= value
        assert int(np.sum(both & decided)) <= exact * source.size
        assert exact * source.size <= int(np.sum(either | (source.undecided & between)))
    # What is not decided is at most one word for each threshold, so the bounds are narrow.
    thresholds = np.sum(np.arange(40) * block <= 40 * block / 2**0.5)
    assert np.mean(source.undecided) <= (thresholds + 2) / 2**word_bits


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
def test_a_number_next_to_a_cumulative_probability_is_inverted_exactly(sampler: Sampler) -> None:
    with mpmath.workprec(500):
        cumulative = multiple_probabilities(sampler, 100)
        planted, expected = {}, []
        # The last one is so close to 1 that only the tail without a cut-off can tell.
        last = sum(value < 1 - mpmath.mpf(2) ** -230 for value in cumulative) - 1
        for i in (0, 1, 2, last):
            value = cumulative[i]
            for above in (0, 1):
                planted[len(expected), 0] = to_real(value, above)
                expected.append(i + above)
    for word_bits in (64, 8):
        drawing = with_word_bits(sampler, word_bits)
        source = RealNumbers(word_bits, planted=planted)
        words = np.array(
            [planted[row, 0] >> (REAL_BITS - word_bits) for row in range(len(expected))],
            dtype=np.uint64,
        )
        rows = np.arange(len(expected), dtype=np.int64)
        assert drawing._multiples(source, rows, 0, words).tolist() == expected
        assert source.further_words >= 2 * len(expected)


@pytest.mark.parametrize("sampler", [s for s in SMALL + LARGE if s.block_bits > 0], ids=str)
@pytest.mark.parametrize("word_bits", [64, 8])
def test_a_number_next_to_an_acceptance_probability_is_compared_exactly(
    sampler: Sampler, word_bits: int
) -> None:
    block = 1 << sampler.block_bits
    cases = [(i, j) for i in (0, 1, 3) for j in sorted({1, block // 2, block - 1})]
    planted, offsets, expected = {}, {}, []
    with mpmath.workprec(500):
        cumulative = multiple_probabilities(sampler, 100)
        for i, j in cases:
            rise = exponent(sampler, i * block + j) - exponent(sampler, i * block)
            acceptance = mpmath.exp(-mpmath.mpf(rise.numerator) / rise.denominator)
            middle = (cumulative[i] + (cumulative[i - 1] if i else 0)) / 2
            for above in (0, 1):
                row = len(expected)
                planted[row, 0], planted[row, 1] = to_real(middle, 0), to_real(acceptance, above)
                offsets[row] = j
                expected.append((i * block + j, above == 0))
    source = RealNumbers(word_bits, planted=planted, offsets=offsets)
    rows = np.arange(len(expected), dtype=np.int64)
    values, accepted = with_word_bits(sampler, word_bits)._attempt(source, rows, 0)
    assert list(zip(values.tolist(), accepted.tolist(), strict=True)) == expected


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
@pytest.mark.parametrize("word_bits", [1, 4, 8, 31])
def test_the_exact_path_makes_the_same_draws_as_the_fast_one(
    sampler: Sampler, word_bits: int
) -> None:
    """The same real numbers, looked at through words of 64 or of a few bits."""
    size = 150
    fast, exact = RealNumbers(64, seed=5), RealNumbers(word_bits, seed=5)
    expected = sampler.sample(fast, size)
    assert np.array_equal(with_word_bits(sampler, word_bits).sample(exact, size), expected)
    assert fast.further_words == 0
    if word_bits == 1:
        assert exact.further_words > size / 2


@pytest.mark.parametrize("sampler", SMALL, ids=str)
@pytest.mark.parametrize(("word_bits", "size"), [(64, 200_000), (8, 20_000), (4, 2_000)])
def test_draws_pass_a_chi_squared_test_against_the_exact_probabilities(
    sampler: Sampler, word_bits: int, size: int
) -> None:
    """Fixed seed; each case alone would fail by chance once in 1e6 seeds."""
    drawn = with_word_bits(sampler, word_bits).sample(RandomWords(seed=17), size)
    reach = 0
    while size * pmf(sampler, reach + 1) > 20:
        reach += 1
    values = np.arange(-reach, reach + 1)
    expected = np.array([pmf(sampler, int(value)) for value in values]) * size
    observed = np.array([np.sum(drawn == value) for value in values], dtype=float)
    expected = np.append(expected, size - expected.sum())
    observed = np.append(observed, size - observed.sum())
    keep = expected > 5
    statistic = np.sum((observed - expected)[keep] ** 2 / expected[keep])
    assert stats.chi2.sf(statistic, keep.sum() - 1) > 1e-6
    assert np.all(observed[~keep] <= 40)


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
@pytest.mark.parametrize(
    "word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x5555555555555555, 0xAAAAAAAAAAAAAAAA, 2**64 - 2]
)
@pytest.mark.parametrize("word_bits", [64, 8, 1])
def test_words_that_are_not_random_end_in_a_value_or_a_clear_error(
    sampler: Sampler, word: int, word_bits: int
) -> None:
    with contextlib.suppress(ReleaseError):
        drawn = with_word_bits(sampler, word_bits).sample(ConstantWords(word), 3)
        assert len(set(drawn.tolist())) == 1


def test_words_of_only_ones_are_an_error_and_of_only_zeros_give_zero() -> None:
    sampler = DiscreteGaussian.power_of_two(44)
    assert sampler.sample(ConstantWords(0), 4).tolist() == [0, 0, 0, 0]
    with pytest.raises(ReleaseError, match=r"256 further bits .* Nothing was published"):
        sampler.sample(ConstantWords(2**64 - 1), 4)


def test_words_that_always_reject_are_an_error() -> None:
    with pytest.raises(ReleaseError, match=r"256 attempts .* Nothing was published"):
        # Always minus zero.
        DiscreteGaussian(Fraction(1)).sample(ConstantWords(2**63), 1)


@pytest.mark.parametrize("sampler", LARGE, ids=str)
def test_the_most_extreme_words_stay_within_int64(sampler: Sampler) -> None:
    """Ones up to nearly the last bit that is ever looked at: the largest multiples there are."""
    with mpmath.workprec(2400):
        ones = (1 << REAL_BITS) - 1
        for leading in (100, 256, 312):
            real = ones ^ (1 << (REAL_BITS - leading - 1))
            source = RealNumbers(
                64, planted={(0, 0): real, (0, 1): 0}, offsets={0: (1 << sampler.block_bits) - 1}
            )
            drawn = int(sampler.sample(source, 1)[0])
            multiple = drawn >> sampler.block_bits
            number = real / mpmath.mpf(2) ** REAL_BITS
            cumulative = multiple_probabilities(sampler, 120)
            assert cumulative[multiple - 1] <= number < cumulative[multiple]
    assert (multiple + 8) << sampler.block_bits < 2**63


@given(
    st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(10)),
    st.integers(1, 12),
)
@settings(max_examples=25)
def test_thresholds_bracket_the_cumulative_probabilities(rate: Fraction, word_bits: int) -> None:
    def exponent_of(i: int) -> Fraction:
        return i * (i + 1) * rate / 2 + i * Fraction(1, 2)

    lower, upper = ExponentialWeights(exponent_of).thresholds(word_bits)
    weights = [
        mpmath.exp(-mpmath.mpf(g.numerator) / g.denominator) for g in map(exponent_of, range(200))
    ]
    total = mpmath.fsum(weights)
    for i, (low, high) in enumerate(zip(lower[:-1].tolist(), upper[:-1].tolist(), strict=True)):
        scaled = mpmath.fsum(weights[: i + 1]) / total * 2**word_bits
        assert low <= scaled <= high + 1
        assert high - low <= 1
    assert np.all(np.diff(lower.astype(np.int64)) >= 0)
    assert lower[-1] == upper[-1] == 2**word_bits - 1


@given(st.fractions(min_value=0, max_value=50), st.integers(0, 255))
@settings(max_examples=50)
def test_comparisons_agree_with_the_exponential(exponent: Fraction, prefix: int) -> None:
    source = RealNumbers(8, seed=3, planted={(0, 0): (prefix << (REAL_BITS - 8)) + 12345})
    below = is_below_exponential(Uniform(source, 0, 0, prefix, 8), exponent)
    with mpmath.workprec(2200):
        value = mpmath.exp(-mpmath.mpf(exponent.numerator) / exponent.denominator)
        assert below == ((prefix << (REAL_BITS - 8)) + 12345 < value * mpmath.mpf(2) ** REAL_BITS)


def test_a_number_is_inverted_by_the_bits_that_were_already_seen() -> None:
    """Half the mass is at 0: numbers below one half must give 0 whatever follows the prefix."""
    ones, zeros = ConstantWords(2**64 - 1), ConstantWords(0)

    def exponent_of(i: int) -> Fraction:
        return Fraction(i) * 7 / 10

    weights = ExponentialWeights(exponent_of)
    half = 1 - mpmath.exp(-mpmath.mpf(7) / 10)
    prefix = int(half * 16)
    assert weights.invert(Uniform(ones, 0, 0, prefix - 1, 4)) == 0
    assert weights.invert(Uniform(zeros, 0, 0, prefix, 4)) == 0
    assert weights.invert(Uniform(zeros, 0, 0, prefix + 1, 4)) == 1
    assert weights.invert(Uniform(ones, 0, 0, 0, 4)) == 0


def test_a_sampler_survives_pickling_before_and_after_its_first_draw() -> None:
    for sampler in SMALL + LARGE:
        drawn = sampler.sample(RandomWords(seed=4), 20)
        with_word_bits(sampler, 2).sample(RandomWords(seed=4), 20)
        copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
        assert np.array_equal(copy.sample(RandomWords(seed=4), 20), drawn)


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
def test_a_row_draws_the_same_alone_and_among_others(sampler: Sampler) -> None:
    class Shifted:
        def block(self, rows: np.ndarray, index: int) -> np.ndarray:
            return RandomWords(seed=2).block(rows + 400, index)

    together = sampler.sample(RandomWords(seed=2), 500)
    assert np.array_equal(sampler.sample(Shifted(), 100), together[400:])


def test_rejections_are_as_rare_as_stated() -> None:
    """Below 0.57, worst just above a power of two (docs/sampling.md)."""
    scales = [*np.geomspace(0.05, 300, 200), *(2.0**k * (1 + 1e-12) for k in range(-3, 12))]
    worst = 0.0
    for scale in scales:
        for sampler in (
            DiscreteGaussian(Fraction(scale) ** 2),
            DiscreteLaplace(1 / Fraction(scale)),
        ):
            block = 1 << sampler.block_bits
            z = np.arange(60 * block, dtype=np.float64)
            gaussian = isinstance(sampler, DiscreteGaussian)
            weights = np.exp(-((z / scale) ** 2) / 2 if gaussian else -z / scale)
            accepted = (2 * weights.sum() - 1) / (2 * block * weights[::block].sum())
            worst = max(worst, 1 - accepted)
    assert 0.56 < worst < 0.57
    drawn = DiscreteLaplace(Fraction(1, 1025))
    _, accepted_rows = drawn._attempt(RandomWords(seed=9), np.arange(100_000), 0)
    assert 1 - accepted_rows.mean() == pytest.approx(0.567, abs=0.01)


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
def test_no_block_of_words_is_used_twice(sampler: Sampler) -> None:
    seen: set[tuple[int, int]] = set()

    class Recorded(RandomWords):
        def block(self, rows: np.ndarray, index: int) -> np.ndarray:
            asked = {(int(row), index) for row in rows}
            assert not asked & seen
            seen.update(asked)
            return super().block(rows, index)

    with_word_bits(sampler, 1).sample(Recorded(seed=8), 50)
    assert any(index >= FURTHER_BLOCKS for _, index in seen)


def test_no_rows_give_no_draws() -> None:
    assert DiscreteGaussian(Fraction(1)).sample(RandomWords(seed=1), 0).shape == (0,)


@pytest.mark.parametrize("word_bits", [0, 65, -1])
def test_a_word_has_from_1_to_64_bits(word_bits: int) -> None:
    for sampler in (DiscreteGaussian(Fraction(1)), DiscreteLaplace(Fraction(1))):
        with pytest.raises(ConfigurationError, match="word_bits"):
            with_word_bits(sampler, word_bits)


@pytest.mark.parametrize("sampler", SMALL + LARGE, ids=str)
def test_the_block_is_the_least_power_of_two_not_below_the_scale(sampler: Sampler) -> None:
    gaussian = isinstance(sampler, DiscreteGaussian)
    square = sampler.variance if gaussian else 1 / sampler.epsilon**2
    assert 4**sampler.block_bits >= square
    assert sampler.block_bits == 0 or 4 ** (sampler.block_bits - 1) < square
