"""A client of RocketMQ's gRPC protocol for loads: a producer, or a consumer of one group.

Invariants: its calls, metadata and settings are those of RocketMQ's Java client. Every status is
looked at; one that is not OK fails the run. Requests that differ in an id alone are encoded once.
"""

from __future__ import annotations

import time
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.rocketmq import wire
from headrace_bench.processes import SystemFailed
from headrace_bench.rocketmq import BATCH, POLL_S, QUEUES, group_of
from headrace_bench.rocketmq.connection import Connection, messages_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_bench.rocketmq.connection import Answer

BROKER: Final = "bench"
"""The name of RocketMQ's broker, which a consumer names with its queue."""
OK: Final = 20000
NO_MESSAGE: Final = 40401
LOCK_S: Final = 60
_ID: Final = "01" + "0" * 32
_METADATA: Final = {
    "content-type": "application/grpc",
    "te": "trailers",
    "user-agent": "grpc-java-netty/1.50.0",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-version": "5.2.0",
    "x-mq-namespace": "",
    "grpc-accept-encoding": "gzip",
}
_SEND, _RECEIVE, _ACK = "SendMessage", "ReceiveMessage", "AckMessage"
_SYNC: Final = "SyncLiteSubscription"
_COMPLETE_ADD: Final = 2
_PATHS: Final = {rpc: f"/{wire.SERVICE}/{rpc}" for rpc in wire.RPCS}
_RESPONSES: Final = {rpc: wire.response_of(rpc) for rpc in wire.RPCS}


