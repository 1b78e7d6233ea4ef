"""What the benchmarks ask of a system, whichever it is.

Invariants: one interface of few methods; a system's own words (queue, stream, subject) stay
in its module. `synced` means: on disk before it is acknowledged; `unsynced`: acknowledged before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from headrace_bench.hdr import HdrHistogram
    from headrace_bench.loads import Acknowledge
    from headrace_bench.tools import Steady, Window


PASSES_MAX = 3
"""So often a log is read whose readers are quicker than a window is long."""


def read_again(read_once: Callable[[], Steady], window: Window) -> Steady:
    """Read from the beginning until the windows together are as long as `window`."""
    together = read_once()
    for _ in range(PASSES_MAX - 1):
        if together.seconds >= window.seconds:
            break
        together = together.and_then(read_once())
    return together


class Latency(NamedTuple):
    """How long messages took: all of them, or what a tool tells of them."""

    histogram: HdrHistogram | None
    """Nanoseconds from the moment a message was due until it was received."""
    told_ms: dict[str, float]
    """Percentile -> milliseconds, by the tool's own way, where it tells no single message."""


class Side(Protocol):
    """One system with one promise, on its own processes and folder."""

    name: str
    policy: str
    words: str
    """The setting that makes the promise, in the system's own words."""

    @property
    def acknowledges(self) -> Collection[Acknowledge]:
        """The ways in which `empty` can acknowledge."""
        ...

    @property
    def ready_s(self) -> float:
        """Seconds from its start to its first answer."""
        ...

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        ...

    def start(self) -> None:
        """Start it afresh; returns when it answers."""
        ...

    def stop(self) -> None:
        """End it and remove its data."""
        ...

    def is_alive(self) -> bool:
        """It was started, and none of its processes has ended."""
        ...

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """Write records, as fast as its tool goes, to a new topic (queue, stream) `name`.

        Counted is what was acknowledged.
        """
        ...

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady | None:
        """Read from the beginning what `produce` wrote to `name`: `records` at least.

        Again and again, until the window is full or it was read PASSES_MAX times. None where no
        tool tells it.
        """
        ...

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """Send 100 B messages at a steady rate and receive them; None where no tool does it."""
        ...

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """Receive what `produce` wrote to `name`, `records` at least, and acknowledge it.

        By one consumer; counted is what it has acknowledged.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete `name`."""
        ...


class System(NamedTuple):
    """A system that may stand beside Headrace."""

    name: str
    title: str
    tool: str
    """What loads it, with the settings that matter."""
    version: Callable[[], str]
    missing: Callable[[], str]
    """What is not there, or "" when it can be run."""
    install: Callable[[], None]
    """Fetch it into the cache folder; raises PartMissing."""
    sides: Callable[[Path], list[Side]]
    is_extra: bool = False
    """Runs only when it is asked for by name."""
