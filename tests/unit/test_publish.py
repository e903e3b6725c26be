from __future__ import annotations

import hashlib
import warnings

import numpy as np
import pytest
from word_sources import ConstantWords, RandomWords

from spark_dphist.errors import ReleaseError
from spark_dphist.mechanisms import MAX_COUNT, Constant, ShiftedLog, publish
from spark_dphist.mechanisms.exact_bits import MAX_FURTHER_WORDS
from spark_dphist.mechanisms.lattice import SIGMA_RANGE, Lattice
from spark_dphist.streams import GroupStreams, ReleaseKey

MECHANISM = ShiftedLog.calibrate(relative_error=0.3, floor=20)
COUNTS = np.array([0, 1, 20, 1000, 10**6, 10**9])


def streams(size: int) -> GroupStreams:
    digests = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(size))
    key = ReleaseKey.fixed_for_tests(b"k" * 32)
    return GroupStreams(key, np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32))


def test_integers_are_published_with_bounds_rounded_outwards() -> None:
    exact = publish(MECHANISM, COUNTS, streams(6), rounding="none")
    rounded = publish(MECHANISM, COUNTS, streams(6))
    for values in (rounded.noisy_count, rounded.lower, rounded.upper):
        assert values.dtype == np.int64
    for values in (exact.noisy_count, exact.lower, exact.upper):
        assert values.dtype == np.float64
    assert np.array_equal(rounded.noisy_count, np.rint(exact.noisy_count))
    assert np.array_equal(rounded.lower, np.floor(exact.lower))
    assert np.array_equal(rounded.upper, np.ceil(exact.upper))
    assert np.all(rounded.lower >= 0)
    assert np.all(rounded.noisy_count >= 0)


def test_a_narrower_confidence_gives_a_narrower_interval_around_the_same_count() -> None:
    wide = publish(MECHANISM, COUNTS, streams(6), confidence=0.99)
    narrow = publish(MECHANISM, COUNTS, streams(6), confidence=0.5)
    assert np.array_equal(wide.noisy_count, narrow.noisy_count)
    assert np.all(wide.lower <= narrow.lower)
    assert np.all(narrow.upper <= wide.upper)


@pytest.mark.parametrize(
    "count", [5, [[1, 2], [3, 4]], np.zeros((3, 1)), np.zeros((1, 3)), np.zeros((2, 2, 2))]
)
def test_counts_that_are_not_one_row_are_refused(count: object) -> None:
    """A column of counts plus a row of noise broadcasts: every group would show all noises."""
    with pytest.raises(ReleaseError, match=r"shape \(groups,\)"):
        publish(MECHANISM, count, streams(10))  # type: ignore[arg-type]


def test_more_counts_than_groups_are_an_error() -> None:
    with pytest.raises(IndexError):
        publish(MECHANISM, COUNTS, streams(5))


def test_no_groups_publish_nothing() -> None:
    assert publish(MECHANISM, np.zeros(0, dtype=np.int64), streams(0)).noisy_count.shape == (0,)


def test_the_noise_depends_on_the_group_and_not_on_its_count() -> None:
    mechanism = ShiftedLog(sigma=0.5, shift=1, floor=1)
    for count in (0, 3, 10**6):
        steps = [mechanism.encode([value])[0] for value in (count, count + 1)]
        published = [
            publish(mechanism, [value], streams(1), rounding="none").noisy_count[0]
            for value in (count, count + 1)
        ]
        expected = mechanism.decode(np.array(steps) + mechanism.noise.sample(streams(1), 1)[0])
        assert np.array_equal(published, expected)


def test_the_data_are_read_only_through_encode() -> None:
    """Counts with the same lattice point are published the same, bit by bit."""
    beyond = [MAX_COUNT, MAX_COUNT + 1, 2**62]
    assert len({publish(MECHANISM, [c], streams(1)).noisy_count[0] for c in beyond}) == 1
    below = [0, -1, -(2**62)]
    assert len({publish(MECHANISM, [c], streams(1)).noisy_count[0] for c in below}) == 1


@pytest.mark.parametrize("sigma", [SIGMA_RANGE[0], 0.01, 0.5, SIGMA_RANGE[1]])
@pytest.mark.parametrize("rounding", ["nearest", "none"])
def test_the_largest_counts_and_draws_overflow_nowhere(sigma: float, rounding: str) -> None:
    mechanism = ShiftedLog(sigma=sigma, shift=2.0**-32, floor=1)

    class Extreme:
        """A draw of about 12 scales, of either sign."""

        def __init__(self, sign: int) -> None:
            self.sign = sign

        def sample(self, source: object, size: int) -> np.ndarray:
            return np.full(size, self.sign * 12 * 2**mechanism.lattice.scale_bits)

    for sign in (1, -1):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mechanism.__dict__["noise"] = Extreme(sign)
            published = publish(mechanism, [0, 2**63 - 1], RandomWords(1), rounding=rounding)  # type: ignore[arg-type]
        assert np.all(np.isfinite(published.noisy_count.astype(float)))
        assert np.all(published.lower <= published.upper)


def test_no_lattice_point_and_no_draw_add_up_to_an_overflow() -> None:
    """22 blocks bound a draw whatever the words are (docs/sampling.md)."""
    most_bits = 64 + 64 * MAX_FURTHER_WORDS
    assert most_bits * np.log(2) < 22**2 / 2
    for sigma in np.geomspace(*SIGMA_RANGE, 400):
        lattice = Lattice.for_sigma(float(sigma))
        largest = np.log(2.0**49) * lattice.steps_per_unit
        assert largest + 22 * 2.0**lattice.scale_bits < 2**63


def test_a_mechanism_without_noise_asks_for_no_words() -> None:
    class Untouched(ConstantWords):
        def block(self, rows: np.ndarray, index: int) -> np.ndarray:
            raise AssertionError("words were asked for")

    published = publish(Constant(floor=10), [0, 7, 10**6], Untouched(0))
    assert published.noisy_count.tolist() == [5, 5, 5]
