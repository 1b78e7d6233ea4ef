"""Delayed records and half messages of the partitions that this broker serves.

Invariants: the machine of the partition (`coordination.timers`), whose journal is a companion log,
decides what waits and what is due. A partition with such a log is hosted as soon as this broker
serves it, since due records are delivered without a request. Nothing here knows a protocol. Errors
are raised as HeadraceErrors.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.timers import listing
from headrace.broker.timers.deliveries import DeliveryFigures, RefusedRecord
from headrace.broker.timers.hosted_timers import HostedTimers, translated
from headrace.broker.timers.listing import LISTED_BYTES_MAX, SHOWN_AT_ONCE, Delayed, tag_of
from headrace.broker.timers.timer_bodies import StoredTimer
from headrace.broker.timers.timer_space import keep_small
from headrace.broker.topics.companions import open_companion
from headrace.broker.topics.overrides import delay_max_ms, half_config
from headrace.coordination.timers.commands import (
    AddCommand,
    CancelCommand,
    ConfigureCommand,
    Half,
    NewTimer,
    OpenTimersCommand,
    PollCommand,
    SettleHalfCommand,
    SettleHalfReply,
)
from headrace.coordination.timers.halves import SETTLED_AT_ONCE
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.state_records import Settled, StoredOrigin
from headrace.errors import (
    HeadraceError,
    NotOwner,
    RecordInvalid,
    RecordStateInvalid,
    StorageUnavailable,
    TopicUnknown,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    PARTITIONS,
    CompanionKind,
    PartitionFact,
    partition_of_key,
)
from headrace.records.attributes import HALF, MESSAGE_ID, find_header
from headrace.records.bodies import Body, decode_body, encode_body
from headrace.runtime.completion import Completion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from headrace.broker.coordinators.delays import DelayedBatch, DelayedRecord
    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Interval between checks for newly served partitions and for records due soon."""
SPACE_LOOKS: Final = 10
"""Checks between two evaluations of disk space."""
SOON_MS: Final = 60_000
"""A record that is due within this time stays in memory if there is room."""
POLLED_AT_ONCE: Final = 16
"""Half messages given to a poll at a time, since their sizes are not known in advance."""


class HalfShown(NamedTuple):
    """A half message with its record."""

    topic: str
    partition: int
    half: Half
    body: Body


def number_of(log: PartitionLog) -> int:
    """The number of a partition in its topic."""
    return int(log.name.rpartition("-")[2])


