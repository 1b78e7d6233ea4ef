"""Reads all changes in the journal of a partition's share groups, page by page.

Invariants: reads the journal, never changes it; a page is bounded in changes and time, and always
ends after at least one batch or `CHANGES_MAX` changes. Groups are named by what the caller knows of
them now: changes of groups that were deleted since are left out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.delivery_history import (
    ACKNOWLEDGED_EVENT,
    FAILED,
    FILTERED,
    GIVEN_UP,
    RESET,
)
from headrace.coordination.shares.state_records import (
    ShareGroupChanged,
    ShareGroupOpened,
    decode,
)
from headrace.coordination.shares.window import ACKNOWLEDGED, ARCHIVING, AVAILABLE
from headrace.errors import RecordInvalid
from headrace.records.batch import iterate_headers
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.coordination.shares.state_records import StoredRecord, StoredRun
    from headrace.log.partition_log import PartitionLog

READ_BYTES: Final = 256 * 1024
CHANGES_MAX: Final = 10_000
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
    """`first_position`: where the journal begins; 0 unless it was compacted. `next`: where the next
    page begins, as (position, changes to skip there); None after the last one."""

    changes: list[Change]
    first_position: int = 0
    next: tuple[int, int] | None = None


async def read_page(
    journal: PartitionLog, groups: Mapping[int, str], start: tuple[int, int], count_max: int
) -> JournalPage:
    """The changes from `start` on. Raises what reading raises."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + TIME_S
    await journal.wait_loaded()
    first_position = journal.log_start_offset
    at, skipped = start
    changes: list[Change] = []
    while at < journal.high_watermark:
        begin, fetched = await journal.reader.fetch_from(at, READ_BYTES)
        if begin != at:
            at, skipped = begin, 0
        data = bytes(fetched.data)
        if not data:
            break  # everything was deleted during the read
        for position, header in iterate_headers(data):
            for record in decode_batch(data, position):
                if record.offset < at:
                    continue
                found = _changes(record.key, record.value, groups)
                for index, row in enumerate(found):
                    if record.offset == start[0] and index < skipped:
                        continue
                    if len(changes) >= count_max:
                        return JournalPage(changes, first_position, (record.offset, index))
                    changes.append(Change(record.offset, record.timestamp_ms, *row))
            at = header.last_offset + 1
            if loop.time() >= deadline_s and at < journal.high_watermark:
                return JournalPage(changes, first_position, (at, 0))
        await asyncio.sleep(0)
    return JournalPage(changes, first_position)


_Row = tuple[str, str, int, int, int]


def _changes(key: bytes | None, value: bytes | None, groups: Mapping[int, str]) -> Iterator[_Row]:
    """(group, event, first, last, deliveries) of a journal's record."""
    try:
        stored = decode(key, value) if key else None
    except RecordInvalid:  # as when the journal is replayed
        return
    if isinstance(stored, ShareGroupOpened | ShareGroupChanged) and stored.number in groups:
        yield from _of_group(stored, groups[stored.number])


def _of_group(stored: StoredRecord, group_id: str) -> Iterator[_Row]:
    if isinstance(stored, ShareGroupOpened):
        yield group_id, OPENED, 0, stored.start - 1, 0
        return
    assert isinstance(stored, ShareGroupChanged)
    is_snapshot = stored.start >= 0 and bool(stored.runs)
    if stored.start >= 0 and not is_snapshot:
        event = RESET if stored.is_reset else MOVED
        yield group_id, event, 0, stored.start - 1, 0
    for run in stored.runs:
        event = _event(run, is_snapshot=is_snapshot)
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
