"""Records of a test, and the way into a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog

TIMESTAMP_MS = 1_700_000_000_000


def batch(
    *values: bytes | None,
    timestamp_ms: int = TIMESTAMP_MS,
    key: bytes | None = None,
    **options: Any,
) -> bytes:
    """A record batch as a producer makes it."""
    records = [Record(i, timestamp_ms, key, value, []) for i, value in enumerate(values)]
    return encode_batch(records, **options)


async def append(log: PartitionLog, data: bytes) -> int:
    """Append a batch, which is not checked, as soon as the log accepts one; its offset, once it is
    durable. Raises what the log raises."""
    header = read_header(data)
    while (appended := log.append(data, header)) is None:
        assert log.ready is not None
        await log.ready.wait()
    await appended.completion.wait()
    return appended.base_offset
