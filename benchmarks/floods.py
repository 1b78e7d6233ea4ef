"""Memory of a broker under each flood, and whether it serves others meanwhile.

    python -m benchmarks.floods [NAMES] [--seconds 8]

Each flood has a broker of its own, whose limits of memory are QUEUED_MIB. Printed are the most
memory it held beyond what an idle one has, the most files it had open, and how long the slowest of
the requests took that another client sent over Kafka's protocol and HTTP meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import http.client
import itertools
import json
import os
import random
import resource
import select
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from benchmarks import security
from headrace.broker.services.queue_receipts import receipt_text
from headrace.broker.services.timer_receipts import DelayedReceipt
from headrace.grpc import frames
from headrace.grpc.hpack import encode_field
from headrace.kafka.apis import APIS
from headrace.kafka.client.exchange import request_frame
from headrace.kafka.wire.schema import read_response, write_request
from headrace.records.codec import Record, encode_batch
from headrace.records.compression import ZSTD
from headrace.rocketmq import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MIB: Final = 1 << 20
QUEUED_MIB: Final = 64
OTHER: Final = ("127.0.0.2", 0)
"""The address of the client that asks meanwhile: clients of one address have turns as one."""
CONNECTIONS: Final = 10_000
TOPIC: Final = "flooded"
VALUE: Final = random.Random(1).randbytes(900_000)
PRODUCE, FETCH, METADATA, OFFSET_COMMIT, FIND, JOIN, SYNC = 0, 1, 3, 8, 10, 11, 14
DESCRIBE_GROUPS, CREATE_TOPICS, INIT_PRODUCER, ADD_PARTITIONS, API_VERSIONS = 15, 19, 22, 24, 18
INCREMENTAL_ALTER_CONFIGS, GET_TELEMETRY, PUSH_TELEMETRY = 44, 71, 72
SHARE_HEARTBEAT, SHARE_FETCH = 76, 78


class Served(security.Served):
    """A broker process with all its faces."""

    def __init__(self, folder: Path, *options: str) -> None:
        for name in ("REQUEST", "RESPONSE"):
            os.environ[f"HEADRACE_QUEUED_MAX_{name}_BYTES"] = str(QUEUED_MIB * MIB)
        super().__init__(folder, "--rocketmq", "127.0.0.1:0", *options)
        self.web_address = address_of(self.served["http"])
        self.rocketmq = address_of(self.served["rocketmq"])

    def connect(self, address: tuple[str, int] | None = None, buffer: int = 0) -> socket.socket:
        """`buffer`: of what the client has received and not read."""
        made = socket.socket()
        if buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(60)
        made.connect(address or self.address)
        return made

    def ask(self, api: int, body: dict[str, Any], version: int = -1) -> Any:
        """One request on a connection of its own."""
        with self.connect() as one:
            return ask(one, api, body, version)

    def web(self, method: str, path: str, body: Any = None) -> Any:
        """One HTTP request."""
        one = http.client.HTTPConnection(*self.web_address, timeout=60)
        head = {"Content-Type": "application/json"} if body is not None else {}
        one.request(method, path, None if body is None else json.dumps(body), head)
        answer = one.getresponse()
        text = answer.read()
        one.close()
        return answer.status, text


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.strip("/").rpartition(":")
    return host.rpartition("/")[2], int(port)


def frame(api: int, body: dict[str, Any], version: int | None = None) -> bytes:
    """A request in the newest version, or in that one."""
    version = APIS[api].version_max if version is None else version
    flexible = version >= APIS[api].flexible_from
    return request_frame(
        b"f", api, version, 1, write_request(api, version, body), is_flexible=flexible
    )


def receive(connection: socket.socket) -> bytes:
    def take(size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = connection.recv(size - len(found))
            if not part:
                raise ConnectionError("closed by the broker")
            found += part
        return bytes(found)

    return take(int.from_bytes(take(4), "big"))


def ask(connection: socket.socket, api: int, body: dict[str, Any], version: int = -1) -> Any:
    version = APIS[api].version_max if version < 0 else version
    connection.sendall(frame(api, body, version))
    is_flexible = version >= APIS[api].flexible_from and api != API_VERSIONS
    return read_response(api, version, receive(connection), 4 + is_flexible)


class Watch:
    """What a process holds while it is flooded, and how long others wait: these ask in a process of
    their own."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._is_over = threading.Event()
        self._weighing = threading.Thread(target=self._weigh)
        self.before = self.most = served.process.memory_info().rss
        self.files = 0
        self.others: dict[str, Any] = {}

    def __enter__(self) -> Self:
        served = self._served
        faces = served.address, served.web_address, served.rocketmq
        addresses = [f"{host}:{port}" for host, port in faces]
        pid = str(served.process.pid)
        command = [sys.executable, "-m", "benchmarks.floods", "--ask", pid, *addresses]
        self._asking = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
        self._weighing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._weighing.join()
        found, _ = self._asking.communicate()
        self.others = json.loads(found)

    def _weigh(self) -> None:
        while not self._is_over.wait(0.02):
            self.most = max(self.most, self._served.process.memory_info().rss)
            self.files = max(self.files, self._served.process.num_fds())


