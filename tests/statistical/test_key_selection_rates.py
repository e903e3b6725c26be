"""How often groups are kept, through the streams of a release, against the stated probability.

The key is fixed, so these tests do not flicker. With a random key each test of the right
probability would fail by chance with probability 1e-6 for all its counts together.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.streams import GroupStreams, ReleaseKey

pytestmark = pytest.mark.statistical

DRAWS = 400_000
FALSE_ALARM = 1e-6
KEY = ReleaseKey.fixed_for_tests(b"the fixed key of tests selecting")

SELECTIONS = [
    (KeySelection(epsilon=0.5, delta=0.02), (1, 2, 4, 6, 8, 11)),
    (KeySelection(epsilon=1.0, delta=1e-5), (8, 10, 11, 12, 13, 16)),
    (KeySelection(epsilon=2.0, delta=1e-3, groups_per_unit=3), (1, 5, 8, 10, 12, 15)),
]


@pytest.fixture(scope="module")
def streams() -> GroupStreams:
    generator = np.random.Generator(np.random.Philox(11))
    return GroupStreams(KEY, generator.integers(0, 256, (DRAWS, 32), dtype=np.uint8))


def p_values(
    selection: KeySelection, counts: tuple[int, ...], streams: GroupStreams, off: int = 0
) -> list[float]:
    """Two-sided exact binomial tests of the probability at each count, or at one ``off`` it."""
    found = []
    for count in counts:
        kept = int(selection.mechanism.keep(np.full(DRAWS, count), streams).sum())
        stated = float(selection.mechanism.keep_probability(count + off))
        found.append(stats.binomtest(kept, DRAWS, stated).pvalue)
    return found


@pytest.mark.parametrize(("selection", "counts"), SELECTIONS)
def test_groups_are_kept_as_often_as_stated(
    selection: KeySelection, counts: tuple[int, ...], streams: GroupStreams
) -> None:
    assert min(p_values(selection, counts, streams)) > FALSE_ALARM / len(counts)


@pytest.mark.parametrize(("selection", "counts"), SELECTIONS)
def test_a_selection_that_is_one_unit_off_would_be_noticed(
    selection: KeySelection, counts: tuple[int, ...], streams: GroupStreams
) -> None:
    assert max(p_values(selection, counts, streams, off=1)) < FALSE_ALARM / len(counts)


def test_one_unit_alone_is_kept_no_more_often_than_delta(streams: GroupStreams) -> None:
    for k in (1, 4):
        selection = KeySelection(epsilon=1.0, delta=1e-4, groups_per_unit=k)
        kept = int(selection.mechanism.keep(np.ones(DRAWS, dtype=np.int64), streams).sum())
        assert stats.binomtest(kept, DRAWS, 1e-4, alternative="greater").pvalue > FALSE_ALARM
