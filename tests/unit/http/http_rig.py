"""HTTP on a broker in memory, without a socket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from typing import TYPE_CHECKING, Any

import jsonschema_rs
from starlette.applications import Starlette
from tests.kit.broker import BrokerHarness, on_a_broker

from headrace.http import answers
from headrace.http.acls import AclOperations
from headrace.http.broker_config import BrokerConfigOperations
from headrace.http.broker_figures import BrokerFigures
from headrace.http.cluster import ClusterOperations
from headrace.http.dead_letters import DeadLetterOperations
from headrace.http.delayed import DelayedOperations
from headrace.http.diagnoses import DiagnosisOperations
from headrace.http.groups import GroupOperations
from headrace.http.history import History, reader
from headrace.http.ledgers import LedgerOperations
from headrace.http.operations import Operation, routes
from headrace.http.overview import OverviewOperations
from headrace.http.parked import ParkedOperations
from headrace.http.queries import queries
from headrace.http.queues import Queues
from headrace.http.quotas import QuotaOperations
from headrace.http.records import RecordOperations
from headrace.http.tenants import TenantOperations
from headrace.http.topic_shares import TopicShareOperations
from headrace.http.topics import TopicOperations
from headrace.http.users import UserOperations
from headrace.http.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

PARTS = (
    TopicOperations,
    LedgerOperations,
    RecordOperations,
    DelayedOperations,
    GroupOperations,
    Queues,
    ParkedOperations,
    QuotaOperations,
    DiagnosisOperations,
    DeadLetterOperations,
    AclOperations,
    TenantOperations,
    TopicShareOperations,
    UserOperations,
    BrokerConfigOperations,
)


class Web:
    """The interface of one broker."""

    def __init__(self, rig: BrokerHarness, *, is_local: bool = True) -> None:
        self.node = rig.node
        self.rig = rig
        self.answered: dict[str, str] = {}
        self.received = bytearray()
        """All that clients were answered, with headers."""
        self.operations: list[Operation] = [
            one for p in PARTS for one in p(rig.node.services).operations
        ]
        services = rig.node.services
        self.operations += queries(services)
        self.history = History(rig.node.clock, reader(services, rig.face))
        figures = BrokerFigures(services, self.history, Verdict(services).problems, rig.node.tasks)
        self.operations += ClusterOperations(
            services, lambda: rig.face.connections, figures
        ).operations
        self.operations += OverviewOperations(services, self.history, figures).operations
        self.app = Starlette(routes=routes(rig.node.services, self.operations, is_local=is_local))
        self.sending: Callable[[], Any] = lambda: None
        """Called before each message of a response."""

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        content_type: str = "application/json",
        **headers: str,
    ) -> tuple[int, Any]:
        """(status, what the answer says)."""
        sent = json.dumps(body).encode()
        status, data = await self.raw(method, target, sent, content_type, **headers)
        return status, json.loads(data) if data else None

    async def raw(
        self,
        method: str,
        target: str,
        body: bytes,
        content_type: str = "application/json",
        *,
        leaves: bool = False,
        **headers: str,
    ) -> tuple[int, bytes]:
        """The same, of bytes; `answered` has the response's headers then. `leaves`: the client
        disconnects at once."""
        sent: list[dict[str, Any]] = []
        bodies = [body]

        async def receive() -> dict[str, Any]:
            if leaves:
                await asyncio.sleep(0)  # an event is sent first
                return {"type": "http.disconnect"}
            if not bodies:  # nothing follows a whole request: a stream waits here for its client
                await asyncio.Event().wait()
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}

        async def send(message: Any) -> None:
            self.sending()
            sent.append(message)

        asked = scope(method, target, content_type)
        asked["headers"] += [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        await asyncio.wait_for(self.app(asked, receive, send), 30)
        self.answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        data = b"".join(message.get("body", b"") for message in sent[1:])
        self.received += repr(self.answered).encode() + data
        check_answer(asked, sent[0]["status"], self.answered, data)
        return sent[0]["status"], data


def closed(schema: Any) -> Any:
    """The same schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(one) for name, one in schema.items()}
    return found | {"additionalProperties": False} if "properties" in found else found


@functools.cache
def answer_schema(name: str) -> jsonschema_rs.Validator:
    """What checks that an answer has exactly the fields that the document names."""
    return jsonschema_rs.validator_for(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": f"#/components/schemas/{answers.component(name)}",
            "components": {"schemas": closed(answers.components())},
        }
    )


def check_answer(asked: Any, status: int, headers: dict[str, str], data: bytes) -> None:
    """Every success that a test gets is as the document says."""
    if status < 300 and headers.get("content-type") == "application/json":
        operation = asked["route"].app._operations[asked["method"]]
        if operation.name in answers.ANSWERS:
            answer_schema(operation.name).validate(json.loads(data))


@contextlib.asynccontextmanager
async def followed(web: Web, target: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Follows a topic; yields what returns the next record, or another event."""
    got: asyncio.Queue[bytes] = asyncio.Queue()
    ended = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        got.put_nowait(message.get("body", b""))

    async def next_record(kind: str = "record") -> Any:
        """The data of the next event of this kind; of "place" its id."""
        while True:
            event = (await asyncio.wait_for(got.get(), 60)).decode()
            if f"event: {kind}\n" in event:
                data = json.loads(event.partition("data: ")[2])
                return data or event.partition("id: ")[2].partition("\n")[0]

    following = asyncio.create_task(web.app(scope("GET", target), receive, send))
    yield next_record
    ended.set()
    await asyncio.wait_for(following, 10)


def scope(method: str, target: str, content_type: str = "application/json") -> dict[str, Any]:
    path, _, query = target.partition("?")
    headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
    found = {"type": "http", "method": method, "path": path, "headers": headers}
    return found | {"query_string": query.encode(), "http_version": "1.1", "root_path": ""}


on_the_web = on_a_broker(Web)
"""Run a test on a broker of its own."""
