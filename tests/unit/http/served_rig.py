"""The HTTP server on a socket, without a broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import fields
from types import SimpleNamespace
from typing import TYPE_CHECKING

from headrace.broker.security.listener import OPEN
from headrace.broker.services.authorizer import AllowAll
from headrace.broker.services.health import Health
from headrace.broker.services.owner_calls import OwnerCalls
from headrace.broker.services.services import Services
from headrace.http import app
from headrace.http.answer_room import AnswerMemory
from headrace.http.body_memory import BodyMemory
from headrace.http.face import HttpListener
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.slow_requests import SlowRequests
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMIT_S = 20


class BareFace:
    """A face without a broker behind it."""

    def __init__(self) -> None:
        self.is_ready = True
        self.listeners = [HttpListener(None, OPEN, is_local=True)]
        counting = SimpleNamespace(bytes_total=0, errors_total=0)
        self.kafka = SimpleNamespace(connections={}, produce=counting, fetch=counting)
        self.sources = ()
        self.slow = SlowRequests()
        self.bodies = BodyMemory(1 << 28)
        self.answers = AnswerMemory(1 << 28, None)
        self.connection_count = lambda: 0
        logs = SimpleNamespace(companions={})
        topics = SimpleNamespace(by_name={}, by_id={}, logs=logs, damaged_facts={})
        health = Health(topics, SimpleNamespace(damaged_facts={}), MemoryMetadataStore())
        services = SimpleNamespace(**dict.fromkeys(field.name for field in fields(Services)))
        services.topics, services.health = SimpleNamespace(disk=None), health
        services.authorizer = AllowAll()
        services.calls = OwnerCalls(None, list, 0)
        services.users = SimpleNamespace(super_users=None)
        services.appends = SimpleNamespace(clock=SystemClock(), records_total=0, bytes_total=0)
        services.dead_letters = SimpleNamespace(copied_total=0)
        self.services, self.tasks = services, Tasks()


@contextlib.asynccontextmanager
async def served(answer=None) -> AsyncIterator[tuple[str, int]]:
    """The address of a server; `answer`: an ASGI application in the place of the broker's."""
    (server,) = app.make_servers(BareFace())
    if answer is not None:
        server.config.app = answer
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield listener.getsockname()
        server.should_exit = True
        await asyncio.wait_for(task, LIMIT_S)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self._writer.close()

    async def response(self) -> tuple[int, dict[bytes, bytes], bytes]:
        """(status, headers, body) of the next one."""
        async with asyncio.timeout(LIMIT_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            line, *fields = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
            headers = {}
            for one in fields:
                name, _, value = one.partition(b": ")
                headers[name.lower()] = value
            body = await self._reader.readexactly(int(headers.get(b"content-length", 0)))
        return int(line.split(b" ")[1]), headers, body

    async def rest(self) -> bytes:
        """What comes until the server closes the connection."""
        async with asyncio.timeout(LIMIT_S):
            return await self._reader.read()


@contextlib.asynccontextmanager
async def client(address: tuple[str, int]) -> AsyncIterator[Client]:
    one = Client(*await asyncio.open_connection(*address))
    yield one
    one.close()
