"""What every system is asked to carry in turn: data, no code that runs anything.

Invariants: a load says what, never how: the system's own module knows its tool. Equal
promises stand side by side: `synced` (on disk before the acknowledgement) and `unsynced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_bench.tools import Window
from headrace_bench.workloads import SYNCED, UNSYNCED


@dataclass(frozen=True, slots=True)
class Load:
    """One row of runs, the same for each side."""

    name: str
    title: str
    kind: Literal["produce", "consume", "latency"]
    record_bytes: int
    window: Window
    """What a run leaves out at first, and how long it measures."""
    rate_per_s: int = 0
    policies: tuple[str, ...] = (SYNCED, UNSYNCED)
    every: int = 1
    """Run in every so-manyth round, beginning with the first."""

    def is_in(self, number: int) -> bool:
        """Whether round `number` (from 1) has it."""
        return (number - 1) % self.every == 0


LOADS: tuple[Load, ...] = (
    # The first after a server's start: it warms up longer.
    Load("beside-produce-100", "Produce 100 B records", "produce", 100, Window(5.0, 10.0), every=2),
    Load("beside-produce-1024", "Produce 1 KiB records", "produce", 1024, Window(4.0, 10.0)),
    # What the load before has written, read from its beginning.
    Load(
        "beside-consume-1024",
        "Consume 1 KiB records",
        "consume",
        1024,
        Window(1.0, 10.0),
        policies=(UNSYNCED,),
    ),
    Load(
        "beside-latency-1000",
        "End to end at 1,000 messages/s of 100 B",
        "latency",
        100,
        Window(1.0, 5.0),
        rate_per_s=1000,
    ),
)

# figure -> (heading, unit, digits)
FIGURES: dict[str, tuple[str, str, int]] = {
    "records_per_s": ("records/s", "", 0),
    "mb_per_s": ("MB/s", "", 1),
    "cpu_s_per_million": ("CPU s a million records", "", 2),
    "cpu_s_per_gb": ("CPU s a GB", "", 2),
    "written_per_byte": ("bytes to disk a byte", "", 2),
    "rss_mb": ("memory after, MB", "", 0),
}
SHARES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
