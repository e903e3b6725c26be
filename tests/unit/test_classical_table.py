import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest

from spark_dphist.accounting import pure_attacker_accuracy_upper
from spark_dphist.accounting.classical_table import classical_table, laplace_attacker_accuracy
from spark_dphist.errors import ConfigurationError

DRAWS = 200_000


@pytest.fixture(scope="module")
def rows():
    return classical_table(draws=DRAWS)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_laplace_accuracy_is_half_of_one_plus_the_total_variation(epsilon):
    # TV between densities one count apart, by quadrature on either side of the midpoint.
    def density(x):
        return epsilon * mpmath.exp(-epsilon * abs(x)) / 2

    variation = mpmath.quad(lambda x: density(x) - density(x - 1), [-mpmath.inf, 0, 0.5])
    assert laplace_attacker_accuracy(epsilon) == pytest.approx(float((1 + variation) / 2))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_the_discrete_laplace_attains_the_ceiling_exactly(epsilon):
    with mpmath.workdps(40):
        p = mpmath.exp(-mpmath.mpf(epsilon))
        weight = (1 - p) / (1 + p)
        counts = range(-2000, 2001)
        variation = sum(abs(weight * (p ** abs(k) - p ** abs(k - 1))) for k in counts) / 2
        mean_error = sum(abs(k) * weight * p ** abs(k) for k in counts)
    assert pure_attacker_accuracy_upper(epsilon) == pytest.approx(
        float((1 + variation) / 2), rel=1e-12
    )
    assert 1 / math.sinh(epsilon) == pytest.approx(float(mean_error), rel=1e-12)


def test_the_table_reproduces_the_classical_numbers(rows):
    assert [row.epsilon for row in rows] == [0.1, 1.0, 10.0]
    assert [row.laplace.mean_error for row in rows] == pytest.approx([10, 1, 0.1])
    assert [row.laplace.attacker_accuracy for row in rows] == pytest.approx(
        [0.52439, 0.69673, 0.99663], abs=5e-6
    )
    assert [row.accuracy_ceiling for row in rows] == pytest.approx(
        [0.52498, 0.73106, 0.99995], abs=5e-6
    )


def test_the_simulation_agrees_with_the_closed_forms(rows):
    # Two-sided 5 standard errors for 12 fixed-seed comparisons: false alarms below 1e-5.
    for row in rows:
        for view in (row.laplace, row.discrete_laplace):
            p = view.attacker_accuracy
            tolerance = 5 * math.sqrt(p * (1 - p) / (2 * DRAWS))
            assert abs(view.simulated_attacker_accuracy - p) < tolerance
            # E N^2 = 2/epsilon^2 and 1/(2 sinh^2(epsilon/2)) for the two kinds of noise.
            square = (
                2 / row.epsilon**2
                if view is row.laplace
                else 1 / (2 * math.sinh(row.epsilon / 2) ** 2)
            )
            tolerance = 5 * math.sqrt((square - view.mean_error**2) / DRAWS)
            assert abs(view.simulated_mean_error - view.mean_error) < tolerance


def test_no_attack_passes_the_ceiling(rows):
    for row in rows:
        assert row.laplace.attacker_accuracy < row.accuracy_ceiling
        assert row.discrete_laplace.attacker_accuracy <= row.accuracy_ceiling


def test_the_laplace_accuracy_stays_below_the_ceiling_for_every_epsilon():
    for epsilon in np.geomspace(1e-3, 30, 200):
        assert laplace_attacker_accuracy(float(epsilon)) < pure_attacker_accuracy_upper(
            float(epsilon)
        )
    assert laplace_attacker_accuracy(0.0) == 0.5
    assert laplace_attacker_accuracy(math.inf) == 1


def test_the_module_runs_and_prints_both_numbers():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "spark_dphist.accounting.classical_table"],
        check=True,
        capture_output=True,
        text=True,
    )
    for expected in ("412", "52.439%", "69.673%", "99.663%", "52.498%", "73.106%", "99.995%"):
        assert expected in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_sets_no_noise_scale_is_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match=r"epsilon = .*positive finite"):
        classical_table(epsilons=[wrong], draws=10)


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_a_negative_epsilon_is_refused_by_name(wrong):
    with pytest.raises(ConfigurationError, match="epsilon = "):
        laplace_attacker_accuracy(wrong)
