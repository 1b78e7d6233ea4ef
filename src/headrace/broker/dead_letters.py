"""Copies records that share groups have given up to the group's dead letter topic (KIP-1191).

Invariants: a record is finished in its group only when its copy is durable, so none is lost; a
crash between the two may leave a second copy, which the origin in its headers identifies. A copy
keeps key, value, timestamp and headers, and says in headers of its own where it comes from and why.
A record that expired from its log before it was copied has no copy, and is finished too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.commands import DeadLetteredCommand
from headrace.errors import BatchTooLarge, HeadraceError, RecordInvalid, TopicUnknown
from headrace.log.reading import read
from headrace.records.batch import CONTROL, iterate_headers, read_header
from headrace.records.codec import Record, encode_batch, iterate_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.ownership import Ownership
    from headrace.broker.topic import Topic
    from headrace.broker.topics import Topics
    from headrace.coordination.shares.commands import DeadLetter, ShareCommand
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 30.0
READ_BYTES: Final = 1024 * 1024
AT_ONCE: Final = 16
"""Copies under way at a time, so that a wave of failures does not hold the broker's memory."""

H_TOPIC: Final = "__dlq.errors.topic"
H_PARTITION: Final = "__dlq.errors.partition"
H_OFFSET: Final = "__dlq.errors.offset"
H_GROUP: Final = "__dlq.errors.group"
H_DELIVERIES: Final = "__dlq.errors.delivery.count"
H_MESSAGE: Final = "__dlq.errors.message"
"""Kafka's names (KIP-1191), values in text. Do not change: stored."""
ORIGIN_HEADERS: Final = (H_TOPIC, H_PARTITION, H_OFFSET, H_GROUP, H_DELIVERIES, H_MESSAGE)


class Origin(NamedTuple):
    """Where records come from, and where their copies go."""

    topic: Topic
    partition: int
    target: Callable[[], str]
    """The name of the dead letter topic as it is set now; empty where none is wanted any more."""


class DeadLetters:
    """The dead letters of one broker."""

    def __init__(self, environment: Environment, topics: Topics, ownership: Ownership) -> None:
        self._environment = environment
        self._topics = topics
        self._ownership = ownership
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.copied_total = 0
        self.failed_total = 0

    def begin(
        self, origin: Origin, letter: DeadLetter, report: Callable[[ShareCommand], None]
    ) -> None:
        """Copy the records of `letter`, however long it takes; then report that they are."""
        self._environment.tasks.spawn(
            self._persist(origin, letter, report), f"dead letters of {origin.topic.name}"
        )

    async def _persist(
        self, origin: Origin, letter: DeadLetter, report: Callable[[ShareCommand], None]
    ) -> None:
        wait_s = RETRY_S_MIN
        while True:
            try:
                if origin.target():
                    async with self._slots:
                        await self._copy(origin, letter)
                break
            except HeadraceError as error:
                data = origin.topic.partition(origin.partition)
                if data is None or data.is_deleted:
                    return
                self.failed_total += 1
                log.warning(
                    "records %d to %d of %s-%d, given up by group %s, are not in %s yet (%s): they"
                    " are kept and tried again",
                    letter.first,
                    letter.last,
                    origin.topic.name,
                    origin.partition,
                    letter.group_id,
                    origin.target(),
                    error,
                )
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)
        report(DeadLetteredCommand(letter.group_id, letter.first, letter.last))

    async def _copy(self, origin: Origin, letter: DeadLetter) -> None:
        data = origin.topic.partitions[origin.partition]
        offset = reached = max(letter.first, data.log_start_offset)
        while offset <= letter.last:
            batches = bytes(await read(data, self._environment.store, offset, READ_BYTES))
            if not batches:
                return
            copies: list[Record] = []
            for at, header in iterate_headers(batches):
                if header.base_offset > letter.last:
                    break
                if not header.attributes & CONTROL:
                    copies += [
                        copy_of(record, origin, letter)
                        for record in iterate_records(batches[at : at + header.size])
                        if offset <= record.offset <= letter.last
                    ]
                reached = header.last_offset + 1
            if copies:
                await self._append(origin, copies)
                self.copied_total += len(copies)
            offset = reached

    async def _append(self, origin: Origin, copies: list[Record]) -> None:
        target = await self._target(origin)
        try:
            await self._append_batch(target, copies)
        except (BatchTooLarge, RecordInvalid):
            if len(copies) > 1:
                for copy in copies:
                    await self._append(origin, [copy])
                return
            raise

    async def _append_batch(self, target: PartitionLog, copies: list[Record]) -> None:
        batch = encode_batch(copies)
        await target.wait_loaded()
        while (appended := target.append(batch, read_header(batch))) is None:
            if target.ready is not None:
                await target.ready.wait()
        await appended.completion.wait()

    async def _target(self, origin: Origin) -> PartitionLog:
        """A partition of the dead letter topic that this broker serves.

        The one with the origin's number, where that is so; else another, since copies carry their
        origin. Raises TopicUnknown where this broker serves none.
        """
        name = origin.target()
        topic = self._topics.by_name.get(name)
        if topic is None:
            await self._topics.create(name, len(origin.topic.partitions), -1, {})
            topic = self._topics.get(name)
        if topic is origin.topic:
            raise RecordInvalid(
                f"{name} cannot be its own dead letter topic: name another one for the"
                " group (errors.deadletterqueue.topic.name)"
            )
        count = len(topic.partitions)
        for turn in range(count):
            number = (origin.partition + turn) % count
            if self._ownership.is_mine(topic, number):
                return topic.partitions[number]
        raise TopicUnknown(
            f"this broker serves no partition of {name}: give the topic at least as many"
            " partitions as there are brokers"
        )


def copy_of(record: Record, origin: Origin, letter: DeadLetter) -> Record:
    """The dead letter of one record."""
    said = (
        origin.topic.name,
        origin.partition,
        record.offset,
        letter.group_id,
        letter.deliveries,
        letter.reason,
    )
    kept = [(name, value) for name, value in record.headers if name not in ORIGIN_HEADERS]
    headers = [
        (name, str(value).encode()) for name, value in zip(ORIGIN_HEADERS, said, strict=True)
    ]
    return Record(record.offset, record.timestamp_ms, record.key, record.value, [*kept, *headers])
