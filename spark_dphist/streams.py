"""Random words that depend on the release key and the group's key alone.

However Spark splits, shuffles, retries or speculates, a group therefore always gets the same draw
within one release, and the draws of different groups are independent (docs/streams.md).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from spark_dphist import __version__
from spark_dphist.errors import ConfigurationError, ReleaseError

DIGEST_BYTES = 32
KEY_BYTES = 32


@dataclass(frozen=True)
class ReleaseKey:
    """The 256-bit secret from which all noise of one release is derived.

    Make one with ``ReleaseKey.generate()``. It is never shown by ``repr`` and must never be stored:
    whoever knows it can subtract the noise. One key serves one release of one table: a second use,
    on other data or under another mechanism, repeats the noise, and differencing cancels it.

    Raises
    ------
    ConfigurationError
        If there are not exactly 32 bytes.
    """

    secret: bytes = field(repr=False)
    is_fixed: bool

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ConfigurationError(
                f"a release key has {KEY_BYTES} bytes, got {len(self.secret)}. "
                "Use ReleaseKey.generate()."
            )

    @classmethod
    def generate(cls) -> ReleaseKey:
        """Draw a fresh key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES), is_fixed=False)

    @classmethod
    def fixed_for_tests(cls, secret: bytes) -> ReleaseKey:
        """Use known bytes: for tests and reproductions only, and marked as such in the audit."""
        return cls(secret, is_fixed=True)

    def __reduce__(self) -> tuple[Callable[..., ReleaseKey], tuple[bytes, bool, str]]:
        """Pickle with the version: another one on an executor could draw other noise."""
        return _received, (self.secret, self.is_fixed, __version__)

    def derive(self, purpose: bytes) -> bytes:
        """Derive an independent 256-bit key for one purpose (at most 16 bytes of label)."""
        return hashlib.blake2b(key=self.secret, person=purpose, digest_size=32).digest()


def _received(secret: bytes, is_fixed: bool, version: str) -> ReleaseKey:
    if version != __version__:
        raise ReleaseError(
            f"this executor has spark_dphist {__version__}, the driver has {version}, so nothing "
            "was published. Ship the driver's package to all executors (docs/deploy.md)."
        )
    return ReleaseKey(secret, is_fixed)


class GroupStreams:
    """One stream of random words for each group of a batch.

    Parameters
    ----------
    key
        The release key.
    digests
        SHA-256 of each group's encoded key, shape (groups, 32), uint8.

    Raises
    ------
    ReleaseError
        If the digests have another shape or type: a reinterpretation could give two groups one
        stream.

    Notes
    -----
    A group's 128-bit state is the two-block CBC-MAC of its digest under AES-256 (a pseudorandom
    function, as all messages have one length); its block ``index`` is AES-256 of state XOR index
    under a second key. Both keys are derived from the release key.
    """

    def __init__(self, key: ReleaseKey, digests: npt.NDArray[np.uint8]) -> None:
        if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES:
            raise ReleaseError(
                f"group digests must be uint8 of shape (groups, {DIGEST_BYTES}), got "
                f"{digests.dtype} of shape {digests.shape}, so nothing was published. "
                "Pass the SHA-256 of each group's encoded key."
            )
        halves = np.ascontiguousarray(digests).view("<u8")
        mac = _encryptor(key.derive(b"group-state"))
        self._states = mac(mac(halves[:, :2]) ^ halves[:, 2:])
        self._encrypt = _encryptor(key.derive(b"noise-words"))

    def block(self, rows: npt.NDArray[np.int64], index: int) -> npt.NDArray[np.uint64]:
        """Return block ``index`` of the given rows, shape (len(rows), 2), uint64."""
        inputs = self._states[rows]
        inputs[:, 0] ^= np.uint64(index)
        return self._encrypt(inputs)


def digest_array(digests: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Return a batch of digests of ``DIGEST_BYTES`` each as one array, shape (items, 32), uint8."""
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)


def keyed_order(key: ReleaseKey, digests: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Return a pseudorandom position for each digest, independent of all noise of the release.

    Parameters
    ----------
    key
        The release key.
    digests
        SHA-256 of each item, shape (items, 32), uint8.
    """
    streams = GroupStreams(ReleaseKey(key.derive(b"contributions"), key.is_fixed), digests)
    words = streams.block(np.arange(len(digests), dtype=np.int64), 0)[:, 0]
    return (words >> np.uint64(1)).astype(np.int64)


def _encryptor(key: bytes) -> Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.uint64]]:
    # Single blocks are what a pseudorandom function of the block takes, so ECB is right here.
    cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305

    def encrypt(blocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        little_endian = np.ascontiguousarray(blocks, dtype="<u8")
        encrypted = cipher.encryptor().update(little_endian.tobytes())
        return np.frombuffer(encrypted, dtype="<u8").astype(np.uint64).reshape(-1, 2)

    return encrypt
