import doctest
import json
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import airy, ndtri

from spark_dphist.accounting import (
    SMALL_ERROR_LEAST_FISHER,
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    gaussian_coefficient,
    least_fisher_coefficient,
    least_fisher_noise,
    lower_bound_coefficient,
)
from spark_dphist.errors import ConfigurationError

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "data" / "reference_values.json").read_text(encoding="utf-8")
)
AIRY_PRIME_ZERO = float(REFERENCE["constants"]["airy_prime_zero"])
ERRORS = [0.001, 0.01, 0.1, 0.3, 0.5, 0.9]


def matching(multiplier, energy):
    """Mismatch of the two exact halves of the ground state at y = 0 (docs/optimality.md).

    Left of 0 it is J_nu(sqrt(m) e^(y/2)), right of 0 K_(i kappa)(sqrt(m) e^(y/2)).
    """
    root = mpmath.sqrt(multiplier)
    nu, kappa = mpmath.sqrt(multiplier - energy), mpmath.sqrt(multiplier + energy)
    left = (mpmath.besselj(nu - 1, root) - mpmath.besselj(nu + 1, root)) / 2
    right = -mpmath.besselk(mpmath.mpc(1, kappa), root).real
    bessel_k = mpmath.besselk(mpmath.mpc(0, kappa), root).real
    return left / mpmath.besselj(nu, root) - right / bessel_k


def exact_noise(multiplier, energy_near):
    """Return (r, C*) of a multiplier from the Bessel functions, to about 10 digits."""

    def energy(m):
        return mpmath.findroot(
            lambda e: matching(m, e), (energy_near, energy_near * (1 + mpmath.mpf("1e-6")))
        )

    m = mpmath.mpf(multiplier)
    step = m * mpmath.mpf("1e-5")
    r = (energy(m + step) - energy(m - step)) / (2 * step)
    return r, r * r * (energy(m) - m * r) / 2


@pytest.mark.parametrize("case", REFERENCE["lower_bound_coefficient"])
def test_the_lower_bound_agrees_with_the_reference(case):
    got = lower_bound_coefficient(float(case["relative_error"]))
    assert got == pytest.approx(float(case["value"]), rel=1e-12)


def test_the_constants_agree_with_the_reference():
    constants = {name: float(value) for name, value in REFERENCE["constants"].items()}
    assert pytest.approx(constants["small_r_lower"], rel=1e-15) == SMALL_ERROR_LOWER
    assert pytest.approx(constants["small_r_upper"], rel=1e-15) == SMALL_ERROR_UPPER
    assert pytest.approx(constants["ratio"], rel=1e-15) == SMALL_ERROR_UPPER / SMALL_ERROR_LOWER
    assert pytest.approx(constants["airy_coefficient"], rel=1e-15) == SMALL_ERROR_LEAST_FISHER


def test_the_gaussian_coefficient_of_small_errors_is_the_papers_upper_constant():
    r = 1e-4
    sigma = float(ndtri((1 + r) / 2))
    assert r**2 * gaussian_coefficient(sigma) == pytest.approx(SMALL_ERROR_UPPER, rel=1e-7)


@pytest.mark.parametrize("relative_error", [0.05, 0.1, 0.3, 0.5, 0.75, 0.9, 0.97])
def test_the_least_fisher_coefficient_agrees_with_the_bessel_functions(relative_error):
    noise = least_fisher_noise(relative_error)
    energy = noise.information + noise.multiplier * noise.relative_error
    with mpmath.workdps(25):
        r, coefficient = exact_noise(noise.multiplier, mpmath.mpf(energy))
    assert float(r) == pytest.approx(relative_error, rel=1e-5)
    assert least_fisher_coefficient(float(r)) == pytest.approx(float(coefficient), rel=1e-5)


@pytest.mark.parametrize(
    ("relative_error", "seen"),
    [(0.01, 0.31329), (0.1, 0.31027), (0.3, 0.28582), (0.5, 0.23658), (0.9, 0.06076)],
)
def test_the_least_fisher_coefficient_agrees_with_the_numbers_of_the_design(relative_error, seen):
    assert least_fisher_coefficient(relative_error) == pytest.approx(seen, abs=6e-6)


def test_the_least_fisher_coefficient_of_small_errors_is_the_airy_constant():
    # C* is even to first order in r: at 0.001 it is within 1e-5 of the limit.
    assert least_fisher_coefficient(0.001) == pytest.approx(SMALL_ERROR_LEAST_FISHER, rel=2e-5)


@pytest.mark.parametrize("relative_error", [*ERRORS, 0.99])
def test_the_grid_error_falls_with_the_square_of_its_spacing(relative_error):
    coarse, fine, finest = (
        least_fisher_noise(relative_error, intervals).coefficient for intervals in (500, 1000, 2000)
    )
    assert 3.5 < (fine - coarse) / (finest - fine) < 4.5
    assert least_fisher_coefficient(relative_error) == pytest.approx(
        finest + (finest - fine) / 3, rel=1e-5
    )


