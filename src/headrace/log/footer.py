"""The footer of a sealed ledger: index, producers and transactions.

Invariants: bytes in, bytes out; the storage layer protects them with a checksum. The layout is in
`docs/FORMAT.md`. Do not change: stored. A footer is a head and tagged sections, so a later version
can add sections that this one skips, or rejects if they are required.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.log.aborted_index import AbortedIndex
from headrace.log.named_sequences import NamedSequences
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.storage.ledger import FOOTER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Generator

VERSION = 2
_WITHOUT_SECTIONS = 1
_HEAD = Struct(">BqqII")
"""Head of version 1."""
_SECTIONED_HEAD = Struct(">BqqB")
_SECTION = Struct(">HHI")
REQUIRED = 1
INDEX, PRODUCERS, OPEN, ABORTED, COORDINATORS, COMPACTED, NAMED = 1, 2, 3, 4, 5, 6, 7
_NOTHING_OPEN = bytes(4)
"""A count of 0."""
_KNOWN = frozenset({INDEX, PRODUCERS, OPEN, ABORTED, COORDINATORS, COMPACTED, NAMED})


class Footer(NamedTuple):
    """The contents of a sealed ledger's footer."""

    end_offset: int
    first_append_ms: int
    offset_index: OffsetIndex
    producers: ProducerState
    aborted: AbortedIndex | None = None
    is_compacted: bool = False
    """Whether there are gaps between its batches."""


class LedgerContents(NamedTuple):
    """What a reader of a sealed ledger needs of its footer."""

    end_offset: int
    offset_index: OffsetIndex
    aborted: AbortedIndex | None
    is_compacted: bool
    first_open_offset: int | None
    """The first offset of the earliest transaction that is open at its end; None: none is."""


def encode_footer(footer: Footer, bytes_max: int = FOOTER_BYTES_MAX) -> bytes:
    """Encode within the storage limit: if necessary, the oldest producers are dropped."""
    steps = encode_in_steps(footer, bytes_max)
    while (data := take_step(steps)) is None:
        pass
    return data


def take_step(steps: Generator[None, None, bytes]) -> bytes | None:
    """Take one step of an encoding; its bytes after the last one, None before."""
    try:
        next(steps)
    except StopIteration as done:
        data: bytes = done.value
        return data
    return None


def encode_in_steps(
    footer: Footer, bytes_max: int = FOOTER_BYTES_MAX
) -> Generator[None, None, bytes]:
    """As `encode_footer`, in steps of about a millisecond. Nothing in it may change meanwhile."""
    producers = footer.producers
    sections = [(INDEX, REQUIRED, footer.offset_index.encode())]
    if footer.aborted is not None and len(footer.aborted):
        sections.append((ABORTED, REQUIRED, footer.aborted.encode()))
    if producers.has_open:
        sections.append((OPEN, REQUIRED, (yield from producers.encode_open())))
    if coordinators := (yield from producers.encode_coordinators()):
        sections.append((COORDINATORS, 0, coordinators))
    if producers.named:
        sections.append((NAMED, 0, producers.named.encode()))
    if footer.is_compacted:
        sections.append((COMPACTED, REQUIRED, b""))
    size = _SECTIONED_HEAD.size + sum(_SECTION.size + len(data) for _, _, data in sections)
    left = bytes_max - size - _SECTION.size
    sections.append((PRODUCERS, REQUIRED, (yield from producers.encode(left))))
    yield  # they may be 16 MB
    parts = [
        _SECTIONED_HEAD.pack(VERSION, footer.end_offset, footer.first_append_ms, len(sections))
    ]
    for tag, flags, data in sorted(sections):
        parts += (_SECTION.pack(tag, flags, len(data)), data)
    return b"".join(parts)


