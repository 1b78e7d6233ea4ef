"""All APIs but Produce and Fetch: read and written by the `kio` library's schemas.

Rules of the room: modules of a version are loaded when a client first speaks it, so an idle broker
holds none. Handlers give answers as plain dicts with the field names of Kafka's message
definitions in snake case; a field that a version lacks is left out, one that a handler leaves out
gets its default.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from headrace.kafka.wire.counts import type_of
from headrace.kafka.wire.primitives import FrameInvalid, elements

Answer = Mapping[str, Any]
_Convert = Callable[[Any], Any]


@lru_cache(maxsize=512)
def _reader(
    api_key: int, version: int
) -> tuple[Callable[[Any, int], tuple[Any, int]], Callable[[Any, int], int]]:
    """(what reads a request, what looks at its arrays before)."""
    from kio.index import load_request_schema
    from kio.serial import entity_reader

    cls = load_request_schema(api_key, version)
    return entity_reader(cls), type_of(cls).skip


def load(api_key: int, version: int) -> None:
    """Load what reads and writes an API now, and with it the library, which takes 0.15 s."""
    _ = _reader(api_key, version), _writer(api_key, version)


def read_request(api_key: int, version: int, data: bytes, at: int) -> Any:
    """The request's body as an entity of `kio`. Raises FrameInvalid, whatever is wrong with it.

    Bytes behind the body are let pass, as Kafka lets them: librdkafka 2 sends three of them when
    it asks for the metadata of all topics (Metadata v9 and later).
    """
    try:
        read, look = _reader(api_key, version)
        elements.begin()
        look(data, at)
        entity, _size = read(data, at)
    except FrameInvalid:
        raise
    except Exception as error:  # kio raises many kinds, all due to the bytes
        raise FrameInvalid(f"{type(error).__name__}: {str(error)[:200]}") from error
    return entity


def read_response(api_key: int, version: int, data: bytes, at: int) -> Any:
    """The body of another broker's answer. Raises FrameInvalid, whatever is wrong with it."""
    try:
        entity, _size = _response_reader(api_key, version)(data, at)
    except Exception as error:  # kio raises many kinds, all due to the bytes
        raise FrameInvalid(f"{type(error).__name__}: {str(error)[:200]}") from error
    return entity


@lru_cache(maxsize=16)
def _response_reader(api_key: int, version: int) -> Callable[[Any, int], tuple[Any, int]]:
    from kio.index import load_response_schema
    from kio.serial import entity_reader

    return entity_reader(load_response_schema(api_key, version))


def _identity(value: Any) -> Any:
    return value


def _milliseconds(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def _moment(timestamp_ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=timestamp_ms)


class _Shape:
    """How to build one entity class from a dict."""

    def __init__(self, cls: type) -> None:
        from kio.schema.errors import ErrorCode

        self.cls = cls
        self.columns: list[tuple[str, _Convert, Any]] = []
        hints = get_type_hints(cls)
        for item in fields(cls):
            kind = item.metadata.get("kafka_type")
            convert: _Convert = _identity
            if kind == "error_code":
                convert = ErrorCode
            elif kind in {"timedelta_i32", "timedelta_i64"}:
                convert = _milliseconds
            elif kind == "datetime_i64":
                convert = _moment
            elif kind is None or get_origin(hints[item.name]) is tuple:
                convert = self._nested(hints[item.name])
            default = item.default
            if default is MISSING and kind in {"timedelta_i32", "timedelta_i64"}:
                default = datetime.timedelta(0)
            self.columns.append((item.name, convert, default))

    @staticmethod
    def _nested(hint: Any) -> _Convert:
        """The conversion of an entity, or of a tuple of entities or of primitives."""
        if get_origin(hint) in {Union, UnionType}:
            hint = next(part for part in get_args(hint) if part is not NoneType)
        if get_origin(hint) is not tuple:
            shape = _shape(hint)
            return lambda value: None if value is None else shape.build(value)
        inner = get_args(hint)[0]
        if not hasattr(inner, "__version__"):
            return lambda value: None if value is None else tuple(value)
        of_inner = _shape(inner)
        return lambda value: (
            None if value is None else tuple(of_inner.build(item) for item in value)
        )

    def build(self, answer: Answer) -> Any:
        values: dict[str, Any] = {}
        for name, convert, default in self.columns:
            if name in answer:
                values[name] = convert(answer[name])
            elif default is not MISSING:
                values[name] = default
            else:
                raise KeyError(f"{self.cls.__name__}.{name} has no value")
        return self.cls(**values)


@lru_cache(maxsize=2048)
def _shape(cls: type) -> _Shape:
    return _Shape(cls)


@lru_cache(maxsize=512)
def _writer(api_key: int, version: int) -> tuple[_Shape, Callable[[Any, Any], None], bool]:
    from kio.index import load_response_schema
    from kio.serial import entity_writer

    cls = load_response_schema(api_key, version)
    return _shape(cls), entity_writer(cls), bool(cls.__flexible__)


def write_response(api_key: int, version: int, answer: Answer) -> bytes:
    """The response's header tags and body."""
    shape, write, is_flexible = _writer(api_key, version)
    buffer = io.BytesIO()
    if is_flexible and api_key != 18:  # KIP-511: clients read ApiVersions with header v0
        buffer.write(b"\x00")
    write(buffer, shape.build(answer))
    return buffer.getvalue()


@lru_cache(maxsize=16)
def _request_writer(api_key: int, version: int) -> tuple[_Shape, Callable[[Any, Any], None]]:
    from kio.index import load_request_schema
    from kio.serial import entity_writer

    cls = load_request_schema(api_key, version)
    return _shape(cls), entity_writer(cls)


def write_request(api_key: int, version: int, body: Answer) -> bytes:
    """The body of a request to another broker."""
    shape, write = _request_writer(api_key, version)
    buffer = io.BytesIO()
    write(buffer, shape.build(body))
    return buffer.getvalue()
