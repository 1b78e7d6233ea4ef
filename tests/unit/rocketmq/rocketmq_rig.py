"""RocketMQ's service on a broker in memory, without a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.kit.broker import on_a_broker

from headrace.broker.services.configurations import SET, ConfigChange
from headrace.broker.services.topic_service import NewTopic
from headrace.rocketmq import wire
from headrace.rocketmq.codes import OK
from headrace.rocketmq.messaging import Messaging

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.kit.broker import BrokerHarness

    from headrace.broker.security.sessions import ClientSession

CLIENT = "client@1"


class TestConnection:
    """See headrace.grpc.service.Connection."""

    __test__ = False

    def __init__(self) -> None:
        self.is_slow = False


class TestCall:
    """See headrace.grpc.service.Call."""

    __test__ = False

    def __init__(self, path: str, client_id: str, session: object | None = None) -> None:
        self.path = path
        self.peer = "127.0.0.1"
        self.secure = False
        self.authority = "broker.test:8081"
        self.session = session
        self.connection = TestConnection()
        self.deadline: float | None = None
        self.headers = {b"x-mq-client-id": client_id.encode()} if client_id else {}
        self.sent: list[bytes] = []
        self.kept_bytes = 0
        self.arrived = asyncio.Event()
        self.over = asyncio.Event()
        self.reading = asyncio.Event()
        """Whether the client reads what is sent."""
        self.reading.set()
        self.status = 0
        self._callbacks: list[Callable[[], None]] = []
        self._on_end: list[Callable[[], None]] = []

    @property
    def is_finished(self) -> bool:
        return self.over.is_set()

    def header(self, name: bytes) -> bytes | None:
        return self.headers.get(name)

    def send(self, message: bytes) -> None:
        if not self.is_finished:
            self.sent.append(message)
            self.arrived.set()

    def finish(self, status: int = 0, message: str = "", trailers: Sequence[Any] = ()) -> None:
        if not self.is_finished:
            self.status = status
            self._end()

    def _end(self) -> None:
        self.over.set()
        while self._on_end:
            self._on_end.pop()()

    def respond(self, message: bytes) -> None:
        self.send(message)
        self.finish()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._on_end.append(callback)

    def keep(self, size: int) -> None:
        self.kept_bytes += size

    async def drained(self, unsent_bytes_max: int | None = None) -> None:
        if not self.is_finished:
            await self.reading.wait()

    def cancel(self) -> None:
        """The client resets the call, or its connection is lost."""
        self._end()
        self.reading.set()
        for callback in self._callbacks:
            callback()


class Rocket:
    """A client of one broker."""

    def __init__(self, rig: BrokerHarness) -> None:
        self.rig = rig
        self.node = rig.node
        self.messaging = Messaging(rig.node.services, rig.node.tasks)
        self.messaging.clients.start()
        self.made = 0
        self.session: ClientSession | None = None
        """Of calls that name no other."""
        self.connection = TestConnection()

    def begin(self, rpc: str, request: Any, client_id: str = CLIENT, **of_call: Any) -> TestCall:
        """Send a request; the call goes on."""
        path = f"/{wire.SERVICE}/{rpc}"
        call = TestCall(path, client_id, of_call.get("session", self.session))
        call.connection = self.connection
        call.peer = of_call.get("peer", call.peer)
        call.deadline = of_call.get("deadline")
        call.headers |= of_call.get("headers", {})
        if not of_call.get("is_reading", True):
            call.reading.clear()
        handler: Any = self.messaging.methods[path].handler
        handler(call, request.SerializeToString())
        return call

    @staticmethod
    def stream_call(rpc: str, session: object, headers: dict[bytes, bytes]) -> TestCall:
        """A call whose method streams requests, not begun yet."""
        call = TestCall(f"/{wire.SERVICE}/{rpc}", CLIENT, session)
        call.headers |= headers
        return call

    async def ask(self, rpc: str, client_id: str = CLIENT, /, **fields: Any) -> Any:
        """The response to an RPC with one."""
        call = self.begin(rpc, wire.request_of(rpc)(**fields), client_id)
        await asyncio.wait_for(call.over.wait(), 30)
        assert call.status == 0
        return wire.response_of(rpc).FromString(call.sent[0])

    async def code(self, rpc: str, client_id: str = CLIENT, /, **fields: Any) -> int:
        """The code of the response."""
        return int((await self.ask(rpc, client_id, **fields)).status.code)

    async def create(self, name: str, message_type: str = "normal", partitions: int = 1) -> None:
        configs = {"headrace.message.type": message_type}
        await self.node.services.topics.create(NewTopic(name, partitions, -1, configs))

    async def set_group(self, group_id: str, **configs: str) -> None:
        changes = [ConfigChange(name.replace("_", "."), SET, v) for name, v in configs.items()]
        await self.node.services.configurations.change_group(group_id, changes)

    # --- producers ---------------------------------------------------------------------------

    def message(self, topic: str, body: bytes = b"body", **system: Any) -> Any:
        """A message; `properties`: of the user."""
        self.made += 1
        properties = system.pop("properties", {})
        message = wire.Message(topic={"name": topic}, body=body, user_properties=properties)
        system = {"message_id": f"01{self.made:032X}", "message_type": wire.NORMAL} | system
        for name, value in system.items():
            if name.endswith("_ms"):
                wire.set_ms(getattr(message.system_properties, name[:-3]), value)
            elif isinstance(value, list):
                getattr(message.system_properties, name).extend(value)
            else:
                setattr(message.system_properties, name, value)
        return message

    async def send(self, topic: str, body: bytes = b"body", **system: Any) -> Any:
        """Send a message; its entry in the response."""
        response = await self.ask("SendMessage", messages=[self.message(topic, body, **system)])
        assert response.status.code == OK, response.status
        return response.entries[0]

    async def send_code(self, topic: str, body: bytes = b"body", **system: Any) -> int:
        """The code with which a message is refused."""
        return await self.code("SendMessage", messages=[self.message(topic, body, **system)])

    # --- consumers ---------------------------------------------------------------------------

    async def receive(self, topic: str, group: str, **fields: Any) -> list[Any]:
        """The messages of one receive."""
        return (await self.stream("ReceiveMessage", _receive(topic, group, **fields)))[1]

    async def stream(self, rpc: str, request: Any, **of_call: Any) -> tuple[int, list[Any]]:
        """(code, messages) of a streamed response, whose parts come in order."""
        call = self.begin(rpc, request, **of_call)
        await asyncio.wait_for(call.over.wait(), 60)
        parts = [wire.response_of(rpc).FromString(one) for one in call.sent]
        kinds = [one.WhichOneof("content") for one in parts]
        assert kinds[0] == "status"
        assert set(kinds[1:-1]) <= {"message"}
        return parts[0].status.code, [one.message for one in parts if one.HasField("message")]

    async def acknowledge(self, topic: str, group: str, *messages: Any) -> list[int]:
        """The code of each acknowledgement."""
        entries = [{"receipt_handle": one.system_properties.receipt_handle} for one in messages]
        where = {"group": {"name": group}, "topic": {"name": topic}}
        response = await self.ask("AckMessage", **where, entries=entries)
        return [one.status.code for one in response.entries]


def _receive(topic: str, group: str, **fields: Any) -> Any:
    request = wire.request_of("ReceiveMessage")(
        group={"name": group},
        message_queue={"topic": {"name": topic}},
        batch_size=fields.pop("batch_size", 32),
    )
    if not fields.get("auto_renew"):
        wire.set_ms(request.invisible_duration, fields.pop("invisible_ms", 10_000))
    wire.set_ms(request.long_polling_timeout, fields.pop("wait_ms", 0))
    for name, value in fields.items():
        if isinstance(value, dict):
            getattr(request, name).CopyFrom(type(getattr(request, name))(**value))
        else:
            setattr(request, name, value)
    return request


receive_request = _receive


on_rocketmq = on_a_broker(Rocket)
"""Run a test on a broker of its own."""
