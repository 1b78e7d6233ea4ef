"""Authenticates HTTP clients: Basic (RFC 7617) as the users of SASL, bearer tokens and API keys
(RFC 6750), and browser sessions.

Invariants: only on a listener with SASL_PLAINTEXT or SASL_SSL. A request without credentials
reaches only public operations, which show whether the broker is ready and nothing else. A
refusal is the same whatever was wrong, and comes after a delay. What a certificate says counts only
on other listeners, as for Kafka clients.

A browser sends a session's cookie by itself, so a cookie counts only for requests that come from a
page of this broker: no other site's, by what the browser says of their origin, and for those that
change something with a token that only such a page can read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from headrace.broker.security.api_keys import is_api_key
from headrace.broker.security.oauthbearer import OAUTHBEARER
from headrace.broker.security.plain import NamedPassword
from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.sessions import ClientSession
from headrace.errors import AuthenticationFailed
from headrace.http.connection import LOGIN, PLACE, PRINCIPAL, SCOPE
from headrace.http.problems import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headrace.broker.security.api_keys import ApiKey
    from headrace.broker.security.browser_sessions import BrowserSession
    from headrace.broker.security.listener import ListenerSecurity, TenantPlace
    from headrace.broker.security.logins import Identity
    from headrace.broker.services.services import Services

log = logging.getLogger(__name__)

SESSION_PATH: Final = "/v1/session"
OPEN_PATHS: Final = frozenset({"/", "/healthz", "/readyz", SESSION_PATH})
OPEN_FILES: Final = "/console/"
"""The console's files, without anything of this broker: its page asks people to sign in."""
CSRF_HEADER: Final = "X-CSRF-Token"
PASSWORD, TOKEN, SESSION, KEY = "password", "token", "session", "key"  # kinds of logins
HTTP_BASIC, HTTP_BEARER, HTTP_KEY = "HTTP-BASIC", "HTTP-BEARER", "HTTP-API-KEY"
HTTP_SESSION, HTTP_OTHER = "HTTP-SESSION", "HTTP-OTHER"
"""Names of what is counted in `LoginFigures`, where each request with credentials is a login; with
a session, its sign-in alone."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site (W3C Fetch Metadata): `none` is a person who typed the address."""
_HEADER: Final = "authorization"
_HEADER_BYTES_MAX: Final = 20_000
_COOKIES_LENGTH_MAX: Final = 16_000
_BASIC: Final = 'Basic realm="headrace", charset="UTF-8"'
_BEARER: Final = 'Bearer realm="headrace"'
_OF_SCRIPTS: Final = 'Session realm="headrace"'


class HttpLogin(NamedTuple):
    """How a request is authenticated."""

    principal: Principal
    by: str
    holds: Callable[[], bool]
    """Whether it has not ended since: a user that was changed, a key or session that was revoked, a
    token that has expired."""
    session: BrowserSession | None = None
    key: ApiKey | None = None


class _ForeignPageError(Exception):
    """A session's cookie came with a request of another site, or without its token."""


def cookie_name(cluster_id: str, *, is_encrypted: bool) -> str:
    """The name of a session's cookie, which differs from cluster to cluster. It does not have the
    cluster's id, which clients of tenants do not see. With `__Host-`, browsers take it from this
    very host alone, and only over TLS (RFC 6265bis, section 4.1.3.2)."""
    prefix = "__Host-" if is_encrypted else ""
    return f"{prefix}headrace-{hashlib.sha256(cluster_id.encode()).hexdigest()[:22]}"


def is_own_page(headers: Headers) -> bool:
    """Whether a request can come from a page of this broker, by what a browser says; programs say
    nothing. A page cannot change these headers."""
    if headers.get("sec-fetch-site", "none") not in _OWN_SITES:
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


def _unstored(send: Send) -> Send:
    """What a session's cookie opens is in no cache: a shared one does not know the cookie and would
    give it to others, and a browser's keeps it after the sign-out."""

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message["headers"]
            if not any(name == b"cache-control" for name, _ in headers):
                message = {**message, "headers": [*headers, (b"cache-control", b"no-store")]}
        await send(message)

    return sent


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FILES)


