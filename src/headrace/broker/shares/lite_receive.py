"""One receive of lite topics on one partition: what the client may have, read, then acquired.

Invariants: as `share_receive`. First it reads on, for all groups, to the end of the log, so that
the machine knows where the records of each lite topic lie; of many receives one at a time does so.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from headrace.broker.shares.hosted_shares import LITE, Pause
from headrace.broker.shares.lite_waits import number_of
from headrace.broker.shares.share_reads import BatchesRead, filters_of
from headrace.broker.shares.share_receive import (
    OFFSET_MAX,
    REPETITION_ONLY,
    ROWS_BYTES,
    Received,
    read_batches,
)
from headrace.coordination.shares.commands import RepeatCommand
from headrace.coordination.shares.lite_commands import (
    ForgetLiteCommand,
    LearnLiteCommand,
    LiteAcquireCommand,
    LiteCaughtUpCommand,
    LitePeekCommand,
    LiteRow,
)
from headrace.coordination.shares.lite_machine import LiteMachine
from headrace.errors import ConfigInvalid, CoordinatorLoading, HeadraceError
from headrace.log.decoded_records import decoded_parts
from headrace.log.visibility import READ_COMMITTED
from headrace.records.attributes import LITE_TOPIC, find_header
from headrace.records.batch import read_header
from headrace.records.identifiers import LITE_TOPIC_LENGTH_MAX, is_lite_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.shares.held_batches import HeldBatches
    from headrace.broker.shares.hosted_shares import Hosted
    from headrace.broker.shares.share_receive import ReceiveRequest
    from headrace.coordination.shares.commands import Acquired

log = logging.getLogger(__name__)

LEARNED_AT_ONCE: Final = 1_000
"""Records that the machine gets to know at a time, in 4 ms; those of a batch are not divided."""
ROUNDS_MAX: Final = 8
"""Per receive: each one but the last finds records that are not there any more."""


class LiteReceive:
    """See the module."""

    def __init__(self, hosted: Hosted, request: ReceiveRequest, held_batches: HeldBatches) -> None:
        """The group has begun on the partition. Raises ConfigInvalid for a selection."""
        self._hosted = hosted
        self._request = request
        self._held_batches = held_batches
        if request.selection is not None and filters_of(request.selection):
            raise ConfigInvalid("messages of lite topics are not filtered: subscribe to fewer")

    async def receive(self, now_ms: int) -> Received:
        """Acquire available records; empty if there are none. Raises what the machine replies."""
        hosted, request = self._hosted, self._request
        group_id = request.group_id
        if request.attempt:
            repeat = RepeatCommand(group_id, request.member_id, request.lock_ms)
            held = (await hosted.ask(repeat)).acquired
            if held or request.attempt == REPETITION_ONLY:
                read = await self._read([one.first for one in held])
                return _received(held, read)
        assert hosted.lite is not None
        number = number_of(group_id, request.owner)
        woken, wait_ms = hosted.lite.woken(number), 0
        await catch_up(hosted, now_ms)
        for _ in range(ROUNDS_MAX):
            peek = LitePeekCommand(group_id, request.owner, request.records_max)
            peeked = await hosted.ask(peek)
            offsets, wait_ms = peeked.offsets, peeked.wait_ms
            if not offsets:
                break
            found = await self._read(offsets)
            if offsets[0] < hosted.data.log_start_offset:
                await catch_up(hosted, now_ms)
                wait_ms = 0
                continue
            missing = {
                (peeked.names[at], first, last): None
                for first, last in found.skipped
                for at in range(bisect_left(offsets, first), bisect_right(offsets, last))
            }
            if missing:
                await hosted.ask(ForgetLiteCommand(list(missing)))
                wait_ms = 0
                continue
            acquire = LiteAcquireCommand(
                *(group_id, request.owner, request.member_id),
                [one for one in _within(offsets, found.within) if one < request.end],
                request.records_max,
                request.lock_ms,
                bool(request.attempt),
            )
            acquired = (await hosted.ask(acquire)).acquired
            if acquired:
                return _received(acquired, found)
        return Received(pause=Pause(LITE, number, woken, wait_ms))

    async def _read(self, offsets: Sequence[int]) -> BatchesRead:
        ranges = [(offset, offset) for offset in offsets]
        bytes_max = self._request.bytes_max
        return await read_batches(
            self._hosted, self._held_batches, ranges, bytes_max, READ_COMMITTED
        )


def _received(acquired: list[Acquired], found: BatchesRead) -> Received:
    read = {*_within([one.first for one in acquired], found.within)}
    held = [one for one in acquired if one.first in read]
    return Received(held, found.holding(held)) if held else Received()


def _within(offsets: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The offsets that lie in one of the ranges; all ascend."""
    return [
        offset
        for first, last in ranges
        for offset in offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]
    ]


