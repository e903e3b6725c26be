"""Waiting for something that other processes or threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def wait_for(look: Callable[[], Seen | None], what: str, seconds: float = 180) -> Seen:
    """Look until there is something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise TimeoutError(f"not there after {seconds} s: {what}")
