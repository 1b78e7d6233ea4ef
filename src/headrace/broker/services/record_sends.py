"""Appends records of clients that do not speak Kafka's protocol, at whichever broker owns their
partitions.

Invariants: knows no protocol. Each record gets its own result: one that is refused, or that makes
its batch too large, costs its neighbours nothing. Records of one partition keep their order: once a
batch could not be stored, none of those behind it is. A repetition would otherwise lie behind them,
or, of a named sequence, be left out as one that is stored. The partition of a record depends on the
record alone where that matters: its key, its message group, whose records are delivered in order,
or its named sequence, so that a repetition meets the first one. A record whose attributes the topic
does not read is refused, because it would be stored as something else than was asked for.
"""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.queue_owners import MOVING_PAUSES_S, away
from headrace.broker.services.timer_receipts import DelayedReceipt, HalfReceipt
from headrace.errors import (
    BatchTooLarge,
    HeadraceError,
    NotOwner,
    PolicyViolation,
    RecordInvalid,
    Rejected,
    RequestInvalid,
)
from headrace.log.appended import HALF, STORED, RecordPlace
from headrace.records.attributes import (
    MESSAGE_GROUP,
    PRODUCER,
    check_unread,
    find_header,
    named_sequences_of,
)
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    header_of,
)
from headrace.records.codec import encode_batch
from headrace.records.partitioner import partition_of_key
from headrace.records.validation import check_single
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.services.appends import Appends
    from headrace.broker.services.queue_owners import Owners, QueueOwners
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.appended import BatchPlace
    from headrace.records.codec import Record

ANY: Final = -1
"""Of `Outgoing.partition`: the record's key decides, its message group, its named sequence, or
nothing."""

BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""To make and store as many holds the event loop for a few milliseconds. A larger record is
alone."""


class Outgoing(NamedTuple):
    """A record to append."""

    record: Record
    partition: int = ANY


class Sent(NamedTuple):
    """Where a record was stored."""

    partition: int
    place: RecordPlace

    @property
    def receipt(self) -> str | None:
        """Of a delayed record, to cancel it (DelayedReceipt); of a half message, to commit it or
        roll it back (HalfReceipt); else None."""
        _offset, state, due_ms, timer = self.place
        if timer < 0:
            return None
        if state == HALF:
            return HalfReceipt(self.partition, timer).text
        return DelayedReceipt(self.partition, due_ms, timer).text


_Part = list[tuple[int, "Record"]]
"""(place among the results, record)"""


class RecordSends:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        owners: QueueOwners,
        appends: Appends,
    ) -> None:
        self._topics = topics
        self._ownership = topics.ownership
        self._owners = owners
        self._appends = appends

    async def send(self, topic: Topic, records: Sequence[Outgoing]) -> list[Sent | HeadraceError]:
        """The result of each record, once it is durable or refused.

        Raises PolicyViolation for an internal topic. BrokerUnreachable: it may have been stored.
        """
        _check_public(topic)
        config = self._topics.logs.config_of(topic.fact)
        found: dict[int, Sent | HeadraceError] = {}
        parts: dict[int, _Part] = {}
        spread = self._spread(await self._owners.found(topic))
        now_ms = self._appends.clock.now_ms()
        for place, (record, partition) in enumerate(records):
            try:
                if not config.has_attributes:
                    check_unread(record.headers, topic.name, now_ms)
                number = self._partition_for(topic, record, partition, spread)
            except HeadraceError as error:
                found[place] = error
            else:
                parts.setdefault(number, []).append((place, record))

        async def send_part(number: int, part: _Part) -> None:
            for some in _alike(part):
                failed = await self._send_some(topic, number, some, found)
                if failed is not None:
                    for place, _ in part:
                        found.setdefault(place, failed)
                    return

        if len(parts) == 1:  # as most are: without a task of its own
            await send_part(*next(iter(parts.items())))
        else:
            await gather_charged(send_part(*one) for one in parts.items())
        return [found[place] for place in range(len(records))]

    def _spread(self, owners: Owners) -> int:
        """The partition of the records of one call for which nothing decides: one that is served,
        if possible here."""
        numbers = owners.here or sorted(n for part in owners.others.values() for n in part)
        numbers = numbers or owners.away
        return numbers[self._topics.randomness.below(len(numbers))]

    @staticmethod
    def _partition_for(topic: Topic, record: Record, partition: int, spread: int) -> int:
        """Raises TopicUnknown."""
        if partition != ANY:
            topic.check_partition(partition)
            return partition
        number = own_partition(topic, record)
        return spread if number == ANY else number

    async def _send_some(
        self, topic: Topic, number: int, part: _Part, found: dict[int, Sent | HeadraceError]
    ) -> HeadraceError | None:
        """Append the records of `part`, as one batch unless some of them are refused.

        Returns why a batch could not be stored: those behind it, without a result then, must not
        be.
        """
        try:
            batch = encode_batch([record for _, record in part])
            placed = await self._append(topic, number, batch)
        except (RecordInvalid, BatchTooLarge) as error:
            named = dict(error.fields.get("record_errors", ()))
            refused = {index: why for index, why in named.items() if 0 <= index < len(part)}
            if len(part) == 1:
                found[part[0][0]] = error
            elif refused:
                for index, why in refused.items():
                    found[part[index][0]] = type(error)(f"the record is not stored: {why}")
                rest = [one for index, one in enumerate(part) if index not in refused]
                if rest:
                    return await self._send_some(topic, number, rest, found)
            else:  # it does not say which
                middle = len(part) // 2
                failed = await self._send_some(topic, number, part[:middle], found)
                if failed is not None:
                    return failed
                return await self._send_some(topic, number, part[middle:], found)
        except Rejected as error:
            found.update((place, error) for place, _ in part)
        except HeadraceError as error:
            return error
        else:
            for index, (place, _) in enumerate(part):
                one = RecordPlace(placed.base_offset + index, STORED)
                found[place] = Sent(number, placed.records[index] if placed.records else one)
        return None

    # --- batches -----------------------------------------------------------------------------

    async def append_copies(self, topic: Topic, number: int, batch: bytes) -> None:
        """Append a batch of copies, such as dead letters, to a partition; returns once it is
        durable.

        Each record carries a named sequence in its headers, by which its partition leaves out what
        it has, so an append whose outcome is unknown can be repeated. Raises HeadraceError:
        BrokerUnreachable where no owner can be asked, or what it returned.
        """
        await self._append(topic, number, batch, are_copies=True)

    async def _append(
        self, topic: Topic, number: int, batch: bytes, *, are_copies: bool = False
    ) -> BatchPlace:
        """Append one batch, here or at the partition's owner. Raises HeadraceError."""
        for pause_s in MOVING_PAUSES_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            try:
                if self._ownership.is_mine(topic, number):
                    if are_copies:
                        return await self._append_copies_here(topic, number, batch)
                    return await self._append_here(topic, number, batch)
                # An owner closes the connection of a request above its limit, without an answer.
                self._topics.logs.config_of(topic.fact).check_size(len(batch))
                owner = self._ownership.leader(topic, number).broker
                if not self._owners.is_there(owner):
                    continue  # until it has a next one
                return await self._owners.call(
                    owner,
                    lambda peers, broker: peers.append(
                        broker, topic.id, number, batch, are_copies=are_copies
                    ),
                )
            except NotOwner:
                continue  # a takeover that one of the two brokers has not seen yet
        raise away(topic, [number], self._ownership.leader(topic, number).broker)

    async def append_here(
        self, topic: Topic, number: int, batch: bytes, *, are_copies: bool = False
    ) -> BatchPlace:
        """Append a batch that another broker made of its client's records, or of copies.

        Raises BatchCorrupt, RecordInvalid, RequestInvalid, PolicyViolation, NotOwner; of copies,
        RequestInvalid where a record has no named sequence, or the batch is compressed.
        """
        _check_public(topic)
        if are_copies:
            return await self._append_copies_here(topic, number, batch)
        header = header_of(check_single(memoryview(batch)))
        has_producer = header.producer_id != NO_PRODUCER_ID
        if has_producer or header.attributes & (CONTROL | TRANSACTIONAL):
            raise RequestInvalid("records are forwarded without a producer id or transaction")
        return await self._append_here(topic, number, batch)

    async def _append_here(self, topic: Topic, number: int, batch: bytes) -> BatchPlace:
        if not self._ownership.is_mine(topic, number):
            raise NotOwner(f"{topic.name}-{number} is not served by this broker")
        return await self._appends.append_and_wait(topic.require_log(number), batch)

    async def _append_copies_here(self, topic: Topic, number: int, batch: bytes) -> BatchPlace:
        header = header_of(check_single(memoryview(batch)))
        if (
            header.attributes & (COMPRESSION_MASK | CONTROL | TRANSACTIONAL)
            or header.producer_id != NO_PRODUCER_ID
        ):
            raise RequestInvalid("copies are sent uncompressed and without a producer id")
        named = named_sequences_of(batch[HEADER_SIZE:], header)
        if len(named) != header.record_count:
            raise RequestInvalid("each copy carries a named sequence in its headers")
        return await self._appends.append_own(topic.require_log(number), batch, named)


def own_partition(topic: Topic, record: Record) -> int:
    """The partition that a record itself decides; ANY: nothing does."""
    key = record.key
    if key is None:
        key = find_header(record.headers, MESSAGE_GROUP)  # its order is that of one partition
    if key is None:
        key = find_header(record.headers, PRODUCER)
    return ANY if key is None else partition_of_key(key, len(topic.partitions))


def _check_public(topic: Topic) -> None:
    if topic.is_internal:
        raise PolicyViolation(f"{topic.name} is internal: only the broker writes to it")
    if topic.home is not topic:
        raise PolicyViolation(f"{topic.name} is another tenant's: only that tenant writes to it")


def _alike(part: _Part) -> Iterator[_Part]:
    """Runs of records that may share a batch: those of named sequences and delayed ones may not,
    nor do more bytes than BATCH_BYTES_MAX."""
    if len(part) == 1:
        yield part
        return
    for _is_named, some in groupby(
        part, lambda one: find_header(one[1].headers, PRODUCER) is not None
    ):
        run: _Part = []
        size = 0
        for one in some:
            added = record_bytes(one[1])
            if run and size + added > BATCH_BYTES_MAX:
                yield run
                run, size = [], 0
            run.append(one)
            size += added
        yield run