def loop_s(pid: str) -> float:
    """The CPU time that a process's main thread has had, in seconds: the event loop's."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def ask_until_told(pid: str, kafka: str, web: str, rocketmq: str) -> None:
    """Ask over each protocol until the input ends; print how long answers took, and how much of the
    time the broker's event loop was running: on a busy machine, it waits as well."""
    name = wire.request_of("QueryRoute")(topic={"name": "unknown"}).SerializeToString()

    def ask_kafka() -> None:
        with socket.create_connection(address_of(kafka), 60, OTHER) as one:
            ask(one, API_VERSIONS, {}, 0)

    def ask_web() -> None:
        connection = http.client.HTTPConnection(*address_of(web), 60, OTHER)
        with contextlib.closing(connection) as one:
            one.request("GET", "/healthz")
            one.getresponse().read()

    def ask_rocketmq() -> None:
        calls = GrpcCalls(address_of(rocketmq), "QueryRoute", lambda: name, OTHER)
        with calls.socket:
            calls.begin(1)
            while not calls.ended():
                pass

    waits, failed = [], 0
    loops: dict[str, float] = {}
    while not waits or not select.select([sys.stdin], [], [], 0.1)[0]:
        begun_s = time.monotonic()
        for one in (ask_kafka, ask_web, ask_rocketmq):
            before_s, face = loop_s(pid), one.__name__.removeprefix("ask_")
            try:
                one()
            except (OSError, http.client.HTTPException):
                failed += 1
            loops[face] = max(loops.get(face, 0), loop_s(pid) - before_s)
        waits.append(time.monotonic() - begun_s)
    waits.sort()
    found = {"median_s": waits[len(waits) // 2], "slowest_s": waits[-1], "loop_s": loops}
    print(json.dumps({"count": len(waits), "failed": failed, **found}))


def send_unread(
    served: Served,
    data: bytes,
    count: int,
    seconds: float,
    address: tuple[str, int] | None = None,
    first: bytes = b"",
) -> None:
    """Send again and again on so many connections, and read nothing; one that is closed is opened
    again."""
    opened: dict[socket.socket, int] = {}
    closed = 0

    def open_one() -> None:
        one = served.connect(address, 4096)
        if first:
            one.sendall(first)
        one.setblocking(False)
        opened[one] = 0

    for _ in range(count):
        open_one()
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for one in list(opened):
            try:
                opened[one] += one.send(memoryview(data)[opened[one] % len(data) :][: 1 << 18])
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
                del opened[one]
                one.close()
                open_one()
        time.sleep(0.001)
    print(f"  {closed} connections were closed by the broker")
    for one in opened:
        one.close()


def send_and_read(
    seconds: float,
    connections: Sequence[tuple[socket.socket, Callable[[int], bytes]]],
) -> int:
    """Send the next request (of a number) on each connection that has had an answer, and read what
    comes: as many requests wait as there are connections. Returns how many were sent."""
    count = 0
    last: dict[socket.socket, float] = {}
    with selectors.DefaultSelector() as selector:
        for one, request in connections:
            one.sendall(request(count))
            count += 1
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ, request)
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            for key, _events in selector.select(0.01):
                one = cast("socket.socket", key.fileobj)
                try:
                    data = one.recv(1 << 20)
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(one)
                elif one not in last:
                    last[one] = now_s
            # An answer has ended when nothing more comes: no protocol is parsed here.
            for one in [one for one, since_s in last.items() if now_s - since_s > 0.02]:
                del last[one]
                if one.fileno() in selector.get_map():
                    with contextlib.suppress(OSError):
                        one.sendall(selector.get_key(one).data(count))
                        count += 1
    print(f"  {count} requests, {sum(one.fileno() >= 0 for one, _ in connections)} connections")
    for one, _ in connections:
        one.close()
    return count


# --- floods ----------------------------------------------------------------------------------


def produce_frame(value: bytes = VALUE, topic: str = TOPIC) -> bytes:
    return frame_of(security.batch(value), topic)


def frame_of(batch: bytes, topic: str, partition: int = 0) -> bytes:
    """A Produce request with one batch."""
    name = topic.encode()
    body = struct.pack(">hhiih", -1, 1, 30_000, 1, len(name)) + name
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return request_frame(b"", PRODUCE, 7, 1, body, is_flexible=False)


def store(served: Served, batch: bytes, topic: str, count: int) -> None:
    """Store a batch so many times, one after the other."""
    frame = frame_of(batch, topic)
    with served.connect() as one:
        for _ in range(count):
            one.sendall(frame)
            receive(one)


def fetch_frame(size: int = 50 * MIB) -> bytes:
    topic = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    topic += struct.pack(">iiqqi", 1, 0, 0, -1, size)
    body = struct.pack(">iiiibiii", -1, 0, 1, size, 0, 0, -1, 1) + topic + struct.pack(">i", 0)
    return request_frame(b"", FETCH, 7, 1, body, is_flexible=False)


def create(served: Served, names: Sequence[str], partitions: int = 1, **configs: str) -> None:
    given = [{"name": name, "value": value} for name, value in configs.items()]
    made = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
         "configs": given}
        for name in names
    ]  # fmt: skip
    asked = {"topics": made, "timeout_ms": 60_000, "validate_only": False}
    found = served.ask(CREATE_TOPICS, asked)
    assert not any(topic.error_code for topic in found.topics), found


def fill(served: Served, count: int = 60) -> None:
    """A topic with so many records of 0.9 MB."""
    create(served, [TOPIC])
    with served.connect() as one:
        for _ in range(count):
            one.sendall(produce_frame())
            # correlation id, one topic and its name, one partition, its index: then the error
            code = int.from_bytes(receive(one)[4 + 4 + 2 + len(TOPIC) + 4 + 4 :][:2], "big")
            assert code == 0, code


def topics(served: Served, count: int, partitions: int) -> None:
    """Create topics, so that answers about all of them are large."""
    create(served, [f"topic-{n}" for n in range(count)], partitions)


def join(group: str, member: str = "", size: int = 10, timeout_ms: int = 300_000) -> dict[str, Any]:
    return {
        "group_id": group,
        "session_timeout_ms": timeout_ms,
        "rebalance_timeout_ms": timeout_ms,
        "member_id": member,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(size)}],
    }


JOIN_V: Final = 3
"""A version in which one request makes a member."""


