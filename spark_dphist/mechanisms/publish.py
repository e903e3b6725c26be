"""From true counts to published numbers: the one path that the Spark stage and ``verify`` share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms.base import FloatArray, IntArray, Mechanism, Rounding
from spark_dphist.mechanisms.exact_bits import WordSource

# What a published integer may be, so that no double is ever cast out of the range of int64.
_LARGEST_INTEGER = 2**62


@dataclass(frozen=True)
class PublishedCounts:
    """What is published about a batch of groups; arrays of one length.

    ``noisy_count``, ``lower`` and ``upper`` are int64 where rounded, the bounds outwards, and
    float64 otherwise.
    """

    noisy_count: IntArray | FloatArray
    lower: IntArray | FloatArray
    upper: IntArray | FloatArray


def publish(
    mechanism: Mechanism,
    count: npt.ArrayLike,
    source: WordSource,
    *,
    rounding: Rounding = "nearest",
    confidence: float = 0.95,
) -> PublishedCounts:
    """Release counts: encode, add integer noise, decode, round.

    Parameters
    ----------
    mechanism
        What is promised.
    count
        True counts, shape (groups,); row i takes its noise from row i of the source.
    source
        Uniform random words that nobody else sees or reuses.
    rounding
        ``nearest`` publishes integers, ``none`` doubles.
    confidence
        Of the interval.

    Raises
    ------
    ReleaseError
        If the counts are not one row of integers: broadcasting would share noise between groups.

    Notes
    -----
    Privacy Guarantee: each group's output satisfies ``mechanism.budget(count)``-zCDP, if the words
    are uniform and independent. All after the integer addition is post-processing.
    """
    if np.ndim(count) != 1:
        raise ReleaseError(
            f"counts must have shape (groups,), got {np.ndim(count)} dimensions, so nothing was "
            "published. Pass one count for each row of the word source."
        )
    steps = mechanism.encode(count)
    if mechanism.noise is not None:
        steps = steps + mechanism.noise.sample(source, steps.size)
    estimate = mechanism.decode(steps)
    lower, upper = mechanism.interval(steps, confidence)
    if rounding == "none":
        return PublishedCounts(estimate, lower, upper)
    return PublishedCounts(
        _to_integer(np.rint(estimate)), _to_integer(np.floor(lower)), _to_integer(np.ceil(upper))
    )


def _to_integer(values: FloatArray) -> IntArray:
    return np.clip(values, -_LARGEST_INTEGER, _LARGEST_INTEGER).astype(np.int64)
