"""One ledger of a partition's chain, as the log sees it while it runs.

Invariants: knows one ledger's offsets and positions. `load_by_scan` rebuilds from the
records themselves what a footer would say, and proves each batch's CRC and place on the way.
Where the store keeps notes, the log notes its state in the open ledger from time to time, in the
form of a footer whose index holds only what came since the note before; a scan begins at the
newest. Batches that this process neither wrote nor proved are proved when they are first read, so
damaged bytes are reported instead of served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import BatchCorrupt, DataCorrupt
from headrace.log.aborted_index import ENTRIES_MAX, AbortedIndex
from headrace.log.footer import Footer, decode_footer, encode_footer
from headrace.log.named_sequences import named_sequences_in
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.records.batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NAMED,
    NO_PRODUCER_ID,
    Buffer,
    is_intact,
    iterate_headers,
    read_header,
)
from headrace.records.marker import read_marker
from headrace.storage.ledger import KeepsNotes, LedgerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.facts import LedgerLink
    from headrace.records.batch import BatchHeader
    from headrace.storage.ledger import LedgerStore

SCAN_BYTES: Final = 1024 * 1024
NOTE_INTERVAL_BYTES = 16 * 1024 * 1024  # not Final: tests lower it, also in the compiled core
"""How much who takes over an open ledger reads at most, where the store keeps notes."""
NO_TRANSACTION: Final = 2**63 - 1
"""Greater than any offset: where no transaction is open."""
NOTE_RATIO = 16
"""Notes of many producers are large, and come less often: they are a 16th of the bytes at most."""


class Segment:
    """A ledger's range of offsets and positions, and its index."""

    __slots__ = (
        "aborted",
        "base_offset",
        "end_offset",
        "end_position",
        "first_append_ms",
        "first_open_offset",
        "footer",
        "index",
        "is_compacted",
        "is_index_loaded",
        "is_local",
        "is_offloaded",
        "is_sealed",
        "leader_epoch",
        "ledger",
        "max_timestamp_ms",
        "note_at",
        "noted_aborted_count",
        "noted_count",
        "proved_from",
        "proved_to",
        "safe_max_timestamp_ms",
    )

    def __init__(self, ledger: LedgerId, base_offset: int, leader_epoch: int) -> None:
        self.ledger = ledger
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.end_offset = base_offset
        self.end_position = 0
        self.first_append_ms = -1
        self.max_timestamp_ms = -1
        self.safe_max_timestamp_ms = -1
        """Of the records that are acknowledged: what it falls back to when an append fails."""
        self.is_sealed = False
        """Whether storage has sealed it."""
        self.footer: bytes | None = None
        """What it is to be sealed with, where that was tried and failed: an attempt may count."""
        self.is_compacted = False
        """Whether offsets are missing between its batches; known with the index."""
        self.is_offloaded = False
        """Whether object storage holds a copy, and the chain says so."""
        self.is_local = True
        """Whether the ledger store itself still holds it."""
        self.index = OffsetIndex()
        self.is_index_loaded = True
        """Whether `index`, `aborted` and `first_open_offset` are known."""
        self.aborted: AbortedIndex | None = None
        """The transactions that markers in it abort; None where there are none."""
        self.first_open_offset = NO_TRANSACTION
        """Where the first transaction began that is open at its end; of a closed ledger."""
        self.proved_from = 0
        self.proved_to = 0
        self.note_at = NOTE_INTERVAL_BYTES
        """Where in the ledger the next note is due."""
        self.noted_count = 0
        """Entries of the index that notes hold."""
        self.noted_aborted_count = 0

    @property
    def newest_ms(self) -> int:
        """How new it is: the records' largest timestamp; without any, when it was begun."""
        return self.max_timestamp_ms if self.max_timestamp_ms >= 0 else self.first_append_ms

    def corrupt(self, position: int, problem: str) -> DataCorrupt:
        """The error for damaged bytes at `position`."""
        return DataCorrupt(
            f"ledger {self.ledger} is damaged at byte {position} ({problem}): the records there are"
            " not served; restore the ledger's file from a backup or a replica",
            ledger=self.ledger,
            position=position,
        )

    def verify_crc(self, data: Buffer, position: int) -> None:
        """Check the CRC of every batch in `data`, read at `position`, unless that was done.

        Raises DataCorrupt.
        """
        end = position + len(data)
        if self.proved_from <= position and end <= self.proved_to:
            return
        proved = 0
        expected = self.base_offset if position == 0 else self.index.offset_at(position)
        try:
            for at, header in iterate_headers(data):
                if not self.base_offset <= header.base_offset < self.end_offset:
                    raise self.corrupt(position + at, f"offset {header.base_offset} is foreign")
                if expected is not None and self.is_compacted:
                    expected = self._next_compacted(header, position + at, expected)
                self._check_placement(header, position + at, expected)
                expected = header.last_offset + 1
                if not is_intact(data, at, header):
                    raise self.corrupt(position + at, "the CRC of a batch does not match")
                proved = at + header.size
        except BatchCorrupt as error:
            raise self.corrupt(position + proved, str(error)) from error
        end = position + proved
        if self.proved_from <= position <= self.proved_to:
            self.proved_to = max(self.proved_to, end)
        else:
            self.proved_from, self.proved_to = position, end

    def _next_compacted(self, header: BatchHeader, position: int, least: int) -> int:
        """The base offset that a batch of a compacted ledger must have, as far as it is known."""
        indexed = self.index.offset_at(position)
        return max(header.base_offset, least) if indexed is None else indexed

    def _check_placement(self, header: BatchHeader, position: int, expected: int | None) -> None:
        """Check what lies before the part of a batch that its CRC covers."""
        if header.magic != MAGIC:
            raise self.corrupt(position, f"a batch of magic {header.magic}")
        if expected is not None and header.base_offset != expected:
            problem = f"offset {header.base_offset} where {expected} should be"
            raise self.corrupt(position, problem)
        if header.leader_epoch != self.leader_epoch:
            problem = f"leader epoch {header.leader_epoch} where {self.leader_epoch} should be"
            raise self.corrupt(position, problem)

    async def load_by_scan(
        self, store: LedgerStore, end: int, producers: ProducerState, seen_ms: int
    ) -> ProducerState:
        """Read the batches up to byte `end` and rebuild index and producer state from them.

        `producers` are those before this ledger; those behind it are returned. What a note in the
        ledger tells is not read again. `seen_ms` counts as the time at which the producers were
        last seen, and records stored that tell none; 0: not known. Raises DataCorrupt.
        """
        self.index, self.aborted = OffsetIndex(), None
        self.end_offset, self.end_position = self.base_offset, 0
        noted = await self._load_notes(store, end)
        if noted is not None:  # there may be no readers left
            producers = noted
        begin = position = self.end_position
        want = SCAN_BYTES
        while position < end:
            data = await store.read(self.ledger, position, min(want, end - position))
            consumed = self._scan(data, position, producers, seen_ms)
            if consumed:
                position, want = position + consumed, SCAN_BYTES
                continue
            if want >= end - position or len(data) < HEADER_SIZE:
                raise self.corrupt(position, "a batch reaches past the end")
            want = max(want * 2, read_header(data).size)
        self.max_timestamp_ms = self.safe_max_timestamp_ms = self.index.max_timestamp_ms
        self.first_open_offset = producers.first_open(NO_TRANSACTION)
        self.proved_from, self.proved_to = begin, end
        self.is_index_loaded = True
        return producers

    def note(self, producers: ProducerState) -> bytes:
        """What is to be noted in the ledger at its present end; `producers` as they are there."""
        index, aborted = self.index.since(self.noted_count), self.aborted
        if aborted is not None:
            noted_count, self.noted_aborted_count = self.noted_aborted_count, len(aborted)
            aborted = aborted.since(noted_count)
        footer = Footer(self.end_offset, self.first_append_ms, index, producers, aborted)
        data = encode_footer(footer)
        self.noted_count = len(self.index.offsets)
        self.note_at = self.end_position + max(NOTE_INTERVAL_BYTES, NOTE_RATIO * len(data))
        return data

    async def _load_notes(self, store: LedgerStore, end: int) -> ProducerState | None:
        """Go to the newest note; its producers, or None where there are no notes."""
        footer: Footer | None = None
        if isinstance(store, KeepsNotes):
            for note in await store.notes(self.ledger):
                if note.position > end:
                    raise self.corrupt(end, f"a note lies at byte {note.position}, behind the end")
                footer = decode_footer(note.data)
                self.index.extend(footer.offset_index)
                if footer.aborted is not None:
                    self.abort_all(footer.aborted)
                self.end_offset, self.end_position = footer.end_offset, note.position
                self.first_append_ms = footer.first_append_ms
        return None if footer is None else footer.producers

    def _scan(self, data: Buffer, position: int, producers: ProducerState, seen_ms: int) -> int:
        consumed = 0
        try:
            for at, header in iterate_headers(data):
                self._check_placement(header, position + at, self.end_offset)
                if not is_intact(data, at, header):
                    raise self.corrupt(position + at, "the CRC of a batch does not match")
                self.index.add(header.base_offset, position + at, header.max_timestamp_ms)
                if header.attributes & CONTROL:
                    self._scan_marker(data, at, header, producers, seen_ms)
                elif header.producer_id != NO_PRODUCER_ID:
                    producers.apply(header, header.base_offset, seen_ms, header.base_offset)
                if header.attributes & NAMED:
                    named = named_sequences_in(data, at, header)
                    producers.named.apply(named, header.base_offset, header.base_offset)
                if self.first_append_ms < 0:
                    # Without a time of theirs, records are taken to be as old as the scan.
                    told_ms = header.first_timestamp_ms
                    self.first_append_ms = told_ms if told_ms >= 0 else seen_ms or -1
                consumed = at + header.length + LOG_OVERHEAD
                self.end_offset = header.last_offset + 1
                self.end_position = position + consumed
        except BatchCorrupt as error:
            raise self.corrupt(position + consumed, str(error)) from error
        return consumed

    def _scan_marker(
        self,
        data: Buffer,
        at: int,
        header: BatchHeader,
        producers: ProducerState,
        seen_ms: int,
    ) -> None:
        marker = read_marker(data, at)
        if marker is None:
            return
        offset = header.base_offset
        first = producers.apply_marker(header, marker.coordinator_epoch, offset, seen_ms, offset)
        if first is not None and not marker.is_commit:
            self.abort(header.producer_id, first, offset, producers.first_open(offset + 1))

    def abort(
        self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int
    ) -> None:
        """The marker at `marker_offset` aborts a transaction; see AbortedIndex."""
        if self.aborted is None:
            self.aborted = AbortedIndex()
        self.aborted.add(producer_id, first_offset, marker_offset, stable_offset)

    def abort_all(self, entries: AbortedIndex) -> None:
        """Take over the entries that follow."""
        if self.aborted is None:
            self.aborted = AbortedIndex()
        self.aborted.extend(entries)

    @property
    def is_aborted_index_full(self) -> bool:
        """Whether further aborted transactions belong in another ledger."""
        return self.aborted is not None and len(self.aborted) >= ENTRIES_MAX

    def base_behind(self, link: LedgerLink, log_start_offset: int, *, can_shrink: bool) -> int:
        """Where the ledger of `link` begins, which follows this one.

        The chain knows the least offset at which it can begin. If this one ends earlier, records
        are gone. With `flush.ms` a loss of power may do that (`can_shrink`), and an empty ledger
        takes up where they ended; one that holds records is found out by their offsets. Below the
        log's start it is of no interest. Otherwise it is damage. Raises DataCorrupt.
        """
        base = max(self.end_offset, min(link.base_offset, log_start_offset))
        if base < link.base_offset and (link.is_sealed or not can_shrink):
            problem = f"it ends at offset {self.end_offset}, what follows at {link.base_offset}"
            raise self.corrupt(self.end_position, problem)
        return base

    def encode_footer(self, producers: ProducerState) -> bytes:
        """What it is sealed with; `producers` as they are at its end."""
        self.first_open_offset = producers.first_open(NO_TRANSACTION)
        return encode_footer(
            Footer(
                self.end_offset,
                self.first_append_ms,
                self.index,
                producers,
                self.aborted,
                self.is_compacted,
            )
        )

    def unload_index(self) -> None:
        """Give the memory of a sealed ledger's index back: `load_index` reads it again."""
        assert self.is_sealed, "the index of what is written to is nowhere else"
        self.index, self.aborted, self.is_index_loaded = OffsetIndex(), None, False

    @property
    def index_entry_count(self) -> int:
        """Entries of its indexes that are in memory."""
        return len(self.index.positions) + (0 if self.aborted is None else len(self.aborted))

    async def knows_producers(self, store: LedgerStore) -> bool:
        """Whether a footer or a note in it tells all producers, those before it included."""
        if (await store.recover(self.ledger)).footer is not None:
            return True
        return isinstance(store, KeepsNotes) and bool(await store.notes(self.ledger))

    async def load_index(
        self, store: LedgerStore, before: ProducerState | None = None, seen_ms: int = 0
    ) -> ProducerState:
        """Take the index of a sealed ledger from its footer, or scan for it; its producers.

        `before`: as they were at its beginning, for a ledger that does not know them; it is
        changed. `seen_ms` as for a scan. Raises DataCorrupt, also where the ledger does not end as
        its chain says.
        """
        known_end = (self.end_offset, self.end_position)
        info = await store.recover(self.ledger)
        if info.footer is not None:
            footer = decode_footer(info.footer)
            self.index = footer.offset_index
            self.end_offset, self.end_position = footer.end_offset, info.end
            self.first_append_ms = footer.first_append_ms
            self.max_timestamp_ms = footer.offset_index.max_timestamp_ms
            self.aborted, producers = footer.aborted, footer.producers
            self.is_compacted = footer.is_compacted
            self.first_open_offset = producers.first_open(NO_TRANSACTION)
        else:
            # Aside: readers of this segment go by its end while its bytes are read.
            scanned = Segment(self.ledger, self.base_offset, self.leader_epoch)
            before = ProducerState() if before is None else before
            producers = await scanned.load_by_scan(store, info.end, before, seen_ms)
            self.index, self.aborted = scanned.index, scanned.aborted
            self.first_open_offset = scanned.first_open_offset
            self.end_offset, self.end_position = scanned.end_offset, scanned.end_position
            self.max_timestamp_ms = scanned.max_timestamp_ms
            if self.first_append_ms < 0:
                self.first_append_ms = scanned.first_append_ms
            self.proved_from, self.proved_to = scanned.proved_from, scanned.proved_to
        if (self.end_offset, self.end_position) != known_end:
            found_end = self.end_position
            self.end_offset, self.end_position = known_end
            self.is_index_loaded = False
            raise self.corrupt(found_end, f"it ends there, and not at byte {known_end[1]}")
        self.is_index_loaded = True
        return producers


