"""A file in memory that two processes share: bytes go over with two copies, and no pipe.

Invariants: Linux has it; elsewhere there is none, and callers need another way. It lives as long as
a process has its descriptor open.
"""

from __future__ import annotations

import os
from typing import Final

NONE: Final = -1


def memory_file() -> int:
    """Make an empty one; its descriptor, or NONE."""
    make = getattr(os, "memfd_create", None)
    try:
        return NONE if make is None else int(make("headrace"))
    except OSError:
        return NONE


def close_memory_file(descriptor: int) -> None:
    """Close it, if there is one."""
    if descriptor != NONE:
        os.close(descriptor)


def write_exactly(descriptor: int, data: bytes, position: int) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, position)
        view, position = view[written:], position + written


def read_exactly(descriptor: int, size: int, position: int) -> bytes:
    """Raises OSError where the file is shorter."""
    data = os.pread(descriptor, size, position)
    if len(data) != size:
        raise OSError(f"a file in memory ends {size - len(data)} bytes too early")
    return data
