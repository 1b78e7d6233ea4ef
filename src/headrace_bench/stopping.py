"""SIGINT and SIGTERM end the bench like Ctrl-C: its processes are stopped, and it reports that.

Invariants: a signal becomes an exception in the main thread, which no `except Exception` catches;
code that has started processes stops them in a `finally`.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The bench was asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number
        """The exit code of a process terminated by a signal, as in a shell."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within this context (in the main thread), SIGINT and SIGTERM raise Stopped."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {one: signal.signal(one, stop) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
