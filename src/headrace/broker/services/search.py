"""Finds messages in the log, among delayed and half messages, and in dead letter topics.

Invariants: reads, never changes. Covers the partitions that this broker serves; `message_search`
asks all brokers. One call ends at its limit of messages or time and returns
where to continue; it holds no more than one page. The work is sliced into single reads with a turn
of the loop after each, and at most RUNNING_MAX searches run at a time.

How it works: a batch is decompressed once (in a thread, if it is large), and its bytes are searched
for the byte strings that a match must contain; only batches that contain them are decoded. There is
no index: see docs/QUEUES.md for figures.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.batch_search import Wanted, record_bytes, wanted_records
from headrace.broker.shares.share_reads import BatchesRead
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.errors import (
    BatchCorrupt,
    NotOwner,
    RecordInvalid,
    UnsupportedForMessageFormat,
)
from headrace.log.visibility import READ_COMMITTED
from headrace.records.batch import read_header
from headrace.records.bodies import decode_body
from headrace.records.codec import Record
from headrace.records.letters import SHARE_FORMAT
from headrace.records.matching import TIME_MAX, Condition
from headrace.records.record_filter import Candidate, RecordFilter
from headrace.records.tenant_names import name_in, tenant_of
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.commands import DeliveryState
    from headrace.errors import HeadraceError
    from headrace.log.partition_log import PartitionLog
    from headrace.records.bodies import Body

READ_BYTES: Final = 256 * 1024
"""Per slice: about a millisecond."""
RUNNING_MAX: Final = 4
FOUND_BYTES_MAX: Final = 8 * 1024 * 1024
"""For the values of one page; the last one may exceed it."""
DELAYED_AT_ONCE: Final = 500
LATE_MS: Final = 3_600_000
"""How much older than its predecessors a record may be: producers' clocks differ, so a search up to
a time reads this much further."""
OFFSET_LAST: Final = 2**63 - 1

LOG: Final = "log"
DELAYED: Final = "delayed"
HALF: Final = "half"
DEAD: Final = "dead"
PLACES: Final = (LOG, DELAYED, HALF)
"""Of one partition, in search order. The dead letter topics come last."""


class SearchPosition(NamedTuple):
    """A search position: `topic` and `partition` of a log or its companions."""

    rank: int
    """0: the topic's partitions, 1: its dead letter topics."""
    topic: str
    partition: int
    kind: int
    """One of PLACES."""
    at: int = -1
    """The next offset; for delayed records, the due time after which to continue."""
    then: int = -1
    """For delayed records: the offset in the companion after which to continue."""


FIRST: Final = SearchPosition(-1, "", -1, -1)


class FoundMessage(NamedTuple):
    """A message that a search found."""

    state: str
    """log, delayed, half or dead"""
    topic: str
    partition: int
    record: Record
    due_ms: int
    """For a delayed record, else -1."""
    groups: Sequence[DeliveryState]
    """For a record in the log."""


@dataclass(slots=True)
class Page:
    """The result of one call."""

    found: list[FoundMessage] = field(default_factory=list)
    next: SearchPosition | None = None
    """Where to continue; None: the search is complete."""
    records: int = 0
    size_bytes: int = 0
    unreadable: int = 0
    """Batches that cannot be decoded."""
    up_to_ms: int = -1
    """The newest timestamp of the batch searched last, -1: none."""
    failures: int = 0
    """Records for which the condition's expression has no truth value."""
    first_failure: str = ""
    failed: dict[tuple[str, int], HeadraceError] = field(default_factory=dict)
    """(topic, partition) of those whose owner could not be asked."""


class SearchBounds(NamedTuple):
    """When one call ends."""

    count_max: int
    time_ms: int
    bytes_max: int = FOUND_BYTES_MAX
    """For the values; the last one may exceed it."""


