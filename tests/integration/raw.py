"""A client that speaks any version of any API, byte by byte where a test wants that.

Invariants: requests are those of `headrace_verify.kafka_wire`; here each answer is checked to the
last byte, and what is sent may be anything.
"""

from __future__ import annotations

import dataclasses
import struct
import typing

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace_verify.kafka_wire import KafkaWire, answer_of, request_of


def frame(api: int, version: int, values: dict[str, object], correlation_id: int = 1) -> bytes:
    """A request with its size in front."""
    return request_of(b"raw", api, version, correlation_id, values)


def parse(api: int, version: int, answer: bytes, correlation_id: int = 1) -> typing.Any:
    """The entity in an answer without its size. Nothing may be left over."""
    return answer_of(api, version, answer, correlation_id)


def error_codes(entity: object) -> list[int]:
    """All error codes in an answer, wherever they are."""
    found = []
    if isinstance(entity, tuple):
        for item in entity:
            found += error_codes(item)
    elif dataclasses.is_dataclass(entity):
        for field in dataclasses.fields(entity):
            value = getattr(entity, field.name)
            if field.metadata.get("kafka_type") == "error_code":
                found.append(int(value))
            else:
                found += error_codes(value)
    return found


Closed = ConnectionResetError
"""The broker has closed the connection."""


class Raw(KafkaWire):
    """One connection."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 60) -> None:
        super().__init__(address, timeout_s, b"raw")


def batch(
    *values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), is_transactional: bool = False
) -> bytes:
    """A record batch v2; `producer` is (id, epoch, base sequence)."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=int(is_transactional),
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=10_000_000,
    )
    for offset, value in enumerate(values):
        assert builder.append(offset, 1_700_000_000_000, None, value, []) is not None
    return bytes(builder.build())


def produce_values(topic: str, topic_id: object, records: bytes, acks: int = -1) -> dict:
    """A Produce request of one batch, for any version."""
    part = {"index": 0, "records": records}
    data = {"name": topic, "topic_id": topic_id, "partition_data": [part]}
    return {"acks": acks, "timeout": 5000, "topic_data": [data]}


def fetch_values(topic: str, topic_id: object, offset: int, **values: object) -> dict:
    """A Fetch request of one partition without a session, for any version."""
    part = {
        "partition": 0,
        "fetch_offset": offset,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000_000,
    }
    topics = [{"topic": topic, "topic_id": topic_id, "partitions": [part]}]
    defaults = {"replica_id": -1, "max_bytes": 50_000_000, "session_epoch": -1, "max_wait": 500}
    return defaults | {"topics": topics} | values


def batches_of(records: bytes) -> list[bytes]:
    """The whole batches in fetched records."""
    found, at = [], 0
    while at + 12 <= len(records):
        size = 12 + struct.unpack_from(">i", records, at + 8)[0]
        found.append(records[at : at + size])
        at += size
    return found


def stored_codecs(raw: Raw, topic: str) -> set[int]:
    """The codecs of all batches of partition 0, read off their attributes."""
    answer = raw.call(1, 4, **fetch_values(topic, None, 0))
    records = answer.responses[0].partitions[0].records
    return {struct.unpack_from(">h", one, 21)[0] & 7 for one in batches_of(records)}
