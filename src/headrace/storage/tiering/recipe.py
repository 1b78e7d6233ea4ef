"""Plans a ledger's recipe, and rebuilds the ledger's bytes from it.

Invariants: pure, apart from the rows that it asks for. A batch is borrowed only if what is rebuilt
from the table's rows equals its bytes: offsets, timestamps, keys, values, headers, and their
encoding. Everything else is kept: compressed batches, control batches, records of aborted
transactions, batches whose timestamps the broker replaced.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.records.batch import COMPRESSION_MASK, HEADER, HEADER_SIZE, BatchHeader
from headrace.records.codec import header_name_bytes
from headrace.records.varints import write_varint
from headrace.storage.tiering.recipe_format import KEPT, RUN_BYTES, Run, TableFile
from headrace.storage.tiering.table_rows import offsets_of
from headrace.storage.tiering.table_sources import unreadable

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from headrace.storage.ledger import Buffer
    from headrace.storage.tiering.table_rows import Rows, TableRows

STORED_SHARE_MAX: Final = 0.25
"""A ledger of which more than this would be stored in its recipe keeps its object."""


class Source(NamedTuple):
    """A data file, and the offset of each of its rows, in ascending order."""

    number: int
    file: TableFile
    offsets: array[int]


def sources_of(files: Sequence[TableFile], rows: TableRows) -> list[Source]:
    """The files that rows can be borrowed from: those in the order of offsets, without duplicates.

    Raises StorageUnavailable, DataCorrupt.
    """
    found = [
        Source(number, file, offsets_of(file, rows.sources)) for number, file in enumerate(files)
    ]
    return [one for one in found if _is_ascending(one.offsets)]


def _is_ascending(offsets: array[int]) -> bool:
    return all(map(int.__lt__, offsets, offsets[1:]))


class RecipePlan:
    """Collects the runs of one ledger, whose batches are added in order."""

    def __init__(self, sources: Sequence[Source], rows: TableRows) -> None:
        self._sources = [one for one in sources if one.offsets]
        self._rows = rows
        self.runs: list[Run] = []
        self.stored_size = 0
        self.borrowed_records = 0
        self._kept_compressed = self._kept_other = 0
        self._end = 0
        self._next_row = 0

    def add(self, batch: Buffer, header: BatchHeader) -> bytes:
        """Add the ledger's next batch; returns the bytes to store for it.

        Raises StorageUnavailable, DataCorrupt.
        """
        found = self._found(header)
        if found is not None:
            number, file, row = found
            rows = self._rows.read(file, row, header.record_count)
            head = bytes(batch[:HEADER_SIZE])
            if rebuild(head, rows) == batch:
                self.borrowed_records += header.record_count
                self._extend(header.size, head, number, row)
                self._next_row = row + header.record_count
                return head
        if header.attributes & COMPRESSION_MASK:
            self._kept_compressed += header.size
        else:
            self._kept_other += header.size
        stored = bytes(batch)
        self._extend(header.size, stored, KEPT, 0)
        return stored

    def why_kept(self) -> str:
        """What most of the kept bytes are."""
        if self._kept_compressed >= self._kept_other:
            return "its batches are compressed"
        return "the table's rows do not give the same bytes"

    def _found(self, header: BatchHeader) -> tuple[int, TableFile, int] | None:
        if header.attributes & COMPRESSION_MASK or header.is_control or not header.record_count:
            return None
        for source in self._sources:
            row = bisect_left(source.offsets, header.base_offset)
            last = row + header.record_count - 1
            if (
                last < len(source.offsets)
                and source.offsets[row] == header.base_offset
                and source.offsets[last] == header.base_offset + header.record_count - 1
            ):
                return source.number, source.file, row
        return None

    def _extend(self, size: int, stored: bytes, file: int, row: int) -> None:
        last = self.runs[-1] if self.runs else None
        if (
            last is not None
            and last.file == file
            and last.size < RUN_BYTES
            and (file == KEPT or row == self._next_row)
        ):
            self.runs[-1] = last._replace(
                size=last.size + size, stored_size=last.stored_size + len(stored)
            )
        else:
            self.runs.append(Run(self._end, size, self.stored_size, len(stored), file, row))
        self._end += size
        self.stored_size += len(stored)


def rebuild_run(run: Run, stored: bytes, files: Sequence[TableFile], rows: TableRows) -> bytes:
    """The bytes of a run. Raises StorageUnavailable, DataCorrupt; the caller verifies the bytes."""
    if run.file == KEPT:
        return stored
    count = sum(header.record_count for header in _headers(stored))
    found = rows.read(files[run.file], run.first_row, count)
    with rows.turns.taken():
        rebuilt = rebuild(stored, found)
    if len(rebuilt) != run.size:
        raise unreadable(files[run.file], f"its rows give {len(rebuilt)} of {run.size} bytes")
    return rebuilt


def rebuild(headers: bytes, rows: Rows) -> bytes:
    """The batches with these headers and records, in order."""
    parts: list[bytes] = []
    at = 0
    for number, header in enumerate(_headers(headers)):
        parts.append(headers[number * HEADER_SIZE : (number + 1) * HEADER_SIZE])
        _encode(parts, rows.part(at, at + header.record_count), header)
        at += header.record_count
    return b"".join(parts)


def _encode(parts: list[bytes], rows: Rows, header: BatchHeader) -> None:
    """Append the records of a batch, encoded like `codec.encode_batch` does."""
    base, first_ms = header.base_offset, header.first_timestamp_ms
    varint = write_varint
    for offset, time_ms, key, value, own in zip(*rows, strict=True):
        fields = [b"\0", varint(time_ms - first_ms), varint(offset - base)]
        fields += (_NULL,) if key is None else (varint(len(key)), key)
        fields += (_NULL,) if value is None else (varint(len(value)), value)
        if own:
            fields.append(varint(len(own)))
            for name, content in own:
                text = header_name_bytes(name)
                fields += (varint(len(text)), text)
                fields += (_NULL,) if content is None else (varint(len(content)), content)
        else:
            fields.append(_ZERO)
        parts.append(varint(sum(map(len, fields))))
        parts += fields


_NULL: Final = write_varint(-1)
_ZERO: Final = write_varint(0)


def _headers(stored: bytes) -> Iterator[BatchHeader]:
    return map(BatchHeader._make, HEADER.iter_unpack(stored))
