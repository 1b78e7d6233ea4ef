"""Connections of clients that have to authenticate: their limits, deadlines and end.

Invariants: knows connections and sessions, no SASL. What clients can take before they are
authenticated is bounded: their number, their time, and the bytes of their requests in all. A SASL
request is handled before the next request is read, as in Kafka, so that a client may pipeline.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.security.principal import ANONYMOUS
from headrace.errors import AuthenticationFailed, HeadraceError, PolicyViolation
from headrace.kafka.client.exchange import framed
from headrace.kafka.request_frames import FRAME_BYTES_MIN

if TYPE_CHECKING:
    import asyncio

    from headrace.broker.security.connection_limits import ConnectionLimits
    from headrace.broker.security.principal import Principal
    from headrace.broker.services.services import Services
    from headrace.kafka.connection import KafkaConnection

log = logging.getLogger(__name__)

LOGIN_TIMEOUT_S: Final = 30
UNAUTHENTICATED_MAX: Final = 1_000
"""From here on the oldest is closed for each new one: a client that logs in at once comes through
beside however many that do not."""
REQUEST_BYTES_MAX: Final = 524_288
"""Kafka's `sasl.server.max.receive.size`."""
LARGE_REQUESTS_MAX: Final = 64
"""Further connections that are not authenticated get less room: with all of them, 48 MiB."""
SMALL_REQUEST_BYTES_MAX: Final = 16_384
LINGER_S: Final = 0.2
"""How long a connection stays open after the answer that refuses it."""


def exceeded_by(limits: ConnectionLimits, connection: KafkaConnection, principal: Principal) -> str:
    """The limit that a connection exceeds, now that its client is known; "": none."""
    if principal.is_broker:
        return ""
    exceeded = "" if principal == ANONYMOUS else limits.identify(connection, str(principal))
    if not exceeded:
        try:
            limits.join(connection, connection.session)
        except PolicyViolation as error:
            return str(error)
    return exceeded


class LoginConnections:
    """See the module."""

    def __init__(
        self,
        services: Services,
        loop: asyncio.AbstractEventLoop,
        request_bytes_max: int,
    ) -> None:
        self._authentication, self._limits = services.authentication, services.connections
        self._share_of = services.fair_shares.of
        self._audit = services.audit
        self._loop = loop
        self._request_bytes_max = request_bytes_max
        self.waiting: dict[KafkaConnection, None] = {}
        """Those that are not authenticated, oldest first."""
        self._timers: dict[KafkaConnection, asyncio.TimerHandle] = {}

    def opened(self, connection: KafkaConnection) -> None:
        """A client has connected that has to authenticate."""
        is_large = len(self.waiting) < LARGE_REQUESTS_MAX
        connection.frames.bytes_max = REQUEST_BYTES_MAX if is_large else SMALL_REQUEST_BYTES_MAX
        if len(self.waiting) >= UNAUTHENTICATED_MAX:
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            oldest.abort(
                f"has not authenticated, as {UNAUTHENTICATED_MAX} newer connections have not"
            )
        self.waiting[connection] = None
        self._timers[connection] = self._loop.call_later(
            LOGIN_TIMEOUT_S, connection.abort, f"has not authenticated for {LOGIN_TIMEOUT_S} s"
        )

    def closed(self, connection: KafkaConnection) -> None:
        """A client has disconnected."""
        self.waiting.pop(connection, None)
        self._cancel_timer(connection)

    def _cancel_timer(self, connection: KafkaConnection) -> None:
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def answered(self, connection: KafkaConnection) -> None:
        """A SASL request has its response: go on as the session's state says."""
        session = connection.session
        if connection.transport is None:
            return
        if session.has_failed:
            # Some clients drop an answer that arrives together with the end of the connection.
            self._cancel_timer(connection)
            self._timers[connection] = self._loop.call_later(LINGER_S, connection.close)
            return
        connection.frames.bytes_min = 1 if session.has_raw_tokens else FRAME_BYTES_MIN
        connection.must_be_admitted = session.must_be_admitted
        if not session.must_be_admitted and session.identity is not None:
            self.waiting.pop(connection, None)
            self._cancel_timer(connection)
            exceeded = exceeded_by(self._limits, connection, session.identity.principal)
            if exceeded:
                connection.abort(f"has more connections than allowed ({exceeded})")
                return
            connection.frames.bytes_max = self._request_bytes_max
            connection.set_share(self._share_of(session))
            if session.lifetime_ms:
                self._timers[connection] = self._loop.call_later(
                    session.lifetime_ms / 1_000, self._expire, connection
                )
        connection.release_input()

    def _expire(self, connection: KafkaConnection) -> None:
        """The next request has to be a new login, or the connection is closed."""
        connection.session.is_expired = connection.must_be_admitted = True

    async def take_token(self, connection: KafkaConnection, token: bytes) -> None:
        """Handle a token without a request around it (SaslHandshake v0). A failure closes the
        connection: there is no field for an error."""
        reply = connection.expect()
        session = connection.session
        login = session.login
        try:
            answer = await self._authentication.authenticate(session, token)
        except HeadraceError as error:
            if isinstance(error, AuthenticationFailed) and login is not None:
                self._audit.login_failed(session, login.user, login.mechanism)
            await self._authentication.failures.delay(connection.session.client_host)
            connection.close()
            return
        reply.send([framed(answer)])
        self.answered(connection)
