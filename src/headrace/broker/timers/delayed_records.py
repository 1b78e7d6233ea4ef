"""Delayed records: taken in, shown and cancelled on the partitions that this broker serves.

Invariants: the machine of the partition (`coordination.timers`), whose journal is a companion log,
decides what waits and what is due. Nothing here knows a protocol. Errors are raised as
HeadraceErrors.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.delays import Kept
from headrace.broker.security.tenant_shares import NOBODY
from headrace.broker.timers import listing
from headrace.broker.timers.hosted_timers import HostedTimers, translated
from headrace.broker.timers.listing import LISTED_BYTES_MAX, SHOWN_AT_ONCE, Delayed, tag_of
from headrace.broker.timers.timer_bodies import StoredTimer
from headrace.broker.timers.timer_host import number_of
from headrace.broker.topics.overrides import delay_max_ms
from headrace.coordination.timers.commands import (
    AddCommand,
    AdvanceCommand,
    CancelCommand,
    NewTimer,
)
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.state_records import StoredOrigin
from headrace.errors import HeadraceError, RecordInvalid, StorageUnavailable, TopicUnknown
from headrace.records.attributes import DELIVER_AT, HALF, MESSAGE_ID, find_header
from headrace.records.bodies import encode_body
from headrace.runtime.completion import Completion
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from headrace.broker.coordinators.delays import DelayedBatch, DelayedRecord
    from headrace.broker.timers.deliveries import RefusedRecord
    from headrace.broker.timers.timer_host import TimerHost
    from headrace.broker.timers.timer_room import TimerRoom
    from headrace.broker.topics.topic import Topic
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

SOON_MS: Final = 60_000
"""A record that is due within this time stays in memory if there is room."""


class DelayedRecords:
    """See the module; implements `broker.coordinators.delays.Delays`."""

    def __init__(self, host: TimerHost, room: TimerRoom) -> None:
        self._host = host
        self._room = room

    def add(self, partition: PartitionLog, batch: DelayedBatch, user: str = NOBODY) -> Kept:
        """See Delays."""
        topic = self._host.topics.by_id.get(partition.topic_id)
        if topic is None:
            raise TopicUnknown(f"the topic of {partition.name} was deleted")
        number = number_of(partition)
        self._check(topic, batch)
        kept = Kept(Completion(), [])
        adding = self._add(topic, number, batch, user, kept)
        self._host.environment.tasks.spawn(adding, f"delay records of {partition.name}")
        return kept

    def _check(self, topic: Topic, batch: DelayedBatch) -> None:
        """Raise RecordInvalid if a record's delay is too long."""
        bound_ms = delay_max_ms(topic.fact.configs)
        latest_ms = self._host.environment.clock.now_ms() + bound_ms
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
        self, topic: Topic, number: int, batch: DelayedBatch, user: str, kept: Kept
    ) -> None:
        completion = kept.completion
        try:
            hosted = await self._host.hosted.open(topic, number)
            kept.numbers.extend(await self._add_to(hosted, batch, user))
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

    async def _add_to(self, hosted: HostedTimers, batch: DelayedBatch, user: str) -> Sequence[int]:
        """Returns the numbers of the records; none if they were added before."""
        now_ms = self._host.environment.clock.now_ms()
        timers = [_new_timer(delayed) for delayed in batch.records]
        origin = None if batch.origin is None else StoredOrigin(*batch.origin, now_ms)
        ended, is_added = await self._room.take(hosted, user, timers), False
        try:
            reply = await hosted.ask(AddCommand(timers, origin))
            is_added = bool(reply.offsets)
        finally:
            ended(is_added)
        for offset, timer in zip(reply.offsets or (), timers, strict=False):
            if timer.group or timer.due_ms <= now_ms + SOON_MS:
                where = timer.due_ms, timer.timestamp_ms, timer.tag, offset
                hosted.bodies.keep(offset, StoredTimer(*where, timer.body))
        return reply.offsets or ()

    async def list_delayed(
        self, topic: Topic, number: int, after: ScheduleEntry, count_max: int
    ) -> list[Delayed]:
        """Waiting records by due time, after `after`, without those that are due right now.

        At most LISTED_BYTES_MAX; an empty list: there are no more.
        """
        hosted = await self._host.hosted_or_none(topic, number)
        state = None if hosted is None else hosted.state
        if hosted is None or state is None:
            return []
        entries = list(islice(state.schedule.after(after), count_max))
        return await listing.shown(hosted, entries)

    async def list_refused(self, topic: Topic, number: int) -> list[RefusedRecord]:
        """The newest records that were due and unreadable, since this broker took over the
        partition."""
        hosted = await self._host.hosted_or_none(topic, number)
        return [] if hosted is None else list(hosted.deliveries.refused)

    async def cancel(
        self,
        topic: Topic,
        number: int,
        receipts: Sequence[ScheduleEntry],
        message_ids: Sequence[str],
    ) -> tuple[list[bool], list[int]]:
        """Cancel the records with these due times and numbers, and those with these message ids.

        (for each of the former whether it was waiting, for each id how many were); a record counts
        where it is named first.
        """
        return await self._change(_cancel, topic, number, receipts, message_ids)

    async def deliver(
        self,
        topic: Topic,
        number: int,
        receipts: Sequence[ScheduleEntry],
        message_ids: Sequence[str],
    ) -> tuple[list[bool], list[int]]:
        """Let the same records be due now."""
        return await self._change(self._deliver, topic, number, receipts, message_ids)

    async def look_at(
        self,
        topic: Topic,
        number: int,
        receipts: Sequence[ScheduleEntry],
        message_ids: Sequence[str],
    ) -> tuple[list[bool], list[int]]:
        """What `cancel` and `deliver` would return; changes nothing."""
        return await self._change(_all_of, topic, number, receipts, message_ids)

    async def _change(
        self,
        change: Callable[[HostedTimers, Sequence[ScheduleEntry]], Awaitable[set[ScheduleEntry]]],
        topic: Topic,
        number: int,
        receipts: Sequence[ScheduleEntry],
        message_ids: Sequence[str],
    ) -> tuple[list[bool], list[int]]:
        hosted = await self._host.hosted_or_none(topic, number)
        if hosted is None:
            return [False] * len(receipts), [0] * len(message_ids)
        by_id = await listing.by_id(hosted, message_ids)
        by_receipt = await listing.by_receipt(hosted, receipts)
        named = [one for one in by_receipt if one is not None]
        uncounted = await change(hosted, list(dict.fromkeys([*named, *chain(*by_id)])))

        def counts(entry: ScheduleEntry | None) -> bool:
            if entry not in uncounted:
                return False
            uncounted.remove(entry)
            return True

        done = [counts(one) for one in by_receipt]
        return done, [sum(map(counts, entries)) for entries in by_id]

    async def find_by_id(
        self, topic: Topic, number: int, message_id: str, after: ScheduleEntry
    ) -> list[Delayed]:
        """The first waiting records after `after` that carry this message id; see list_delayed."""
        hosted = await self._host.hosted_or_none(topic, number)
        if hosted is None:
            return []
        found, bytes_left = list[Delayed](), LISTED_BYTES_MAX
        while not found:  # some may have another id with the same tag, or be delivered meanwhile
            asked = [message_id], after, SHOWN_AT_ONCE
            candidates = [*await listing.tagged(hosted, *asked)]
            async for one in listing.each(hosted, candidates):
                if one.has_id(message_id):
                    found.append(one)
                    bytes_left -= len(one.body.value or b"") + len(one.body.key or b"")
                    if bytes_left <= 0:
                        break
            if len(candidates) < SHOWN_AT_ONCE:
                break
            after = candidates[-1]
        return found

    async def _deliver(
        self, hosted: HostedTimers, entries: Sequence[ScheduleEntry]
    ) -> set[ScheduleEntry]:
        done: set[ScheduleEntry] = set()
        async for part in listing.parts(hosted, entries):
            now_ms = self._host.environment.clock.now_ms()
            done |= await _ask_all(hosted, [_advance(one, now_ms) for one in part])
        return done