def producers(served: Served, seconds: float) -> None:
    """Producers faster than the disk."""
    create(served, [TOPIC])
    send_unread(served, produce_frame(), 50, seconds)


def consumers(served: Served, seconds: float) -> None:
    """Consumers that read nothing."""
    fill(served)
    send_unread(served, fetch_frame(), 100, seconds)


def metadata_unread(served: Served, seconds: float) -> None:
    """1,000 requests in flight, whose answers of 0.5 MiB are not read."""
    topics(served, 20, 500)
    data = frame(METADATA, {"topics": None, "allow_auto_topic_creation": False}, 4)
    send_unread(served, data * 1_000, 20, seconds)


def member(served: Served, group: str, size: int) -> tuple[str, int]:
    """A member whose description is large, in a group that is complete."""
    with served.connect() as one:
        served.ask(FIND, {"key_type": 0, "coordinator_keys": [group]})
        found = ask(one, JOIN, join(group, size=size), JOIN_V)
        given = {
            "group_id": group,
            "generation_id": found.generation_id,
            "member_id": found.member_id,
            "assignments": [],
        }
        ask(one, SYNC, given, 3)
        return found.member_id, found.generation_id


def described(count: int) -> bytes:
    asked = {"groups": ["large"] * count, "include_authorized_operations": False}
    return frame(DESCRIBE_GROUPS, asked, 4)


def descriptions(served: Served, seconds: float) -> None:
    """Descriptions of a group of 0.9 MiB, asked for again and again and not read."""
    member(served, "large", 900_000)
    data = described(1)
    send_unread(served, data * 1_000, 50, seconds)


def behind_a_join(served: Served, seconds: float) -> None:
    """Large answers that wait for one that is not to come soon: a join."""
    member(served, "large", 900_000)
    member(served, "held", 10)
    first = frame(JOIN, join("held"), JOIN_V)
    data = described(1)
    send_unread(served, data * 1_000, 50, seconds, first=first)


def waiting_members(served: Served, seconds: float) -> None:
    """Members with a description of 8 MB each, which wait in their groups."""
    served.ask(FIND, {"key_type": 0, "coordinator_keys": ["g"]})
    opened: list[socket.socket] = []
    refused = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and len(opened) < 400:
        one = served.connect()
        opened.append(one)
        try:
            one.sendall(frame(JOIN, join(f"group-{len(opened) % 100}", size=8_000_000), JOIN_V))
        except OSError:
            refused += 1
    print(f"  {len(opened)} members, {refused} closed")
    time.sleep(2)
    for one in opened:
        one.close()


def many_groups(served: Served, seconds: float) -> None:
    """Groups with a member each, as many as one can make."""
    served.ask(FIND, {"key_type": 0, "coordinator_keys": ["g"]})
    number = 0
    end_s = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(served.connect()) for _ in range(20)]
        while time.monotonic() < end_s:
            for one in opened:
                some = b""
                for _ in range(10):
                    number += 1
                    given = {"topics": [{"name": TOPIC, "partitions": [
                        {"partition_index": 0, "committed_offset": 1,
                         "committed_metadata": "x" * 4000}]}]}  # fmt: skip
                    body = {"group_id": f"g-{number}", "generation_id_or_member_epoch": -1,
                            "member_id": "", **given}  # fmt: skip
                    some += frame(OFFSET_COMMIT, body, 8)
                one.sendall(some)
            for one in opened:
                for _ in range(10):
                    receive(one)
    print(f"  {number} groups")


def open_transactions(served: Served, seconds: float) -> None:
    """Transactions that are left open, as many as one can begin."""
    topics(served, 1, 1)
    number = 0
    end_s = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(served.connect()) for _ in range(20)]
        while time.monotonic() < end_s:
            for one in opened:
                number += 1
                one.sendall(frame(INIT_PRODUCER, {
                    "transactional_id": f"t-{number}", "transaction_timeout_ms": 900_000,
                    "producer_id": -1, "producer_epoch": -1}, 4))  # fmt: skip
            for one in opened:
                receive(one)
    print(f"  {number} transactional ids")


def producer_ids(served: Served, seconds: float) -> None:
    """Records of ever new producer ids in one partition."""
    topics(served, 1, 1)
    number = 0
    end_s = time.monotonic() + seconds
    with served.connect() as one:
        while time.monotonic() < end_s:
            count, some = 100, b""
            for _ in range(count):
                number += 1
                records = encode_batch(
                    [Record(0, 1, None, b"x", [])],
                    producer_id=10_000_000 + number, producer_epoch=0, base_sequence=0,
                )  # fmt: skip
                some += frame_of(records, "topic-0")
            one.sendall(some)
            for _ in range(count):
                receive(one)
    print(f"  {number} producer ids")


