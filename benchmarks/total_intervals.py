"""Coverage and width of totals' intervals, and roll-ups by sums against releases of their own.

python benchmarks/total_intervals.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from spark_dphist.mechanisms.registry import calibrate
from spark_dphist.results.intervals import PublishedIntervals
from spark_dphist.results.sum_statistics import sum_statistic
from spark_dphist.results.totals import _bounds

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit"))

from released_counts import draw

CONFIDENCE = 0.95
PROMISES = [(0.1, 50), (0.3, 20)]
MECHANISMS = ["shifted_log", "linear_log", "fixed_gaussian"]
GROUPS = {
    "100 of 1,000": np.full(100, 1000),
    "1,000 of 1,000": np.full(1000, 1000),
    "200 of 0 to 3": np.tile([0, 1, 2, 3], 50),
    "90 of 1 to 100,000": np.rint(np.geomspace(1, 100_000, 90)).astype(int),
}


def released(name: str, promise: tuple[float, float], counts: np.ndarray, trials: int):
    mechanism = calibrate(name, relative_error=promise[0], floor=promise[1])
    got = draw(mechanism, np.tile(counts, trials), f"{name} {promise} {counts.sum()}")
    shape = (trials, counts.size)
    lower, upper = (each.reshape(shape).astype(float) for each in (got.lower, got.upper))
    published = PublishedIntervals(mechanism, lower, upper, CONFIDENCE, True)
    return published, got.noisy_count.reshape(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    print("mechanism | r, floor | groups | covered | width / ideal | noisy_total | estimate")
    for promise in PROMISES:
        for name in MECHANISMS:
            for called, counts in GROUPS.items():
                published, noisy = released(name, promise, counts, trials)
                statistic = sum_statistic(published.mechanism)
                _, low, high = _bounds(published, noisy, statistic, CONFIDENCE)
                free = np.sum(statistic.estimate(published), axis=-1)
                truth = counts.sum()
                covered = np.mean((low <= truth) & (truth <= high))
                # 1.96 standard deviations of the unbiased sum on both sides.
                width = np.mean(high - low) / (3.92 * np.std(free))
                naive = np.mean(noisy.sum(axis=1)) / truth - 1
                print(
                    f"{name} | {promise[0]:g}, {promise[1]} | {called} | {covered:.3f} | "
                    f"{width:.2f} | {naive:+.1%} | {np.mean(free) / truth - 1:+.2%}"
                )
    print("\nk groups of n | mean absolute error of the estimate | of a release of the total")
    for name, size, n in [
        ("linear_log", 10, 1000),
        ("linear_log", 100, 1000),
        ("linear_log", 100, 10),
        ("linear_log", 1000, 1),
        ("linear_log", 10_000, 0.1),
    ]:
        counts = np.zeros(size, int)
        counts[: max(int(size * min(n, 1)), 1)] = max(n, 1)
        published, _ = released(name, (0.1, 50), counts, max(200_000 // size, 20))
        free = np.sum(sum_statistic(published.mechanism).estimate(published), axis=-1)
        error = np.mean(np.abs(np.maximum(free, 0) - counts.sum())) / counts.sum()
        own = published.mechanism.expected_absolute_error(counts.sum()) / counts.sum()
        print(f"{size:,} of {n:g} | {error:.1%} | {float(own):.1%}")


if __name__ == "__main__":
    main()
