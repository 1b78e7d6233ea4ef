"""The clients of a listener that authenticates by access keys: each call is signed.

Invariants: nothing is served before its signature is checked, and a refusal is the same whatever
was wrong, and slowed as other failed logins are. A connection may carry the calls of several keys:
each has a session of its own, so that none acts with another one's rights. A stream is signed when
it is opened.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.security.logins import Identity
from headrace.broker.security.sessions import ClientSession
from headrace.errors import AuthenticationFailed

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.grpc.service import Call

log = logging.getLogger(__name__)

AUTHORIZATION: Final = b"authorization"
DATE_TIME: Final = b"x-mq-date-time"
ACCESS_KEY: Final = "ACCESS-KEY"
"""Among the mechanisms in `LoginFigures`."""
KEYS_MAX: Final = 16
"""Of one connection at a time: a client has one."""
REFUSED: Final = "the access key or its signature is not valid"


class SignedConnection:
    """One connection, and who has signed calls on it."""

    __slots__ = ("_checked", "_host", "_listener", "_services", "_sessions")

    def __init__(self, services: Services, listener: str, host: str) -> None:
        self._services = services
        self._listener = listener
        self._host = host
        self._sessions: dict[str, ClientSession] = {}
        """By key."""
        self._checked: tuple[bytes | None, bytes | None, int, ClientSession] | None = None
        """The last signature that was right, until when it holds, and whose it is: a client signs
        once a second."""

    def session_now(self, call: Call) -> ClientSession | None:
        """The session of a call with a signature that was checked before; None: `session`."""
        checked = self._checked
        if (
            checked is not None
            and call.header(AUTHORIZATION) == checked[0]
            and call.header(DATE_TIME) == checked[1]
            and self._services.appends.clock.now_ms() < checked[2]
            and self._services.authentication.is_valid(checked[3])
        ):
            return checked[3]
        return None

    async def session(self, call: Call) -> ClientSession:
        """The session of a call. Raises AuthenticationFailed, with the same text always."""
        failures = self._services.authentication.failures
        if not self._sessions:
            await failures.wait(self._host)
        try:
            return self._check(call)
        except AuthenticationFailed as error:
            figures = self._services.authentication.logins.figures
            figures.count(ACCESS_KEY, is_success=False)
            log.warning("a RocketMQ client from %s was refused: %s", self._host, error)
            failed = ClientSession(self._listener, self._host)
            self._services.audit.login_failed(failed, "", ACCESS_KEY)
        await failures.delay(self._host)
        raise AuthenticationFailed(REFUSED)

    def _check(self, call: Call) -> ClientSession:
        """Raises AuthenticationFailed."""
        authorization, date_time = call.header(AUTHORIZATION), call.header(DATE_TIME)
        signatures = self._services.issuers.signatures
        signed = signatures.check(authorization or b"", date_time or b"")
        key = signed.key
        session = self._sessions.get(key.id)
        if session is None:
            if len(self._sessions) >= KEYS_MAX:
                self._drop_ended()
            if len(self._sessions) >= KEYS_MAX:
                raise AuthenticationFailed(f"more than {KEYS_MAX} access keys on one connection")
            session = ClientSession(self._listener, self._host, key.principal)
            session.identity = Identity(key.principal, key.expires_ms, key_id=key.id)
            session.scope = key.scope
            self._sessions[key.id] = session
            self._services.authentication.logins.figures.count(ACCESS_KEY, is_success=True)
        self._checked = authorization, date_time, signed.holds_until_ms, session
        return session

    def _drop_ended(self) -> None:
        """Keys that were revoked or expired make room for others."""
        is_valid = self._services.authentication.is_valid
        self._sessions = {key: one for key, one in self._sessions.items() if is_valid(one)}
