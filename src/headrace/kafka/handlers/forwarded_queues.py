"""Requests of other brokers for their clients: QueueReceive, -Wait, -Settle, -Release, -Describe,
-ListParked, -Park, -Unpark, -Append and -Ask.

Invariants: Headrace's own APIs, sent to the owner of the partitions. The rules are in
`broker/shares`; requests become its calls. Records acquired for a broker whose connection has ended
meanwhile are released, without counting as a delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.coordinators.groups_configured import GROUP_ID_LENGTH_MAX
from headrace.broker.services.long_poll import wait_for_records
from headrace.broker.services.queue_service import KEY_BYTES_MAX, KEYS_MAX
from headrace.broker.shares.hosted_shares import Pause
from headrace.broker.shares.share_reads import Selection, filters_of
from headrace.broker.shares.share_receive import (
    ATTEMPT,
    NO_ATTEMPT,
    REPETITION_ONLY,
    ReceiveRequest,
)
from headrace.coordination.shares.commands import UNDELIVERED, Settlement
from headrace.coordination.shares.membership import MEMBER_ID_LENGTH_MAX
from headrace.errors import GroupIdInvalid, GroupUnknown, HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.error_codes import message_of
from headrace.kafka.peers.queue_calls import (
    IS_ATTEMPT,
    LEAVES_OTHERS,
    REPETITION,
    TAKES_FOLLOWERS,
    TAKES_LITE,
)
from headrace.records.tenant_names import name_in
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.node import Node
    from headrace.broker.shares.share_receive import Received
    from headrace.broker.topics.topic import Topic
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

RECORDS_MAX: Final = 1_000
BYTES_MAX: Final = 16 * 1024 * 1024
WAIT_MS_MAX: Final = 60_000
OWNER_LENGTH_MAX: Final = 1_000
LISTED_BYTES_MAX: Final = 16 * 1024 * 1024
"""For the parked keys in one response, excluding those of the last partition."""


def _error(error: HeadraceError | None) -> dict[str, str | None]:
    if error is None:
        return {}
    return {"error_kind": type(error).__name__, "error_message": message_of(error)}


def _check_group(request: Any) -> None:
    """Raises GroupIdInvalid."""
    if not 0 < len(name_in(request.group_id)) <= GROUP_ID_LENGTH_MAX:
        raise GroupIdInvalid(f"a share group id must have 1 to {GROUP_ID_LENGTH_MAX} characters")


def _check_names(request: Any) -> None:
    """Raises GroupIdInvalid, RequestInvalid."""
    _check_group(request)
    if not 0 < len(request.member_id) <= MEMBER_ID_LENGTH_MAX:
        raise RequestInvalid(f"a member id must have 1 to {MEMBER_ID_LENGTH_MAX} characters")


# --- receive ---------------------------------------------------------------------------------


async def queue_receive(node: Node, request: Any, context: Context) -> Answer:
    """QueueReceive: begin the group, and acquire available records."""
    try:
        _check_names(request)
        if len(request.owner) > OWNER_LENGTH_MAX:
            raise RequestInvalid(f"a consumer name can have at most {OWNER_LENGTH_MAX} characters")
        filters_of(_selection(request))
        numbers = [one.partition_index for one in request.partitions]
        topic = await node.services.topics.of_another(request.topic_id, numbers)
    except HeadraceError as error:
        return {**_error(error), "partitions": []}
    received: dict[int, Received] = {}
    parts = await _parts(node, topic, request, received)
    connection = context.connection
    is_gone = isinstance(connection, KafkaConnection) and connection.transport is None
    if is_gone and not _attempt(request):
        await _give_back(node, topic, request, received)
    return {"partitions": parts}


def _selection(request: Any) -> Selection:
    """The records that are wanted; all, if it says nothing."""
    leaves_others = bool(request.flags & LEAVES_OTHERS)
    return Selection(request.filter_tags, request.filter_sql, leaves_others)


def _attempt(request: Any) -> int:
    if request.flags & REPETITION:
        return REPETITION_ONLY
    return ATTEMPT if request.flags & IS_ATTEMPT else NO_ATTEMPT


async def _parts(
    node: Node, topic: Topic, request: Any, taken: dict[int, Received]
) -> list[dict[str, Any]]:
    """The partitions of the response; acquired records are added to `taken` as well."""
    records_left = min(request.max_records, RECORDS_MAX)
    bytes_left = min(request.max_bytes, BYTES_MAX)
    parts: list[dict[str, Any]] = []
    for one in request.partitions:
        number = one.partition_index
        try:
            takes_lite = bool(request.flags & TAKES_LITE)
            await node.services.shares.begin(topic, number, request.group_id, takes_lite=takes_lite)
            if records_left <= 0 or bytes_left <= 0:
                continue
            asked = ReceiveRequest(
                request.group_id, request.member_id, records_left, bytes_left, True,
                request.lock_ms, one.end, request.owner, _selection(request),
                bool(request.flags & TAKES_FOLLOWERS), _attempt(request),
                takes_lite,
            )  # fmt: skip
            received = await node.services.shares.receive(topic, number, asked)
        except HeadraceError as error:
            empty: dict[str, Any] = {"batches": [], "acquired": []}
            parts.append({"partition_index": number, **_error(error), **empty})
            continue
        if received.pause is None:
            taken[number] = received
            records_left -= sum(item.last - item.first + 1 for item in received.acquired)
            bytes_left -= sum(map(len, received.batches))
        parts.append(_part(topic, number, received))
    return parts


def _part(topic: Topic, number: int, received: Received) -> dict[str, Any]:
    pause = received.pause
    return {
        "partition_index": number,
        "pause": None if pause is None else {
            "isolation": pause.isolation,
            "readable_end": pause.readable_end,
            "settled": pause.settled,
            "wait_ms": pause.wait_ms,
            "leader_epoch": topic.require_log(number).leader_epoch,
        },
        "batches": [{"data": batch} for batch in received.batches],
        "acquired": [
            {"first_offset": first, "last_offset": last, "deliveries": deliveries}
            for first, last, deliveries in received.acquired
        ],
    }  # fmt: skip


async def _give_back(node: Node, topic: Topic, request: Any, received: dict[int, Received]) -> None:
    for number, one in received.items():
        settlements = [Settlement(item.first, item.last, UNDELIVERED) for item in one.acquired]
        names = request.group_id, request.member_id
        await node.services.shares.settle(topic, number, *names, settlements, is_atomic=False)


# --- waits -----------------------------------------------------------------------------------


async def queue_wait(node: Node, request: Any, _context: Context) -> Answer:
    """QueueWait: wait until there may be more than an earlier receive saw."""
    try:
        numbers = [one.partition_index for one in request.partitions]
        topic = await node.services.topics.of_another(request.topic_id, numbers)
        waiting = []
        for one in request.partitions:
            if topic.require_log(one.partition_index).leader_epoch != one.leader_epoch:
                return {}  # the pause belongs to another tenure
            pause = Pause(one.isolation, one.readable_end, one.settled, one.wait_ms)
            waiting.append((topic, one.partition_index, pause))
    except HeadraceError as error:
        return _error(error)
    timeout_ms = min(max(request.timeout_ms, 0), WAIT_MS_MAX)
    await wait_for_records(node.services.shares, waiting, timeout_ms / 1000)
    return {}


# --- settle ----------------------------------------------------------------------------------


async def queue_settle(node: Node, request: Any, _context: Context) -> Answer:
    """QueueSettle: members' settlements; each one is independent."""
    try:
        _check_group(request)
        topic = await node.services.topics.of_another(request.topic_id, ())
    except HeadraceError as error:
        return {**_error(error), "deliveries": []}

    async def one(delivery: Any) -> dict[str, Any]:
        settlements = [
            Settlement(item.first_offset, item.last_offset, item.kind, item.delay_ms, item.reason)
            for item in delivery.settlements
        ]
        try:
            topic.check_partition(delivery.partition_index)
            errors = await node.services.shares.settle(
                *(topic, delivery.partition_index, request.group_id, delivery.member_id),
                settlements,
                is_atomic=False,
            )
        except HeadraceError as error:
            return {**_error(error), "refused": []}
        refused = [
            {"index": index, **_error(error)}
            for index, error in enumerate(errors)
            if error is not None
        ]
        return {"refused": refused}

    return {"deliveries": await gather_charged(map(one, request.deliveries))}


