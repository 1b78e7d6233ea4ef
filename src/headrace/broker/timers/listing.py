"""Lists the delayed records of one partition with their bodies, a bounded part in memory at a time.

Invariants: reads, never changes. Records delivered or cancelled meanwhile are omitted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from headrace.coordination.timers.schedule import TAG_MASK, ScheduleEntry
from headrace.records.attributes import MESSAGE_ID, find_header
from headrace.records.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.broker.timers.hosted_timers import HostedTimers

LISTED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Per listing; the last record may exceed it."""
SHOWN_AT_ONCE: Final = 500
SCAN_PARTS: Final = 20
"""Parts of a schedule searched per turn of the loop: 10 ms."""


class Delayed(NamedTuple):
    """A delayed record."""

    partition: int
    due_ms: int
    offset: int
    """In the companion."""
    number: int
    timestamp_ms: int
    body: Body

    def has_id(self, message_id: str) -> bool:
        """Whether it carries this message id."""
        return find_header(self.body.headers, MESSAGE_ID) == message_id.encode()


async def shown(hosted: HostedTimers, entries: list[ScheduleEntry]) -> list[Delayed]:
    """The first of these records, up to LISTED_BYTES_MAX."""
    offsets = [entry.offset for entry in entries]
    found = await hosted.bodies.leading(offsets, LISTED_BYTES_MAX)
    return [
        Delayed(hosted.number, due_ms, offset, number, timestamp_ms, decode_body(body))
        for (due_ms, offset), (_, timestamp_ms, _, number, body) in zip(
            entries, found, strict=False
        )
    ]


async def parts(
    hosted: HostedTimers, entries: Sequence[ScheduleEntry]
) -> AsyncIterator[list[Delayed]]:
    """All of these that still wait, a bounded part in memory at a time."""
    state = hosted.state
    while entries and state is not None:
        first = [entry for entry in entries[:SHOWN_AT_ONCE] if state.schedule.has(*entry)]
        some = await shown(hosted, first)
        yield some
        entries = [*first[len(some) :], *entries[SHOWN_AT_ONCE:]]


async def each(hosted: HostedTimers, entries: Sequence[ScheduleEntry]) -> AsyncIterator[Delayed]:
    """The same, one by one."""
    async for part in parts(hosted, entries):
        for one in part:
            yield one


async def by_receipt(
    hosted: HostedTimers, receipts: Sequence[ScheduleEntry]
) -> list[ScheduleEntry | None]:
    """Where the records with these due times and numbers wait; None: such a one does not."""
    state = hosted.state
    if state is None:
        return [None] * len(receipts)
    found = {one: one for one in receipts if state.schedule.has(*one)}
    missing = {*receipts} - found.keys()
    firsts = dict(sorted(missing, reverse=True))
    for due_ms, first in firsts.items():  # they may have been stored again, further back
        same = [ScheduleEntry(due_ms, at) for at in state.schedule.due_at(due_ms, first)]
        async for one in each(hosted, same):
            if (receipt := ScheduleEntry(due_ms, one.number)) in missing:
                found[receipt] = ScheduleEntry(due_ms, one.offset)
    return [found.get(one) for one in receipts]


async def by_id(hosted: HostedTimers, message_ids: Sequence[str]) -> list[list[ScheduleEntry]]:
    """Where records with each of these message ids wait, by due time."""
    found: dict[bytes, list[ScheduleEntry]] = {one.encode(): [] for one in message_ids}
    candidates: set[ScheduleEntry] = set()
    for text in dict.fromkeys(message_ids):
        candidates.update(await tagged(hosted, text))
    async for one in each(hosted, sorted(candidates)):
        message_id = find_header(one.body.headers, MESSAGE_ID)
        if message_id in found:
            found[message_id].append(ScheduleEntry(one.due_ms, one.offset))
    return [found[one.encode()] for one in message_ids]


async def tagged(hosted: HostedTimers, message_id: str) -> list[ScheduleEntry]:
    """Waiting records that may carry this message id, by due time."""
    state = hosted.state
    if state is None:
        return []
    tag, candidates = tag_of(message_id), list[ScheduleEntry]()
    for at, (bucket, part) in enumerate(state.schedule.parts()):
        candidates += state.schedule.tagged(bucket, part, tag)
        if at % SCAN_PARTS == SCAN_PARTS - 1:
            await asyncio.sleep(0)
    return sorted(entry for entry in candidates if state.schedule.has(*entry))


def tag_of(message_id: str) -> int:
    """The hash by which a message is found by its id. Do not change: stored."""
    return crc32(message_id.encode()) & TAG_MASK if message_id else 0
