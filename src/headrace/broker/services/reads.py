"""Reads records by offset or time, and follows partitions as they grow, for faces without a read
protocol of their own.

Invariants: knows no protocol. Any broker accepts a read; the owner of each partition carries it
out. What one read returns is bounded by records and bytes. A follower is sent what it asks for and
nothing is read ahead, so one that reads slowly costs no memory. Batches that cannot be decoded are
named and passed over. Stored bytes are read by `stored_reads`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from headrace.broker.services.batch_search import Wanted, record_bytes, wanted_records
from headrace.broker.services.long_poll import wait_for_change
from headrace.broker.services.owner_calls import checked
from headrace.broker.shares.share_reads import BatchesRead
from headrace.errors import (
    BatchCorrupt,
    HeadraceError,
    RecordInvalid,
    UnsupportedForMessageFormat,
)
from headrace.log.reading import check_offset
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic
    from headrace.log.partition_log import PartitionLog
    from headrace.records.codec import Record

READ_BYTES: Final = 1024 * 1024
READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the records that one call reads; the last one of a partition may exceed it."""
RECORDS_MAX: Final = 10_000
UNREADABLE_MAX: Final = 100
"""Batches that one read of a partition names."""
OFFSET_LAST: Final = 2**63 - 1
POLL_S: Final = 0.5
"""Between two reads while a partition of another broker has nothing new: a call that waited there
would occupy a connection."""

AT_OFFSET, AT_TIME, AT_START, AT_END, AT_NEXT = range(5)


class Start(NamedTuple):
    """Where a read begins."""

    kind: int
    """AT_OFFSET, AT_TIME (the first record of this time or later, or the end), AT_START, AT_END,
    AT_NEXT (where a read ended: what was deleted since is passed over)"""
    value: int = 0


class PartitionRead(NamedTuple):
    """What was read from one partition."""

    records: Sequence[Record]
    next_offset: int
    start_offset: int
    """Of the log."""
    end_offset: int
    """What readers of this isolation level see ends here."""
    unreadable: Sequence[tuple[int, int, str]] = ()
    """Batches that cannot be decoded: (first offset, last offset, reason)."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to read."""
        return not self.records and not self.unreadable


class Room(Protocol):
    """The memory of the records that one client has asked for."""

    async def grant(self) -> int:
        """Wait for memory, which is counted: how many bytes may be read now."""
        ...

    def rest(self) -> None:
        """Nothing was found: give it back."""
        ...


class Reads:
    """See the module."""

    def __init__(self, calls: OwnerCalls, check: Callable[[Topic], None]) -> None:
        """`check`: raises TopicUnknown if a topic is no longer shared with its reader."""
        self._calls = calls
        self._check = check
        calls.offer("reads.page", self._page_here)

    async def read(
        self,
        topic: Topic,
        number: int,
        start: Start,
        records_max: int,
        isolation: int,
        wait_s: float = 0,
        room: Room | None = None,
    ) -> PartitionRead:
        """Records of one partition; waits up to `wait_s` for the first one. `room` None:
        READ_BYTES_MAX at most.

        `records_max` 0: find where `start` is, read nothing. Raises TopicUnknown, OffsetOutOfRange,
        BrokerUnreachable, DataCorrupt, StorageUnavailable.
        """
        topic.check_partition(number)
        follower = Follower(self, topic, {number: start}, isolation)
        (found,) = (await follower.next(records_max, wait_s, room)).values()
        return found

    async def ends(
        self, topic: Topic, numbers: Sequence[int], isolation: int
    ) -> dict[int, PartitionRead | HeadraceError]:
        """Where these partitions start and end."""
        return await self.pages(topic, dict.fromkeys(numbers, Start(AT_END)), 0, isolation)

    async def follow(
        self,
        topic: Topic,
        kind: int,
        isolation: int,
        numbers: Sequence[int] | None = None,
        after: Mapping[int, int] | None = None,
    ) -> Follower:
        """Follow these partitions, or (None) all, from their start or end of now; those in `after`
        from that offset, and from the end if it lies beyond (the log has lost its tail). Of all,
        those that are not in it were added since, and begin at their start.

        Raises HeadraceError.
        """
        wanted = range(len(topic.partitions)) if numbers is None else numbers
        for number in wanted:
            topic.check_partition(number)
        known = after or {}
        other = Start(AT_START if known and numbers is None else kind)
        starts = {n: Start(AT_NEXT, known[n]) if n in known else other for n in wanted}
        if known:
            ends = await self.ends(topic, [*known.keys() & starts.keys()], isolation)
            for number, one in ends.items():
                if isinstance(one, PartitionRead) and one.end_offset < known[number]:
                    starts[number] = Start(AT_END)
        follower = Follower(self, topic, starts, isolation)
        await follower.next(0, 0)
        return follower

    async def pages(
        self,
        topic: Topic,
        starts: Mapping[int, Start],
        records_max: int,
        isolation: int,
        bytes_max: int = READ_BYTES_MAX,
    ) -> dict[int, PartitionRead | HeadraceError]:
        """What can be read now from each of these partitions, `bytes_max` in all. All owners are
        asked at once."""
        bytes_max = bytes_max // max(len(starts), 1)
        places = {str(number): [*start] for number, start in starts.items()}
        asked = places, records_max, bytes_max, isolation
        answers = await self._calls.ask_partitions("reads.page", topic, asked, list(starts))
        self._check(topic)
        return {
            number: one if isinstance(one, HeadraceError) else _checked(one)
            for number, one in answers.items()
        }

    async def _page_here(self, topic: Topic, number: int, asked: Any) -> PartitionRead:
        starts, records_max, bytes_max, isolation = checked(asked, dict, int, int, int)
        kind, value = checked(starts.get(str(number)), int, int)
        log = topic.require_log(number)
        await log.wait_loaded()
        end = log.visibility.bound(isolation).offset
        offset = value
        if kind == AT_TIME:
            found = await log.reader.offset_of_time(value, isolation)
            offset = found.offset if found.offset >= 0 else end
        elif kind in {AT_START, AT_END}:
            offset = log.log_start_offset if kind == AT_START else end
        elif kind == AT_OFFSET:
            check_offset(log, offset)
        limits = min(records_max, RECORDS_MAX), min(bytes_max, READ_BYTES_MAX)
        return await _read(log, offset, *limits, isolation)


