"""The most used gRPC library as a client of ours, and protobuf as a reader of our descriptors."""

from __future__ import annotations

import threading

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.unit.grpc.served_rig import served

from headrace.grpc import descriptors
from headrace.grpc.health import Health, Serving
from headrace.grpc.reflection import SERVICES, Reflection
from headrace.runtime.clock import SystemClock
from headrace.runtime.new_certificates import Authority
from headrace.runtime.tls import TlsMaterial, server_context

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def health():
    return Health()


@pytest.fixture(scope="module")
def one(health):
    files = [descriptors.HEALTH, *descriptors.REFLECTION, EXTENSION.SerializeToString()]
    reflection = Reflection(files, ["grpc.health.v1.Health"])
    with served(methods=[*health.methods(), *reflection.methods()]) as rig:
        yield rig


EXTENSION = descriptor_pb2.FileDescriptorProto(
    name="test.proto",
    package="t",
    dependency=["grpc/health/v1/health.proto"],
    message_type=[
        descriptor_pb2.DescriptorProto(
            name="Outer",
            nested_type=[descriptor_pb2.DescriptorProto(name="Inner")],
            enum_type=[
                descriptor_pb2.EnumDescriptorProto(
                    name="Kind",
                    value=[descriptor_pb2.EnumValueDescriptorProto(name="NONE", number=0)],
                )
            ],
            extension_range=[descriptor_pb2.DescriptorProto.ExtensionRange(start=100, end=200)],
        )
    ],
    extension=[
        descriptor_pb2.FieldDescriptorProto(
            name="extra", number=123, type=5, label=1, extendee=".t.Outer"
        )
    ],
)


@pytest.fixture
def channel(one):
    with grpc.insecure_channel(f"{one.address[0]}:{one.address[1]}") as made:
        yield made


def call(channel, path, body=b"", **more):
    return channel.unary_unary(path)(body, timeout=TIMEOUT_S, **more)


@pytest.mark.parametrize("size", [0, 1, 100, 16_379, 16_380, 65_536, 4 << 20])
@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_messages_of_all_sizes(one, size, compression):
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{one.address[1]}", options) as channel:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert call(channel, "/t/echo", body, compression=compression) == body


def test_answers_that_come_later(channel):
    calls = [channel.unary_unary("/t/later").future(b"%d" % n, timeout=30) for n in range(300)]
    assert [one.result() for one in calls] == [b"%d" % n for n in range(300)]


@pytest.mark.parametrize(
    ("path", "body", "code", "details"),
    [
        ("/t/refuse", "no ünïcode: 100%\n".encode(), "NOT_FOUND", "no ünïcode: 100%\n"),
        ("/t/fail", b"secret", "INTERNAL", "internal error: the server's log says more"),
        ("/t/nothing", b"", "UNIMPLEMENTED", "this server has no method /t/nothing"),
        ("/t/echo", bytes((4 << 20) + 1), "RESOURCE_EXHAUSTED", None),
    ],
)
def test_errors(channel, path, body, code, details):
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, path, body)
    assert caught.value.code().name == code
    assert details is None or caught.value.details() == details


def test_streams_of_all_kinds(channel):
    counted = channel.unary_stream("/t/count")(b"500", timeout=TIMEOUT_S)
    assert list(counted) == [b"%d" % n for n in range(500)]
    assert ("x-count", "500") in [tuple(pair) for pair in counted.trailing_metadata()]
    parts = [b"%d" % n for n in range(200)]
    assert channel.stream_unary("/t/collect")(iter(parts), timeout=30) == b" ".join(parts)
    chat = channel.stream_stream("/t/chat")(iter([b"a", b"b" * 100_000, b"c"]), timeout=TIMEOUT_S)
    assert list(chat) == [b"A", b"B" * 100_000, b"C"]


def test_deadlines_and_cancellation(one, channel):
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/t/never")(b"", timeout=0.05)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    one.was_cancelled.clear()
    future = channel.unary_unary("/t/never").future(b"")
    before = len(one.calls)
    while len(one.calls) == before:
        future.exception if future.done() else threading.Event().wait(0.001)
        if one.calls and one.calls[-1].path == "/t/never" and not one.calls[-1].is_finished:
            break
    future.cancel()
    assert one.was_cancelled.wait(TIMEOUT_S)


