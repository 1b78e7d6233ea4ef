"""Queues on other brokers, for brokers whose HTTP clients use a whole topic.

Invariants: uses Headrace's own APIs (`own_messages.jsonl`). Kafka's ShareFetch is not suitable: its
deliveries belong to a session that ends with its connection, and it has no lock times, delays,
reasons or results for single records. Connections are few, and separate from those of coordinators,
whose calls must not wait for a receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from headrace import errors
from headrace.broker.services.owner_calls import error_named
from headrace.broker.shares.hosted_shares import Pause
from headrace.broker.shares.queue_peers import QueuePosition, SeenPause
from headrace.broker.shares.share_receive import ATTEMPT, Received
from headrace.coordination.shares.commands import Acquired, ParkedKey
from headrace.errors import BrokerUnreachable, HeadraceError
from headrace.kafka import apis
from headrace.kafka.peers.client import TIMEOUT_S, PeerPool
from headrace.log.appended import NO_OFFSET, BatchPlace, RecordPlace
from headrace.records.batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.shares.queue_peers import Answered, MemberSettlements
    from headrace.broker.shares.share_receive import ReceiveRequest
    from headrace.kafka.peers.client import PeerAccess
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import BrokerFact

_T = TypeVar("_T")
VERSION: Final = 0
NO_TOPIC: Final = UUID(int=0)
CONNECTIONS_MAX: Final = 32
"""To one broker, for calls; as many again for waits."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
LEAVES_OTHERS, TAKES_FOLLOWERS, IS_ATTEMPT, REPETITION, TAKES_LITE = 0x01, 0x02, 0x04, 0x08, 0x10
"""Flags of QueueReceive: see Selection, ReceiveRequest. Do not change: on the wire between
versions."""
RECEIVE_BYTES_MAX: Final = 4 * 1024 * 1024
"""For the batches in one response, excluding the last one."""


