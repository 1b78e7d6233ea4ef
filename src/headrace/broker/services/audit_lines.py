"""Lines of an audit log that wait for a topic, and the bounds of what one names."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Final

DENIED, CHANGED, LOGIN_FAILED = "denied", "changed", "login_failed"
"""Events."""
NAME_LENGTH_MAX: Final = 300
WAITING_MAX: Final = 10_000
"""Lines that wait for a topic; one has at most some 8 KiB."""
RESOURCES_MAX: Final = 20
"""Named in one line; of further ones the number."""


class LineCount:
    """How many lines wait for several topics."""

    def __init__(self, count_max: int) -> None:
        self.count = 0
        self.count_max = count_max


class AuditLines:
    """Lines that wait for a topic to take them; one that finds the queue full is counted, which the
    next line says."""

    def __init__(self, waiting_max: int | None = None, total: LineCount | None = None) -> None:
        """`total`: of this queue and others, which has a bound, too."""
        self._waiting: deque[str] = deque()
        self._waiting_max = waiting_max
        self._total = LineCount(WAITING_MAX) if total is None else total
        self.has_some = asyncio.Event()
        self._dropped = 0
        self.dropped_total = 0
        self.is_closed = False
        """Whether those that wait are no longer written."""
        self.has_writer = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_dropped(self) -> bool:
        """Whether the next line has to say how many were left out."""
        return self._dropped > 0

    def put(self, line: str) -> None:
        """Have a line written soon."""
        if self._is_full():
            self._dropped += 1
            self.dropped_total += 1
            return
        if self._dropped:
            fields = {**json.loads(line), "dropped_before": self._dropped}
            line = json.dumps(fields, separators=(",", ":"))
            self._dropped = 0
        self._waiting.append(line)
        self._total.count += 1
        self.has_some.set()

    def _is_full(self) -> bool:
        is_long = self._waiting_max is not None and len(self._waiting) >= self._waiting_max
        return is_long or self._total.count >= self._total.count_max

    def first(self, count: int) -> list[str]:
        """The first of those that wait, at most so many."""
        return [self._waiting[at] for at in range(min(count, len(self._waiting)))]

    def done(self, count: int, failed: list[str]) -> None:
        """The first `count` are written, but those that `failed`, which are first now."""
        for _ in range(count):
            self._waiting.popleft()
        self._waiting.extendleft(reversed(failed))
        self._total.count -= 0 if self.is_closed else count - len(failed)
        if not self._waiting:
            self.has_some.clear()

    def close(self) -> None:
        """Write no more of those that wait."""
        self.is_closed = True
        self._total.count -= len(self._waiting)