async def queue_release(node: Node, request: Any, _context: Context) -> Answer:
    """QueueRelease: make the records that a member holds available again."""
    failed: HeadraceError | None = None
    try:
        _check_names(request)
        topic = await node.services.topics.of_another(request.topic_id, request.partitions)
        for number in request.partitions:
            try:
                await node.services.shares.release(
                    topic, number, request.group_id, request.member_id
                )
            except GroupUnknown:
                continue  # no record was ever delivered there
            except HeadraceError as error:
                failed = error
    except HeadraceError as error:
        failed = error
    return _error(failed)


# --- administration --------------------------------------------------------------------------


async def _each(
    node: Node,
    request: Any,
    ask: Callable[[Topic, int], Awaitable[dict[str, Any]]],
    empty: dict[str, Any],
) -> dict[str, Any]:
    """The result for each partition, in order; `empty`: the fields besides its error."""
    try:
        _check_group(request)
        topic = await node.services.topics.of_another(request.topic_id, request.partitions)
    except HeadraceError as error:
        return {**_error(error), "partitions": []}
    parts: list[dict[str, Any]] = []
    for number in dict.fromkeys(request.partitions):
        try:
            said = await ask(topic, number)
        except HeadraceError as error:
            said = {**_error(error), **empty}
        parts.append({"partition_index": number, **said})
    return {"partitions": parts}


async def queue_describe(node: Node, request: Any, _context: Context) -> Answer:
    """QueueDescribe: a group's positions."""

    async def one(topic: Topic, number: int) -> dict[str, Any]:
        found = await node.services.queues.describe_here(topic, number, request.group_id)
        return {"position": None if found is None else found._asdict()}

    return await _each(node, request, one, {})


