"""Fuzz targets of the Kafka listener: framing, requests, batches, what clients put into them.

Invariants: pure, no sockets. A target raises only on a fault: what its caller in the broker handles
is handled here, in the same way. Besides, ways that must agree are compared.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from headrace.broker.services.otlp_metrics import read_points
from headrace.coordination.groups.consumer_protocol import read_assignment, read_subscription
from headrace.errors import BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat
from headrace.kafka.apis import APIS, FETCH, OWN_APIS, PRODUCE
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.wire.fetch import read_fetch
from headrace.kafka.wire.primitives import STRUCT_ERROR, FrameInvalid, skip_tags
from headrace.kafka.wire.produce import read_one, read_produce
from headrace.kafka.wire.schema import read_request, read_response
from headrace.records.batch import HEADER_SIZE, LOG_OVERHEAD, header_of
from headrace.records.codec import decode_batch
from headrace.records.columnar import BatchCursor, RecordColumns
from headrace.records.compression import CODEC_NAMES, decompress
from headrace.records.validation import check_single, validate_batch

if TYPE_CHECKING:
    from headrace.kafka.apis import Api

CLIENT_ID_SIZE_MAX: Final = 1_000
"""As in `kafka.dispatch`, which imports every handler: instrumenting those takes seconds."""
_SERVED: Final = {**APIS, **OWN_APIS}
_HEADER: Final = Struct(">hhih")
_ANSWERED: Final = [
    (api.key, version)
    for api in _SERVED.values()
    if api.key not in {PRODUCE, FETCH}
    for version in range(api.version_min, api.version_max + 1)
]
CRC_AT: Final = 17
EXPANDED_BYTES_MAX: Final = 1 << 20
ROWS_MAX: Final = 1 << 16
END: Final = 1 << 62  # no log reaches such an offset
_REFUSED: Final = (BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat)


class _Transport:
    """Takes what a connection says to its client."""

    def __init__(self) -> None:
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    close = abort

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading


class _Frames:
    """A dispatcher that reads each request, and keeps what no connection expects."""

    request_bytes_max = 1 << 20

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.fault: Exception | None = None
        self.responses = self.requests = self

    def opened(self, connection: KafkaConnection) -> None:
        connection.must_be_admitted = False

    def may_take(self, *_: Any) -> bool:
        return True

    def forget(self, _connection: KafkaConnection) -> None:
        pass

    closed = forget

    def dispatch(self, _connection: KafkaConnection, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        try:
            _request(frame)
        except (FrameInvalid, STRUCT_ERROR, IndexError):
            raise
        except Exception as error:
            self.fault = error
            raise


def _request(frame: memoryview) -> None:
    """Read a request as `KafkaFace.dispatch` does."""
    key, version, _id, client_size = _HEADER.unpack_from(frame)
    api: Api | None = _SERVED.get(key)
    if api is None or not api.version_min <= version <= api.version_max:
        raise FrameInvalid("unknown API")
    at = 10 + max(client_size, 0)
    if client_size > CLIENT_ID_SIZE_MAX or at > len(frame):
        raise FrameInvalid("invalid client id length")
    if version >= api.flexible_from:
        at = at + 1 if frame[at] == 0 else skip_tags(frame, at)
    if key == PRODUCE:
        _produce(frame, at, version)
    elif key == FETCH:
        read_fetch(frame, at, version)
    else:
        read_request(key, version, bytes(frame), at)


def _produce(frame: memoryview, at: int, version: int) -> None:
    """Whatever the fast way takes, the other one takes as the same."""
    one = None
    try:
        one = read_one(frame, at, version)
    except (FrameInvalid, STRUCT_ERROR, IndexError):
        pass
    found = read_produce(frame, at, version)
    if one is not None:
        (partition,) = found.partitions
        acks, topic, number, records = one
        assert (acks, topic, number) == (found.acks, partition.topic, partition.partition)
        assert partition.records == records, "two ways read a request differently"


_LOOP: Final = asyncio.new_event_loop()


def _frames_of(*parts: bytes) -> tuple[list[bytes], bool]:
    frames, transport = _Frames(), _Transport()
    connection = KafkaConnection(frames, _LOOP)  # type: ignore[arg-type]  # what it uses of one
    connection.connection_made(transport)  # type: ignore[arg-type]  # likewise
    for part in parts:
        connection.data_received(part)
    if frames.fault is not None:
        raise frames.fault
    return frames.frames, transport.is_aborted


def requests(data: bytes) -> None:
    """A client's stream, cut at any place: the same requests arrive."""
    whole = _frames_of(data)
    half = len(data) // 2
    assert whole == _frames_of(data[:half], data[half:]), "a cut changes what is read"


def answers(data: bytes) -> None:
    """What another broker answers."""
    if len(data) > 1:
        api, version = _ANSWERED[int.from_bytes(data[:2], "big") % len(_ANSWERED)]
        try:
            read_response(api, version, data, 2)
        except FrameInvalid:
            pass


def batches(data: bytes) -> None:
    """A producer's batch: what is validated is decoded, and in columns, as the same records. As it
    is, and with the length and the checksum that let it past the first checks."""
    _batch(data)
    if len(data) >= HEADER_SIZE:
        sealed = bytearray(data)
        sealed[8:12] = (len(data) - LOG_OVERHEAD).to_bytes(4, "big")
        sealed[CRC_AT : CRC_AT + 4] = crc32c(bytes(sealed[CRC_AT + 4 :])).to_bytes(4, "big")
        _batch(bytes(sealed))


def _batch(data: bytes) -> None:
    try:
        header = check_single(memoryview(data))
        facts = validate_batch(data, header, EXPANDED_BYTES_MAX)
    except _REFUSED:
        return
    if not 0 <= header[0] < END:
        return  # the broker assigns the offset
    records = decode_batch(data, decompressed_bytes_max=EXPANDED_BYTES_MAX)
    assert len(records) == header[12], "another number of records than was validated"
    assert facts.keyless_count == sum(record.key is None for record in records)
    columns = RecordColumns(ROWS_MAX, EXPANDED_BYTES_MAX)
    cursor = BatchCursor(data, 0, header_of(header), 0, END)
    if cursor.decode_into(columns):
        assert columns.row_count == len(records), "another number of rows than of records"


def streams(data: bytes) -> None:
    """A compressed stream of each codec."""
    if data and data[0] % 8 < len(CODEC_NAMES):
        try:
            out = decompress(data[0] % 8, memoryview(data)[1:], EXPANDED_BYTES_MAX)
        except BatchCorrupt:
            return
        assert len(out) <= EXPANDED_BYTES_MAX or not data[0] % 8, "more than was allowed"


def groups(data: bytes) -> None:
    """Subscriptions and assignments of a group's members."""
    read_subscription(data)
    read_assignment(data)


def metrics(data: bytes) -> None:
    """Metrics that a client pushes (KIP-714)."""
    try:
        read_points(data)
    except RecordInvalid:
        pass
