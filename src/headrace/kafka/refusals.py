"""Answers that refuse: built from a request and the definition of its response.

Responsibilities: every API has its own place for an error: one field for the whole response, one
for each item, or one for each partition of a topic. Kafka writes each of these by hand
(`getErrorResponse`); here the response is filled from the request by the names of fields, with the
error wherever there is a field for it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.wire.definitions import RESPONSE, load

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.errors import HeadraceError
    from headrace.kafka.wire.definitions import Field, MessageDefinition

_SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "results": (
        *("topics", "groups_names", "resources", "creations", "deletions", "upsertions"),
        *("dirs.topics", "feature_updates"),
    ),
    "responses": ("topics", "topic_names", "resources", "topic_partitions"),
    "groups": ("groups", "group_ids"),
    "partitions": ("partitions", "partition_indexes", "partition_indices"),
    "coordinators": ("coordinator_keys",),
    "transaction_states": ("transactional_ids",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "results_by_partition": ("partitions",),
    "filter_results": ("filters",),
    "replica_election_results": ("topic_partitions",),
    "partition_result": ("partitions", "partition_indexes"),
    "entries": ("entries",),
    "entity": ("entity",),
    "topics": ("topics",),
    "markers": ("markers",),
}
"""The lists of a request from which a list of its response is filled; `a.b`: the lists `b` of the
items of `a`."""
_IDENTITIES: Final = frozenset(
    {
        *("entity_name", "entity_type", "group_id", "key", "name", "partition", "partition_index"),
        *("producer_id", "resource_name", "resource_type", "topic", "topic_id", "topic_name"),
        *("transactional_id", "user"),
    }
)
"""Fields by which a client recognizes an item; an answer that refuses has nothing else to say."""
_OF_ERRORS: Final = frozenset({"entity"})
"""Lists that name an item, so that they are filled even if the item has an error field."""
_NONE: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "bool": False, "uuid": None}

definition_of = lru_cache(maxsize=256)(load)


def refusal(
    api_key: int, version: int, request: Any, error: HeadraceError | None
) -> dict[str, Any]:
    """The response that refuses the whole request; without an error, one that did nothing."""
    definition = definition_of(api_key, version, RESPONSE)
    return _filled(definition, definition.name, request, error)


def refused_items(
    api_key: int, version: int, listed: str, items: Iterable[Any], error: HeadraceError
) -> list[dict[str, Any]]:
    """The items of a list of the response (`topics`, `groups.topics`) that refuse items of the
    request."""
    definition = definition_of(api_key, version, RESPONSE)
    struct = definition.name
    for name in listed.split("."):
        struct = next(field.kind for field in definition.structs[struct] if field.name == name)
    return [_filled(definition, struct, item, error) for item in items]


def list_for(api_key: int, version: int, asked: str) -> str:
    """The list of the response that a list of the request fills."""
    definition = definition_of(api_key, version, RESPONSE)
    for field in definition.structs[definition.name]:
        if field.is_present and field.is_array and asked in _SOURCES.get(field.name, ()):
            return field.name
    raise LookupError(f"{definition.name} has no list for {asked!r}")


def _filled(
    definition: MessageDefinition, struct: str, given: Any, error: HeadraceError | None
) -> dict[str, Any]:
    fields = [field for field in definition.structs[struct] if field.is_present]
    has_code = any(field.name in {"error_code", "error_kind"} for field in fields)
    is_item = struct != definition.name
    is_named = False
    found: dict[str, Any] = {}
    for field in fields:
        if field.name.endswith("error_code"):
            found[field.name] = code_of(error) if field.name != "topic_config_error_code" else 0
        elif field.name == "error_kind":
            found[field.name] = None if error is None else type(error).__name__
        elif field.name == "error_message":
            found[field.name] = message_of(error)
        elif field.is_array and field.kind in definition.structs:
            is_filled = not has_code or field.name in _OF_ERRORS
            items = _items(field.name, given) if is_filled else ()
            found[field.name] = [_filled(definition, field.kind, item, error) for item in items]
        elif field.is_array:
            found[field.name] = ()
        elif isinstance(given, str | int) and not is_named and field.kind in {"string", "int32"}:
            found[field.name] = given
            is_named = True
        elif is_item and (value := _identity(field, given)) is not None:
            found[field.name] = value
        elif field.is_required and field.is_nullable:
            found[field.name] = None
        elif field.is_required and field.kind in definition.structs:
            found[field.name] = _filled(definition, field.kind, None, None)
        elif field.is_required:
            found[field.name] = _NONE.get(field.kind, -1)
    return found


def _items(name: str, given: Any) -> list[Any]:
    items: list[Any] = []
    for source in _SOURCES.get(name, (name,)):
        outer, _, inner = source.rpartition(".")
        holders = getattr(given, outer, None) or () if outer else (given,)
        for holder in holders:
            items += getattr(holder, inner, None) or ()
    return items


def _identity(field: Field, given: Any) -> Any:
    """The value of a field of an item; None if it is not one that names it."""
    if field.name not in _IDENTITIES:
        return None
    if field.name == "user":
        return getattr(given, "name", None)
    return getattr(given, field.name, None)
