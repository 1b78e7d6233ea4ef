"""Client quotas over HTTP: list, change and delete them.

Invariants: parses and encodes; the rules are in `broker/services/client_quotas`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.tenant_quotas import quotas_of
from headrace.coordination.quotas.entities import (
    CLIENT_ID,
    IP,
    KEYS,
    NAME_LENGTH_MAX,
    USER,
    Entity,
)
from headrace.errors import RequestInvalid
from headrace.http.operations import (
    DRY_RUN,
    PAGE,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    needing,
    page,
    text,
)
from headrace.http.problems import Contradiction

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

RATE_MAX: Final = 2**53
_NAMES: Final = {"user": USER, "client_id": CLIENT_ID, "ip": IP}
_ADDRESS: Final[Schema] = text(NAME_LENGTH_MAX, 1) | {
    "oneOf": [text(NAME_LENGTH_MAX, 1, format=name) for name in ("ipv4", "ipv6")]
}
_KEY: Final[Schema] = {"type": "string", "enum": [*KEYS]}


def _named(name: str) -> tuple[Schema, Schema]:
    """Bodies that name an entity of this type, and its default."""
    return needing(name), needing(true=[f"default_{name}"])


def _together(one: Schema, other: Schema) -> Schema:
    """Bodies that fit both."""
    return {
        "type": "object",
        "required": one["required"] + other["required"],
        "properties": one["properties"] | other["properties"],
    }


def _one_entity() -> Schema:
    """What the fields of a body that names an entity must be together."""
    named = {name: _named(name) for name in _NAMES}
    clashes = [_together(*both) for both in named.values()]
    others = [part for name in _NAMES if name != "ip" for part in named[name]]
    clashes += [_together(address, other) for address in named["ip"] for other in others]
    return {
        "description": "A user, a client id or both, or an IP address; each by its name or as the"
        " default of its type.",
        "anyOf": [part for both in named.values() for part in both],
        "not": {
            "description": "a name and the default of one type, or an IP address and another type",
            "anyOf": clashes,
        },
    }


def _entity_schema() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for name in _NAMES:
        found[name] = _ADDRESS if name == "ip" else text(NAME_LENGTH_MAX, 1)
        found[f"default_{name}"] = {"type": "boolean", "description": "All without their own."}
    return found


def _parts(given: Json) -> list[tuple[str, str | None]]:
    """The entity that is named. Raises Contradiction."""
    parts: list[tuple[str, str | None]] = []
    for name, kind in _NAMES.items():
        if name in given and given.get(f"default_{name}"):
            raise Contradiction(f"both {name} and default_{name} are given: choose one")
        if name in given:
            parts.append((kind, given[name]))
        elif given.get(f"default_{name}"):
            parts.append((kind, None))
    return parts


def _shown(entity: Entity) -> Json:
    by_type = {kind: name for name, kind in _NAMES.items()}
    return {
        (f"default_{by_type[kind]}" if name is None else by_type[kind]): name or True
        for kind, name in entity
    }


class QuotaOperations:
    """The operations on quotas."""

    def __init__(self, services: Services) -> None:
        self._services = services
        path = "/v1/quotas"
        rates = {
            "type": "object",
            "propertyNames": _KEY,
            "additionalProperties": integer(1, RATE_MAX),
            "description": "Quotas to set, by Kafka's names.",
        }
        body = fields((), **_entity_schema(), set=rates, reset=listing(_KEY, 100))
        body |= _one_entity()
        self.operations = [
            Operation("GET", path, "listQuotas", "List the quotas of all entities.",
                      self._list, PAGE),
            Operation("PATCH", path, "changeQuota",
                      "Set and remove quotas of an entity, in one change.",
                      self._change, {"dry_run": DRY_RUN}, body),
            Operation("DELETE", path, "deleteQuota", "Remove all quotas of an entity.",
                      self._delete, _entity_schema() | {"dry_run": DRY_RUN}),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        found: list[dict[str, Any]] = [
            {
                "id": ",".join(f"{kind}={name or ''}" for kind, name in entity),
                "entity": _shown(entity),
                "quotas": rates,
            }
            for entity, rates in quotas_of(self._services, call.session).find()
        ]
        return page(sorted(found, key=lambda one: one["id"]), "id", call, "quotas")

    async def _change(self, call: Call) -> Json:
        body = call.body
        both = sorted(set(body.get("set", ())) & set(body.get("reset", ())))
        if both:
            raise Contradiction(f"{both[0]} is both set and reset: do one of them")
        changes: dict[str, float | None] = dict.fromkeys(body.get("reset", ()))
        changes |= {key: float(value) for key, value in body.get("set", {}).items()}
        parts = _parts(body)
        return await self._apply(call, parts, changes)

    async def _delete(self, call: Call) -> Json:
        parts = _parts(call.query)
        wanted = tuple(sorted(parts, key=lambda part: part[0]))
        found = quotas_of(self._services, call.session).find()
        known = next((rates for one, rates in found if one == wanted), {})
        return await self._apply(call, parts, dict.fromkeys(known))

    async def _apply(
        self, call: Call, parts: list[tuple[str, str | None]], changes: dict[str, float | None]
    ) -> Json:
        quotas, is_dry_run = quotas_of(self._services, call.session), call.is_dry_run
        for name, kind in _NAMES.items():  # for the audit log, which reads the body
            if (named := dict(parts).get(kind)) is not None:
                call.body[name] = (call.view.prefix if name == "user" else "") + named
        try:
            rates = await quotas.change(parts, changes, is_dry_run=is_dry_run)
        except RequestInvalid as error:  # each field was right: they do not go together
            raise Contradiction(str(error)) from error
        return {"entity": _shown(tuple(parts)), "quotas": rates, "dry_run": is_dry_run}
