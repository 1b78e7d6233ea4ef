"""Control over memory that the C library keeps after it was freed.

glibc retains freed memory in the arena of the thread that freed it; after a large operation that
rarely repeats, `malloc_trim` returns it to the system. Large blocks are the opposite case: glibc
unmaps them at once, and the kernel must zero every page of the next one, which is wasteful if they
are allocated all the time. Other C libraries lack these calls, and nothing is done there.
"""

from __future__ import annotations

import ctypes
from typing import Final

_LIBRARY: Final = ctypes.CDLL(None)
_trim = getattr(_LIBRARY, "malloc_trim", None)
_set_option = getattr(_LIBRARY, "mallopt", None)
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def trim_heap() -> None:
    """Return freed memory to the system; takes some milliseconds, without holding the GIL."""
    if _trim is not None:
        _trim(0)


def retain_freed(piece_bytes_max: int, kept_bytes_max: int) -> bool:
    """Retain freed blocks of up to `piece_bytes_max`, `kept_bytes_max` in total.

    Applies to the whole process until it exits; `trim_heap` still works. Returns whether the C
    library accepted the settings. Source: mallopt(3).
    """
    if _set_option is None:
        return False
    told = (
        _set_option(_MMAP_THRESHOLD, piece_bytes_max),
        _set_option(_TRIM_THRESHOLD, kept_bytes_max),
    )
    return all(told)
