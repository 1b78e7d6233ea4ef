"""Kafka clients that hand a broker bytes without a socket."""

from __future__ import annotations

import asyncio
import io
from struct import Struct
from typing import TYPE_CHECKING, Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headrace.kafka.apis import APIS
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.wire.schema import read_response, write_request
from headrace_verify.kafka_wire import build_entity, is_in_kio

if TYPE_CHECKING:
    from headrace.kafka.dispatch import KafkaFace

_HEAD = Struct(">hhi")


class MemoryTransport(asyncio.Transport):
    """Keeps what is written, and notifies the connection when it is closed."""

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__()
        self.connection = connection
        self.out = bytearray()
        self.is_paused = False
        self.is_over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.out += data

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def close(self) -> None:
        self.abort()

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        if not self.is_over:
            self.is_over = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)


class Client:
    """One connection."""

    def __init__(self, face: KafkaFace) -> None:
        self.connection = KafkaConnection(face, asyncio.get_running_loop())
        self.transport = MemoryTransport(self.connection)
        self.connection.connection_made(self.transport)
        self.asked: list[tuple[int, int]] = []

    def send(self, api_key: int, version: int, request: dict[str, Any]) -> None:
        """Send a request; what it leaves out is zero, empty or null."""
        if is_in_kio(api_key, version):
            cls = load_request_schema(api_key, version)
            written = io.BytesIO()
            entity_writer(cls)(written, build_entity(cls, request))
            body = written.getvalue()
        else:
            body = write_request(api_key, version, request)
        head = _HEAD.pack(api_key, version, len(self.asked)) + b"\x00\x01t"
        if version >= APIS[api_key].flexible_from:
            head += b"\x00"
        frame = head + body
        self.asked.append((api_key, version))
        self.connection.data_received(len(frame).to_bytes(4, "big") + frame)

    def answers(self) -> list[Any]:
        """All answers so far, in order."""
        found, at, out = [], 0, bytes(self.transport.out)
        while at < len(out):
            size = int.from_bytes(out[at : at + 4], "big")
            correlation_id = int.from_bytes(out[at + 4 : at + 8], "big")
            assert correlation_id == len(found), "answers come in the order of requests"
            api_key, version = self.asked[len(found)]
            is_flexible = version >= APIS[api_key].flexible_from
            begin, end = at + (9 if is_flexible and api_key != 18 else 8), at + 4 + size
            if is_in_kio(api_key, version):
                cls = load_response_schema(api_key, version)
                entity, read = entity_reader(cls)(out, begin)
                assert begin + read == end, "nothing is left behind the answer"
            else:
                entity = read_response(api_key, version, out[:end], begin)
            found.append(entity)
            at += 4 + size
        return found

    async def ask(self, api_key: int, version: int, request: dict[str, Any]) -> Any:
        """Send a request and wait for its answer."""
        self.send(api_key, version, request)
        for _ in range(400):
            found = self.answers()
            if len(found) == len(self.asked):
                return found[-1]
            assert not self.transport.is_over, "the broker has closed the connection"
            await asyncio.sleep(0 if _ < 200 else 0.01)
        raise AssertionError("no answer")
