"""A connection to one broker that fetches and appends whole record batches, which no client
library does.

Invariants: requests in fixed versions that Kafka 2.3 to 4.4 and brokers like it serve (Metadata v4,
Fetch v11, Produce v7, InitProducerId v0, SASL v0 and v1); a request is sent once, and requests are
answered in their order. Record batches stay unchanged: this module knows nothing of records. Every
length is checked against the bytes present. No secret is in an error.
"""

from __future__ import annotations

import secrets
import socket
from collections import deque
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.errors import AuthenticationFailed
from headrace.runtime.scram import HASHES, ScramClient

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from headrace.runtime.access import Access

# Do not change: protocol.
_PRODUCE, _FETCH, _METADATA = 0, 1, 3
_SASL_HANDSHAKE, _INIT_PRODUCER_ID, _SASL_AUTHENTICATE = 17, 22, 36
_REQUEST: Final = Struct(">ihhih")
_INT16, _INT32 = Struct(">h"), Struct(">i")
_PRODUCE_HEAD: Final = Struct(">hhii")
"""No transactional id (-1), acknowledgements, how long the broker may wait for them in ms, and the
number of topics."""
_PAIR: Final = Struct(">ii")
_APPENDED_PARTITION: Final = Struct(">ihqqq")
"""Partition, error code, base offset, append time and log start offset."""
_PRODUCER: Final = Struct(">ihqh")
"""Throttle time, error code, producer id and epoch."""
_FETCH_HEAD: Final = Struct(">iiiibii")
"""Replica (-1: a client), wait, minimum and maximum bytes, isolation, session (none), its epoch."""
_FETCH_PARTITION: Final = Struct(">iiqqi")
"""Partition, leader epoch (-1: any), offset, log start (-1: a client), maximum bytes."""
_FETCHED_PARTITION: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qq")
_BOOL, _PARTITION_HEAD = Struct(">b"), Struct(">hii")
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_ALL: Final = -1
CLIENT_ID: Final = "headrace-pipeline"
_ANSWER_BYTES_MAX: Final = 1 << 30
"""Larger than any batch; a larger size belongs to another protocol."""
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *HASHES)


class AnswerMalformed(ConnectionError):
    """The bytes received are no valid answer: the connection must be closed."""


class FetchedPartition(NamedTuple):
    """What a broker returned for one partition."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of each aborted transaction among the batches."""
    data: bytes
    """Whole batches, and perhaps a part of one."""


class FetchRequest(NamedTuple):
    """What to fetch; sizes in bytes."""

    topic: str
    partition: int
    offset: int
    wait_ms: int
    bytes_max: int
    is_read_committed: bool


class Appending(NamedTuple):
    """A batch for one partition."""

    topic: str
    partition: int
    batch: bytes


class Appended(NamedTuple):
    """What became of one batch."""

    topic: str
    partition: int
    error_code: int


class Leader(NamedTuple):
    """Where a partition is served; a code instead if it is not."""

    error_code: int
    address: tuple[str, int] | None


