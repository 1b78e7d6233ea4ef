"""Messages that clients send: stored, half, delayed; transactions ended, delayed ones recalled.

Invariants: a request that is refused for one of its messages has stored none of them; after that
each message has its own result. The message group alone decides on the partition of a message in
order, never the queue that the client chose. A quota slows a client by answers that wait, without
what was sent, and refuses one that owes more than those can wait for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.message_timers import HalfOutcome, HalfReference
from headrace.broker.services.record_sends import Outgoing, Sent
from headrace.broker.services.timer_receipts import HalfReceipt
from headrace.coordination.quotas.entities import PRODUCER, REQUEST
from headrace.errors import HeadraceError, ReceiptInvalid, RecordStateInvalid
from headrace.records.tenant_names import name_in
from headrace.rocketmq import codes, wire
from headrace.rocketmq.bodies import BODY_BYTES_MAX, Bodies
from headrace.rocketmq.codes import Refused, set_status
from headrace.rocketmq.handles import Recall, Transaction
from headrace.rocketmq.joined_sends import JoinedSends
from headrace.rocketmq.messages import record_of
from headrace.rocketmq.routes import ACCEPTED
from headrace.runtime.slow_calls import SlowCalls

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.rocketmq.caller import Caller
    from headrace.rocketmq.in_progress import Held
    from headrace.rocketmq.messages import Parsed
    from headrace.runtime.tasks import Tasks

MESSAGES_MAX: Final = 1_000
"""Of one request."""
RESPONSE: Final = wire.response_of("SendMessage")
Ended = Callable[[Any], None]
"""Gets a call's response, or the exception with which it failed."""
_Results = Sequence[Sent | HeadraceError] | Exception
"""Of each message, or why none is known."""