class KafkaQueuePeers:
    """Implements `broker.shares.queue_peers.QueuePeerCalls`."""

    def __init__(self, way: PeerAccess) -> None:
        self._calling = PeerPool(way, CONNECTIONS_MAX, ANSWER_BYTES_MAX)
        self._waiting = PeerPool(way, CONNECTIONS_MAX, ANSWER_BYTES_MAX)

    def close(self) -> None:
        """Drop all connections."""
        self._calling.close()
        self._waiting.close()

    async def _call(
        self, broker: BrokerFact, api_key: int, body: Answer, timeout_s: float = TIMEOUT_S
    ) -> Any:
        pool = self._waiting if api_key == apis.QUEUE_WAIT else self._calling
        try:
            answer = await pool.to(broker).call(api_key, VERSION, body, timeout_s)
        except BrokerUnreachable as problem:
            raise BrokerUnreachable(
                f"broker {broker.id} cannot be asked, or has not answered whether it did this:"
                f" {problem}: try again"
            ) from problem
        error = _error(answer)
        if error is not None:
            raise error
        return answer

    async def receive(
        self, broker: BrokerFact, topic_id: UUID, asked: ReceiveRequest, ends: Mapping[int, int]
    ) -> Answered:
        """See QueuePeerCalls."""
        body = {
            "group_id": asked.group_id,
            "member_id": asked.member_id,
            "owner": asked.owner,
            "topic_id": topic_id,
            "max_records": asked.records_max,
            "max_bytes": min(asked.bytes_max, RECEIVE_BYTES_MAX),
            "lock_ms": asked.lock_ms,
            "partitions": [{"partition_index": one, "end": end} for one, end in ends.items()],
        }
        flags = TAKES_FOLLOWERS if asked.takes_followers else 0
        flags |= TAKES_LITE if asked.takes_lite else 0
        if asked.attempt:
            flags |= IS_ATTEMPT if asked.attempt == ATTEMPT else REPETITION
        selection = asked.selection
        if selection is not None:
            flags |= LEAVES_OTHERS if selection.leaves_others else 0
            body |= {"filter_tags": selection.tags, "filter_sql": selection.sql}
        body["flags"] = flags
        answer = await self._call(broker, apis.QUEUE_RECEIVE, body)
        return {part.partition_index: _received(part) for part in answer.partitions}

    async def wait(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        pauses: Mapping[int, SeenPause],
        timeout_s: float,
    ) -> None:
        """See QueuePeerCalls."""
        body = {
            "topic_id": topic_id,
            "timeout_ms": int(timeout_s * 1000),
            "partitions": [
                {
                    "partition_index": number,
                    "isolation": pause.isolation,
                    "readable_end": pause.readable_end,
                    "settled": pause.settled,
                    "wait_ms": pause.wait_ms,
                    "leader_epoch": leader_epoch,
                }
                for number, (pause, leader_epoch) in pauses.items()
            ],
        }
        await self._call(broker, apis.QUEUE_WAIT, body, timeout_s + TIMEOUT_S)

    async def settle(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        deliveries: Sequence[MemberSettlements],
    ) -> Sequence[Sequence[HeadraceError | None] | HeadraceError]:
        """See QueuePeerCalls."""
        body = {
            "group_id": group_id,
            "topic_id": topic_id,
            "deliveries": [
                {
                    "partition_index": partition,
                    "member_id": member_id,
                    "settlements": [
                        {
                            "first_offset": one.first,
                            "last_offset": one.last,
                            "kind": one.kind,
                            "delay_ms": one.delay_ms,
                            "reason": one.reason,
                        }
                        for one in settlements
                    ],
                }
                for partition, member_id, settlements in deliveries
            ],
        }
        answer = await self._call(broker, apis.QUEUE_SETTLE, body)
        if len(answer.deliveries) != len(deliveries):
            raise BrokerUnreachable("the response does not match the deliveries that were sent")
        return [
            _outcome(found, len(asked.settlements))
            for found, asked in zip(answer.deliveries, deliveries, strict=True)
        ]

    async def release(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        member_id: str,
        partitions: Sequence[int],
    ) -> None:
        """See QueuePeerCalls."""
        body = {
            "group_id": group_id,
            "member_id": member_id,
            "topic_id": topic_id,
            "partitions": list(partitions),
        }
        await self._call(broker, apis.QUEUE_RELEASE, body)

    async def describe(
        self, broker: BrokerFact, topic_id: UUID, group_id: str, partitions: Sequence[int]
    ) -> Mapping[int, QueuePosition | HeadraceError | None]:
        """See QueuePeerCalls."""
        body = {"group_id": group_id, "topic_id": topic_id, "partitions": list(partitions)}
        answer = await self._call(broker, apis.QUEUE_DESCRIBE, body)
        return _by_partition(answer, _position)

    async def list_parked(
        self, broker: BrokerFact, topic_id: UUID, group_id: str, partitions: Sequence[int]
    ) -> Mapping[int, Sequence[ParkedKey] | HeadraceError]:
        """See QueuePeerCalls. Repeats the request for partitions whose keys did not fit into one
        response."""
        found: dict[int, Sequence[ParkedKey] | HeadraceError] = {}
        left = list(partitions)
        while left:
            body = {"group_id": group_id, "topic_id": topic_id, "partitions": left}
            answer = await self._call(broker, apis.QUEUE_LIST_PARKED, body)
            found.update(_by_partition(answer, _parked))
            asked, left = left, [number for number in left if number not in found]
            if len(left) == len(asked):
                raise BrokerUnreachable("the response does not match the requested partitions")
        return found

    async def park(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        keys: Sequence[bytes],
        partitions: Sequence[int],
    ) -> Mapping[int, HeadraceError | None]:
        """See QueuePeerCalls."""
        body = _of_keys(topic_id, group_id, keys, partitions)
        answer = await self._call(broker, apis.QUEUE_PARK, body)
        return _by_partition(answer, lambda _part: None)

    async def unpark(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        group_id: str,
        keys: Sequence[bytes],
        partitions: Sequence[int],
    ) -> Mapping[int, Sequence[bytes] | HeadraceError]:
        """See QueuePeerCalls."""
        body = _of_keys(topic_id, group_id, keys, partitions)
        answer = await self._call(broker, apis.QUEUE_UNPARK, body)
        return _by_partition(
            answer,
            lambda part: [keys[place] for place in part.released if 0 <= place < len(keys)],
        )

    async def append(
        self,
        broker: BrokerFact,
        topic_id: UUID,
        partition: int,
        batch: bytes,
        *,
        are_copies: bool = False,
    ) -> BatchPlace:
        """See QueuePeerCalls."""
        body = {"topic_id": topic_id, "partition_index": partition, "batch": batch}
        if are_copies:
            await self._call(broker, apis.QUEUE_APPEND_COPIES, body)
            return BatchPlace(NO_OFFSET, NO_TIMESTAMP, NO_OFFSET)
        answer = await self._call(broker, apis.QUEUE_APPEND, body)
        records = None
        if answer.records is not None:
            records = [
                RecordPlace(one.offset, one.state, one.due_ms, one.timer) for one in answer.records
            ]
        return BatchPlace(answer.base_offset, answer.timestamp_ms, answer.log_start_offset, records)

    async def ask(
        self,
        broker: BrokerFact,
        operation: str,
        topic_id: UUID | None,
        partitions: Sequence[int],
        body: bytes,
        time_s: float = 0,
    ) -> Mapping[int, bytes | HeadraceError]:
        """See QueuePeerCalls."""
        asked = {
            "operation": operation,
            "topic_id": topic_id or NO_TOPIC,
            "partitions": list(partitions),
            "body": body,
        }
        answer = await self._call(broker, apis.QUEUE_ASK, asked, time_s + TIMEOUT_S)
        return _by_partition(answer, lambda part: bytes(part.body or b""))


