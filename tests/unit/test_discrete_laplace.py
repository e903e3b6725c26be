from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from word_sources import RandomWords

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import DiscreteLaplace

EPSILONS = ["1e-9", "0.001", "0.1", "1/3", "1", "2.5", "30", "1000"]


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("value", [0, 1, 2, 10, 1000])
def test_probabilities_and_tails_agree_with_geometric_series(epsilon: str, value: int) -> None:
    sampler = DiscreteLaplace(Fraction(epsilon))
    with mpmath.workdps(50):
        q = mpmath.exp(-mpmath.mpf(sampler.epsilon.numerator) / sampler.epsilon.denominator)
        mass = (1 - q) / (1 + q)
        # The derivative of the geometric series gives sum over j > k of (j - k) q^j.
        expected = [
            mass * q**value,
            mass * q**value / (1 - q),
            mass * q ** (value + 1) / (1 - q) ** 2,
        ]
        got = [sampler.probability(value), sampler.tail(value), sampler.mean_excess(value)]
        for exact, number in zip(expected, got, strict=True):
            relative = 4e-16 * (4 + value * float(sampler.epsilon))
            assert float(number) == pytest.approx(float(exact), rel=relative, abs=1e-300)
    assert sampler.probability(-value) == sampler.probability(value)


def test_neighbouring_probabilities_differ_by_the_factor_of_pure_privacy() -> None:
    """P(z) / P(z + 1) is e^epsilon or e^-epsilon, for the samples too."""
    sampler = DiscreteLaplace(Fraction(1, 2))
    drawn = sampler.sample(RandomWords(seed=6), 400_000)
    for z in range(-3, 3):
        ratio = np.sum(drawn == z) / np.sum(drawn == z + 1)
        # Six standard deviations of a ratio of two counts above 2e4.
        assert abs(np.log(ratio)) == pytest.approx(0.5, abs=6 * (2 / 20_000) ** 0.5)


@pytest.mark.parametrize("epsilon", [0, -1, Fraction(1, 2**51), 1025])
def test_epsilons_beyond_what_is_exact_or_fits_are_refused(epsilon: Fraction) -> None:
    with pytest.raises(ConfigurationError, match="epsilon"):
        DiscreteLaplace(Fraction(epsilon))
