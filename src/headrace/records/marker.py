"""Transaction markers: the control batches that end a producer's transaction in a partition.

Invariants: pure. A marker is a batch of one record with the transactional and the control bit, base
sequence -1, and the producer's id and epoch. The layout is Kafka's (`EndTransactionMarker`,
KIP-98). Do not change: stored and on the wire.

    key:   version int16 (0), type int16 (0 abort, 1 commit)
    value: version int16 (0), coordinator epoch int32
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import BatchCorrupt
from headrace.records.codec import Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from headrace.records.batch import Buffer

ABORT: Final = 0
COMMIT: Final = 1
MARKER_BYTES_MAX: Final = 1024
"""A marker has 78 bytes; one that decompresses to more than this is corrupt."""
_VERSION: Final = 0
_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


class Marker(NamedTuple):
    """The contents of a transaction marker."""

    is_commit: bool
    coordinator_epoch: int


def encode_marker(
    producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int
) -> bytes:
    """The control batch that ends a producer's transaction."""
    key = _KEY.pack(_VERSION, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return encode_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(data: Buffer, position: int = 0) -> Marker | None:
    """The marker in the control batch at `position`; None for a control record of another type.

    Fields added by newer versions are ignored. Raises BatchCorrupt.
    """
    records = decode_batch(data, position, decompressed_bytes_max=MARKER_BYTES_MAX)
    try:
        _version, kind = _KEY.unpack_from(records[0].key or b"")
        if kind not in {ABORT, COMMIT}:
            return None
        _version, coordinator_epoch = _VALUE.unpack_from(records[0].value or b"")
    except (IndexError, error) as problem:
        raise BatchCorrupt(f"malformed control record in a control batch: {problem}") from problem
    return Marker(kind == COMMIT, coordinator_epoch)
