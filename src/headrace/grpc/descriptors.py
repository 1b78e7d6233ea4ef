"""Descriptions of the services of this package, as protobuf's descriptors.

Invariants: data. They say what `health` and `reflection` read and write by hand, so that tools that
ask for descriptions get them. Sources: grpc-proto, `health.proto` and `reflection.proto`; protobuf,
`descriptor.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.runtime.protobuf_wire import bytes_field, number_field

if TYPE_CHECKING:
    from collections.abc import Sequence

INT32, STRING, MESSAGE, BYTES, ENUM = 5, 9, 11, 12, 14
"""`FieldDescriptorProto.Type`."""
_OPTIONAL, _REPEATED = 1, 3


class Field(NamedTuple):
    """A field of a message."""

    name: str
    number: int
    kind: int
    type_name: str = ""
    """Of a message or enum, with a leading dot."""
    is_repeated: bool = False
    oneof: bool = False
    """Whether it is a member of the message's only oneof."""


def field(one: Field) -> bytes:
    """A FieldDescriptorProto."""
    encoded = bytes_field(1, one.name.encode()) + number_field(3, one.number)
    encoded += number_field(4, _REPEATED if one.is_repeated else _OPTIONAL)
    encoded += number_field(5, one.kind)
    if one.type_name:
        encoded += bytes_field(6, one.type_name.encode())
    # A number that is 0, and yet present: the index of the oneof.
    return encoded + (b"\x48\0" if one.oneof else b"")


def message(name: str, *fields: Field, nested: bytes = b"", oneof: str = "") -> bytes:
    """A DescriptorProto."""
    encoded = bytes_field(1, name.encode()) + b"".join([bytes_field(2, field(f)) for f in fields])
    return encoded + nested + (bytes_field(8, bytes_field(1, oneof.encode())) if oneof else b"")


def method(name: str, takes: str, returns: str, *, streams: tuple[bool, bool]) -> bytes:
    """A MethodDescriptorProto. `streams`: requests, responses."""
    encoded = bytes_field(1, name.encode())
    encoded += bytes_field(2, takes.encode()) + bytes_field(3, returns.encode())
    return encoded + number_field(5, streams[0]) + number_field(6, streams[1])


def file(
    name: str, package: str, messages: Sequence[bytes], service: str, methods: Sequence[bytes]
) -> bytes:
    """A FileDescriptorProto with one service."""
    encoded = bytes_field(1, name.encode()) + bytes_field(2, package.encode())
    encoded += b"".join([bytes_field(4, one) for one in messages])
    described = bytes_field(1, service.encode()) + b"".join([bytes_field(2, m) for m in methods])
    return encoded + bytes_field(6, described) + bytes_field(12, b"proto3")


def _health() -> bytes:
    package = "grpc.health.v1"
    request, response = f".{package}.HealthCheckRequest", f".{package}.HealthCheckResponse"
    values = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
    enum = bytes_field(1, b"ServingStatus") + b"".join(
        # UNKNOWN is 0, and a value must say so.
        bytes_field(2, bytes_field(1, value.encode()) + bytes([0x10, number]))
        for number, value in enumerate(values)
    )
    entry = message(
        "StatusesEntry", Field("key", 1, STRING), Field("value", 2, MESSAGE, response)
    ) + bytes_field(7, b"\x38\1")  # the option map_entry
    statuses = f".{package}.HealthListResponse.StatusesEntry"
    return file(
        "grpc/health/v1/health.proto",
        package,
        [
            message("HealthCheckRequest", Field("service", 1, STRING)),
            message(
                "HealthCheckResponse",
                Field("status", 1, ENUM, f"{response}.ServingStatus"),
                nested=bytes_field(4, enum),
            ),
            message("HealthListRequest"),
            message(
                "HealthListResponse",
                Field("statuses", 1, MESSAGE, statuses, is_repeated=True),
                nested=bytes_field(3, entry),
            ),
        ],
        "Health",
        [
            method("Check", request, response, streams=(False, False)),
            method(
                "List",
                f".{package}.HealthListRequest",
                f".{package}.HealthListResponse",
                streams=(False, False),
            ),
            method("Watch", request, response, streams=(False, True)),
        ],
    )


def _reflection(package: str) -> bytes:
    def of(name: str) -> str:
        return f".{package}.{name}"

    asked = [("file_by_filename", 3), ("file_containing_symbol", 4)]
    also_asked = [("all_extension_numbers_of_type", 6), ("list_services", 7)]
    answers = [
        ("file_descriptor_response", 4, "FileDescriptorResponse"),
        ("all_extension_numbers_response", 5, "ExtensionNumberResponse"),
        ("list_services_response", 6, "ListServiceResponse"),
        ("error_response", 7, "ErrorResponse"),
    ]
    request = message(
        "ServerReflectionRequest",
        Field("host", 1, STRING),
        *(Field(name, number, STRING, oneof=True) for name, number in asked),
        Field("file_containing_extension", 5, MESSAGE, of("ExtensionRequest"), oneof=True),
        *(Field(name, number, STRING, oneof=True) for name, number in also_asked),
        oneof="message_request",
    )
    response = message(
        "ServerReflectionResponse",
        Field("valid_host", 1, STRING),
        Field("original_request", 2, MESSAGE, of("ServerReflectionRequest")),
        *(Field(name, number, MESSAGE, of(kind), oneof=True) for name, number, kind in answers),
        oneof="message_response",
    )
    parts = [
        request,
        message(
            "ExtensionRequest",
            Field("containing_type", 1, STRING),
            Field("extension_number", 2, INT32),
        ),
        response,
        message(
            "FileDescriptorResponse", Field("file_descriptor_proto", 1, BYTES, is_repeated=True)
        ),
        message(
            "ExtensionNumberResponse",
            Field("base_type_name", 1, STRING),
            Field("extension_number", 2, INT32, is_repeated=True),
        ),
        message(
            "ListServiceResponse",
            Field("service", 1, MESSAGE, of("ServiceResponse"), is_repeated=True),
        ),
        message("ServiceResponse", Field("name", 1, STRING)),
        message("ErrorResponse", Field("error_code", 1, INT32), Field("error_message", 2, STRING)),
    ]
    info = method(
        "ServerReflectionInfo",
        of("ServerReflectionRequest"),
        of("ServerReflectionResponse"),
        streams=(True, True),
    )
    name = package.replace(".", "/") + "/reflection.proto"
    return file(name, package, parts, "ServerReflection", [info])


HEALTH: Final = _health()
REFLECTION: Final = (_reflection("grpc.reflection.v1"), _reflection("grpc.reflection.v1alpha"))
