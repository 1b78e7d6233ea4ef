"""Stopping a run early: the checks made until then are reported.

Invariants: knows signals, but no runs.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C or SIGTERM was received, so that a run ends
    early.

    A second signal has its default effect.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        say("stopping: finishing the current steps")
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        restore()
