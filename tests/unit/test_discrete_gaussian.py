from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from word_sources import EveryWord

from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import DiscreteGaussian

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "data" / "reference_values.json").read_text("utf-8")
)["discrete_gaussian_pmf"]

# Both sides of the scale at which sums become Euler-Maclaurin expansions, and the extremes.
SCALES = ["0.01", "0.3", "1", "2.5", "60", "255.99", "256", "256.01", "1000"]


def of_scale(scale: str) -> DiscreteGaussian:
    return DiscreteGaussian(Fraction(scale) ** 2)


@pytest.mark.parametrize("row", REFERENCE, ids=str)
def test_probabilities_agree_with_the_reference_values(row: dict[str, str]) -> None:
    got = float(of_scale(row["scale"]).probability(int(row["k"])))
    assert got == pytest.approx(float(row["value"]), rel=1e-14)


@pytest.mark.parametrize("row", [r for r in REFERENCE if r["scale"] != "16"], ids=str)
def test_the_sampler_gives_the_reference_values_when_all_words_are_enumerated(
    row: dict[str, str],
) -> None:
    sampler = of_scale(row["scale"])
    source = EveryWord(6, sampler.block_bits, further=0)
    drawn = DiscreteGaussian(sampler.variance, word_bits=6).sample(source, source.size)
    decided = ~source.undecided & ~source.rejected
    kept = np.sum(~source.rejected & ~source.undecided)
    least, most = kept, kept + np.sum(source.undecided)
    hits, value = np.sum(decided & (drawn == int(row["k"]))), float(row["value"])
    # Accepted mass lies between least and most; so does value times it, up to what is undecided.
    assert hits <= value * most
    assert value * least <= hits + np.sum(source.undecided)


@pytest.mark.parametrize("scale", SCALES)
def test_tails_agree_with_sums_of_fifty_digits(scale: str) -> None:
    sampler = of_scale(scale)
    square = mpmath.mpf(scale) ** 2
    reach = int(45 * float(scale)) + 5
    weights = [mpmath.exp(-mpmath.mpf(k * k) / (2 * square)) for k in range(reach)]
    total = 2 * mpmath.fsum(weights) - 1
    tails = [mpmath.mpf(0)] * (reach + 1)
    excess = [mpmath.mpf(0)] * (reach + 1)
    for k in range(reach - 1, -1, -1):
        tails[k] = tails[k + 1] + weights[k] / total
        excess[k] = excess[k + 1] + tails[k + 1]
    mean_absolute = float(2 * excess[0])
    for k in sorted({0, 1, 2, 3, reach // 40, reach // 20, reach // 10, reach // 5}):
        # A double's exponent t**2 / 2 is known to a few units in its last place.
        relative = 1e-14 * (1 + (k / float(scale)) ** 2)
        for got, exact in (
            (sampler.probability(k), weights[k] / total),
            (sampler.tail(k), tails[k]),
        ):
            assert float(got) == pytest.approx(float(exact), rel=relative, abs=1e-300)
        assert float(sampler.mean_excess(k)) == pytest.approx(
            float(excess[k]), rel=relative, abs=1e-14 * mean_absolute
        )


def test_tails_are_those_of_the_normal_distribution_at_large_scales() -> None:
    sampler = DiscreteGaussian.power_of_two(40)
    k = np.array([0, 2**39, 2**40, 3 * 2**40])
    z = [mpmath.mpf(int(v)) / 2**40 for v in k]
    assert sampler.tail(k) == pytest.approx([float(mpmath.ncdf(-v)) for v in z], rel=1e-11)
    excess = [float((mpmath.npdf(v) - v * mpmath.ncdf(-v)) * 2**40) for v in z]
    assert sampler.mean_excess(k) == pytest.approx(excess, rel=1e-11)


def test_tails_beyond_all_probability_are_zero_and_arrays_keep_their_shape() -> None:
    for sampler in (of_scale("2"), of_scale("500")):
        far = np.array([[0, 10], [10**6, 2**48]])
        assert sampler.tail(far).shape == sampler.mean_excess(far).shape == (2, 2)
        assert sampler.tail(far)[1].tolist() == [0, 0]
        assert sampler.mean_excess(far)[1].tolist() == [0, 0]


@pytest.mark.parametrize("variance", [0, -1, Fraction(1, 2**17), 2**114 + 1])
def test_variances_beyond_what_is_exact_or_fits_are_refused(variance: Fraction) -> None:
    with pytest.raises(ConfigurationError, match="variance"):
        DiscreteGaussian(Fraction(variance))
