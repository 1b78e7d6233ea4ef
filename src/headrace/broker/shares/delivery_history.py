"""Reads the history of single records from the journal of a partition's share groups.

Invariants: reads the journal, never changes it; the loop runs other work between its parts. A
journal holds outcomes: the member and time of a delivery in flight are in memory and not stored
(KIP-932). A snapshot replaces earlier records; of those, only the final state is known.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.journal_records import journal_parts
from headrace.coordination.shares.state_records import (
    ShareGroupChanged,
    ShareGroupOpened,
    ShareGroupRemoved,
)
from headrace.coordination.shares.window import (
    ACKNOWLEDGED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.state_records import StoredRecord, StoredRun
    from headrace.log.partition_log import PartitionLog

FAILED: Final = "delivery_failed"
"""Released, or its lock expired."""
ACKNOWLEDGED_EVENT: Final = "acknowledged"
FILTERED: Final = "filtered"
"""Excluded by the group's filter."""
GIVEN_UP: Final = "given_up"
DEAD_LETTERED: Final = "dead_lettered"
ENDED: Final = "finished_without_acknowledgement"
"""Given up without a dead letter topic, expired, or no record at all."""
SKIPPED: Final = "skipped"
"""The group's start was moved past it, or it was deleted."""
RESET: Final = "reset"
"""The group's start was moved: it is redelivered, with its deliveries counted from 0."""
EARLIER: Final = "earlier_state"
"""The state in a snapshot, whose history is not known any more."""


class Outcome(NamedTuple):
    """One event in the life of one record in one group."""

    offset: int
    at_ms: int
    group_id: str
    event: str
    deliveries: int = 0
    next_ms: int = 0
    """FAILED: not before this time; 0: at once."""


class History(NamedTuple):
    """Outcomes in the order of the journal, which begins at `since_ms` (-1: it is empty)."""

    outcomes: list[Outcome]
    since_ms: int
    up_to_ms: int = -1
    """The time of the last record read before the time limit; -1: all was read."""


_State = tuple[int, int, int]
_FINISHED: Final[_State] = (ARCHIVED, -1, 0)


class _Reader:
    """Follows the records of a journal."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self.outcomes: list[Outcome] = []
        self._offsets = sorted(offsets)
        self._groups: dict[int, str] = {}
        self._known: dict[tuple[int, int], _State] = {}
        """By (group, offset)."""

    def take(self, record: StoredRecord, at_ms: int) -> None:
        """Process the next record."""
        if isinstance(record, ShareGroupOpened):
            self._groups[record.number] = record.group_id
        elif isinstance(record, ShareGroupRemoved):
            self._groups.pop(record.number, None)
            self._known = {
                key: state for key, state in self._known.items() if key[0] != record.number
            }
        elif isinstance(record, ShareGroupChanged) and record.number in self._groups:
            self._change(record, at_ms)

    def _change(self, changed: ShareGroupChanged, at_ms: int) -> None:
        number = changed.number
        if changed.is_reset:
            for offset in self._offsets:
                if self._known.pop((number, offset), None) is not None:
                    event = SKIPPED if offset < changed.start else RESET
                    self._add(number, offset, at_ms, event)
            return
        for offset in self._offsets[: bisect_left(self._offsets, changed.start)]:
            former = self._known.get((number, offset))
            if former is None or former[0] not in {ACKNOWLEDGED, ARCHIVED}:
                event = EARLIER if changed.is_snapshot and former is None else SKIPPED
                self._add(number, offset, at_ms, event)
                self._known[number, offset] = _FINISHED
        for run in changed.runs:
            first = bisect_left(self._offsets, run.first)
            for offset in self._offsets[first : bisect_right(self._offsets, run.last)]:
                self._run(number, offset, run, at_ms, is_snapshot=changed.is_snapshot)

    def _run(
        self, number: int, offset: int, run: StoredRun, at_ms: int, *, is_snapshot: bool
    ) -> None:
        state: _State = (run.state, run.deliveries, run.at_ms)
        former = self._known.get((number, offset))
        if former == state or (is_snapshot and former is not None):
            return
        self._known[number, offset] = state
        if is_snapshot:
            if run.state != AVAILABLE or run.deliveries:
                self._add(number, offset, at_ms, EARLIER, run.deliveries)
        elif run.state == AVAILABLE:
            self._add(number, offset, at_ms, FAILED, run.deliveries, run.at_ms)
        elif run.state == ACKNOWLEDGED:
            event = ACKNOWLEDGED_EVENT if run.deliveries else FILTERED
            self._add(number, offset, at_ms, event, run.deliveries)
        elif run.state == ARCHIVING:
            # Its own time, which is also in the dead letter: the journal's may be later.
            self._add(number, offset, run.at_ms or at_ms, GIVEN_UP, run.deliveries)
        else:
            was_given_up = former is not None and former[0] == ARCHIVING
            event = DEAD_LETTERED if was_given_up else ENDED
            self._add(number, offset, at_ms, event, run.deliveries)

    def _add(
        self,
        number: int,
        offset: int,
        at_ms: int,
        event: str,
        deliveries: int = 0,
        next_ms: int = 0,
    ) -> None:
        group_id = self._groups[number]
        self.outcomes.append(Outcome(offset, at_ms, group_id, event, deliveries, next_ms))


async def read_history(journal: PartitionLog, offsets: Sequence[int], deadline_s: float) -> History:
    """The history of the records at `offsets`. Raises what reading raises.

    Stops after `deadline_s`, by the loop's time; one read is always done.
    """
    loop = asyncio.get_running_loop()
    reader, since_ms, newest_ms = _Reader(offsets), -1, -1
    await journal.wait_loaded()
    begin, end = journal.log_start_offset, journal.high_watermark
    async with aclosing(journal_parts(journal, begin, end)) as parts:
        async for part in parts:
            if part.is_gap:
                since_ms = -1  # what was before it is only partly known
            for _, newest_ms, stored in part.records:
                if since_ms < 0:
                    since_ms = newest_ms
                if stored is not None:
                    reader.take(stored, newest_ms)
            if loop.time() >= deadline_s and part.end < journal.high_watermark:
                return History(reader.outcomes, since_ms, newest_ms)
    return History(reader.outcomes, since_ms)
