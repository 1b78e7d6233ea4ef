"""Abuse of record batches: bombs, false fields with a correct checksum, old formats.

Invariants: batches are hand-written, so that they can be wrong. The topic makes the broker
decompress them (`compression.type=uncompressed`).
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

from crc32c import crc32c

from headrace.errors import BatchCorrupt
from headrace.records.codec import iterate_records
from headrace.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from headrace.runtime.clock import SystemClock
from headrace_verify.kafka_wire import FETCH, LIST_OFFSETS, PRODUCE, request_bytes
from headrace_verify.wire.abuse import Case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.wire.abuse import Abuse

TOPIC = "wire-unfolded"
"""Created by the run before the first case."""
KEPT_TOPIC = "wire-as-it-came"
"""The same, but its batches keep the producer's codec."""
TIMED_TOPIC = "wire-by-time"
"""The same, for batches in order of time."""
_HEADER = struct.Struct(">qiibIhiqqqhii")
_RECORD = bytes([14 << 0, 0, 0, 0, 1, 2, 120, 0])  # one record: null key, value "x"


def batch(
    payload: bytes,
    codec: int = NONE,
    *,
    count: int = 1,
    delta: int | None = None,
    times: tuple[int, int] = (1, 1),
    is_right: bool = True,
) -> bytes:
    """Build a batch with the given claims; its CRC is correct unless requested otherwise."""
    last = count - 1 if delta is None else delta
    fields = [0, len(payload) + 49, -1, 2, 0, codec, last, *times, -1, -1, -1, count]
    data = bytearray(_HEADER.pack(*fields) + payload)
    crc = crc32c(bytes(data[21:])) ^ (0 if is_right else 1)
    data[17:21] = crc.to_bytes(4, "big")
    return bytes(data)


def _produce(records: bytes, topic: str = TOPIC) -> bytes:
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    return request_bytes(PRODUCE, 7, 1, acks=-1, timeout=5000, topic_data=[data])


def _code(abuse: Abuse, records: bytes, topic: str = TOPIC) -> int | None:
    """Return the response's error code; None if the connection is closed."""
    with abuse.open() as peer:
        peer.send(_produce(records, topic))
        answer = peer.answer(10)
    abuse.checked += 1
    # The response to Produce v7 of one partition: the bytes before its error code.
    at = 4 + 4 + 2 + len(topic) + 4 + 4
    if answer is None or len(answer) < at + 2:
        return None
    return int(struct.unpack_from(">h", answer, at)[0])


def bombs() -> Sequence[tuple[str, int, bytes]]:
    """(name, codec, stream): each would decompress to more than a GiB."""
    stream = zlib.compressobj(9, wbits=31)
    head = stream.compress(bytes(16 << 20)) + stream.flush(zlib.Z_FULL_FLUSH)
    raw = zlib.compressobj(9, wbits=-15)
    block = raw.compress(bytes(16 << 20)) + raw.flush(zlib.Z_FULL_FLUSH)
    lz4 = compress(LZ4, bytes(4 << 20))
    # magic, flags, descriptor, header checksum: 7 bytes; the end mark: 4 bytes
    lz4_bomb = lz4[:7] + lz4[7:-4] * 260 + lz4[-4:]
    # RFC 8878: no content size, a window of 8 MiB, blocks of one byte 128 Ki times
    run = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\x00"
    last = ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\x00"
    frame = b"\x28\xb5\x2f\xfd\x00\x68"
    claims = b"\xff\xff\xff\xff\x0f"
    unfolded = compress(SNAPPY, bytes(2 << 20))
    return (
        ("gzip", GZIP, head + block * 70),
        ("lz4", LZ4, lz4_bomb),
        ("zstd", ZSTD, frame + run * 8300 + last),
        (
            "zstd that says its size",
            ZSTD,
            b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + run,
        ),
        ("snappy that claims 4 GiB", SNAPPY, claims + bytes(64)),
        ("snappy in blocks", SNAPPY, unfolded[:16] + unfolded[16:] * 140),
        ("snappy whose block claims 2 GiB", SNAPPY, unfolded[:16] + b"\x7f\xff\xff\xff" + bytes(9)),
    )


def _bombs(abuse: Abuse, *, is_right: bool) -> None:
    for name, codec, stream in bombs():
        code = _code(abuse, batch(stream, codec, is_right=is_right))
        abuse.expect(code != 0, f"a bomb ({name}) of {len(stream)} bytes is stored")
        abuse.expect(code is not None, f"a bomb ({name}) of {len(stream)} bytes gets no response")