def test_metadata(one, channel):
    call(channel, "/t/echo", metadata=[("x-id", "7"), ("x-raw-bin", b"\0\xff")])
    assert one.calls[-1].header(b"x-id") == b"7"
    assert one.calls[-1].header(b"x-raw-bin") == b"AP8"


def test_tls():
    authority = Authority("test", SystemClock().now_ms())
    pem = authority.sign("server", ["localhost"])
    with served(tls=server_context(TlsMaterial(pem.certificate, pem.key))) as one:
        credentials = grpc.ssl_channel_credentials(authority.certificate)
        with grpc.secure_channel(f"localhost:{one.address[1]}", credentials) as channel:
            assert call(channel, "/t/echo", bytes(1 << 20)) == bytes(1 << 20)
            assert one.calls[-1].secure


def test_a_stop_lets_the_client_retry_at_another_server():
    with served() as one, grpc.insecure_channel(f"127.0.0.1:{one.address[1]}") as channel:
        future = channel.unary_unary("/t/never").future(b"")
        while not one.calls:
            threading.Event().wait(0.001)
        one.close(0)
        assert future.code() == grpc.StatusCode.UNAVAILABLE


# --- health and reflection -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def classes():
    """Message classes that protobuf makes of our descriptors: it checks them thereby."""
    pool = descriptor_pool.DescriptorPool()
    for data in (descriptors.HEALTH, *descriptors.REFLECTION):
        pool.AddSerializedFile(data)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_health(one, channel, classes, health):
    response = classes("grpc.health.v1.HealthCheckResponse")
    request = classes("grpc.health.v1.HealthCheckRequest")(service="t").SerializeToString()
    check, watch = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
    assert response.FromString(call(channel, check)).status == Serving.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, check, request)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, check, b"\xff")
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    watching = channel.unary_stream(watch)(request, timeout=TIMEOUT_S)
    assert response.FromString(next(watching)).status == Serving.SERVICE_UNKNOWN
    one.call(health.set, "t", Serving.NOT_SERVING)
    assert response.FromString(next(watching)).status == Serving.NOT_SERVING
    one.call(health.set, "t", Serving.SERVING)
    assert response.FromString(next(watching)).status == Serving.SERVING
    watching.cancel()
    listed = classes("grpc.health.v1.HealthListResponse").FromString(
        call(channel, "/grpc.health.v1.Health/List")
    )
    assert {name: one.status for name, one in listed.statuses.items()} == {"": 1, "t": 1}


@pytest.mark.parametrize("service", SERVICES)
def test_reflection(channel, classes, service):
    package = service.rpartition(".")[0]
    request = classes(f"{package}.ServerReflectionRequest")
    response = classes(f"{package}.ServerReflectionResponse")
    extension = {"containing_type": "t.Outer", "extension_number": 123}
    questions = [
        request(list_services=""),
        request(file_by_filename="test.proto"),
        *(request(file_containing_symbol=name) for name in
          ("grpc.health.v1.Health.Check", "t.Outer.Inner", "t.Outer.NONE",
           f"{package}.ErrorResponse")),
        request(file_containing_extension=extension),
        request(all_extension_numbers_of_type="t.Outer"),
        request(file_containing_symbol="t.Nothing"),
        request(file_by_filename="no.proto"),
        request(file_containing_extension={"containing_type": "t.Outer", "extension_number": 1}),
        request(),
    ]  # fmt: skip
    asked = iter([one.SerializeToString() for one in questions])
    answers = channel.stream_stream(f"/{service}/ServerReflectionInfo")(asked, timeout=TIMEOUT_S)
    found = [response.FromString(one) for one in answers]
    assert [one.original_request for one in found] == questions
    names = [one.name for one in found[0].list_services_response.service]
    assert names == sorted([*SERVICES, "grpc.health.v1.Health"])
    files = [
        [
            descriptor_pb2.FileDescriptorProto.FromString(data).name
            for data in one.file_descriptor_response.file_descriptor_proto
        ]
        for one in found[1:7]
    ]
    test_files = ["test.proto", "grpc/health/v1/health.proto"]
    reflection_file = package.replace(".", "/") + "/reflection.proto"
    assert files == [
        test_files,
        test_files[1:],
        test_files,
        test_files,
        [reflection_file],
        test_files,
    ]
    assert found[7].all_extension_numbers_response.extension_number == [123]
    assert [one.error_response.error_code for one in found[8:]] == [5, 5, 5, 3]
