"""The result of an append, and the state kept of it until it is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.completion import Completion

NO_OFFSET: Final = -1
STORED, DELAYED, HALF, DUPLICATE = "stored", "delayed", "half", "duplicate"


class Appended(NamedTuple):
    """The offset of an appended batch; `completion` completes when it is durable."""

    base_offset: int
    completion: Completion


class RecordPlace(NamedTuple):
    """What became of one record of a batch."""

    offset: int
    """NO_OFFSET unless it went to the log now."""
    state: str
    """`stored`, `delayed`, `half`, or `duplicate` (its named sequence was stored before)"""
    due_ms: int = -1
    """When a delayed one is due; of a half message, after its commit."""
    timer: int = -1
    """The number under which a delayed or half one is kept; -1: it was kept before."""


class BatchPlace(NamedTuple):
    """Where a client's batch was stored."""

    base_offset: int
    """NO_OFFSET if none of it went to the log now, or its records do not follow it one by one."""
    timestamp_ms: int
    """Assigned by the log; NO_TIMESTAMP if it keeps the producer's."""
    log_start_offset: int
    records: Sequence[RecordPlace] | None = None
    """In the order of the batch; None: all of them are in the log, from `base_offset` on."""


class Pending:
    """The appends that share one completion."""

    __slots__ = ("end_offset", "end_position", "is_void", "max_timestamp_ms")

    def __init__(self, end_offset: int, end_position: int, max_timestamp_ms: int) -> None:
        self.end_offset = end_offset
        self.end_position = end_position
        self.max_timestamp_ms = max_timestamp_ms
        self.is_void = False