class AuthenticatedApp:
    """An application that only authenticated clients reach."""

    def __init__(self, app: ASGIApp, services: Services, listener: ListenerSecurity) -> None:
        self._app = app
        authentication = services.authentication
        self._logins, self._failures = authentication.logins, authentication.failures
        self._sessions, self._keys = services.issuers.sessions, services.issuers.keys
        is_encrypted = listener.tls is not None
        self._cookie = cookie_name(services.cluster.id, is_encrypted=is_encrypted)
        self._audit, self._listener = services.audit, listener.name
        self._takes_tokens = OAUTHBEARER in authentication.enabled(listener.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = (scope.get("client") or ("",))[0]
        place = scope.get("state", {}).get(PLACE)
        try:
            login = await self._login(headers, scope["method"], host, place)
        except AuthenticationFailed as error:
            log.warning("an HTTP login from %s failed: %s", host, error)
            failed = ClientSession(self._listener, host)
            failed.place = place
            self._audit.login_failed(failed, *_claimed(headers.getlist(_HEADER)))
            await self._failures.delay(host)
            await self._refusal("the credentials are not valid", headers)(scope, receive, send)
            return
        except _ForeignPageError:
            refusal = problem(
                403,
                "a session is used by another site's page, or without its token",
                f"send {CSRF_HEADER} with the csrf_token of GET {SESSION_PATH}",
            )
            await refusal(scope, receive, send)
            return
        if login is None and not _is_open(scope["path"]):
            text = "this is served to authenticated clients alone"
            await self._refusal(text, headers)(scope, receive, send)
            return
        principal = ANONYMOUS if login is None else login.principal
        limit = None if login is None or login.key is None else login.key.scope
        state = {PRINCIPAL: principal, SCOPE: limit, LOGIN: login}
        scope["state"] = {**scope.get("state", {}), **state}
        of_session = login is not None and login.session is not None
        await self._app(scope, receive, _unstored(send) if of_session else send)

    async def _login(
        self, headers: Headers, method: str, host: str, place: TenantPlace | None
    ) -> HttpLogin | None:
        """Raises AuthenticationFailed, _ForeignPageError."""
        given = headers.getlist(_HEADER)
        if given:
            return await self._of_header(given, host, place)
        session = await self._of_cookie(headers)
        if session is None or not self._logins.is_at_home(session.principal, place):
            return None
        if not is_own_page(headers):
            raise _ForeignPageError
        sent = headers.get(CSRF_HEADER, "")
        is_right = hmac.compare_digest(sent.encode(), session.csrf_token.encode())
        if method not in _SAFE_METHODS and not is_right:
            raise _ForeignPageError
        return HttpLogin(
            session.principal, SESSION, partial(self._sessions.is_valid, session), session
        )

    async def _of_header(self, given: list[str], host: str, place: TenantPlace | None) -> HttpLogin:
        """Raises AuthenticationFailed."""
        mechanism, is_success = HTTP_OTHER, False
        try:
            if len(given) > 1 or len(given[0]) > _HEADER_BYTES_MAX:
                raise AuthenticationFailed("several Authorization headers, or one that is too long")
            scheme, _, value = given[0].partition(" ")
            kind, value = scheme.lower(), value.strip()
            if kind == "basic":
                mechanism = HTTP_BASIC
                found = await self._of_password(_basic(value), host, place)
            elif kind == "bearer" and is_api_key(value):
                mechanism = HTTP_KEY
                key = self._keys.find(value)
                if not self._logins.is_at_home(key.principal, place):
                    raise AuthenticationFailed(f"API key {key.id} is of a user of another place")
                holds = partial(self._keys.is_valid, key.id)
                found = HttpLogin(key.principal, KEY, holds, key=key)
            elif kind == "bearer" and self._takes_tokens:
                mechanism = HTTP_BEARER
                identity = await self._logins.check_bearer(given[0])
                found = HttpLogin(identity.principal, TOKEN, partial(self._holds, identity))
            else:
                raise AuthenticationFailed("an authentication scheme that is not enabled")
            is_success = True
        finally:
            self._logins.figures.count(mechanism, is_success=is_success)
        return found

    async def _of_password(
        self, given: NamedPassword, host: str, place: TenantPlace | None
    ) -> HttpLogin:
        """Raises AuthenticationFailed."""
        if not self._logins.is_remembered(given, place):
            await self._failures.wait(host)
        identity = await self._logins.check_password(given, place)
        return HttpLogin(identity.principal, PASSWORD, partial(self._holds, identity))

    def _holds(self, identity: Identity) -> bool:
        expires_ms = identity.expires_ms
        is_current = expires_ms is None or self._logins.clock.now_ms() < expires_ms
        return is_current and self._logins.is_valid(identity)

    async def _of_cookie(self, headers: Headers) -> BrowserSession | None:
        """The session of the request's cookie. A second cookie of the name was put there by
        another host or path: none of them counts then."""
        text = "; ".join(headers.getlist("cookie"))
        if len(text) > _COOKIES_LENGTH_MAX:
            return None
        pairs = (pair.strip().partition("=") for pair in text.split(";"))
        values = [value for name, _, value in pairs if name == self._cookie]
        return await self._sessions.find(values[0]) if len(values) == 1 else None

    def _refusal(self, detail: str, headers: Headers) -> Response:
        response = problem(401, detail, "send the credentials of a user in Authorization")
        # For Basic, a browser would ask its user by itself when a page's script is refused.
        is_script = headers.get("sec-fetch-mode", "navigate") != "navigate"
        response.headers.append("WWW-Authenticate", _OF_SCRIPTS if is_script else _BASIC)
        if self._takes_tokens:
            response.headers.append("WWW-Authenticate", _BEARER)
        return response


def _claimed(given: Sequence[str]) -> tuple[str, str]:
    """The user and the way to log in of a login that failed, as far as it says so."""
    scheme, _, value = given[0][:_HEADER_BYTES_MAX].partition(" ")
    kind = scheme.lower()
    if kind == "bearer":
        return "", HTTP_KEY if is_api_key(value.strip()) else HTTP_BEARER
    if kind != "basic":
        return "", HTTP_OTHER
    try:
        return _basic(value.strip()).user, HTTP_BASIC
    except AuthenticationFailed:
        return "", HTTP_BASIC


def _basic(value: str) -> NamedPassword:
    """Raises AuthenticationFailed."""
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise AuthenticationFailed("malformed Basic credentials") from error
    if not colon or not user or not password:
        raise AuthenticationFailed("Basic credentials without a user or a password")
    return NamedPassword(user, password)