def connections(served: Served, _seconds: float) -> None:
    """10,000 connections that are idle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        for number in range(min(CONNECTIONS, hard - 100)):
            one = stack.enter_context(served.connect())
            if number % 10 == 0:
                ask(one, API_VERSIONS, {}, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def long_polls(served: Served, seconds: float) -> None:
    """200 fetches in flight on each of 500 connections, which wait for ten minutes."""
    fill(served, 1)
    topic = struct.pack(">h", len(TOPIC)) + TOPIC.encode()
    topic += struct.pack(">iiqqi", 1, 0, 1, -1, MIB)
    body = struct.pack(">iiiibiii", -1, 600_000, 1, MIB, 0, 0, -1, 1) + topic
    one = request_frame(b"", FETCH, 7, 1, body + struct.pack(">i", 0), is_flexible=False)
    send_unread(served, one * 200, 500, seconds)


# --- HTTP --------------------------------------------------------------------------------------


def web_unread(served: Served, seconds: float) -> None:
    """Answers of 8 MiB over HTTP that are not read, on 200 connections."""
    fill(served, 20)
    path = f"/v1/topics/{TOPIC}/records?partition=0&offset=0&max=1000"
    data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    send_unread(served, data * 100, 200, seconds, served.web_address)


def web_reads(served: Served, seconds: float) -> None:
    """Answers of 8 MiB over HTTP, asked for on 200 connections at once, and read."""
    fill(served, 20)
    path = f"/v1/topics/{TOPIC}/records?partition=0&offset=0&max=1000"
    data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    opened = [served.connect(served.web_address) for _ in range(200)]
    send_and_read(seconds, [(one, lambda _number: data) for one in opened])


def web_polls(served: Served, seconds: float) -> None:
    """Reads over HTTP that wait for a minute, on 1,000 connections."""
    fill(served, 1)
    path = f"/v1/topics/{TOPIC}/records?partition=0&offset=1&wait_ms=60000"
    data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    send_unread(served, data, 1_000, seconds, served.web_address)


def web_heads(served: Served, seconds: float) -> None:
    """Heads over HTTP that never end."""
    first = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    line = b"X-Many: " + b"x" * 1000 + b"\r\n"
    send_unread(served, line * 10, 500, seconds, served.web_address, first)


def web_bodies(served: Served, seconds: float) -> None:
    """Bodies of 4 MiB over HTTP that stop before their end."""
    head = (
        f"POST /v1/topics/{TOPIC}/records HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {4 * MIB}\r\n\r\n"
    ).encode()
    opened = []
    for _ in range(200):
        one = served.connect(served.web_address)
        one.settimeout(5)
        with contextlib.suppress(OSError):
            one.sendall(head + b"x" * (4 * MIB - 10))
        opened.append(one)
    time.sleep(seconds)
    for one in opened:
        one.close()


# --- gRPC --------------------------------------------------------------------------------------

SERVICE: Final = "/apache.rocketmq.v2.MessagingService/"


def head_of(stream: int, method: str, more: Sequence[tuple[str, str]] = ()) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + method),
              (":authority", "localhost"), ("content-type", "application/grpc"),
              ("te", "trailers"), *more]  # fmt: skip
    block = b"".join(encode_field(name.encode(), value.encode()) for name, value in fields)
    out, kind = b"", frames.HEADERS
    while True:
        part, block = block[:16_000], block[16_000:]
        out += frames.frame(kind, 0 if block else frames.END_HEADERS, stream, part)
        kind = frames.CONTINUATION
        if not block:
            return out


PREFACE: Final = frames.PREFACE + frames.settings({}) + frames.frame(frames.SETTINGS, 1, 0)


def call_of(stream: int, method: str, message: bytes, client: str = "c") -> bytes:
    data = b"\0" + struct.pack(">I", len(message)) + message
    parts = [data[at : at + 16_000] for at in range(0, len(data), 16_000)]
    last = len(parts) - 1
    return head_of(stream, method, [("x-mq-client-id", client)]) + b"".join(
        frames.frame(frames.DATA, frames.END_STREAM if n == last else 0, stream, part)
        for n, part in enumerate(parts)
    )


def grpc_heads(served: Served, seconds: float) -> None:
    """1,000 calls with heads of 16 KiB on each of 60 connections, without their messages."""
    data = b"".join(
        head_of(2 * n + 1, "SendMessage", [
            (f"x{i}", random.Random(n * 1000 + i).randbytes(8).hex()) for i in range(288)])
        for n in range(1_000)
    )  # fmt: skip
    opened = []
    end_s = time.monotonic() + seconds * 4
    for _ in range(60):
        if time.monotonic() > end_s:
            break
        one = served.connect(served.rocketmq)
        one.settimeout(10)
        with contextlib.suppress(OSError):
            one.sendall(PREFACE + data)
        opened.append(one)
    print(f"  {len(opened)} connections")
    time.sleep(2)
    for one in opened:
        one.close()


def grpc_unread(served: Served, seconds: float) -> None:
    """Routes of many partitions, asked for again and again over gRPC and not read."""
    topics(served, 2, 1000)
    name = b"\x0a\x09\x12\x07topic-0"
    endpoints = b"\x12\x17\x08\x01\x12\x13\x0a\x09127.0.0.1\x10\x91\x3f"
    data = b"".join(call_of(2 * n + 1, "QueryRoute", name + endpoints) for n in range(900))
    settings = frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 0})
    opened: list[socket.socket] = []
    end_s = time.monotonic() + seconds
    closed = 0
    while time.monotonic() < end_s:
        one = served.connect(served.rocketmq, 4096)
        one.settimeout(5)
        try:
            one.sendall(settings + frames.frame(frames.SETTINGS, 1, 0) + data)
        except OSError:
            closed += 1
        opened.append(one)
        if len(opened) > 100:
            opened.pop(0).close()
    for one in opened:
        one.close()


class GrpcCalls:
    """Calls on one connection, of which so many are in progress all the time."""

    def __init__(
        self,
        address: tuple[str, int],
        rpc: str,
        request: Callable[[], bytes],
        source: tuple[str, int] | None = None,
    ) -> None:
        self.socket = socket.create_connection(address, 60, source)
        self._rpc = rpc
        self._request = request
        self._stream = 1
        self._rest = b""
        most = frames.WINDOW_MAX
        settings = frames.settings({frames.INITIAL_WINDOW_SIZE: most})
        self.socket.sendall(
            frames.PREFACE
            + settings
            + frames.window_update(0, most - frames.WINDOW_DEFAULT)
            + frames.frame(frames.SETTINGS, frames.ACK, 0)
        )

    def begin(self, count: int, client: str = "c") -> None:
        """Begin so many."""
        out = b""
        for _ in range(count):
            out += call_of(self._stream, self._rpc, self._request(), client)
            self._stream += 2
        self.socket.sendall(out)

    def ended(self) -> int:
        """Read what has come: how many have ended. Raises OSError."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("closed by the broker")
        data, at, count = self._rest + data, 0, 0
        while len(data) - at >= frames.HEADER_BYTES:
            size, flags, _stream = frames.FRAME_HEADER.unpack_from(data, at)
            kind = size & 0xFF
            end = at + frames.HEADER_BYTES + (size >> 8)
            if end > len(data):
                break
            is_end = kind in {frames.HEADERS, frames.DATA} and flags & frames.END_STREAM
            count += bool(is_end or kind == frames.RST_STREAM)
            at = end
        self._rest = data[at:]
        return count


