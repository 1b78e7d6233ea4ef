"""One receive of a share group on one partition: what could be acquired, read, then acquired.

Invariants: the machine of the partition decides; this module reads batches for it. A receive
determines what could be acquired, reads whole batches for it, then acquires within what was read;
so only records that fit into the response are acquired. It never waits for records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.broker.shares.hosted_shares import Pause
from headrace.broker.shares.share_reads import (
    BatchesRead,
    Selection,
    filters_of,
    row_reader,
)
from headrace.coordination.shares.commands import (
    AcquireCommand,
    Acquired,
    ClaimCommand,
    LearnCommand,
    PeekCommand,
    RepeatCommand,
    SkipCommand,
)
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.log.visibility import READ_COMMITTED, READ_UNCOMMITTED
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.shares.filtering import Filtering
    from headrace.broker.shares.held_batches import HeldBatches
    from headrace.broker.shares.hosted_shares import Hosted
    from headrace.broker.shares.share_group_settings import ShareGroupSettings
    from headrace.coordination.shares.commands import PeekReply, RecordOrder

ROUNDS_MAX: Final = 64
"""Per receive: each one learns keys, or skips records that are not delivered."""
ROWS_BYTES: Final = 256 * 1024
"""Batches whose keys are learned at a time."""
SELECT_FROM: Final = 1_000
"""Records among which a receive with a selection looks for its own at a time, at least."""
NO_ATTEMPT, ATTEMPT, REPETITION_ONLY = 0, 1, 2
"""Of a receive: it delivers new records; what its member holds, or else new ones; only the former.
"""
OFFSET_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class ReceiveRequest:
    """A member's request for records of one partition."""

    group_id: str
    member_id: str
    records_max: int
    bytes_max: int
    is_strict: bool = False
    lock_ms: int = -1
    end: int = OFFSET_MAX
    """Records from this offset on are not acquired."""
    owner: str = ""
    """The owner of the partition in a sticky group; empty: the member. Of a lite consumer, the
    client whose subscriptions are meant."""
    selection: Selection | None = None
    """The records to deliver; None: all. Requires `is_strict`."""
    takes_followers: bool = False
    """Whether records of one key, or message group, may be delivered together, in order. No other
    one of the key is delivered until all of them are settled or their locks have expired."""
    attempt: int = NO_ATTEMPT
    """Whether the receive may be a repetition whose first answer was lost. While the locks of the
    first one last, it gets what the member holds of it, with new locks and the same count."""
    takes_lite: bool = False
    """Whether a lite consumer asks; the group then must be one for lite topics, and otherwise not.
    """


@dataclass(slots=True)
class Received:
    """Whole batches in order of offset, and the records that the member acquired."""

    acquired: list[Acquired] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    pause: Pause | None = None
    """Set if nothing was acquired; for `wait`."""