def _of_keys(
    topic_id: UUID, group_id: str, keys: Sequence[bytes], partitions: Sequence[int]
) -> Answer:
    return {
        "group_id": group_id,
        "topic_id": topic_id,
        "keys": list(keys),
        "partitions": list(partitions),
    }


def _by_partition(answer: Any, read: Callable[[Any], _T]) -> dict[int, _T | HeadraceError]:
    """The result for each partition, or its error."""
    found: dict[int, _T | HeadraceError] = {}
    for part in answer.partitions:
        error = _error(part)
        found[part.partition_index] = read(part) if error is None else error
    return found


def _position(part: Any) -> QueuePosition | None:
    one = part.position
    if one is None:
        return None
    return QueuePosition(one.start_offset, one.end_offset, one.in_flight, one.archiving, one.lag)


def _parked(part: Any) -> Sequence[ParkedKey]:
    return [ParkedKey(bytes(one.key), one.parked_ms, one.records) for one in part.keys]


def _received(part: Any) -> Received | SeenPause | HeadraceError:
    error = _error(part)
    if error is not None:
        return error
    seen = part.pause
    if seen is not None:
        pause = Pause(seen.isolation, seen.readable_end, seen.settled, seen.wait_ms)
        return SeenPause(pause, seen.leader_epoch)
    acquired = [
        Acquired(one.first_offset, one.last_offset, one.deliveries) for one in part.acquired
    ]
    return Received(acquired, [bytes(batch.data) for batch in part.batches])


def _outcome(found: Any, count: int) -> Sequence[HeadraceError | None] | HeadraceError:
    error = _error(found)
    if error is not None:
        return error
    outcome: list[HeadraceError | None] = [None] * count
    for refused in found.refused:
        if not 0 <= refused.index < count:
            raise BrokerUnreachable("the response does not match the settlements that were sent")
        outcome[refused.index] = _error(refused)
    return outcome


def _error(answer: Any) -> HeadraceError | None:
    """The error that a response names by its class; unknown classes become retriable."""
    if answer.error_kind is None:
        return None
    kind = error_named(answer.error_kind)
    message = answer.error_message or "another broker returned an error"
    refused = getattr(answer, "record_errors", ())
    if refused and issubclass(kind, errors.RecordInvalid):
        return kind(message, record_errors=[(one.index, one.message) for one in refused])
    return kind(message)
