from __future__ import annotations

import hashlib
import pickle
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from spark_dphist import streams
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.mechanisms import DiscreteGaussian
from spark_dphist.mechanisms.exact_bits import FURTHER_BLOCKS
from spark_dphist.streams import GroupStreams, ReleaseKey, keyed_order

SECRET = bytes(range(32))
KEY = ReleaseKey.fixed_for_tests(SECRET)


def digests_of(names: list[str]) -> np.ndarray:
    digests = b"".join(hashlib.sha256(name.encode()).digest() for name in names)
    return np.frombuffer(digests, dtype=np.uint8).reshape(-1, 32)


GROUPS = digests_of([f"group {i}" for i in range(1000)])
ALL = np.arange(1000, dtype=np.int64)
NOISE = DiscreteGaussian.power_of_two(44)

FROZEN_WORDS = ["967593fbb2df74ec", "46022b738ade1f08"]
FROZEN_DRAWS = [-7106578748873, 15935875280598, -13623392402669]


def test_words_are_what_the_primitives_give_when_put_together_by_hand() -> None:
    """AES-CBC of the digest with a zero IV is its CBC-MAC; then AES of state XOR index."""
    indices = [0, 1, 2, 511, FURTHER_BLOCKS, FURTHER_BLOCKS + 2047]
    streams = GroupStreams(KEY, GROUPS)
    for row in (0, 1, 999):
        state_key = hashlib.blake2b(
            b"", digest_size=32, key=SECRET, person=b"group-state".ljust(16, b"\0")
        ).digest()
        words_key = hashlib.blake2b(
            b"", digest_size=32, key=SECRET, person=b"noise-words".ljust(16, b"\0")
        ).digest()
        encryptor = Cipher(algorithms.AES256(state_key), modes.CBC(bytes(16))).encryptor()
        state = encryptor.update(GROUPS[row].tobytes())[16:]
        for index in indices:
            block = int.from_bytes(state, "little") ^ index
            cipher = Cipher(algorithms.AES256(words_key), modes.ECB()).encryptor()  # noqa: S305
            words = cipher.update(block.to_bytes(16, "little"))
            expected = [int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")]
            assert streams.block(np.array([row]), index).tolist() == [expected]


def test_words_are_the_same_on_every_machine_and_in_every_version() -> None:
    """Frozen: a change here changes every reproduction under a fixed key."""
    words = GroupStreams(KEY, GROUPS[:1]).block(np.array([0]), 0)
    assert [f"{word:016x}" for word in words[0].tolist()] == FROZEN_WORDS
    drawn = NOISE.sample(GroupStreams(KEY, GROUPS[:3]), 3)
    assert drawn.tolist() == FROZEN_DRAWS


def test_words_do_not_depend_on_the_byte_order_of_the_arrays() -> None:
    expected = GroupStreams(KEY, GROUPS).block(ALL, 7)
    assert expected.dtype == np.uint64
    assert expected.dtype.byteorder in ("=", "<" if sys.byteorder == "little" else ">")
    strided = np.asfortranarray(GROUPS)
    assert not strided.flags.c_contiguous
    assert np.array_equal(GroupStreams(KEY, strided).block(ALL, 7), expected)
    assert np.array_equal(GroupStreams(KEY, GROUPS).block(ALL.astype(">i8"), 7), expected)


def test_a_group_draws_the_same_in_every_batch() -> None:
    expected = NOISE.sample(GroupStreams(KEY, GROUPS), 1000)
    order = np.random.default_rng(3).permutation(1000)
    assert np.array_equal(NOISE.sample(GroupStreams(KEY, GROUPS[order]), 1000), expected[order])
    for pieces in (2, 7, 1000):
        parts = [
            NOISE.sample(GroupStreams(KEY, part), len(part))
            for part in np.array_split(GROUPS, pieces)
        ]
        assert np.array_equal(np.concatenate(parts), expected)


def test_a_group_draws_the_same_when_asked_again() -> None:
    streams = GroupStreams(KEY, GROUPS)
    first = NOISE.sample(streams, 1000)
    assert np.array_equal(NOISE.sample(streams, 1000), first)


def test_asking_for_a_block_does_not_change_the_streams() -> None:
    streams = GroupStreams(KEY, GROUPS)
    before = streams.block(ALL, 3)
    streams.block(ALL, 9)
    before_copy = before.copy()
    before[:] = 0
    assert np.array_equal(streams.block(ALL, 3), before_copy)


def test_two_release_keys_draw_differently_everywhere() -> None:
    one = NOISE.sample(GroupStreams(ReleaseKey.generate(), GROUPS), 1000)
    other = NOISE.sample(GroupStreams(ReleaseKey.generate(), GROUPS), 1000)
    flipped = bytearray(SECRET)
    flipped[31] ^= 1
    near = NOISE.sample(GroupStreams(ReleaseKey.fixed_for_tests(bytes(flipped)), GROUPS), 1000)
    assert not np.any(one == other)
    assert not np.any(near == NOISE.sample(GroupStreams(KEY, GROUPS), 1000))


def test_blocks_of_all_groups_and_indices_are_distinct() -> None:
    streams = GroupStreams(KEY, GROUPS)
    indices = [*range(40), *range(FURTHER_BLOCKS, FURTHER_BLOCKS + 40)]
    words = np.concatenate([streams.block(ALL, index) for index in indices])
    assert len(np.unique(words, axis=0)) == len(words)
    # Even single words: 160,000 of them collide with probability below 1e-9.
    assert len(np.unique(words)) == 2 * len(words)


@pytest.mark.parametrize("byte", range(32))
def test_every_byte_of_the_digest_counts(byte: int) -> None:
    changed = GROUPS[:1].copy()
    changed[0, byte] ^= 0x80
    one, other = GroupStreams(KEY, GROUPS[:1]), GroupStreams(KEY, changed)
    rows = np.array([0])
    difference = int(one.block(rows, 0)[0, 0] ^ other.block(rows, 0)[0, 0])
    # A fair coin for each of 64 bits: outside 8 to 56 with probability below 1e-9.
    assert 8 <= difference.bit_count() <= 56


def test_every_bit_of_the_words_is_a_fair_coin_and_independent_of_the_others() -> None:
    """Fixed key; fails by chance for fewer than one key in 1e5."""
    streams = GroupStreams(KEY, digests_of([f"g{i}" for i in range(20_000)]))
    words = np.hstack([streams.block(np.arange(20_000), index) for index in (0, 1)])
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1).astype(np.float64)
    z = (bits.mean(axis=0) - 0.5) * 2 * np.sqrt(20_000)
    assert np.max(np.abs(z)) < stats.norm.isf(1e-6 / 256)
    signs = 2 * bits - 1
    correlation = signs.T @ signs / np.sqrt(20_000)
    np.fill_diagonal(correlation, 0)
    assert np.max(np.abs(correlation)) < stats.norm.isf(1e-6 / 256**2)
    # From one group to the next, in the order of the rows.
    serial = np.sum(signs[1:] * signs[:-1], axis=0) / np.sqrt(20_000)
    assert np.max(np.abs(serial)) < stats.norm.isf(1e-6 / 256)
    top_bytes = (words >> np.uint64(56)).astype(np.int64)
    for column in range(4):
        counts = np.bincount(top_bytes[:, column], minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-7


@pytest.mark.parametrize(
    "digests",
    [
        np.zeros((4, 16), dtype=np.uint8),
        np.zeros((2, 64), dtype=np.uint8),
        np.zeros(64, dtype=np.uint8),
        np.zeros((2, 4), dtype=np.uint64),
        np.zeros((2, 32), dtype=np.int8),
        np.zeros((2, 32), dtype=np.int64),
        np.zeros((1, 2, 32), dtype=np.uint8),
    ],
    ids=lambda digests: f"{digests.dtype}{digests.shape}",
)
def test_digests_of_another_shape_or_type_are_refused(digests: np.ndarray) -> None:
    """A silent reshape would give two groups the halves of one digest, hence one stream."""
    with pytest.raises(ReleaseError, match=r"uint8 of shape \(groups, 32\)"):
        GroupStreams(KEY, digests)


def test_an_empty_batch_is_no_trouble() -> None:
    streams = GroupStreams(KEY, np.zeros((0, 32), dtype=np.uint8))
    assert NOISE.sample(streams, 0).shape == (0,)
    assert streams.block(np.zeros(0, dtype=np.int64), 0).shape == (0, 2)


def test_a_row_without_a_group_is_an_error_and_never_someone_elses_stream() -> None:
    with pytest.raises(IndexError):
        NOISE.sample(GroupStreams(KEY, GROUPS[:5]), 6)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    for is_fixed in (True, False):
        with pytest.raises(ConfigurationError, match=f"32 bytes, got {length}"):
            ReleaseKey(b"x" * length, is_fixed=is_fixed)
    with pytest.raises(ConfigurationError):
        ReleaseKey.fixed_for_tests(b"x" * length)


def test_no_text_of_a_key_or_its_errors_shows_the_secret() -> None:
    secret = b"thirty-two bytes of great secrec"
    key = ReleaseKey.fixed_for_tests(secret)
    for text in (repr(key), str(key), f"{key}", f"{key!r}", repr([key]), repr({"key": key})):
        assert "secret=" not in text
        assert "thirty" not in text
        assert secret.hex() not in text
    with pytest.raises(ConfigurationError) as caught:
        ReleaseKey.fixed_for_tests(secret[:31])
    assert "thirty-two" not in str(caught.value)
    with pytest.raises(FrozenInstanceError):
        key.secret = b""  # type: ignore[misc]


def test_a_key_knows_whether_it_is_fixed_and_travels_to_the_executors() -> None:
    assert KEY.is_fixed
    fresh = ReleaseKey.generate()
    assert not fresh.is_fixed
    assert len(fresh.secret) == 32
    assert pickle.loads(pickle.dumps(fresh)) == fresh  # noqa: S301
    assert len({ReleaseKey.generate().secret for _ in range(100)}) == 100


def test_a_key_does_not_arrive_in_a_process_with_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks of one release that run different code could draw different noise for one group."""
    sent = pickle.dumps(KEY)
    monkeypatch.setattr(streams, "__version__", "0.0.9")
    with pytest.raises(ReleaseError, match=r"has spark_dphist 0\.0\.9, the driver has") as refused:
        pickle.loads(sent)  # noqa: S301
    assert SECRET.hex() not in str(refused.value)


def test_keys_for_different_purposes_differ_and_are_not_the_secret() -> None:
    derived = {KEY.derive(purpose) for purpose in (b"group-state", b"noise-words", b"units", b"")}
    assert len(derived) == 4
    assert SECRET not in derived
    assert all(len(key) == 32 for key in derived)


def test_an_order_depends_on_key_and_item_alone_and_shares_nothing_with_the_noise() -> None:
    order = keyed_order(KEY, GROUPS)
    assert order.dtype == np.int64
    assert np.all(order >= 0)
    assert len(np.unique(order)) == len(GROUPS)
    shuffled = np.random.default_rng(5).permutation(1000)
    assert np.array_equal(keyed_order(KEY, GROUPS[shuffled]), order[shuffled])
    assert not np.any(keyed_order(ReleaseKey.generate(), GROUPS) == order)
    streams = GroupStreams(KEY, GROUPS)
    noise = np.concatenate([streams.block(ALL, index).ravel() for index in range(6)])
    assert not np.isin(order.astype(np.uint64), noise >> np.uint64(1)).any()
    # Uniform: a thousand positions, false alarm below 1e-6.
    assert stats.kstest(order / 2.0**63, "uniform").pvalue > 1e-6
