"""The durable state of transactions, in the encoding of Kafka's `__transaction_state`.

Invariants: pure bytes and tuples. Do not change: stored, and read by Kafka's own tools
(`kafka-dump-log --transaction-log-decoder`, TransactionLogMessageFormatter). Written:
TransactionLogKey 0 with TransactionLogValue 1; no value (a tombstone) removes the id. Also read:
TransactionLogValue 0. One tagged field is Headrace's own: the last epoch returned to the producer
(Kafka keeps it in memory only), so that a retry of InitProducerId or EndTxn gets the same response
after the coordinator has moved. Readers skip unknown tags.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.coordination.kit.stored_bytes import (
    INT8,
    INT16,
    INT32,
    INT64,
    StoredReader,
    compact_string,
    stored_string,
    tagged_fields,
    uvarint,
)
from headrace.errors import RecordInvalid

KEY_VERSION = 0
VALUE_VERSION = 1

EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)
STATE_NAMES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)
"""By number. Do not change: stored."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

_PREVIOUS_ID_TAG, _NEXT_ID_TAG, _CLIENT_VERSION_TAG = 0, 1, 2
_LAST_EPOCH_TAG = 1_000
"""Headrace's own: far above the numbers that Kafka allocates sequentially."""
_PARTITIONS_SIZE_MIN = 3
"""Bytes of the smallest topic of a stored transaction: bounds a malformed count."""

Partition = tuple[str, int]


class TransactionStored(NamedTuple):
    """One transactional id: its producer, and its current or last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    partitions: frozenset[Partition]
    updated_ms: int
    started_ms: int = -1
    """When the current or last transaction began; -1: there was none."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The previous producer id; differs if the epochs of an id were exhausted."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to use after the transaction if the epochs are exhausted."""
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before the last bump that this very producer requested; -1: it was fenced."""
    client_version: int = 0
    """The client's transaction version: with 2, every transaction bumps the epoch (KIP-890)."""


class TransactionRemoved(NamedTuple):
    """The transactional id is removed."""

    transactional_id: str


DurableRecord = TransactionStored | TransactionRemoved


def encode(record: DurableRecord) -> tuple[bytes, bytes | None]:
    """Key and value of `record`; a value of None is a tombstone."""
    key = INT16.pack(KEY_VERSION) + stored_string(record.transactional_id)
    return key, None if isinstance(record, TransactionRemoved) else _value(record)


def decode(key: bytes, value: bytes | None) -> DurableRecord | None:
    """The record that `key` and `value` encode; None for an unknown version.

    Raises RecordInvalid if a known version is truncated, has an invalid length, or has trailing
    bytes.
    """
    reader = StoredReader(key)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string()
    reader.end()
    if value is None:
        return TransactionRemoved(transactional_id)
    return _decode_value(transactional_id, StoredReader(value))


def _value(record: TransactionStored) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(record.partitions):
        by_topic.setdefault(topic, []).append(number)
    # As Kafka: null before the first transaction, an empty array after one.
    count = 0 if record.state == EMPTY else len(by_topic) + 1
    parts = [
        INT16.pack(VALUE_VERSION),
        INT64.pack(record.producer_id),
        INT16.pack(record.producer_epoch),
        INT32.pack(record.timeout_ms),
        INT8.pack(record.state),
        uvarint(count),
    ]
    for topic, numbers in by_topic.items():
        parts += (compact_string(topic), uvarint(len(numbers) + 1))
        parts += [INT32.pack(number) for number in numbers]
        parts.append(b"\0")
    parts += (INT64.pack(record.updated_ms), INT64.pack(record.started_ms), _tags(record))
    return b"".join(parts)


def _tags(record: TransactionStored) -> bytes:
    fields: dict[int, bytes] = {}
    if record.previous_producer_id != NO_PRODUCER_ID:
        fields[_PREVIOUS_ID_TAG] = INT64.pack(record.previous_producer_id)
    if record.next_producer_id != NO_PRODUCER_ID:
        fields[_NEXT_ID_TAG] = INT64.pack(record.next_producer_id)
    if record.client_version:
        fields[_CLIENT_VERSION_TAG] = INT16.pack(record.client_version)
    if record.last_producer_epoch != NO_PRODUCER_EPOCH:
        fields[_LAST_EPOCH_TAG] = INT16.pack(record.last_producer_epoch)
    return tagged_fields(fields)


def _decode_value(transactional_id: str, reader: StoredReader) -> TransactionStored | None:
    version = reader.int16()
    if version not in (0, VALUE_VERSION):
        return None
    is_flexible = version == VALUE_VERSION
    producer_id, producer_epoch = reader.int64(), reader.int16()
    timeout_ms, state = reader.int32(), reader.int8()
    if not 0 <= state < len(STATE_NAMES):
        raise RecordInvalid(f"a stored transaction has the unknown state {state}")
    partitions = _decode_partitions(reader, is_flexible=is_flexible)
    updated_ms, started_ms = reader.int64(), reader.int64()
    tags = reader.tagged_fields() if is_flexible else {}
    reader.end()
    return TransactionStored(
        transactional_id,
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        partitions,
        updated_ms,
        started_ms,
        _tag(tags, _PREVIOUS_ID_TAG, 8, NO_PRODUCER_ID),
        _tag(tags, _NEXT_ID_TAG, 8, NO_PRODUCER_ID),
        _tag(tags, _LAST_EPOCH_TAG, 2, NO_PRODUCER_EPOCH),
        _tag(tags, _CLIENT_VERSION_TAG, 2, 0),
    )


def _tag(tags: dict[int, bytes], tag: int, size: int, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    if len(data) != size:
        raise RecordInvalid(f"tag {tag} of a stored transaction has {len(data)} bytes, not {size}")
    return int.from_bytes(data, "big", signed=True)


def _decode_partitions(reader: StoredReader, *, is_flexible: bool) -> frozenset[Partition]:
    found: list[Partition] = []
    if is_flexible:
        for _ in range(reader.compact_count(_PARTITIONS_SIZE_MIN)):
            topic = reader.compact_string()
            found += [(topic, reader.int32()) for _ in range(reader.compact_count(4))]
            reader.tagged_fields()
    else:
        for _ in range(reader.nullable_count(_PARTITIONS_SIZE_MIN)):
            topic = reader.string()
            found += [(topic, reader.int32()) for _ in range(reader.count(4))]
    return frozenset(found)
