"""Avro values as SQL rows, and rows as Avro values.

Invariants: the columns come from one schema; a value written with another is resolved into it by
Avro's own rules. A schema that SQL cannot represent is refused when a query is planned.
"""

from __future__ import annotations

import io
import json
from datetime import time
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import OptionInvalid
from headrace.schemas.avro import parsed
from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from headrace.schemas.registry import RegisteredSchema

_DECIMAL_DIGITS_MAX = 38


class AvroCodec:
    """See `values.ValueCodec`."""

    def __init__(self, text: str) -> None:
        self._schema = parsed(text)
        self.arrow_type = _arrow_type(json.loads(text), "value", {})

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """See `values.ValueCodec`."""
        from fastavro import schemaless_reader

        stream = io.BytesIO(payload)
        try:
            writer = self._schema if written_with is None else parsed(written_with.text)
            found = schemaless_reader(stream, writer, self._schema)
        except Exception as error:
            raise Undecodable(f"{type(error).__name__}: {str(error)[:200]}") from error
        if left := len(payload) - stream.tell():
            raise Undecodable(f"{left} bytes follow the value")
        return _plain(found)

    def encode(self, value: Any) -> bytes:
        """See `values.ValueCodec`."""
        from fastavro import schemaless_writer

        stream = io.BytesIO()
        schemaless_writer(stream, self._schema, value, strict_allow_default=True)
        return stream.getvalue()


def _plain(value: Any) -> Any:
    """Times of day as SQL has them here: microseconds."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, time):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1_000_000 + value.microsecond
    return str(value) if type(value).__name__ == "UUID" else value


def _arrow_type(schema: Any, path: str, named: dict[str, Any]) -> Any:
    """The type of a schema. Raises OptionInvalid, naming the field at `path`."""
    import pyarrow as pa

    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise _unsupported(path, "a union of several types")
        return _arrow_type(kinds[0], path, named)
    if isinstance(schema, str):
        simple = _simple_types()
        if schema in simple:
            return simple[schema]
        if named.get(schema) is None:
            raise _unsupported(path, f"the recursive or unknown type {schema}")
        return named[schema]
    kind = schema["type"]
    if kind == "record":
        full = schema["name"]
        named[full] = None
        fields = [
            pa.field(each["name"], _arrow_type(each["type"], f"{path}.{each['name']}", named))
            for each in schema["fields"]
        ]
        named[full] = pa.struct(fields)
        if not fields:
            raise _unsupported(path, "a record without fields")
        return named[full]
    if kind == "array":
        return pa.list_(_arrow_type(schema["items"], f"{path}[]", named))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_type(schema["values"], f"{path}{{}}", named))
    found = _logical_type(schema, path)
    if found is None:
        if kind not in ("enum", "fixed"):
            return _arrow_type(kind, path, named)
        found = pa.string() if kind == "enum" else pa.binary()
    if "name" in schema:
        named[schema["name"]] = found
    return found


def _logical_type(schema: dict[str, Any], path: str) -> Any:
    import pyarrow as pa

    logical = schema.get("logicalType")
    if logical == "decimal":
        digits = schema["precision"]
        if digits > _DECIMAL_DIGITS_MAX:
            raise _unsupported(path, f"a decimal of {digits} digits (at most 38)")
        return pa.decimal128(digits, schema.get("scale", 0))
    return {
        "date": pa.date32(),
        "timestamp-millis": pa.timestamp("us", "UTC"),
        "timestamp-micros": pa.timestamp("us", "UTC"),
        "local-timestamp-millis": pa.timestamp("us"),
        "local-timestamp-micros": pa.timestamp("us"),
        "time-millis": pa.int64(),
        "time-micros": pa.int64(),
        "uuid": pa.string(),
    }.get(logical or "")


def _simple_types() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    }  # fmt: skip


def _unsupported(path: str, what: str) -> OptionInvalid:
    return OptionInvalid(
        f"The Avro schema has {what} at {path}, which is no SQL type. Read the topic with"
        " valueFormat=binary, or give a schema without it: Avro resolves values into it."
    )
