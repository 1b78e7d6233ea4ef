"""Protobuf messages as SQL rows, and rows as messages.

Invariants: messages become structs field by field. A field that knows whether it is set is null if
it is not; others have their default. Unknown fields are ignored, as Protobuf prescribes.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import OptionInvalid
from headrace.schemas.protobuf import ProtobufMessages
from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from headrace.schemas.registry import RegisteredSchema

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UINT64_DIGITS = 20
_UINT32, _UINT64, _FIXED64, _FIXED32, _BYTES = 13, 4, 6, 7, 12  # FieldDescriptorProto.Type


class ProtobufCodec:
    """See `values.ValueCodec`."""

    def __init__(self, source: bytes | str, message: str, *, has_indexes: bool) -> None:
        self._messages = ProtobufMessages(source, message, has_indexes=has_indexes)
        self.arrow_type = _struct_of(self._messages.descriptor, ())

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """See `values.ValueCodec`."""
        message = self._messages.read(payload)
        try:
            return _row(message)
        except OverflowError as error:
            raise Undecodable(str(error)[:200]) from error

    def encode(self, value: Any) -> bytes:
        """See `values.ValueCodec`."""
        message = self._messages.new()
        _fill(message, value)
        return self._messages.written(message)


def _is_map(field: Any) -> bool:
    kind = field.message_type
    return kind is not None and kind.GetOptions().map_entry


def _struct_of(descriptor: Any, outer: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if descriptor.full_name in outer or not descriptor.fields:
        what = "is recursive" if descriptor.fields else "has no fields"
        raise OptionInvalid(
            f"The Protobuf message {descriptor.full_name} {what}, which no SQL type can express."
            " Read the topic with valueFormat=binary."
        )
    inner = (*outer, descriptor.full_name)
    return pa.struct([(field.name, _type_of(field, inner)) for field in descriptor.fields])


def _type_of(field: Any, outer: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_scalar_type(entry["key"], outer), _scalar_type(entry["value"], outer))
    kind = _scalar_type(field, outer)
    return pa.list_(kind) if field.is_repeated else kind


def _scalar_type(field: Any, outer: tuple[str, ...]) -> Any:
    import pyarrow as pa

    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", "UTC")
        return _struct_of(field.message_type, outer)
    if field.type in (_UINT64, _FIXED64):
        return pa.decimal128(_UINT64_DIGITS, 0)
    if field.type in (_UINT32, _FIXED32):
        return pa.int64()
    if field.type == _BYTES:
        return pa.binary()
    return {
        field.CPPTYPE_INT32: pa.int32(), field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_DOUBLE: pa.float64(), field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(), field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.string(),
    }[field.cpp_type]  # fmt: skip


def _row(message: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            found[field.name] = None
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _scalar(inner, value[key])) for key in sorted(value)]
        elif field.is_repeated:
            found[field.name] = [_scalar(field, each) for each in value]
        else:
            found[field.name] = _scalar(field, value)
    return found


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    if field.message_type is None:
        return value
    if field.message_type.full_name == _TIMESTAMP:
        return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    return _row(value)


def _fill(message: Any, row: dict[str, Any]) -> None:
    """Set a message's fields from a row. Raises TypeError, ValueError."""
    for field in message.DESCRIPTOR.fields:
        value = row.get(field.name)
        if value is None:
            continue
        target = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, each in dict(value).items():
                if inner.message_type is None:
                    target[key] = _raw(inner, each)
                else:
                    _set_message(target[key], each)
        elif field.is_repeated:
            for each in value:
                if field.message_type is None:
                    target.append(_raw(field, each))
                else:
                    _set_message(target.add(), each)
        elif field.message_type is None:
            setattr(message, field.name, _raw(field, value))
        else:
            target.SetInParent()
            _set_message(target, value)


def _set_message(message: Any, value: Any) -> None:
    if isinstance(value, datetime):
        message.FromDatetime(value)
    else:
        _fill(message, value)


def _raw(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number
    return int(value) if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_INT64) else value
