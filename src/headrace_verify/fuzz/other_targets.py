"""Fuzz targets of logins, HTTP, gRPC, expressions, and of the servers that a broker uses.

Invariants: as `kafka_targets`.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, Final

from headrace.broker.security.oauthbearer import read_bearer, read_scheme
from headrace.broker.security.plain import read_plain
from headrace.broker.security.tokens import _header, parse_keys
from headrace.errors import AuthenticationFailed, ConfigInvalid, HeadraceError, RequestInvalid
from headrace.grpc.connection import Http2Connection
from headrace.grpc.frames import PREFACE
from headrace.grpc.hpack import CompressionInvalid, HeaderDecoder, HeaderListTooLarge
from headrace.grpc.limits import Limits
from headrace.grpc.messages import MessageInvalid, decompressed, timeout_s
from headrace.http.connection import HttpConnection
from headrace.http.logins import _basic
from headrace.http.operations import _loads, _parse_lines
from headrace.http.receipts import parse
from headrace.records.cel_syntax import parse as parse_cel
from headrace.records.filters import parse_sql, parse_tags
from headrace.rocketmq.handles import Recall
from headrace.runtime.protobuf_wire import ProtobufInvalid, fields
from headrace.runtime.scram import HASHES, ScramClient, ScramLogin, absent_credential
from headrace.schemas import avro
from headrace.schemas.protobuf import split_indexes
from headrace.schemas.undecodable import Undecodable
from headrace.storage.bookkeeper import wire as bookies
from headrace.zookeeper.wire import BrokenAnswer, FrameReader

SECRET: Final = b"secret"
LINE: Final = b"\n"
_AVRO: Final = (
    '{"type":"record","name":"R","fields":[{"name":"a","type":["null","long","string"]},'
    '{"name":"b","type":{"type":"array","items":{"type":"map","values":"double"}}},'
    '{"name":"c","type":["null","R"]},{"name":"d","type":{"type":"bytes","logicalType":"decimal",'
    '"precision":9,"scale":2}},{"name":"e","type":{"type":"long","logicalType":'
    '"timestamp-micros"}}]}'
)


def logins(data: bytes) -> None:
    """SASL's messages, by every mechanism: two, one after the other, with a line between."""
    first, _line, second = data.partition(LINE)
    for mechanism in HASHES:
        login = ScramLogin(
            mechanism, lambda user, _: (absent_credential("SCRAM-SHA-256", SECRET, user), True), "n"
        )
        try:
            login.first(first)
            login.final(second)
        except AuthenticationFailed:
            pass
        else:
            raise AssertionError("a login without the password")
    for read in (read_plain, read_bearer):
        try:
            read(data)
        except AuthenticationFailed:
            pass


def answers_to_logins(data: bytes) -> None:
    """What a server answers to a broker that logs in."""
    client = ScramClient("SCRAM-SHA-256", "user", "password", "nonce")
    client.first()
    if b"i=4096" not in data:  # a hash of that many rounds takes milliseconds
        try:
            client.final(data)
        except AuthenticationFailed:
            pass
    try:
        client.check(data)
    except AuthenticationFailed:
        pass


def credentials(data: bytes) -> None:
    """What is in HTTP's Authorization, and keys of an issuer."""
    text = data.decode("latin-1")
    for read in (_basic, read_scheme, _header):
        try:
            read(text)
        except AuthenticationFailed:
            pass
    try:
        parse_keys(data)
    except ConfigInvalid:
        pass


class _Requests:
    """Takes a connection's requests, and answers none."""

    def opened(self, stream: Any, request: Any) -> None:
        stream.exchange = SimpleNamespace(
            receive=self.receive, end=self.receive, reset=self.receive, cancel=self.receive
        )

    def receive(self, *_: Any, **__: Any) -> None:
        pass

    has_output = dropped_output = ponged = receive


def http2(data: bytes) -> None:
    """A gRPC client's stream after its preface: whatever comes, no exception."""
    connection = Http2Connection(_Requests(), Limits(), lambda: 0.0)
    connection.begin()
    connection.receive(PREFACE + data)
    assert connection.held_bytes <= len(data)


def header_blocks(data: bytes) -> None:
    """HPACK: two blocks of one connection."""
    decoder = HeaderDecoder()
    half = len(data) // 2
    for block in (data[:half], data[half:]):
        try:
            decoder.decode(block)
        except (CompressionInvalid, HeaderListTooLarge):
            return


def grpc_messages(data: bytes) -> None:
    """The body of a message, a deadline, and a protobuf message's fields."""
    timeout_s(data[:16])
    try:
        plain = decompressed(data, 1 << 20)
        assert plain is None or len(plain) <= 1 << 20
    except MessageInvalid:
        pass
    try:
        for _field in fields(data):
            pass
    except ProtobufInvalid:
        pass
    try:
        Recall.parse(data.decode("latin-1"))
    except HeadraceError:
        pass


class _Loop(SimpleNamespace):
    """Runs nothing: requests are parsed, and not answered."""

    def __init__(self) -> None:
        super().__init__(time=lambda: 0.0)

    def create_task(self, work: Any, **_: Any) -> Any:
        work.close()  # it never runs
        return SimpleNamespace(add_done_callback=lambda _: None)

    def call_soon(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    call_later = call_soon


class _Transport(asyncio.Transport):
    """A client that takes everything."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closing = False

    def write(self, data: Any) -> None:
        pass

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


async def _application(_scope: Any, _receive: Any, _send: Any) -> None:
    pass


def _http_config() -> Any:
    import uvicorn

    config = uvicorn.Config(_application, log_config=None)
    config.load()
    return config


_CONFIG: Final = _http_config()


def http(data: bytes) -> None:
    """An HTTP client's stream: whatever comes, no exception."""
    from uvicorn.server import ServerState

    connection = HttpConnection(_CONFIG, ServerState(), {}, _Loop())
    connection.connection_made(_Transport())
    connection.data_received(data)


def bodies(data: bytes) -> None:
    """The body of an HTTP request, as JSON and as lines; as receipts, if it is an object."""
    for read in (_loads, _parse_lines):
        try:
            found = read(bytearray(data))
            if isinstance(found, dict):
                parse(found)
        except (HeadraceError, ValueError, RecursionError):  # as `read_body`
            pass


def expressions(data: bytes) -> None:
    """What clients search and filter by."""
    text = data.decode("latin-1")
    for read in (parse_cel, parse_sql, parse_tags):
        try:
            read(text)
        except (ConfigInvalid, RequestInvalid):
            pass


def zookeeper(data: bytes) -> None:
    """Answers of ZooKeeper."""
    for read in (
        FrameReader.event, FrameReader.opened, FrameReader.names, FrameReader.stat,
        FrameReader.state, lambda reader: list(reader.multi()),
    ):  # fmt: skip
        try:
            read(FrameReader(data))
        except BrokenAnswer:
            pass


def bookkeeper(data: bytes) -> None:
    """Responses of bookies."""
    try:
        response = bookies.decode_response(memoryview(data))
        bookies.batch_request_id(response.body)
        bookies.batch_entries(response.body)
    except bookies.MalformedFrame:
        pass
    bookies.check_entry(1, bookies.LAST_ADD_CONFIRMED, memoryview(data))


def values(data: bytes) -> None:
    """Values that are decoded by schemas."""
    for read in (split_indexes, lambda payload: avro.value_of(_AVRO, payload)):
        try:
            read(data)
        except Undecodable:
            pass
