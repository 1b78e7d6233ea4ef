"""Digests and encodings of the sink's rows: what it does for each row, in one compiled module.

Invariants: pure. The digest and the header's content are formats of `written.py`; a body is that of
a record in a batch (KIP-98). A row costs 1 us compiled and 3 us as pure Python.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.pipeline.written import DIGEST_SIZE, HAS_PARTITION, HAS_TIMESTAMP
from headrace.records.partitioner import partition_of_key
from headrace.records.varints import write_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pipeline.written import RowToWrite

ANYWHERE: Final = -1
_fixed = Struct("<iiqii").pack  # do not change: digests are stored
_lengths = Struct("<ii").pack
_NULL: Final = write_varint(-1)


def encode_rows(rows: Sequence[RowToWrite], prefix: bytes) -> tuple[list[bytes], list[bytes], int]:
    """The digest of each row, the content of its WRITTEN_HEADER, and the digests' sum.

    A digest covers every field of the row except the topic. The content is `prefix`, which fields
    the row set itself, and its digest.
    """
    digests: list[bytes] = []
    written: list[bytes] = []
    total = 0
    for _topic, partition, key, value, headers, timestamp_ms in rows:
        body: bytes = _fixed(
            -1 if key is None else len(key),
            -1 if value is None else len(value),
            timestamp_ms,
            partition,
            len(headers),
        )
        for name, content in headers:
            name_bytes = name.encode()
            body += _lengths(len(name_bytes), -1 if content is None else len(content))
            body += name_bytes + (content or b"")
        body += (key or b"") + (value or b"")
        digest: bytes = blake2b(body, digest_size=DIGEST_SIZE).digest()
        digests.append(digest)
        total += int.from_bytes(digest, "big")
        written.append(prefix + encoded(partition, timestamp_ms, digest))
    return digests, written, total


def encoded(partition: int, timestamp_ms: int, digest: bytes) -> bytes:
    """The end of a record's header: which fields the row set itself, and its digest."""
    flags = (HAS_PARTITION if partition >= 0 else 0) | (HAS_TIMESTAMP if timestamp_ms else 0)
    return b"0123"[flags : flags + 1] + b2a_base64(digest, newline=False)


def bodies_of(rows: Sequence[RowToWrite], name: str, contents: Sequence[bytes]) -> list[bytes]:
    """The body of each row's record: key, value and headers, with one more header, `name`."""
    name_bytes = name.encode()
    last = write_varint(len(name_bytes)) + name_bytes
    found: list[bytes] = []
    for index in range(len(rows)):
        _topic, _partition, key, value, headers, _timestamp_ms = rows[index]
        content = contents[index]
        own = b"" if not headers else _headers(headers)
        found.append(
            b"".join(
                (
                    _NULL if key is None else write_varint(len(key)) + key,
                    _NULL if value is None else write_varint(len(value)) + value,
                    write_varint(len(headers) + 1),
                    own,
                    last,
                    write_varint(len(content)),
                    content,
                )
            )
        )
    return found


def places_of(rows: Sequence[RowToWrite], count: int) -> list[int]:
    """The partition of each row, by its key unless the row names one; ANYWHERE without both."""
    found: list[int] = []
    for _topic, partition, key, _value, _headers, _timestamp_ms in rows:
        if partition >= 0:
            found.append(partition)
        else:
            found.append(ANYWHERE if key is None else partition_of_key(key, count))
    return found


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    parts: list[bytes] = []
    for name, content in headers:
        name_bytes = name.encode()
        parts += (write_varint(len(name_bytes)), name_bytes)
        parts.append(_NULL if content is None else write_varint(len(content)) + content)
    return b"".join(parts)