async def catch_up(hosted: Hosted, now_ms: int) -> None:
    """Let the machine know the lite topics of all records that consumers may read.

    Raises what the machine replies, and what reading raises.
    """
    assert hosted.lite is not None
    async with hosted.lite.catching_up:
        while True:
            if not await _advance(hosted, now_ms):
                break
            await asyncio.sleep(0)  # a large log must not hold up other clients
        machine = hosted.shard.machine
        if isinstance(machine, LiteMachine):
            hosted.lite.room.caught_up(machine.index, hosted.data.end_offset)


async def _advance(hosted: Hosted, now_ms: int) -> bool:
    """Do a part of it; whether there may be more."""
    machine = hosted.shard.machine
    if not isinstance(machine, LiteMachine):
        raise CoordinatorLoading("the partition's lite topics are being loaded: try again")
    start, end = hosted.data.log_start_offset, _end_of(hosted)
    if machine.index.end < end:
        return await _learn(hosted, machine.index.end, start)
    if not machine.is_outdated(start, now_ms):
        return False
    await hosted.ask(LiteCaughtUpCommand(start, end))
    # What is left then is done by the next receives.
    return machine.index.start < start or machine.is_trimming


def _end_of(hosted: Hosted) -> int:
    return hosted.data.visibility.bound(READ_COMMITTED).offset


async def _learn(hosted: Hosted, begin: int, start: int) -> bool:
    """Read on; whether there was something."""
    found = BatchesRead()
    first = max(begin, start)
    at, fetched = await hosted.data.reader.fetch_from(first, ROWS_BYTES, READ_COMMITTED)
    rows_end = found.add(bytes(fetched.data), at, OFFSET_MAX, fetched.aborted or ())
    if rows_end <= begin:
        return False
    rows: list[LiteRow] = []
    for batch in found.batches:
        if len(rows) >= LEARNED_AT_ONCE:
            begin = await _tell(hosted, begin, rows, read_header(batch).base_offset)
            rows = []
        rows += await _rows(hosted, batch, first)
    await _tell(hosted, begin, rows, rows_end)
    return True


async def _tell(hosted: Hosted, begin: int, rows: list[LiteRow], end: int) -> int:
    """Have the machine know these records, which are all up to `end`; returns that."""
    await hosted.ask(LearnLiteCommand(begin, rows, end))
    assert hosted.lite is not None
    hosted.lite.room.learned(row.name for row in rows)
    return end


async def _rows(hosted: Hosted, batch: bytes, start: int) -> list[LiteRow]:
    """The records of lite topics in a batch from `start` on: none if it cannot be decoded."""
    named: list[tuple[int, bytes, int]] = []
    try:
        async for records in decoded_parts(batch, start):
            named += [
                (record.offset, name, record.timestamp_ms)
                for record in records
                if record.offset >= start and (name := find_header(record.headers, LITE_TOPIC))
            ]
    except HeadraceError as error:
        log.warning("the lite topics of a batch are not known, it is skipped: %s", error)
        return []
    rows: list[LiteRow] = []
    skipped: list[int] = []
    for offset, name, timestamp_ms in named:
        if is_lite_topic(name):
            rows.append(LiteRow(offset, name.decode(), timestamp_ms))
        else:
            skipped.append(offset)
    if skipped:
        _note_skipped(hosted, skipped)
    return rows


def _note_skipped(hosted: Hosted, offsets: list[int]) -> None:
    """Logs the first one of this broker's tenure: a producer may send any number of them."""
    assert hosted.lite is not None
    if not hosted.lite.skipped_count:
        log.warning(
            "the header %s of the record at offset %d of %s names no lite topic, so lite consumers"
            " do not get it: use 1 to %d letters, digits, '-' and '_' (others are not logged)",
            *(LITE_TOPIC, offsets[0], hosted.data.name, LITE_TOPIC_LENGTH_MAX),
        )
    hosted.lite.skipped_count += len(offsets)