class Sending:
    """SendMessage, EndTransaction and RecallMessage."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._sends = JoinedSends(services.sends, tasks)
        self._threads = SlowCalls("headrace-bodies")

    def close(self) -> None:
        """Drop the requests that wait for the thread."""
        self._threads.close()

    def start(self, caller: Caller, request: Any, ended: Ended) -> bool:
        """Begin to store messages of one topic. Returns False if the topic is not known here, so
        that it has to be looked up first, or the bodies take long to decompress. Raises Refused."""
        self._check(caller, request)
        topic = caller.known_topic(request.messages[0].topic)
        if topic is None:
            return False
        given = Bodies(request.messages)
        bodies = given.inline(self._body_bytes_max(topic, given))
        if bodies is None:
            return False
        if given.packed_bytes:
            _held(caller).add(given.unpacked_bytes(bodies))
        size = request.ByteSize() if self._services.quotas.is_active else 0

        def stored(parsed: Sequence[Parsed], results: _Results) -> None:
            try:
                response = _response(caller, topic, parsed, results)
                wait_s = self._answer_wait_s(caller, size)
            except Exception as error:  # noqa: BLE001 - whatever it is, the client waits
                ended(error)
                return
            if wait_s:
                asyncio.get_running_loop().call_later(wait_s, ended, response)
            else:
                ended(response)

        self._store(topic, request, bodies, stored)
        return True

    async def send(self, caller: Caller, request: Any, response: Any) -> None:
        """Store messages as `start`, which could not begin at once, or has many."""
        self._check(caller, request)
        topic = await caller.topic(request.messages[0].topic)
        bodies = await self._unpacked(caller, topic, Bodies(request.messages))
        size = request.ByteSize() if self._services.quotas.is_active else 0
        storing: asyncio.Future[tuple[Sequence[Parsed], _Results]]
        storing = asyncio.get_running_loop().create_future()

        def stored(parsed: Sequence[Parsed], results: _Results) -> None:
            if not storing.done():
                storing.set_result((parsed, results))

        self._store(topic, request, bodies, stored)
        del request, bodies  # its records have what is still needed
        response.CopyFrom(_response(caller, topic, *await storing))
        if wait_s := self._answer_wait_s(caller, size):
            await asyncio.sleep(wait_s)

    def _answer_wait_s(self, caller: Caller, size: int) -> float:
        """How long the answer waits for the client's quota."""
        quotas = self._services.quotas
        wait_ms = quotas.answer_wait_ms(caller.session, size) if quotas.is_active else 0
        if wait_ms:
            _held(caller).release()  # the answer alone waits, not what was sent
        return wait_ms / 1_000

    def _check(self, caller: Caller, request: Any) -> None:
        """Raises Refused, QuotaExceeded."""
        quotas = self._services.quotas
        if quotas.is_active:
            quotas.check_owed(caller.session, PRODUCER, REQUEST)
        messages = request.messages
        if len(messages) > MESSAGES_MAX:
            raise Refused(
                codes.MESSAGE_CORRUPTED,
                f"the request has {len(messages)} messages: send at most {MESSAGES_MAX} at once",
            )
        is_one = len(messages) == 1
        if not is_one and len({one.topic.SerializeToString() for one in messages}) != 1:
            raise Refused(
                codes.MESSAGE_CORRUPTED, "a request sends one or more messages of one topic"
            )

    def _body_bytes_max(self, topic: Topic, given: Bodies) -> int:
        """What a compressed body of this topic may have, decompressed."""
        taken = self._services.topics.plain_bytes_max(topic) if given.packed_bytes else None
        return BODY_BYTES_MAX if taken is None else min(BODY_BYTES_MAX, taken)

    async def _unpacked(self, caller: Caller, topic: Topic, given: Bodies) -> list[bytes]:
        """The bodies, decompressed in the thread. Raises Refused."""
        bytes_max = self._body_bytes_max(topic, given)
        if not given.packed_bytes:
            return given.unpack(bytes_max)
        held, most = _held(caller), given.unpacked_bytes_max(bytes_max)
        held.add(most)
        bodies = await self._threads.run(partial(given.unpack, bytes_max))
        held.add(given.unpacked_bytes(bodies) - most)
        return bodies

    def _store(
        self,
        topic: Topic,
        request: Any,
        bodies: list[bytes],
        stored: Callable[[Sequence[Parsed], _Results], None],
    ) -> None:
        """Append messages. Raises Refused."""
        parsed = self._parsed(topic, request.messages, bodies)
        records = [Outgoing(one.record) for one in parsed]
        self._sends.send(topic, records, partial(stored, parsed))

    def _parsed(self, topic: Topic, messages: Any, bodies: list[bytes]) -> list[Parsed]:
        """Raises Refused."""
        topics = self._services.topics
        accepted = ACCEPTED[topics.message_type(topic)]
        now_ms = self._services.appends.clock.now_ms()
        found = [
            record_of(one, body, name_in(topic.name), accepted, now_ms)
            for one, body in zip(messages, bodies, strict=True)
        ]
        for one in found:
            if one.due_ms is not None and one.due_ms > now_ms + topics.delay_max_ms(topic):
                raise Refused(
                    codes.ILLEGAL_DELIVERY_TIME,
                    f"the delivery time is more than {topics.delay_max_ms(topic)} ms away: use an"
                    " earlier one, or raise headrace.delay.max.ms of the topic",
                )
        return found

    async def end_transaction(self, caller: Caller, request: Any, response: Any) -> None:
        """Commit or roll back a half message."""
        if request.resolution not in {wire.COMMIT, wire.ROLLBACK}:
            raise Refused(codes.BAD_REQUEST, "a transaction ends with COMMIT or ROLLBACK")
        topic = await caller.topic(request.topic)
        try:
            half = Transaction.parse(request.transaction_id, topic.id).receipt
            topic.check_partition(half.partition)
        except HeadraceError as error:
            raise Refused(codes.INVALID_TRANSACTION_ID, str(error)) from error
        is_commit = request.resolution == wire.COMMIT
        by = f"the producer {caller.client_id}"
        reference = HalfReference(half.partition, half.number, "", is_commit, by)
        (outcome,), _failed = await self._services.timers.settle(topic, [reference])
        if outcome is None:
            raise Refused(
                codes.INVALID_TRANSACTION_ID,
                "there is no such transaction: it ended long ago, or its message was never sent",
            )
        if not isinstance(outcome, HalfOutcome):
            raise outcome

    async def recall(self, caller: Caller, request: Any, response: Any) -> None:
        """Cancel a delayed message that has not been delivered; again: nothing changes."""
        topic = await caller.topic(request.topic)
        try:
            recall = Recall.parse(request.recall_handle)
            now_ms = self._services.appends.clock.now_ms
            await self._services.timers.recall(topic, recall.receipt, now_ms)
        except ReceiptInvalid as error:
            raise Refused(codes.BAD_REQUEST, str(error)) from error
        except RecordStateInvalid as error:
            raise Refused(codes.MESSAGE_NOT_FOUND, str(error)) from error
        response.message_id = recall.message_id


def _held(caller: Caller) -> Held:
    assert caller.held is not None, "a send is one request"
    return caller.held


def _response(caller: Caller, topic: Topic, parsed: Sequence[Parsed], results: _Results) -> Any:
    """The response with the result of each message. Raises what `results` is, if it is an error."""
    if isinstance(results, Exception):
        raise results
    response = RESPONSE()
    for one, result in zip(parsed, results, strict=True):
        _fill_entry(caller, response.entries.add(), topic, one, result)
    set_common_status(response.status, response.entries)
    return response


def _fill_entry(
    caller: Caller, entry: Any, topic: Topic, parsed: Parsed, result: Sent | HeadraceError
) -> None:
    entry.message_id = parsed.message_id
    if isinstance(result, HeadraceError):
        set_status(entry.status, result, caller.view)
        return
    set_status(entry.status, None)
    entry.offset = max(result.place.offset, 0)
    receipt = result.receipt
    if receipt is None:
        return
    if parsed.message_type == wire.TRANSACTION:
        entry.transaction_id = Transaction(HalfReceipt.parse(receipt), topic.id).text
    else:
        entry.recall_handle = Recall(receipt, parsed.message_id).handle


def set_common_status(status: Any, entries: Any) -> None:
    """The status of a response whose entries have their own."""
    found = {one.status.code for one in entries}
    if len(found) == 1:
        status.CopyFrom(entries[0].status)
    else:
        status.code, status.message = codes.MULTIPLE_RESULTS, "see the entries"
