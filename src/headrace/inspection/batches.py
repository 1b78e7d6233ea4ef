"""Parses the record batches in a range of bytes, including damaged ones.

Invariants: bytes in, values out; reads through a function. A batch whose CRC does not match is
returned and marked; bytes where no batch can begin are returned as a gap up to the next valid
batch. So one damaged byte hides one batch, not all that follow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    is_intact,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Read = Callable[[int, int], bytes]
"""(position, size) -> the bytes there; fewer at the end."""
CHUNK_BYTES: Final = 1 << 20
_SEARCH_BYTES: Final = 4 << 20
_MAGIC_AT: Final = 16


class FoundBatch(NamedTuple):
    """A complete batch."""

    position: int
    header: BatchHeader
    data: bytes
    is_intact: bool

    @property
    def end(self) -> int:
        """The position after it."""
        return self.position + len(self.data)


class Gap(NamedTuple):
    """Bytes in which no batch was found."""

    position: int
    end: int
    problem: str


def batches_in(
    read: Read, start: int, end: int, boundaries: Sequence[int] = ()
) -> Iterator[FoundBatch | Gap]:
    """Yield all batches in [start, end) of what `read(position, size)` returns.

    `boundaries`: ascending positions at which a batch is known to begin.
    """
    position = start
    chunk, chunk_at = b"", start
    while position < end:
        if position + HEADER_SIZE > chunk_at + len(chunk):
            chunk, chunk_at = read(position, min(CHUNK_BYTES, end - position)), position
        at = position - chunk_at
        problem = _problem(chunk, at, end - position)
        size = 0 if problem else read_header(chunk, at).size
        if not problem and at + size > len(chunk):
            chunk, chunk_at, at = read(position, max(size, CHUNK_BYTES)), position, 0
            if len(chunk) < size:
                problem = f"{size} bytes long, of which {len(chunk)} are present"
        if not problem:
            header = read_header(chunk, at)
            data = chunk[at : at + size]
            whole = is_intact(data, 0, header)
            if whole or _begins(read, position + size, end):
                yield FoundBatch(position, header, data, whole)
                position += size
                continue
            problem = "the CRC does not match, and no batch begins where it ends"
        following = _next(read, position, end, boundaries)
        yield Gap(position, following, problem)
        position = following


def _problem(data: bytes, at: int, left: int) -> str:
    """Return why no batch begins here, or an empty string."""
    if left < HEADER_SIZE or len(data) - at < HEADER_SIZE:
        return f"{min(left, len(data) - at)} bytes are left, fewer than a batch header"
    header = read_header(data, at)
    if header.magic != MAGIC:
        return f"magic {header.magic}, expected {MAGIC}"
    if header.length < HEADER_SIZE - LOG_OVERHEAD:
        return f"invalid batch length {header.length}"
    if header.size > left:
        return f"a batch of {header.size} bytes, of which {left} are present"
    return ""


def _begins(read: Read, position: int, end: int) -> bool:
    """Return whether a batch may begin at `position`, or the bytes end there."""
    return position == end or not _problem(read(position, HEADER_SIZE), 0, end - position)


def _next(read: Read, position: int, end: int, boundaries: Sequence[int]) -> int:
    """Return the next position at which a valid batch begins, or `end`."""
    at = bisect_right(boundaries, position)
    limit = boundaries[at] if at < len(boundaries) else end
    position += 1
    while position < limit:
        data = read(position, min(_SEARCH_BYTES, limit - position))
        found = _first_batch(read, data, position, end)
        if found is not None:
            return found
        if len(data) <= HEADER_SIZE:
            break
        position += len(data) - HEADER_SIZE
    return limit


def _first_batch(read: Read, data: bytes, start: int, end: int) -> int | None:
    at = data.find(MAGIC, _MAGIC_AT)
    while at >= 0:
        candidate = at - _MAGIC_AT
        position = start + candidate
        if not _problem(data, candidate, end - position):
            header = read_header(data, candidate)
            plausible = header.last_offset_delta >= 0 and header.record_count >= 0
            if plausible and is_intact(read(position, header.size), 0, header):
                return position
        at = data.find(MAGIC, at + 1)
    return None
