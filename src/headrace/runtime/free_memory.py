"""Memory that was freed, given back to the machine.

Rules of the room: glibc keeps what a thread has freed in that thread's part of the heap, for the
next time; after tens of megabytes that seldom come again, it is asked to let go. Other C libraries
have no such call, and nothing is done.
"""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back() -> None:
    """Return freed memory to the machine; some milliseconds, without the interpreter's lock."""
    if _trim is not None:
        _trim(0)
