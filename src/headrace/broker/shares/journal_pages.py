"""Reads all changes in the journal of a partition's share groups, page by page.

Invariants: reads the journal, never changes it; a page is bounded in changes and time, and always
ends after at least one part or `CHANGES_MAX` changes. Groups are named by what the caller knows of
them now: changes of groups that were deleted since are left out.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.delivery_history import (
    ACKNOWLEDGED_EVENT,
    FAILED,
    FILTERED,
    GIVEN_UP,
    RESET,
)
from headrace.broker.shares.journal_records import journal_parts
from headrace.coordination.shares.state_records import (
    ShareGroupChanged,
    ShareGroupOpened,
)
from headrace.coordination.shares.window import ACKNOWLEDGED, ARCHIVING, AVAILABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.coordination.shares.state_records import StoredRecord, StoredRun
    from headrace.log.partition_log import PartitionLog

CHANGES_MAX: Final = 1_000
"""Of a page: as JSON they take some milliseconds of the loop."""
TIME_S: Final = 0.5

OPENED: Final = "opened"
"""The group begins after `last`; in a snapshot, it has finished everything up to there."""
MOVED: Final = "moved"
"""The log was deleted up to `last`."""
ARCHIVED_EVENT: Final = "archived"
"""Finished without an acknowledgement: given up, or expired, or no record at all."""
FINISHED: Final = "finished"
"""The state in a snapshot, which does not tell acknowledged from archived."""


class Change(NamedTuple):
    """One event of all records from `first` to `last` (inclusive; empty if it is before)."""

    position: int
    """Offset in the journal."""
    at_ms: int
    group_id: str
    event: str
    first: int
    last: int
    deliveries: int = 0


class JournalPage(NamedTuple):
    """`first_position`: where the journal began when the page did; 0 unless it was compacted. If it
    differs from the page before, changes in between may be missing. `next`: where the next page
    begins, as (position, changes to skip there); None after the last one."""

    changes: list[Change]
    first_position: int = 0
    next: tuple[int, int] | None = None


async def read_page(
    journal: PartitionLog,
    groups: Mapping[int, str],
    start: tuple[int, int],
    within: tuple[int, int],
    count_max: int,
) -> JournalPage:
    """The changes from `start` on. `within`: where the loaded journal began, and its high
    watermark, before the caller asked for `groups`: later records may be of groups that these do
    not name. Raises what reading raises.

    A page ends where the journal was compacted meanwhile: the next one says that it begins later.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + TIME_S
    first_position, end = within
    at, skipped = start
    if at < first_position:
        at, skipped = first_position, 0
    changes: list[Change] = []
    async with aclosing(journal_parts(journal, at, end)) as parts:
        async for part in parts:
            if part.is_gap:
                return JournalPage(changes, first_position, (part.end, 0))
            for offset, timestamp_ms, stored in part.records:
                first = skipped if offset == at else 0
                for index, row in enumerate(_changes(stored, groups)):
                    if index < first:
                        continue
                    if len(changes) >= count_max:
                        return JournalPage(changes, first_position, (offset, index))
                    changes.append(Change(offset, timestamp_ms, *row))
            if loop.time() >= deadline_s and part.end < end:
                return JournalPage(changes, first_position, (part.end, 0))
    return JournalPage(changes, first_position)


_Row = tuple[str, str, int, int, int]


def _changes(stored: StoredRecord | None, groups: Mapping[int, str]) -> Iterator[_Row]:
    """(group, event, first, last, deliveries) of a journal's record."""
    if isinstance(stored, ShareGroupOpened | ShareGroupChanged) and stored.number in groups:
        yield from _of_group(stored, groups[stored.number])


def _of_group(stored: StoredRecord, group_id: str) -> Iterator[_Row]:
    if isinstance(stored, ShareGroupOpened):
        yield group_id, OPENED, 0, stored.start - 1, 0
        return
    assert isinstance(stored, ShareGroupChanged)
    if stored.start >= 0 and not stored.is_snapshot:
        event = RESET if stored.is_reset else MOVED
        yield group_id, event, 0, stored.start - 1, 0
    for run in stored.runs:
        event = _event(run, is_snapshot=stored.is_snapshot)
        if event:
            yield group_id, event, run.first, run.last, run.deliveries


def _event(run: StoredRun, *, is_snapshot: bool) -> str:
    if run.state == AVAILABLE:
        return FAILED if run.deliveries else ""
    if run.state == ARCHIVING:
        return GIVEN_UP
    if is_snapshot:
        return FINISHED  # finished runs are merged, whatever finished them
    if run.state == ACKNOWLEDGED:
        return ACKNOWLEDGED_EVENT if run.deliveries else FILTERED
    return ARCHIVED_EVENT
