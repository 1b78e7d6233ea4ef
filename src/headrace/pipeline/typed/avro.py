"""Avro values as SQL rows, and rows as Avro values.

Invariants: the columns come from one schema; a value written with another is resolved into it by
Avro's own rules. A schema that SQL cannot represent is refused when a query is planned.
"""

from __future__ import annotations

import io
from datetime import time
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import OptionInvalid
from headrace.schemas.avro import check_bounded, named_types, parsed
from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from headrace.schemas.registry import RegisteredSchema

_DECIMAL_DIGITS_MAX = 38
_TIMES_OF_DAY = {"int-time-millis": 1_000, "long-time-micros": 1}
"""Microseconds in the unit of each; of another type, Avro ignores the name."""
_DAY_US = range(86_400_000_000)


class AvroCodec:
    """See `values.ValueCodec`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._schema = parsed(text)
        self._named = named_types(text)
        self._has_times = any(unit in str(self._schema) for unit in ("time-millis", "time-micros"))
        # The parsed schema has names in full, so two types of one name are not confused.
        self.arrow_type = _arrow_type(self._schema, "value", {})

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """See `values.ValueCodec`."""
        from fastavro import schemaless_reader

        text = self._text if written_with is None else written_with.text
        stream = io.BytesIO(payload)
        try:
            writer = parsed(text)
            check_bounded(text, payload)
            found = schemaless_reader(stream, writer, self._schema)
        except Undecodable:
            raise
        except Exception as error:
            raise Undecodable(f"{type(error).__name__}: {str(error)[:200]}") from error
        if left := len(payload) - stream.tell():
            raise Undecodable(f"{left} bytes follow the value")
        return _plain(found)

    def encode(self, value: Any) -> bytes:
        """See `values.ValueCodec`."""
        from fastavro import schemaless_writer

        stream = io.BytesIO()
        if self._has_times:
            value = _with_times(self._schema, value, self._named)
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


def _with_times(schema: Any, value: Any, named: dict[str, Any]) -> Any:
    """A row's value with the times of day that its schema has in milliseconds. Raises ValueError
    for one that is between two, or is none of a day."""
    if value is None:
        return None
    if isinstance(schema, list):
        schema = next(each for each in schema if each != "null")
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind = schema["type"]
    if kind in named:
        return _with_times(named[kind], value, named)
    if kind == "record" and isinstance(value, dict):
        # What the schema does not have stays, so that it is refused.
        parts = {each["name"]: each["type"] for each in schema["fields"]}
        return {
            name: _with_times(parts[name], each, named) if name in parts else each
            for name, each in value.items()
        }
    if kind == "array" and isinstance(value, list):
        return [_with_times(schema["items"], each, named) for each in value]
    if kind == "map" and isinstance(value, dict):
        return {name: _with_times(schema["values"], each, named) for name, each in value.items()}
    unit = _TIMES_OF_DAY.get(f"{kind}-{schema.get('logicalType')}")
    if unit is None or not isinstance(value, int):
        return value
    if value not in _DAY_US:
        raise ValueError(f"the time of day {value} (microseconds) is not within a day")
    units, left = divmod(value, unit)
    if left:
        raise ValueError(
            f"the time of day {value} (microseconds) is not a whole number of milliseconds"
        )
    return units


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
    found = _logical_type(kind, schema, path)
    if found is None:
        if kind not in ("enum", "fixed"):
            return _arrow_type(kind, path, named)
        found = pa.string() if kind == "enum" else pa.binary()
    if "name" in schema:
        named[schema["name"]] = found
    return found


def _logical_type(kind: str, schema: dict[str, Any], path: str) -> Any:
    """None: there is none, or it does not fit `kind`, and is ignored as Avro prescribes."""
    import pyarrow as pa

    logical = f"{kind}-{schema.get('logicalType')}"
    if logical in ("bytes-decimal", "fixed-decimal"):
        digits = schema["precision"]
        if digits > _DECIMAL_DIGITS_MAX:
            raise _unsupported(path, f"a decimal of {digits} digits (at most 38)")
        return pa.decimal128(digits, schema.get("scale", 0))
    return {
        "int-date": pa.date32(),
        "long-timestamp-millis": pa.timestamp("us", "UTC"),
        "long-timestamp-micros": pa.timestamp("us", "UTC"),
        "long-local-timestamp-millis": pa.timestamp("us"),
        "long-local-timestamp-micros": pa.timestamp("us"),
        "int-time-millis": pa.int64(),
        "long-time-micros": pa.int64(),
        "string-uuid": pa.string(),
    }.get(logical)


def _simple_types() -> dict[str, Any]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
        "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
    }  # fmt: skip


def _unsupported(path: str, what: str) -> OptionInvalid:
    return OptionInvalid(
        f"The Avro schema has {what} at {path}, which is not an SQL type. Read the topic with"
        " valueFormat=binary, or give a schema without it: Avro resolves values into it."
    )
