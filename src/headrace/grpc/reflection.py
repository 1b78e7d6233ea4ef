"""Server reflection: what a server serves, described by protobuf's own descriptors.

Invariants: serves what it was given, both as `grpc.reflection.v1` and as `v1alpha`, whose messages
are equal. With it `grpcurl` and similar tools need no `.proto` files. Sources: grpc-proto,
`grpc/reflection/v1/reflection.proto`; protobuf, `descriptor.proto`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.grpc.service import CallRefused, Method, Status
from headrace.runtime.protobuf_wire import (
    ProtobufInvalid,
    bytes_field,
    fields,
    messages,
    number_field,
    texts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.grpc.service import Call

SERVICES: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
# ServerReflectionRequest
_BY_NAME, _BY_SYMBOL, _BY_EXTENSION, _EXTENSION_NUMBERS, _LIST = 3, 4, 5, 6, 7
# ServerReflectionResponse
_VALID_HOST, _ORIGINAL, _FILES, _NUMBERS, _SERVICES, _ERROR = 1, 2, 4, 5, 6, 7
# FileDescriptorProto
_FILE_NAME, _PACKAGE, _DEPENDENCY, _MESSAGE, _ENUM, _SERVICE, _EXTENSION = 1, 2, 3, 4, 5, 6, 7
# DescriptorProto, EnumDescriptorProto and ServiceDescriptorProto have the name first
_NAME, _FIELD, _NESTED, _NESTED_ENUM, _NESTED_EXTENSION, _ONEOF, _MEMBER = 1, 2, 3, 4, 6, 8, 2
# FieldDescriptorProto
_EXTENDEE, _NUMBER = 2, 3


class Reflection:
    """The descriptors of one server's services."""

    def __init__(self, files: Iterable[bytes], services: Sequence[str]) -> None:
        """`files`: each a serialized FileDescriptorProto, with all that they import. `services`:
        the names of those that are served. Raises ProtobufInvalid."""
        self._services = sorted([*services, *SERVICES])
        self._files: dict[str, bytes] = {}
        self._imports: dict[str, list[str]] = {}
        self._symbols: dict[str, str] = {}
        """Every name -> the file that defines it."""
        self._extensions: dict[str, dict[int, str]] = {}
        """Extended message -> number -> file."""
        for data in files:
            self._add(data)

    def methods(self) -> list[Method]:
        """What a server serves of it."""
        return [
            Method(f"/{service}/ServerReflectionInfo", partial(_Questions, self), True)
            for service in SERVICES
        ]

    # --- index ---------------------------------------------------------------------------------

    def _add(self, data: bytes) -> None:
        name = texts(data, _FILE_NAME)[0]
        self._files[name] = data
        self._imports[name] = texts(data, _DEPENDENCY)
        package = "".join(texts(data, _PACKAGE))
        self._add_scope(name, package, data, (_MESSAGE, _ENUM, _EXTENSION))
        for service in messages(data, _SERVICE):
            full_name = _joined(package, texts(service, _NAME)[0])
            self._symbols[full_name] = name
            for method in messages(service, _MEMBER):
                self._symbols[_joined(full_name, texts(method, _NAME)[0])] = name

    def _add_scope(self, file: str, scope: str, data: bytes, numbers: tuple[int, int, int]) -> None:
        """The messages, enums and extensions of a file, or those within a message."""
        message_number, enum_number, extension_number = numbers
        for message in messages(data, message_number):
            full_name = _joined(scope, texts(message, _NAME)[0])
            self._symbols[full_name] = file
            for member in (*messages(message, _FIELD), *messages(message, _ONEOF)):
                self._symbols[_joined(full_name, texts(member, _NAME)[0])] = file
            self._add_scope(file, full_name, message, (_NESTED, _NESTED_ENUM, _NESTED_EXTENSION))
        for enum in messages(data, enum_number):
            self._symbols[_joined(scope, texts(enum, _NAME)[0])] = file
            for value in messages(enum, _MEMBER):  # C++ scoping: a sibling of its enum
                self._symbols[_joined(scope, texts(value, _NAME)[0])] = file
        for extension in messages(data, extension_number):
            self._symbols[_joined(scope, texts(extension, _NAME)[0])] = file
            extended = texts(extension, _EXTENDEE)[0].lstrip(".")
            number = next(v for n, _, v in fields(extension) if n == _NUMBER)
            assert isinstance(number, int)
            self._extensions.setdefault(extended, {})[number] = file

    # --- questions -----------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """A ServerReflectionResponse. Raises ProtobufInvalid."""
        host, question = b"", (0, b"")
        for number, _, value in fields(request):
            if not isinstance(value, bytes):
                continue
            if number == 1:
                host = value
            elif _BY_NAME <= number <= _LIST:
                question = (number, value)
        found = bytes_field(_VALID_HOST, host) + bytes_field(_ORIGINAL, request)
        return found + self._found(*question)

    def _found(self, kind: int, value: bytes) -> bytes:
        if kind == _LIST:
            names = [bytes_field(1, bytes_field(1, name.encode())) for name in self._services]
            return bytes_field(_SERVICES, b"".join(names))
        if kind == _BY_EXTENSION:
            (extended,) = texts(value, 1)[-1:] or [""]
            number = next((v for n, _, v in fields(value) if n == _NAME + 1), 0)
            extensions = self._extensions.get(extended, {})
            return self._with_imports(extensions.get(number) if isinstance(number, int) else None)
        text = value.decode("utf-8", "replace")
        if kind == _EXTENSION_NUMBERS:
            if text not in self._symbols:
                return _not_found()
            numbers = [number_field(2, one) for one in sorted(self._extensions.get(text, {}))]
            return bytes_field(_NUMBERS, bytes_field(1, value) + b"".join(numbers))
        if kind == _BY_NAME:
            return self._with_imports(text if text in self._files else None)
        if kind == _BY_SYMBOL:
            return self._with_imports(self._symbols.get(text))
        return _error(Status.INVALID_ARGUMENT, "the request asks nothing")

    def _with_imports(self, name: str | None) -> bytes:
        """A file with everything that it imports, so that a client asks once."""
        if name is None:
            return _not_found()
        names = {name: None}
        todo = [name]
        while todo:
            for one in self._imports[todo.pop()]:
                if one in self._files and one not in names:
                    names[one] = None
                    todo.append(one)
        return bytes_field(_FILES, b"".join(bytes_field(1, self._files[one]) for one in names))


class _Questions:
    """One call: an answer to each question."""

    def __init__(self, reflection: Reflection, call: Call) -> None:
        self._reflection = reflection
        self._call = call

    def message(self, body: bytes) -> None:
        """See Requests."""
        try:
            self._call.send(self._reflection.answer(body))
        except ProtobufInvalid as error:
            raise CallRefused(
                Status.INVALID_ARGUMENT, f"not a ServerReflectionRequest: {error}"
            ) from error

    def ended(self) -> None:
        """See Requests."""
        self._call.finish()


def _joined(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


def _not_found() -> bytes:
    return _error(Status.NOT_FOUND, "this server serves nothing of that name")


def _error(status: Status, message: str) -> bytes:
    return bytes_field(_ERROR, number_field(1, status) + bytes_field(2, message.encode()))
