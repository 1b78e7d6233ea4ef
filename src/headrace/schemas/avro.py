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
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.schemas.errors import SchemaUnusable
from headrace.schemas.undecodable import Undecodable

DEPTH_MAX: Final = 64
PARTS_MAX: Final = 50_000
"""Numbers, texts, lists and so on in one value that is shown."""
COLUMN_PARTS_MAX: Final = 2_000_000
"""The same of a value that becomes columns: about 250 MB at worst."""
_DECIMAL_PAYLOAD_MAX: Final = 16_384
"""A value that is no longer holds no decimal that is slow."""
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


class _Growth(NamedTuple):
    """What a value of a schema can have at most: parts outside of lists and maps, and parts for
    each byte of an item of one; None: any number."""

    fixed: int
    per_byte: int | None
    has_decimals: bool


def check_bounded(text: str, payload: bytes) -> None:
    """Raise Undecodable for a value that has more than `COLUMN_PARTS_MAX` parts, or is too deep.

    Only what the schema, and the length of the value, leave open is counted, which is slow.
    """
    growth = _growth(text)
    if growth.per_byte is not None:
        most = growth.fixed + growth.per_byte * len(payload)
        has_slow = growth.has_decimals and len(payload) > _DECIMAL_PAYLOAD_MAX
        if most <= COLUMN_PARTS_MAX and not has_slow:
            return
    reader = _Reader(named_types(text), payload, COLUMN_PARTS_MAX)
    try:
        reader.read(parsed(text), 0)
    except (ValueError, ArithmeticError, TypeError, IndexError, KeyError) as error:
        raise reader.failure(str(error)[:200]) from error


@lru_cache(maxsize=256)
def _growth(text: str) -> _Growth:
    measure = _Measure(named_types(text))
    try:
        parts, _ = measure.of(parsed(text), 0)
    except RecursionError:
        return _Growth(0, None, has_decimals=True)
    return _Growth(parts, measure.per_byte, measure.has_decimals)


class _Measure:
    """How many parts a value of a schema has at most, and how many bytes at least."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._known: dict[str, tuple[int, int] | None] = {}
        self.per_byte: int | None = 0
        self.has_decimals = False

    def of(self, schema: Any, depth: int) -> tuple[int, int]:
        """(parts at most, bytes at least), without the items of lists and maps. Raises
        RecursionError for a type within itself, and for more than `DEPTH_MAX` levels."""
        if depth > DEPTH_MAX:
            raise RecursionError
        if isinstance(schema, list):
            branches = [self.of(one, depth + 1) for one in schema]
            return 1 + max(most for most, _ in branches), 1 + min(least for _, least in branches)
        if isinstance(schema, str):
            if schema in self._named:
                return self._named_type(schema, depth)
            return 1, _BYTES_MIN.get(schema, 1)
        kind = schema["type"]
        if kind == "record":
            return self._named_type(schema["name"], depth)
        if kind in ("array", "map"):
            parts, size = self.of(schema["items" if kind == "array" else "values"], depth + 1)
            self._grow(parts, size + (kind == "map"))
            return 1, 1
        self.has_decimals |= schema.get("logicalType") == "decimal"
        if kind in ("enum", "fixed"):
            return 1, schema["size"] if kind == "fixed" else 1
        return self.of(kind, depth + 1)

    def _named_type(self, name: str, depth: int) -> tuple[int, int]:
        schema = self._named[name]
        if schema["type"] != "record":
            return self.of(schema, depth + 1)
        if name not in self._known:
            self._known[name] = None
            found = [self.of(one["type"], depth + 1) for one in schema["fields"]]
            self._known[name] = (
                1 + sum(most for most, _ in found),
                sum(least for _, least in found),
            )
        measured = self._known[name]
        if measured is None:
            raise RecursionError
        return measured

    def _grow(self, parts: int, size: int) -> None:
        if self.per_byte is not None:
            self.per_byte = max(self.per_byte, -(-parts // size)) if size else None


_BYTES_MIN: Final = {"null": 0, "float": 4, "double": 8}


class _Reader:
    """One value of at most `parts_max` parts."""

    def __init__(self, named: dict[str, Any], payload: bytes, parts_max: int = PARTS_MAX) -> None:
        self._named = named
        self._data = payload
        self._parts_max = parts_max
        self.at = 0
        self._parts = 0
        self._path: list[str] = []

    def failure(self, reason: str) -> Undecodable:
        """The error at the place that was reached."""
        return Undecodable(f"{'.'.join(self._path)[:200] or 'the value'}: {reason}")

    def read(self, schema: Any, depth: int) -> Any:
        """Raises Undecodable, and what conversions raise."""
        self._parts += 1
        if self._parts > self._parts_max:
            raise self.failure(f"it has more than {self._parts_max} parts")
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