def rocketmq_calls(
    served: Served,
    seconds: float,
    rpc: str,
    requests: Sequence[Any],
    connections: int = 200,
    at_once: int = 1,
) -> None:
    """Have so many calls in progress on each connection, whose answers are read as they come; each
    connection has one of the requests."""
    bodies = [one.SerializeToString() for one in requests]
    opened: list[GrpcCalls] = []
    ended = closed = 0
    with selectors.DefaultSelector() as selector:
        for number in range(connections):
            body = bodies[number % len(bodies)]
            one = GrpcCalls(served.rocketmq, rpc, lambda body=body: body)  # type: ignore[misc] # its own
            opened.append(one)
            selector.register(one.socket, selectors.EVENT_READ, one)
        cpu_s, begun_s = served.cpu_s(), time.monotonic()
        for one in opened:
            one.begin(at_once)
        while time.monotonic() < begun_s + seconds:
            for key, _events in selector.select(0.1):
                one = key.data
                try:
                    count = one.ended()
                    ended += count
                    if count:
                        one.begin(count)
                except OSError:
                    closed += 1
                    selector.unregister(one.socket)
        cpu_s = served.cpu_s() - cpu_s
    for one in opened:
        one.socket.close()
    each_ms = cpu_s / max(ended, 1) * 1_000
    print(f"  {ended} calls of {rpc}, {each_ms:.2f} ms of CPU each; {closed} connections closed")


def place(topic: str, number: int = 0) -> Any:
    """A queue of RocketMQ's clients."""
    return wire.MessageQueue(topic={"name": topic}, id=number)


def fill_small(served: Served, count: int = 200) -> None:
    """A topic with so many batches of 1,000 records of 100 bytes."""
    create(served, ["small"])
    value = VALUE[:100]
    records = encode_batch([Record(n, 1, None, value, []) for n in range(1_000)])
    store(served, records, "small", count)


def grpc_pulls(served: Served, seconds: float) -> None:
    """1,000 messages a call, pulled over gRPC on 200 connections."""
    fill_small(served, 20)
    request = wire.request_of("PullMessage")(
        group={"name": "g"}, message_queue=place("small"), batch_size=1_000
    )
    rocketmq_calls(served, seconds, "PullMessage", [request])


def unread_calls(
    served: Served, seconds: float, rpc: str, request: Callable[[int], Any], per_s: int
) -> None:
    """Calls for 8 MiB in messages of 100 KB each, 20 on a connection, which are not read."""
    create(served, [TOPIC])
    with served.connect() as one:
        for _ in range(100):
            one.sendall(produce_frame(VALUE[:100_000]))
            receive(one)
    opened: list[GrpcCalls] = []
    end_s, count = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        body = request(count).SerializeToString()
        if count % 20 == 0:
            opened.append(GrpcCalls(served.rocketmq, rpc, lambda: b""))
        with contextlib.suppress(OSError):
            opened[-1].socket.sendall(call_of(2 * (count % 20) + 1, rpc, body))
        count += 1
        time.sleep(1 / per_s)
    print(f"  {count} calls")
    for calls in opened:
        calls.socket.close()


def unread_receives(served: Served, seconds: float) -> None:
    """8 MiB in messages of 100 KB a call, received over gRPC by ever new groups and not read."""
    unread_calls(
        *(served, seconds, "ReceiveMessage"),
        lambda count: wire.request_of("ReceiveMessage")(
            group={"name": f"g-{count}"}, message_queue=place(TOPIC), batch_size=1_000,
            filter_expression={"type": 1, "expression": "*"}, invisible_duration={"seconds": 600},
        ),
        per_s=50,
    )  # fmt: skip


def unread_pulls(served: Served, seconds: float) -> None:
    """The same, pulled."""
    asked = wire.request_of("PullMessage")(
        group={"name": "g"}, message_queue=place(TOPIC), batch_size=1_000
    )
    unread_calls(served, seconds, "PullMessage", lambda _count: asked, per_s=100)


def grpc_receives(served: Served, seconds: float) -> None:
    """1,000 messages a call, received over gRPC by 200 groups on a connection each."""
    fill_small(served)
    requests = []
    for number in range(200):
        request = wire.request_of("ReceiveMessage")(
            group={"name": f"g-{number}"}, message_queue=place("small"), batch_size=1_000
        )
        wire.set_ms(request.invisible_duration, 60_000)
        requests.append(request)
    rocketmq_calls(served, seconds, "ReceiveMessage", requests)


def grpc_filters(served: Served, seconds: float) -> None:
    """Receives through an expression of 1,900 characters, of batches of 14 KB that hold 4,000
    records with headers of 4,000 bytes, over gRPC on 20 connections."""
    create(served, ["filtered"])
    records = [Record(n, 1, None, b"x", [("a", b"a" * 4_000)]) for n in range(4_000)]
    store(served, encode_batch(records, codec=ZSTD), "filtered", 20)
    requests = []
    for number in range(20):
        configs = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
        named = {"resource_type": 32, "resource_name": f"g-{number}", "configs": configs}
        served.ask(INCREMENTAL_ALTER_CONFIGS, {"resources": [named], "validate_only": False})
        request = wire.request_of("ReceiveMessage")(
            group={"name": f"g-{number}"}, message_queue=place("filtered"), batch_size=10
        )
        wire.set_ms(request.invisible_duration, 60_000)
        request.filter_expression.type = wire.SQL
        request.filter_expression.expression = f"a LIKE '%{'_' * 1_880}x%'"
        requests.append(request)
    rocketmq_calls(served, seconds, "ReceiveMessage", requests, connections=20)