def message_of(topic: str, body: bytes, due_ms: int = 0, lite_topic: str = "") -> Any:
    """A message as Java's client sends it; `due_ms` (Unix time): a delayed one; `lite_topic`: one
    of a lite topic."""
    message = wire.Message(topic={"name": topic}, body=body)
    system = message.system_properties
    system.message_id = _ID
    system.message_type = wire.NORMAL
    system.body_encoding = wire.IDENTITY
    system.born_host = "client"
    wire.set_ms(system.born_timestamp, time.time_ns() // 1_000_000)
    if due_ms:
        system.message_type = wire.DELAY
        wire.set_ms(system.delivery_timestamp, due_ms)
    if lite_topic:
        system.message_type = wire.LITE
        system.lite_topic = lite_topic
    return message


class Received(NamedTuple):
    """The messages of a receive."""

    entries: list[tuple[str, str, str]]
    """(message id, receipt handle, lite topic)"""
    bodies: list[bytes]


class Ended(NamedTuple):
    """A call that has ended well."""

    stream: int
    done: int
    """Messages that were sent or acknowledged."""
    received: Received | None


class Client:
    """See the module; it is registered when it is made."""

    def __init__(
        self, port: int, name: str, topic: str, group: str = "", *, is_lite: bool = False
    ) -> None:
        self.topic = topic
        self.group = group
        consumer = wire.LITE_PUSH_CONSUMER if is_lite else wire.PUSH_CONSUMER
        self._kind = consumer if group else wire.PRODUCER
        self._connection = Connection(port, {**_METADATA, "x-mq-client-id": name})
        self._rpcs: dict[int, str] = {}
        self._count = 0
        self._templates = cycle([(b"", 0)])
        self._register()

    @property
    def open_count(self) -> int:
        """Calls in progress, without the stream of commands."""
        return self._connection.open_count - 1

    def _begin(self, rpc: str, body: bytes, timeout_s: int, *, is_last: bool = True) -> int:
        self._count += 1
        changing = {
            "x-mq-date-time": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
            "x-mq-request-id": f"6f1ed002-ab25-4fcf-{self._count:016}",
        }
        if timeout_s:
            changing["grpc-timeout"] = f"{timeout_s * 1_000_000 - self._count % 1_000}u"
        stream = self._connection.call(_PATHS[rpc], body, changing, is_last=is_last)
        self._rpcs[stream] = rpc
        return stream

    def _register(self) -> None:
        command = wire.TelemetryCommand()
        settings = command.settings
        settings.access_point.CopyFrom(wire.Endpoints(scheme=wire.IPV4))
        settings.access_point.addresses.add(host="127.0.0.1", port=8081)
        settings.request_timeout.seconds = 3
        settings.client_type = self._kind
        if self.group:
            settings.subscription.group.name = self.group
            entry = settings.subscription.subscriptions.add(topic={"name": self.topic})
            entry.expression.type, entry.expression.expression = wire.TAG, "*"
        else:
            settings.publishing.topics.add(name=self.topic)
        stream = self._begin("Telemetry", command.SerializeToString(), 0, is_last=False)
        deadline = time.monotonic() + 10
        while not self._connection.received(stream):
            self._connection.answers(1.0)
            if time.monotonic() > deadline:
                raise SystemFailed("the server did not answer a client's settings")
        self.heartbeat()
        while self.open_count:
            self.poll(1.0)

    def heartbeat(self) -> None:
        """Say that the client is there."""
        request = wire.request_of("Heartbeat")(client_type=self._kind)
        if self.group:
            request.group.name = self.group
        self._begin("Heartbeat", request.SerializeToString(), 3)

    # --- sending -----------------------------------------------------------------------------

    def prepare(self, body: bytes, due_ms: int = 0, lite_topics: Sequence[str] = ("",)) -> None:
        """What `send` sends, to each of the lite topics in turn."""
        found = []
        for name in lite_topics:
            one = message_of(self.topic, body, due_ms, name)
            request = wire.request_of(_SEND)(messages=[one]).SerializeToString()
            found.append((request, request.index(_ID.encode()) + 2))
        self._templates = cycle(found)

    def send(self) -> int:
        """Send the next prepared message with an id of its own; returns the call's stream."""
        request, at = next(self._templates)
        body = b"%b%032X%b" % (request[:at], self._count, request[at + 32 :])
        return self._begin(_SEND, body, 3)

    # --- receiving ---------------------------------------------------------------------------

    def subscribe(self, lite_topics: Sequence[str]) -> None:
        """Subscribe to lite topics; a load is over before this has to be repeated (120 s)."""
        request = wire.request_of(_SYNC)(action=_COMPLETE_ADD, lite_topic_set=lite_topics)
        request.topic.name, request.group.name = self.topic, self.group
        self._begin(_SYNC, request.SerializeToString(), 30)
        while self.open_count:
            self.poll(1.0)

    def receive(self, queue: int) -> int:
        """Ask for up to BATCH messages, as a push consumer does for each queue; returns the
        stream."""
        request = wire.request_of(_RECEIVE)(batch_size=BATCH, group={"name": self.group})
        request.message_queue.topic.name = self.topic
        request.message_queue.id = queue
        request.message_queue.broker.name = BROKER
        request.filter_expression.type, request.filter_expression.expression = wire.TAG, "*"
        request.invisible_duration.seconds = LOCK_S
        request.long_polling_timeout.seconds = POLL_S
        return self._begin(_RECEIVE, request.SerializeToString(), POLL_S + 3)

    def acknowledge(self, received: Received, at_once: int) -> None:
        """Acknowledge messages, so many with each call."""
        for at in range(0, len(received.entries), at_once):
            request = wire.request_of(_ACK)(group={"name": self.group}, topic={"name": self.topic})
            for message_id, receipt, lite_topic in received.entries[at : at + at_once]:
                entry = request.entries.add(message_id=message_id, receipt_handle=receipt)
                if lite_topic:
                    entry.lite_topic = lite_topic
            self._begin(_ACK, request.SerializeToString(), 3)

    # --- answers -----------------------------------------------------------------------------

    def poll(self, wait_s: float) -> list[Ended]:
        """The calls that have ended. Raises SystemFailed for one that failed."""
        return [self._checked(one) for one in self._connection.answers(wait_s)]

    def _checked(self, answer: Answer) -> Ended:
        rpc = self._rpcs.pop(answer.stream)
        responses = [_RESPONSES[rpc].FromString(one) for one in messages_in(answer.data)]
        if not responses:
            raise SystemFailed(f"{rpc} ended without a response")
        if rpc == _RECEIVE:
            return Ended(answer.stream, 0, _received(responses))
        (response,) = responses
        if response.status.code != OK:
            raise SystemFailed(f"{rpc} failed: {response.status}")
        count = len(response.entries) if rpc in (_SEND, _ACK) else 0
        return Ended(answer.stream, count, None)

    def close(self) -> None:
        """Close its connection."""
        self._connection.close()


def _received(responses: list[Any]) -> Received:
    found = Received([], [])
    for one in responses:
        if one.HasField("message"):
            system = one.message.system_properties
            found.entries.append((system.message_id, system.receipt_handle, system.lite_topic))
            found.bodies.append(one.message.body)
        elif one.HasField("status") and one.status.code not in (OK, NO_MESSAGE):
            raise SystemFailed(f"{_RECEIVE} failed: {one.status}")
    return found


class Consumer:
    """Receives with a poll for each of QUEUES queues, and acknowledges what it receives."""

    def __init__(
        self, port: int, topic: str, at_once: int = BATCH, lite_topics: Sequence[str] = ()
    ) -> None:
        group = group_of(topic)
        self._client = Client(port, "consumer", topic, group, is_lite=bool(lite_topics))
        self._at_once = at_once
        if lite_topics:
            self._client.subscribe(lite_topics)
        self._polls = {self._client.receive(queue): queue for queue in range(QUEUES)}

    def step(self, wait_s: float) -> tuple[int, list[bytes]]:
        """(how many messages are acknowledged, the bodies of those that have arrived)."""
        count, bodies = 0, list[bytes]()
        for one in self._client.poll(wait_s):
            count += one.done
            if one.received is not None:
                self._client.acknowledge(one.received, self._at_once)
                queue = self._polls.pop(one.stream)
                self._polls[self._client.receive(queue)] = queue
                bodies += one.received.bodies
        return count, bodies

    def close(self) -> None:
        """Close its connection."""
        self._client.close()
