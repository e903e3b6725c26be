"""The samplers through the production streams, against the exact distributions, at 4e6 draws.

The release key is fixed, so these tests do not flicker. With a random key each of the tests of a
right scale would fail by chance with probability 1e-6, about 4e-5 for all of them together. The
tests of a wrong scale, 1 % off, would pass by chance far more rarely still: the statistic is
expected 5 of its standard deviations or more beyond the bound.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from spark_dphist.mechanisms import DiscreteGaussian, DiscreteLaplace
from spark_dphist.streams import GroupStreams, ReleaseKey

pytestmark = pytest.mark.statistical

SIZE = 4_000_000
FALSE_ALARM = 1e-6
KEY = ReleaseKey.fixed_for_tests(b"the samplers' fixed key of tests")

Sampler = DiscreteGaussian | DiscreteLaplace

SMALL = [
    DiscreteGaussian(Fraction(1)),
    DiscreteGaussian(Fraction(25, 4)),
    DiscreteGaussian(Fraction(16) ** 2),
    DiscreteLaplace(Fraction(1)),
    DiscreteLaplace(Fraction(1, 3)),
    DiscreteLaplace(Fraction(1, 20)),
]
LARGE = [
    DiscreteGaussian.power_of_two(44),
    DiscreteGaussian(Fraction(10) ** 20 / 7),
    DiscreteLaplace(Fraction(1, 2**40)),
    DiscreteLaplace(Fraction(3, 10**11)),
]


@pytest.fixture(scope="module")
def streams() -> GroupStreams:
    generator = np.random.Generator(np.random.Philox(2024))
    digests = generator.integers(0, 256, (SIZE, 32), dtype=np.uint8)
    return GroupStreams(KEY, digests)


def one_percent_wider(sampler: Sampler) -> Sampler:
    if isinstance(sampler, DiscreteGaussian):
        return DiscreteGaussian(sampler.variance * Fraction(101, 100) ** 2)
    return DiscreteLaplace(sampler.epsilon * Fraction(100, 101))


def chi_squared_p_value(drawn: np.ndarray, sampler: Sampler) -> float:
    """Single integers as cells while 20 or more are expected, both tails as one cell each."""
    reach = 1
    while drawn.size * float(sampler.probability(reach + 1)) >= 20:
        reach += 1
    values = np.arange(-reach, reach + 1)
    tail = float(sampler.tail(reach + 1))
    expected = np.concatenate([[tail], sampler.probability(values), [tail]]) * drawn.size
    cells = np.clip(drawn, -reach - 1, reach + 1) + reach + 1
    observed = np.bincount(cells, minlength=expected.size)
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), expected.size - 1))


def cumulative(sampler: Sampler, z: np.ndarray) -> np.ndarray:
    """The distribution function; at these scales it is continuous to 1e-10."""
    if isinstance(sampler, DiscreteGaussian):
        return ndtr(z / math.sqrt(sampler.variance))
    far = np.exp(-np.abs(z) * float(sampler.epsilon)) / 2
    return np.where(z < 0, far, 1 - far)


def largest_distance(ordered: np.ndarray, exact: np.ndarray) -> float:
    """Kolmogorov's distance of ordered draws from a distribution function at these draws."""
    steps = np.arange(ordered.size + 1) / ordered.size
    return float(max(np.max(steps[1:] - exact), np.max(exact - steps[:-1])))


def magnitude_distance(drawn: np.ndarray, sampler: Sampler) -> float:
    """Of |z|, twice as sharp as that of z when the scale is wrong."""
    ordered = np.sort(np.abs(drawn)).astype(np.float64)
    return largest_distance(ordered, 2 * cumulative(sampler, ordered) - 1)


@pytest.mark.parametrize("sampler", SMALL, ids=str)
def test_small_scales_pass_chi_squared_and_one_percent_off_fails(
    sampler: Sampler, streams: GroupStreams
) -> None:
    drawn = sampler.sample(streams, SIZE)
    assert chi_squared_p_value(drawn, sampler) > FALSE_ALARM
    assert chi_squared_p_value(drawn, one_percent_wider(sampler)) < FALSE_ALARM
    wider = one_percent_wider(sampler).sample(streams, SIZE)
    assert chi_squared_p_value(wider, sampler) < FALSE_ALARM


@pytest.mark.parametrize("sampler", LARGE, ids=str)
def test_large_scales_pass_kolmogorov_smirnov_and_one_percent_off_fails(
    sampler: Sampler, streams: GroupStreams
) -> None:
    # Dvoretzky-Kiefer-Wolfowitz with Massart's constant: P(D > t) <= 2 exp(-2 n t²).
    bound = math.sqrt(math.log(2 / FALSE_ALARM) / (2 * SIZE))
    drawn = sampler.sample(streams, SIZE)
    ordered = np.sort(drawn).astype(np.float64)
    assert largest_distance(ordered, cumulative(sampler, ordered)) < bound
    assert magnitude_distance(drawn, sampler) < bound
    assert magnitude_distance(drawn, one_percent_wider(sampler)) > bound
    wider = one_percent_wider(sampler).sample(streams, SIZE)
    assert magnitude_distance(wider, sampler) > bound


@pytest.mark.parametrize("sampler", LARGE, ids=str)
def test_the_lowest_bits_are_as_random_as_the_rest(sampler: Sampler, streams: GroupStreams) -> None:
    """Steps far below the scale are equally likely: 256 residues in a chi-squared test."""
    drawn = sampler.sample(streams, SIZE)
    counts = np.bincount(drawn & 255, minlength=256)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("sampler", [SMALL[1], SMALL[4], LARGE[0], LARGE[2]], ids=str)
def test_draws_of_neighbouring_groups_are_uncorrelated(
    sampler: Sampler, streams: GroupStreams
) -> None:
    """Their values, sizes and signs, a normal score each."""
    drawn = sampler.sample(streams, SIZE).astype(np.float64)
    limit = stats.norm.isf(FALSE_ALARM / 6)
    for quantity in (drawn, np.abs(drawn), np.sign(drawn)):
        score = (quantity - quantity.mean()) / quantity.std()
        assert abs(np.sum(score[1:] * score[:-1])) / math.sqrt(SIZE) < limit
    assert abs(np.sum(np.sign(drawn))) / math.sqrt(np.sum(drawn != 0)) < limit


@pytest.mark.parametrize("sampler", SMALL, ids=str)
def test_the_exact_path_passes_chi_squared_too(sampler: Sampler, streams: GroupStreams) -> None:
    """1e5 draws with words of 8 bits, some percent of them settled by exact arithmetic."""
    if isinstance(sampler, DiscreteGaussian):
        shrunk: Sampler = DiscreteGaussian(sampler.variance, word_bits=8)
    else:
        shrunk = DiscreteLaplace(sampler.epsilon, word_bits=8)
    assert chi_squared_p_value(shrunk.sample(streams, 100_000), sampler) > FALSE_ALARM
