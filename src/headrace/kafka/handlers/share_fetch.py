"""ShareFetch and ShareAcknowledge: records of share groups, one by one (KIP-932).

Invariants: `broker/shares` decides what may be delivered; requests become settlements and receives,
and their results become responses. Acknowledgements of a request are processed before its records
are fetched, so records that they release can be fetched again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from headrace.broker.coordinators.group_config import group_value
from headrace.broker.coordinators.groups_configured import GROUP_ID_LENGTH_MAX
from headrace.broker.security.access import unauthorized
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.tenant_shares import Holder
from headrace.broker.services.fair_shares import user_of
from headrace.broker.services.long_poll import wait_for_records
from headrace.broker.shares.share_receive import Received, ReceiveRequest
from headrace.broker.shares.share_sessions import (
    CLOSE_EPOCH,
    OPEN_EPOCH,
    PartitionKey,
    ShareSession,
)
from headrace.coordination.quotas.entities import CONSUMER
from headrace.coordination.shares.commands import GAP, RENEW, Settlement
from headrace.coordination.shares.membership import MEMBER_ID_LENGTH_MAX
from headrace.errors import (
    GroupIdInvalid,
    GroupUnknown,
    HeadraceError,
    RecordStateInvalid,
    RequestInvalid,
    ShareSessionEpochInvalid,
    ShareSessionLimitReached,
    ShareSessionUnknown,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.leaders import leader_hint
from headrace.records.tenant_names import name_in, tenant_of
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.node import Node
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.topics.topic import Topic
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.leader_hints import LeaderHint
    from headrace.kafka.wire.schema import Answer

STRICT_MODE = 1
"""ShareAcquireMode RECORD_LIMIT (v2)."""
WAIT_MS_MAX = 5 * 60_000
RECORDS_MAX = 100_000
BYTES_MAX = 50 * 1024 * 1024
SETTLEMENTS_MAX = 200_000
"""Per request: each takes memory and time of the loop."""
PARTITIONS_AT_ONCE = 100
"""That are asked for records without giving others their turns."""
NO_TOPIC = UUID(int=0)

Acknowledgements = dict[PartitionKey, "list[Settlement] | HeadraceError"]


class _Outcome(NamedTuple):
    """One partition's part of a response."""

    error: HeadraceError | None = None
    acknowledge_error: HeadraceError | None = None
    received: Received | None = None


# --- requests --------------------------------------------------------------------------------


def _settlements(batches: Any, *, is_renewing: bool, count_max: int) -> list[Settlement]:
    """Kafka's acknowledgement batches: one type for a whole range, or one for each offset.

    Raises RequestInvalid.
    """
    found: list[Settlement] = []
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        count = last - first + 1
        if first < 0 or count < 1 or not types:
            raise RequestInvalid(f"an acknowledgement of offsets {first} to {last} is not valid")
        if len(types) > count_max or len(found) > count_max:
            raise RequestInvalid(
                f"more than {SETTLEMENTS_MAX} acknowledgements in one request: split it"
            )
        if len(types) not in {1, count}:
            raise RequestInvalid(f"{len(types)} types of acknowledgement for {count} offsets")
        if any(not GAP <= kind <= RENEW for kind in types):
            raise RequestInvalid("unknown acknowledgement type")
        if RENEW in types and not is_renewing:
            raise RequestInvalid("only a request with IsRenewAck can renew locks")
        if found and first <= found[-1].last:
            raise RequestInvalid("the acknowledgements of a partition must ascend")
        if len(types) == 1:
            found.append(Settlement(first, last, types[0]))
            continue
        for offset, kind in enumerate(types, start=first):
            if found and found[-1].last == offset - 1 and found[-1].kind == kind and offset > first:
                found[-1] = found[-1]._replace(last=offset)
            else:
                found.append(Settlement(offset, offset, kind))
    return found


def _acknowledgements(request: Any, version: int) -> Acknowledgements:
    is_renewing = version >= 2 and request.is_renew_ack
    found: Acknowledgements = {}
    left = SETTLEMENTS_MAX
    for topic in request.topics:
        for part in topic.partitions:
            if part.acknowledgement_batches:
                key = (topic.topic_id or NO_TOPIC, part.partition_index)
                batches = part.acknowledgement_batches
                try:
                    settlements = _settlements(batches, is_renewing=is_renewing, count_max=left)
                except RequestInvalid as error:
                    found[key] = error
                else:
                    found[key] = settlements
                    left -= len(settlements)
    return found


