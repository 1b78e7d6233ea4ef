"""Whether the arrays of a request can be as long as they claim: looked at before `kio` reads it.

Rules of the room: knows types and sizes, no values. `kio` takes memory for as many elements as a
count claims before it reads the first, and a count of 2^31-1 ends the process; so each count is
held against the bytes that are left, and what does not fit raises FrameInvalid. So does a request
with more than `ELEMENTS_MAX` in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from headrace.kafka.wire.primitives import (
    INT16,
    INT32,
    FrameInvalid,
    elements,
    read_tag_count,
    read_uvarint,
)

_Skip = Callable[[Any, int], int]
"""(data, position) -> the position behind."""


class _Type(NamedTuple):
    least_bytes: int
    skip: _Skip
    fixed_bytes: int | None = None


_FIXED = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4,
    "uint32": 4, "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8,
    "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


def _fixed(size: int) -> _Type:
    return _Type(size, lambda _data, at: at + size, size)


def _skip_string(data: Any, at: int) -> int:
    return at + 2 + max(0, int(INT16.unpack_from(data, at)[0]))


def _skip_bytes(data: Any, at: int) -> int:
    return at + 4 + max(0, int(INT32.unpack_from(data, at)[0]))


def _skip_compact(data: Any, at: int) -> int:
    size, at = read_uvarint(data, at)
    return at + max(0, size - 1)


def _plain(kind: str, *, is_flexible: bool) -> _Type:
    if kind in _FIXED:
        return _fixed(_FIXED[kind])
    assert kind in {"string", "bytes", "records"}, kind
    if is_flexible:
        return _Type(1, _skip_compact)
    return _Type(2, _skip_string) if kind == "string" else _Type(4, _skip_bytes)


def _array(element: _Type, *, is_flexible: bool, is_nullable: bool) -> _Type:
    least, skip, fixed = element.least_bytes, element.skip, element.fixed_bytes

    def skip_array(data: Any, at: int) -> int:
        if is_flexible:
            count, at = read_uvarint(data, at)
            count -= 1
        else:
            (count,) = INT32.unpack_from(data, at)
            at += 4
        if count <= 0:
            if count < 0 and not is_nullable:
                raise FrameInvalid("an array that must be there is null")
            return at
        if count * least > len(data) - at:
            raise FrameInvalid(f"an array of {count} elements does not fit the request")
        elements.take(count)
        if fixed is not None:
            return int(at + count * fixed)
        for _ in range(count):
            at = skip(data, at)
        return at

    return _Type(1 if is_flexible else 4, skip_array)


def _or_null(entity: _Type) -> _Type:
    return _Type(1, lambda data, at: at + 1 if data[at] == 0xFF else entity.skip(data, at + 1))


def _field(kind: str | None, hint: Any, *, is_flexible: bool, is_tag: bool) -> _Type:
    is_nullable = get_origin(hint) in {Union, UnionType}
    if is_nullable:
        hint = next(part for part in get_args(hint) if part is not NoneType)
    if get_origin(hint) is tuple:
        inner = get_args(hint)[0]
        element = type_of(inner) if kind is None else _plain(kind, is_flexible=is_flexible)
        return _array(element, is_flexible=is_flexible, is_nullable=is_nullable)
    if kind is None:
        return _or_null(type_of(hint)) if is_nullable and not is_tag else type_of(hint)
    return _plain(kind, is_flexible=is_flexible)


def type_of(cls: Any) -> _Type:
    """How to walk over an entity of `kio`."""
    is_flexible = bool(cls.__flexible__)
    hints = get_type_hints(cls)
    steps: list[_Type] = []
    tagged: dict[int, _Skip] = {}
    for item in fields(cls):
        tag = item.metadata.get("tag")
        kind = item.metadata.get("kafka_type")
        step = _field(kind, hints[item.name], is_flexible=is_flexible, is_tag=tag is not None)
        if tag is not None:
            tagged[tag] = step.skip
        else:
            steps.append(step)
    skips = [step.skip for step in steps]

    def skip(data: Any, at: int) -> int:
        for one in skips:
            at = one(data, at)
        return _skip_tags(data, at, tagged) if is_flexible else at

    return _Type(sum(step.least_bytes for step in steps) + is_flexible, skip)


def _skip_tags(data: Any, at: int, tagged: dict[int, _Skip]) -> int:
    count, at = read_tag_count(data, at)
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if tag in tagged:
            tagged[tag](data, at)
        at += size
    return at
