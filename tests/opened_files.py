"""Which files a test opens, told by the kernel; whoever opens them, in Python or in a library."""

import ctypes
import os
import struct
from contextlib import contextmanager
from pathlib import Path

_OPEN, _DIRECTORY = 0x20, 0x40000000
_HEADER = struct.Struct("iIII")


@contextmanager
def opened_files(*directories):
    """Collect the paths of files opened in these directories and below while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    assert watcher >= 0, os.strerror(ctypes.get_errno())
    places, opened = {}, []
    try:
        for root in directories:
            for place in [Path(root), *(each for each in Path(root).rglob("*") if each.is_dir())]:
                number = libc.inotify_add_watch(watcher, os.fsencode(place), _OPEN)
                assert number >= 0, os.strerror(ctypes.get_errno())
                places[number] = place
        yield opened
        try:
            events = os.read(watcher, 2**20)
        except BlockingIOError:
            events = b""
        while events:
            number, mask, _, length = _HEADER.unpack_from(events)
            name = events[_HEADER.size : _HEADER.size + length].rstrip(b"\0")
            if name and not mask & _DIRECTORY:
                opened.append(places[number] / os.fsdecode(name))
            events = events[_HEADER.size + length :]
    finally:
        os.close(watcher)
