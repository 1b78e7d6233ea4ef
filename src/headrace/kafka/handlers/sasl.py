"""SaslHandshake and SaslAuthenticate, of clients that expect a listener with SASL.

Invariants: as in Kafka, a listener without SASL answers both with ILLEGAL_SASL_STATE and no
mechanism, so that the client fails at once instead of connecting again until it times out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.kafka import apis
from headrace.kafka.error_codes import ILLEGAL_SASL_STATE

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer


async def sasl_handshake(_node: Node, _request: Any, _context: Context) -> Answer:
    """SaslHandshake: refused."""
    return {"error_code": ILLEGAL_SASL_STATE, "mechanisms": []}


async def sasl_authenticate(_node: Node, _request: Any, context: Context) -> Answer:
    """SaslAuthenticate: refused."""
    return {
        "error_code": ILLEGAL_SASL_STATE,
        "error_message": f"listener {context.session.listener} does not use SASL: set"
        " security.protocol=PLAINTEXT in the client",
        "auth_bytes": b"",
        "session_lifetime_ms": 0,
    }


HANDLERS: dict[int, Handler] = {
    apis.SASL_HANDSHAKE: sasl_handshake,
    apis.SASL_AUTHENTICATE: sasl_authenticate,
}
