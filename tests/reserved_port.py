"""A free port for a server that a test starts, which nobody else gets before it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Hold a port of the loopback device, for a server to be told of in the ``with`` block.

    It is bound and nobody listens, so the kernel gives it to nobody else. A server that sets
    SO_REUSEADDR, as Java's and PostgreSQL's do on Linux, can listen at it all the same.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        yield port
