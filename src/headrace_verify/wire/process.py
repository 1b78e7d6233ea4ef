"""A process from outside: its memory, descriptors and threads, from /proc.

Invariants: reads /proc; on other systems, the values are None.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """The resources of a process."""

    memory_bytes: int
    peak_bytes: int
    """The peak memory since `forget_peak`."""
    descriptors: int
    threads: int


def usage(pid: int) -> Usage | None:
    """Its current resources; None if they are not available."""
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text()
        descriptors = len(list((folder / "fd").iterdir()))
    except OSError:
        return None
    found = dict(re.findall(r"^(VmRSS|VmHWM|Threads):\s+(\d+)", status, re.MULTILINE))
    if len(found) < 3:
        return None
    return Usage(
        int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024, descriptors, int(found["Threads"])
    )


def forget_peak(pid: int) -> None:
    """Reset the peak."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
