"""What the sink leaves in topics and in committed offsets: a header of each record, and marks.

Responsibilities: the stored formats and what identifies a row. Pure; `delivery.py` decides by it.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64, b2a_base64
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

WRITTEN_HEADER = "headrace-written"  # do not change: stored
GROUP_PREFIX = "headrace-sink"  # do not change: stored
DIGEST_SIZE = 12  # do not change: stored; at 10 million rows a collision has chance 1e-15
_ENCODED_DIGEST_SIZE = 16
CHECKSUM_MODULUS = 1 << (8 * DIGEST_SIZE)  # do not change: stored
COMMIT_TASK = -1  # the task that a batch's commit writes as
_HAS_PARTITION, _HAS_TIMESTAMP = 1, 2  # do not change: stored
_fixed = struct.Struct("<iiqii").pack  # do not change: digests are stored
_lengths = struct.Struct("<ii").pack


class Row(NamedTuple):
    """One record to write; `partition` -1 lets the key decide, `timestamp_ms` 0 is now."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class Stored(NamedTuple):
    """A record as a topic holds it."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int


class WriteIdentity(NamedTuple):
    """Which attempt of which task, in which run of which micro-batch of which query, writes."""

    query: str
    batch: int
    run: str
    task: int
    attempt: int = 0

    @property
    def group(self) -> str:
        """The group whose committed offsets carry this query's marks."""
        return f"{GROUP_PREFIX}.{self.query}"


def digest_of(row: Row) -> bytes:
    """What identifies a row's content: every field as the row gives it, but for the topic."""
    key, value, headers = row.key, row.value, row.headers
    body = _fixed(
        -1 if key is None else len(key),
        -1 if value is None else len(value),
        row.timestamp_ms,
        row.partition,
        len(headers),
    )
    if headers:
        for name, content in headers:
            key_bytes = name.encode()
            body += _lengths(len(key_bytes), -1 if content is None else len(content))
            body += key_bytes + (content or b"")
    return blake2b(body + (key or b"") + (value or b""), digest_size=DIGEST_SIZE).digest()


class Written(NamedTuple):
    """The content of a record's WRITTEN_HEADER, after query and batch."""

    run: str
    task: int
    flags: int
    digest: bytes


def batch_prefix(identity: WriteIdentity) -> bytes:
    """How the header of every record of this micro-batch begins."""
    return f"{identity.query}/{identity.batch}/".encode()


def written_or_none(prefix: bytes, record: Stored) -> Written | None:
    """What the sink noted in `record`, or None where it belongs to another batch.

    Only the last header of the name counts: a row may bring one along that it was read with.
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


def encoded(row: Row, digest: bytes) -> bytes:
    """The last part of a record's header: what the row gave itself, and its digest."""
    flags = (_HAS_PARTITION if row.partition >= 0 else 0) | (
        _HAS_TIMESTAMP if row.timestamp_ms else 0
    )
    return b"%d" % flags + b2a_base64(digest, newline=False)


def row_again(name: str, written: Written, record: Stored) -> Row:
    """The row that a record was written from."""
    headers = list(record.headers)
    last = max(index for index, (key, _) in enumerate(headers) if key == WRITTEN_HEADER)
    del headers[last]
    return Row(
        name,
        record.partition if written.flags & _HAS_PARTITION else -1,
        record.key,
        record.value,
        headers,
        record.timestamp_ms if written.flags & _HAS_TIMESTAMP else 0,
    )


class Mark(NamedTuple):
    """The metadata of a committed offset; of a done topic with what was written to it."""

    batch: int
    run: str
    is_done: bool = False
    row_count: int = 0
    checksum: int = 0

    def encode(self) -> str:
        """As metadata; do not change: stored."""
        if not self.is_done:
            return f"{self.batch}:begun:{self.run}"
        return f"{self.batch}:done:{self.run}:{self.row_count}:{self.checksum:x}"

    @classmethod
    def parse_or_none(cls, metadata: str) -> Mark | None:
        """The mark in `metadata`, or None where it is not one."""
        match metadata.split(":"):
            case [batch, "begun", run]:
                return cls(int(batch), run)
            case [batch, "done", run, count, checksum]:
                return cls(
                    int(batch), run, is_done=True, row_count=int(count), checksum=int(checksum, 16)
                )
            case _:
                return None