def bombs_are_refused_before_they_unfold(abuse: Abuse) -> None:
    _bombs(abuse, is_right=True)


def bombs_with_a_wrong_checksum_are_refused(abuse: Abuse) -> None:
    _bombs(abuse, is_right=False)


def streams_that_are_none_are_refused(abuse: Abuse) -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD, 5, 6, 7):
        for stream in (b"", b"\x00", b"\xff" * 100, abuse.rng.randbytes(3000)):
            code = _code(abuse, batch(stream, codec))
            abuse.expect(code not in {0, None}, f"codec {codec}, {stream[:9]!r}: code {code}")


def counts_and_deltas_that_lie_under_a_right_checksum_are_refused(abuse: Abuse) -> None:
    for count, delta in (
        (2**31 - 1, 2**31 - 2),
        (-1, -2),
        (0, -1),
        (0, 0),
        (1, 5),
        (5, 0),
        (-(2**31), 2**31 - 1),
        (1000, 999),
    ):
        code = _code(abuse, batch(_RECORD, count=count, delta=delta))
        abuse.expect(code not in {0, None}, f"{count} records, delta {delta}: code {code}")


def compressed_batches_that_claim_more_records_than_they_hold_are_refused(abuse: Abuse) -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        for count in (2**31 - 1, 10_000_000, 1_000_000, 5_000):
            code = _code(abuse, batch(compress(codec, _RECORD), codec, count=count), KEPT_TOPIC)
            abuse.expect(code not in {0, None}, f"codec {codec}, {count} records: code {code}")


def lengths_that_lie_are_refused(abuse: Abuse) -> None:
    good = batch(_RECORD)
    for length in (-1, 0, 48, len(good) - 13, len(good) - 11, 2**31 - 1, -(2**31)):
        code = _code(abuse, good[:8] + struct.pack(">i", length) + good[12:])
        abuse.expect(code not in {0, None}, f"batch length {length}: code {code}")
    for records in (b"", b"\x00", good[:60], good + good, good + b"\x00", b"\xff" * 5000):
        code = _code(abuse, records)
        abuse.expect(code not in {0, None}, f"{len(records)} bytes of no batch: code {code}")


def formats_of_old_are_refused_also_when_mixed(abuse: Abuse) -> None:
    good = batch(_RECORD)
    body = b"\xff\xff\xff\xff" + struct.pack(">i", 1) + b"x"
    old = []
    for magic, rest in ((0, b"\x00" + body), (1, b"\x00" + bytes(8) + body)):
        message = bytes([magic]) + rest
        message = struct.pack(">I", zlib.crc32(message)) + message
        old.append(struct.pack(">qi", 0, len(message)) + message)
    zero, one = old
    for records in (zero, one, zero + one, zero * 9, zero + good, one * 5 + good):
        code = _code(abuse, records)
        abuse.expect(code not in {0, None}, f"{len(records)} bytes of old formats: code {code}")
    code = _code(abuse, good + zero)
    abuse.expect(code not in {0, None}, f"a batch and an old message: code {code}")


def times_at_the_ends_of_the_calendar_harm_nobody(abuse: Abuse) -> None:
    ends = (2**63 - 1, -(2**63), -1, -2, 0)
    for first in ends:
        for last in ends:
            code = _code(abuse, batch(_RECORD, times=(first, last)))
            abuse.expect(code is not None, f"times {first} and {last}: no response")
    for timestamp in (*ends, -3, -4, -5, -99):
        part = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
        topics = [{"name": TOPIC, "partitions": [part]}]
        with abuse.open() as peer:
            peer.send(request_bytes(LIST_OFFSETS, 5, 1, replica_id=-1, topics=topics))
            abuse.expect(peer.answer() is not None, f"ListOffsets at {timestamp}: no response")


