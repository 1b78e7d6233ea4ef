"""One ledger of a partition's chain, as an open log uses it.

Invariants: knows one ledger's offsets and positions. `load_by_scan` rebuilds from the records what
a footer contains, verifying each batch's CRC and placement.
If the store supports inline checkpoints, the log stores its state in the open ledger from time to
time, as a footer whose index holds only the entries since the previous checkpoint; a scan starts at
the newest one.
Batches that this process has neither written nor verified are verified on first read, so corrupt
bytes are reported instead of served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import BatchCorrupt, DataCorrupt, LedgerUnknown
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
from headrace.storage.ledger import LedgerId, StoresInlineCheckpoints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.metadata.facts import LedgerLink
    from headrace.records.batch import BatchHeader
    from headrace.storage.ledger import LedgerInfo, LedgerStore

SCAN_BYTES: Final = 1024 * 1024
CHECKPOINT_INTERVAL_BYTES = 16 * 1024 * 1024  # not Final: tests lower it, also in the compiled core
"""How much of an open ledger a takeover reads at most, if the store has inline checkpoints."""
NO_TRANSACTION: Final = 2**63 - 1
"""Greater than any offset: no transaction is open."""
CHECKPOINT_RATIO = 16
"""Checkpoints with many producers are large, and less frequent: at most 1/16 of the bytes."""


class Segment:
    """A ledger's range of offsets and positions, and its index."""

    __slots__ = (
        "aborted",
        "base_offset",
        "checkpoint_at",
        "checkpointed_aborted_count",
        "checkpointed_count",
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
        "is_tabled",
        "last_append_ms",
        "leader_epoch",
        "ledger",
        "max_timestamp_ms",
        "object_kept_until_ms",
        "safe_max_timestamp_ms",
        "verified_from",
        "verified_to",
    )

    def __init__(self, ledger: LedgerId, base_offset: int, leader_epoch: int) -> None:
        self.ledger = ledger
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch
        self.end_offset = base_offset
        self.end_position = 0
        self.first_append_ms = -1
        self.last_append_ms = -1
        """An upper bound, known once the whole log is loaded."""
        self.max_timestamp_ms = -1
        self.safe_max_timestamp_ms = -1
        """Of the acknowledged records: the value to restore when an append fails."""
        self.is_sealed = False
        """Whether the store has sealed it."""
        self.footer: Footer | None = None
        """What to seal it with; of a seal that failed, to be reused: it may have succeeded."""
        self.is_compacted = False
        """Whether there are gaps between its batches; valid once the index is loaded."""
        self.is_offloaded = False
        """Whether the chain records a copy in object storage."""
        self.is_tabled = False
        """Whether the chain records that its recipe replaced its object."""
        self.object_kept_until_ms: int | None = None
        """See LedgerLink."""
        self.is_local = True
        """Whether the ledger store itself still has it."""
        self.index = OffsetIndex()
        self.is_index_loaded = True
        """Whether `index`, `aborted` and `first_open_offset` are loaded."""
        self.aborted: AbortedIndex | None = None
        """The transactions aborted by markers in it; None if there are none."""
        self.first_open_offset = NO_TRANSACTION
        """The first offset of the earliest transaction open at its end; of a closed ledger."""
        self.verified_from = 0
        self.verified_to = 0
        self.checkpoint_at = CHECKPOINT_INTERVAL_BYTES
        """The position at which the next inline checkpoint is due."""
        self.checkpointed_count = 0
        """Index entries contained in checkpoints."""
        self.checkpointed_aborted_count = 0

    @property
    def newest_ms(self) -> int:
        """The largest record timestamp; without any, the time of the last append, or the first."""
        if self.max_timestamp_ms >= 0:
            return self.max_timestamp_ms
        return self.last_append_ms if self.last_append_ms >= 0 else self.first_append_ms

    def corrupt(self, position: int, problem: str) -> DataCorrupt:
        """The error for corrupt bytes at `position`."""
        return DataCorrupt(
            f"ledger {self.ledger} is corrupt at byte {position} ({problem}): its records there are"
            " not served; restore the ledger's file from a backup or a replica",
            ledger=self.ledger,
            position=position,
        )

    def verify_crc(self, data: Buffer, position: int) -> None:
        """Verify the CRC of every batch in `data`, read at `position`, unless already verified.

        Raises DataCorrupt.
        """
        end = position + len(data)
        if self.verified_from <= position and end <= self.verified_to:
            return
        proved = 0
        expected = self.base_offset if position == 0 else self.index.offset_at(position)
        try:
            for at, header in iterate_headers(data):
                if not self.base_offset <= header.base_offset < self.end_offset:
                    raise self.corrupt(position + at, f"unexpected offset {header.base_offset}")
                if expected is not None and self.is_compacted:
                    expected = self._next_compacted(header, position + at, expected)
                self._check_placement(header, position + at, expected)
                expected = header.last_offset + 1
                if not is_intact(data, at, header):
                    raise self.corrupt(position + at, "CRC mismatch in a batch")
                proved = at + header.size
        except BatchCorrupt as error:
            raise self.corrupt(position + proved, str(error)) from error
        end = position + proved
        if self.verified_from <= position <= self.verified_to:
            self.verified_to = max(self.verified_to, end)
        else:
            self.verified_from, self.verified_to = position, end

    def _next_compacted(self, header: BatchHeader, position: int, least: int) -> int:
        """The base offset that a batch of a compacted ledger must have, as far as known."""
        indexed = self.index.offset_at(position)
        return max(header.base_offset, least) if indexed is None else indexed

    def _check_placement(self, header: BatchHeader, position: int, expected: int | None) -> None:
        """Check the fields of a batch that its CRC does not cover."""
        if header.magic != MAGIC:
            raise self.corrupt(position, f"invalid magic {header.magic} in a batch")
        if expected is not None and header.base_offset != expected:
            problem = f"offset {header.base_offset} instead of {expected}"
            raise self.corrupt(position, problem)
        if header.leader_epoch != self.leader_epoch:
            problem = f"leader epoch {header.leader_epoch} instead of {self.leader_epoch}"
            raise self.corrupt(position, problem)

    async def load_by_scan(
        self, store: LedgerStore, end: int, producers: ProducerState, seen_ms: int
    ) -> ProducerState:
        """Read the batches up to byte `end` and rebuild index and producer state from them.

        `producers` is the state before this ledger; returns the state after it. What the ledger's
        checkpoints cover is not read again. `seen_ms` counts as the time when the producers were
        last seen, and as that of records without a timestamp; 0: unknown. Raises DataCorrupt.
        """
        self.index, self.aborted = OffsetIndex(), None
        self.end_offset, self.end_position = self.base_offset, 0
        checkpointed = await self._load_checkpoints(store, end)
        if checkpointed is not None:
            producers = checkpointed
        begin = position = self.end_position
        want = SCAN_BYTES
        while position < end:
            data = await store.read(self.ledger, position, min(want, end - position))
            consumed = self._scan(data, position, producers, seen_ms)
            if consumed:
                position, want = position + consumed, SCAN_BYTES
                continue
            if want >= end - position or len(data) < HEADER_SIZE:
                raise self.corrupt(position, "a batch extends past the end")
            want = max(want * 2, read_header(data).size)
        self.max_timestamp_ms = self.safe_max_timestamp_ms = self.index.max_timestamp_ms
        self.first_open_offset = producers.first_open(NO_TRANSACTION)
        self.verified_from, self.verified_to = begin, end
        self.is_index_loaded = True
        return producers

    def encode_checkpoint(self, producers: ProducerState) -> bytes:
        """The checkpoint for the ledger's current end, where `producers` is the state."""
        index, aborted = self.index.since(self.checkpointed_count), self.aborted
        if aborted is not None:
            checkpointed_count, self.checkpointed_aborted_count = (
                self.checkpointed_aborted_count,
                len(aborted),
            )
            aborted = aborted.since(checkpointed_count)
        footer = Footer(self.end_offset, self.first_append_ms, index, producers, aborted)
        data = encode_footer(footer)
        self.checkpointed_count = len(self.index.offsets)
        self.checkpoint_at = self.end_position + max(
            CHECKPOINT_INTERVAL_BYTES, CHECKPOINT_RATIO * len(data)
        )
        return data

    async def _load_checkpoints(self, store: LedgerStore, end: int) -> ProducerState | None:
        """Load the checkpoints; returns the newest one's producers, None without any."""
        footer: Footer | None = None
        if isinstance(store, StoresInlineCheckpoints):
            for checkpoint in await store.checkpoints(self.ledger):
                if checkpoint.position > end:
                    raise self.corrupt(
                        end, f"a checkpoint is at byte {checkpoint.position}, after the end"
                    )
                footer = decode_footer(checkpoint.data)
                self.index.extend(footer.offset_index)
                if footer.aborted is not None:
                    self.abort_all(footer.aborted)
                self.end_offset, self.end_position = footer.end_offset, checkpoint.position
                self.first_append_ms = footer.first_append_ms
        return None if footer is None else footer.producers

    def _scan(self, data: Buffer, position: int, producers: ProducerState, seen_ms: int) -> int:
        consumed = 0
        try:
            for at, header in iterate_headers(data):
                self._check_placement(header, position + at, self.end_offset)
                if not is_intact(data, at, header):
                    raise self.corrupt(position + at, "CRC mismatch in a batch")
                self.index.add(header.base_offset, position + at, header.newest_ms)
                if header.attributes & CONTROL:
                    self._scan_marker(data, at, header, producers, seen_ms)
                elif header.producer_id != NO_PRODUCER_ID:
                    producers.apply(header, header.base_offset, seen_ms, header.base_offset)
                if header.attributes & NAMED:
                    named = named_sequences_in(data, at, header)
                    producers.named.apply(named, header.base_offset, header.base_offset)
                if self.first_append_ms < 0:
                    # Records without a timestamp count as old as the scan.
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
        """Append the entries that follow."""
        if self.aborted is None:
            self.aborted = AbortedIndex()
        self.aborted.extend(entries)

    @property
    def is_aborted_index_full(self) -> bool:
        """Whether further aborted transactions require another ledger."""
        return self.aborted is not None and len(self.aborted) >= ENTRIES_MAX

    def base_after(self, link: LedgerLink, log_start_offset: int, *, can_shrink: bool) -> int:
        """The base offset of the ledger of `link`, which follows this one.

        The chain has the lowest offset at which it can begin. If this ledger ends earlier, records
        were lost. With `flush.ms` a power loss may cause that (`can_shrink`), and an empty ledger
        continues at the new end; in one with records, their offsets reveal it. Below the log start
        offset it does not matter. Otherwise it is corruption. Raises DataCorrupt.
        """
        base = max(self.end_offset, min(link.base_offset, log_start_offset))
        if base < link.base_offset and (link.is_sealed or not can_shrink):
            problem = f"it ends at offset {self.end_offset}, the next begins at {link.base_offset}"
            raise self.corrupt(self.end_position, problem)
        return base

    def footer_with(self, producers: ProducerState) -> Footer:
        """What to seal it with; `producers` is the state at its end, and may change later."""
        self.first_open_offset = producers.first_open(NO_TRANSACTION)
        return Footer(
            self.end_offset,
            self.first_append_ms,
            self.index,
            producers.snapshot(),
            self.aborted,
            self.is_compacted,
        )

    def unload_index(self) -> None:
        """Release the index of a sealed ledger; `load_index` reads it again."""
        assert self.is_sealed, "the index of an open ledger cannot be reloaded"
        self.index, self.aborted, self.is_index_loaded = OffsetIndex(), None, False

    @property
    def index_entry_count(self) -> int:
        """Index entries in memory."""
        return len(self.index.positions) + (0 if self.aborted is None else len(self.aborted))

    async def _recover(self, store: LedgerStore) -> LedgerInfo:
        """Raises LedgerUnknown, naming the offsets."""
        try:
            return await store.recover(self.ledger)
        except LedgerUnknown as error:
            raise self.missing() from error

    def missing(self) -> LedgerUnknown:
        """The error if its bytes do not exist although the chain names it."""
        return LedgerUnknown(
            f"ledger {self.ledger} with offsets {self.base_offset} to {self.end_offset - 1} does"
            " not exist: restore it from a backup; in a cluster, `headrace cluster repair` shows"
            " what is lost, and gives it up with --accept-loss",
            ledger=self.ledger,
        )

    async def knows_producers(self, store: LedgerStore) -> bool:
        """Whether its footer or a checkpoint contains the complete producer state."""
        if (await self._recover(store)).footer is not None:
            return True
        return isinstance(store, StoresInlineCheckpoints) and bool(
            await store.checkpoints(self.ledger)
        )

    async def load_index(
        self, store: LedgerStore, before: ProducerState | None = None, seen_ms: int = 0
    ) -> ProducerState:
        """Load the index of a sealed ledger from its footer, or by a scan; returns its producers.

        `before`: the state at its beginning, for a ledger without producer state; it is changed.
        `seen_ms` as for a scan. Raises DataCorrupt, also if the ledger's end differs from the
        chain's.
        """
        known_end = (self.end_offset, self.end_position)
        info = await self._recover(store)
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
            # Into another segment: readers of this one rely on its end while it is scanned.
            scanned = Segment(self.ledger, self.base_offset, self.leader_epoch)
            before = ProducerState() if before is None else before
            producers = await scanned.load_by_scan(store, info.end, before, seen_ms)
            self.index, self.aborted = scanned.index, scanned.aborted
            self.first_open_offset = scanned.first_open_offset
            self.end_offset, self.end_position = scanned.end_offset, scanned.end_position
            self.max_timestamp_ms = scanned.max_timestamp_ms
            if self.first_append_ms < 0:
                self.first_append_ms = scanned.first_append_ms
            self.verified_from, self.verified_to = scanned.verified_from, scanned.verified_to
        if (self.end_offset, self.end_position) != known_end:
            found_end = self.end_position
            self.end_offset, self.end_position = known_end
            self.is_index_loaded = False
            raise self.corrupt(found_end, f"it ends there instead of at byte {known_end[1]}")
        self.is_index_loaded = True
        return producers


