"""Quota entities, quota types, and the quota that applies to a client.

Invariants: pure. An entity is Kafka's (KIP-546): a user, a client id, both, or an IP address, each
by name or as the default. The order of precedence is Kafka's.
"""

from __future__ import annotations

from ipaddress import ip_address
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""Do not change: stored, and on Kafka's wire."""
DEFAULT: Final = None
"""In place of a name: for all that have no quota of their own."""
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
REQUEST = "request_percentage"
MUTATION = "controller_mutation_rate"
CONNECTION = "connection_creation_rate"
"""Do not change: stored, and on Kafka's wire."""
CLIENT_KEYS: Final = (PRODUCER, CONSUMER, REQUEST, MUTATION)
KEYS: Final = (*CLIENT_KEYS, CONNECTION)
INTEGRAL: Final = frozenset({PRODUCER, CONSUMER, CONNECTION})
NAME_LENGTH_MAX: Final = 1_000
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

Entity = tuple[tuple[str, str | None], ...]
"""(type, name or DEFAULT) each, sorted by type."""
Rates = dict[str, float]
"""Values by key."""


class Match(NamedTuple):
    """One component of a filter."""

    type: str
    name: str | None = DEFAULT
    is_any: bool = False
    """Any name, or the default."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity of these parts. Raises RequestInvalid."""
    entity = tuple(sorted(parts, key=lambda part: part[0]))
    types = [kind for kind, _ in entity]
    if not types:
        raise RequestInvalid(
            "a quota requires a user, a client id or an IP address, and none was given"
        )
    for kind, name in entity:
        if kind not in {USER, CLIENT_ID, IP}:
            raise RequestInvalid(
                f"{kind[:50]!r} is not a quota entity type: use {USER}, {CLIENT_ID} or {IP}"
            )
        if name is not DEFAULT and not 0 < len(name) <= NAME_LENGTH_MAX:
            raise RequestInvalid(
                f"the name of a {kind} must have 1 to {NAME_LENGTH_MAX} characters"
            )
        if name is not DEFAULT and kind == IP:
            _check_address(name)
    if len(set(types)) < len(types):
        raise RequestInvalid("a quota entity may name each type only once")
    if IP in types and len(types) > 1:
        raise RequestInvalid("a quota of an IP address cannot be combined with a user or client id")
    return entity


def _check_address(name: str) -> None:
    try:
        ip_address(name)
    except ValueError:
        raise RequestInvalid(f"{name[:100]!r} is not an IP address") from None


def check_rate(entity: Entity, key: str, value: float | None) -> None:
    """Raise RequestInvalid unless the entity can have this quota. None: delete it."""
    allowed = (CONNECTION,) if entity[0][0] == IP else CLIENT_KEYS
    if key not in allowed:
        raise RequestInvalid(
            f"{key[:50]!r} is not a quota of {describe(entity)}: use {', '.join(allowed)}"
        )
    if value is None:
        return
    if not isfinite(value) or value <= 0:
        raise RequestInvalid(f"{key} must be greater than 0; {value} was given")
    if key in INTEGRAL and value != int(value):
        raise RequestInvalid(f"{key} must be an integer; {value} was given")
    limit = INT32_MAX if key == CONNECTION else INT64_MAX
    if value > limit:
        raise RequestInvalid(f"{key} must be at most {limit}; {value} was given")


def describe(entity: Entity) -> str:
    """For messages: `user 'a', default client-id`."""
    return ", ".join(
        f"default {kind}" if name is DEFAULT else f"{kind} {name[:100]!r}" for kind, name in entity
    )


def candidates(user: str, client_id: str) -> Iterator[tuple[Entity, Entity]]:
    """(entity whose quota may apply, entity whose bucket it charges), in Kafka's order."""
    yield ((CLIENT_ID, client_id), (USER, user)), ((CLIENT_ID, client_id), (USER, user))
    yield ((CLIENT_ID, DEFAULT), (USER, user)), ((CLIENT_ID, client_id), (USER, user))
    yield ((USER, user),), ((USER, user),)
    yield ((CLIENT_ID, client_id), (USER, DEFAULT)), ((CLIENT_ID, client_id), (USER, user))
    yield ((CLIENT_ID, DEFAULT), (USER, DEFAULT)), ((CLIENT_ID, client_id), (USER, user))
    yield ((USER, DEFAULT),), ((USER, user),)
    yield ((CLIENT_ID, client_id),), ((CLIENT_ID, client_id),)
    yield ((CLIENT_ID, DEFAULT),), ((CLIENT_ID, client_id),)


def quota_of(
    quotas: Mapping[Entity, Rates], key: str, user: str, client_id: str
) -> tuple[Entity, float] | None:
    """(entity whose bucket is charged, the rate) for a client; None: it is not limited."""
    for entity, bucket in candidates(user, client_id):
        rate = quotas.get(entity, {}).get(key)
        if rate is not None:
            return bucket, rate
    return None


def matches(entity: Entity, components: Iterable[Match], *, is_strict: bool) -> bool:
    """Whether a filter selects the entity. Strict: it has no parts other than those named."""
    parts = dict(entity)
    count = 0
    for component in components:
        count += 1
        if component.type not in parts:
            return False
        if not component.is_any and parts[component.type] != component.name:
            return False
    return not is_strict or count == len(parts)
