"""Memory that was freed: given back to the machine, or kept for the next time.

Invariants: glibc keeps what a thread has freed in that thread's part of the heap, for the
next time; after tens of megabytes that seldom come again, it is asked to let go. What comes again
all the time in large pieces is another matter: glibc lets go of those at once, and the kernel has
to clear every page of the next one. Other C libraries have no such calls, and nothing is done.
"""

from __future__ import annotations

import ctypes
from typing import Final

_LIBRARY: Final = ctypes.CDLL(None)
_trim = getattr(_LIBRARY, "malloc_trim", None)
_set_option = getattr(_LIBRARY, "mallopt", None)
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def give_back() -> None:
    """Return freed memory to the machine; some milliseconds, without the interpreter's lock."""
    if _trim is not None:
        _trim(0)


def keep_freed(piece_bytes_max: int, kept_bytes_max: int) -> bool:
    """From now on keep what is freed in pieces of up to so many bytes, `kept_bytes_max` of it.

    For the whole process, and until it ends; `give_back` works as before. Answers whether the C
    library has been told. Source: mallopt(3).
    """
    if _set_option is None:
        return False
    told = (
        _set_option(_MMAP_THRESHOLD, piece_bytes_max),
        _set_option(_TRIM_THRESHOLD, kept_bytes_max),
    )
    return all(told)
