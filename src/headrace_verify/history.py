"""The history of a run: what each client requested, the results, and the times.

Invariants: append-only, one file per process, one line of JSON per event, written immediately, so
that a killed client leaves at most a partial line. Nothing is kept in memory. Times are
`CLOCK_MONOTONIC` in ns, which all processes of a machine share, so files are merged by time. The
format is specified for external checkers in `docs/VERIFY.md`.

How it works: a write is recorded twice, as an invocation and as its completion (`ok`, `fail`: it
certainly did not happen, or `info`: unknown). A read is recorded once, when it has completed, with
the time of its invocation as `since`.
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
"""Stored, and read by other tools: change it together with docs/VERIFY.md."""
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
"""One line: `t` ns, `p` process, `k` kind, `f` operation, and the operation's own fields."""

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_time_of = itemgetter("t")
now_ns = SystemClock().now_ns
"""The time for `since`."""


class History:
    """Writes the events of one process. Thread-safe."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._op = 0

    def close(self) -> None:
        """Stop writing."""
        os.close(self._fd)

    def write(self, kind: str, operation: str, /, **fields: Any) -> int:
        """Record an event; returns its time in ns."""
        with self._lock:  # lines are in the order of their times
            at_ns = now_ns()
            event = {"t": at_ns, "p": self.process, "k": kind, "f": operation, **fields}
            os.write(self._fd, _encode(event).encode() + b"\n")
        return at_ns

    def invoke(self, operation: str, /, **fields: Any) -> int:
        """Record an invocation; returns the number that its completion must carry as `op`."""
        with self._lock:
            self._op += 1
            op = self._op
        self.write(INVOKE, operation, op=op, **fields)
        return op


def read_history(path: Path) -> Iterator[Event]:
    """Yield the events of one file in order; a partial last line is skipped."""
    decode = json.loads
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield decode(line)


def merged(histories: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """Yield all events in order of time."""
    return merge(*histories, key=_time_of)


def write_merged(paths: Iterable[Path], target: Path) -> int:
    """Merge files into one, which begins with the format's name; returns the number of events."""
    count = 0
    with target.open("w", encoding="utf-8") as file:
        file.write(_encode({"t": 0, "p": "", "k": NOTE, "f": FORMAT, "version": VERSION}) + "\n")
        for event in merged(read_history(path) for path in paths):
            file.write(_encode(event) + "\n")
            count += 1
    return count