@pytest.mark.parametrize("relative_error", ERRORS)
def test_the_least_fisher_noise_keeps_its_promise_and_has_its_information(relative_error):
    noise = least_fisher_noise(relative_error)
    y, density = noise.log_noise, noise.density
    assert np.trapezoid(density, y) == pytest.approx(1, rel=1e-4)
    error = np.trapezoid(np.abs(np.expm1(y)) * density, y)
    assert error == pytest.approx(relative_error, rel=1e-4)
    psi = np.sqrt(density)
    information = 4 * np.sum(np.diff(psi) ** 2 / np.diff(y))
    assert information == pytest.approx(noise.information, rel=1e-4)


NOISES = {  # density and Fisher information at scale 1
    "gaussian": (lambda z: np.exp(-z * z / 2), 1.0),
    "logistic": (lambda z: 1 / np.cosh(z / 2) ** 2, 1 / 3),
    "laplace": (lambda z: np.exp(-np.abs(z)), 1.0),
    "airy": (lambda z: airy(np.abs(z) + AIRY_PRIME_ZERO)[0] ** 2, -4 * AIRY_PRIME_ZERO / 3),
}


def scale_for(shape, relative_error):
    """Return the scale at which the noise, after its best drift, has the relative error."""
    z = np.linspace(-40, 40, 80_001)
    weights = shape(z) / shape(z).sum()

    def excess(scale):
        # The best drift d solves E[e^Y sign(Y - d)] = 0: a median under the weights e^y.
        tilted = np.cumsum(weights * np.exp(scale * z))
        drift = scale * z[np.searchsorted(tilted, tilted[-1] / 2)]
        return weights @ np.abs(np.expm1(scale * z - drift)) - relative_error

    return brentq(excess, 0.1 * relative_error, 8 * relative_error)


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("relative_error", [0.01, 0.1, 0.3])
def test_no_other_noise_tried_has_less_information_for_the_same_promise(name, relative_error):
    shape, information = NOISES[name]
    scale = scale_for(shape, relative_error)
    coefficient = relative_error**2 * information / scale**2 / 2
    assert coefficient > least_fisher_coefficient(relative_error)
    if name == "gaussian":
        sigma = ndtri((1 + relative_error) / 2)
        assert coefficient == pytest.approx(
            relative_error**2 * gaussian_coefficient(float(sigma)), rel=1e-3
        )


@pytest.mark.parametrize("relative_error", ERRORS)
def test_the_lower_bound_of_every_mechanism_is_below_that_of_location_families(relative_error):
    bound = relative_error**2 * lower_bound_coefficient(relative_error)
    assert bound < least_fisher_coefficient(relative_error)


def test_the_coefficient_falls_and_the_multiplier_is_its_price():
    r, step = 0.3, 1e-3
    less, more = least_fisher_noise(r - step), least_fisher_noise(r + step)
    assert less.coefficient > more.coefficient
    slope = (more.information - less.information) / (2 * step)
    assert least_fisher_noise(r).multiplier == pytest.approx(-slope, rel=1e-3)


def test_the_right_tail_is_too_heavy_for_zcdp():
    # Density |K_(i kappa)(sqrt(m) e^(y/2))|^2 ~ exp(-2 sqrt(m) e^(y/2)): docs/optimality.md.
    noise = least_fisher_noise(0.5)
    energy = noise.information + noise.multiplier * noise.relative_error
    kappa, root = math.sqrt(noise.multiplier + energy), math.sqrt(noise.multiplier)
    inside = (noise.log_noise > 0) & (noise.density > 1e-18)
    y, density = noise.log_noise[inside], noise.density[inside]
    bessel_k = [mpmath.besselk(mpmath.mpc(0, kappa), root * math.exp(v / 2)) for v in y[::200]]
    ratio = density[::200] / np.array([float(value.real) ** 2 for value in bessel_k])
    assert ratio[0] > 0
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)


def test_the_numbers_in_the_documentation_are_what_the_code_says():
    document = Path(__file__).parents[2] / "docs" / "optimality.md"
    failed, attempted = doctest.testfile(str(document), module_relative=False)
    assert failed == 0
    assert attempted >= 7


def test_the_table_in_the_documentation_is_what_the_code_says():
    document = Path(__file__).parents[2] / "docs" / "optimality.md"
    rows = re.findall(r"^\| (0\.\d+) \| (.*) \|$", document.read_text(encoding="utf-8"), re.M)
    assert len(rows) == 9
    for first, rest in rows:
        r, cells = float(first), rest.split(" | ")
        lower, least, airy_cell, gaussian = (float(cell) for cell in cells[:4])
        shape, information = NOISES["airy"]
        attained = r**2 * information / scale_for(shape, r) ** 2 / 2
        sigma = float(ndtri((1 + r) / 2))
        assert lower == pytest.approx(r**2 * lower_bound_coefficient(r), rel=5e-3)
        assert least == pytest.approx(least_fisher_coefficient(r), abs=6e-6)
        assert airy_cell == pytest.approx(attained, rel=1e-3)
        assert gaussian == pytest.approx(r**2 * gaussian_coefficient(sigma), abs=6e-6)


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 2.0, math.nan])
@pytest.mark.parametrize(
    "function", [lower_bound_coefficient, least_fisher_coefficient, least_fisher_noise]
)
def test_a_relative_error_outside_zero_and_one_is_refused_by_name(function, wrong):
    with pytest.raises(ConfigurationError, match=r"relative_error = .*strictly between 0 and 1"):
        function(wrong)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_a_sigma_that_is_not_positive_and_finite_is_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=r"sigma = .*positive finite"):
        gaussian_coefficient(wrong)