def sealed_segment(link: LedgerLink) -> Segment:
    """A sealed ledger as described by its chain entry; its index is loaded on first use."""
    segment = Segment(LedgerId(link.ledger), link.base_offset, link.leader_epoch)
    assert link.end_offset is not None
    segment.end_offset = link.end_offset
    segment.end_position = link.size_bytes or 0
    segment.max_timestamp_ms = -1 if link.max_timestamp_ms is None else link.max_timestamp_ms
    segment.first_append_ms = -1 if link.first_timestamp_ms is None else link.first_timestamp_ms
    segment.is_sealed = True
    segment.is_offloaded = link.offloaded_ms is not None
    segment.is_local = link.local_deleted_ms is None
    segment.is_tabled = link.tabled_ms is not None
    segment.object_kept_until_ms = link.object_kept_until_ms
    segment.is_index_loaded = False
    return segment


async def producers_after(
    segments: Sequence[Segment], store: LedgerStore, now_ms: int
) -> ProducerState:
    """The producer state at the end of the last of these ledgers.

    A ledger recovered on shared storage is sealed without a footer: then the state is rebuilt from
    the newest earlier one that has it.
    """
    first = len(segments) - 1
    while first > 0 and not await segments[first].knows_producers(store):
        first -= 1
    producers = ProducerState()
    for segment in segments[max(0, first) :]:
        producers = await segment.load_index(store, producers, now_ms)
    return producers


async def load_index_of(segments: Sequence[Segment], at: int, store: LedgerStore) -> None:
    """Load the index of a closed ledger, even if it does not contain the producers before it.

    Without them, a scan would not know which transactions its markers end.
    """
    segment, before = segments[at], None
    if at and not await segment.knows_producers(store):
        unloaded = [one for one in segments[:at] if not one.is_index_loaded]
        before = await producers_after(segments[:at], store, 0)
        for one in unloaded:
            if one.is_index_loaded:
                one.unload_index()
    await segment.load_index(store, before)
