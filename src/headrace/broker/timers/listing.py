"""Lists the delayed records of one partition with their bodies, a bounded part in memory at a time.

Invariants: reads, never changes. Records delivered or cancelled meanwhile are omitted.
"""

from __future__ import annotations

import asyncio
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from headrace.coordination.timers.schedule import TAG_MASK, ScheduleEntry
from headrace.records.attributes import MESSAGE_ID, find_header
from headrace.records.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from headrace.broker.timers.hosted_timers import HostedTimers

LISTED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Per listing; the last record may exceed it."""
SHOWN_AT_ONCE: Final = 500
SEARCHED_AT_ONCE: Final = 160_000
"""Entries of a schedule searched per turn of the loop: 10 ms."""
FOUND_AS_SEARCHED: Final = 10
"""One that is found takes as long as so many others."""
BEFORE_ALL: Final = ScheduleEntry(-1, -1)


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
    hosted: HostedTimers, entries: Iterable[ScheduleEntry]
) -> AsyncIterator[list[Delayed]]:
    """All of these that still wait, a bounded part in memory at a time."""
    state, others = hosted.state, iter(entries)
    some = [*islice(others, SHOWN_AT_ONCE)]
    while some and state is not None:
        waiting = [entry for entry in some if state.schedule.has(*entry)]
        found = await shown(hosted, waiting)
        yield found
        await asyncio.sleep(0)  # records in memory are read without waiting
        left = waiting[len(found) :]
        some = [*left, *islice(others, SHOWN_AT_ONCE - len(left))]


async def each(hosted: HostedTimers, entries: Iterable[ScheduleEntry]) -> AsyncIterator[Delayed]:
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
        same = (ScheduleEntry(due_ms, at) for at in state.schedule.due_at(due_ms, first))
        async for one in each(hosted, same):
            if (receipt := ScheduleEntry(due_ms, one.number)) in missing:
                found[receipt] = ScheduleEntry(due_ms, one.offset)
    return [found.get(one) for one in receipts]


async def by_id(hosted: HostedTimers, message_ids: Sequence[str]) -> list[list[ScheduleEntry]]:
    """Where records with each of these message ids wait, by due time."""
    found: dict[bytes, list[ScheduleEntry]] = {one.encode(): [] for one in message_ids}
    async for one in each(hosted, await tagged(hosted, message_ids)):
        message_id = find_header(one.body.headers, MESSAGE_ID)
        if message_id in found:
            found[message_id].append(ScheduleEntry(one.due_ms, one.offset))
    return [found[one.encode()] for one in message_ids]


async def tagged(
    hosted: HostedTimers, message_ids: Sequence[str], after: ScheduleEntry = BEFORE_ALL
) -> Iterator[ScheduleEntry]:
    """Records after `after` that may carry one of these message ids, by due time."""
    state = hosted.state
    tags, candidates = {*map(tag_of, message_ids)}, list[list[ScheduleEntry]]()
    searched = 0
    for bucket, part in () if state is None or not tags else state.schedule.parts():
        found = [one for one in part.tagged(bucket, tags) if one > after]
        if found:
            candidates.append(found)
        searched += len(part.entries) + len(found) * FOUND_AS_SEARCHED
        if searched > SEARCHED_AT_ONCE:
            searched = 0
            await asyncio.sleep(0)
    return merge(*candidates)


def tag_of(message_id: str) -> int:
    """The hash by which a message is found by its id. Do not change: stored."""
    return crc32(message_id.encode()) & TAG_MASK if message_id else 0
