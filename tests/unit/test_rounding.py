import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanism_oracles import summed_rounded_error

from spark_dphist.mechanisms import LinearLog, ShiftedLog
from spark_dphist.mechanisms.pieces import Lognormal, Normal

SHIFTED = [
    ShiftedLog(sigma=sigma, shift=shift, floor=1, drift=drift)
    for sigma in (0.004, 0.05, 0.3, 0.9)
    for shift in (0.3, 1.0, 40.0)
    for drift in ("minimal_error", "unbiased", "median_unbiased")
]
LINEAR = [
    LinearLog(sigma=sigma, floor=1, knee=knee, drift=drift)
    for sigma in (0.004, 0.05, 0.3, 0.9)
    # Around 24 / sigma the sums change from cell by cell to closed forms.
    for knee in (0.7, 1.0, 2.5, 3.5, 20.0, 23.99 / sigma, 24.3 / sigma, 25 // sigma + 0.5)
    for drift in ("minimal_error", "median_unbiased")
]


def counts_around_the_change_of_formula(mechanism):
    change = int(24 / mechanism.sigma)
    size = int(mechanism.knee) if isinstance(mechanism, LinearLog) else 2
    return sorted({0, 1, size // 2, size, size + 1, change - 1, change, change + 1, change + 60})


@pytest.mark.parametrize("mechanism", [*SHIFTED, *LINEAR], ids=repr)
def test_the_rounded_error_is_the_sum_over_every_integer(mechanism):
    counts = counts_around_the_change_of_formula(mechanism)
    summed = np.array([summed_rounded_error(mechanism, x) for x in counts])
    got = mechanism.expected_absolute_error(counts, rounded=True)
    # Where there is next to no error, its own tiny value is not of interest.
    assert got == pytest.approx(summed, rel=2e-13, abs=1e-16)


@pytest.mark.parametrize("count", [0, 2, 3, 7, 400])
@pytest.mark.parametrize(
    "mechanism",
    [
        ShiftedLog(sigma=0.4, shift=1.5, floor=1),
        ShiftedLog(sigma=0.4, shift=1.5, floor=1, drift="unbiased"),
        LinearLog(sigma=0.4, floor=1, knee=2.5),
        LinearLog(sigma=0.4, floor=1, knee=3.5, drift="median_unbiased"),
    ],
    ids=repr,
)
def test_the_rounded_error_is_the_mean_over_what_the_shipped_path_publishes(mechanism, count):
    z, width = np.linspace(-9, 9, 2_000_001, retstep=True)
    noise = np.rint(z * 2.0**mechanism.lattice.scale_bits).astype(np.int64)
    published = np.rint(mechanism.decode(mechanism.encode(count) + noise))
    mean = np.sum(np.abs(published - count) * np.exp(-(z**2) / 2)) * width / np.sqrt(2 * np.pi)
    got = float(mechanism.expected_absolute_error(count, rounded=True))
    # The grid sees each jump to within its width.
    assert got == pytest.approx(mean, rel=1e-4)


def test_the_shape_of_the_counts_is_kept():
    counts = np.arange(12).reshape(3, 4)
    for mechanism in (SHIFTED[0], LINEAR[0]):
        for rounded in (False, True):
            errors = mechanism.expected_absolute_error(counts, rounded=rounded)
            one_by_one = [mechanism.expected_absolute_error(int(x), rounded) for x in counts.flat]
            assert errors.shape == (3, 4)
            assert errors.ravel() == pytest.approx(np.array(one_by_one), rel=1e-13, abs=1e-300)
            assert mechanism.expected_absolute_error(5, rounded).shape == ()


@settings(max_examples=60)
@given(
    st.floats(-13, 1.5).map(np.exp),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.floats(-3, 3),
    st.sampled_from([0.0, 2.5]),
)
def test_lognormal_pieces_agree_with_black_s_formula_at_high_precision(sigma, share, z, shift):
    drift = share * sigma**2
    law, location = Lognormal(sigma, drift, shift), 7.0
    level = float(law.level_at(np.array(location), z))
    with mpmath.workdps(50):
        s, d, b = mpmath.mpf(sigma), mpmath.mpf(drift), mpmath.mpf(level) + mpmath.mpf(shift)
        exact_z = (mpmath.log(b / location) + d) / s
        mean = location * mpmath.exp(s**2 / 2 - d)
        excess = mean * mpmath.ncdf(s - exact_z) - b * mpmath.ncdf(-exact_z)
        shortfall = b * mpmath.ncdf(exact_z) - mean * mpmath.ncdf(exact_z - s)
        # E|W - 1| = E(W - 1)⁺ + E(1 - W)⁺.
        growth = mpmath.exp(s**2 / 2 - d)
        error = (
            growth * (mpmath.ncdf(s - d / s) - mpmath.ncdf(d / s - s))
            + mpmath.ncdf(d / s)
            - mpmath.ncdf(-d / s)
        )
    # Levels come as doubles, so z is uncertain by 2**-53 * location / sigma.
    tolerance = 1e-15 * (1 + 1 / sigma) * sigma * location + 1e-14 * float(excess + shortfall)
    assert float(law.mean_excess(np.array(location), np.array(level))) == pytest.approx(
        float(excess), abs=tolerance
    )
    assert float(law.mean_shortfall(np.array(location), np.array(level))) == pytest.approx(
        float(shortfall), abs=tolerance
    )
    assert law.relative_error == pytest.approx(float(error), rel=1e-13)


@pytest.mark.parametrize("piece", [Lognormal(0.3, 0.09, 1.5), Lognormal(1.2, 0.0), Normal(4.0)])
def test_density_derivatives_are_those_of_the_distribution_function(piece):
    location, level = 9.0, 6.5

    def distribution(w):
        if isinstance(piece, Normal):
            return mpmath.ncdf((w - location) / piece.deviation)
        return mpmath.ncdf((mpmath.log((w + piece.shift) / location) + piece.drift) / piece.sigma)

    got = piece.density_derivatives(np.array(location), np.array(level))
    with mpmath.workdps(40):
        exact = [float(mpmath.diff(distribution, level, order)) for order in (1, 3, 5)]
    assert [float(d) for d in got] == pytest.approx(exact, rel=1e-12)


@settings(max_examples=100)
@given(
    st.floats(0.01, 2.5), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 200), st.floats(0, 30)
)
def test_rounding_adds_no_more_than_the_stated_surplus(sigma, share, count, shift):
    drift = {0.0: "median_unbiased", 0.5: "unbiased", 1.0: "minimal_error"}[share]
    mechanism = ShiftedLog(sigma=sigma, shift=max(shift, 1e-3), floor=1, drift=drift)
    rounded = float(mechanism.expected_absolute_error(count, rounded=True))
    plain = float(mechanism.expected_absolute_error(count))
    surplus = mechanism.lognormal.rounding_surplus_upper(count + mechanism.shift)
    assert rounded <= plain + surplus + 1e-13 * plain
