"""Shapes of answers: an example of each, from which its JSON Schema is derived.

Invariants: a schema and its example cannot differ. Knows no operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Json = dict[str, Any]


class OrNull(NamedTuple):
    """A value that may also be null."""

    value: Any


class Entries(NamedTuple):
    """An object with names of its clients' or Kafka's choice."""

    name: str
    value: Any


class Part(NamedTuple):
    """A shape that several answers share: a component of its own."""

    name: str
    shape: Any


def schema_of(shape: Any) -> Json:
    """The JSON Schema of a shape. Names that end with `?` are optional."""
    match shape:
        case OrNull(value):
            inner = schema_of(value)
            if "$ref" in inner:
                return {"oneOf": [inner, {"type": "null"}]}
            return inner | {"type": [inner["type"], "null"]}
        case Entries(_, value):
            return {"type": "object", "additionalProperties": schema_of(value)}
        case Part(name, _):
            return {"$ref": f"#/components/schemas/{name}"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
        case list():
            return {"type": "array", "items": schema_of(shape[0])}
        case _:
            return _object(shape)


def _object(shape: Json) -> Json:
    if not shape:
        return {"type": "object"}
    return {
        "type": "object",
        "required": [name for name in shape if not name.endswith("?")],
        "properties": {name.removesuffix("?"): schema_of(one) for name, one in shape.items()},
    }


def example_of(shape: Any) -> Any:
    """The example of a shape."""
    match shape:
        case OrNull(value):
            return example_of(value)
        case Entries(name, value):
            return {name: example_of(value)}
        case Part(_, inner):
            return example_of(inner)
        case list():
            return [example_of(one) for one in shape]
        case dict():
            return {name.removesuffix("?"): example_of(one) for name, one in shape.items()}
        case _:
            return shape
