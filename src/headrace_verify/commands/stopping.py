"""A run that is told to end: what was done until then is reported.

Invariants: knows signals, no run.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def told_to_end() -> Iterator[Callable[[], bool]]:
    """Yields what says whether Ctrl-C or SIGTERM came: what was done until then is reported.

    The second time, they do what they always do.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        say("told to end: finishing what has begun")
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
