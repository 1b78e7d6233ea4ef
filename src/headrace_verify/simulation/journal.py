"""The in-memory history of a simulated run, in the format of `verify/history`.

Invariants: as `History`, but for one thread and simulated time. Every event goes into the run's
trace, whose hash tells whether two runs were the same.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from headrace_verify.history import INVOKE, OK

if TYPE_CHECKING:
    from headrace_verify.history import Event
    from headrace_verify.simulation.loop import SimulatedLoop
    from headrace_verify.simulation.table import Table


class Journal:
    """Everything that the clients of one run have done."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.events: list[Event] = []
        self.problems: list[str] = []
        """Violations that no history checker detects."""
        self.trace = 0
        """A checksum of all events so far."""
        self.generations: dict[str, int] = {}
        """Broker -> the newest group generation that it has sent to a member."""
        self.ends: dict[tuple[str, int], int] = {}
        """Partition -> the largest log end reported to any client."""
        self.outcomes: dict[str, str] = {}
        """Transaction -> its outcome, if certain."""
        self.halves: dict[str, tuple[str, int, str]] = {}
        """Half message -> topic, partition, and its outcome, if certain."""
        self.is_calendar_set = False
        """Whether brokers' wall clocks differ at times: then what depends on them is not
        checked."""
        self.tables: list[Table] = []
        """The expected contents of compacted topics, according to their clients."""
        self._ops: dict[str, int] = {}

    @property
    def now_s(self) -> float:
        """Simulated time."""
        return self._loop.now_s

    @property
    def now_ns(self) -> int:
        """The time of an event now."""
        return int(self._loop.now_s * 1_000_000_000)

    def write(self, process: str, kind: str, operation: str, /, **fields: Any) -> None:
        """Record an event."""
        event = {"t": self.now_ns, "p": process, "k": kind, "f": operation, **fields}
        self.events.append(event)
        if operation == "transaction" and kind == OK:
            self.outcomes[fields["txn"]] = fields["end"]
        self.trace = zlib.crc32(repr(event).encode(), self.trace)

    def invoke(self, process: str, operation: str, /, **fields: Any) -> int:
        """Record an invocation; returns the number that its completion must carry as `op`."""
        op = self._ops[process] = self._ops.get(process, 0) + 1
        self.write(process, INVOKE, operation, op=op, **fields)
        return op

    def note_end(self, topic: str, part: int, end: int) -> None:
        """Record a log end that was reported to a client."""
        self.ends[topic, part] = max(self.ends.get((topic, part), 0), end)

    def problem(self, what: str) -> None:
        """Record a violation."""
        if len(self.problems) < 50:
            self.problems.append(f"{self._loop.now_s:.3f} s: {what}")
        self.trace = zlib.crc32(what.encode(), self.trace)
