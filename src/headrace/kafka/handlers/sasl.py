"""SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368).

Invariants: as in Kafka, a listener without SASL answers both with ILLEGAL_SASL_STATE and no
mechanism, so that the client fails at once instead of connecting again until it times out. A failed
login gets one text whatever the reason, after a delay; the connection then ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import AuthenticationFailed, HeadraceError, MechanismUnsupported
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, code_of, message_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire import messages
    from headrace.kafka.wire.schema import Answer


async def sasl_handshake(
    node: Node, request: messages.SaslHandshakeRequest, context: Context
) -> Answer:
    """SaslHandshake: chooses the mechanism of the login that follows."""
    enabled = node.services.authentication.enabled(context.session.listener)
    error: HeadraceError | None = None
    try:
        node.services.authentication.handshake(
            context.session, request.mechanism, has_raw_tokens=context.version == 0
        )
    except HeadraceError as problem:
        error = problem
        if not isinstance(problem, MechanismUnsupported):
            enabled = ()
    return {"error_code": code_of(error), "mechanisms": list(enabled)}


async def sasl_authenticate(
    node: Node, request: messages.SaslAuthenticateRequest, context: Context
) -> Answer:
    """SaslAuthenticate: one token of the login."""
    session = context.session
    mechanism = "" if session.login is None else session.login.mechanism
    login = session.login
    try:
        data = await node.services.authentication.authenticate(session, bytes(request.auth_bytes))
    except HeadraceError as error:
        message: Any = message_of(error)
        if isinstance(error, AuthenticationFailed):
            user = "" if login is None else login.user
            node.services.audit.login_failed(session, user, mechanism)
            await node.services.authentication.failures.delay(session.client_host)
            message = f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
        return {
            "error_code": code_of(error),
            "error_message": message,
            "auth_bytes": b"",
            "session_lifetime_ms": 0,
        }
    is_done = session.login is None
    return {
        "error_code": NONE,
        "error_message": None,
        "auth_bytes": data,
        "session_lifetime_ms": session.lifetime_ms if is_done else 0,
    }


HANDLERS: dict[int, Handler] = {
    apis.SASL_HANDSHAKE: sasl_handshake,
    apis.SASL_AUTHENTICATE: sasl_authenticate,
}
