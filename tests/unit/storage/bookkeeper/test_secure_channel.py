"""START_TLS, against a server that says whatever a test wants in its place."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.certificates import Authority

from headrace.runtime.tls import client_context
from headrace.storage.bookkeeper.secure_channel import open_channel
from headrace.storage.bookkeeper.wire import (
    START_TLS_FRAME,
    MalformedFrame,
    decode_response,
    start_tls_status,
)

YES = bytes.fromhex("0000000d 0a06 0803 1009 1801 1000 d20600")
"""As a real bookie says it: header, status 0, StartTLSResponse."""
NO = bytes.fromhex("0000000b 0a06 0803 1009 1801 109403")


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "ours").sign("bookie")


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_connected = False
        self.data = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport) -> None:
        self.is_connected, self.transport = True, transport
        transport.write(b"ping")

    def data_received(self, data: bytes) -> None:
        self.data += data


def play(identity, answer: bytes, *, is_secure: bool = True) -> Heard:
    """Connect to a server that answers so and, if that was yes, says `pong` inside of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    heard = Heard()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(len(START_TLS_FRAME)) == START_TLS_FRAME
            writer.write(answer)
            await writer.drain()
            if answer == YES:
                await writer.start_tls(context)
                assert await reader.readexactly(4) == b"ping"
                writer.write(b"pong")
                await writer.drain()
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client did not like it
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        tls = client_context(identity.files) if is_secure else None
        try:
            async with asyncio.timeout(30):
                await open_channel(heard, "127.0.0.1", port, tls)
                while heard.data != b"pong":
                    await asyncio.sleep(0.005)
        finally:
            if heard.transport is not None:
                heard.transport.abort()
            server.close()
            await server.wait_closed()
            await asyncio.sleep(0)

    asyncio.run(main())
    return heard


def test_traffic_after_start_tls_is_encrypted(identity):
    heard = play(identity, YES)
    assert heard.transport is not None
    assert heard.transport.get_extra_info("cipher")


def test_a_bookie_without_tls_is_not_spoken_to_in_the_clear(identity):
    with pytest.raises(ConnectionRefusedError, match="404"):
        play(identity, NO)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        YES[:-4],
        YES + b"\x00",  # somebody on the way would have it taken for what the bookie says
        b"\x00\x00\x00\x04junk",
        b"\xff\xff\xff\xff" + b"x" * 300,
    ],
)
def test_whatever_else_is_said_ends_the_connection_before_anything_is_sent(identity, answer):
    with pytest.raises(ConnectionError):
        play(identity, answer)


@given(st.binary(max_size=40))
def test_an_answer_is_a_status_or_malformed(data):
    try:
        assert 0 <= start_tls_status(memoryview(data)) < 1 << 14
    except MalformedFrame:
        pass


def test_a_refusal_after_the_handshake_says_what_to_look_at():
    assert start_tls_status(memoryview(NO)[4:]) == 404
    with pytest.raises(MalformedFrame, match="authorizedRoles"):
        decode_response(memoryview(NO)[4:])
