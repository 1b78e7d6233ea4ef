"""JSON values by a JSON Schema.

Invariants: a value is validated against the whole schema before it becomes a row, so what SQL's
types do not express (patterns, ranges, required fields) holds, too. Parts for which the schema
names no single type become text: their JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import OptionInvalid
from headrace.schemas.json_schema import JsonSchema
from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from headrace.schemas.registry import RegisteredSchema

_DEPTH_MAX = 32
_CHOICES_DEPTH_MAX = 4
_INT64 = range(-(1 << 63), 1 << 63)
_CONTAINERS = {"object": dict, "array": list}


class JsonCodec:
    """See `values.ValueCodec`."""

    def __init__(self, text: str) -> None:
        self._schema = JsonSchema(text)
        self._root = self._schema.root
        self.arrow_type = self._type_of(self._root, 0)
        import pyarrow as pa

        if not pa.types.is_struct(self.arrow_type):
            raise OptionInvalid(
                "The JSON Schema describes no object with properties, so there are no columns to"
                " read. Read the topic with valueFormat=binary and use from_json."
            )

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """See `values.ValueCodec`."""
        return self._row(self._root, self._schema.read(payload), 0)

    def encode(self, value: Any) -> bytes:
        """See `values.ValueCodec`."""
        plain = self._plain(self._root, value)
        self._schema.validate(plain)
        return json.dumps(
            plain, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()

    def _resolved(self, schema: Any) -> Any:
        """Follow references within the schema."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            found: Any = self._root
            for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
                if part:
                    found = found.get(part.replace("~1", "/").replace("~0", "~"), {})
            schema = found
        return {}

    def _kind_of(self, schema: Any) -> str:
        """The one type of a schema besides null; "" if there is none."""
        if not isinstance(schema, dict):
            return ""
        kinds = schema.get("type", "object" if "properties" in schema else [])
        kinds = [kinds] if isinstance(kinds, str) else kinds
        named = [each for each in kinds if each != "null"]
        return str(named[0]) if len(named) == 1 else ""

    def _type_of(self, schema: Any, depth: int) -> Any:
        import pyarrow as pa

        schema = self._resolved(schema)
        kind = self._kind_of(schema)
        if depth > _DEPTH_MAX:
            raise OptionInvalid("The JSON Schema is recursive, or nested more than 32 levels deep.")
        if kind == "object" and schema.get("properties"):
            return pa.struct(
                [
                    (name, self._type_of(each, depth + 1))
                    for name, each in schema["properties"].items()
                ]
            )
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return pa.map_(pa.string(), self._type_of(schema["additionalProperties"], depth + 1))
        if kind == "array" and isinstance(schema.get("items"), dict):
            return pa.list_(self._type_of(schema["items"], depth + 1))
        return {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}.get(
            kind, pa.string()
        )

    def _row(self, schema: Any, value: Any, depth: int) -> Any:
        """A validated value as the type of its schema. Raises Undecodable, ValueError,
        ArithmeticError."""
        if value is None:
            return None
        schema = self._resolved(schema)
        kind = self._kind_of(schema)
        # `properties` without `type` restricts objects alone: other values are valid, too
        if kind in _CONTAINERS and not isinstance(value, _CONTAINERS[kind]):
            raise Undecodable(f"it has {type(value).__name__} where the columns have an {kind}")
        if kind == "object" and schema.get("properties"):
            return {
                name: self._row(each, value.get(name), depth + 1)
                for name, each in schema["properties"].items()
            }
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            inner = schema["additionalProperties"]
            return [(name, self._row(inner, each, depth + 1)) for name, each in value.items()]
        if kind == "array" and isinstance(schema.get("items"), dict):
            return [self._row(schema["items"], each, depth + 1) for each in value]
        if kind == "integer":
            number = int(value)
            if number not in _INT64:
                raise Undecodable(f"the integer {str(number)[:40]} has more than 64 bits")
            return number
        if kind == "number":
            return float(value)
        return value if kind in ("boolean", "string") else json.dumps(value)

    def _plain(self, schema: Any, value: Any) -> Any:
        """A row's value as JSON has it: a field that is null is absent unless it is required, so is
        one of a map unless it may be null, and the text of a part without a single type is what it
        says. Raises ValueError."""
        schema = self._resolved(schema)
        kind = self._kind_of(schema)
        if value is None:
            return None
        if kind == "object" and isinstance(value, dict):
            fields = schema.get("properties") or dict.fromkeys(
                value, schema.get("additionalProperties")
            )
            is_map = not schema.get("properties")
            required = schema.get("required", ())
            return {
                name: self._plain(fields[name], each)
                for name, each in value.items()
                if each is not None
                or name in required
                or (is_map and self._takes_null(fields[name]))
            }
        if kind == "array" and isinstance(value, list):
            return [self._plain(schema.get("items"), each) for each in value]
        if kind in ("integer", "number", "boolean", "string"):
            return value
        return _parsed(value, schema)

    def _takes_null(self, schema: Any, depth: int = 0) -> bool:
        """Whether a schema allows null; the validation of the whole value has the last word."""
        schema = self._resolved(schema)
        if not isinstance(schema, dict) or depth > _CHOICES_DEPTH_MAX:
            return schema is not False
        kinds = schema.get("type", "null")
        if "null" not in ([kinds] if isinstance(kinds, str) else kinds):
            return False
        if None not in schema.get("enum", [schema.get("const")]):
            return False
        takes = {
            name: [self._takes_null(each, depth + 1) for each in schema[name]]
            for name in ("anyOf", "oneOf", "allOf")
            if name in schema
        }
        return all(all(each) if name == "allOf" else any(each) for name, each in takes.items())


def _parsed(text: str, schema: Any) -> Any:
    """What the text of a part without a single type says; it may be a text of the schema's enum
    without quotes. Raises ValueError."""
    texts = schema.get("enum", [schema.get("const")]) if isinstance(schema, dict) else []
    try:
        found = json.loads(text)
    except ValueError as error:
        if text in texts:
            return text
        raise ValueError(
            f"{text[:50]!r} is not valid JSON, and the schema names no single type there: a text"
            " needs its quotes"
        ) from error
    return text if text in texts and found not in texts else found
