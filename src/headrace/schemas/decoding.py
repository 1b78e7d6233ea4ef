"""Values of records as JSON, by the schemas of a registry or of a folder.

Invariants: meant for a thread: a registry is waited for. One call asks for a bounded number of
schemas, takes a bounded time and returns a bounded text; what is left over is said, with why, and
no failure of a value or of the registry fails the call. Reasons name no address of the registry.
"""

from __future__ import annotations

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.runtime.rate_limited_warnings import RateLimitedWarnings
from headrace.schemas import avro
from headrace.schemas.errors import RegistryUnavailable, SchemaHasReferences, SchemaUnusable
from headrace.schemas.json_schema import JsonSchema
from headrace.schemas.protobuf import ProtobufMessages, message_named, split_indexes
from headrace.schemas.registry import SchemaUnknown, by_reference
from headrace.schemas.undecodable import Undecodable
from headrace.schemas.wire import reference_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.clock import Clock
    from headrace.schemas.registry import RegisteredSchema, RegistryAccess

log = logging.getLogger(__name__)

VALUE_BYTES_MAX: Final = 256 * 1024
TEXT_LENGTH_MAX: Final = 1024 * 1024
"""Of one value as JSON."""
ALL_TEXT_LENGTH_MAX: Final = 4 * 1024 * 1024
LOOKUPS_MAX: Final = 32
"""Schemas that one call asks a registry for, known ones aside."""
TIME_NS_MAX: Final = 5 * 1_000_000_000
SCHEMA_LENGTH_MAX: Final = 1024 * 1024
_INDEXES_MAX: Final = 32
_FILES: Final = (("avro", ".avsc"), ("json", ".json"), ("protobuf", ".desc"))
_FAILURES: Final = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)
"""What libraries raise for a value that is not what its schema says."""


class Value(NamedTuple):
    """A record's value, and those of its headers that may name a schema."""

    topic: str
    data: bytes
    headers: Sequence[tuple[str, bytes | None]]


class DecodedValue(NamedTuple):
    """`schema`: an id, a GUID or a file's name; `text`: the value as JSON."""

    format: str
    schema: str
    text: str


class ValueDecoder:
    """Decodes the values of topics."""

    def __init__(self, registry: RegistryAccess | None, folder: str | None, clock: Clock) -> None:
        """`folder`: of files `<topic>.avsc`, `.json` or `.desc`, for values that name no schema."""
        self._registry = registry
        self._folder = None if folder is None else Path(folder)
        self._clock = clock
        self._warnings = RateLimitedWarnings(log, clock)

    def decode(self, values: Sequence[Value | None]) -> list[DecodedValue | str | None]:
        """For each value what it is, or why it cannot be decoded; None for None."""
        turn = _Turn(self._registry, self._folder, self._clock, self._warnings)
        return [None if one is None else turn.decode(one) for one in values]


class _Turn:
    """One call: what it may still do."""

    def __init__(
        self,
        registry: RegistryAccess | None,
        folder: Path | None,
        clock: Clock,
        warnings: RateLimitedWarnings,
    ) -> None:
        self._registry = registry
        self._folder = folder
        self._clock = clock
        self._warnings = warnings
        self._end_ns = clock.now_ns() + TIME_NS_MAX
        self._length_left = ALL_TEXT_LENGTH_MAX
        self._found: dict[tuple[int | bytes, bool], RegisteredSchema | str] = {}
        self._files: dict[str, _File] = {}
        self._is_away = False

    def decode(self, value: Value) -> DecodedValue | str:
        """The decoded value, or why not."""
        try:
            if self._clock.now_ns() > self._end_ns:
                raise Undecodable("the time for decoding is over: ask for fewer records")
            if self._length_left <= 0:
                raise Undecodable("the answer holds enough decoded values: ask for fewer records")
            if len(value.data) > VALUE_BYTES_MAX:
                raise Undecodable(f"it has more than {VALUE_BYTES_MAX} bytes")
            found = self._decode(value)
            if len(found.text) > TEXT_LENGTH_MAX:
                raise Undecodable(f"as JSON, it has more than {TEXT_LENGTH_MAX} characters")
        except (Undecodable, SchemaUnusable, *_FAILURES) as error:
            reason = str(error)[:500] or type(error).__name__
            return reason.encode("utf-8", "replace").decode()  # it may quote half a surrogate pair
        except ImportError as error:
            return (
                f"the broker lacks a library ({error.name}): pip install 'headrace[schemas]' there"
            )
        self._length_left -= len(found.text)
        return found

    def _decode(self, value: Value) -> DecodedValue:
        reason = "neither a prefix nor a header names its schema"
        if self._registry is not None:
            try:
                payload, reference = reference_of(value.data, value.headers)
            except Undecodable as error:
                reason = str(error)
            else:
                schema = self._schema(reference, is_serialized=False)
                if schema.type == "PROTOBUF":
                    schema = self._schema(reference, is_serialized=True)
                name = str(reference) if isinstance(reference, int) else reference.hex()
                return DecodedValue(schema.type.lower(), name, _text_of(schema, payload))
        if self._folder is not None:
            if value.topic not in self._files:
                self._files[value.topic] = _file_of(self._folder, value.topic)
            return _by_file(self._files[value.topic], value.data)
        raise Undecodable(reason)

    def _schema(self, reference: int | bytes, *, is_serialized: bool) -> RegisteredSchema:
        """Raises Undecodable: what is not there is not asked for twice."""
        key = (reference, is_serialized)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._asked(reference, is_serialized=is_serialized)
        if isinstance(found, str):
            raise Undecodable(found)
        return found

    def _asked(self, reference: int | bytes, *, is_serialized: bool) -> RegisteredSchema | str:
        """The schema, or why there is none."""
        assert self._registry is not None, "only a registry has schemas by number"
        if self._is_away:
            return "the schema registry did not answer: try again"
        if len(self._found) >= LOOKUPS_MAX:
            return f"these records name more than {LOOKUPS_MAX} schemas: ask for fewer records"
        try:
            return by_reference(self._registry, reference, is_serialized=is_serialized)
        except SchemaUnknown as error:
            return f"the registry has no schema at {error}"
        except SchemaHasReferences:
            return "its schema refers to others, which is not supported"
        except RegistryUnavailable as error:
            self._is_away = True
            self._warnings.warn("registry", str(error))
            return "the schema registry did not answer: try again"
        except SchemaUnusable as error:
            self._warnings.warn("registry", str(error))
            return "the schema registry refuses this broker: its log says why"


