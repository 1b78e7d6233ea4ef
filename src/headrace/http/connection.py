"""One HTTP connection: uvicorn's on httptools, with the bounds and refusals that the parser lacks.

Responsibilities: of what a client sends ahead, at most one slice is parsed before the response that
is owed is sent; the rest stays unparsed. Heads, trailers and chunk extensions are bounded, and the
time in which a head arrives. A malformed request gets 400 after the responses that are owed before
it, a late one 408, and either ends the connection. The head and the body of a response are one
write (`JoinedWrites`). Knows no path and no handler.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.broker.security.listener import OPEN
from headrace.errors import AuthenticationFailed
from headrace.http.joined_writes import JoinedWrites
from headrace.http.problems import problem
from headrace.runtime.tls import certificate_of, server_name_of

if TYPE_CHECKING:
    import asyncio

    from headrace.broker.security.connection_limits import ConnectionLimits
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.http.answer_room import AnswerMemory

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 128
"""From here on the oldest that waits for its client is closed for each new one: health checks come
through beside however many that dribble."""
SLICE_BYTES: Final = 4096
"""Parsed at once. The parser cannot be stopped, the shortest request has 18 bytes, and the objects
of one take some kilobytes."""
UNPARSED_BYTES_MAX: Final = 1024 * 1024
"""Of requests that were sent ahead. The socket is not read from the first of them on, but for once
each time that a handler asks whether its client has disconnected."""
BARREN_BYTES_MAX: Final = 64 * 1024
"""Of input in a row that completes no head, no message and no part of a body: a page token or a
name of the longest kind, percent-encoded, fits."""
HEAD_S_MAX: Final = 30.0
"""From the connection, or the first byte while no response is owed, to the end of a head: as long
as a Kafka client has for its login."""
PRINCIPAL: Final = "principal"
"""The key of a request's state that holds the principal of the client's certificate."""
PLACE: Final = "place"
"""The key of a request's state that holds the tenant that its connection is for, a TenantPlace."""
CONNECTION: Final = "connection"
"""The key of a request's state that holds its connection, as `ConnectionLimits` counts it."""
LOGIN: Final = "login"
"""The key of a request's state that holds how it was authenticated, an HttpLogin."""
SCOPE: Final = "scope"
"""The key of a request's state that holds what its API key is limited to."""
_TLS_HANDSHAKE: Final = b"\x16\x03"
VERSIONS: Final = ("1.1", "1.0")
_HOST: Final = b"host"
_INVALID: Final = "the request is not valid HTTP, or its head is too large"


class RequestMalformed(ValueError):
    """The parser accepts it, HTTP does not (RFC 9112, sections 2.3 and 3.2)."""