class TimerPartitions:
    """All timers of one broker; implements `broker.coordinators.delays.Delays`."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        producer_ids: ProducerIds,
        *,
        is_standalone: bool,
    ) -> None:
        self._environment = environment
        self._topics = topics
        self._producer_ids = producer_ids
        self._is_standalone = is_standalone
        self._hosted: dict[tuple[UUID, int], HostedTimers] = {}
        self._opening: dict[tuple[UUID, int], asyncio.Lock] = {}
        self._polls: dict[str, list[asyncio.Event]] = {}
        self.figures = DeliveryFigures()

    # --- hosting -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Host the partitions that have timers and maintain them, until cancelled."""
        if self._is_standalone:
            await self._load_all()
        looks = 0
        while True:
            self._look()
            looks += 1
            for hosted in list(self._hosted.values()):
                try:
                    await hosted.check_clock()
                    await hosted.preload_due()
                    if looks % SPACE_LOOKS == 0:
                        await self._configure(hosted)
                        await keep_small(hosted)
                except HeadraceError as error:
                    log.info("%s: cannot maintain its timers yet: %s", hosted.data.name, error)
            await asyncio.sleep(LOOK_S)

    async def _load_all(self) -> None:
        """Load the partitions that have timers: no client may use them before records are due."""
        for entry in await self._environment.metadata.list(PARTITIONS):
            topic_id, number = partition_of_key(entry.key)
            topic = self._topics.by_id.get(topic_id)
            data = None if topic is None else topic.log(number)
            if data is not None and decode_fact(PartitionFact, entry).has_companion(
                CompanionKind.TIMERS
            ):
                data.load()

    def _look(self) -> None:
        """Host newly loaded partitions, and reopen fenced ones."""
        loaded = self._environment.companioned
        if loaded is None:
            return
        for data in dict.fromkeys([*loaded, *(one.data for one in self._hosted.values())]):
            topic = self._topics.by_id.get(data.topic_id)
            number = number_of(data)
            if (
                topic is not None
                and topic.log(number) is data
                and data.is_loaded
                and data.has_companion(CompanionKind.TIMERS)
                and not self._is_hosted(topic, number, data)
                and not self._is_opening(topic, number)
                and self._topics.ownership.is_mine(topic, number)
            ):
                self._environment.tasks.spawn(self._open(topic, number), f"timers {data.name}")

    def _is_hosted(self, topic: Topic, number: int, data: PartitionLog) -> bool:
        """Whether its timers run; those whose companion was fenced are reopened."""
        hosted = self._hosted.get((topic.id, number))
        return hosted is not None and hosted.serves(data)

    def _is_opening(self, topic: Topic, number: int) -> bool:
        lock = self._opening.get((topic.id, number))
        return lock is not None and lock.locked()

    async def _open(self, topic: Topic, number: int) -> None:
        try:
            await self._host(topic, number)
        except HeadraceError as error:
            log.info("cannot open the timers of %s-%d yet: %s", topic.name, number, error)

    async def _host(self, topic: Topic, number: int) -> HostedTimers:
        data = topic.require_log(number)
        if data.is_deleted:
            raise TopicUnknown(f"topic {topic.name!r} was deleted")
        key = (topic.id, number)
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.serves(data) and hosted.is_open:
            return hosted
        if not self._topics.ownership.is_mine(topic, number):
            raise NotOwner(f"{data.name} is not served by this broker: refresh the metadata")
        async with self._opening.setdefault(key, asyncio.Lock()):
            hosted = self._hosted.get(key)
            if hosted is None or not hosted.serves(data):
                hosted = await self._make(topic, number, data)
            await self._begin(hosted)
        self._opening.pop(key, None)
        return hosted

    async def _make(self, topic: Topic, number: int, data: PartitionLog) -> HostedTimers:
        self.resign(topic, number)
        kind = CompanionKind.TIMERS
        companion = await open_companion(
            self._environment, topic, number, kind, is_owned=not self._is_standalone
        )
        if topic.log(number) is not data:
            raise NotOwner(f"{data.name} has a new owner: refresh the metadata")
        hosted = HostedTimers(topic, number, companion, self._environment, self.figures, self._wake)
        self._hosted[topic.id, number] = hosted
        return hosted

    async def _begin(self, hosted: HostedTimers) -> None:
        await self._configure(hosted)
        state = hosted.state
        if state is not None and state.producer_id < 0:
            await hosted.ask(OpenTimersCommand(await self._producer_ids.take()))

    @staticmethod
    async def _configure(hosted: HostedTimers) -> None:
        config = half_config(hosted.topic.fact.configs)
        state = hosted.state
        if state is None or state.halves.config != config:
            await hosted.ask(ConfigureCommand(config))

    def resign(self, topic: Topic, number: int) -> None:
        """This broker no longer serves the partition."""
        hosted = self._hosted.pop((topic.id, number), None)
        if hosted is not None:
            hosted.close(NotOwner(f"{hosted.data.name} is served by another broker now"))

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic was deleted, with its waiting records."""
        for key in [key for key in self._hosted if key[0] == topic_id]:
            hosted = self._hosted.pop(key)
            hosted.close(TopicUnknown("the topic was deleted"))

    def close(self) -> None:
        """Refuse waiting requests and stop the timers."""
        for hosted in self._hosted.values():
            hosted.deliveries.close()
            hosted.shard.close(NotOwner("the broker is stopping: refresh the metadata"))

    def hosted(self) -> Iterator[HostedTimers]:
        """For metrics."""
        yield from self._hosted.values()

    # --- adding ------------------------------------------------------------------------------

    def add(self, partition: PartitionLog, batch: DelayedBatch) -> Completion:
        """See Delays."""
        topic = self._topics.by_id.get(partition.topic_id)
        if topic is None:
            raise TopicUnknown(f"the topic of {partition.name} was deleted")
        number = number_of(partition)
        self._check(topic, batch)
        completion = Completion()
        adding = self._add(topic, number, batch, completion)
        self._environment.tasks.spawn(adding, f"delay records of {partition.name}")
        return completion

    def _check(self, topic: Topic, batch: DelayedBatch) -> None:
        """Raise RecordInvalid if a record's delay is too long."""
        bound_ms = delay_max_ms(topic.fact.configs)
        latest_ms = self._environment.clock.now_ms() + bound_ms
        reason = (
            f"its delay exceeds headrace.delay.max.ms={bound_ms}: use an earlier time, or "
            "raise the limit of the topic"
        )
        late = [one.batch_index for one in batch.records if one.due_ms > latest_ms]
        if late:
            raise RecordInvalid(
                f"record {late[0]} of the batch: {reason}; the batch is not stored",
                record_errors=[(index, reason) for index in late],
            )

    async def _add(
        self, topic: Topic, number: int, batch: DelayedBatch, completion: Completion
    ) -> None:
        try:
            hosted = await self._host(topic, number)
            await self._add_to(hosted, batch)
        except HeadraceError as error:
            completion.fail(translated(error))
        except asyncio.CancelledError:
            completion.fail(StorageUnavailable("the broker is stopping: send the batch again"))
            raise
        except Exception as fault:
            log.exception(
                "internal error while storing delayed records of %s-%d", topic.name, number
            )
            completion.fail(fault)
        else:
            completion.succeed()

    async def _add_to(self, hosted: HostedTimers, batch: DelayedBatch) -> None:
        now_ms = self._environment.clock.now_ms()
        timers = [_new_timer(delayed) for delayed in batch.records]
        origin = None if batch.origin is None else StoredOrigin(*batch.origin, now_ms)
        reply = await hosted.ask(AddCommand(timers, origin))
        for offset, timer in zip(reply.offsets or (), timers, strict=False):
            if timer.group or timer.due_ms <= now_ms + SOON_MS:
                where = timer.due_ms, timer.timestamp_ms, timer.tag, offset
                hosted.bodies.keep(offset, StoredTimer(*where, timer.body))

    # --- delayed records ---------------------------------------------------------------------

    async def list_delayed(
        self, topic: Topic, number: int, after: ScheduleEntry, count_max: int
    ) -> list[Delayed]:
        """Waiting records by due time, after `after`, without those that are due right now.

        At most LISTED_BYTES_MAX; an empty list: there are no more.
        """
        hosted = await self._hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if hosted is None or state is None:
            return []
        entries = list(islice(state.schedule.after(after), count_max))
        return await listing.shown(hosted, entries)

    async def list_refused(self, topic: Topic, number: int) -> list[RefusedRecord]:
        """The newest records that were due and unreadable, since this broker took over the
        partition."""
        hosted = await self._hosted_or_none(topic, number)
        return [] if hosted is None else list(hosted.deliveries.refused)

    async def cancel(self, topic: Topic, number: int, due_ms: int, timer_number: int) -> bool:
        """Cancel the record with this due time and number; False if it is not waiting."""
        hosted = await self._hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if hosted is None or state is None:
            return False
        entries = [ScheduleEntry(due_ms, timer_number)]
        if not state.schedule.has(due_ms, timer_number):  # it may have been stored again
            same = []
            for entry in state.schedule.after(ScheduleEntry(due_ms, timer_number)):
                if entry.due_ms != due_ms:
                    break
                same.append(entry)
            entries = [
                ScheduleEntry(due_ms, one.offset)
                async for one in listing.each(hosted, same)
                if one.number == timer_number
            ]
        return await self._cancel(hosted, entries) > 0

    async def cancel_by_id(self, topic: Topic, number: int, message_id: str) -> int:
        """Cancel the waiting records that carry this message id; returns how many."""
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return 0
        candidates = await listing.tagged(hosted, message_id)
        found = [
            ScheduleEntry(one.due_ms, one.offset)
            async for one in listing.each(hosted, candidates)
            if one.has_id(message_id)
        ]
        return await self._cancel(hosted, found)

    async def find_by_id(
        self, topic: Topic, number: int, message_id: str, after: ScheduleEntry
    ) -> list[Delayed]:
        """The first waiting records after `after` that carry this message id; see list_delayed."""
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return []
        candidates = [one for one in await listing.tagged(hosted, message_id) if one > after]
        found, bytes_left = list[Delayed](), LISTED_BYTES_MAX
        async for one in listing.each(hosted, candidates):
            if one.has_id(message_id):
                found.append(one)
                bytes_left -= len(one.body.value or b"") + len(one.body.key or b"")
                if bytes_left <= 0 or len(found) >= SHOWN_AT_ONCE:
                    break
        return found

    @staticmethod
    async def _cancel(hosted: HostedTimers, entries: list[ScheduleEntry]) -> int:
        cancelled = 0
        for entry in entries:
            reply = await hosted.ask(CancelCommand(*entry))
            cancelled += reply.is_done
        return cancelled

    async def _hosted_or_none(self, topic: Topic, number: int) -> HostedTimers | None:
        """The timers of a partition, None if it never had any. Raises HeadraceError."""
        data = topic.require_log(number)
        if not self._topics.ownership.is_mine(topic, number):
            raise NotOwner(f"{data.name} is not served by this broker: refresh the metadata")
        await data.wait_loaded()
        if not data.has_companion(CompanionKind.TIMERS):
            return None
        hosted = await self._host(topic, number)
        if hosted.state is None:
            await self._configure(hosted)  # waits until it is loaded, or raises
        return hosted

    # --- half messages -----------------------------------------------------------------------

    async def list_halves(self, topic: Topic, number: int) -> tuple[list[Half], list[Settled]]:
        """(pending half messages, outcomes still kept) of a partition, oldest first."""
        hosted = await self._hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if state is None:
            return [], []
        return list(state.halves.saved()), list(state.halves.outcomes)

    async def half_bodies(
        self, topic: Topic, number: int, halves: Sequence[Half]
    ) -> list[tuple[Half, StoredTimer]]:
        """The first of these half messages that are still pending, up to LISTED_BYTES_MAX.

        An empty list: all were settled meanwhile.
        """
        hosted = await self._hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if hosted is None or state is None:
            return []
        pending = [half for half in halves if half.number in state.halves.by_number]
        found = await hosted.bodies.leading([half.offset for half in pending], LISTED_BYTES_MAX)
        return list(zip(pending, found, strict=False))

    async def settle(
        self, topic: Topic, number: int, command: SettleHalfCommand
    ) -> SettleHalfReply | None:
        """Commit or roll back half messages; None if this partition never had such a one.

        The reply's error says that the outcome was another one before.
        """
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return None
        count = 0
        while True:
            reply = await hosted.shard.submit(command)
            count += reply.count
            if reply.count < SETTLED_AT_ONCE or command.number >= 0:
                break
        if reply.error is not None and not isinstance(reply.error, RecordStateInvalid):
            raise translated(reply.error)
        reply.count = count
        return None if reply.outcome is None else reply

    async def poll_checks(self, group: str, count_max: int, wait_s: float) -> list[HalfShown]:
        """Half messages whose producer group is due for a check-back.

        Waits up to `wait_s` for the first one. Each check-back goes to one caller.
        """
        event = asyncio.Event()
        self._polls.setdefault(group, []).append(event)
        try:
            async with asyncio.timeout(wait_s):
                while True:
                    event.clear()
                    found = await self.take_checks(group, count_max)
                    if found:
                        return found
                    await event.wait()
        except TimeoutError:
            return []
        finally:
            waiting = self._polls[group]
            waiting.remove(event)
            if not waiting:
                del self._polls[group]

    async def take_checks(self, group: str, count_max: int) -> list[HalfShown]:
        """The check-backs of a producer group that no producer has taken; see poll_checks."""
        shown: list[HalfShown] = []
        bytes_left = LISTED_BYTES_MAX
        for hosted in list(self._hosted.values()):
            while hosted.state is not None and len(shown) < count_max and bytes_left > 0:
                count = min(count_max - len(shown), POLLED_AT_ONCE)
                reply = await hosted.ask(PollCommand(group, count))
                if not reply.halves:
                    break
                found = await hosted.bodies.get([half.offset for half in reply.halves])
                bytes_left -= sum(len(one.body) for one in found.values())
                shown += [
                    HalfShown(
                        hosted.topic.name,
                        hosted.number,
                        half,
                        decode_body(found[half.offset].body),
                    )
                    for half in reply.halves
                ]
        return shown

    def _wake(self, groups: tuple[str, ...]) -> None:
        for group in groups:
            for event in self._polls.get(group, ()):
                event.set()


def _new_timer(delayed: DelayedRecord) -> NewTimer:
    record = delayed.record
    message_id = (find_header(record.headers, MESSAGE_ID) or b"").decode()
    group = (find_header(record.headers, HALF) or b"").decode()
    body = encode_body(record.key, record.value, record.headers)
    where = delayed.due_ms, record.timestamp_ms, tag_of(message_id)
    return NewTimer(*where, body, group, message_id if group else "")
