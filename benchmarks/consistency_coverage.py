"""Coverage and error of consistent counts, for docs/consistency.md: releases made many times over.

Run with ``python benchmarks/consistency_coverage.py`` (about two minutes); it prints a Markdown
table. One table of counts is published by origin and month, by origin, and by month, with fresh
noise each time, and the three are made consistent.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_dphist.consistency import Grouping, make_consistent, noise_variance
from spark_dphist.mechanisms import FixedGaussian, LinearLog, Mechanism, ShiftedLog, publish
from spark_dphist.results.intervals import PublishedIntervals
from spark_dphist.results.sum_statistics import sum_statistic
from spark_dphist.streams import GroupStreams, ReleaseKey
from spark_dphist.verification.samples import group_digests

ORIGINS, MONTHS, REPEATS, CONFIDENCE = 50, 12, 400, 0.95


def released(mechanism: Mechanism, name: str, keys: pa.Table, counts: np.ndarray) -> Grouping:
    source = GroupStreams(ReleaseKey.generate(), group_digests(1, counts.size))
    published = publish(mechanism, counts, source, confidence=CONFIDENCE)
    lower, upper = published.lower.astype(float), published.upper.astype(float)
    intervals = PublishedIntervals(mechanism, lower, upper, CONFIDENCE, True)
    estimate = sum_statistic(mechanism).estimate(intervals)
    variance = noise_variance(mechanism, np.maximum(estimate, 0))
    return Grouping(name, keys, estimate, variance, lower, upper)


def main() -> None:
    rng = np.random.default_rng(1)
    counts = np.rint(rng.lognormal(5, 1.5, (ORIGINS, MONTHS))).astype(np.int64)
    fine = pa.table(
        {
            "origin": np.repeat(np.arange(ORIGINS), MONTHS),
            "month": np.tile(np.arange(MONTHS), ORIGINS),
        }
    )
    tables = {
        "origin x month": (fine, counts.ravel()),
        "origin": (pa.table({"origin": np.arange(ORIGINS)}), counts.sum(axis=1)),
        "month": (pa.table({"month": np.arange(MONTHS)}), counts.sum(axis=0)),
    }
    print("| mechanism | r | grouping | coverage before | after | error after / before | p < 1 % |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for kind in (FixedGaussian, LinearLog, ShiftedLog):
        for r in (0.05, 0.1, 0.3):
            mechanism = kind.calibrate(relative_error=r, floor=50)
            covered = {name: np.zeros(2) for name in tables}
            errors = {name: np.zeros(2) for name in tables}
            rejected = 0
            for _ in range(REPEATS):
                groupings = [released(mechanism, name, *each) for name, each in tables.items()]
                found = make_consistent(groupings, confidence=CONFIDENCE)
                rejected += found.p_value < 0.01
                for after, (name, (_, true)) in zip(found.groupings, tables.items(), strict=True):
                    for place, each in enumerate((after.before, after)):
                        inside = (each.lower <= true) & (true <= each.upper)
                        covered[name][place] += np.mean(inside) / REPEATS
                        scaled = (each.estimate - true) / np.maximum(true, mechanism.floor)
                        errors[name][place] += np.mean(scaled**2) / REPEATS
            for name in tables:
                before, after = covered[name]
                ratio = np.sqrt(errors[name][1] / errors[name][0])
                print(
                    f"| `{mechanism.name}` | {r:g} | {name} | {before:.1%} | {after:.1%} | "
                    f"{ratio:.2f} | {rejected / REPEATS:.1%} |"
                )


if __name__ == "__main__":
    main()
