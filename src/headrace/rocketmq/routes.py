"""Where clients find a topic: its queues, with the brokers that serve them.

Invariants: a queue is a partition. Clients connect to the endpoints that they are given, so those
of this broker are the ones by which the client asked; other brokers' are those they have
registered. Any broker takes any call; to ask the owner saves a forward.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.topics.topic_config import LITE, MIXED, NORMAL
from headrace.metadata.endpoints import ROCKETMQ
from headrace.rocketmq import wire
from headrace.rocketmq.codes import BAD_REQUEST, Refused
from headrace.rocketmq.names import resource_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.rocketmq.caller import Caller
    from headrace.rocketmq.groups import RocketGroups

ENDPOINTS_BYTES_MAX: Final = 4 * 1024
"""Of a request: the answer repeats them for each queue."""
_ALL: Final = (wire.NORMAL, wire.FIFO, wire.DELAY, wire.TRANSACTION, wire.PRIORITY)
ACCEPTED: Final[Mapping[str, tuple[int, ...]]] = {
    NORMAL: (wire.NORMAL,),
    "fifo": (wire.FIFO,),
    "delay": (wire.DELAY,),
    "transaction": (wire.TRANSACTION,),
    "priority": (wire.PRIORITY,),
    MIXED: _ALL,
    LITE: (wire.LITE,),
}
"""By the topic's headrace.message.type: what its producers may send."""


class Routes:
    """QueryRoute and QueryAssignment."""

    def __init__(self, services: Services, groups: RocketGroups) -> None:
        self._services = services
        self._groups = groups

    async def query_route(self, caller: Caller, request: Any, response: Any) -> None:
        """The queues of a topic."""
        topic = await caller.topic(request.topic)
        for number, queue in self._queues(caller, topic, request):
            added = response.message_queues.add()
            added.CopyFrom(queue)
            added.id = number

    async def query_assignment(self, caller: Caller, request: Any, response: Any) -> None:
        """The queues that a push consumer receives from: one of each broker, since a receive takes
        messages of all partitions; in order, one for each partition, so that they are consumed
        side by side."""
        topic = await caller.topic(request.topic)
        group_id = caller.group_id(request.group)
        await self._groups.ensure(group_id)
        config = self._groups.config(group_id)
        is_fifo = config.is_ordered or config.is_serial
        brokers: set[str] = set()
        for number, queue in self._queues(caller, topic, request):
            if is_fifo or queue.broker.name not in brokers:
                brokers.add(queue.broker.name)
                assigned = response.assignments.add().message_queue
                assigned.CopyFrom(queue)
                assigned.id = number

    def _queues(self, caller: Caller, topic: Topic, request: Any) -> Iterator[tuple[int, Any]]:
        """(number, the queue without its number) of each: the same of all queues of one broker,
        because endpoints may be many."""
        cluster = self._services.cluster
        accepted = ACCEPTED[self._services.topics.message_type(topic)]
        own = _asked_by(caller, request)
        resource = resource_of(request.topic)
        of_brokers: dict[int, Any] = {}
        for number in range(len(topic.partitions)):
            broker = cluster.leader_of(topic, number)
            endpoints = own
            broker_id = cluster.broker_id
            if broker is not None and broker.id != cluster.broker_id:
                for one in broker.endpoints or ():
                    if one.face == ROCKETMQ:
                        endpoints = endpoints_of(one.host, one.port)
                        broker_id = broker.id
                        break
            queue = of_brokers.get(broker_id)
            if queue is None:
                queue = of_brokers[broker_id] = wire.MessageQueue(permission=wire.READ_WRITE)
                queue.topic.CopyFrom(resource)
                queue.accept_message_types.extend(accepted)
                queue.broker.name = f"broker-{broker_id}"
                queue.broker.endpoints.CopyFrom(endpoints)
            yield number, queue


def _asked_by(caller: Caller, request: Any) -> Any:
    """The endpoints by which the client asked. Raises Refused."""
    if request.endpoints.ByteSize() > ENDPOINTS_BYTES_MAX:
        raise Refused(
            BAD_REQUEST,
            f"the endpoints have more than {ENDPOINTS_BYTES_MAX} bytes: name fewer addresses",
        )
    if request.endpoints.addresses:
        return request.endpoints
    host, _, port = caller.call.authority.rpartition(":")
    return endpoints_of(host.strip("[]"), int(port) if port.isdigit() else 0)


def endpoints_of(host: str, port: int) -> Any:
    """One address as RocketMQ writes it."""
    try:
        is_v6 = ipaddress.ip_address(host).version == 6
        scheme = wire.IPV6 if is_v6 else wire.IPV4
    except ValueError:
        scheme = wire.DOMAIN_NAME
    endpoints = wire.Endpoints(scheme=scheme)
    endpoints.addresses.add(host=host, port=port)
    return endpoints
