"""SIGINT and SIGTERM end the bench as Ctrl-C would: what it has started is ended, then it says so.

Invariants: a signal becomes an exception in the main thread, which passes every `except
Exception`; whoever has started processes ends them in a `finally`.
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
    """Somebody asked the bench to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.exit_code = 128 + number
        """What a shell says of a process that a signal has ended."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Within this (in the main thread), SIGINT and SIGTERM raise Stopped."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise Stopped(number)

    before = {one: signal.signal(one, stop) for one in _SIGNALS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
