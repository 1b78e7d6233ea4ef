"""The result of an append, and the state kept of it until it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.runtime.completion import Completion


class Appended(NamedTuple):
    """The offset of an appended batch; `completion` completes when it is durable."""

    base_offset: int
    completion: Completion


class Pending:
    """The appends that share one completion."""

    __slots__ = ("end_offset", "end_position", "is_void", "max_timestamp_ms")

    def __init__(self, end_offset: int, end_position: int, max_timestamp_ms: int) -> None:
        self.end_offset = end_offset
        self.end_position = end_position
        self.max_timestamp_ms = max_timestamp_ms
        self.is_void = False