def grpc_routes(served: Served, seconds: float) -> None:
    """Routes of 1,000 partitions with 4 KB of addresses in each, over gRPC on 200 connections."""
    topics(served, 1, 1_000)
    request = wire.request_of("QueryRoute")(topic={"name": "topic-0"})
    for number in range(250):
        request.endpoints.addresses.add(host="127.0.0.1", port=number)
    rocketmq_calls(served, seconds, "QueryRoute", [request])


def grpc_sends(served: Served, seconds: float) -> None:
    """1,000 small messages a call, sent over gRPC on 200 connections."""
    create(served, ["small"], 16)
    request = wire.request_of("SendMessage")()
    for number in range(1_000):
        request.messages.add(
            topic={"name": "small"}, body=b"x",
            system_properties={"message_id": f"01{number:032X}", "message_type": wire.NORMAL},
        )  # fmt: skip
    rocketmq_calls(served, seconds, "SendMessage", [request])


def grpc_acks(served: Served, seconds: float) -> None:
    """1,000 receipts a call, acknowledged over gRPC on 200 connections."""
    create(served, ["small"])
    request = wire.request_of("AckMessage")(group={"name": "g"}, topic={"name": "small"})
    for number in range(1_000):
        request.entries.add(message_id="m", receipt_handle=receipt_text(0, number, "m" * 12))
    rocketmq_calls(served, seconds, "AckMessage", [request])


def grpc_lite(served: Served, seconds: float) -> None:
    """2,000 lite topics a call, subscribed to over gRPC on 200 connections."""
    create(served, ["lite"], **{"headrace.message.type": "lite"})
    request = wire.request_of("SyncLiteSubscription")(
        topic={"name": "lite"}, group={"name": "g"}, action=2,
        lite_topic_set=[f"lite-{number}" for number in range(2_000)],
    )  # fmt: skip
    rocketmq_calls(served, seconds, "SyncLiteSubscription", [request])


def lite_subscriptions(served: Served, seconds: float) -> None:
    """2,000 lite topics for each of 1,500 clients over gRPC, in 50 groups."""
    create(served, ["lite"], **{"headrace.message.type": "lite"})
    begun_s = time.monotonic()
    bodies = [
        wire.request_of("SyncLiteSubscription")(
            topic={"name": "lite"}, group={"name": f"g{group}"}, action=2,
            lite_topic_set=[f"{number}".zfill(60) for number in range(2_000)],
        ).SerializeToString()
        for group in range(50)
    ]  # fmt: skip
    opened, count, turn = list[GrpcCalls](), 0, itertools.cycle(bodies)
    while time.monotonic() < begun_s + seconds and count < 1_500:
        if count % 100 == 0:
            calls = GrpcCalls(served.rocketmq, "SyncLiteSubscription", lambda: next(turn))
            opened.append(calls)
        opened[-1].begin(1, f"client-{count}")
        while not opened[-1].ended():
            pass
        count += 1
    print(f"  {count} calls")
    for one in opened:
        one.socket.close()


def grpc_settings(served: Served, seconds: float) -> None:
    """Settings with 120,000 topics over gRPC on 200 connections."""
    command = wire.TelemetryCommand()
    for _ in range(120_000):
        command.settings.publishing.topics.add()
    body = command.SerializeToString()
    message = b"\0" + struct.pack(">I", len(body)) + body
    data = b"".join(
        frames.frame(frames.DATA, 0, 1, message[at : at + 16_000])
        for at in range(0, len(message), 16_000)
    )
    opened = []
    for _ in range(200):
        calls = GrpcCalls(served.rocketmq, "Telemetry", bytes)
        calls.socket.sendall(head_of(1, "Telemetry", [("x-mq-client-id", "c")]))
        opened.append(calls.socket)
    send_and_read(seconds, [(one, lambda _number: data) for one in opened])


def grpc_small(served: Served, seconds: float) -> None:
    """100 small calls at once over gRPC on each of 200 connections."""
    create(served, ["small"])
    request = wire.request_of("QueryOffset")(message_queue=place("small"), query_offset_policy=1)
    rocketmq_calls(served, seconds, "QueryOffset", [request], at_once=100)


def large_members(served: Served, seconds: float) -> None:
    """Groups whose members describe themselves with 0.9 MB, and stay."""
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s and count < 1000:
        group = f"large-{count}"
        one = served.connect()
        try:
            found = ask(one, JOIN, {**join(group, size=900_000)}, JOIN_V)
        except OSError:
            break
        if found.error_code:
            break
        count += 1
        one.close()
    print(f"  {count} members")


def share_members(served: Served, seconds: float) -> None:
    """Members of 1,000 names of 240 characters, each in a share group of its own with a long id."""
    served.ask(FIND, {"key_type": 0, "coordinator_keys": ["g"]})
    names = [f"{number}".zfill(240) for number in range(1_000)]
    codes: Counter[int] = Counter()
    end_s = time.monotonic() + seconds
    with served.connect() as one:
        for number in range(100_000):
            if time.monotonic() > end_s:
                break
            body = {"group_id": f"{number}".zfill(250), "member_id": "m", "member_epoch": 0,
                    "rack_id": None, "subscribed_topic_names": names}  # fmt: skip
            codes[ask(one, SHARE_HEARTBEAT, body).error_code] += 1
    print(f"  members by the code of their answer: {dict(codes)}")


