"""Browser sessions: sign-in, the requests for which a session counts, and its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import pytest
from tests.unit.http.test_logins import Address, ask, basic, served, set_password

from headrace.broker.security import browser_sessions
from headrace.http import history, operations, records
from headrace.metadata.issued_facts import BROWSER_SESSIONS
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore

GOOD = {"user": "alice", "password": "pä:ss"}


class SignedIn(NamedTuple):
    """What a page has after a sign-in."""

    cookie: str
    csrf: str
    answer: str


async def sign_in(address: Address, *headers: str, **given: str) -> SignedIn:
    """Sign in as a page does."""
    status, answer = await ask(
        address, "POST", "/v1/session", "Sec-Fetch-Site: same-origin", *headers, body=GOOD | given
    )
    assert status == 200, answer
    line = next(one for one in answer.split("\r\n") if one.lower().startswith("set-cookie:"))
    cookie = line.partition(": ")[2].partition(";")[0]
    body = json.loads(answer.rpartition("\r\n\r\n")[2])
    return SignedIn(f"Cookie: {cookie}", f"X-CSRF-Token: {body['csrf_token']}", answer)


async def who(address: Address, *headers: str) -> Any:
    """What the broker says of the client."""
    status, answer = await ask(address, "GET", "/v1/session", *headers)
    assert status == 200
    return json.loads(answer.rpartition("\r\n\r\n")[2])


async def status_of(address: Address, *headers: str, method: str = "GET") -> int:
    body = {"name": "made"} if method == "POST" else None
    return (await ask(address, method, "/v1/topics", *headers, body=body))[0]


async def test_a_session_stands_for_its_user_until_it_signs_out():
    async with served() as address:
        assert await who(address) == {
            "principal": "User:ANONYMOUS",
            "is_authenticated": False,
            "by": "",
            "can_sign_in": True,
        }
        page = await sign_in(address)
        lines = page.answer.lower()
        assert "httponly" in lines
        assert "samesite=strict" in lines
        assert "path=/" in lines
        assert "cache-control: no-store" in lines
        for path in ("/v1/topics", "/v1/users", "/metrics", "/v1/topics/none"):
            _, answer = await ask(address, "GET", path, page.cookie)
            assert answer.lower().count("cache-control: no-store") == 1, path
        found = await who(address, page.cookie)
        assert (found["principal"], found["by"]) == ("User:alice", "session")
        assert page.csrf.endswith(found["csrf_token"])
        assert await status_of(address, page.cookie) == 200
        assert await status_of(address, page.cookie, page.csrf, method="POST") == 201
        status, answer = await ask(address, "DELETE", "/v1/session", page.cookie, page.csrf)
        assert status == 200
        assert "max-age=0" in answer.lower()
        assert await status_of(address, page.cookie) == 401
        assert not (await who(address, page.cookie))["is_authenticated"]


@pytest.mark.parametrize(
    "given", [{"password": "wrong"}, {"user": "mallory"}], ids=["password", "user"]
)
def test_a_failed_sign_in_has_one_answer_after_a_delay(given):
    async def scenario() -> None:
        async with served() as address:
            begun_s = asyncio.get_running_loop().time()
            status, answer = await ask(address, "POST", "/v1/session", body=GOOD | given)
            assert asyncio.get_running_loop().time() - begun_s > 0.09
            assert status == 401
            assert "the credentials are not valid" in answer
            assert "set-cookie" not in answer.lower()
            assert "no such user" not in answer

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "foreign",
    [
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        ["Origin: http://localhost:3000"],
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Origin: http://[bad"],
    ],
    ids=lambda one: one[0],
)
async def test_a_session_counts_for_no_other_sites_requests(foreign):
    async with served() as address:
        page = await sign_in(address)
        assert await status_of(address, page.cookie, *foreign) == 403
        assert await status_of(address, page.cookie, page.csrf, *foreign, method="POST") == 403
        status, answer = await ask(address, "POST", "/v1/session", *foreign, body=GOOD)
        assert status == 403, "nor does another site sign a person in as somebody else"
        assert "set-cookie" not in answer.lower()


async def test_a_change_needs_the_token_that_only_a_page_of_the_broker_can_read():
    async with served() as address:
        page, other = await sign_in(address), await sign_in(address)
        for csrf in ((), ("X-CSRF-Token: x",), (other.csrf,)):
            assert await status_of(address, page.cookie, *csrf, method="POST") == 403
        own = "Origin: http://localhost"
        assert await status_of(address, page.cookie, page.csrf, own, method="POST") == 201


async def test_a_session_is_not_fixed_by_what_a_browser_had_before():
    async with served() as address:
        name = (await sign_in(address)).cookie.partition("=")[0]
        planted = f"{name}={'A' * 64}"
        page = await sign_in(address, planted)
        assert page.cookie != planted
        assert await status_of(address, planted) == 401
        again = await sign_in(address, page.cookie, page.csrf)
        assert again.cookie != page.cookie
        assert await status_of(address, page.cookie) == 401, "a new sign-in ends the old one"
        twice = f"{again.cookie}; {planted.removeprefix('Cookie: ')}"
        assert await status_of(address, twice) == 401, "two cookies of the name: one is planted"


@pytest.mark.parametrize("password", ["another", None], ids=["rotated", "removed"])
async def test_a_session_ends_with_the_password_that_began_it(password):
    async with served() as address:
        page = await sign_in(address)
        await set_password(address.node, password)
        assert await status_of(address, page.cookie) == 401
        await set_password(address.node, "third")
        assert await status_of(address, page.cookie) == 401
        sessions = address.node.services.issuers.sessions.issued
        await sessions.sweep()
        assert not len(sessions)
        assert not await address.node.metadata.list(BROWSER_SESSIONS)


async def test_a_session_expires():
    async with served() as address:
        address.node.services.issuers.sessions.lifetime_ms = 1
        page = await sign_in(address)
        await asyncio.sleep(0.01)
        assert await status_of(address, page.cookie) == 401


async def test_sessions_are_bounded_and_the_oldest_of_a_user_ends(monkeypatch):
    monkeypatch.setattr(browser_sessions, "SESSIONS_OF_USER_MAX", 3)

    async with served() as address:
        pages = [await sign_in(address) for _ in range(4)]
        found = [await status_of(address, page.cookie) for page in pages]
        assert found == [401, 200, 200, 200]


async def test_a_session_holds_on_every_broker_at_once_and_ends_on_every_broker():
    shared = MemoryMetadata()
    async with (
        served(metadata=MemoryMetadataStore(shared)) as first,
        served(metadata=MemoryMetadataStore(shared), broker_id=1) as second,
    ):
        page = await sign_in(first)
        assert await status_of(second, page.cookie) == 200
        await ask(second, "DELETE", "/v1/session", page.cookie, page.csrf)
        async with asyncio.timeout(5):
            while await status_of(first, page.cookie) != 401:
                await asyncio.sleep(0.01)


async def test_nothing_that_is_stored_or_logged_is_enough_for_a_session(caplog):
    caplog.set_level("DEBUG")

    async with served() as address:
        page = await sign_in(address)
        (entry,) = await address.node.metadata.list(BROWSER_SESSIONS)
        value = page.cookie.partition("=")[2]
        stored = entry.key + entry.value.decode()
        assert value not in stored
        assert entry.key.rpartition("/")[2] not in value
        for text in (value, page.csrf.rpartition(" ")[2], "pä:ss"):
            assert text not in caplog.text
        forged = page.cookie.partition("=")[0] + "=" + entry.key.rpartition("/")[2]
        assert await status_of(address, forged) == 401


async def test_a_pages_script_that_is_refused_makes_the_browser_ask_for_no_password():
    async with served() as address:
        _, answer = await ask(address, "GET", "/v1/topics", "Sec-Fetch-Mode: cors")
        assert "www-authenticate: session" in answer.lower()
        assert "basic" not in answer.lower()
        page = await sign_in(address)
        both = f"Authorization: {basic('alice', 'wrong')}"
        assert await status_of(address, page.cookie, both) == 401, "what is said counts first"


async def test_a_stream_ends_with_the_session_that_began_it():
    async with served() as address:
        page = await sign_in(address)
        await address.node.topics.create("orders")
        reader, writer = await asyncio.open_connection(*address)
        lines = ["GET /v1/topics/orders/tail HTTP/1.1", "Host: localhost", page.cookie]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readuntil(b": follows")
        await ask(address, "DELETE", "/v1/session", page.cookie, page.csrf)
        given = f"Authorization: {basic('alice', 'pä:ss')}"
        body = {"records": [{"value": "secret text"}]}
        status, answer = await ask(address, "POST", "/v1/topics/orders/records", given, body=body)
        assert status == 200, answer
        async with asyncio.timeout(20):
            text = await reader.readuntil(b"the credentials are not valid")
        writer.close()
        assert b"secret text" not in text


@pytest.mark.parametrize("path", ["/v1/topics/orders/tail", "/v1/events"])
async def test_a_quiet_stream_ends_soon_after_its_login(path, monkeypatch):
    """Not only once there is something to send."""
    monkeypatch.setattr(records, "KEEP_ALIVE_S", 1e6)
    monkeypatch.setattr(history, "INTERVAL_S", 1e6)
    async with served() as address:
        await address.node.topics.create("orders")
        reader, writer = await asyncio.open_connection(*address)
        lines = [f"GET {path} HTTP/1.1", "Host: localhost"]
        lines.append(f"Authorization: {basic('alice', 'pä:ss')}")
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await reader.readuntil(b"event: ")
        await set_password(address.node, "another")
        async with asyncio.timeout(30):
            await reader.readuntil(b"event: problem")
            await reader.readuntil(b"the credentials are not valid")
        writer.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics/orders/records?wait_ms=60000"),
        ("POST", "/v1/queues/orders/billing/receive"),
        ("POST", "/v1/half/billing/checks"),
    ],
)
async def test_a_request_that_waits_ends_soon_after_its_login(method, path, monkeypatch):
    """Not only when it would have anyway, up to a minute later."""
    begun, handled = asyncio.Event(), operations._handled

    async def note(*given: Any) -> Any:
        begun.set()
        return await handled(*given)

    monkeypatch.setattr(operations, "_handled", note)
    async with served() as address:
        await address.node.topics.create("orders")
        body = b'{"wait_ms": 60000, "max": 1}' if method == "POST" else b""
        reader, writer = await asyncio.open_connection(*address)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
        lines.append(f"Authorization: {basic('alice', 'pä:ss')}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await begun.wait()
        await set_password(address.node, "another")
        async with asyncio.timeout(30):
            assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("what", ["tail?from=earliest", "export"])
async def test_a_slowed_stream_is_checked_again_before_it_goes_on(what):
    """What was read while the login held waits for the quota, and is not sent after its end."""
    async with served() as address:
        node, quotas = address.node, address.node.services.quotas
        await node.topics.create("orders")
        given = f"Authorization: {basic('alice', 'pä:ss')}"
        body = {"records": [{"value": f"text {number} {'x' * 80_000}"} for number in range(3)]}
        assert (await ask(address, "POST", "/v1/topics/orders/records", given, body=body))[0] == 200
        has_slowed, go_on = asyncio.Event(), asyncio.Event()

        async def slow(_session: Any, _kind: Any, size_bytes: int) -> None:
            if size_bytes > 80_000:
                has_slowed.set()
                await go_on.wait()

        quotas.take = lambda _session, _kind, size_bytes: size_bytes  # type: ignore[method-assign]
        quotas.wait_paid = slow  # type: ignore[method-assign]
        reader, writer = await asyncio.open_connection(*address)
        lines = [f"GET /v1/topics/orders/{what} HTTP/1.1", "Host: localhost", given]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        await asyncio.wait_for(has_slowed.wait(), 30)
        await set_password(node, "another")
        go_on.set()
        text = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        assert b"text 0" in text
        assert b"text 1" not in text