class Follower:
    """The position of one reader in partitions of a topic."""

    def __init__(
        self, reads: Reads, topic: Topic, starts: dict[int, Start], isolation: int
    ) -> None:
        self._reads = reads
        self._topic = topic
        self._starts = starts
        self._isolation = isolation

    @property
    def offsets(self) -> dict[int, int]:
        """Of the next record of each partition, once something was asked for."""
        return {number: start.value for number, start in self._starts.items()}

    async def next(
        self, records_max: int, wait_s: float, room: Room | None = None
    ) -> dict[int, PartitionRead]:
        """What comes next in each partition, at most `records_max` of each; waits up to `wait_s`
        until one of them has anything. Raises the error of a partition."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        while True:
            found: dict[int, PartitionRead] = {}
            bytes_max = READ_BYTES_MAX if room is None else await room.grant()
            pages = await self._reads.pages(
                self._topic, self._starts, records_max, self._isolation, bytes_max
            )
            for number, one in pages.items():
                if isinstance(one, HeadraceError):
                    raise one
                found[number] = one
            self._starts.update((n, Start(AT_NEXT, one.next_offset)) for n, one in found.items())
            left_s = deadline_s - loop.time()
            if left_s <= 0 or not all(one.is_empty for one in found.values()):
                return found
            if room is not None:
                room.rest()
            await self._wait(found, left_s)

    async def _wait(self, found: Mapping[int, PartitionRead], timeout_s: float) -> None:
        """Return when a partition may have more than was found, or after a while."""
        logs = {n: log for n in found if (log := self._topic.log(n)) is not None}
        if len(logs) < len(found):
            timeout_s = min(timeout_s, POLL_S)

        def has_more() -> bool:
            bounds = ((found[n], log.visibility.bound(self._isolation)) for n, log in logs.items())
            return any(bound.offset > one.next_offset for one, bound in bounds)

        sources = [(log.waiters, self._isolation) for log in logs.values()]
        await wait_for_change(sources, has_more, timeout_s)


async def _read(
    log: PartitionLog, offset: int, records_max: int, bytes_left: int, isolation: int
) -> PartitionRead:
    """Records from `offset` on that are there now, past batches that cannot be decoded."""
    records: list[Record] = []
    unreadable: list[tuple[int, int, str]] = []

    def read_up_to(next_offset: int) -> PartitionRead:
        end = log.visibility.bound(isolation).offset
        return PartitionRead(records, next_offset, log.log_start_offset, end, unreadable)

    while len(records) < records_max and bytes_left > 0:
        offset, data = await log.reader.fetch_from(offset, READ_BYTES, isolation)
        if not data.data:
            break
        read = BatchesRead()
        reached = read.add(bytes(data.data), offset, OFFSET_LAST, data.aborted or ())
        bytes_left -= len(data.data) - read.size  # what holds no records for clients
        for batch in read.batches:
            wanted = Wanted(offset, OFFSET_LAST, records_max - len(records), bytes_left)
            try:
                found = await wanted_records(batch, wanted)
            except (BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat) as error:
                header = read_header(batch)
                first = max(header.base_offset, offset)
                unreadable.append((first, header.last_offset, str(error)))
                if len(unreadable) >= UNREADABLE_MAX:
                    return read_up_to(header.last_offset + 1)
                continue
            records += found
            bytes_left -= sum(map(record_bytes, found))
            if len(records) >= records_max or bytes_left <= 0:
                return read_up_to(records[-1].offset + 1)
        offset = reached
    return read_up_to(offset)


def _checked(row: Any) -> PartitionRead:
    return PartitionRead(*checked(row, list, int, int, int, list | tuple))
