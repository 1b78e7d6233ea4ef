"""Schemas of Avro, parsed once in each process, and values by them as JSON.

Invariants: a value is read within a depth and a number of parts: of a schema that refers to itself,
or a list of nulls, a few bytes describe a value of any depth and size, and fastavro, which reads
those that are trusted, follows them until the process dies.
"""

from __future__ import annotations

import base64
import json
import struct
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

from headrace.schemas.errors import SchemaUnusable
from headrace.schemas.undecodable import Undecodable

DEPTH_MAX: Final = 64
PARTS_MAX: Final = 50_000
"""Numbers, texts, lists and so on in one value."""
DECIMAL_BYTES_MAX: Final = 1_024
"""Whoever makes digits of more pays for their square."""
_VARINT_BITS: Final = 64
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


@lru_cache(maxsize=256)
def parsed(text: str) -> Any:
    """A schema as fastavro has it: names in full. Raises SchemaUnusable, ImportError."""
    from fastavro import parse_schema

    try:
        return parse_schema(_usable(json.loads(text)))
    except Exception as error:  # of several libraries, without a common kind
        raise SchemaUnusable(f"The Avro schema cannot be parsed: {error}") from error


def _usable(schema: Any) -> Any:
    """Without decimals that have no precision: Avro ignores such a name, fastavro fails at each
    value."""
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            if each.get("logicalType") == "decimal" and not each.get("precision"):
                del each["logicalType"]
            waiting += [each.get("type"), each.get("items"), each.get("values")]
            waiting += each.get("fields") or ()
    return schema


def value_of(text: str, payload: bytes) -> Any:
    """A value for JSON: bytes in base64, times in ISO 8601, decimals as texts.

    Raises Undecodable with the place in the value, SchemaUnusable, ImportError.
    """
    reader = _Reader(named_types(text), payload)
    try:
        value = reader.read(parsed(text), 0)
    except (ValueError, ArithmeticError, TypeError, IndexError) as error:
        raise reader.failure(str(error)[:200]) from error
    if left := len(payload) - reader.at:
        raise Undecodable(f"{left} bytes follow the value")
    return value


@lru_cache(maxsize=256)
def named_types(text: str) -> dict[str, Any]:
    """The types of a schema by their full names."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [parsed(text)]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, list):
            waiting += schema
        elif isinstance(schema, dict):
            if "name" in schema:
                found[schema["name"]] = schema
            waiting += [schema.get("type"), schema.get("items"), schema.get("values")]
            waiting += [one["type"] for one in schema.get("fields", ())]
    return found


class _Reader:
    """One value."""

    def __init__(self, named: dict[str, Any], payload: bytes) -> None:
        self._named = named
        self._data = payload
        self.at = 0
        self._parts = 0
        self._path: list[str] = []

    def failure(self, reason: str) -> Undecodable:
        """The error at the place that was reached."""
        return Undecodable(f"{'.'.join(self._path)[:200] or 'the value'}: {reason}")

    def read(self, schema: Any, depth: int) -> Any:
        """Raises Undecodable, and what conversions raise."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise self.failure(f"it has more than {PARTS_MAX} parts")
        if depth > DEPTH_MAX:
            raise self.failure(f"it is nested more than {DEPTH_MAX} levels deep")
        if isinstance(schema, list):
            branch = self._long()
            if not 0 <= branch < len(schema):
                raise self.failure(f"its union has no branch {branch}")
            return self.read(schema[branch], depth + 1)
        if isinstance(schema, str):
            if schema in self._named:
                return self.read(self._named[schema], depth + 1)
            return _shown(self._primitive(schema))
        kind = schema["type"]
        if kind == "record":
            return {one["name"]: self._field(one, depth + 1) for one in schema["fields"]}
        if kind == "array":
            return [self.read(schema["items"], depth + 1) for _ in self._items()]
        if kind == "map":
            return {
                str(self._primitive("string")): self.read(schema["values"], depth + 1)
                for _ in self._items()
            }
        if kind == "enum":
            return schema["symbols"][self._count(len(schema["symbols"]) - 1)]
        if isinstance(kind, (dict, list)) or kind in self._named:
            return self.read(kind, depth + 1)
        raw = self._take(schema["size"]) if kind == "fixed" else self._primitive(kind)
        if schema.get("logicalType") == "decimal" and len(raw) > DECIMAL_BYTES_MAX:
            raise self.failure(f"it has a decimal of more than {DECIMAL_BYTES_MAX} bytes")
        return _shown(_logical(schema, kind, raw))

    def _field(self, field: Any, depth: int) -> Any:
        self._path.append(field["name"])
        value = self.read(field["type"], depth)
        self._path.pop()
        return value

    def _items(self) -> Any:
        """As many turns as an array or map has items, over all its blocks."""
        while count := self._long():
            if count < 0:  # its size in bytes follows, for readers that skip it
                self._long()
            for _ in range(abs(count)):
                yield None

    def _primitive(self, kind: str) -> Any:
        if kind in ("int", "long"):
            return self._long()
        if kind == "string":
            return self._take(self._count(len(self._data))).decode()
        if kind == "bytes":
            return self._take(self._count(len(self._data)))
        if kind == "null":
            return None
        if kind == "boolean":
            return self._take(1) != b"\0"
        if kind not in _FLOATS:
            raise self.failure(f"its schema has the unknown type {str(kind)[:50]}")
        form = _FLOATS[kind]
        return form.unpack(self._take(form.size))[0]

    def _count(self, high: int) -> int:
        number = self._long()
        if not 0 <= number <= high:
            raise self.failure(f"it has a length or index of {number} (at most {high})")
        return number

    def _long(self) -> int:
        found = shift = 0
        while True:
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            if shift >= _VARINT_BITS:
                raise self.failure("it has a number of more than 64 bits")

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise self.failure(f"{end - len(self._data)} bytes are missing")
        part = self._data[self.at : end]
        self.at = end
        return part


def _logical(schema: Any, kind: str, raw: Any) -> Any:
    from fastavro.read import LOGICAL_READERS

    convert = LOGICAL_READERS.get(f"{kind}-{schema.get('logicalType')}")
    return raw if convert is None else convert(raw, schema, schema)


def _shown(value: Any) -> Any:
    """For JSON, which has no bytes, dates and numbers that are not finite."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    is_finite = not isinstance(value, float) or value - value == 0
    return value if is_finite else str(value)