def _text_of(schema: RegisteredSchema, payload: bytes) -> str:
    """Raises Undecodable, SchemaUnusable, ImportError, and what libraries raise."""
    if len(schema.text) > SCHEMA_LENGTH_MAX:
        raise Undecodable(f"its schema has more than {SCHEMA_LENGTH_MAX} characters")
    if schema.type == "AVRO":
        return _json(avro.value_of(schema.text, payload))
    if schema.type == "JSON":
        return _json(_json_schema(schema.text).read(payload))
    if schema.type != "PROTOBUF":
        raise Undecodable(f"its schema is of the unknown type {schema.type[:50]}")
    indexes, body = split_indexes(payload)
    if len(indexes) > _INDEXES_MAX:
        raise Undecodable(f"{len(indexes)} message indexes")
    return _proto_json(_messages(schema.text, tuple(indexes)), body)


class _File(NamedTuple):
    """The schema of a topic's bare values."""

    format: str
    name: str
    content: bytes


def _file_of(folder: Path, topic: str) -> _File:
    """Raises Undecodable."""
    for kind, ending in _FILES:
        name = f"{topic}{ending}"
        try:
            with (folder / name).open("rb") as file:
                content = file.read(SCHEMA_LENGTH_MAX + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Undecodable(f"the broker cannot read {name}: {error.strerror}") from error
        if len(content) > SCHEMA_LENGTH_MAX:
            raise Undecodable(f"the file {name} has more than {SCHEMA_LENGTH_MAX} bytes")
        return _File(kind, name, content)
    raise Undecodable(f"it names no schema, and the folder of schemas has no file of {topic}")


def _by_file(file: _File, data: bytes) -> DecodedValue:
    """Raises as `_text_of` does."""
    if file.format == "avro":
        found = _json(avro.value_of(file.content.decode(), data))
    elif file.format == "json":
        found = _json(_json_schema(file.content.decode()).read(data))
    else:
        found = _proto_json(_messages_of_file(file.content), data)
    return DecodedValue(file.format, file.name, found)


@lru_cache(maxsize=256)
def _json_schema(text: str) -> JsonSchema:
    return JsonSchema(text)


@lru_cache(maxsize=64)
def _messages(text: str, indexes: tuple[int, ...]) -> ProtobufMessages:
    return ProtobufMessages(text, message_named(text, indexes), has_indexes=False)


@lru_cache(maxsize=64)
def _messages_of_file(content: bytes) -> ProtobufMessages:
    return ProtobufMessages(content, "", has_indexes=False)


def _proto_json(messages: ProtobufMessages, body: bytes) -> str:
    """A message as ProtoJSON, with the names of its fields as they are in the schema."""
    from google.protobuf import json_format

    try:
        return _json(
            json_format.MessageToDict(messages.read(body), preserving_proto_field_name=True)
        )
    except json_format.Error as error:
        raise Undecodable(str(error)[:200]) from error


def _json(value: Any) -> str:
    """Raises ValueError for what JSON does not have, such as NaN."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if text.isascii() or _is_utf_8(text):
        return text
    return json.dumps(value, separators=(",", ":"))


def _is_utf_8(text: str) -> bool:
    """False: it has half of a surrogate pair, which JSON can escape alone."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
