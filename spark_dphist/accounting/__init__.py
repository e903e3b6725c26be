"""What a budget means, how small it can be, and how budgets add up. numpy and scipy only.

``conversions`` turns zCDP into (epsilon, delta), mu-GDP and an attacker's accuracy, and back;
``bounds`` holds the limits no mechanism passes and the coefficients to compare with them;
``python -m spark_dphist.accounting.classical_table`` shows what epsilon means for one count.
"""

from spark_dphist.accounting.bounds import (
    SMALL_ERROR_LEAST_FISHER,
    SMALL_ERROR_LOWER,
    SMALL_ERROR_UPPER,
    LeastFisherNoise,
    gaussian_coefficient,
    least_fisher_coefficient,
    least_fisher_noise,
    lower_bound_coefficient,
)
from spark_dphist.accounting.conversions import (
    delta_upper,
    epsilon_upper,
    gaussian_attacker_accuracy_upper,
    gaussian_delta_upper,
    gaussian_epsilon_upper,
    gaussian_mu_upper,
    pure_attacker_accuracy_upper,
    pure_to_rho_upper,
    rho_lower,
    zcdp_attacker_accuracy_upper,
)

__all__ = [
    "SMALL_ERROR_LEAST_FISHER",
    "SMALL_ERROR_LOWER",
    "SMALL_ERROR_UPPER",
    "LeastFisherNoise",
    "delta_upper",
    "epsilon_upper",
    "gaussian_attacker_accuracy_upper",
    "gaussian_coefficient",
    "gaussian_delta_upper",
    "gaussian_epsilon_upper",
    "gaussian_mu_upper",
    "least_fisher_coefficient",
    "least_fisher_noise",
    "lower_bound_coefficient",
    "pure_attacker_accuracy_upper",
    "pure_to_rho_upper",
    "rho_lower",
    "zcdp_attacker_accuracy_upper",
]