def long_ids(served: Served, seconds: float) -> None:
    """Groups with an offset each, whose ids have 8,000 characters of four bytes."""
    served.ask(FIND, {"key_type": 0, "coordinator_keys": ["g"]})
    part = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    given = {"topics": [{"name": TOPIC, "partitions": [part]}]}
    given |= {"generation_id_or_member_epoch": -1, "member_id": ""}
    codes: Counter[int] = Counter()
    end_s, number = time.monotonic() + seconds, 0
    create(served, [TOPIC])
    with served.connect() as one:
        while time.monotonic() < end_s:
            number += 1
            name = "\N{GRINNING FACE}" * 7_990 + str(number)
            answer = ask(one, OFFSET_COMMIT, {"group_id": name, **given}, 8)
            codes[answer.topics[0].partitions[0].error_code] += 1
    print(f"  groups by the code of their answer: {dict(codes)}")


def half_open(served: Served, seconds: float) -> None:
    """Connections that begin HTTP/2 and send nothing, 5,000."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = [served.connect(served.rocketmq) for _ in range(5_000)]
    time.sleep(seconds)
    for one in opened:
        one.close()


def large_messages(served: Served, seconds: float) -> None:
    """Messages of 60 MiB on 40 connections, where the topic allows them."""
    create(served, ["large"], **{"max.message.bytes": str(64 * MIB)})
    send_unread(served, produce_frame(random.Random(1).randbytes(60 * MIB), "large"), 40, seconds)


# --- queues, metrics of clients, searches ------------------------------------------------------


def on_each(
    served: Served, count: int, seconds: float, frames: Callable[[int], Sequence[bytes]]
) -> int:
    """Send these requests on so many connections, again and again until the time is over, and read
    their answers; returns how many were answered."""
    answered = refused = 0
    end_s = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(served.connect()) for _ in range(count)]
        while time.monotonic() < end_s and opened:
            given = [(one, frames(answered + number)) for number, one in enumerate(opened)]
            for one, some in given:
                with contextlib.suppress(OSError):
                    one.sendall(b"".join(some))
            for one, some in given:
                try:
                    for _ in some:
                        receive(one)
                        answered += 1
                except OSError:
                    refused += 1
                    opened.remove(one)
    print(f"  {answered} answers, {refused} connections were closed")
    return answered


def share_sessions(served: Served, seconds: float) -> None:
    """Share sessions of 10,000 partitions each, as many as one can open, and asked again."""
    parts = [{"partition_index": n, "acknowledgement_batches": []} for n in range(10_000)]

    def fetch(member: str, epoch: int, named: bool) -> bytes:
        body = {
            "group_id": "g", "member_id": member, "share_session_epoch": epoch, "max_wait_ms": 0,
            "min_bytes": 0, "max_bytes": MIB, "max_records": 1, "batch_size": 1,
            "topics": [{"topic_id": uuid.UUID(int=7), "partitions": parts}] if named else [],
            "forgotten_topics_data": [],
        }  # fmt: skip
        return frame(SHARE_FETCH, body, 1)

    again = fetch("other", 1, named=False)
    on_each(served, 20, seconds, lambda n: [fetch(f"m-{n}", 0, named=True), again])


def pushed_metrics(served: Served, seconds: float) -> None:
    """Metrics of ever new clients, 1 MiB each after decompression, on 50 connections."""
    configs = [{"name": "metrics", "config_operation": 0, "value": "*"},
               {"name": "interval.ms", "config_operation": 0, "value": "1000"}]  # fmt: skip
    served.ask(
        INCREMENTAL_ALTER_CONFIGS,
        {"resources": [{"resource_type": 16, "resource_name": "all", "configs": configs}],
         "validate_only": False},
    )  # fmt: skip

    def field(number: int, data: bytes) -> bytes:
        size, out = len(data), bytearray([number << 3 | 2])
        while size > 127:
            out.append(size & 127 | 128)
            size >>= 7
        return bytes(out) + bytes([size]) + data

    # OpenTelemetry's MetricsData: resource, scope, metrics with one number each
    point = b"\x19" + bytes(8) + b"\x31" + bytes(8)
    metric = b"".join(
        field(2, field(1, f"m.{n}".encode()) + field(5, field(1, point))) for n in range(20_000)
    )
    metrics = gzip.compress(field(1, field(2, metric)))
    opened = [served.connect() for _ in range(50)]
    count = 0
    end_s = time.monotonic() + seconds
    errors: Counter[int] = Counter()
    while time.monotonic() < end_s:
        instances = []
        for one in opened:
            found = ask(one, GET_TELEMETRY, {"client_instance_id": uuid.UUID(int=0)})
            instances.append((one, found.client_instance_id, found.subscription_id))
        for one, instance, subscription in instances:
            pushed = {"client_instance_id": instance, "subscription_id": subscription,
                      "terminating": False, "compression_type": 1, "metrics": metrics}  # fmt: skip
            one.sendall(frame(PUSH_TELEMETRY, pushed))
        for one, _, _ in instances:
            errors[int.from_bytes(receive(one)[9:11], "big")] += 1
            count += 1
    print(f"  {count} pushes of {len(metrics)} bytes, by error {dict(errors)}")
    for one in opened:
        one.close()


def searches(served: Served, seconds: float) -> None:
    """Searches for what is nowhere, through 54 MB each, on 100 connections over HTTP."""
    fill(served)
    query = urllib.parse.urlencode({"where": "value.contains('not there')"})
    data = f"GET /v1/topics/{TOPIC}/messages?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    opened = [served.connect(served.web_address) for _ in range(100)]
    send_and_read(seconds, [(one, lambda _number: data) for one in opened])


def far_delays(served: Served, seconds: float) -> None:
    """Messages due at different times in ten years in 30 partitions, as many as one can send."""
    create(served, ["delays"], 30, **{"headrace.message.attributes": "read"})
    sent = 0

    def batch(number: int) -> list[bytes]:
        nonlocal sent
        due_ms = int(time.time() * 1000) + 3_600_000
        records = [
            Record(n, 1, None, b"x", [
                ("headrace-deliver-at", str(due_ms + random.randrange(3 * 10**11)).encode())])
            for n in range(500)
        ]  # fmt: skip
        sent += len(records)
        return [frame_of(encode_batch(records), "delays", number % 30)]

    on_each(served, 10, seconds, batch)
    print(f"  {sent} messages")


def delayed_alike(served: Served, seconds: float) -> None:
    """Searches for one among 100,000 messages that are due at once and have one id, on 20
    connections."""
    create(served, ["alike"], **{"headrace.message.attributes": "read"})
    due_ms = int(time.time() * 1000) + 3_600_000
    headers: list[tuple[str, bytes | None]] = [
        ("headrace-deliver-at", b"%d" % due_ms), ("headrace-message-id", b"one")]  # fmt: skip
    data = encode_batch([Record(n, 1, None, b"x", headers) for n in range(4_000)])
    store(served, data, "alike", 25)
    asked = json.dumps({"receipts": [DelayedReceipt(0, due_ms, 0).text], "message_ids": ["one"]})
    head = (
        "POST /v1/topics/alike/delayed/cancel?dry_run=true HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(asked)}\r\n\r\n{asked}"
    ).encode()
    opened = [served.connect(served.web_address) for _ in range(20)]
    send_and_read(seconds, [(one, lambda _number: head) for one in opened])


def delayed_batches(served: Served, seconds: float) -> None:
    """Batches of 0.8 MB with a million records each, one of which is delayed, on 20 connections."""
    create(served, ["batches"], **{"headrace.message.attributes": "read"})
    headers: list[tuple[str, bytes | None]] = [("headrace-delay", b"3600000")]
    records = [Record(n, 1, None, b"", [] if n else headers) for n in range(1_000_000)]
    one = frame_of(encode_batch(records, codec=ZSTD), "batches")
    on_each(served, 20, seconds, lambda _number: [one])


def parked_keys(served: Served, seconds: float) -> None:
    """Keys of 4,000 bytes, parked by a group on 1,000 partitions, and listed on 4 connections."""
    create(served, ["parked"], 1_000)
    wanted = {"headrace.share.key.order": "true"}
    configs = [
        {"name": name, "config_operation": 0, "value": value} for name, value in wanted.items()
    ]
    named = {"resource_type": 32, "resource_name": "g", "configs": configs}
    served.ask(INCREMENTAL_ALTER_CONFIGS, {"resources": [named], "validate_only": False})
    keys = [f"{number:04}" + "x" * 3_996 for number in range(32)]
    print("  parked:", served.web("POST", "/v1/queues/parked/g/park", {"keys": keys}))
    data = b"GET /v1/queues/parked/g/parked HTTP/1.1\r\nHost: localhost\r\n\r\n"
    opened = [served.connect(served.web_address) for _ in range(4)]
    send_and_read(seconds, [(one, lambda _number: data) for one in opened])


LOGIN: Final = (
    *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT"),
    *("--sasl-enabled-mechanisms", "PLAIN", "--super-users", f"User:{security.USER}"),
)


def failing_logins(served: Served, seconds: float) -> None:
    """100 connections with failing logins."""
    program = Path(__file__).parents[1] / "tests" / "integration" / "login_flood.py"
    address = f"{served.address[0]}:{served.address[1]}"
    flood = subprocess.Popen([sys.executable, str(program), address, "100"], stdout=subprocess.PIPE)
    time.sleep(seconds)
    flood.kill()
    flood.wait()


FLOODS: Final[Sequence[Callable[[Served, float], None]]] = (
    producers, large_messages, consumers, connections, long_polls, metadata_unread, descriptions,
    behind_a_join, waiting_members, large_members, share_members, many_groups, long_ids,
    open_transactions, producer_ids, failing_logins, web_unread, web_reads, web_polls, web_heads,
    web_bodies, half_open, grpc_heads, grpc_unread, unread_receives, unread_pulls, grpc_pulls,
    grpc_receives, grpc_filters, grpc_routes, grpc_sends, grpc_acks, grpc_lite,
    lite_subscriptions, grpc_settings, grpc_small, share_sessions, pushed_metrics, searches,
    far_delays, delayed_alike, delayed_batches, parked_keys,
)  # fmt: skip


def run(flood: Callable[[Served, float], None], seconds: float) -> None:
    """One flood, on a broker of its own."""
    with tempfile.TemporaryDirectory() as folder:
        served = Served(Path(folder), *(LOGIN if flood is failing_logins else ()))
        try:
            with Watch(served) as watch:
                flood(served, seconds)
            others = watch.others
            ran = [f"{took_s:.3f} s ({face})" for face, took_s in others["loop_s"].items()]
            print(
                f"{flood.__name__}: {(flood.__doc__ or '').rstrip('.')}:"
                f" {(watch.most - watch.before) / MIB:.0f} MiB more than"
                f" {watch.before / MIB:.0f}, {watch.files} files; others waited"
                f" {others['median_s']:.2f} s, {others['slowest_s']:.2f} s at most, and got"
                f" {others['failed']} errors in place of {others['count']} answers; the loop ran"
                f" for {', '.join(ran)} at most before one",
                flush=True,
            )
        finally:
            served.stop()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="names of floods")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ask", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        ask_until_told(*options.ask)
        return
    for flood in FLOODS:
        if not options.only or flood.__name__ in options.only:
            run(flood, options.seconds)


if __name__ == "__main__":
    main()