def _keys(topics: Any) -> list[PartitionKey]:
    return [
        (topic.topic_id or NO_TOPIC, part.partition_index)
        for topic in topics
        for part in topic.partitions
    ]


def _check_names(request: Any) -> None:
    if not request.group_id or len(name_in(request.group_id)) > GROUP_ID_LENGTH_MAX:
        raise GroupIdInvalid(f"a share group id must have 1 to {GROUP_ID_LENGTH_MAX} characters")
    if not request.member_id or len(request.member_id) > MEMBER_ID_LENGTH_MAX:
        raise RequestInvalid(f"a member id must have 1 to {MEMBER_ID_LENGTH_MAX} characters")


# --- processing ------------------------------------------------------------------------------


def _partition(node: Node, key: PartitionKey) -> tuple[Topic, int]:
    topic = node.services.topics.readable.get_by_id(key[0])
    topic.check_partition(key[1])
    return topic, key[1]


async def _acknowledge(
    node: Node, session: ShareSession, wanted: Acknowledgements
) -> dict[PartitionKey, HeadraceError | None]:
    """One error or None for each partition; a partition's settlements count as a whole."""

    async def one(key: PartitionKey) -> HeadraceError | None:
        settlements = wanted[key]
        if isinstance(settlements, HeadraceError):
            return settlements
        try:
            topic, number = _partition(node, key)
            errors = await node.services.shares.settle(
                topic, number, session.group_id, session.member_id, settlements, is_atomic=True
            )
        except GroupUnknown:
            return RecordStateInvalid("no record of this partition was delivered to the group")
        except HeadraceError as error:
            return error
        return next((error for error in errors if error is not None), None)

    keys = list(wanted)
    return dict(zip(keys, await gather_charged(map(one, keys)), strict=True))


async def _receive_all(
    node: Node, session: ShareSession, request: Any, client: ClientSession, *, is_strict: bool
) -> tuple[dict[PartitionKey, _Outcome], list[tuple[PartitionKey, Pause]]]:
    """(the records of each partition, (partition, pause) of those without records)."""
    outcomes: dict[PartitionKey, _Outcome] = {}
    waiting: list[tuple[PartitionKey, Pause]] = []
    records_left = min(max(request.max_records, 1), RECORDS_MAX)
    bytes_left = max(request.max_bytes, 1)
    for number_asked, key in enumerate(list(session.partitions)):
        if number_asked % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
            await asyncio.sleep(0)  # others have their turns
        if records_left <= 0 or bytes_left <= 0 or session.has_ended:
            break
        asked = ReceiveRequest(
            session.group_id, session.member_id, records_left, bytes_left, is_strict=is_strict
        )
        try:
            topic, number = _partition(node, key)
            # A session outlives the rights with which its partitions were added.
            if not node.services.authorizer.allows(
                client, Operation.READ, ResourceType.TOPIC, topic.name
            ):
                raise unauthorized(client, Operation.READ, ResourceType.TOPIC, topic.name)
            received = await node.services.shares.receive(topic, number, asked)
        except HeadraceError as error:
            outcomes[key] = _Outcome(error)
            continue
        if received.pause is not None:
            waiting.append((key, received.pause))
            continue
        outcomes[key] = _Outcome(received=received)
        records_left -= sum(item.last - item.first + 1 for item in received.acquired)
        bytes_left -= sum(map(len, received.batches))
        session.served(key)
    return outcomes, waiting


async def _wait_for_any(
    node: Node,
    session: ShareSession,
    waiting: Sequence[tuple[PartitionKey, Pause]],
    timeout_s: float,
) -> None:
    """Wait until a partition may have records, the session ends, or the time is over.

    Raises TopicUnknown.
    """
    partitions = [(*_partition(node, key), pause) for key, pause in waiting]
    await wait_for_records(node.services.shares, partitions, timeout_s, session.waiters)


