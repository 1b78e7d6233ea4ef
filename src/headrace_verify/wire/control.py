"""The cost of a small write on this machine without a broker, measured during the abuse.

Invariants: knows no broker. A slow write of the reference client is the broker's fault only
beyond the delays of the machine itself: CPU and disk.
"""

from __future__ import annotations

import os
import threading
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_S = 0.05
_BLOCK = bytes(4096)


class Control:
    """Repeatedly writes a block to a file and syncs it, in a separate thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = SystemClock()
        self._begun_ns = self._clock.now_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._writes: list[tuple[int, int]] = []
        """(start, end), monotonic, in ns."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def worst_ms(self, since_ns: int) -> float:
        """The longest write that ended after `since_ns` or is still running, including the
        pause."""
        recent = takewhile(lambda one: one[1] > since_ns, reversed(self._writes))
        longest_ns = max((ended - begun for begun, ended in recent), default=0)
        return max(longest_ns, self._clock.now_ns() - self._begun_ns) / 1e6

    def _run(self) -> None:
        with self._path.open("wb") as file:
            while not self._over.is_set():
                self._begun_ns = self._clock.now_ns()
                self._over.wait(PAUSE_S)
                os.pwrite(file.fileno(), _BLOCK, 0)
                os.fsync(file.fileno())
                self._writes.append((self._begun_ns, self._clock.now_ns()))
