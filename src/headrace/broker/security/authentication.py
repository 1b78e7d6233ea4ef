"""Authenticates client connections by SASL: the states of a session, from first request to expiry.

Invariants: no I/O. Implements `Admission`: until a session is authenticated, only ApiVersions and
the SASL requests that belong to its state are admitted. One login at a time per session.

    listener with SASL:  HANDSHAKE -> LOGIN -> authenticated -> expired
    re-authentication:   authenticated or expired -> LOGIN -> authenticated (KIP-368)

A session that fails a login admits nothing more. Brokers log in on every listener, by a mechanism
of their own: an identity that no client id or listener can give.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.security.broker_secret import BROKER_MECHANISM, BrokerSecret
from headrace.broker.security.failed_logins import FailedLogins
from headrace.broker.security.issuers import Issuers
from headrace.broker.security.login_names import LoginNames
from headrace.broker.security.logins import Logins
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.users import Users
from headrace.errors import AuthenticationFailed, SaslStateIllegal
from headrace.runtime.slow_calls import SlowCalls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.broker.security.logins import Identity
    from headrace.broker.security.principal import Principal
    from headrace.broker.security.tenants import Tenants
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

log = logging.getLogger(__name__)

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
"""Kafka's API keys. Do not change: protocol."""
_OF_LOGIN: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})
_BEFORE_LOGIN: Final = frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE, API_VERSIONS})
REAUTHENTICATION_REST_NS: Final = 1_000_000_000
"""A session may start a re-authentication once a second, as in Kafka."""


