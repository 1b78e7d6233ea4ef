"""GetTelemetrySubscriptions and PushTelemetry (KIP-714).

Invariants: the rules are in `broker/services/client_telemetry`. Sums are wanted as totals since the
client's start: they are shown as they are pushed, and nothing adds up deltas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.client_telemetry import (
    ACCEPTED_CODECS,
    BYTES_MAX,
    NO_INSTANCE,
    Client,
    Push,
)
from headrace.broker.services.fair_shares import holder_of
from headrace.broker.services.otlp_metrics import TEXT_LENGTH_MAX
from headrace.errors import HeadraceError
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, code_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer


def _client(node: Node, context: Context) -> Client:
    session = context.session
    return Client(
        context.client_id[:TEXT_LENGTH_MAX],
        session.software_name[:TEXT_LENGTH_MAX],
        session.software_version[:TEXT_LENGTH_MAX],
        context.client_host,
        context.client_port,
        holder_of(session, node.services.authorizer),
    )


async def get_telemetry_subscriptions(node: Node, request: Any, context: Context) -> Answer:
    """GetTelemetrySubscriptions."""
    answer: dict[str, Any] = {
        "error_code": NONE,
        "client_instance_id": request.client_instance_id,
        "subscription_id": 0,
        "accepted_compression_types": [],
        "push_interval_ms": 0,
        "telemetry_max_bytes": 0,
        "delta_temporality": False,
        "requested_metrics": [],
    }
    try:
        offer = node.services.telemetry.subscribe(
            request.client_instance_id, _client(node, context)
        )
    except HeadraceError as error:
        return answer | {"error_code": code_of(error)}
    return answer | {
        "client_instance_id": offer.instance,
        "subscription_id": offer.subscription_id,
        "accepted_compression_types": list(ACCEPTED_CODECS),
        "push_interval_ms": offer.subscription.interval_ms,
        "telemetry_max_bytes": BYTES_MAX,
        "requested_metrics": list(offer.subscription.metrics),
    }


async def push_telemetry(node: Node, request: Any, context: Context) -> Answer:
    """PushTelemetry."""
    push = Push(
        request.client_instance_id or NO_INSTANCE,
        request.subscription_id,
        request.compression_type,
        bytes(request.metrics or b""),
        request.terminating,
    )
    try:
        await node.services.telemetry.push(push, _client(node, context))
    except HeadraceError as error:
        return {"error_code": code_of(error)}
    return {"error_code": NONE}


HANDLERS: dict[int, Handler] = {
    apis.GET_TELEMETRY_SUBSCRIPTIONS: get_telemetry_subscriptions,
    apis.PUSH_TELEMETRY: push_telemetry,
}
