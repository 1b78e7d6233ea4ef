"""A process from outside: its memory, descriptors and threads, as Linux tells them.

Invariants: reads /proc; elsewhere nothing is known, and who asks is told so.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """What a process holds."""

    memory_bytes: int
    peak_bytes: int
    """The most memory since `forget_peak`."""
    descriptors: int
    threads: int


def usage(pid: int) -> Usage | None:
    """What it holds now; None where that cannot be told."""
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
    """Count the peak from now on."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
