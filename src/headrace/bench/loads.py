"""What every system is asked to carry in turn: data, no code that runs anything.

Rules of the room: a load says what, never how: the system's own module knows its tool. Equal
promises stand side by side: `synced` (on disk before the acknowledgement) and `unsynced`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.bench.workloads import SYNCED, UNSYNCED


@dataclass(frozen=True, slots=True)
class Load:
    """One row of runs, the same for each side."""

    name: str
    title: str
    kind: Literal["produce", "consume", "latency"]
    record_bytes: int
    seconds: float = 2.0
    """How long a run should take, about; a consume run reads a fixed amount instead."""
    records: int = 0
    rate_per_s: int = 0
    policies: tuple[str, ...] = (SYNCED, UNSYNCED)


LOADS: tuple[Load, ...] = (
    Load("beside-produce-100", "Produce 100 B records", "produce", 100),
    Load("beside-produce-1024", "Produce 1 KiB records", "produce", 1024),
    Load("beside-produce-16384", "Produce 16 KiB records", "produce", 16_384),
    Load(
        "beside-consume-1024",
        "Consume 1 KiB records",
        "consume",
        1024,
        records=50_000,
        policies=(UNSYNCED,),
    ),
    Load(
        "beside-latency-1000",
        "End to end at 1,000 messages/s of 100 B",
        "latency",
        100,
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
CALIBRATION: dict[int, int] = {100: 10_000, 1024: 5_000, 16_384: 1_000}
"""Record size -> how many are written first, to learn the rate; a second's worth warms up."""
RUN_BYTES_MAX = 700_000_000
"""Of one run: some systems hold all of it in memory."""
