"""What epsilon means for one count: the classical table, exact and simulated.

Run it with ``python -m spark_dphist.accounting.classical_table``. It releases an invented count
with noise of scale 1/epsilon and asks two questions: how far off is the release, and how often
does the best attacker guess right whether one given record is in the data? The floating-point
Laplace noise here is for illustration only; it is no private mechanism (Mironov 2012).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spark_dphist.accounting.conversions import pure_attacker_accuracy_upper
from spark_dphist.errors import ConfigurationError


@dataclass(frozen=True)
class NoiseView:
    """Error and attack of one kind of noise, in closed form and as simulated.

    Attributes
    ----------
    mean_error, simulated_mean_error
        E|release - count|, in counts.
    attacker_accuracy, simulated_attacker_accuracy
        Share of right guesses of the best attack at equal priors.
    """

    mean_error: float
    simulated_mean_error: float
    attacker_accuracy: float
    simulated_attacker_accuracy: float


@dataclass(frozen=True)
class ClassicalRow:
    """One epsilon of the classical table.

    Attributes
    ----------
    epsilon
        Nats.
    laplace
        Continuous Laplace noise of scale 1/epsilon.
    discrete_laplace
        Whole-number noise with weights e^(-epsilon |k|), the one that attains the ceiling.
    accuracy_ceiling
        e^epsilon / (1 + e^epsilon): no attack on any epsilon-DP release does better.
    """

    epsilon: float
    laplace: NoiseView
    discrete_laplace: NoiseView
    accuracy_ceiling: float


def laplace_attacker_accuracy(epsilon: float) -> float:
    """Return the accuracy of the best attack on a count with Laplace noise of scale 1/epsilon.

    1 - e^(-epsilon/2) / 2: the likelihood ratio rises with the release, so the best attacker says
    "present" above the midpoint of the two counts, and errs when the noise passes 1/2.

    Parameters
    ----------
    epsilon
        Nats, at least 0.

    Raises
    ------
    ConfigurationError
        If ``epsilon`` is negative or not a number.
    """
    if not epsilon >= 0:
        raise ConfigurationError(
            f"epsilon = {epsilon} is not acceptable: expected a number of at least 0, in nats."
        )
    return 0.5 - math.expm1(-epsilon / 2) / 2


def classical_table(
    epsilons: Sequence[float] = (0.1, 1.0, 10.0),
    count: int = 412,
    draws: int = 1_000_000,
    seed: int = 412,
) -> list[ClassicalRow]:
    """Return one row per epsilon; the attacker's two worlds are ``count`` and ``count - 1``.

    Parameters
    ----------
    epsilons
        Nats, positive.
    count
        The invented count when the record is present.
    draws
        Releases simulated per world, kind of noise and epsilon. A simulated accuracy has a
        standard error below 1 / sqrt(8 draws).
    seed
        Seed of the simulation. Nothing real is released here.

    Raises
    ------
    ConfigurationError
        If an epsilon is not positive and finite.
    """
    random = np.random.default_rng(seed)
    rows = []
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise ConfigurationError(
                f"epsilon = {epsilon} is not acceptable: expected a positive finite number, in "
                "nats, since the noise has scale 1/epsilon."
            )
        ceiling = pure_attacker_accuracy_upper(epsilon)
        noise = random.laplace(scale=1 / epsilon, size=(2, draws))
        laplace = _view(1 / epsilon, laplace_attacker_accuracy(epsilon), count, noise)
        # The difference of two geometric variables has weights e^(-epsilon |k|) and mean distance
        # 1/sinh(epsilon) from 0. Neighbouring weights differ by exactly e^epsilon: it is
        # randomised response in disguise and attains the ceiling.
        steps = random.geometric(-math.expm1(-epsilon), size=(2, 2, draws))
        discrete = _view(1 / math.sinh(epsilon), ceiling, count, (steps[0] - steps[1]) * 1.0)
        rows.append(ClassicalRow(epsilon, laplace, discrete, ceiling))
    return rows


def _view(mean_error: float, accuracy: float, count: int, noise: NDArray[np.float64]) -> NoiseView:
    """Release the count with and without the record, and guess by the nearer of the two."""
    present, absent = count + noise[0], count - 1 + noise[1]
    right = np.concatenate([present > count - 0.5, absent < count - 0.5])
    return NoiseView(
        mean_error, float(np.mean(np.abs(present - count))), accuracy, float(np.mean(right))
    )


def main() -> None:
    """Print the table and how to read it."""
    count, draws = 412, 1_000_000
    rows = classical_table(count=count, draws=draws)
    print(f"A count of {count}, released with noise of scale 1/epsilon (epsilon-DP).")
    print(f"The attacker knows every other record: the count is {count - 1} or {count}, even odds.")
    print(f"Simulated: {draws:,} releases of either count, each guessed by the nearer count.")
    for name, views in (
        ("Laplace noise", [row.laplace for row in rows]),
        ("Discrete Laplace noise (whole numbers)", [row.discrete_laplace for row in rows]),
    ):
        print(f"\n{name}")
        print(
            "epsilon   mean error  simulated   attacker right  simulated   any epsilon-DP release"
        )
        for row, view in zip(rows, views, strict=True):
            print(
                f"{row.epsilon:7g}   {view.mean_error:10.4g} {view.simulated_mean_error:10.4g}   "
                f"{view.attacker_accuracy:14.3%} {view.simulated_attacker_accuracy:10.3%}   "
                f"{'<= ' + format(row.accuracy_ceiling, '.3%'):>22}"
            )
    print(
        "\nTwo different numbers are both called the attacker's accuracy. e^epsilon/(1+e^epsilon)\n"
        "(last column) bounds every attack on every epsilon-DP release; the discrete Laplace\n"
        "attains it. Laplace noise hides a little more: its best attack is right with probability\n"
        "1 - e^(-epsilon/2)/2, and rounding its release to a whole number does not change that."
    )


if __name__ == "__main__":
    main()
