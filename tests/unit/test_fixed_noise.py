from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_sources import RandomWords

from spark_dphist.accounting import pure_to_rho_upper
from spark_dphist.errors import ConfigurationError
from spark_dphist.mechanisms import MAX_COUNT, FixedGaussian, FixedLaplace, publish

FixedNoise = FixedGaussian | FixedLaplace
BOTH = [FixedGaussian, FixedLaplace]

EXAMPLES = [
    FixedGaussian(scale=0.3, floor=1),
    FixedGaussian(scale=1, floor=1),
    FixedGaussian(scale=7.25, floor=20),
    FixedGaussian(scale=400.5, floor=1000),
    FixedLaplace(epsilon=5, floor=1),
    FixedLaplace(epsilon=1, floor=1),
    FixedLaplace(epsilon=0.1, floor=20),
    FixedLaplace(epsilon=0.004, floor=1000),
]


def probabilities(mechanism: FixedNoise) -> list[mpmath.mpf]:
    """P(N = k) for k = 0, 1, ... to 40 digits."""
    with mpmath.workdps(40):
        weights: list[mpmath.mpf] = []
        while not weights or weights[-1] > mpmath.mpf(10) ** -40:
            k = len(weights)
            if isinstance(mechanism, FixedGaussian):
                weights.append(
                    mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(mechanism.scale) ** 2))
                )
            else:
                weights.append(mpmath.exp(-k * mpmath.mpf(mechanism.epsilon)))
        total = 2 * mpmath.fsum(weights) - 1
        return [weight / total for weight in weights]


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_error_and_bias_agree_with_sums_over_every_draw(mechanism: FixedNoise) -> None:
    mass = probabilities(mechanism)
    for count in (0, 1, 2, 5, 20, 1000, 10**6):
        error = bias = mpmath.mpf(0)
        for k, p in enumerate(mass):
            for noise in {k, -k}:
                deviation = max(count + noise, 0) - count
                error += p * abs(deviation)
                bias += p * deviation
        assert float(mechanism.expected_absolute_error(count)) == pytest.approx(
            float(error), rel=1e-13
        )
        assert float(mechanism.expected_absolute_error(count, rounded=True)) == pytest.approx(
            float(error), rel=1e-13
        )
        assert float(mechanism.expected_bias(count)) == pytest.approx(
            float(bias), rel=1e-9, abs=1e-13 * float(error)
        )


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.95, 0.999999])
def test_intervals_are_the_narrowest_that_cover_what_they_say(
    mechanism: FixedNoise, confidence: float
) -> None:
    lower, upper = mechanism.interval([10**6], confidence)
    half_width = int(upper[0] - 10**6)
    assert lower[0] == 10**6 - half_width
    mass = probabilities(mechanism)
    covered = 2 * mpmath.fsum(mass[: half_width + 1]) - mass[0]
    assert covered >= confidence
    if half_width > 0:
        assert covered - 2 * mass[half_width] < confidence


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_intervals_never_reach_below_zero(mechanism: FixedNoise) -> None:
    lower, upper = mechanism.interval([-(10**9), -1, 0, 1])
    assert np.all(lower >= 0)
    assert np.all(lower <= upper)
    assert upper[0] == 0


