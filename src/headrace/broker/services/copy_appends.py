"""Appends copies of records, such as dead letters, to the partition of another topic.

Invariants: a copy is stored once. Each record carries a named sequence in its headers, which its
partition checks, so an append whose outcome is unknown can be repeated. The partition may belong to
another broker; its owner is looked up for each append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import BrokerUnreachable, NotOwner, RequestInvalid
from headrace.records.attributes import named_sequences_of
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_SIZE,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
    header_of,
)
from headrace.records.validation import check_single

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.services.appends import Appends
    from headrace.broker.shares.queue_peers import QueuePeerCalls
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import BrokerFact


class CopyAppends:
    """The appends of copies that one broker makes, or is asked for by others."""

    def __init__(self, appends: Appends, topics: Topics, ownership: Ownership) -> None:
        self._appends = appends
        self._topics = topics
        self._ownership = ownership
        self.peer: Callable[[int], tuple[BrokerFact, QueuePeerCalls]] = _without_peers
        """The calls to another broker, by its id; raises BrokerUnreachable."""

    async def append(self, topic: Topic, number: int, batch: bytes) -> None:
        """Append a batch to a partition, here or at its owner; return once it is durable.

        Raises HeadraceError: BrokerUnreachable where no owner can be asked, or what it returned.
        """
        if self._ownership.is_mine(topic, number):
            await self.append_here(topic.require_log(number), batch)
            return
        # Its owner closes the connection of a request above its limit, without an answer.
        self._topics.log_config(topic.name, topic.fact.configs).check_size(len(batch))
        leader = self._ownership.leader(topic, number).broker
        broker, peers = self.peer(leader)
        try:
            await peers.append_copies(broker, topic.id, number, batch)
        except NotOwner as error:  # a takeover that one of the two brokers has not seen yet
            raise BrokerUnreachable(
                f"partition {number} of {topic.name} is changing its owner"
            ) from error

    async def append_here(self, partition: PartitionLog, batch: bytes) -> None:
        """Append a batch to a partition of this broker; return once it is durable.

        Raises BatchCorrupt, RecordInvalid; RequestInvalid where a record has no named sequence, or
        the batch is compressed, transactional, or an idempotent producer's.
        """
        header = header_of(check_single(memoryview(batch)))
        if (
            header.attributes & (COMPRESSION_MASK | CONTROL | TRANSACTIONAL)
            or header.producer_id != NO_PRODUCER_ID
        ):
            raise RequestInvalid("copies are sent uncompressed and without a producer id")
        named = named_sequences_of(batch[HEADER_SIZE:], header)
        if len(named) != header.record_count:
            raise RequestInvalid("each copy carries a named sequence in its headers")
        await self._appends.append_own(partition, batch, named)


def _without_peers(broker_id: int) -> tuple[BrokerFact, QueuePeerCalls]:
    raise BrokerUnreachable(f"broker {broker_id} cannot be asked: this broker serves alone")
