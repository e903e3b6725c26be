"""Mechanisms that release one count: noise, calibration, error and budget (no Spark needed)."""

from spark_dphist.mechanisms.base import Drift, Mechanism, Rounding, TransformMechanism
from spark_dphist.mechanisms.constant import Constant
from spark_dphist.mechanisms.discrete_gaussian import DiscreteGaussian
from spark_dphist.mechanisms.discrete_laplace import DiscreteLaplace
from spark_dphist.mechanisms.exact_bits import NoiseDistribution, WordSource
from spark_dphist.mechanisms.fixed_noise import FixedGaussian, FixedLaplace
from spark_dphist.mechanisms.lattice import MAX_COUNT, Lattice
from spark_dphist.mechanisms.linear_log import LinearLog
from spark_dphist.mechanisms.publish import PublishedCounts, publish
from spark_dphist.mechanisms.shifted_log import ShiftedLog

__all__ = [
    "MAX_COUNT",
    "Constant",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Drift",
    "FixedGaussian",
    "FixedLaplace",
    "Lattice",
    "LinearLog",
    "Mechanism",
    "NoiseDistribution",
    "PublishedCounts",
    "Rounding",
    "ShiftedLog",
    "TransformMechanism",
    "WordSource",
    "publish",
]