async def queue_list_parked(node: Node, request: Any, _context: Context) -> Answer:
    """QueueListParked: the parked keys; partitions that do not fit into the response are
    omitted."""
    bytes_left = LISTED_BYTES_MAX

    async def one(topic: Topic, number: int) -> dict[str, Any]:
        nonlocal bytes_left
        if bytes_left <= 0:
            return {}
        found = await node.services.queues.list_parked_here(topic, number, request.group_id)
        bytes_left -= sum(len(item.key) for item in found)
        return {
            "keys": [
                {"key": item.key, "parked_ms": item.at_ms, "records": item.records}
                for item in found
            ]
        }

    answer = await _each(node, request, one, {"keys": []})
    answer["partitions"] = [part for part in answer["partitions"] if "keys" in part]
    return answer


def _check_keys(request: Any) -> None:
    """Raises RequestInvalid."""
    if len(request.keys) > KEYS_MAX or max(map(len, request.keys), default=0) > KEY_BYTES_MAX:
        raise RequestInvalid(
            f"a request can have at most {KEYS_MAX} keys of at most {KEY_BYTES_MAX} bytes"
        )


async def queue_park(node: Node, request: Any, _context: Context) -> Answer:
    """QueuePark: park the records of keys."""

    async def one(topic: Topic, number: int) -> dict[str, Any]:
        _check_keys(request)
        keys = [bytes(key) for key in request.keys]
        await node.services.queues.park_here(topic, number, request.group_id, keys)
        return {}

    return await _each(node, request, one, {})


async def queue_unpark(node: Node, request: Any, _context: Context) -> Answer:
    """QueueUnpark: release the records of keys; returns the indexes of those that were parked."""

    async def one(topic: Topic, number: int) -> dict[str, Any]:
        _check_keys(request)
        keys = [bytes(key) for key in request.keys]
        released = {*await node.services.queues.unpark_here(topic, number, request.group_id, keys)}
        return {"released": [place for place, key in enumerate(keys) if key in released]}

    return await _each(node, request, one, {"released": []})


# --- copies ----------------------------------------------------------------------------------


async def queue_append_copies(node: Node, request: Any, _context: Context) -> Answer:
    """QueueAppendCopies: append dead letters of another broker's partitions."""
    try:
        number = request.partition_index
        topic = await node.services.topics.of_another(request.topic_id, [number])
        batch, sends = bytes(request.batch or b""), node.services.sends
        await sends.append_here(topic, number, batch, are_copies=True)
    except HeadraceError as error:
        return _error(error)
    return {}


# --- clients of other brokers ----------------------------------------------------------------


async def queue_append(node: Node, request: Any, _context: Context) -> Answer:
    """QueueAppend: append a batch of another broker's client."""
    empty: Answer = {
        "record_errors": [], "base_offset": -1, "timestamp_ms": -1, "log_start_offset": -1,
        "records": None,
    }  # fmt: skip
    try:
        topic = await node.services.topics.of_another(request.topic_id, [request.partition_index])
        batch = bytes(request.batch or b"")
        placed = await node.services.sends.append_here(topic, request.partition_index, batch)
    except HeadraceError as error:
        refused = error.fields.get("record_errors", ())
        errors = [{"index": index, "message": message} for index, message in refused]
        return {**empty, **_error(error), "record_errors": errors}
    answer = {**empty, **placed._asdict()}
    if placed.records is not None:
        answer["records"] = [one._asdict() for one in placed.records]
    return answer


async def queue_ask(node: Node, request: Any, _context: Context) -> Answer:
    """QueueAsk: an operation of `OwnerCalls` on partitions of this broker, or on what it hosts."""
    body, name = bytes(request.body or b""), request.operation
    topic: Topic | None = None
    numbers = list(dict.fromkeys(request.partitions))
    try:
        if request.topic_id is not None:  # how zeros are read
            topic = await node.services.topics.of_another(request.topic_id, numbers)
        else:
            numbers = [-1]
    except HeadraceError as error:
        return {**_error(error), "partitions": []}

    async def one(number: int) -> dict[str, Any]:
        try:
            answer = await node.services.calls.carry_out(name, topic, number, body)
        except HeadraceError as error:
            return {"partition_index": number, **_error(error)}
        return {"partition_index": number, "body": answer}

    return {"partitions": [await one(number) for number in numbers]}


HANDLERS: dict[int, Handler] = {
    apis.QUEUE_RECEIVE: queue_receive,
    apis.QUEUE_WAIT: queue_wait,
    apis.QUEUE_SETTLE: queue_settle,
    apis.QUEUE_RELEASE: queue_release,
    apis.QUEUE_DESCRIBE: queue_describe,
    apis.QUEUE_LIST_PARKED: queue_list_parked,
    apis.QUEUE_PARK: queue_park,
    apis.QUEUE_UNPARK: queue_unpark,
    apis.QUEUE_APPEND_COPIES: queue_append_copies,
    apis.QUEUE_APPEND: queue_append,
    apis.QUEUE_ASK: queue_ask,
}