class BrokerConnection:
    """One connection. Every wait raises TimeoutError after `timeout_s`."""

    def __init__(
        self,
        address: tuple[str, int],
        access: Access,
        timeout_s: float,
        client_id: str = CLIENT_ID,
    ) -> None:
        """Connect, and log in if `access` says so. Raises OSError, AuthenticationFailed."""
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._unanswered: deque[int] = deque()
        self._socket = socket.create_connection(address, timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls is not None:
                self._socket = access.tls.wrap_socket(self._socket, server_hostname=address[0])
            if access.mechanism:
                self._log_in(access)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def leader_of(self, topic: str, partition: int) -> Leader:
        """Ask for a partition's leader; never creates the topic. Raises OSError."""
        code, found = self.leaders_of(topic)
        return found.get(partition, Leader(code or _UNKNOWN_TOPIC_OR_PARTITION, None))

    def leaders_of(self, topic: str) -> tuple[int, Mapping[int, Leader]]:
        """The topic's error code, and the leader of each partition; never creates the topic.
        Raises OSError."""
        self._send(_METADATA, 4, _INT32.pack(1) + _string(topic) + b"\0")
        return _leaders_of(_Answer(self._receive()))

    def new_producer(self) -> tuple[int, int, int]:
        """An error code, and the id and epoch of a new idempotent producer. Raises OSError."""
        self._send(_INIT_PRODUCER_ID, 0, _INT16.pack(-1) + _INT32.pack(0))
        _, code, producer_id, epoch = _Answer(self._receive()).fields(_PRODUCER)
        return code, producer_id, epoch

    @property
    def unanswered_count(self) -> int:
        """Requests whose answers have not been received."""
        return len(self._unanswered)

    def send_produce(self, batches: Sequence[Appending], wait_ms: int) -> None:
        """Send batches, one per partition at most, to be acknowledged by all replicas;
        `receive_produce` returns the answer. Raises OSError."""
        topics: dict[str, list[bytes]] = {}
        for topic, partition, batch in batches:
            topics.setdefault(topic, []).extend((_PAIR.pack(partition, len(batch)), batch))
        parts = [_PRODUCE_HEAD.pack(-1, _ALL, wait_ms, len(topics))]
        for topic, partitions in topics.items():
            parts += (_string(topic), _INT32.pack(len(partitions) // 2), *partitions)
        self._send(_PRODUCE, 7, b"".join(parts))

    def receive_produce(self) -> list[Appended]:
        """The answer to the oldest `send_produce` that has none yet. Raises OSError."""
        answer = _Answer(self._receive())
        found = []
        for _ in answer.items():
            topic = answer.string()
            for _ in answer.items():
                partition, code, *_ = answer.fields(_APPENDED_PARTITION)
                found.append(Appended(topic, partition, code))
        return found

    def send_fetch(self, wanted: FetchRequest) -> None:
        """Send a request; `receive_fetch` returns its answer. Raises OSError."""
        isolation = 1 if wanted.is_read_committed else 0
        bytes_max = wanted.bytes_max
        head = _FETCH_HEAD.pack(-1, wanted.wait_ms, 1, bytes_max, isolation, 0, -1)
        partition = _FETCH_PARTITION.pack(wanted.partition, -1, wanted.offset, -1, bytes_max)
        topics = _INT32.pack(1) + _string(wanted.topic) + _INT32.pack(1) + partition
        self._send(_FETCH, 11, head + topics + _INT32.pack(0) + _INT16.pack(0))

    def receive_fetch(self) -> FetchedPartition:
        """The answer to the oldest `send_fetch` that has none yet. Raises OSError."""
        return _fetched(_Answer(self._receive()))

    def _log_in(self, access: Access) -> None:
        mechanism = access.mechanism.upper()
        self._send(_SASL_HANDSHAKE, 1, _string(mechanism))
        answer = _Answer(self._receive())
        if code := answer.int16():
            raise AuthenticationFailed(
                f"the broker does not take {mechanism} on this listener (error {code})"
            )
        tokens = _tokens(access, mechanism)
        token = next(tokens)
        while True:
            self._send(_SASL_AUTHENTICATE, 0, _INT32.pack(len(token)) + token)
            answer = _Answer(self._receive())
            code, message = answer.int16(), answer.string()
            if code:
                raise AuthenticationFailed(message or f"error {code}")
            try:
                token = tokens.send(answer.octets())
            except StopIteration:
                return

    def _send(self, api_key: int, version: int, body: bytes) -> None:
        self._correlation_id += 1
        self._unanswered.append(self._correlation_id)
        name = self._client_id
        size = _REQUEST.size - _INT32.size + len(name) + len(body)
        head = _REQUEST.pack(size, api_key, version, self._correlation_id, len(name))
        self._socket.sendall(head + name + body)

    def _receive(self) -> bytes:
        """The answer to the oldest request that has none, after its correlation id."""
        expected = self._unanswered.popleft()
        size, found = Struct(">ii").unpack(self._read(8))
        if not _INT32.size <= size <= _ANSWER_BYTES_MAX or found != expected:
            raise AnswerMalformed(f"{size} bytes as answer {found} to {expected}")
        return self._read(size - _INT32.size)

    def _read(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        filled = 0
        while filled < size:
            count = self._socket.recv_into(view[filled:])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            filled += count
        return bytes(buffer)


class _Answer:
    """An answer's fields, in order. Raises AnswerMalformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def fields(self, layout: Struct) -> tuple[int, ...]:
        try:
            found: tuple[int, ...] = layout.unpack_from(self._data, self._at)
        except error as problem:
            raise AnswerMalformed("an answer ends early") from problem
        self._at += layout.size
        return found

    def int16(self) -> int:
        return self.fields(_INT16)[0]

    def int32(self) -> int:
        return self.fields(_INT32)[0]

    def items(self) -> Iterator[int]:
        """One number for each element of an array; each has at least a byte."""
        count = self.int32()
        if count > len(self._data) - self._at:
            raise AnswerMalformed(f"{count} elements in {len(self._data) - self._at} bytes")
        return iter(range(count))

    def octets(self) -> bytes:
        return self._take(self.int32())

    def string(self) -> str:
        return self._take(self.int16()).decode(errors="replace")

    def _take(self, size: int) -> bytes:
        end = self._at + max(size, 0)
        if end > len(self._data):
            raise AnswerMalformed(f"a field of {size} bytes ends after its answer")
        found = self._data[self._at : end]
        self._at = end
        return found


def _string(text: str) -> bytes:
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _tokens(access: Access, mechanism: str) -> Generator[bytes, bytes, None]:
    if mechanism == PLAIN:
        yield f"\0{access.user}\0{access.password}".encode()
        return
    scram = ScramClient(mechanism, access.user, access.password, secrets.token_hex(16))
    answer = yield scram.first()
    answer = yield scram.final(answer)
    scram.check(answer)


def _leaders_of(answer: _Answer) -> tuple[int, dict[int, Leader]]:
    answer.int32()  # throttle time
    addresses = {}
    for _ in answer.items():
        node, host, port = answer.int32(), answer.string(), answer.int32()
        answer.string()  # rack
        addresses[node] = (host, port)
    answer.string()  # cluster id
    answer.int32()  # controller
    topic_code, found = _UNKNOWN_TOPIC_OR_PARTITION, {}
    for _ in answer.items():
        topic_code = answer.int16()
        answer.string()
        answer.fields(_BOOL)
        for _ in answer.items():
            code, number, leader = answer.fields(_PARTITION_HEAD)
            for _ in range(2):  # replicas, and those in sync
                for _ in answer.items():
                    answer.int32()
            found[number] = Leader(code, addresses.get(leader))
    return topic_code, found


def _fetched(answer: _Answer) -> FetchedPartition:
    answer.int32()  # throttle time
    code = answer.int16()
    answer.int32()  # session
    found = FetchedPartition(code or _UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, [], b"")
    for _ in answer.items():
        answer.string()
        for _ in answer.items():
            _, code, high, stable, start = answer.fields(_FETCHED_PARTITION)
            aborted = [answer.fields(_ABORTED) for _ in answer.items()]
            answer.int32()  # preferred replica
            pairs = [(producer_id, first) for producer_id, first in aborted]
            found = FetchedPartition(code, high, stable, start, pairs, answer.octets())
    return found