async def _fetch(
    node: Node, session: ShareSession, request: Any, context: Context
) -> dict[PartitionKey, _Outcome]:
    """Available records, or those that arrive before the request's time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _wait_s(request)
    is_strict = context.version >= 2 and request.share_acquire_mode == STRICT_MODE
    while True:
        outcomes, waiting = await _receive_all(
            node, session, request, context.session, is_strict=is_strict
        )
        if session.has_ended:
            # Its records were released when it ended; release those acquired since.
            await node.services.share_members.release(session)
            raise ShareSessionUnknown(
                "the share session has ended: open a new session with epoch 0"
            )
        left_s = deadline - loop.time()
        if outcomes or not waiting or left_s <= 0:
            return outcomes
        try:
            await _wait_for_any(node, session, waiting, left_s)
        except HeadraceError:  # a partition was deleted meanwhile: the next read returns the error
            continue


def _wait_s(request: Any) -> float:
    wait_ms: int = request.max_wait_ms
    return min(max(wait_ms, 0), WAIT_MS_MAX) / 1000


def _check_renewal(request: Any) -> None:
    asked = (request.max_wait_ms, request.min_bytes, request.max_bytes)
    if any(asked) or request.max_records:
        raise RequestInvalid("a request that renews locks cannot fetch: set its limits to 0")


async def _open(node: Node, request: Any, context: Context) -> ShareSession:
    """A new session. Raises ShareSessionLimitReached."""
    groups = node.services.share_members
    holder = Holder(tenant_of(request.group_id), user_of(context.session))
    session, former = groups.sessions.open(
        request.group_id, request.member_id, context.connection, holder
    )
    if former is not None:
        await groups.release(former)
    return session


async def _share_fetch(node: Node, request: Any, context: Context) -> dict[PartitionKey, _Outcome]:
    """Raises the error that refuses the request as a whole."""
    _check_names(request)
    epoch, wanted = request.share_session_epoch, _acknowledgements(request, context.version)
    groups = node.services.share_members
    is_renewing = context.version >= 2 and request.is_renew_ack
    if is_renewing:
        _check_renewal(request)
    if epoch == OPEN_EPOCH:
        if wanted:
            raise RequestInvalid("a request that opens a share session cannot acknowledge records")
        session = await _open(node, request, context)
    else:
        session = groups.sessions.resume(request.group_id, request.member_id, epoch)
    forgotten = [
        (topic.topic_id or NO_TOPIC, number)
        for topic in request.forgotten_topics_data
        for number in topic.partitions
    ]
    # Acknowledged first: with too many partitions the request is refused, and the session that its
    # client opens then cannot acknowledge what this one has delivered.
    errors = await _acknowledge(node, session, wanted)
    groups.sessions.update(session, _keys(request.topics), forgotten)
    if forgotten and node.services.queues.terms(request.group_id).config.is_sticky:
        await groups.release_partitions(session, forgotten)
    outcomes: dict[PartitionKey, _Outcome] = {}
    request.max_bytes = context.grant(min(request.max_bytes, BYTES_MAX))
    burst = node.services.quotas.burst(context.session, CONSUMER)
    if burst is not None:
        request.max_bytes = min(request.max_bytes, burst)
    # A client in debt may acknowledge, and gets no records until its throttle time is over.
    if epoch == CLOSE_EPOCH:
        groups.sessions.close(request.group_id, request.member_id)
        await groups.release(session)
    elif not is_renewing and not node.services.quotas.take(context.session, CONSUMER, 0):
        outcomes = await _fetch(node, session, request, context)
    for key, error in errors.items():
        outcomes[key] = outcomes.get(key, _Outcome())._replace(acknowledge_error=error)
    return outcomes


# --- responses -------------------------------------------------------------------------------


def _hint(
    node: Node, context: Context, key: PartitionKey, error: HeadraceError | None
) -> LeaderHint | None:
    if error is None:
        return None
    listener = context.session.listener
    return leader_hint(node.services, (key[0].bytes, key[1]), error, listener, is_id=True)


def _endpoints(hints: Sequence[LeaderHint | None]) -> list[dict[str, Any]]:
    known = {hint.broker_id: hint for hint in hints if hint is not None}
    return [
        {"node_id": hint.broker_id, "host": hint.host, "port": hint.port, "rack": hint.rack}
        for hint in known.values()
    ]


def _grouped(parts: Mapping[PartitionKey, dict[str, Any]]) -> list[dict[str, Any]]:
    topics: dict[Any, list[dict[str, Any]]] = {}
    for (topic_id, _number), part in parts.items():
        topics.setdefault(topic_id, []).append(part)
    return [{"topic_id": topic_id, "partitions": items} for topic_id, items in topics.items()]


def _leader(hint: LeaderHint | None) -> dict[str, int]:
    if hint is None:
        return {"leader_id": -1, "leader_epoch": -1}
    return {"leader_id": hint.broker_id, "leader_epoch": hint.leader_epoch}


def _lock_ms(node: Node, group_id: str | None) -> int:
    overrides = node.services.configurations.overrides_of_group(group_id or "")
    return int(group_value(overrides, "share.record.lock.duration.ms"))


async def share_fetch(node: Node, request: Any, context: Context) -> Answer:
    """ShareFetch."""
    try:
        outcomes = await _share_fetch(node, request, context)
    except ShareSessionLimitReached as error:
        await asyncio.sleep(_wait_s(request))  # the client would retry at once
        return _refused(error)
    except HeadraceError as error:
        return _refused(error)
    hints = {key: _hint(node, context, key, outcome.error) for key, outcome in outcomes.items()}
    parts = {
        key: {
            "partition_index": key[1],
            "error_code": code_of(outcome.error),
            "error_message": message_of(outcome.error),
            "acknowledge_error_code": code_of(outcome.acknowledge_error),
            "acknowledge_error_message": message_of(outcome.acknowledge_error),
            "current_leader": _leader(hints[key]),
            "records": b"".join(outcome.received.batches) if outcome.received else b"",
            "acquired_records": [
                {"first_offset": first, "last_offset": last, "delivery_count": deliveries}
                for first, last, deliveries in (
                    outcome.received.acquired if outcome.received else ()
                )
            ],
        }
        for key, outcome in outcomes.items()
    }
    size = sum(
        len(data)
        for outcome in outcomes.values()
        if outcome.received
        for data in outcome.received.batches
    )
    return {
        "throttle_time_ms": node.services.quotas.take(context.session, CONSUMER, size),
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout_ms": _lock_ms(node, request.group_id),
        "responses": _grouped(parts),
        "node_endpoints": _endpoints(list(hints.values())),
    }


async def share_acknowledge(node: Node, request: Any, context: Context) -> Answer:
    """ShareAcknowledge: settle without fetching."""
    try:
        _check_names(request)
        epoch = request.share_session_epoch
        if epoch == OPEN_EPOCH:
            raise ShareSessionEpochInvalid(
                "acknowledgements require an open session: send epoch 0 in ShareFetch first"
            )
        session = node.services.share_members.sessions.resume(
            request.group_id, request.member_id, epoch
        )
        errors = await _acknowledge(node, session, _acknowledgements(request, context.version))
        if epoch == CLOSE_EPOCH:
            node.services.share_members.sessions.close(request.group_id, request.member_id)
            await node.services.share_members.release(session)
    except HeadraceError as error:
        return _refused(error)
    hints = {key: _hint(node, context, key, error) for key, error in errors.items()}
    parts = {
        key: {
            "partition_index": key[1],
            "error_code": code_of(error),
            "error_message": message_of(error),
            "current_leader": _leader(hints[key]),
        }
        for key, error in errors.items()
    }
    return {
        "error_code": 0,
        "error_message": None,
        "acquisition_lock_timeout_ms": _lock_ms(node, request.group_id),
        "responses": _grouped(parts),
        "node_endpoints": _endpoints(list(hints.values())),
    }


def _refused(error: HeadraceError) -> Answer:
    return {
        "error_code": code_of(error),
        "error_message": message_of(error),
        "acquisition_lock_timeout_ms": 0,
        "responses": [],
        "node_endpoints": [],
    }


HANDLERS: dict[int, Handler] = {
    apis.SHARE_FETCH: share_fetch,
    apis.SHARE_ACKNOWLEDGE: share_acknowledge,
}