class Authentication:
    """See the module."""

    def __init__(
        self,
        logins: Logins,
        mechanisms: Mapping[str, Sequence[str]] | None = None,
        lifetime_max_ms: Mapping[str, int] | None = None,
        *,
        is_required: bool = False,
        helper_listener: str = "",
    ) -> None:
        """`mechanisms`: those enabled, by listener. `lifetime_max_ms`: by listener, after how long
        a client has to authenticate again (`connections.max.reauth.ms`); 0: never. `is_required`:
        whether any listener authenticates its clients, so that what is for brokers alone has to be
        closed to others. `helper_listener`: where commands log in that a broker runs for a client,
        whatever is enabled for users; "": nowhere. By default no client is authenticated."""
        self.users = logins.users
        self.failures = FailedLogins(logins.clock.now_ns)
        self.protect(
            logins,
            mechanisms or {},
            lifetime_max_ms or {},
            helper_listener,
            is_required=is_required,
        )

    def protect(
        self,
        logins: Logins,
        mechanisms: Mapping[str, Sequence[str]],
        lifetime_max_ms: Mapping[str, int],
        helper_listener: str,
        *,
        is_required: bool,
    ) -> None:
        """Authenticate the clients of these listeners from now on: what judges tokens is known
        only after the metadata has been read, and before any listener is open."""
        self.logins = logins
        self.is_required = is_required
        self._helper_listener = helper_listener
        self._mechanisms = mechanisms
        self._lifetime_max_ms = lifetime_max_ms

    def close(self) -> None:
        """Drop the logins that wait for a thread."""
        self.logins.threads.close()

    # --- Admission ---------------------------------------------------------------------------

    def open(
        self, listener: ListenerSecurity, client_host: str, certified: Principal
    ) -> ClientSession:
        """See Admission."""
        return ClientSession(listener.name, client_host, None if listener.is_sasl else certified)

    def admits(self, session: ClientSession, api_key: int) -> bool:
        """See Admission."""
        if session.has_failed:
            return False
        if session.login is not None:
            return api_key in _OF_LOGIN
        if session.principal is None:
            return api_key in _BEFORE_LOGIN
        return api_key in _OF_LOGIN or not session.is_expired

    # --- requests ----------------------------------------------------------------------------

    def handshake(self, session: ClientSession, mechanism: str, *, has_raw_tokens: bool) -> None:
        """SaslHandshake. `has_raw_tokens`: whether tokens follow without a request around them
        (version 0).

        Raises SaslStateIllegal, MechanismUnsupported.
        """
        enabled = self._mechanisms.get(session.listener, ())
        is_of_broker = mechanism == BROKER_MECHANISM
        if not enabled and not is_of_broker:
            raise SaslStateIllegal(
                f"listener {session.listener} does not use SASL: set security.protocol to PLAINTEXT"
                " or SSL in the client"
            )
        if session.login is not None:
            session.has_failed = True
            raise SaslStateIllegal("a login is in progress: send its next token")
        if session.identity is not None:
            self._check_reauthentication(session)
        try:
            takes_helpers = session.listener == self._helper_listener
            session.login = self.logins.begin(
                mechanism, enabled, session.place, takes_helpers=takes_helpers
            )
        except Exception:
            session.has_failed = True
            raise
        session.has_raw_tokens = has_raw_tokens and not is_of_broker

    def _check_reauthentication(self, session: ClientSession) -> None:
        """Raise SaslStateIllegal unless the session may authenticate again now."""
        now_ns = self.logins.clock.now_ns()
        if not session.lifetime_ms:
            raise SaslStateIllegal("the client is authenticated, and its session does not expire")
        if now_ns - session.reauthenticated_ns < REAUTHENTICATION_REST_NS:
            raise SaslStateIllegal("the client re-authenticated less than a second ago")
        session.reauthenticated_ns = now_ns

    async def authenticate(self, session: ClientSession, message: bytes) -> bytes:
        """The answer to a client's token; the session is authenticated if that was the last.

        Raises SaslStateIllegal, AuthenticationFailed.
        """
        login = session.login
        if login is None:
            session.has_failed = session.principal is None
            raise SaslStateIllegal("no login is in progress: send SaslHandshake first")
        try:
            if login.mechanism == BROKER_MECHANISM:
                await self.logins.secret.load()
            elif not login.has_waited:
                login.has_waited = True
                await self.failures.wait(session.client_host)
            answer = await login.answer(message)
            if answer.identity is not None:
                self._accept(session, answer.identity)
        except BaseException as error:
            session.has_failed = True
            if isinstance(error, AuthenticationFailed):
                log.warning(
                    "login of %r from %s by %s failed: %s",
                    *(login.user[:100], session.client_host, login.mechanism, error),
                )
            raise
        return answer.data

    def _accept(self, session: ClientSession, identity: Identity) -> None:
        """The login succeeded. Raises AuthenticationFailed if it is another client's."""
        if session.identity is not None and session.principal != identity.principal:
            # Also another mechanism: it is part of the principal.
            raise AuthenticationFailed(
                f"re-authentication of {session.principal} as {identity.principal}, or by another"
                " mechanism"
            )
        lifetime_ms = self._lifetime_max_ms.get(session.listener, 0)
        if identity.principal.is_broker:
            lifetime_ms = 0
        if identity.expires_ms is not None:
            left_ms = max(1, identity.expires_ms - self.logins.clock.now_ms())
            lifetime_ms = min(lifetime_ms or left_ms, left_ms)
        session.lifetime_ms = lifetime_ms
        session.is_expired = session.has_raw_tokens = False
        session.identity = identity
        session.principal = identity.principal
        session.client_host = identity.client_host or session.client_host
        session.login = None

    def is_valid(self, session: ClientSession) -> bool:
        """Whether the session's user still has the credential by which it was authenticated."""
        return session.identity is None or self.logins.is_valid(session.identity)

    def enabled(self, listener: str) -> Sequence[str]:
        """The mechanisms of a listener."""
        return self._mechanisms.get(listener, ())

    def admits_to_brokers(self, session: ClientSession) -> bool:
        """Whether the session may send what only brokers send."""
        principal = session.principal
        return not self.is_required or (principal is not None and principal.is_broker)


def without_listeners(
    metadata: MetadataStore,
    clock: Clock,
    randomness: Randomness,
    config: BrokerConfig,
    tenants: Tenants | None = None,
) -> tuple[Authentication, Issuers]:
    """Authentication before any listener is known: of no client, only of other brokers; and what
    issues credentials. `tenants`: those that may have users of their own."""
    secret, users = BrokerSecret(metadata, randomness, config.broker_id), Users(metadata)
    issuers = Issuers(metadata, users, tenants, secret, clock, randomness, config)
    threads = SlowCalls("headrace-logins")
    parts = LoginNames(users, tenants), secret, issuers.tokens, issuers.keys
    return Authentication(Logins(*parts, clock, randomness, threads)), issuers
