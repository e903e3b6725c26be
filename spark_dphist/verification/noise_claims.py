"""The noise: its scale, its shape, the same at every count, and never shared between groups."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms import Mechanism
from spark_dphist.streams import GroupStreams, ReleaseKey
from spark_dphist.verification.bounds import binomial_p_value, distribution_distance
from spark_dphist.verification.claim import FALSE_ALARM_RATE, Claim
from spark_dphist.verification.samples import group_digests
from spark_dphist.verification.stated_noise import StatedNoise

IntArray = npt.NDArray[np.int64]

# In scales; a scale off by one percent shows most between 1 and 2, a cut tail from 4 on.
_THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0)
_GRID = 1024
_REPEATED = 4096


def noise_claims(stated: StatedNoise, noise: Mapping[int, IntArray]) -> list[Claim]:
    """Check the noise in draws, given as noisy minus encoded integers for each count."""
    return [
        _scale(stated, noise),
        _shape(stated, noise),
        _same_at_every_count(stated, noise),
        _independence(stated, noise),
    ]


def _scale(stated: StatedNoise, noise: Mapping[int, IntArray]) -> Claim:
    sizes = [drawn.size for drawn in noise.values()]
    mean = float(np.average([stated.statistic(drawn) for drawn in noise.values()], weights=sizes))
    low, high = stated.statistic_interval(sum(sizes), FALSE_ALARM_RATE)
    power = "noise²" if stated.is_gaussian else "|noise|"
    return Claim(
        claim="The noise has the stated scale",
        how=f"{sum(sizes):,} draws. Measured: mean {power} / the stated one",
        measured=mean / stated.expected_statistic,
        lower=low / stated.expected_statistic,
        upper=high / stated.expected_statistic,
        at="all counts",
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def _shape(stated: StatedNoise, noise: Mapping[int, IntArray]) -> Claim:
    size = sum(drawn.size for drawn in noise.values())
    values = np.unique(np.rint(np.linspace(-6, 6, _GRID) * stated.scale).astype(np.int64))
    below = np.zeros(values.size + 1, dtype=np.int64)
    for drawn in noise.values():
        below += np.bincount(np.searchsorted(values, drawn, side="right"), minlength=below.size)
    empirical = np.cumsum(below)[:-1] / size
    # P(N < value), as bin i holds what is from value i - 1 up to below value i.
    distance = np.abs(empirical - (1 - stated.tail(values.astype(np.float64))))
    worst = int(np.argmax(distance))
    return Claim(
        claim="The noise has the stated distribution",
        how=f"{size:,} draws. Measured: largest distance of the distribution functions",
        measured=float(distance[worst]),
        upper=distribution_distance(size, FALSE_ALARM_RATE),
        at=f"{values[worst] / stated.scale:.2f} scales",
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def _same_at_every_count(stated: StatedNoise, noise: Mapping[int, IntArray]) -> Claim:
    level = np.maximum(np.unique(np.rint(np.array(_THRESHOLDS) * stated.scale)), 1)
    level = np.unique(level).astype(np.int64)
    probability = stated.tail(level.astype(np.float64))
    # Of each count and of all together, for the tails; above and below.
    beyond = np.array(
        [
            [[np.count_nonzero(sign * drawn >= value) for value in level] for sign in (1, -1)]
            for drawn in noise.values()
        ]
    )
    sizes = np.array([drawn.size for drawn in noise.values()])
    beyond = np.concatenate([beyond, beyond.sum(axis=0, keepdims=True)])
    sizes = np.append(sizes, sizes.sum())
    p = binomial_p_value(beyond, sizes[:, None, None], probability)
    worst = np.unravel_index(np.argmin(p), p.shape)
    names = [*(f"count {count:,}" for count in noise), "all counts"]
    scales = level[worst[2]] / stated.scale
    tests = p.size
    return Claim(
        claim="The noise is the same at every count, on both sides, in the tails too",
        how=f"{tests} exact binomial tests of how many draws are beyond a level. "
        "Measured: least p-value",
        measured=float(p[worst]),
        lower=FALSE_ALARM_RATE / tests,
        at=f"{names[worst[0]]}, {scales:.1f} scales {('above', 'below')[worst[1]]}",
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def _independence(stated: StatedNoise, noise: Mapping[int, IntArray]) -> Claim:
    samples = list(noise.values())
    pairs = [("next to each other", drawn[:-1:2], drawn[1::2]) for drawn in samples]
    pairs += [
        ("in different batches", first, second) for first, second in itertools.pairwise(samples)
    ]
    # By symmetry, half of the pairs without a zero agree in sign.
    agree = float(2 * stated.tail(np.array(1.0)) ** 2)
    p = [
        float(binomial_p_value(np.count_nonzero(np.sign(a) * np.sign(b) > 0), a.size, agree))
        for _, a, b in pairs
    ]
    worst = int(np.argmin(p))
    return Claim(
        claim="Groups do not share noise",
        how=f"{len(p)} exact binomial tests of how often the signs of two groups agree. "
        "Measured: least p-value",
        measured=p[worst],
        lower=FALSE_ALARM_RATE / len(p),
        at=f"groups {pairs[worst][0]}",
        false_alarm_rate=FALSE_ALARM_RATE,
    )


def noise_of_each_group(mechanism: Mechanism, key: ReleaseKey) -> Claim:
    """Check that a group's noise depends on the release key and the group alone."""
    if mechanism.noise is None:
        raise ReleaseError("a mechanism without noise has no draws to compare")
    digests = group_digests(0, _REPEATED)
    together = mechanism.noise.sample(GroupStreams(key, digests), _REPEATED)
    order = np.random.default_rng(0).permutation(_REPEATED)
    differing = 0
    for rows in (order, order[:1], order[1 : _REPEATED // 3]):
        again = mechanism.noise.sample(GroupStreams(key, digests[rows]), rows.size)
        differing += int(np.count_nonzero(again != together[rows]))
    return Claim(
        claim="A group's noise depends on the release key and the group alone",
        how=f"{_REPEATED:,} groups drawn again, reordered and in other batches",
        measured=differing,
        upper=0.0,
    )
