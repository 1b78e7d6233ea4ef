"""Messages that consumers receive, and what becomes of them.

Invariants: the same engine as Kafka's share groups and HTTP's queues (`services/queue_service`), so
all of them can consume one group. A receive takes messages of all partitions of the topic,
whichever queue it names. What cannot be sent to the client is given back without counting as a
delivery. To settle a delivery twice in the same way succeeds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.services.queue_receipts import ReceiptSettlements, receipt_text
from headrace.broker.shares.share_reads import Selection, filters_of
from headrace.broker.shares.share_receive import ATTEMPT, NO_ATTEMPT, ReceiveRequest
from headrace.coordination.quotas.entities import CONSUMER, REQUEST
from headrace.coordination.shares.commands import ACCEPT, REJECT, RENEW
from headrace.errors import ConfigInvalid, DeliverySettled, HeadraceError, RecordInvalid
from headrace.records.attributes import PRIORITY_DEFAULT, priority
from headrace.rocketmq import codes, wire
from headrace.rocketmq.clients import LOCK_MS
from headrace.rocketmq.codes import Refused, set_status
from headrace.rocketmq.handles import member_id
from headrace.rocketmq.lite import lite_client
from headrace.rocketmq.names import resource_of
from headrace.rocketmq.routes import ACCEPTED
from headrace.rocketmq.sending import set_common_status
from headrace.rocketmq.shown_messages import delivery, response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.queue_receive import QueueReceive
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.grpc.service import Call
    from headrace.records.codec import Record
    from headrace.rocketmq.caller import Caller
    from headrace.rocketmq.clients import Clients
    from headrace.rocketmq.groups import RocketGroups
    from headrace.rocketmq.lite import LiteConsumers
    from headrace.rocketmq.sending import Ended

MESSAGES_MAX: Final = 1_000
READ: Final = Operation.READ
BYTES_MAX: Final = 8 * 1024 * 1024
ATTEMPT_ID_LENGTH_MAX: Final = 255
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
POLL_S_MAX: Final = 120.0
POLL_MARGIN_S_MIN: Final = 0.3
POLL_MARGIN_PART: Final = 1 / 20
"""Of the time that the client's deadline leaves, for the way of the answer: the deadline of clients
for Rust is the time that they ask to wait for."""
ACK: Final = wire.response_of("AckMessage")
REASON: Final = "forwarded by the consumer"
_Shown = tuple[str, bytes, int]
"""(receipt, response, priority) of a message that is received."""


class Receiving:
    """ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

    def __init__(
        self, services: Services, groups: RocketGroups, clients: Clients, lite: LiteConsumers
    ) -> None:
        self._services = services
        self._queues = services.queues
        self._groups = groups
        self._clients = clients
        self._lite = lite

    async def receive(self, caller: Caller, request: Any, response_of: Callable[..., Any]) -> None:
        """Wait for messages, and stream them."""
        quotas = self._services.quotas
        if quotas.is_active:
            quotas.check(caller.session, CONSUMER, REQUEST)
        client = self._clients.seen(caller)
        resource = resource_of(request.message_queue.topic)
        topic = await caller.topic(resource)
        group_id = caller.group_id(request.group)
        if client.is_lite:
            self._lite.check_topic(topic)
        await self._groups.ensure(group_id, is_lite=client.is_lite)
        self._lite.check_group(client, group_id)
        lock_ms = LOCK_MS if request.auto_renew else _invisible_ms(request)
        wait_s = poll_s(caller, request, client.poll_ms)
        is_repeatable = 0 < len(request.attempt_id) <= ATTEMPT_ID_LENGTH_MAX
        member = self._queues.new_member()
        if is_repeatable:
            attempt = f"{caller.key}\n{request.attempt_id}"  # nobody repeats another one's
            member = self._queues.member_of_attempt(group_id, attempt)
        count = min(max(request.batch_size, 1), MESSAGES_MAX)
        asked = ReceiveRequest(group_id, member_id(member), count, BYTES_MAX, True, lock_ms)
        asked.attempt = ATTEMPT if is_repeatable else NO_ATTEMPT
        # Clients of such groups consume the messages of a message group one after another.
        asked.takes_followers = self._groups.is_fifo(group_id)
        asked.selection = selection_of(request.filter_expression)
        asked.owner = f"rocketmq:{caller.client_id}"
        if client.is_lite:
            asked.takes_lite, asked.owner = True, lite_client(caller.key)
        is_renewed = request.auto_renew
        del request  # may be large, and this may wait for long
        caller.drop_request()
        accepted = ACCEPTED[self._services.topics.message_type(topic)]
        # In order, a message waits for earlier ones of its key, regardless of priority.
        is_ranked = wire.PRIORITY in accepted and not asked.takes_followers
        show = _show(topic, resource, member, lock_ms, is_ranked=is_ranked)
        receiving = await self._queues.receive(topic, asked, show, caller, wait_s)
        if is_ranked:
            receiving.messages.sort(key=lambda shown: -shown[2])
        receipts = [receipt for receipt, *_ in receiving.messages]
        is_delivered = False
        try:
            caller.check_term()
            caller.require_still(
                [(READ, ResourceType.GROUP, group_id), (READ, ResourceType.TOPIC, topic.name)]
            )
            if is_renewed:
                self._clients.hold(client, topic.name, group_id, receipts)
            sent = await _deliver(caller.call, receiving, response_of)
            is_delivered = not caller.has_gone()
        finally:
            if not is_delivered:
                self._clients.release(client, receipts)
                receiving.give_back()
        if quotas.is_active:
            quotas.take(caller.session, CONSUMER, sent)

    # --- settling ----------------------------------------------------------------------------

    def start_acknowledge(self, caller: Caller, request: Any, ended: Ended) -> bool:
        """Begin to acknowledge messages. Returns False if the topic is not known here, so that it
        has to be looked up first, or one of them is being renewed. Raises Refused."""
        asked = _acknowledged(request)
        topic, group_id = caller.known_topic(request.topic), caller.group_id(request.group)
        if topic is None or not self._clients.drop_at_once(caller.key, asked.receipts):
            return False
        ids = [(one.message_id, one.receipt_handle) for one in request.entries]

        def settled(errors: Sequence[HeadraceError | None] | Exception) -> None:
            try:
                if isinstance(errors, Exception):
                    raise errors
                response = _fill(ACK(), caller, ids, errors)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client waits
                ended(error)
            else:
                ended(response)

        self._queues.settle_soon(topic, group_id, asked, member_id, settled)
        return True

    async def acknowledge(self, caller: Caller, request: Any, response: Any) -> None:
        """Acknowledge messages as `start_acknowledge`, which could not begin at once."""
        asked = _acknowledged(request)
        errors = await self._settle(caller, request, asked)
        ids = [(one.message_id, one.receipt_handle) for one in request.entries]
        _fill(response, caller, ids, errors)

    async def change_invisible(self, caller: Caller, request: Any, response: Any) -> None:
        """Set when a message is delivered again unless it is settled before."""
        delay_ms = wire.ms_of(request.invisible_duration)
        if not 0 <= delay_ms <= INVISIBLE_MS_MAX:
            raise _illegal_invisible(0)
        await self._settle_one(caller, request, RENEW, max(delay_ms, 1))
        response.receipt_handle = request.receipt_handle

    async def forward(self, caller: Caller, request: Any, response: Any) -> None:
        """Give a message up: it becomes a dead letter."""
        await self._settle_one(caller, request, REJECT, -1, REASON)

    async def _settle_one(
        self, caller: Caller, request: Any, kind: int, delay_ms: int, reason: str = ""
    ) -> None:
        asked = ReceiptSettlements()
        asked.add(request.receipt_handle, kind, delay_ms, reason)
        asked.finish()
        (error,) = await self._settle(caller, request, asked)
        if error is not None:
            raise error

    async def _settle(
        self, caller: Caller, request: Any, asked: ReceiptSettlements
    ) -> Sequence[HeadraceError | None]:
        topic = await caller.topic(request.topic)
        group_id = caller.group_id(request.group)
        await self._clients.drop(caller.key, asked.receipts)
        errors = await self._queues.settle(topic, group_id, asked, member_id)
        return [_again_is_ok(one) for one in errors]