class ShareReceive:
    """See the module."""

    def __init__(
        self,
        hosted: Hosted,
        request: ReceiveRequest,
        terms: ShareGroupSettings,
        held_batches: HeldBatches,
        filtering: Filtering,
    ) -> None:
        """The group has begun on the partition. Raises ConfigInvalid for a wrong selection."""
        self._hosted = hosted
        self._request = request
        self._terms = terms
        self._held_batches = held_batches
        self._filtering = filtering
        self._isolation = READ_COMMITTED if terms.is_committed_only else READ_UNCOMMITTED
        self._has_read_again = False
        self._examined = 0
        """Records before this offset are left for other receives, if they are not selected."""
        selection = request.selection
        self._filters = () if selection is None else filters_of(selection)
        self._leaves_others = selection is not None and selection.leaves_others
        self._peek_max = request.records_max
        if self._filters:
            self._peek_max = max(self._peek_max, SELECT_FROM)
            if self._leaves_others:
                self._peek_max = max(self._peek_max, 2 * terms.config.unfinished_max)

    async def receive(self) -> Received:
        """Acquire available records; empty if there are none. Raises what the machine replies."""
        hosted, request, isolation = self._hosted, self._request, self._isolation
        group_id = request.group_id
        if request.attempt:
            received = await self._repeat()
            if received.acquired or request.attempt == REPETITION_ONLY:
                return received
        pause = Pause(isolation, 0, hosted.settled)
        for _ in range(ROUNDS_MAX):
            end, settled = hosted.data.visibility.bound(isolation).offset, hosted.settled
            if self._terms.config.is_sticky:  # each time: a read may take longer than a claim lasts
                claim = ClaimCommand(group_id, request.owner or request.member_id, request.lock_ms)
                claimed = await hosted.ask(claim)
                if not claimed.is_owner:
                    return Received(pause=Pause(isolation, end, settled, claimed.wait_ms))
            upto, takes_followers = min(end, request.end), request.takes_followers
            peek = PeekCommand(group_id, upto, self._peek_max, takes_followers)
            peeked = await hosted.ask(peek)
            pause = Pause(isolation, end, settled, peeked.wait_ms)
            if await self._learn_for(peeked):
                continue
            ranges = self._unexamined(peeked)
            if not ranges:
                return Received(pause=pause)
            found = await self._read(ranges)
            if found.skipped:
                await hosted.ask(SkipCommand(group_id, found.skipped))
            elif not found.within:
                return Received(pause=pause)
            within = await self._select(found, ranges)
            acquired = await self._acquire(within) if within else []
            if acquired:
                return Received(acquired, found.holding(acquired))
        return Received(pause=pause._replace(wait_ms=0))

    async def _learn_for(self, peeked: PeekReply) -> bool:
        """Whether rows were learned that change what may be acquired."""
        if peeked.again_from >= 0 and not (self._has_read_again and peeked.ranges):
            # Once, however many other records there are: these keys must not be left out.
            self._has_read_again = True
            if await self._learn(peeked.again_from):
                return True
        if peeked.ranges and not peeked.reads_ahead:
            return False
        return peeked.rows_from >= 0 and await self._learn(peeked.rows_from)

    async def _learn(self, rows_from: int) -> bool:
        """Pass the keys of the records from `rows_from` on to the machine; whether there are
        any."""
        hosted, group_id = self._hosted, self._request.group_id
        start, fetched = await hosted.data.reader.fetch_from(rows_from, ROWS_BYTES, self._isolation)
        found = BatchesRead()
        rows_end = found.add(bytes(fetched.data), start, OFFSET_MAX, fetched.aborted or ())
        if rows_end <= rows_from:
            return False
        machine = hosted.shard.machine
        group = machine.groups.get(group_id) if isinstance(machine, ShareMachine) else None
        if group is None:
            return False
        config = group.config
        reader = row_reader(config)
        rows: list[RecordOrder] = []
        for data in found.batches:
            some, end = await self._filtering.rows(data, start, reader)
            rows += some
            if end <= read_header(data).last_offset:
                rows_end = end
                break
        if not group.config.reads_as(config):
            return True  # its settings have changed meanwhile: they are read again
        await hosted.ask(LearnCommand(group_id, rows_from, rows, rows_end))
        return True

    async def _read(self, ranges: Sequence[tuple[int, int]]) -> BatchesRead:
        bytes_max, isolation = self._request.bytes_max, self._isolation
        return await read_batches(self._hosted, self._held_batches, ranges, bytes_max, isolation)

    async def _acquire(self, within: Sequence[tuple[int, int]]) -> list[Acquired]:
        request = self._request
        last = request.end - 1
        command = AcquireCommand(
            request.group_id,
            request.member_id,
            [(low, min(high, last)) for low, high in within if low <= last],
            request.records_max,
            request.is_strict,
            request.lock_ms,
            request.owner or request.member_id,
            request.takes_followers,
            request.attempt != NO_ATTEMPT,
        )
        return (await self._hosted.ask(command)).acquired

    async def _repeat(self) -> Received:
        """What the member holds of an earlier attempt, as far as it fits into the response."""
        request = self._request
        command = RepeatCommand(request.group_id, request.member_id, request.lock_ms)
        held = (await self._hosted.ask(command)).acquired
        if not held:
            return Received()
        found = await self._read([(one.first, one.last) for one in held])
        acquired = [
            Acquired(max(first, low), min(last, high), deliveries)
            for first, last, deliveries in held
            for low, high in found.within
            if first <= high and low <= last
        ]
        return Received(acquired, found.holding(acquired))

    # --- a selection -------------------------------------------------------------------------

    def _unexamined(self, peeked: PeekReply) -> list[tuple[int, int]]:
        """What may be acquired, ascending, without records that this receive leaves to others."""
        ranges, examined = sorted(peeked.ranges), self._examined
        if not examined:
            return ranges
        return [(max(low, examined), high) for low, high in ranges if high >= examined]

    async def _select(
        self, found: BatchesRead, ranges: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """The offsets within which to acquire: what was read, or the selected part of `ranges`."""
        if not self._filters or not found.within:
            return found.within
        selected, others = await self._filtering.select(found, ranges, self._filters)
        if self._leaves_others:
            self._examined = found.within[-1][1] + 1
        elif others:
            command = SkipCommand(self._request.group_id, others, are_filtered=True)
            await self._hosted.ask(command)
            self._hosted.wake()  # the next records of their keys may be delivered, to anyone
        return selected


async def read_batches(
    hosted: Hosted,
    held_batches: HeldBatches,
    ranges: Sequence[tuple[int, int]],
    bytes_max: int,
    isolation: int,
) -> BatchesRead:
    """Whole batches for the first of `ranges`, up to the requested bytes."""
    found = BatchesRead()
    reached = 0
    for first, last in ranges:
        offset = max(first, reached, hosted.data.log_start_offset)
        while offset <= last and (bytes_max > found.size or not found.batches):
            held = held_batches.find(hosted, offset)
            if held is not None:
                found.take(held, held.first_offset, held.last_offset)
                reached = offset = held.last_offset + 1
                continue
            size = min(bytes_max - found.size, hosted.size_of(last - offset + 1))
            offset, fetched = await hosted.data.reader.fetch_from(offset, size, isolation)
            if offset > last:
                break  # deleted during the read
            data, aborted = bytes(fetched.data), fetched.aborted or ()
            reached = found.add(data, offset, last, aborted)
            if reached <= offset:  # nothing up to `last`
                break
            offset = reached
    hosted.note_sizes(found)
    if found.batches and ranges and found.within[-1][1] > ranges[-1][1]:  # more of it is left
        found.batches[-1] = held_batches.keep(hosted, found.batches[-1])
    return found
