"""An in-memory file shared by two processes: transfers bytes with two copies and no pipe.

Invariants: Linux only; elsewhere `memory_file` returns NONE and callers need another way. The
memory is freed when the last descriptor is closed.
"""

from __future__ import annotations

import os
from typing import Final

NONE: Final = -1


def memory_file() -> int:
    """Create an empty in-memory file; returns its descriptor, or NONE."""
    make = getattr(os, "memfd_create", None)
    try:
        return NONE if make is None else int(make("headrace"))
    except OSError:
        return NONE


def close_memory_file(descriptor: int) -> None:
    """Close the file, if there is one."""
    if descriptor != NONE:
        os.close(descriptor)


def write_exactly(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def read_exactly(descriptor: int, size: int, position: int) -> bytes:
    """Read `size` bytes. Raises OSError if the file is shorter."""
    data = os.pread(descriptor, size, position)
    if len(data) != size:
        raise OSError(f"the in-memory file is {size - len(data)} bytes too short")
    return data
