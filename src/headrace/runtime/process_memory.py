"""How much memory this process holds, and has held at most.

Invariants: asks the kernel about this program alone. `ru_maxrss` of getrusage would not do: over
`exec` it keeps the peak of the process that started this one, so that a broker begun by a large
process would report that one's memory as its own.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

STATUS = "/proc/self/status"


class ProcessMemory(NamedTuple):
    """Resident bytes."""

    now_bytes: int
    peak_bytes: int


def process_memory() -> ProcessMemory:
    """What is resident now, and the most there was; some 50 us."""
    found: dict[str, int] = {}
    try:
        with open(STATUS, "rb") as stream:
            for line in stream:
                name, _, rest = line.partition(b":")
                if name in (b"VmRSS", b"VmHWM"):
                    found[name.decode()] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    if len(found) < 2:  # no Linux: the peak is the best there is
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return ProcessMemory(peak, peak)
    # The kernel counts in parts, so the peak may be told a little late.
    return ProcessMemory(found["VmRSS"], max(found["VmHWM"], found["VmRSS"]))