def _attributed(records: bytes, attributes: int) -> bytes:
    """The batch with other attributes and a right checksum."""
    data = bytearray(records)
    data[21:23] = struct.pack(">h", attributes)
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def records_that_nobody_can_decode_are_refused(abuse: Abuse) -> None:
    """On a topic that keeps the producer's codec, where only validation looks inside."""
    two = _RECORD + _RECORD[:3] + b"\x02" + _RECORD[4:]
    bodies = {
        "garbage": b"\x99" * 60,
        "a record that ends before its fields": b"\x0c" + _RECORD[1:],
        "a record that ends after the batch": b"\x7e" + _RECORD[1:],
        "a negative value": _RECORD[:5] + b"\x03" + _RECORD[6:],
        "negative headers": _RECORD[:-1] + b"\x03",
        "a wrong offset delta": _RECORD[:3] + b"\x02" + _RECORD[4:],
        "bytes after the records": _RECORD + b"\x00",
        "one record more": two,
        "half of a record": _RECORD[:5],
    }
    for codec in (NONE, GZIP, SNAPPY, LZ4, ZSTD):
        for name, body in bodies.items():
            code = _code(abuse, batch(compress(codec, body), codec), KEPT_TOPIC)
            abuse.expect(code not in {0, None}, f"codec {codec}, {name}: code {code}")
        code = _code(abuse, batch(compress(codec, two), codec, count=2), KEPT_TOPIC)
        abuse.expect(code == 0, f"codec {codec}, a good batch: code {code}")


def attributes_of_brokers_are_refused(abuse: Abuse) -> None:
    for bit in (0x08, 0x20, 0x40, 0x80, 0x4000, -0x8000):
        code = _code(abuse, _attributed(batch(_RECORD), bit), KEPT_TOPIC)
        abuse.expect(code not in {0, None}, f"attributes {bit:#x}: code {code}")


def a_search_by_time_goes_by_the_records(abuse: Abuse) -> None:
    """The header's maximum lies; each batch is newer than those before it."""
    now_ms = SystemClock().now_ms()
    for number, claim in enumerate((-1, 0, 1, now_ms - 10**6)):
        time_ms = now_ms - 1_000 + number
        with abuse.open() as peer:
            peer.send(_produce(batch(_RECORD, times=(time_ms, claim)), TIMED_TOPIC))
            abuse.expect(peer.answer(10) is not None, f"max timestamp {claim}: no response")
        part = {"partition_index": 0, "timestamp": time_ms, "current_leader_epoch": -1}
        topics = [{"name": TIMED_TOPIC, "partitions": [part]}]
        with abuse.open() as peer:
            peer.send(request_bytes(LIST_OFFSETS, 5, 1, replica_id=-1, topics=topics))
            answer = peer.answer()
        at = 4 + 4 + 4 + 2 + len(TIMED_TOPIC) + 4 + 4
        found = struct.unpack_from(">hqq", answer, at) if answer else None
        wanted = (0, time_ms, number)
        abuse.expect(found == wanted, f"max timestamp {claim}: {found} instead of {wanted}")
        abuse.checked += 1


def what_was_stored_is_still_served(abuse: Abuse) -> None:
    code = _code(abuse, batch(_RECORD))
    abuse.expect(code == 0, f"a good batch after the bad ones: code {code}")
    for topic in (TOPIC, KEPT_TOPIC, TIMED_TOPIC):
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 4 << 20}
        topics = [{"topic": topic, "partitions": [part]}]
        with abuse.open() as peer:
            peer.send(request_bytes(FETCH, 4, 1, replica_id=-1, max_bytes=4 << 20, topics=topics))
            answer = peer.answer()
        if answer is None:
            abuse.expect(False, f"{topic} cannot be read")
            continue
        # Fetch v4, one partition without aborted transactions: what precedes the batches.
        at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4
        (size,) = struct.unpack_from(">i", answer, at)
        try:
            found = list(iterate_records(answer[at + 4 : at + 4 + max(size, 0)]))
        except BatchCorrupt as error:
            abuse.expect(False, f"{topic} holds what nobody can decode: {error}")
            continue
        if topic == TOPIC:
            abuse.expect(any(one.value == b"x" for one in found), "the topic cannot be read")
        abuse.checked += len(found)


CASES = (
    Case("kafka", bombs_are_refused_before_they_unfold),
    Case("kafka", bombs_with_a_wrong_checksum_are_refused),
    Case("kafka", streams_that_are_none_are_refused),
    Case("kafka", counts_and_deltas_that_lie_under_a_right_checksum_are_refused),
    Case("kafka", compressed_batches_that_claim_more_records_than_they_hold_are_refused),
    Case("kafka", lengths_that_lie_are_refused),
    Case("kafka", formats_of_old_are_refused_also_when_mixed),
    Case("kafka", times_at_the_ends_of_the_calendar_harm_nobody),
    Case("kafka", records_that_nobody_can_decode_are_refused),
    Case("kafka", attributes_of_brokers_are_refused),
    Case("kafka", a_search_by_time_goes_by_the_records),
    Case("kafka", what_was_stored_is_still_served),
)
