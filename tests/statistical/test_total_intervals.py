"""Intervals of totals hold the true total at least as often as they say, on real draws.

The release key is fixed, so these tests do not flicker. With fresh keys each of the twelve would
fail with probability at most 1e-6 if the intervals kept their word exactly, and in practice they
miss far less often than they may.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.results.intervals import PublishedIntervals
from spark_dphist.results.sum_statistics import sum_statistic
from spark_dphist.results.totals import _bounds

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

from released_counts import draw

pytestmark = pytest.mark.statistical

TRIALS, CONFIDENCE = 2000, 0.8
MOST_MISSES = int(binom.isf(1e-6, TRIALS, 1 - CONFIDENCE))
GROUPS = {
    "two groups": np.array([30, 700]),
    "mostly empty": np.repeat([0, 1, 4], 30),
    "of all sizes": np.rint(np.geomspace(1, 100_000, 90)).astype(int),
}


def drawn(name, counts, rounding):
    mechanism = calibrate(name, relative_error=0.3, floor=20)
    got = draw(mechanism, np.tile(counts, TRIALS), f"{name} {counts.sum()}", rounding=rounding)
    shape = (TRIALS, counts.size)
    lower, upper = (each.reshape(shape).astype(float) for each in (got.lower, got.upper))
    published = PublishedIntervals(mechanism, lower, upper, 0.95, rounding == "nearest")
    return published, got.noisy_count.reshape(shape)


@pytest.mark.parametrize("counts", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("name", ["shifted_log", "linear_log", "fixed_gaussian", "fixed_laplace"])
def test_totals_are_missed_no_more_often_than_stated(name, counts):
    rounding = "none" if counts.size == 2 else "nearest"
    published, noisy = drawn(name, counts, rounding)
    statistic = sum_statistic(published.mechanism)
    estimate, low, high = _bounds(published, noisy, statistic, CONFIDENCE)
    missed = (counts.sum() < low - 1e-6) | (counts.sum() > high + 1e-6)
    assert missed.sum() <= MOST_MISSES
    assert np.all((low <= estimate) & (estimate <= high))


def test_adding_variances_around_the_released_sum_would_be_found_out():
    published, noisy = drawn("linear_log", GROUPS["mostly empty"], "nearest")
    deviation = np.sqrt(np.sum(((published.upper - published.lower) / 2 / 1.96) ** 2, axis=1))
    missed = np.abs(noisy.sum(axis=1) - GROUPS["mostly empty"].sum()) > 1.28 * deviation
    assert missed.sum() > MOST_MISSES
