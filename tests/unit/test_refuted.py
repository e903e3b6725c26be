from __future__ import annotations

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
from spark_dphist.mechanisms.refuted import (
    REFUSED,
    divergence_order,
    unequal_variance_divergence,
)


def quadrature(order: float, count: int, neighbour: int, r: float, reach: float) -> mpmath.mpf:
    """The integral of p^order q^(1 - order) over count ± reach standard deviations."""
    with mpmath.workdps(25):
        a, s1, s2 = mpmath.mpf(order), mpmath.mpf(r) * count, mpmath.mpf(r) * neighbour

        def integrand(y: mpmath.mpf) -> mpmath.mpf:
            first = -(((y - count) / s1) ** 2) / 2 - mpmath.log(s1)
            second = -(((y - neighbour) / s2) ** 2) / 2 - mpmath.log(s2)
            return mpmath.exp(a * first + (1 - a) * second) / mpmath.sqrt(2 * mpmath.pi)

        points = mpmath.linspace(count - reach * s1, count + reach * s1, 41)
        return mpmath.quad(integrand, points)


@pytest.mark.parametrize(("count", "neighbour"), [(10, 9), (9, 10), (100, 99), (3, 1), (1, 2)])
@pytest.mark.parametrize("r", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.8])
def test_the_divergence_agrees_with_quadrature(
    count: int, neighbour: int, r: float, share: float
) -> None:
    order = 1 + share * (min(divergence_order(count, neighbour), 30.0) - 1)
    # The integrand is a Gaussian bump whose width grows like 1 / sqrt(1 - order / limit).
    integral = quadrature(order, count, neighbour, r, reach=200)
    expected = float(mpmath.log(integral) / (order - 1))
    got = float(unequal_variance_divergence(order, count, neighbour, r))
    assert got == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("count", "neighbour", "above"), [(10, 9, 1.0), (100, 99, 1.2), (3, 1, 1.0)]
)
def test_from_the_closed_form_order_on_the_integral_grows_without_bound(
    count: int, neighbour: int, above: float
) -> None:
    order = above * divergence_order(count, neighbour)
    integrals = [quadrature(order, count, neighbour, 0.3, reach) for reach in (25, 50, 100)]
    assert all(later > 3 * earlier for earlier, later in itertools.pairwise(integrals))
    assert unequal_variance_divergence(order, count, neighbour, 0.3) == math.inf


@pytest.mark.parametrize(("count", "neighbour"), [(10, 9), (100, 99), (3, 1), (10**6, 10**6 - 1)])
def test_the_divergence_is_finite_below_that_order_and_grows_to_it(
    count: int, neighbour: int
) -> None:
    limit = divergence_order(count, neighbour)
    orders = 1 + (limit - 1) * np.array([0.1, 0.5, 0.9, 0.99, 0.9999, 0.999999])
    divergence = unequal_variance_divergence(orders, count, neighbour, 0.1)
    assert np.all(np.isfinite(divergence))
    assert np.all(np.diff(divergence) > 0)
    # No rho bounds D_alpha / alpha.
    assert divergence[-1] / orders[-1] > 1000 * divergence[0] / orders[0]


@given(st.integers(2, 10**9))
def test_the_order_between_neighbours_is_the_one_in_the_refusal(count: int) -> None:
    exact = Fraction(count**2, 2 * count - 1)
    assert divergence_order(count, count - 1) == pytest.approx(float(exact), rel=1e-15)
    # About n/2.
    assert Fraction(count, 2) < exact <= Fraction(count, 2) + Fraction(1, 3)


def test_towards_a_larger_count_every_order_is_finite() -> None:
    assert divergence_order(9, 10) == math.inf
    assert np.all(np.isfinite(unequal_variance_divergence([2, 100, 1e6], 9, 10, 0.1)))


def test_an_empty_group_has_no_noise_so_its_neighbour_is_told_apart_for_certain() -> None:
    for pair in ((1, 0), (0, 1), (5, 0)):
        assert divergence_order(*pair) == 1
        assert unequal_variance_divergence(1.0001, *pair, 0.1) == math.inf


def test_equal_counts_do_not_diverge() -> None:
    for count in (0, 7):
        assert divergence_order(count, count) == math.inf
        assert unequal_variance_divergence([2, 1e9], count, count, 0.1).tolist() == [0, 0]


def test_the_limit_does_not_depend_on_the_relative_error() -> None:
    order = divergence_order(50, 49)
    for r in (1e-3, 0.1, 10.0, 1e6):
        below, at = unequal_variance_divergence([order * 0.999, order], 50, 49, r)
        assert np.isfinite(below)
        assert at == math.inf


def test_the_refusal_says_why_where_to_read_on_and_what_to_use() -> None:
    sentence = REFUSED["unequal_variance"]
    for part in ("infinite", "n²/(2n - 1)", "docs/refuted.md", "linear_log", "shifted_log"):
        assert part in sentence
    assert (Path(__file__).parents[2] / "docs" / "refuted.md").is_file()


@pytest.mark.parametrize("order", [1, 0.5, math.inf, math.nan, [2, 1]])
def test_orders_that_are_none_are_refused(order: object) -> None:
    with pytest.raises(ConfigurationError, match="orders"):
        unequal_variance_divergence(order, 2, 1, 0.1)  # type: ignore[arg-type]


def test_counts_and_errors_without_sense_are_refused() -> None:
    for counts in ((-1, 2), (2, -1), (math.inf, 2), (2, math.nan)):
        with pytest.raises(ConfigurationError, match="counts"):
            divergence_order(*counts)
        with pytest.raises(ConfigurationError, match="counts"):
            unequal_variance_divergence(2, *counts, 0.1)
    for r in (0, -1, math.nan, math.inf):
        with pytest.raises(ConfigurationError, match="relative_error"):
            unequal_variance_divergence(2, 2, 1, r)
