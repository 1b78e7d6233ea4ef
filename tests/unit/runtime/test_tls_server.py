"""TLS connections are accepted beside however many that never finish their handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from typing import cast

import pytest
import uvloop
from tests.waiting import until

from headrace.runtime import tls_server
from headrace.runtime.new_certificates import Authority
from headrace.runtime.tls import TlsMaterial, report_handshakes, server_context
from headrace.runtime.tls_server import TlsServer, listening_sockets

LIMIT_S = 20


class Echo(asyncio.Protocol):
    """Answers each connection, and what it sends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        answering = cast("asyncio.Transport", transport)  # uvloop's has no such base
        answering.write(b"hello")
        answering.close()


@pytest.fixture(scope="module")
def contexts():
    authority = Authority("ca", time.time_ns() // 1_000_000)
    pem = authority.sign("broker", ("localhost",))
    server = server_context(TlsMaterial(pem.certificate, pem.key))
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    return server, client


async def hello(port: int, client: ssl.SSLContext) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client, server_hostname="localhost"
        )
        found = await reader.read()
        writer.close()
        return found


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_the_oldest_unfinished_handshake_gives_way(contexts, run, monkeypatch):
    monkeypatch.setattr(tls_server, "HANDSHAKES_MAX", 5)
    serving, client_context = contexts

    async def scenario() -> None:
        sockets = await listening_sockets("127.0.0.1", 0, 100)
        port = sockets[0].getsockname()[1]
        server = TlsServer(sockets, Echo, serving)
        await server.start_serving()
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        await until(lambda: server.given_up_total >= 15)
        assert server.unfinished == 5
        for _ in range(3):
            assert await hello(port, client_context) == b"hello"
        silent[0].settimeout(LIMIT_S)
        assert await asyncio.to_thread(silent[0].recv, 1) == b"", "the oldest is closed"
        garbage = socket.create_connection(("127.0.0.1", port))
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert await hello(port, client_context) == b"hello"
        server.close()
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        for one in (*silent, garbage):
            one.close()

    run(scenario())


async def test_an_address_that_is_taken_is_an_error_and_leaks_nothing():
    first = await listening_sockets("127.0.0.1", 0, 1)
    with pytest.raises(OSError, match=r".*"):
        await listening_sockets("127.0.0.1", first[0].getsockname()[1], 1)
    first[0].close()


def _handshake(serving: ssl.SSLContext, client: ssl.SSLContext, session: object) -> ssl.SSLObject:
    """The client's end after a handshake in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    other = serving.wrap_bio(to_server, to_client, server_side=True)
    is_done = [False, False]
    while not all(is_done):
        for at, end in enumerate((one, other)):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
                is_done[at] = True
    return one


def test_a_resumed_session_does_not_outlive_its_clients_certificate(monkeypatch, tmp_path):
    """TLS 1.2, where tickets hold the certificate that was verified when the session began."""
    authority = Authority("ca", time.time_ns() // 1_000_000)
    pem, own = authority.sign("broker", ("localhost",)), authority.sign("alice", days=1)
    material = TlsMaterial(
        *(pem.certificate, pem.key, "", authority.certificate, "required", ("TLSv1.2",))
    )
    serving = server_context(material)
    report_handshakes(serving, "CLIENT")
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    path = tmp_path / "alice.pem"
    path.write_bytes(own.key + own.certificate)
    client.load_cert_chain(path)
    session = _handshake(serving, client, None).session
    assert _handshake(serving, client, session).session_reused
    now_s = time.time()
    monkeypatch.setattr("headrace.runtime.tls.time.time", lambda: now_s + 2 * 86_400)
    with pytest.raises(ssl.SSLError, match="expired since its session began"):
        _handshake(serving, client, session)
