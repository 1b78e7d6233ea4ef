"""Writes checkpoints of a timer companion, and reclaims the space of obsolete records.

Invariants: the log is trimmed only before the newest complete checkpoint, and only of records that
are neither scheduled, nor pending half messages, nor being delivered. Records still needed there
are first rewritten at the end, together with those that follow in the same millisecond, so that the
order of arrival is kept (up to TOGETHER_BYTES per millisecond). Both work in small steps, between
which the loop does other work.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from headrace.broker.timers.timer_bodies import stored_timer
from headrace.coordination.timers.commands import (
    MISSING_MAX,
    BeginCheckpointCommand,
    Copy,
    EndCheckpointCommand,
    MoveCommand,
    SavePartsCommand,
)
from headrace.records.batch import iterate_headers
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.timers.hosted_timers import HostedTimers
    from headrace.coordination.timers.timer_state import TimerState

CHECKPOINT_BYTES: Final = 16 * 1024 * 1024
"""Minimum size of the log since the last checkpoint; a replay reads about as much."""
ENTRY_BYTES: Final = 8
PARTS_AT_ONCE: Final = 4
STEP_BYTES: Final = 256 * 1024
TOGETHER_BYTES: Final = 512 * 1024
"""Records rewritten in addition to those of a step: both fit into one batch of the log."""
ATTEMPTS_MAX: Final = 4
SPACE_BYTES: Final = 32 * 1024 * 1024
"""A smaller log is left as it is."""
TRIM_RECORDS: Final = 50_000
"""Between two trims, each of which is a metadata write."""


async def keep_small(hosted: HostedTimers) -> None:
    """Write a checkpoint and reclaim space, where either is due. Raises HeadraceError."""
    state = hosted.state
    if state is None:
        return
    index_bytes = state.schedule.count * ENTRY_BYTES
    is_wasteful = _is_wasteful(hosted, state)
    if state.tail_bytes >= max(CHECKPOINT_BYTES, index_bytes) or (
        is_wasteful and _is_checkpoint_old(hosted, state)
    ):
        await write_checkpoint(hosted)
    if is_wasteful:
        await free_space(hosted)


def _live(state: TimerState) -> int:
    return state.schedule.count + len(state.halves) + state.outstanding_count


def _span(hosted: HostedTimers, state: TimerState) -> int:
    return state.next_offset - hosted.companion.log_start_offset


def _is_wasteful(hosted: HostedTimers, state: TimerState) -> bool:
    """Whether more than half of the log is obsolete."""
    if hosted.companion.size_bytes < SPACE_BYTES:
        return False
    return 2 * _live(state) < _span(hosted, state)


def _is_checkpoint_old(hosted: HostedTimers, state: TimerState) -> bool:
    return 2 * (state.checkpoint - hosted.companion.log_start_offset) < _span(hosted, state)


async def write_checkpoint(hosted: HostedTimers) -> None:
    """Write the whole state, so that a replay begins here. Raises HeadraceError."""
    reply = await hosted.ask(BeginCheckpointCommand())
    while reply.is_done:
        reply = await hosted.ask(SavePartsCommand(PARTS_AT_ONCE))
    await hosted.ask(EndCheckpointCommand())


async def free_space(hosted: HostedTimers) -> None:
    """Trim the log's oldest part while most of it is obsolete. Raises HeadraceError."""
    companion, state = hosted.companion, hosted.state
    if state is None:
        return
    offset, limit = companion.log_start_offset, state.checkpoint
    while offset < limit and hosted.state is state and 2 * _live(state) < _span(hosted, state):
        trim_at = min(offset + TRIM_RECORDS, limit)
        while offset < trim_at:
            offset = await _move(hosted, offset)
            await asyncio.sleep(0)
        outstanding = [at for offsets in state.outstanding.values() for at in offsets]
        start = min(offset, limit, *outstanding)
        await companion.trim(max(start, companion.log_start_offset))
        if start < offset:
            return  # later: these are being delivered


async def _move(hosted: HostedTimers, offset: int) -> int:
    """Rewrite the records of a section that are still needed; returns where the next one begins."""
    data = await hosted.companion.reader.read(offset, STEP_BYTES)
    copies: list[Copy] = []
    end = offset
    for position, header in iterate_headers(data):
        for record in decode_batch(data, position):
            timer = stored_timer(record.offset, record.key, record.value)
            if timer is not None and record.offset >= offset:
                due_ms, timestamp_ms, tag, number, body = timer
                copies.append(Copy(due_ms, timestamp_ms, tag, record.offset, number, body))
        end = header.last_offset + 1
    if copies:
        await _write_again(hosted, copies)
    return end


async def _write_again(hosted: HostedTimers, copies: list[Copy]) -> None:
    """Rewrite the needed copies, with the records that must stay after them in their millisecond.

    If those exceed TOGETHER_BYTES for one millisecond, their order is lost.
    """
    together = copies
    for _ in range(ATTEMPTS_MAX):  # records may be added for the same millisecond meanwhile
        reply = await hosted.ask(MoveCommand(together))
        if not reply.missing:
            return
        more = await _read(hosted, reply.missing)
        if more is None:
            break
        together = sorted([*together, *more], key=attrgetter("offset"))
    times = sorted({copy.due_ms for copy in copies})
    if len(times) < 2:
        await hosted.ask(MoveCommand(copies, is_order_kept=False))
        return
    middle = times[len(times) // 2]
    await _write_again(hosted, [copy for copy in copies if copy.due_ms < middle])
    await _write_again(hosted, [copy for copy in copies if copy.due_ms >= middle])


async def _read(hosted: HostedTimers, offsets: Sequence[int]) -> list[Copy] | None:
    """Copies of the records at these offsets; None if they are too large to move at once."""
    if len(offsets) > MISSING_MAX:
        return None
    found = await hosted.bodies.leading(offsets, TOGETHER_BYTES)
    if len(found) < len(offsets):
        return None
    return [
        Copy(one.due_ms, one.timestamp_ms, one.tag, offset, one.number, one.body)
        for offset, one in zip(offsets, found, strict=True)
    ]