class Search:
    """The searches of one broker."""

    def __init__(
        self,
        topics: Topics,
        shares: SharePartitions,
        timers: TimerPartitions,
        dead_letter_topics: Callable[[], AbstractSet[str]],
    ) -> None:
        """`dead_letter_topics()`: the names of the dead letter topics of all groups of the
        cluster."""
        self._topics = topics
        self._shares = shares
        self._timers = timers
        self._dead_letter_topics = dead_letter_topics
        self.running = FairLock(RUNNING_MAX, Hold.LONG)
        """Held by each read on behalf of a search, a trace, or a page of a journal."""

    async def page(
        self,
        topic: Topic,
        condition: Condition,
        start: SearchPosition,
        bounds: SearchBounds,
    ) -> Page:
        """Messages of `topic` on this broker from `start` on, in the order of places and offsets.

        Raises DataCorrupt, StorageUnavailable.
        """
        return await self._page(self._places(topic), condition, start, bounds, topic.name)

    async def partition_page(
        self,
        topic: Topic,
        number: int,
        condition: Condition,
        start: SearchPosition,
        bounds: SearchBounds,
        origin: str = "",
    ) -> Page:
        """The same of one partition; `origin`: of a dead letter topic, the topic whose dead letters
        are meant.

        Raises NotOwner if another broker serves it, DataCorrupt, StorageUnavailable.
        """
        topic.check_partition(number)
        self._topics.readable.check(topic)
        if number not in self.served(topic):
            raise NotOwner(
                f"{topic.name}-{number} is served by another broker: send the request to "
                "that broker"
            )
        places = [
            SearchPosition(int(bool(origin)), topic.name, number, kind)
            for kind in (range(1) if origin else _kinds(topic))
        ]
        return await self._page(places, condition, start, bounds, origin)

    async def _page(
        self,
        places: Sequence[SearchPosition],
        condition: Condition,
        start: SearchPosition,
        bounds: SearchBounds,
        origin: str,
    ) -> Page:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + bounds.time_ms / 1000
        page = Page()
        run = _Run(page, condition, bounds, deadline_s, loop.time)
        async with self.running:
            for place in places:
                if place[:4] < start[:4]:
                    continue
                begun = start if place[:4] == start[:4] else place
                page.next = await self._search(run, begun, origin)
                if page.next is not None:
                    break
                await asyncio.sleep(0)
            await self._add_groups(page)
        run.note_failures()
        return page

    def served(self, topic: Topic) -> list[int]:
        """The partitions that this broker serves."""
        count = range(len(topic.partitions))
        return [number for number in count if self._topics.ownership.is_mine(topic, number)]

    def topics(self, topic: Topic) -> list[Topic]:
        """The topics that a search of `topic` covers: itself, and all dead letter topics.

        Those of all groups: a group may have dead letters here although other brokers serve its
        partitions of the topic.
        """
        tenant = tenant_of(topic.name)
        names = sorted(self._dead_letter_topics() - {"", topic.name})
        found = (self._topics.by_name.get(name) for name in names if tenant_of(name) == tenant)
        return [topic, *(one for one in found if one is not None)]

    def served_places(self, topic: Topic) -> set[tuple[str, int]]:
        """(topic, partition) pairs that a search of `topic` covers on this broker."""
        return {(one.name, number) for one in self.topics(topic) for number in self.served(one)}

    def _places(self, topic: Topic) -> list[SearchPosition]:
        places = [
            SearchPosition(0, topic.name, number, kind)
            for number in self.served(topic)
            for kind in _kinds(topic)
        ]
        for dead in self.topics(topic)[1:]:
            places += [SearchPosition(1, dead.name, number, 0) for number in self.served(dead)]
        return places

    async def _search(self, run: _Run, place: SearchPosition, origin: str) -> SearchPosition | None:
        """Search one place; returns where to continue in it, None if it is done."""
        topic = self._topics.readable.find(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return None  # deleted meanwhile
        if PLACES[place.kind] == LOG:
            return await self._search_log(run, place, topic, origin)
        if PLACES[place.kind] == DELAYED:
            return await self._search_delayed(run, place, topic)
        return await self._search_halves(run, place, topic)

    # --- log access --------------------------------------------------------------------------

    async def _search_log(
        self, run: _Run, place: SearchPosition, topic: Topic, origin: str
    ) -> SearchPosition | None:
        log = topic.require_log(place.partition)
        await log.wait_loaded()
        offset, end = await self._range(log, place, run.condition)
        while offset < end:
            if run.is_over:
                return place._replace(at=offset)
            offset, data = await log.reader.fetch_from(offset, READ_BYTES, READ_COMMITTED)
            if not data.data:
                break
            read = BatchesRead()
            reached = read.add(bytes(data.data), offset, OFFSET_LAST, data.aborted or ())
            run.page.size_bytes += len(data.data)
            within = _Within(offset, end, origin if place.rank else "", place)
            for batch in read.batches:
                await asyncio.sleep(0)
                for record in await run.matching(batch, within):
                    state = DEAD if place.rank else LOG
                    run.add(FoundMessage(state, topic.name, place.partition, record, -1, ()))
                    if run.is_full:
                        return place._replace(at=record.offset + 1)
                if run.cut_at >= 0:
                    return place._replace(at=run.cut_at)
            offset = reached
            await asyncio.sleep(0)
        return None

    async def _range(
        self, log: PartitionLog, place: SearchPosition, condition: Condition
    ) -> tuple[int, int]:
        """(the first offset to search, the end offset)."""
        end = log.visibility.bound(READ_COMMITTED).offset
        offset = max(place.at, log.log_start_offset)
        if condition.since_ms and place.at < 0:
            first = await log.reader.offset_of_time(condition.since_ms)
            offset = max(offset, first.offset) if first.offset >= 0 else end
        if condition.until_ms < TIME_MAX - LATE_MS:
            last = await log.reader.offset_of_time(condition.until_ms + LATE_MS)
            end = min(end, last.offset) if last.offset >= 0 else end
        return offset, end

    # --- companions --------------------------------------------------------------------------

    async def _search_delayed(
        self, run: _Run, place: SearchPosition, topic: Topic
    ) -> SearchPosition | None:
        wanted, number = run.condition.message_id, place.partition
        after = ScheduleEntry(place.at, place.then)
        while not run.is_over:
            if wanted:
                shown = await self._timers.delayed.find_by_id(topic, number, wanted, after)
            else:
                shown = await self._timers.delayed.list_delayed(
                    topic, number, after, DELAYED_AT_ONCE
                )
            if not shown:
                return None
            for one in shown:
                after = ScheduleEntry(one.due_ms, one.offset)
                run.page.records += 1
                run.add_stored(DELAYED, place, one.timestamp_ms, one.due_ms, one.body, one.number)
                await run.give_way()
                if run.is_over:
                    break
            await asyncio.sleep(0)
        return place._replace(at=after.due_ms, then=after.offset)

    async def _search_halves(
        self, run: _Run, place: SearchPosition, topic: Topic
    ) -> SearchPosition | None:
        pending, _settled = await self._timers.halves.list_halves(topic, place.partition)
        wanted = run.condition.message_id
        rest = sorted(
            (half for half in pending if half.number > place.at
             and (not wanted or half.message_id == wanted)),
            key=lambda half: half.number,
        )  # fmt: skip
        while rest:
            if run.is_over:
                return place._replace(at=rest[0].number - 1)
            some = rest[:DELAYED_AT_ONCE]
            shown = await self._timers.halves.half_bodies(topic, place.partition, some)
            upto = shown[-1][0].number if shown else some[-1].number
            rest = rest[bisect_right(rest, upto, key=lambda half: half.number) :]
            for half, timer in shown:
                run.page.records += 1
                body = decode_body(timer.body)
                run.add_stored(HALF, place, half.received_ms, timer.due_ms or -1, body, half.number)
                await run.give_way()
                if run.is_over:
                    return place._replace(at=half.number)
            await asyncio.sleep(0)
        return None

    # --- states ------------------------------------------------------------------------------

    async def _add_groups(self, page: Page) -> None:
        """Add the state of the messages in the log for each share group."""
        wanted: dict[tuple[str, int], list[int]] = {}
        for index, one in enumerate(page.found):
            if one.state == LOG:
                wanted.setdefault((one.topic, one.partition), []).append(index)
        for (name, number), indexes in wanted.items():
            topic = self._topics.readable.get(name)
            records = [page.found[index].record for index in indexes]
            states = await self._shares.states(topic, number, records)
            for index, groups in zip(indexes, states, strict=True):
                page.found[index] = page.found[index]._replace(groups=groups)


def _kinds(topic: Topic) -> range:
    """Which of PLACES are searched. What is not in its log yet is not shared with other tenants."""
    return range(len(PLACES) if topic.home is topic else 1)


class _Within(NamedTuple):
    """The records of a log that qualify."""

    first: int
    end: int
    origin: str
    """The topic that dead letters come from; empty: any."""
    place: SearchPosition


class _OutOfTime(Exception):
    """The call's time ended within a batch."""


class _Run:
    """One call in progress. `cut_at`: the offset within a batch at which its time ended; -1: none.
    A filter may take milliseconds for a record, and a batch can have thousands of them."""

    __slots__ = (
        "_bytes_left", "_count_max", "_deadline_s", "_filter", "_has_evaluated", "_needles",
        "_now_s", "condition", "cut_at", "page",
    )  # fmt: skip

    def __init__(
        self,
        page: Page,
        condition: Condition,
        bounds: SearchBounds,
        deadline_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self.page = page
        self.condition = condition
        self._count_max = bounds.count_max
        self._deadline_s = deadline_s
        self._now_s = now_s
        self._filter = RecordFilter(condition.where) if condition.where else None
        self._needles = condition.needles() + (self._filter.needles if self._filter else [])
        self._bytes_left = bounds.bytes_max
        self._has_evaluated = False
        self.cut_at = -1

    @property
    def is_full(self) -> bool:
        """Whether the page is full."""
        return len(self.page.found) >= self._count_max or self._bytes_left <= 0

    @property
    def is_over(self) -> bool:
        """Whether the call ends here; never before something was searched."""
        is_late = self._now_s() >= self._deadline_s and self.page.records > 0
        return self.is_full or is_late

    def add_stored(
        self,
        state: str,
        place: SearchPosition,
        timestamp_ms: int,
        due_ms: int,
        body: Body,
        number: int,
    ) -> None:
        """Add a record of a companion, if it matches. `number` takes the place of its offset."""
        record = Record(number, timestamp_ms, body.key, body.value, body.headers)
        if self._holds(record, place):
            self.add(FoundMessage(state, place.topic, place.partition, record, due_ms, ()))

    async def give_way(self) -> None:
        """A turn of the loop after a record of a companion, if a filter took its time for it."""
        if self._filter is not None:
            await asyncio.sleep(0)

    def add(self, found: FoundMessage) -> None:
        """Add a message."""
        self.page.found.append(found)
        self._bytes_left -= record_bytes(found.record)

    def _holds(self, record: Record, place: SearchPosition) -> bool:
        condition = self.condition
        if not condition.matches_time(record.timestamp_ms):
            return False
        if not condition.matches(record.key, record.headers):
            return False
        if self._filter is None:
            return True
        where = place.topic, place.partition, record.offset, record.timestamp_ms
        return self._filter.matches(Candidate(*where, record.key, record.value, record.headers))

    def note_failures(self) -> None:
        """Say in the page for how many records the expression had no truth value."""
        if self._filter is not None:
            self.page.failures = self._filter.failures
            self.page.first_failure = self._filter.first_failure

    async def matching(self, batch: bytes, within: _Within) -> list[Record]:
        """The records of a batch that match, until the page is full."""
        page = self.page
        header = read_header(batch)
        page.records += header.record_count
        # Not skipped by the header's times: batches stored before validation may misstate them.
        page.up_to_ms = header.newest_ms
        origin = (SHARE_FORMAT.topic, name_in(within.origin).encode())

        found: list[Record] = []
        seen = 0

        def matches(record: Record) -> bool:
            nonlocal seen
            if self._is_cut_at(record):
                raise _OutOfTime
            seen += 1
            is_of_origin = not within.origin or origin in record.headers
            is_wanted = is_of_origin and self._holds(record, within.place)
            if is_wanted:
                found.append(record)
            return is_wanted

        left = self._count_max - len(page.found), self._bytes_left
        is_costly = self._filter is not None
        try:
            wanted = Wanted(within.first, within.end - 1, *left, matches, self._needles, is_costly)
            return await wanted_records(batch, wanted)
        except _OutOfTime:
            return found
        except (BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat):
            page.unreadable += 1
            return []
        finally:
            if seen and is_costly:  # a batch may be looked at in several calls
                page.records += seen - header.record_count

    def _is_cut_at(self, record: Record) -> bool:
        """Whether the call ends before a record; never before it has evaluated another one."""
        if self._filter is None:
            return False
        if self._has_evaluated and self._now_s() >= self._deadline_s:
            self.cut_at = record.offset
            return True
        self._has_evaluated = True
        return False
