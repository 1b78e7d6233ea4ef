"""An in-memory file shared by two processes: transfers bytes with two copies and no pipe.

Invariants: Linux only; elsewhere `memory_file` returns NONE and callers need another way. The
memory is freed when the last descriptor is closed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.disk import Buffer

NONE: Final = -1
_MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - the file has no name
_PARTS_MAX: Final = 1_000
"""Linux accepts at most 1,024 parts at once."""


def memory_file() -> int:
    """Create an empty in-memory file; returns its descriptor, or NONE."""
    make = getattr(os, "memfd_create", None)
    try:
        if make is not None:
            return int(make("headrace"))
        # Interpreters that were built for old systems, such as uv's, lack it.
        unnamed = getattr(os, "O_TMPFILE", 0)
        return os.open(_MEMORY_FOLDER, unnamed | os.O_RDWR, 0o600) if unnamed else NONE
    except OSError:
        return NONE


def close_memory_file(descriptor: int) -> None:
    """Close the file, if there is one."""
    if descriptor != NONE:
        os.close(descriptor)


def write_parts(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
    """Write all of `parts` contiguously; returns their size. Raises OSError."""
    size = 0
    for at in range(0, len(parts), _PARTS_MAX):
        some = parts[at : at + _PARTS_MAX]
        wanted = sum(map(len, some))
        written = os.pwritev(descriptor, some, position + size)
        if written < wanted:  # the number of bytes per call is limited, too
            view = memoryview(b"".join(some))[written:]
            while view:
                more = os.pwrite(descriptor, view, position + size + wanted - len(view))
                view = view[more:]
        size += wanted
    return size


def read_exactly(descriptor: int, size: int, position: int) -> bytes:
    """Read `size` bytes. Raises OSError if the file is shorter."""
    data = os.pread(descriptor, size, position)
    if len(data) != size:
        raise OSError(f"the in-memory file is {size - len(data)} bytes too short")
    return data
