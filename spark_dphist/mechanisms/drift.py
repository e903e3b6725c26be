"""The drift subtracted from the noisy transformed count before it is mapped back."""

from __future__ import annotations

from typing import get_args

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.mechanisms.base import Drift


def drift_of(drift: Drift, sigma: float) -> float:
    """Return the drift in nats.

    ``minimal_error``: sigma**2 minimises E|e^{sigma Z - d} - 1| over d, as the minimiser d of
    E|W e^{-d} - 1| makes 1 the median of W under the measure weighted by W.
    ``unbiased``: sigma**2 / 2, as E e^{sigma Z} = e^{sigma**2 / 2}. ``median_unbiased``: 0.

    Raises
    ------
    ConfigurationError
        If there is no such drift.
    """
    if drift == "minimal_error":
        return sigma**2
    if drift == "unbiased":
        return sigma**2 / 2
    if drift == "median_unbiased":
        return 0.0
    raise ConfigurationError(f"drift {drift!r} is unknown. {did_you_mean(drift, get_args(Drift))}")