async def _all_of(_hosted: HostedTimers, entries: Sequence[ScheduleEntry]) -> set[ScheduleEntry]:
    return {*entries}


async def _cancel(hosted: HostedTimers, entries: Sequence[ScheduleEntry]) -> set[ScheduleEntry]:
    done: set[ScheduleEntry] = set()
    for at in range(0, len(entries), SHOWN_AT_ONCE):
        some = entries[at : at + SHOWN_AT_ONCE]
        done |= await _ask_all(hosted, [CancelCommand(*one) for one in some])
    return done


async def _ask_all(
    hosted: HostedTimers, commands: Sequence[CancelCommand | AdvanceCommand]
) -> set[ScheduleEntry]:
    """Those of the records that no longer wait as they did."""
    # Side by side they share a sync.
    replies = await gather_charged(hosted.ask(one) for one in commands)
    done = {
        ScheduleEntry(one.due_ms, one.offset)
        for one, reply in zip(commands, replies, strict=True)
        if reply.is_done
    }
    hosted.bodies.forget([entry.offset for entry in done])
    return done


def _advance(delayed: Delayed, now_ms: int) -> AdvanceCommand:
    body = delayed.body
    message_id = (find_header(body.headers, MESSAGE_ID) or b"").decode()
    # A record that is forwarded with a time to come would be delayed once more.
    headers = [
        (name, b"%d" % now_ms if name == DELIVER_AT else content) for name, content in body.headers
    ]
    stored = encode_body(body.key, body.value, headers)
    timer = NewTimer(now_ms, delayed.timestamp_ms, tag_of(message_id), stored)
    return AdvanceCommand(delayed.due_ms, delayed.offset, timer)


def _new_timer(delayed: DelayedRecord) -> NewTimer:
    record = delayed.record
    message_id = (find_header(record.headers, MESSAGE_ID) or b"").decode()
    group = (find_header(record.headers, HALF) or b"").decode()
    body = encode_body(record.key, record.value, record.headers)
    where = delayed.due_ms, record.timestamp_ms, tag_of(message_id)
    return NewTimer(*where, body, group, message_id if group else "")