@pytest.mark.parametrize("relative_error", [0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("floor", [1, 1.5, 3.2, 20, 100, 12345.6, 10**6, 2.0**40])
@pytest.mark.parametrize("kind", BOTH)
def test_a_calibrated_mechanism_keeps_the_promise_at_every_count_and_hardly_more(
    kind: type[FixedNoise], relative_error: float, floor: float
) -> None:
    mechanism = kind.calibrate(relative_error=relative_error, floor=floor)
    assert mechanism.floor == floor
    counts = np.unique(np.rint(np.geomspace(1, 100 * floor, 2000)))
    counts = np.union1d(counts, [0, math.floor(floor), math.ceil(floor)])
    allowed = relative_error * np.maximum(counts, floor)
    assert np.all(mechanism.expected_absolute_error(counts) < allowed)
    if isinstance(mechanism, FixedGaussian):
        noisier = FixedGaussian(scale=mechanism.scale * (1 + 1e-9), floor=floor)
    else:
        noisier = FixedLaplace(epsilon=mechanism.epsilon * (1 - 1e-9), floor=floor)
    assert np.any(noisier.expected_absolute_error(counts) >= allowed)


@given(st.floats(1e-6, 0.999), st.floats(1, 1e9), st.sampled_from(BOTH))
@settings(max_examples=60)
def test_calibration_is_strict_for_any_promise(
    relative_error: float, floor: float, kind: type[FixedNoise]
) -> None:
    mechanism = kind.calibrate(relative_error=relative_error, floor=floor)
    counts = np.floor(floor) + np.arange(-1, 3)
    allowed = relative_error * np.maximum(counts, floor)
    assert np.all(mechanism.expected_absolute_error(counts) < allowed)


@given(st.floats(0.05, 1e6), st.sampled_from(BOTH))
@settings(max_examples=40)
def test_the_error_rises_with_the_count_and_its_ratio_to_the_count_falls(
    size: float, kind: type[FixedNoise]
) -> None:
    """What calibration rests on."""
    mechanism = (
        kind(scale=size, floor=1) if kind is FixedGaussian else kind(epsilon=1 / size, floor=1)
    )
    counts = np.unique(np.rint(np.geomspace(1, 20 * size + 10, 300)))
    error = mechanism.expected_absolute_error(counts)
    slack = 1e-12 * error[-1]
    assert np.all(np.diff(error) >= -slack)
    assert np.all(np.diff(error / counts) <= slack)


@pytest.mark.parametrize("records", [1, 2, 7])
def test_the_gaussian_budget_is_its_exact_value_rounded_up(records: int) -> None:
    for scale in (0.01, 0.3, 1.0, 7.25, 1e6 / 3):
        rho = float(FixedGaussian(scale=scale, floor=1).budget(5, records))
        exact = Fraction(records) ** 2 / (2 * Fraction(scale) ** 2)
        assert exact <= Fraction(rho) <= exact * (1 + Fraction(1, 2**51))


@pytest.mark.parametrize("records", [1, 2, 7])
@pytest.mark.parametrize("epsilon", [1e-9, 0.01, 0.1, 1.0, 5.0, 50.0])
def test_the_laplace_budget_is_that_of_its_pure_epsilon(epsilon: float, records: int) -> None:
    mechanism = FixedLaplace(epsilon=epsilon, floor=1)
    total = records * Fraction(epsilon)
    assert total <= Fraction(mechanism.pure_epsilon(records)) <= total * (1 + Fraction(1, 2**51))
    with mpmath.workdps(40):
        x = mpmath.mpf(total.numerator) / total.denominator
        exact = x * mpmath.tanh(x / 2)
        rho = mpmath.mpf(float(mechanism.budget(5, records)))
        assert exact <= rho <= exact * (1 + mpmath.mpf(2) ** -47)
        assert rho <= x**2 / 2 * (1 + mpmath.mpf(2) ** -47)
    assert float(rho) == pytest.approx(pure_to_rho_upper(records * epsilon), rel=1e-14)


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
@pytest.mark.parametrize("records", [1, 3])
def test_no_renyi_divergence_of_the_noise_is_above_its_order_times_the_budget(
    mechanism: FixedNoise, records: int
) -> None:
    mass = probabilities(mechanism)
    rho = float(mechanism.budget(0, records))
    greatest = 0.0
    with mpmath.workdps(40):
        # P is the noise, Q the noise moved by ``records``; the sum stops where P is below 1e-40.
        ratio = [mass[k + records] / mass[k] for k in range(len(mass) - records)]
        for order in (1.001, 2, 6):
            moment = mpmath.fsum(
                mass[k] * ratio[k] ** (1 - order) + mass[k + records] * ratio[k] ** (order - 1)
                for k in range(len(ratio))
            )
            moment += mpmath.fsum(
                mass[k] ** order * mass[records - k] ** (1 - order) for k in range(1, records)
            )
            divergence = float(mpmath.log(moment) / (order - 1))
            assert divergence <= order * rho * (1 + 1e-9)
            greatest = max(greatest, divergence / order)
    if records == 1 and not isinstance(mechanism, FixedGaussian):
        # The privacy loss takes two values only, so the bound is attained as the order falls to 1.
        assert greatest >= 0.998 * rho


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("rho", [1e-8, 0.003, 0.1, 1.0, 61.0])
@pytest.mark.parametrize("kind", BOTH)
def test_a_mechanism_for_a_budget_spends_it_and_not_more(
    kind: type[FixedNoise], rho: float, records: int
) -> None:
    mechanism = kind.for_budget(rho, floor=20, records_per_unit=records)
    assert mechanism.worst_case_budget(records) <= rho
    assert mechanism.worst_case_budget(records) >= rho * (1 - 2e-12)
    assert mechanism.floor == 20


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_the_budget_is_the_same_at_every_count(mechanism: FixedNoise) -> None:
    counts = np.array([0, 1, 20, 10**9])
    assert len(set(mechanism.budget(counts).tolist())) == 1
    assert mechanism.worst_case_budget(2) == float(mechanism.budget(7, 2))
    least, greatest = mechanism.budget_over([0, 5], [100, 10**9])
    assert least.tolist() == greatest.tolist() == mechanism.budget([0, 5]).tolist()


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_published_counts_have_the_error_bias_and_coverage_of_the_formulas(
    mechanism: FixedNoise,
) -> None:
    """Fixed seed; each bound is 5 standard deviations."""
    size = 100_000
    for count in (0, 20):
        published = publish(mechanism, np.full(size, count), RandomWords(seed=13))
        assert published.noisy_count.dtype == np.int64
        assert np.all(published.noisy_count >= 0)
        deviation = published.noisy_count - count
        error, bias = mechanism.expected_absolute_error(count), mechanism.expected_bias(count)
        five = 5 * np.std(deviation) / size**0.5
        assert np.mean(np.abs(deviation)) == pytest.approx(float(error), abs=five)
        assert np.mean(deviation) == pytest.approx(float(bias), abs=five)
        covered = np.mean((published.lower <= count) & (count <= published.upper))
        assert covered >= 0.95 - 5 * (0.05 * 0.95 / size) ** 0.5
    same = publish(mechanism, np.full(size, 20), RandomWords(seed=13), rounding="none")
    assert same.noisy_count.tolist() == published.noisy_count.tolist()


@pytest.mark.parametrize("mechanism", EXAMPLES, ids=str)
def test_counts_beyond_the_public_bounds_are_saturated(mechanism: FixedNoise) -> None:
    got = mechanism.encode([-5, 0, 7, MAX_COUNT, MAX_COUNT + 1, 2**63 - 1])
    assert got.tolist() == [0, 0, 7, MAX_COUNT, MAX_COUNT, MAX_COUNT]
    assert got.dtype == np.int64
    assert mechanism.decode([-(2**62), -1, 0, 9]).tolist() == [0, 0, 0, 9]


def test_names_and_parameters_are_those_of_the_configuration() -> None:
    assert FixedGaussian.name == "fixed_gaussian"
    assert FixedLaplace.name == "fixed_laplace"
    assert EXAMPLES[0].parameters() == {"scale": 0.3, "floor": 1}
    assert EXAMPLES[4].parameters() == {"epsilon": 5, "floor": 1}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("relative_error", [0, -1, 1, 2, math.nan, math.inf])
def test_promises_without_sense_are_refused(kind: type[FixedNoise], relative_error: float) -> None:
    with pytest.raises(ConfigurationError, match="relative_error"):
        kind.calibrate(relative_error=relative_error, floor=10)


@pytest.mark.parametrize("floor", [0, 0.5, -1, math.nan, math.inf])
def test_floors_without_sense_are_refused(floor: float) -> None:
    for kind in BOTH:
        with pytest.raises(ConfigurationError, match="floor"):
            kind.calibrate(relative_error=0.1, floor=floor)
        with pytest.raises(ConfigurationError, match="floor"):
            kind.for_budget(1.0, floor=floor)


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf, 1e-4, 1e300])
def test_noise_beyond_the_range_is_refused(size: float) -> None:
    with pytest.raises(ConfigurationError, match="scale must be"):
        FixedGaussian(scale=size, floor=1)
    if size != 1e-4:
        with pytest.raises(ConfigurationError, match="epsilon must be"):
            FixedLaplace(epsilon=size, floor=1)


@pytest.mark.parametrize("kind", BOTH)
def test_budgets_without_sense_are_refused(kind: type[FixedNoise]) -> None:
    for rho in (0, -1, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="rho"):
            kind.for_budget(rho, floor=1)
    for rho in (1e-200, 1e200):
        with pytest.raises(ConfigurationError, match="must be a number from"):
            kind.for_budget(rho, floor=1)
    for records in (0, -1):
        with pytest.raises(ConfigurationError, match="records_per_unit"):
            kind.for_budget(1.0, floor=1, records_per_unit=records)
        with pytest.raises(ConfigurationError, match="records_per_unit"):
            kind.for_budget(1.0, floor=1).budget(1, records)


@pytest.mark.parametrize("confidence", [0, 1, -0.5, 1.5, math.nan])
def test_confidences_without_sense_are_refused(confidence: float) -> None:
    for mechanism in EXAMPLES:
        with pytest.raises(ConfigurationError, match="confidence"):
            mechanism.interval([1], confidence)
