"""HTTP clients that authenticate: Basic, bearer tokens, and what the others may see."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.authentication import Authentication
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.logins import MECHANISMS
from headrace.broker.security.tokens import TokenUser
from headrace.broker.security.users import CredentialChange
from headrace.errors import AuthenticationFailed
from headrace.http.face import HttpFace
from headrace.runtime.scram import SHA_256, new_credential, salt_text
from headrace.runtime.security_protocols import SASL_PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.broker.node import Node
    from headrace.kafka.dispatch import KafkaFace
    from headrace.metadata.memory import MemoryMetadataStore

HTTP = ListenerSecurity("HTTP", SASL_PLAINTEXT)


class KnownTokens:
    """Stands for an issuer: `good` is alice's token."""

    async def judge(self, token: str) -> TokenUser:
        if token != "good":
            raise AuthenticationFailed("forged")
        return TokenUser("alice", 2**50)


class Address(tuple[str, int]):  # noqa: SLOT001  # it has the broker, too
    """Where a broker listens, and the broker."""

    node: Node
    kafka: KafkaFace


@asynccontextmanager
async def served(
    mechanisms: tuple[str, ...] = MECHANISMS,
    metadata: MemoryMetadataStore | None = None,
    listener: ListenerSecurity = HTTP,
    **config: Any,
) -> AsyncIterator[Address]:
    """An HTTP listener with authentication, and the user alice."""
    rig = BrokerHarness(BrokerConfig(**config), metadata=metadata)
    node = await rig.start()
    tokens: Any = KnownTokens()
    logins = node.services.authentication.logins.with_tokens(tokens)
    await logins.secret.load()
    node.services.authentication = Authentication(logins, {"HTTP": mechanisms}, is_required=True)
    if not logins.users.has_user("alice"):
        await set_password(node, "pä:ss")
    face = HttpFace(node.services, node.tasks, rig.face)
    address = Address(await face.listen("127.0.0.1", 0, listener))
    address.node, address.kafka = node, rig.face
    face.serve_ready()
    try:
        yield address
    finally:
        await face.close()
        await rig.stop()


async def set_password(node: Node, password: str | None) -> None:
    """Change alice's password; None: remove her."""
    credential = None if password is None else new_credential(SHA_256, password, salt_text(1))
    users = node.services.authentication.users
    result = await users.change([CredentialChange("alice", SHA_256, credential)])
    assert result == {"alice": None}


async def get(address: tuple[str, int], path: str, *authorization: str) -> tuple[int, str]:
    """(status, everything that was answered)."""
    return await ask(address, "GET", path, *[f"Authorization: {one}" for one in authorization])


async def ask(
    address: tuple[str, int], method: str, path: str, *headers: str, body: Any = None
) -> tuple[int, str]:
    """(status, everything that was answered)."""
    reader, writer = await asyncio.open_connection(*address)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
    data = b"" if body is None else json.dumps(body).encode()
    if data:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + data)
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_only_users_and_tokens_are_served():
    async with served() as address:
        for path in ("/v1/topics", "/metrics", "/openapi.json"):
            for good in (basic("alice", "pä:ss"), "Bearer good", "bearer good"):
                status, answer = await get(address, path, good)
                assert status in {200, 503}, answer
            status, answer = await get(address, path)
            assert status == 401
            assert 'WWW-Authenticate: Basic realm="headrace"'.lower() in answer.lower()
            assert "www-authenticate: bearer" in answer.lower()


@pytest.mark.parametrize(
    "given",
    [
        [basic("alice", "wrong")],
        [basic("mallory", "pä:ss")],
        [basic("alice", "")],
        [basic("", "x")],
        ["Basic !!!"],
        ["Basic"],
        ["Bearer forged"],
        ["Bearer "],
        ["Digest x"],
        [""],
        ["Basic " + "A" * 30_000],
        [basic("alice", "pä:ss"), basic("alice", "pä:ss")],
    ],
    ids=lambda given: given[0][:20],
)
def test_wrong_credentials_get_one_answer_also_on_open_paths(given, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")

    async def scenario() -> None:
        async with served() as address:
            for path in ("/v1/topics", "/healthz"):
                begun_s = asyncio.get_running_loop().time()
                status, answer = await get(address, path, *given)
                assert status == 401
                assert asyncio.get_running_loop().time() - begun_s > 0.09
                assert "the credentials are not valid" in answer

    asyncio.run(scenario())
    lines = [one.getMessage() for one in caplog.records if one.name == "headrace.audit"]
    line = json.loads(lines[0])
    assert (line["event"], line["listener"]) == ("login_failed", "HTTP")
    named = {basic("alice", "wrong"): "alice", basic("mallory", "pä:ss"): "mallory"}
    assert line["user"] in {named.get(given[0], ""), "alice"}
    assert "pä:ss" not in json.dumps(line, ensure_ascii=False)


async def test_requests_are_served_while_a_password_waits_to_be_hashed():
    """The event loop computes no password's hash: while their thread is busy, a login waits, and
    whoever has logged in does not."""
    free = threading.Event()
    async with served() as address:
        address.node.services.authentication.logins.threads.start(lambda: free.wait(60))
        login = asyncio.create_task(get(address, "/v1/topics", basic("alice", "pä:ss")))
        try:
            for _ in range(20):
                assert (await get(address, "/v1/topics", "Bearer good"))[0] == 200
            assert not login.done()
        finally:
            free.set()
        assert (await login)[0] == 200


async def test_health_shows_unauthenticated_clients_only_whether_the_broker_is_ready():
    async with served() as address:
        status, answer = await get(address, "/healthz")
        assert (status, answer.rpartition("\r\n\r\n")[2]) == (200, "ok\n")
        _status, answer = await get(address, "/readyz")
        assert answer.rpartition("\r\n\r\n")[2] == '{"ready":true}'


async def test_tokens_are_refused_where_they_are_not_enabled():
    async with served((SHA_256,)) as address:
        status, answer = await get(address, "/v1/topics", "Bearer good")
        assert status == 401
        assert "bearer" not in answer.lower()
        assert (await get(address, "/v1/topics", basic("alice", "pä:ss")))[0] == 200