def sealed_segment(link: LedgerLink) -> Segment:
    """A sealed ledger as its chain entry describes it; its index is read at first use."""
    segment = Segment(LedgerId(link.ledger), link.base_offset, link.leader_epoch)
    assert link.end_offset is not None
    segment.end_offset = link.end_offset
    segment.end_position = link.size_bytes or 0
    segment.max_timestamp_ms = -1 if link.max_timestamp_ms is None else link.max_timestamp_ms
    segment.first_append_ms = -1 if link.first_timestamp_ms is None else link.first_timestamp_ms
    segment.is_sealed = True
    segment.is_offloaded = link.offloaded_ms is not None
    segment.is_local = link.local_deleted_ms is None
    segment.is_index_loaded = False
    return segment


async def producers_behind(
    segments: Sequence[Segment], store: LedgerStore, now_ms: int
) -> ProducerState:
    """The producers as they were when the last of these ended.

    A ledger that was recovered over shared storage has no footer, although it is sealed: then those
    before it tell, back to one that has.
    """
    first = len(segments) - 1
    while first > 0 and not await segments[first].knows_producers(store):
        first -= 1
    producers = ProducerState()
    for segment in segments[max(0, first) :]:
        producers = await segment.load_index(store, producers, now_ms)
    return producers


async def load_index_of(segments: Sequence[Segment], at: int, store: LedgerStore) -> None:
    """Load the indexes of a closed ledger, also where it does not know the producers before it.

    Without them a scan would not know which transactions its markers end.
    """
    segment, before = segments[at], None
    if at and not await segment.knows_producers(store):
        unloaded = [one for one in segments[:at] if not one.is_index_loaded]
        before = await producers_behind(segments[:at], store, 0)
        for one in unloaded:
            if one.is_index_loaded:
                one.unload_index()
    await segment.load_index(store, before)
