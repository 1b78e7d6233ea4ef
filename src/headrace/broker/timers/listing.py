"""Lists the delayed records of one partition with their bodies, a bounded part in memory at a time.

Invariants: reads, never changes. Records delivered or cancelled meanwhile are omitted. A partition
may have millions of records: only one look is taken at a time, and between two of one client
(`HostedTimers.looking`) others have theirs.
"""

from __future__ import annotations

import asyncio
import sys
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
    from headrace.coordination.timers.schedule import Part

LISTED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Per listing; the last record may exceed it."""
SHOWN_AT_ONCE: Final = 500
SEARCHED_AT_ONCE: Final = 16_384
"""Entries of a schedule searched per turn of the loop: 1 ms, or 10 ms if all of them match."""
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
        async with hosted.looking:
            waiting = [entry for entry in some if state.schedule.has(*entry)]
            found = await shown(hosted, waiting)
            await asyncio.sleep(0)  # records in memory are read without waiting
        yield found
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
    hosted: HostedTimers,
    message_ids: Sequence[str],
    after: ScheduleEntry = BEFORE_ALL,
    count_max: int = sys.maxsize,
) -> Iterator[ScheduleEntry]:
    """The first records after `after` that may carry one of these message ids, by due time."""
    state = hosted.state
    tags, candidates = {*map(tag_of, message_ids)}, list[list[ScheduleEntry]]()
    for some in () if state is None or not tags else _shares(state.schedule.parts()):
        async with hosted.looking:
            for bucket, part in some:
                if found := part.tagged(bucket, tags, after, count_max):
                    candidates.append(found)
            await asyncio.sleep(0)
    return islice(merge(*candidates), count_max)


def _shares(parts_of: Iterable[tuple[int, Part]]) -> Iterator[list[tuple[int, Part]]]:
    """Parts that are searched together."""
    share: list[tuple[int, Part]] = []
    count = 0
    for one in parts_of:
        share.append(one)
        count += len(one[1].entries)
        if count >= SEARCHED_AT_ONCE:
            yield share
            share, count = [], 0
    if share:
        yield share


def tag_of(message_id: str) -> int:
    """The hash by which a message is found by its id. Do not change: stored."""
    return crc32(message_id.encode()) & TAG_MASK if message_id else 0
