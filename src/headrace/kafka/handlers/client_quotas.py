"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.tenant_quotas import quotas_of
from headrace.coordination.quotas.entities import Entity, Match
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.client_quotas import ClientQuotas
    from headrace.broker.services.tenant_quotas import TenantQuotas
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

EXACT, DEFAULT, ANY = 0, 1, 2
"""Match types of a filter component. Do not change: on the wire."""
ENTRIES_MAX: Final = 1_000
"""Per request: each is a write to the metadata store."""


def _match(component: Any) -> Match:
    """Raises RequestInvalid."""
    if component.match_type not in {EXACT, DEFAULT, ANY}:
        raise RequestInvalid(f"{component.match_type} is not a match type: use 0, 1 or 2")
    if (component.match_type == EXACT) != (component.match is not None):
        raise RequestInvalid("an exact match requires a name, and other matches must have none")
    return Match(component.entity_type, component.match, component.match_type == ANY)


def _entity(entity: Entity) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity]


async def describe_client_quotas(node: Node, request: Any, context: Context) -> Answer:
    """DescribeClientQuotas."""
    try:
        components = [_match(component) for component in request.components]
        quotas = quotas_of(node.services, context.session)
        found = quotas.find(components, is_strict=request.strict)
    except HeadraceError as error:
        return {"error_code": code_of(error), "error_message": message_of(error), "entries": None}
    entries = [
        {
            "entity": _entity(entity),
            "values": [{"key": key, "value": value} for key, value in sorted(rates.items())],
        }
        for entity, rates in found
    ]
    return {"error_code": 0, "error_message": None, "entries": entries}


async def _alter(quotas: ClientQuotas | TenantQuotas, entry: Any, *, is_dry_run: bool) -> None:
    """Raises HeadraceError."""
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in changes:
            raise RequestInvalid(
                f"{operation.key[:50]!r} is changed twice in one request: name each quota once"
            )
        changes[operation.key] = None if operation.remove else operation.value
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    await quotas.change(parts, changes, is_dry_run=is_dry_run)


async def alter_client_quotas(node: Node, request: Any, context: Context) -> Answer:
    """AlterClientQuotas: each entity's changes are applied as a whole or not at all."""
    results: list[dict[str, Any]] = []
    quotas = quotas_of(node.services, context.session)
    for number, entry in enumerate(request.entries):
        error: HeadraceError | None = None
        try:
            if number >= ENTRIES_MAX:
                raise RequestInvalid(
                    f"a request can change at most {ENTRIES_MAX} entities: split it"
                )
            await _alter(quotas, entry, is_dry_run=request.validate_only)
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "error_code": code_of(error),
                "error_message": message_of(error),
                "entity": [
                    {"entity_type": part.entity_type, "entity_name": part.entity_name}
                    for part in entry.entity
                ],
            }
        )
    return {"entries": results}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    apis.ALTER_CLIENT_QUOTAS: alter_client_quotas,
}
