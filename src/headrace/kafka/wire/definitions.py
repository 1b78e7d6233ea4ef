"""Kafka's message definitions, one message at a time.

Responsibilities: finds a message in `messages.jsonl` (derived from Kafka's published definitions by
`scripts/kafka_messages.py`), or in `own_messages.jsonl`, which defines the additional requests
between Headrace brokers; and returns its fields in one version. Nothing is cached: the codecs built
from it are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

REQUEST: Final = "request"
RESPONSE: Final = "response"
FIXED: Final = {
    "bool": ("?", 1), "int8": ("b", 1), "int16": ("h", 2), "uint16": ("H", 2), "int32": ("i", 4),
    "uint32": ("I", 4), "int64": ("q", 8), "float64": ("d", 8), "uuid": ("16s", 16),
}  # fmt: skip
"""Types of fixed size: their `struct` codes, and their sizes in bytes."""
_IMPLICIT: Final = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "records": None}
_LAST: Final = 1 << 15


def layout_name(layout: str) -> str:
    """A `struct` layout as part of a name."""
    return layout.removeprefix(">").replace("?", "o")


def named_layouts(source: str) -> set[str]:
    """The layouts that `source` packs or unpacks by name: `struct`'s own functions would look each
    of them up in every call."""
    found = re.findall(r"pack_(\w+)\(", source)
    return {">" + name.replace("o", "?") for name in found}


class Field(NamedTuple):
    """One field in one version, or one that the version lacks (`is_present`)."""

    name: str
    kind: str
    """A primitive type, or the name of a struct."""
    is_array: bool
    is_present: bool
    is_nullable: bool
    tag: int | None
    is_required: bool
    """Whether the writer must supply it: it is not tagged and has no default."""
    default: Any
    """None for a struct that is not nullable: the codec creates one of defaults."""


class MessageDefinition(NamedTuple):
    """One message in one version."""

    name: str
    is_flexible: bool
    structs: dict[str, tuple[Field, ...]]
    """Innermost structs first; the message itself last."""


class NoSuchMessage(LookupError):
    """Kafka does not define the message, or not in this version."""


KAFKAS: Final = "messages.jsonl"
OWN: Final = "own_messages.jsonl"
OWN_KEYS_FROM: Final = 20_000
"""API keys from here on are Headrace's own. Far from Kafka's, which count up from 0."""


def _data(name: str = KAFKAS) -> bytes:
    return Path(__file__).with_name(name).read_bytes()


def keys() -> list[tuple[int, str, range]]:
    """(API key, request or response, versions) of every message."""
    lines = [json.loads(line) for line in _data().splitlines()[1:]]
    return [(line["key"], line["kind"], _versions(line["versions"])) for line in lines]


def load(api_key: int, version: int, kind: str) -> MessageDefinition:
    """Raises NoSuchMessage."""
    data = _data(OWN if api_key >= OWN_KEYS_FROM else KAFKAS)
    at = data.find(b'\n{"key":%d,"kind":"%s",' % (api_key, kind.encode())) + 1
    if not at:
        raise NoSuchMessage(f"Kafka defines no {kind} of API {api_key}")
    message = json.loads(data[at : data.index(b"\n", at)])
    if version not in _versions(message["versions"]):
        raise NoSuchMessage(f"{message['name']} has versions {message['versions']}, not {version}")
    structs: dict[str, tuple[Field, ...]] = {}
    for name, fields in message["structs"].items():
        _add_struct(structs, name, fields, version)
    _add_struct(structs, message["name"], message["fields"], version)
    return MessageDefinition(message["name"], version in _versions(message["flexible"]), structs)


def _versions(text: str | None) -> range:
    """Parse `none`, `3`, `1-4` or `2+`."""
    if text is None or text == "none":
        return range(0)
    first, dash, last = text.removesuffix("+").partition("-")
    if text.endswith("+"):
        return range(int(first), _LAST)
    return range(int(first), int(last if dash else first) + 1)


def _add_struct(
    structs: dict[str, tuple[Field, ...]], name: str, fields: list[dict[str, Any]], version: int
) -> None:
    for item in fields:
        if "fields" in item:
            _add_struct(structs, item["type"].removeprefix("[]"), item["fields"], version)
    structs[name] = tuple(_field(item, version) for item in fields)


def _field(item: dict[str, Any], version: int) -> Field:
    name, kind = item["name"], item["type"]
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    is_tagged = version in _versions(item.get("tagged"))
    # Handlers may omit the throttle time: it defaults to 0.
    has_default = "default" in item or is_tagged or name == "throttle_time_ms"
    if "default" in item:
        default = item["default"]
    elif is_array:
        default = ()
    elif kind in FIXED:
        default = None if kind == "uuid" else _IMPLICIT.get(kind, 0)
    else:
        default = _IMPLICIT.get(kind)
    return Field(
        name,
        kind,
        is_array,
        version in _versions(item["versions"]),
        version in _versions(item.get("nullable")),
        item["tag"] if is_tagged else None,
        not has_default,
        default,
    )