def _again_is_ok(error: HeadraceError | None) -> HeadraceError | None:
    return None if isinstance(error, DeliverySettled) else error


def _acknowledged(request: Any) -> ReceiptSettlements:
    """What an AckMessageRequest settles. Raises Refused."""
    if not request.entries:
        raise Refused(codes.BAD_REQUEST, "there is nothing to acknowledge")
    if len(request.entries) > MESSAGES_MAX:
        raise Refused(
            codes.BAD_REQUEST,
            f"the request has {len(request.entries)} receipts: acknowledge at most"
            f" {MESSAGES_MAX} at once",
        )
    asked = ReceiptSettlements()
    for entry in request.entries:
        asked.add(entry.receipt_handle, ACCEPT)
    asked.finish()
    return asked


def _fill(
    response: Any,
    caller: Caller,
    ids: Sequence[tuple[str, str]],
    errors: Sequence[HeadraceError | None],
) -> Any:
    """The response with the result of each acknowledgement."""
    for (message_id, receipt), error in zip(ids, errors, strict=True):
        answer = response.entries.add(message_id=message_id, receipt_handle=receipt)
        set_status(answer.status, _again_is_ok(error), caller.view)
    set_common_status(response.status, response.entries)
    return response


async def _deliver(
    call: Call, receiving: QueueReceive[_Shown], response_of: Callable[..., Any]
) -> int:
    """Stream what was received as fast as the client reads it, and finish the call; returns the
    bytes of the messages. What the client has not read when it goes cancels the call."""
    status = response_of()
    if receiving.messages:
        set_status(status.status, None)
    else:
        status.status.code = codes.MESSAGE_NOT_FOUND
        status.status.message = "there are no messages for the group now"
    call.send(status.SerializeToString())
    messages = [data for _receipt, data, _priority in receiving.messages]
    receiving.messages.clear()
    sent = await send_as_read(call, messages)
    ended = response_of()
    wire.set_ms(ended.delivery_timestamp, receiving.asked_at_ms)
    call.send(ended.SerializeToString())
    await call.drained(0)
    call.finish()
    return sent


