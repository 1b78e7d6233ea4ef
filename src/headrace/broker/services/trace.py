"""The history of a message: sent, delayed, committed, delivered, acknowledged, dead-lettered,
redriven.

Invariants: reads, never changes; finds messages through `Search`, so it covers the partitions that
this broker serves (`message_search` asks all brokers), and is bounded like it: reading journals
counts towards the same limits of time and concurrency. Events come from the log, the journal of the
share groups and the timers; information that these do not hold is listed as missing, never guessed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.broker.services.search import (
    DEAD,
    DELAYED,
    FIRST,
    HALF,
    LOG,
    FoundMessage,
    SearchBounds,
)
from headrace.broker.shares.delivery_history import read_history
from headrace.broker.shares.share_reads import BatchesRead
from headrace.coordination.timers.state_records import COMMITTED, EXPIRED
from headrace.errors import BatchCorrupt, HeadraceError, NotOwner, OffsetOutOfRange
from headrace.log.decoded_records import decoded_parts
from headrace.log.reading import check_offset
from headrace.log.visibility import READ_COMMITTED
from headrace.records.attributes import (
    DELIVER_AT,
    PRODUCER,
    TIME_MS_MAX,
    find_header,
)
from headrace.records.letters import REDRIVES
from headrace.records.matching import Condition

if TYPE_CHECKING:
    from headrace.broker.services.ledger_map import LedgerMap
    from headrace.broker.services.search import Search, SearchPosition
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.timers.timer_partitions import TimerPartitions
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.commands import DeliveryState
    from headrace.coordination.timers.state_records import Settled

MESSAGES_MAX: Final = 100
"""For one id: the message, its dead letter copies and redriven copies."""
STEP_MS: Final = 500
UNKNOWN: Final = (
    "the member and start time of a delivery that has ended: a journal stores outcomes only",
)
_WITHIN_MS: Final = {"stored": 0, "half_received": 0, "dead_letter_stored": 2, "dead_lettered": 3}
"""The order of events of the same millisecond; others take the second place."""
FINISHED_STATES: Final = frozenset({"acknowledged", "archived", "archiving", "finished"})


@dataclass(slots=True)
class TraceEvent:
    """One event. `details` depends on its kind."""

    at_ms: int
    event: str
    topic: str
    partition: int
    offset: int = -1
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Trace:
    """The known history of one message."""

    messages: list[FoundMessage] = field(default_factory=list)
    events: list[TraceEvent] = field(default_factory=list)
    unknown: list[str] = field(default_factory=lambda: list(UNKNOWN))
    is_complete: bool = True
    records: int = 0
    """Records searched."""
    tables: list[dict[str, Any]] = field(default_factory=list)
    """Those that may have the message, if the log does not."""


class Tracer:
    """The traces of one broker."""

    def __init__(
        self,
        topics: Topics,
        search: Search,
        shares: SharePartitions,
        timers: TimerPartitions,
        ledgers: LedgerMap,
    ) -> None:
        self._ledgers = ledgers
        self._topics = topics
        self._search = search
        self._shares = shares
        self._timers = timers

    async def by_id(self, name: str, message_id: str, time_ms: int, trace: Trace) -> None:
        """Fill `trace` with the messages of the topic `name` that carry this id; stops reading
        after `time_ms`.

        Raises TopicUnknown, StorageUnavailable, DataCorrupt.
        """
        topic = self._topics.get(name)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + time_ms / 1000
        served, place = self._search.served_places(topic), cast("SearchPosition | None", FIRST)
        while place is not None:
            bounds = SearchBounds(MESSAGES_MAX - len(trace.messages), STEP_MS)
            page = await self._search.page(topic, Condition(message_id), place, bounds)
            trace.messages += page.found
            trace.records += page.records
            place = page.next
            if place is not None and (
                loop.time() >= deadline_s or len(trace.messages) >= MESSAGES_MAX
            ):
                trace.is_complete = False
                break
        if served != self._search.served_places(topic):
            # the messages of a partition lost or gained meanwhile may be missing
            trace.is_complete = False
        for number in self._search.served(topic):
            _pending, settled = await self._timers.halves.list_halves(topic, number)
            trace.events += [
                event
                for one in settled
                if one.message_id == message_id
                for event in _settled(topic.name, number, one)
            ]
        await self._add_events(topic, trace, deadline_s)

    async def by_offset(
        self, topic: Topic, number: int, offset: int, time_ms: int, trace: Trace
    ) -> None:
        """Fill `trace` with the record at one offset. Raises NotOwner, OffsetOutOfRange."""
        deadline_s = asyncio.get_running_loop().time() + time_ms / 1000
        topic.check_partition(number)
        if number not in self._search.served(topic):
            raise NotOwner(
                f"{topic.name}-{number} is served by another broker: send the request to that "
                "broker"
            )
        log = topic.require_log(number)
        await log.wait_loaded()
        check_offset(log, offset)
        data = await log.reader.fetch(offset, 1, READ_COMMITTED)
        read = BatchesRead()
        read.add(bytes(data.data), offset, offset, data.aborted or ())
        record = None
        with suppress(BatchCorrupt):
            for batch in read.batches:
                async for some in decoded_parts(batch, offset, offset):
                    record = next((one for one in some if one.offset == offset), record)
        if record is None:
            raise OffsetOutOfRange(
                f"{topic.name}-{number} has no record at offset {offset}: it is the end of "
                "the log or a marker, or the record was compacted, its transaction aborted, or its "
                "batch cannot be decoded"
            )
        (groups,) = await self._shares.states(topic, number, [record])
        trace.messages.append(FoundMessage(LOG, topic.name, number, record, -1, groups))
        await self._add_events(topic, trace, deadline_s)

    async def _add_events(self, topic: Topic, trace: Trace, deadline_s: float) -> None:
        by_partition: dict[int, list[FoundMessage]] = {}
        stored: list[TraceEvent] = []
        for found in trace.messages:
            trace.events.append(_stored(found))
            if found.state == LOG:
                stored.append(trace.events[-1])
                by_partition.setdefault(found.partition, []).append(found)
        for number, some in sorted(by_partition.items()):
            async with self._search.running:
                await self._add_deliveries(topic, number, some, trace, deadline_s)
        await self._add_places(topic, stored, trace, deadline_s)
        sort_events(trace)

    async def _add_places(
        self, topic: Topic, stored: list[TraceEvent], trace: Trace, deadline_s: float
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                for event in stored:
                    event.details |= await self._place(topic, event.partition, event.offset)
        except TimeoutError:
            trace.unknown.append(
                f"the ledgers of messages in {topic.name}, or their bookies: the time limit expired"
                " before the store said where they are"
            )

    async def _place(self, topic: Topic, number: int, offset: int) -> dict[str, Any]:
        try:
            return await self._ledgers.place(topic.require_log(number), offset)
        except HeadraceError:
            return {}  # it moves to another broker, or the store does not answer

    async def _add_deliveries(
        self, topic: Topic, number: int, some: list[FoundMessage], trace: Trace, deadline_s: float
    ) -> None:
        journal = await self._shares.journal(topic, number)
        reported: set[tuple[int, str]] = set()
        if journal is not None:
            offsets = [found.record.offset for found in some]
            history = await read_history(journal, offsets, deadline_s)
            for one in history.outcomes:
                if not self._topics.readable.has_group(topic, one.group_id):
                    continue
                reported.add((one.offset, one.group_id))
                details: dict[str, Any] = {"group": one.group_id}
                if one.deliveries:
                    details["attempt"] = one.deliveries
                if one.next_ms:
                    details["next_delivery_ms"] = one.next_ms
                place = one.event, topic.name, number, one.offset
                trace.events.append(TraceEvent(one.at_ms, *place, details))
            if history.up_to_ms >= 0:
                trace.is_complete = False
                trace.unknown.append(
                    f"deliveries in {topic.name}-{number} after {history.up_to_ms} ms: the time "
                    "limit expired before the end of the journal"
                )
            if journal.log_start_offset > 0:
                trace.unknown.append(
                    f"deliveries in {topic.name}-{number} before {history.since_ms} ms: the "
                    "journal was compacted at that time"
                )
        for found in some:
            trace.events += [_now(found, state) for state in found.groups
                             if state.state not in FINISHED_STATES
                             or (found.record.offset, state.group_id) not in reported]  # fmt: skip


def sort_events(trace: Trace) -> None:
    """Bring the events into the order of time."""
    trace.events.sort(key=lambda event: (event.at_ms, _WITHIN_MS.get(event.event, 1)))


def _stored(found: FoundMessage) -> TraceEvent:
    """The event that stored a message where it is."""
    record, place = found.record, (found.topic, found.partition)
    if found.state == DELAYED:
        return TraceEvent(record.timestamp_ms, "delayed", *place, -1, {"due_ms": found.due_ms})
    if found.state == HALF:
        return TraceEvent(record.timestamp_ms, "half_received", *place)
    if found.state == DEAD:
        name = (find_header(record.headers, PRODUCER) or b"").rpartition(b"/")[2]
        at_ms = int(name) if name.isdigit() and len(name) < 17 else record.timestamp_ms
        return TraceEvent(at_ms, "dead_letter_stored", *place, record.offset)
    details: dict[str, Any] = {}
    due = find_header(record.headers, DELIVER_AT)
    if due is not None and due.isdigit():
        details["due_ms"] = int(due[:16])
    redrives = find_header(record.headers, REDRIVES)
    if redrives is not None:
        details["redrives"] = redrives.decode(errors="replace")
    event = "stored" if redrives is None else "redriven"
    return TraceEvent(record.timestamp_ms, event, *place, record.offset, details)


def _now(found: FoundMessage, state: DeliveryState) -> TraceEvent:
    """The present state of a message in a group."""
    details: dict[str, Any] = {"group": state.group_id, "state": state.state}
    if state.deliveries:
        details["attempt"] = state.deliveries
    if state.owner:
        details |= {"member": state.owner, "lock_ends_ms": state.at_ms}
    place = found.topic, found.partition, found.record.offset
    return TraceEvent(TIME_MS_MAX, "now", *place, details)


def _settled(topic: str, number: int, one: Settled) -> list[TraceEvent]:
    """The events of a half message that was settled."""
    word = {COMMITTED: "half_committed", EXPIRED: "half_expired"}.get(
        one.outcome, "half_rolled_back"
    )
    details: dict[str, Any] = {"group": one.group}
    if one.reason:
        details["reason"] = one.reason
    return [
        TraceEvent(one.received_ms, "half_received", topic, number, -1, {"group": one.group}),
        TraceEvent(one.at_ms, word, topic, number, -1, details),
    ]
