"""The history of a run: what every client asked for, what it was told, and when.

Invariants: append-only, one file for each process, one line of JSON for each event, written
at once, so that a client may be killed at any moment and leaves at most half a line. Nothing is
kept in memory. Times are `CLOCK_MONOTONIC` in ns, which all processes of a machine share, so files
are merged by time. The format is described for an outside judge in `docs/VERIFY.md`.
How it works: what changes something is written twice, as an invocation and as its end (`ok`, or
`fail`: it certainly did not happen, or `info`: nobody knows). A read is written once, when it has
ended, with the time of its invocation as `since`.
"""

from __future__ import annotations

import json
import os
import threading
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORMAT = "headrace-history"
VERSION = 1
"""Do not change without writing it into docs/VERIFY.md: stored, and read by others."""
INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
SEND, POLL, ASSIGN, REVOKE, COMMIT, COMMITTED = (
    "send",
    "poll",
    "assign",
    "revoke",
    "commit",
    "committed",
)
OFFSETS, CREATE, DELETE, TRANSACTION = "offsets", "create", "delete", "transaction"
INIT, BEGIN = "init", "begin"
ACQUIRE, SETTLE, DRAINED, NOTE = "acquire", "settle", "drained", "note"
DEAD = "dead"
Event = dict[str, Any]
"""One line: `t` ns, `p` process, `k` kind, `f` operation, and what belongs to the operation."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_time_of = itemgetter("t")
now_ns = SystemClock().now_ns
"""The time that `since` takes."""


class History:
    """Writes the events of one process; any thread of it may."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._op = 0

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)

    def write(self, kind: str, operation: str, /, **fields: Any) -> int:
        """Put down an event; its time in ns."""
        with self._lock:  # the order of the lines is that of their times
            at_ns = now_ns()
            event = {"t": at_ns, "p": self.process, "k": kind, "f": operation, **fields}
            os.write(self._fd, _encode(event).encode() + b"\n")
        return at_ns

    def invoke(self, operation: str, /, **fields: Any) -> int:
        """Put down an invocation; the number that its end must bring as `op`."""
        with self._lock:
            self._op += 1
            op = self._op
        self.write(INVOKE, operation, op=op, **fields)
        return op


def read_history(path: Path) -> Iterator[Event]:
    """The events of one file in their order; half a line at its end is left out."""
    decode = json.loads
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode(line)


def merged(histories: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """All events in the order of their times."""
    return merge(*histories, key=_time_of)


def write_merged(paths: Iterable[Path], target: Path) -> int:
    """Merge files into one, which begins with the format's name; how many events there are."""
    count = 0
    with target.open("w", encoding="utf-8") as file:
        file.write(_encode({"t": 0, "p": "", "k": NOTE, "f": FORMAT, "version": VERSION}) + "\n")
        for event in merged(read_history(path) for path in paths):
            file.write(_encode(event) + "\n")
            count += 1
    return count
