"""Browser sessions over HTTP: sign in, sign out, and who the client is.

Invariants: the secret value is in a cookie that scripts cannot read and other sites do not send
(HttpOnly, SameSite=Strict, on TLS also Secure with the prefix `__Host-`); its name is of the
cluster, because browsers send cookies to all ports of a host. Which requests a session is
accepted for is in `logins`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from headrace.broker.security.logins import PASSWORD_LENGTH_MAX
from headrace.broker.security.plain import NamedPassword
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.users import NAME_BYTES_MAX
from headrace.broker.services.tenant_view import written_view_of
from headrace.errors import AuthenticationFailed, SaslStateIllegal, Unauthorized
from headrace.http.connection import LOGIN
from headrace.http.logins import (
    HTTP_SESSION,
    SESSION,
    SESSION_PATH,
    HttpLogin,
    cookie_name,
    is_own_page,
)
from headrace.http.operations import Call, Json, Operation, fields, session_of, text

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from headrace.broker.security.browser_sessions import BrowserSession
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.broker.services.services import Services

_NO_STORE: Final = {"Cache-Control": "no-store"}


class SessionOperations:
    """The operations on the client's own session."""

    def __init__(self, services: Services, listener: ListenerSecurity) -> None:
        self._services = services
        self._listener = listener
        body = fields(
            ("user", "password"),
            user=text(NAME_BYTES_MAX, 1),
            password=text(PASSWORD_LENGTH_MAX, 1),
        )
        self.operations = [
            Operation("GET", SESSION_PATH, "getSession", "Get who the client is.",
                      self._get, is_public=True),
            Operation("POST", SESSION_PATH, "signIn",
                      "Begin a browser session: the answer sets a cookie.",
                      self._sign_in, body=body, is_public=True),
            Operation("DELETE", SESSION_PATH, "signOut", "End the client's browser session.",
                      self._sign_out, is_public=True),
        ]  # fmt: skip

    async def _get(self, call: Call) -> Response:
        return JSONResponse(self._who(call.request), headers=_NO_STORE)

    def _who(self, request: Request) -> Json:
        view = written_view_of(self._services, session_of(request))
        login: HttpLogin | None = request.scope.get("state", {}).get(LOGIN)
        principal = session_of(request).principal or ANONYMOUS
        is_known = principal != ANONYMOUS
        by = ("certificate" if is_known else "") if login is None else login.by
        who: Json = {
            "principal": str(principal),
            "is_authenticated": is_known,
            "by": by,
            "can_sign_in": self._listener.is_sasl,
            **({"is_operator": True} if view.is_operator else {}),
        }
        if login is not None and login.session is not None:
            who |= _of_session(login.session)
        return who

    async def _sign_in(self, call: Call) -> Response:
        if not self._listener.is_sasl:
            raise SaslStateIllegal(
                "this listener has no logins: headrace.http.security.protocol has to be SASL_SSL or"
                " SASL_PLAINTEXT"
            )
        login: HttpLogin | None = call.request.scope.get("state", {}).get(LOGIN)
        if not is_own_page(call.request.headers):
            raise Unauthorized("the sign-in does not come from a page of this broker")
        authentication = self._services.authentication
        given = NamedPassword(call.body["user"], call.body["password"])
        figures, host = authentication.logins.figures, call.session.client_host
        await authentication.failures.wait(host)
        try:
            identity = await authentication.logins.check_password(given, call.session.place)
        except AuthenticationFailed:
            figures.count(HTTP_SESSION, is_success=False)
            failed = ClientSession(call.session.listener, host)
            failed.place = call.session.place
            self._services.audit.login_failed(failed, given.user, HTTP_SESSION)
            await authentication.failures.delay(host)
            raise
        figures.count(HTTP_SESSION, is_success=True)
        sessions = self._services.issuers.sessions
        value, session = await sessions.begin(identity)
        if login is not None and login.session is not None:
            await sessions.end(login.session)
        principal = identity.principal
        self._services.audit.changed(call.session, "signIn", [str(principal)], 0)
        signed_in = session_of(call.request)
        signed_in.principal = principal
        shown = written_view_of(self._services, signed_in).text(str(principal))
        who = {"principal": shown, "is_authenticated": True, "by": SESSION}
        answer = JSONResponse(who | {"can_sign_in": True} | _of_session(session), headers=_NO_STORE)
        self._set_cookie(answer, value, sessions.lifetime_ms // 1_000)
        return answer

    async def _sign_out(self, call: Call) -> Response:
        login: HttpLogin | None = call.request.scope.get("state", {}).get(LOGIN)
        if login is not None and login.session is not None:
            await self._services.issuers.sessions.end(login.session)
        answer = JSONResponse({}, headers=_NO_STORE)
        self._set_cookie(answer, "", 0)
        return answer

    def _set_cookie(self, answer: Response, value: str, age_s: int) -> None:
        is_encrypted = self._listener.tls is not None
        answer.set_cookie(
            cookie_name(self._services.cluster.id, is_encrypted=is_encrypted),
            value,
            max_age=age_s,
            secure=is_encrypted,
            httponly=True,
            samesite="strict",
        )


def _of_session(session: BrowserSession) -> Json:
    return {"expires_ms": session.expires_ms, "csrf_token": session.csrf_token}
