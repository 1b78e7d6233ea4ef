"""JSON Schema as far as the interface uses it: the same schema is published and checked.

Invariants: a schema here is data of the OpenAPI document; `check` knows every keyword that the
schemas use, and refuses to load another one. Sizes of what clients send are bounded by the schemas.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]
_KEYWORDS: Final = {
    "additionalProperties", "anyOf", "default", "description", "enum", "format", "items",
    "maximum", "maxItems", "maxLength", "maxProperties", "minimum", "minItems", "minLength",
    "minProperties", "not", "oneOf", "pattern", "properties", "propertyNames", "required", "type",
}  # fmt: skip
_FORMATS: Final[dict[str, Callable[[str], object]]] = {"ipv4": IPv4Address, "ipv6": IPv6Address}
"""Raise ValueError for other texts."""
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "null": type(None),
}


_SEE: Final = "see /openapi.json"


def verify(schema: Schema) -> None:
    """Raises ValueError on a keyword that `check` does not know: a fault of ours."""
    if unknown := set(schema) - _KEYWORDS:
        raise ValueError(f"a schema uses {sorted(unknown)}, which is not checked")
    if schema.get("format", "ipv4") not in _FORMATS:
        raise ValueError(f"a schema has the format {schema['format']}, which is not checked")
    parts = [*schema.get("properties", {}).values()]
    parts += [*schema.get("oneOf", ()), *schema.get("anyOf", ())]
    parts += [schema[name] for name in ("items", "not", "propertyNames") if name in schema]
    if isinstance(schema.get("additionalProperties"), dict):
        parts.append(schema["additionalProperties"])
    for part in parts:
        verify(part)


def check(value: Any, schema: Schema, where: str) -> None:
    """Raises RequestInvalid, naming the place and what is allowed there.

    Integers that were written as 1.0 are replaced by int where they are parts of `value`.
    """
    kind = schema.get("type")
    if kind is not None:
        expected = _TYPES[kind]
        is_integral = kind == "integer" and isinstance(value, float) and value.is_integer()
        is_boolean = isinstance(value, bool) and kind != "boolean"
        if (not isinstance(value, expected) and not is_integral) or is_boolean:
            raise RequestInvalid(f"{where} is no {kind}")
    if "enum" in schema and value not in schema["enum"]:
        raise RequestInvalid(f"{where} is one of {', '.join(map(str, schema['enum'][:20]))}")
    for name in ("oneOf", "anyOf"):
        if name in schema and not any(_fits(value, part, where) for part in schema[name]):
            raise RequestInvalid(
                f"{where} has none of the allowed forms: {schema.get('description', _SEE)}"
            )
    if "not" in schema and _fits(value, schema["not"], where):
        reason = schema["not"].get("description", _SEE)
        raise RequestInvalid(f"{where} has a form that is not allowed: {reason}")
    if kind == "integer":
        _check_range(value, schema, where)
    elif kind == "string":
        _check_text(value, schema, where)
    elif kind == "array":
        _check_count(len(value), schema.get("minItems"), schema.get("maxItems"), where)
        for place, item in enumerate(value):
            _check_part(value, place, schema["items"], f"{where}[{place}]", item)
    elif kind == "object":
        _check_object(value, schema, where)


def _fits(value: Any, schema: Schema, where: str) -> bool:
    try:
        check(value, schema, where)
    except RequestInvalid:
        return False
    return True


def _check_range(value: float, schema: Schema, where: str) -> None:
    low, high = schema["minimum"], schema["maximum"]
    if not low <= value <= high:
        raise RequestInvalid(f"{where} is an integer from {low} to {high}")


def _check_text(value: str, schema: Schema, where: str) -> None:
    _check_count(len(value), schema.get("minLength"), schema.get("maxLength"), where)
    pattern = schema.get("pattern")
    if pattern is not None and not re.search(_python(pattern), value):
        raise RequestInvalid(f"{where} does not match {pattern}")
    if "format" in schema:
        try:
            _FORMATS[schema["format"]](value)
        except ValueError:
            raise RequestInvalid(f"{where} is no {schema['format']} address") from None
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise RequestInvalid(f"{where} is not text that UTF-8 could hold")


def _python(pattern: str) -> str:
    """JSON Schema's patterns are ECMA-262's, whose `$` does not match before a last newline."""
    return f"{pattern[:-1]}\\Z" if pattern.endswith("$") else pattern


def _check_count(count: int, low: int | None, high: int | None, where: str) -> None:
    if not (low or 0) <= count <= (count if high is None else high):
        bounds = f"at most {high}" if not low else f"from {low} to {high}"
        raise RequestInvalid(f"{where} has a size of {count}: {bounds} are allowed")


def _check_part(holder: Any, key: Any, schema: Schema, where: str, item: Any) -> None:
    """Check one part of an object or a list; 1.0, which is an integer in JSON Schema, becomes 1."""
    check(item, schema, where)
    if isinstance(item, float) and schema.get("type") == "integer":
        holder[key] = int(item)


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> None:
    _check_count(len(value), schema.get("minProperties"), schema.get("maxProperties"), where)
    properties: dict[str, Schema] = schema.get("properties", {})
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            raise RequestInvalid(f"{where} lacks {name!r}")
    for name, item in value.items():
        shown = f"{where}.{name[:50]}"
        if "propertyNames" in schema:
            check(name, schema["propertyNames"], f"the name {name[:50]!r} in {where}")
        if name in properties:
            _check_part(value, name, properties[name], shown, item)
        elif rest is False:
            known = ", ".join(sorted(properties))
            raise RequestInvalid(f"{where} has the unknown field {name[:50]!r}: known are {known}")
        elif isinstance(rest, dict):
            _check_part(value, name, rest, shown, item)
