"""Pull consumers: messages by offset, and the offsets of their groups.

Invariants: reads what every protocol reads, committed records alone. The offsets are those of a
consumer group, as Kafka's clients commit them. RocketMQ 5.5's own proxy answers
none of these calls.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import ResourceType
from headrace.broker.services.reads import AT_END, AT_OFFSET, AT_START, AT_TIME, Start
from headrace.broker.shares.filtering import matching
from headrace.broker.shares.share_reads import filters_of
from headrace.coordination.quotas.entities import CONSUMER, REQUEST
from headrace.errors import GroupUnknown, HeadraceError
from headrace.log.visibility import READ_COMMITTED
from headrace.rocketmq import codes, wire
from headrace.rocketmq.codes import Refused, set_status
from headrace.rocketmq.names import resource_of
from headrace.rocketmq.receiving import MESSAGES_MAX, READ, poll_s, selection_of, send_as_read
from headrace.rocketmq.shown_messages import attempt, response
from headrace.runtime.loop_turns import paced_alike

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from headrace.broker.services.reads import PartitionRead
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.grpc.service import Call
    from headrace.rocketmq.caller import Caller
    from headrace.runtime.tasks import Tasks

_POLICIES: Final = {wire.BEGINNING: AT_START, wire.END: AT_END, wire.TIMESTAMP: AT_TIME}


class Offsets:
    """PullMessage, UpdateOffset, GetOffset and QueryOffset."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._tasks = tasks

    async def pull(self, caller: Caller, request: Any, response_of: Callable[..., Any]) -> None:
        """Stream messages from an offset on; waits for the first one."""
        quotas = self._services.quotas
        if quotas.is_active:
            quotas.check(caller.session, CONSUMER, REQUEST)
        topic, number = await self._queue(caller, request)
        group_id = caller.group_id(request.group)
        wait_s = poll_s(caller, request, 0)
        count = min(max(request.batch_size, 1), MESSAGES_MAX)
        start = Start(AT_OFFSET, request.offset)
        selection = selection_of(request.filter_expression)
        filters = () if selection is None else filters_of(selection)
        read = self._services.reads.read
        named = resource_of(request.message_queue.topic).SerializeToString()
        del request  # may be large, and this may wait for long
        caller.drop_request()
        asked = topic, number, start, count, READ_COMMITTED, wait_s
        found = await self._unless_gone(caller, _kept(caller.call, partial(read, *asked)))
        if found is None:
            return
        kept_bytes = _bytes_of(found)
        records = await matching(found.records, filters) if filters else found.records
        caller.check_term()
        caller.require_still(
            [(READ, ResourceType.GROUP, group_id), (READ, ResourceType.TOPIC, topic.name)]
        )
        status = response_of()
        set_status(status.status, None)
        send = caller.call.send
        if not records:
            status.status.code = codes.MESSAGE_NOT_FOUND
        send(status.SerializeToString())
        messages = [response(one, named, topic.id, number, attempt(1)) for one in records]
        next_offset = found.next_offset
        del found, records
        caller.call.keep(-kept_bytes)
        sent = await send_as_read(caller.call, messages)
        send(response_of(next_offset=next_offset).SerializeToString())
        caller.call.finish()
        if quotas.is_active:
            quotas.take(caller.session, CONSUMER, sent)

    async def _unless_gone(
        self, caller: Caller, reading: Coroutine[Any, Any, PartitionRead]
    ) -> PartitionRead | None:
        """What is read; None: the client has gone before. Raises what the reading raises."""
        task = self._tasks.start(_or_error(paced_alike(reading)), "a pull")
        gone = self._tasks.start(caller.wait_gone(), "a client that pulls")
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return None
            found: PartitionRead | HeadraceError = task.result()
            if isinstance(found, HeadraceError):
                raise found
            return found
        finally:
            task.cancel()
            gone.cancel()

    async def update(self, caller: Caller, request: Any, response: Any) -> None:
        """Set a group's offset in one queue."""
        topic, number = await self._queue(caller, request)
        group_id = caller.group_id(request.group)
        if request.offset < 0:
            raise Refused(codes.ILLEGAL_OFFSET, f"offset {request.offset} is not possible")
        commit = self._services.all_groups.commit
        await commit(group_id, topic.name, number, request.offset)

    async def get(self, caller: Caller, request: Any, response: Any) -> None:
        """A group's offset in one queue."""
        topic, number = await self._queue(caller, request)
        try:
            found = await self._services.all_groups.offsets(caller.group_id(request.group))
        except GroupUnknown:
            found = []
        for one in found:
            if (one.topic, one.partition) == (topic.name, number) and one.offset >= 0:
                response.offset = one.offset
                return
        raise Refused(
            codes.OFFSET_NOT_FOUND,
            "the group has no offset in this queue: ask for its END",
        )

    async def query(self, caller: Caller, request: Any, response: Any) -> None:
        """The offset of the beginning, the end, or a time."""
        topic, number = await self._queue(caller, request)
        kind = _POLICIES.get(request.query_offset_policy)
        if kind is None:
            raise Refused(codes.BAD_REQUEST, "this policy is unknown: BEGINNING, END or TIMESTAMP")
        start = Start(kind, wire.ms_of(request.timestamp) if kind == AT_TIME else 0)
        found = await self._services.reads.read(topic, number, start, 0, READ_COMMITTED)
        response.offset = found.next_offset

    @staticmethod
    async def _queue(caller: Caller, request: Any) -> tuple[Topic, int]:
        topic = await caller.topic(request.message_queue.topic)
        topic.check_partition(request.message_queue.id)
        return topic, request.message_queue.id


async def _or_error(
    reading: Awaitable[PartitionRead],
) -> PartitionRead | HeadraceError:
    """What is read, or why it cannot be: a task that failed would be logged."""
    try:
        return await reading
    except HeadraceError as error:
        return error


async def _kept(call: Call, read: Callable[[], Awaitable[PartitionRead]]) -> PartitionRead:
    """What is read, which counts from then on: the pull may wait long for its turn."""
    found = await read()
    call.keep(_bytes_of(found))
    return found


def _bytes_of(found: PartitionRead) -> int:
    return sum(
        len(one.key or b"")
        + len(one.value or b"")
        + sum(len(name) + len(value or b"") for name, value in one.headers)
        for one in found.records
    )
