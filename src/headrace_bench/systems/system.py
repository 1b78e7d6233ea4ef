"""The interface of a benchmarked system.

Invariants: one interface of few methods; a system's own terms (queue, stream, subject) stay in its
module. `synced` means: on disk before it is acknowledged; `unsynced`: acknowledged before.
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
"""How many times a log is read if a reader is faster than a window is long."""


def read_again(read_once: Callable[[], Steady], window: Window) -> Steady:
    """Read from the beginning until the windows together are as long as `window`."""
    together = read_once()
    for _ in range(PASSES_MAX - 1):
        if together.seconds >= window.seconds:
            break
        together = together.and_then(read_once())
    return together


class Latency(NamedTuple):
    """Message latencies: all of them, or the percentiles that a tool reports."""

    histogram: HdrHistogram | None
    """Nanoseconds from the time a message was due until it was received."""
    reported_ms: dict[str, float]
    """Percentile -> milliseconds, by the tool's own method, if it reports no single messages."""


class Side(Protocol):
    """One system with one guarantee, with its own processes and folder."""

    name: str
    policy: str
    words: str
    """The setting that makes the guarantee, in the system's own terms."""

    @property
    def acknowledges(self) -> Collection[Acknowledge]:
        """The ways in which `empty` can acknowledge."""
        ...

    @property
    def ready_s(self) -> float:
        """Seconds from its start to its first response."""
        ...

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        ...

    def start(self) -> None:
        """Start it with an empty folder; returns when it responds."""
        ...

    def stop(self) -> None:
        """Stop it and remove its data."""
        ...

    def is_alive(self) -> bool:
        """It was started, and all of its processes are running."""
        ...

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """Write records at the tool's full speed to a new topic (queue, stream) `name`.

        Acknowledged records count.
        """
        ...

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady | None:
        """Read from the beginning what `produce` wrote to `name`: at least `records`.

        Repeatedly, until the window is complete or it was read PASSES_MAX times. None if no tool
        supports it.
        """
        ...

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """Send 100 B messages at a steady rate and receive them; None if no tool supports it."""
        ...

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """Receive what `produce` wrote to `name`, at least `records`, and acknowledge it.

        With one consumer; acknowledged messages count.
        """
        ...

    def drop(self, name: str) -> None:
        """Delete `name`."""
        ...


class System(NamedTuple):
    """A system that can be compared with Headrace."""

    name: str
    title: str
    tool: str
    """Its load tool, with the relevant settings."""
    version: Callable[[], str]
    missing: Callable[[], str]
    """What is missing, or "" if it can be run."""
    install: Callable[[], None]
    """Download it into the cache folder; raises PartMissing."""
    sides: Callable[[Path], list[Side]]
    is_extra: bool = False
    """Runs only when requested by name."""