class HttpConnection(HttpToolsProtocol):
    """See the module. An idle connection gives way to a new one where there are too many."""

    def __init__(
        self,
        *given: Any,
        listener: ListenerSecurity = OPEN,
        limits: ConnectionLimits | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*given, **named)
        self.listener = listener
        self._limits = limits
        self.began_s = 0.0
        self._unparsed: bytes | memoryview = b""
        self._barren_bytes = 0
        self._is_barren = True
        """Whether the slice that is being parsed has completed nothing yet."""
        self._is_in_head = False
        self._has_ended = False
        """Nothing more is parsed: the request before was malformed, or asked for an upgrade."""
        self._head_due: asyncio.TimerHandle | None = None
        self.is_slow = False
        """See loop_turns.SLOW_NS."""
        self._is_behind = False
        """Whether the next request, which is parsed, waits until the client reads."""
        self.is_over = False
        """Whether its client has left."""
        self._memory: AnswerMemory | None = None
        """Of answers, once it was asked for something."""
        self._unsent_bytes = 0
        """Counted there for what was passed to the transport."""

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        super().connection_made(JoinedWrites(transport, self.loop))
        self.began_s = self.loop.time()
        if self._limits is not None and not self._is_within(self._limits, transport):
            transport.abort()
            return
        try:
            principal = self.listener.principal_of(certificate_of(transport))
        except AuthenticationFailed as error:
            log.warning("a client is refused by the HTTP listener: %s", error)
            transport.abort()
            return
        # Read by the operations: the principal that the client's certificate names.
        place = self.listener.place_of(server_name_of(transport))
        self.app_state = {**self.app_state, PRINCIPAL: principal, PLACE: place, CONNECTION: self}
        if len(self.connections) > CONNECTIONS_MAX:
            others = cast("set[HttpConnection]", self.connections) - {self}
            idle = (one for one in others if one.is_idle)
            oldest = min(idle, key=lambda one: one.began_s, default=None)
            if oldest is not None:
                self.connections.discard(oldest)
                oldest.transport.abort()
        self._await_head()

    def _is_within(self, limits: ConnectionLimits, transport: Any) -> bool:
        """Whether the connection is within the limits, and counted then."""
        host = str((transport.get_extra_info("peername") or ("",))[0])
        exceeded = limits.open(self, self.listener.name, host)
        if not exceeded and limits.delay_ms(self.listener.name):
            exceeded = "max.connection.creation.rate"
        if exceeded:
            log.warning("client %s has more HTTP connections than allowed (%s)", host, exceeded)
        return not exceeded

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._limits is not None:
            self._limits.close(self)
        self._end_awaiting_head()
        self._forget_answers()
        super().connection_lost(exc)

    # --- answers: connection_memory.Holder ---------------------------------------------------

    def hold(self, memory: AnswerMemory, change: int) -> bool:
        """Count so much more, or less, for an answer; returns whether it is still of use."""
        if self.is_over:
            return False
        if change > 0:
            self._memory = memory
            memory.hold(self, change)
        elif change < 0:
            memory.release(self, -change)
        return True

    def owes(self, size: int) -> None:
        """An answer that is counted was passed to the transport."""
        self._unsent_bytes += size
        if not self.flow.write_paused:
            self._release_sent()

    def _release_sent(self) -> None:
        size, self._unsent_bytes = self._unsent_bytes, 0
        if size and self._memory is not None and not self.is_over:
            self._memory.release(self, size)

    def resume_writing(self) -> None:
        """See asyncio.Protocol: what was sent ahead has its turn."""
        super().resume_writing()
        self._release_sent()
        if self.transport.is_closing():
            return
        if self._is_behind:
            self._is_behind = False
            self._start_asgi_task(*self.pipeline.pop())
        elif self._unparsed:
            self._parse_unparsed()
            if not self._unparsed:
                self.flow.resume_reading()

    def unsent_bytes(self) -> int:
        """See Holder."""
        return 0 if self.is_over else self.transport.get_write_buffer_size()

    def missing_bytes(self) -> int:
        """See Holder: bodies have a memory of their own."""
        return 0

    def granted(self, size: int) -> None:
        """See Holder."""

    def abort(self, reason: str) -> None:
        """See Holder."""
        log.warning("HTTP client %s: closing its connection", reason)
        self._forget_answers()
        self.transport.abort()

    def _forget_answers(self) -> None:
        self.is_over = True
        if self._memory is not None:
            self._memory.forget(self)

    @property
    def is_idle(self) -> bool:
        """Whether no response is owed."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    # --- input -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._unset_keepalive_if_required()
        if self._has_ended:
            return
        if not self._unparsed and len(data) <= SLICE_BYTES and self._may_parse():
            self._parse(data)  # nearly every request
            if self.is_idle:
                self._await_head()
            return
        self._unparsed = data if not self._unparsed else bytes(self._unparsed) + data
        self._parse_unparsed()
        if len(self._unparsed) > UNPARSED_BYTES_MAX:
            self.transport.close()

    def _may_parse(self) -> bool:
        """Whether no response is owed, or the request that it answers goes on. One that the client
        has yet to read is owed: the next would only wait for it."""
        if self.is_idle:
            return not self.flow.write_paused
        return bool(self.cycle.more_body)

    def _parse_unparsed(self) -> None:
        rest = memoryview(self._unparsed)
        while rest and self._may_parse():
            self._parse(rest[:SLICE_BYTES])
            rest = rest[SLICE_BYTES:]
            if self._has_ended or self.transport.is_closing():
                rest = rest[:0]
        self._unparsed = rest
        if rest:
            self.flow.pause_reading()
            self._unset_keepalive_if_required()
        elif self.is_idle:
            self._await_head()

    def _await_head(self) -> None:
        """Have the head that has begun, or is yet to begin, end in time."""
        if self._head_due is None and not self.transport.is_closing():
            self._head_due = self.loop.call_later(HEAD_S_MAX, self._head_is_late)

    def _end_awaiting_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _head_is_late(self) -> None:
        self._head_due = None
        if not self._is_in_head:
            self.transport.close()  # it asked for nothing
            return
        self._has_ended = True
        detail = f"the head of the request did not arrive within {HEAD_S_MAX:.0f} s"
        self._end_with(408, "Request Timeout", detail, "send it at once")

    def _parse(self, data: bytes | memoryview) -> None:
        self._is_barren = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._has_ended = True  # what follows is of another protocol
            self.cycle.keep_alive = False
            if self.is_idle:
                self.transport.close()
            return
        except httptools.HttpParserError:
            if bytes(data[:2]) == _TLS_HANDSHAKE:
                log.warning(
                    "a client began a TLS handshake on the HTTP listener, which is not encrypted:"
                    " use http:// there"
                )
            self._refuse()
            return
        self._barren_bytes = self._barren_bytes + len(data) if self._is_barren else 0
        if self._barren_bytes > BARREN_BYTES_MAX:
            self._refuse()

    def _refuse(self) -> None:
        """Answer with 400 once no other response is owed, and close."""
        self._has_ended = True
        self._unparsed = b""
        if self.is_idle:
            self._send_refusal()
        elif self.cycle.more_body:  # the request that is malformed is being handled
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
            else:
                self._send_refusal()

    def _send_refusal(self) -> None:
        self.logger.warning(_INVALID)
        self.send_400_response(_INVALID)

    def send_400_response(self, msg: str) -> None:
        """See HttpToolsProtocol: a problem, as for every other error."""
        next_step = f"send valid HTTP/1.1, heads of {BARREN_BYTES_MAX} bytes at most"
        self._end_with(400, "Bad Request", msg, next_step)

    def _end_with(self, status: int, reason: str, detail: str, next_step: str) -> None:
        response = problem(status, detail, next_step)
        head = [f"HTTP/1.1 {status} {reason}".encode()]
        fields = [*self.server_state.default_headers, *response.raw_headers]
        head += [name + b": " + value for name, value in (*fields, (b"connection", b"close"))]
        self.transport.write(b"\r\n".join(head) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()

    def on_response_complete(self) -> None:
        """See HttpToolsProtocol: what was sent ahead has its turn, once the client reads."""
        self._is_behind = bool(self.pipeline) and self.flow.write_paused
        if self._is_behind:
            self.server_state.total_requests += 1
            return
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._unparsed:
            self._parse_unparsed()
        elif self._has_ended and self.is_idle:
            self._send_refusal()

    # --- what the parser reports -------------------------------------------------------------

    def on_message_begin(self) -> None:
        """See HttpToolsProtocol."""
        super().on_message_begin()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """See HttpToolsProtocol. Fields of a trailer are dropped: they are not part of the head."""
        if not self._is_in_head:
            return
        name = name.lower()
        self.headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        """See HttpToolsProtocol. Raises RequestMalformed."""
        self._is_in_head = self._is_barren = False
        self._end_awaiting_head()
        version = self.parser.get_http_version()
        hosts = sum([name == _HOST for name, _value in self.headers])
        if version not in VERSIONS or hosts > 1 or (version == "1.1" and not hosts):
            raise RequestMalformed(f"HTTP/{version} with {hosts} Host headers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See HttpToolsProtocol."""
        self._is_barren = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See HttpToolsProtocol."""
        self._is_barren = False
        super().on_message_complete()
