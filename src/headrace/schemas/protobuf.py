"""Protobuf messages by a descriptor: a FileDescriptorSet, or the descriptor of a registry.

Invariants: a registry's values begin with the indexes that name their message in its file.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchCorrupt
from headrace.records.varints import read_varint, write_varint
from headrace.schemas.errors import SchemaUnusable
from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProtobufMessages:
    """The messages of one type."""

    def __init__(self, source: bytes | str, message: str, *, has_indexes: bool) -> None:
        """`source`: a FileDescriptorSet, or a registry's descriptor in base64; `message`: its full
        name, or "" for the first of its file. Raises SchemaUnusable, ImportError."""
        from google.protobuf import descriptor_pool, message_factory

        files = _files_of(source)
        pool = descriptor_pool.DescriptorPool()
        try:
            for each in [*_well_known(files), *files]:
                pool.AddSerializedFile(each.SerializeToString())
            last = files[-1]
            name = message or ".".join(filter(None, [last.package, last.message_type[0].name]))
            self.descriptor = pool.FindMessageTypeByName(name)
        except (KeyError, TypeError, IndexError) as error:
            raise SchemaUnusable(
                f"The descriptor has no message {message or 'at all'}, or lacks a file that it"
                f" imports ({error}). Set valueMessage to a full name; make the file with"
                " protoc --include_imports --descriptor_set_out."
            ) from error
        self._class = message_factory.GetMessageClass(self.descriptor)
        self._has_indexes = has_indexes

    def new(self) -> Any:
        """An empty message."""
        return self._class()

    def read(self, payload: bytes) -> Any:
        """The message. Raises Undecodable."""
        from google.protobuf.message import DecodeError

        body = self._after_indexes(payload) if self._has_indexes else payload
        try:
            return self._class.FromString(body)
        except DecodeError as error:
            raise Undecodable(str(error)[:200]) from error

    def written(self, message: Any) -> bytes:
        """A message's bytes."""
        indexes = self._written_indexes() if self._has_indexes else b""
        found: bytes = indexes + message.SerializeToString(deterministic=True)
        return found

    def _written_indexes(self) -> bytes:
        """The message's indexes; one zero stands for the first message of the file."""
        own = _indexes_of(self.descriptor)
        numbers = [0] if own == [0] else [len(own), *own]
        return b"".join(map(write_varint, numbers))

    def _after_indexes(self, payload: bytes) -> bytes:
        """What follows the message's indexes, which must name this message."""
        indexes, body = split_indexes(payload)
        own = _indexes_of(self.descriptor)
        if indexes != own:
            raise Undecodable(f"it is message {indexes} of its file, not {own}")
        return body


def split_indexes(payload: bytes) -> tuple[list[int], bytes]:
    """(the indexes that name the message, its bytes). Raises Undecodable."""
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
    return indexes, payload[at:]


def message_named(source: str, indexes: Sequence[int]) -> str:
    """The full name of a message of a registry's descriptor. Raises SchemaUnusable, Undecodable."""
    (file,) = _files_of(source)
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if not 0 <= index < len(messages):
            raise Undecodable(f"its file has no message {[*indexes]}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _files_of(source: bytes | str) -> list[Any]:
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        if isinstance(source, bytes):
            return list(descriptor_pb2.FileDescriptorSet.FromString(source).file)
        data = base64.b64decode(source, validate=True)
        return [descriptor_pb2.FileDescriptorProto.FromString(data)]
    except (DecodeError, binascii.Error) as error:
        raise SchemaUnusable(
            "The Protobuf schema is not a descriptor. Make a file with protoc --include_imports"
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
