"""The formats that the sink stores: a header in each record, and marks in committed offsets.

Responsibilities: the stored formats and row identity. Pure; `delivery.py` decides by it.
"""

from __future__ import annotations

from binascii import a2b_base64
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITTEN_HEADER = "headrace-written"  # do not change: stored
GROUP_PREFIX = "headrace-sink"  # do not change: stored
DIGEST_SIZE = 12  # do not change: stored; at 10 million rows the collision probability is 1e-15
_ENCODED_DIGEST_SIZE = 16
CHECKSUM_MODULUS = 1 << (8 * DIGEST_SIZE)  # do not change: stored
COMMIT_TASK = -1  # the task id under which a batch's commit writes
HAS_PARTITION, HAS_TIMESTAMP = 1, 2  # do not change: stored


class RowToWrite(NamedTuple):
    """One record to write; `partition` -1 chooses by key, `timestamp_ms` 0 is the time of
    writing."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Stored(NamedTuple):
    """A record as stored in a topic."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class WriteIdentity(NamedTuple):
    """Identifies a writer: query, micro-batch, run, task and attempt."""

    query: str
    batch: int
    run: str
    task: int
    attempt: int = 0

    @property
    def group(self) -> str:
        """The group whose committed offsets carry this query's marks."""
        return f"{GROUP_PREFIX}.{self.query}"


class Written(NamedTuple):
    """The content of a record's WRITTEN_HEADER, after query and batch."""

    run: str
    task: int
    flags: int
    digest: bytes


def batch_prefix(identity: WriteIdentity) -> bytes:
    """The header prefix of every record of this micro-batch."""
    return f"{identity.query}/{identity.batch}/".encode()


def written_or_none(prefix: bytes, record: Stored) -> Written | None:
    """Decode the sink's header of `record`, or return None if it belongs to another batch.

    Only the last header of that name counts: a row may carry one from the topic it was read from.
    """
    for name, content in reversed(record.headers):
        if name != WRITTEN_HEADER:
            continue
        if content is None or not content.startswith(prefix):
            return None
        parts = content[len(prefix) :].split(b"/", 2)
        if len(parts) != 3 or len(parts[2]) != 1 + _ENCODED_DIGEST_SIZE:
            return None
        flags, digest = parts[2][:1], parts[2][1:]
        return Written(parts[0].decode(), int(parts[1]), int(flags), a2b_base64(digest))
    return None


def row_again(name: str, written: Written, record: Stored) -> RowToWrite:
    """Reconstruct the row that a record was written from."""
    headers = list(record.headers)
    last = max(index for index, (key, _) in enumerate(headers) if key == WRITTEN_HEADER)
    del headers[last]
    return RowToWrite(
        name,
        record.partition if written.flags & HAS_PARTITION else -1,
        record.key,
        record.value,
        headers,
        record.timestamp_ms if written.flags & HAS_TIMESTAMP else 0,
    )


class Mark(NamedTuple):
    """A mark, stored as the metadata of a committed offset; for a done topic, with a summary of its
    rows."""

    batch: int
    run: str
    is_done: bool = False
    row_count: int = 0
    checksum: int = 0

    def encode(self) -> str:
        """Encode as metadata; do not change: stored."""
        if not self.is_done:
            return f"{self.batch}:begun:{self.run}"
        return f"{self.batch}:done:{self.run}:{self.row_count}:{self.checksum:x}"

    @classmethod
    def parse_or_none(cls, metadata: str) -> Mark | None:
        """Decode the mark in `metadata`, or return None if it is not a mark."""
        match metadata.split(":"):
            case [batch, "begun", run]:
                return cls(int(batch), run)
            case [batch, "done", run, count, checksum]:
                return cls(
                    int(batch), run, is_done=True, row_count=int(count), checksum=int(checksum, 16)
                )
            case _:
                return None