def decode_footer(data: bytes) -> Footer:
    """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
    if not data:
        raise DataCorrupt("a ledger footer is truncated")
    if data and data[0] == _WITHOUT_SECTIONS:
        return _decode_without_sections(data)
    end_offset, first_append_ms, sections = _parts(data)
    producers = ProducerState.decode(sections[PRODUCERS])
    if COORDINATORS in sections:
        producers.decode_coordinators(sections[COORDINATORS])
    if OPEN in sections:
        producers.decode_open(sections[OPEN])
    if NAMED in sections:
        producers.named = NamedSequences.decode(sections[NAMED])
    aborted = AbortedIndex.decode(sections[ABORTED]) if ABORTED in sections else None
    index = OffsetIndex.decode(sections[INDEX])
    is_compacted = COMPACTED in sections
    return Footer(end_offset, first_append_ms, index, producers, aborted, is_compacted)


def decode_contents(data: bytes) -> LedgerContents:
    """The same without the states of producers, which may take most of the memory.

    Raises DataCorrupt, FormatUnsupported.
    """
    if data and data[0] == _WITHOUT_SECTIONS:
        footer = _decode_without_sections(data)
        return LedgerContents(footer.end_offset, footer.offset_index, None, False, None)
    end_offset, _, sections = _parts(data)
    open_producers = ProducerState()
    open_producers.decode_open(sections.get(OPEN, _NOTHING_OPEN))
    return LedgerContents(
        end_offset,
        OffsetIndex.decode(sections[INDEX]),
        AbortedIndex.decode(sections[ABORTED]) if ABORTED in sections else None,
        COMPACTED in sections,
        next(iter(open_producers.open_offsets), None),
    )


def _parts(data: bytes) -> tuple[int, int, dict[int, bytes]]:
    """(end offset, time of the first append, sections). Raises DataCorrupt, FormatUnsupported."""
    version = data[0] if data else VERSION
    if version != VERSION:
        raise FormatUnsupported(
            f"a ledger footer has version {version}, this version of Headrace supports"
            f" {_WITHOUT_SECTIONS} to {VERSION}: the partition is not served; start a newer one",
            version=version,
        )
    if len(data) < _SECTIONED_HEAD.size:
        raise DataCorrupt("a ledger footer is truncated")
    _, end_offset, first_append_ms, count = _SECTIONED_HEAD.unpack_from(data)
    sections = _sections(data, count)
    if INDEX not in sections or PRODUCERS not in sections:
        raise DataCorrupt("a ledger footer lacks its index or its producers")
    return end_offset, first_append_ms, sections


def _sections(data: bytes, count: int) -> dict[int, bytes]:
    """The bytes of each known section."""
    found: dict[int, bytes] = {}
    at = _SECTIONED_HEAD.size
    for _ in range(count):
        if at + _SECTION.size > len(data):
            raise DataCorrupt("a ledger footer is truncated")
        tag, flags, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if tag in found:
            raise DataCorrupt(f"a ledger footer has duplicate section {tag}")
        if tag in _KNOWN:
            found[tag] = data[at : at + size]
        elif flags & REQUIRED:
            raise FormatUnsupported(
                f"a ledger footer has the required section {tag}, which this version of Headrace"
                " does not support: the partition is not served; start a newer one",
                section=tag,
            )
        at += size
    if at != len(data):
        raise DataCorrupt("a ledger footer has the wrong size")
    return found


def _decode_without_sections(data: bytes) -> Footer:
    if len(data) < _HEAD.size:
        raise DataCorrupt("a ledger footer is truncated")
    _, end_offset, first_append_ms, index_size, producers_size = _HEAD.unpack_from(data)
    if len(data) != _HEAD.size + index_size + producers_size:
        raise DataCorrupt("a ledger footer has the wrong size")
    index = OffsetIndex.decode(data[_HEAD.size : _HEAD.size + index_size])
    producers = ProducerState.decode(data[_HEAD.size + index_size :])
    return Footer(end_offset, first_append_ms, index, producers)
