"""Protobuf values by a descriptor: a FileDescriptorSet, or the descriptor of a registry.

Invariants: messages become structs field by field. A field that knows whether it is set is null if
it is not; others have their default. Unknown fields are ignored, as Protobuf prescribes.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchCorrupt
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.typed.undecodable import Undecodable
from headrace.records.varints import read_varint, write_varint

if TYPE_CHECKING:
    from headrace.pipeline.typed.registry import RegisteredSchema

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UINT64_DIGITS = 20
_UINT32, _UINT64, _FIXED64, _FIXED32, _BYTES = 13, 4, 6, 7, 12  # FieldDescriptorProto.Type


class ProtobufCodec:
    """See `values.ValueCodec`."""

    def __init__(self, source: bytes | str, message: str, *, has_indexes: bool) -> None:
        from google.protobuf import descriptor_pool, message_factory

        files = _files_of(source)
        pool = descriptor_pool.DescriptorPool()
        try:
            for each in [*_well_known(files), *files]:
                pool.AddSerializedFile(each.SerializeToString())
            last = files[-1]
            name = message or ".".join(filter(None, [last.package, last.message_type[0].name]))
            self._descriptor = pool.FindMessageTypeByName(name)
        except (KeyError, TypeError, IndexError) as error:
            raise OptionInvalid(
                f"The descriptor has no message {message or 'at all'}, or lacks a file that it"
                f" imports ({error}). Set valueMessage to a full name; make the file with"
                " protoc --include_imports --descriptor_set_out."
            ) from error
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._has_indexes = has_indexes
        self.arrow_type = _struct_of(self._descriptor, ())

    def decode(self, payload: bytes, written_with: RegisteredSchema | None) -> Any:
        """See `values.ValueCodec`."""
        from google.protobuf.message import DecodeError

        body = self._after_indexes(payload) if self._has_indexes else payload
        try:
            return _row(self._class.FromString(body))
        except (DecodeError, OverflowError) as error:
            raise Undecodable(str(error)[:200]) from error

    def encode(self, value: Any) -> bytes:
        """See `values.ValueCodec`."""
        message = self._class()
        _fill(message, value)
        indexes = self._written_indexes() if self._has_indexes else b""
        found: bytes = indexes + message.SerializeToString(deterministic=True)
        return found

    def _written_indexes(self) -> bytes:
        """The message's indexes; one zero stands for the first message of the file."""
        own = _indexes_of(self._descriptor)
        numbers = [0] if own == [0] else [len(own), *own]
        return b"".join(map(write_varint, numbers))

    def _after_indexes(self, payload: bytes) -> bytes:
        """What follows the message's indexes, which must name the message of the columns."""
        try:
            count, at = read_varint(payload, 0)
            indexes = [0] if count == 0 else []
            if not 0 <= count <= len(payload):
                raise Undecodable(f"{count} message indexes")
            for _ in range(count):
                number, at = read_varint(payload, at)
                indexes.append(number)
        except (IndexError, BatchCorrupt) as error:
            raise Undecodable("its message indexes end early") from error
        own = _indexes_of(self._descriptor)
        if indexes != own:
            raise Undecodable(f"it is message {indexes} of its file, not {own}")
        return payload[at:]


def _files_of(source: bytes | str) -> list[Any]:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        if isinstance(source, bytes):
            return list(descriptor_pb2.FileDescriptorSet.FromString(source).file)
        data = base64.b64decode(source, validate=True)
        return [descriptor_pb2.FileDescriptorProto.FromString(data)]
    except (DecodeError, binascii.Error) as error:
        raise OptionInvalid(
            "The Protobuf schema is no descriptor. Make a file with protoc --include_imports"
            " --descriptor_set_out; a registry must answer format=serialized."
        ) from error


def _well_known(files: list[Any]) -> list[Any]:
    """Those imports of Google's own types that the files do not bring."""
    from google.protobuf import (
        any_pb2,
        descriptor_pb2,
        duration_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    present = {each.name for each in files}
    needed = {name for each in files for name in each.dependency} - present
    found = []
    for module in (any_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        if module.DESCRIPTOR.name in needed:
            copy = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(copy)
            found.append(copy)
    return found


def _indexes_of(descriptor: Any) -> list[int]:
    """Where a message is in its file: its index among the messages at each level."""
    outer = descriptor.containing_type
    if outer is None:
        names = [each.full_name for each in descriptor.file.message_types_by_name.values()]
        return [names.index(descriptor.full_name)]
    names = [each.full_name for each in outer.nested_types]
    return [*_indexes_of(outer), names.index(descriptor.full_name)]


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