async def send_as_read(call: Call, messages: list[bytes]) -> int:
    """Send messages as fast as the client reads them, keeping only those that wait; returns their
    bytes."""
    call.keep(size := sum(map(len, messages)))
    messages.reverse()
    while messages:
        data = messages.pop()
        call.send(data)
        call.keep(-len(data))
        del data
        await call.drained()
    return size


def selection_of(expression: Any) -> Selection | None:
    """The messages that a FilterExpression selects; None: all. The others are skipped for the
    group, as in RocketMQ. Raises Refused."""
    text = expression.expression.strip()
    is_sql = expression.type == wire.SQL
    if not text or (text == "*" and not is_sql):
        return None
    selection = Selection(sql=text) if is_sql else Selection(tags=text)
    try:
        filters_of(selection)
    except ConfigInvalid as error:
        raise Refused(codes.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    return selection


def _invisible_ms(request: Any) -> int:
    """Raises Refused."""
    asked_ms = wire.ms_of(request.invisible_duration)
    if not INVISIBLE_MS_MIN <= asked_ms <= INVISIBLE_MS_MAX:
        raise _illegal_invisible(INVISIBLE_MS_MIN)
    return asked_ms


def _illegal_invisible(least_ms: int) -> Refused:
    return Refused(
        codes.ILLEGAL_INVISIBLE_TIME,
        f"the invisible duration is not possible: use {least_ms // 1000} s to 12 h",
    )


def poll_s(caller: Caller, request: Any, default_ms: int) -> float:
    """How long to wait for messages. Raises Refused."""
    is_given = request.HasField("long_polling_timeout")
    asked_ms = wire.ms_of(request.long_polling_timeout) if is_given else default_ms
    asked_s = min(max(asked_ms / 1_000, 0), POLL_S_MAX)
    if caller.call.deadline is None:
        return asked_s
    left_s = caller.call.deadline - asyncio.get_running_loop().time()
    left_s -= max(POLL_MARGIN_S_MIN, left_s * POLL_MARGIN_PART)
    if left_s <= 0:
        raise Refused(
            codes.ILLEGAL_POLLING_TIME,
            "the call's deadline leaves no time to wait for messages: use a longer timeout",
        )
    return min(asked_s, left_s)


def _show(
    topic: Topic, resource: Any, member: str, lock_ms: int, *, is_ranked: bool
) -> Callable[[int, int, Sequence[Record]], list[_Shown]]:
    """Makes the messages of one receive."""
    named = resource.SerializeToString()

    def show(partition: int, deliveries: int, records: Sequence[Record]) -> list[_Shown]:
        found: list[_Shown] = []
        for record in records:
            receipt = receipt_text(partition, record.offset, member)
            more = delivery(receipt, deliveries, lock_ms)
            rank = _priority(record) if is_ranked else 0
            found.append((receipt, response(record, named, topic.id, partition, more), rank))
        return found

    return show


def _priority(record: Record) -> int:
    """A malformed priority counts as not set, as for the choice of what is delivered."""
    try:
        return priority(record.headers)
    except RecordInvalid:
        return PRIORITY_DEFAULT
