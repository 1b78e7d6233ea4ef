"""Authenticates HTTP clients: Basic (RFC 7617) as the users of SASL, and bearer tokens (RFC 6750).

Invariants: only on a listener with SASL_PLAINTEXT or SASL_SSL. A request without credentials gets
no further than health checks, which then tell no more than whether the broker is ready. A refusal
is the same whatever was wrong, and comes after a delay. What a certificate says counts only on
other listeners, as for Kafka clients.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.security.oauthbearer import OAUTHBEARER
from headrace.broker.security.plain import NamedPassword
from headrace.broker.security.principal import ANONYMOUS
from headrace.errors import AuthenticationFailed
from headrace.http.connection import PRINCIPAL
from headrace.http.problems import problem

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.broker.security.authentication import Authentication
    from headrace.broker.security.logins import Identity

log = logging.getLogger(__name__)

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
FAILURE_DELAY_S: Final = 0.1
FAILING_MAX: Final = 100
"""Refusals that wait at the same time; others are sent at once."""
_HEADER: Final = b"authorization"
_HEADER_BYTES_MAX: Final = 20_000
_BASIC: Final = 'Basic realm="headrace", charset="UTF-8"'
_BEARER: Final = 'Bearer realm="headrace"'


class Authenticated:
    """An application that only authenticated clients reach."""

    def __init__(self, app: ASGIApp, authentication: Authentication, listener: str) -> None:
        self._app = app
        self._logins = authentication.logins
        self._takes_tokens = OAUTHBEARER in authentication.enabled(listener)
        self._failing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == _HEADER]
        principal = ANONYMOUS
        if given:
            try:
                principal = (await self._identity(given)).principal
            except AuthenticationFailed as error:
                client = scope.get("client") or ("",)
                log.warning("an HTTP login from %s failed: %s", client[0], error)
                await self._delay()
                await self._refusal("the credentials are not valid")(scope, receive, send)
                return
        elif scope.get("path") not in OPEN_PATHS:
            await self._refusal("this is served to authenticated clients alone")(
                scope, receive, send
            )
            return
        scope["state"] = {**scope.get("state", {}), PRINCIPAL: principal}
        await self._app(scope, receive, send)

    async def _identity(self, given: list[bytes]) -> Identity:
        """Raises AuthenticationFailed."""
        if len(given) > 1 or len(given[0]) > _HEADER_BYTES_MAX:
            raise AuthenticationFailed("several Authorization headers, or one that is too long")
        text = given[0].decode("latin-1")
        scheme, _, value = text.partition(" ")
        if scheme.lower() == "basic":
            return await self._logins.check_password(_basic(value.strip()))
        if scheme.lower() == "bearer" and self._takes_tokens:
            return await self._logins.check_bearer(text)
        raise AuthenticationFailed("an authentication scheme that is not enabled")

    async def _delay(self) -> None:
        if self._failing >= FAILING_MAX:
            return
        self._failing += 1
        try:
            await asyncio.sleep(FAILURE_DELAY_S)
        finally:
            self._failing -= 1

    def _refusal(self, detail: str) -> Response:
        response = problem(401, detail, "send the credentials of a user in Authorization")
        response.headers.append("WWW-Authenticate", _BASIC)
        if self._takes_tokens:
            response.headers.append("WWW-Authenticate", _BEARER)
        return response


def _basic(value: str) -> NamedPassword:
    """Raises AuthenticationFailed."""
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise AuthenticationFailed("malformed Basic credentials") from error
    if not colon or not user or not password:
        raise AuthenticationFailed("Basic credentials without a user or a password")
    return NamedPassword(user, password)
