"""Measures the time a coroutine runs on the event loop, excluding the time it is suspended.

Invariants: knows nothing about the coroutine; passes on results, errors and cancellation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class Metered(Generic[T]):
    """Awaits a coroutine and adds up the run time of its steps in `spent_ns`."""

    __slots__ = ("_coroutine", "_now_ns", "spent_ns")

    def __init__(self, coroutine: Coroutine[Any, Any, T], now_ns: Callable[[], int]) -> None:
        self._coroutine = coroutine
        self._now_ns = now_ns
        self.spent_ns = 0

    def __await__(self) -> Generator[Any, Any, T]:
        coroutine, now_ns = self._coroutine, self._now_ns
        error: BaseException | None = None
        while True:
            begun_ns = now_ns()
            try:
                waited_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                error = None  # no cycle: its traceback refers to this frame
                self.spent_ns += now_ns() - begun_ns
            try:
                yield waited_for
            except BaseException as raised:  # noqa: BLE001  # the coroutine's to handle
                error = raised
            del waited_for  # it may have the error, too
