"""Checks one ledger against its chain: batches, offsets, epochs, index and markers.

Invariants: reads every byte once, in pieces. After damage it continues with the next valid batch,
so each damage is reported with the offsets that it affects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, FormatUnsupported, HeadraceError
from headrace.inspection.batches import FoundBatch, Gap, batches_in
from headrace.inspection.decoders import decoder_of, marker_in, state_in
from headrace.inspection.findings import RESTORE, Finding, RecordRange, damage, unreadable
from headrace.log.footer import Footer, decode_footer
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from headrace.inspection.decoders import Decode
    from headrace.inspection.facts import Chain
    from headrace.inspection.ledgers import Ledgers, StoredLedger
    from headrace.metadata.facts import LedgerLink

_FINDINGS_MAX = 100
"""Per ledger: a file of random bytes needs no more."""


@dataclass(slots=True)
class LedgerChecked:
    """The result for one ledger."""

    base_offset: int
    end_offset: int
    """After its last valid batch."""
    batch_count: int = 0
    record_count: int = 0
    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    aborts: set[int] = field(default_factory=set)
    """Offsets of the abort markers."""


class LedgerCheck:
    """The check of one ledger."""

    def __init__(
        self, ledgers: Ledgers, ledger: StoredLedger, chain: Chain, link: LedgerLink, base: int
    ) -> None:
        self._ledgers = ledgers
        self._ledger = ledger
        self._chain = chain
        self._link = link
        self._file = ledgers.folder.name(ledger.segment)
        self._decode: Decode | None = decoder_of(chain.topic.name, chain.companion)
        self._footer: Footer | None = None
        self._indexed: dict[int, int] = {}
        self._expected: int | None = base
        self._max_ms = -1
        self.seen = LedgerChecked(base, base)

    def run(self) -> LedgerChecked:
        """Check the whole ledger."""
        self._read_footer()
        boundaries: list[int] = []
        if self._footer is not None:
            index = self._footer.offset_index
            boundaries = list(index.positions)
            self._indexed = dict(zip(index.positions, index.offsets, strict=True))
        ledger = self._ledger
        end = min(ledger.end, ledger.file_size) if ledger.is_short else ledger.end

        def read(position: int, size: int) -> bytes:
            return self._ledgers.read(ledger, position, size)

        for found in batches_in(read, 0, end, boundaries):
            if isinstance(found, Gap):
                self._take_gap(found)
            else:
                self._take(found)
            if len(self.seen.findings) >= _FINDINGS_MAX:
                break
        else:
            self._check_end()
        self.seen.size_bytes = end
        return self.seen

    # --- wording -------------------------------------------------------------------------------

    def _effect(self, first: int | None, last: int | None) -> str:
        name = self._chain.name
        if self._footer is None:
            return f"{name} is not loaded, and none of its records are served"
        if first is None:
            return f"{name}: reads of this range fail"
        which = f"offset {first}" if first == last else f"offsets {first} to {last}"
        return f"{name}: {which} cannot be read"

    def _damage(
        self,
        kind: str,
        position: int,
        cause: str,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        place = self._chain.place_in(self._link, first, last)
        effect = self._effect(first, last)
        self.seen.findings.append(damage(kind, self._file, position, cause, effect, RESTORE, place))

    # --- batches -------------------------------------------------------------------------------

    def _take_gap(self, gap: Gap) -> None:
        following = self._indexed.get(gap.end)
        if following is None:
            following = self._next_base(gap.end)
        last = None if following is None else following - 1
        cause = (
            f"no record batch begins here ({gap.problem}); {gap.end - gap.position} bytes are lost"
        )
        self._damage("batch-framing", gap.position, cause, self._expected, last)
        self._expected = following

    def _next_base(self, position: int) -> int | None:
        """Return the offset at which the next part begins: that of a batch there, or the ledger's
        end."""
        if position < self._ledger.end:
            head = self._ledgers.read(self._ledger, position, 8)
            return int.from_bytes(head, "big") if len(head) == 8 else None
        return self._link.end_offset

    def _take(self, batch: FoundBatch) -> None:
        header = batch.header
        expected, first = self._expected, header.base_offset
        self.seen.batch_count += 1
        self.seen.record_count += header.record_count
        self._expected = header.last_offset + 1
        if expected is not None and not self._fits(batch, expected):
            cause = f"a batch with base offset {first}, expected {expected}"
            self._damage("batch-offset", batch.position, cause, expected, expected)
            if not batch.is_intact or header.last_offset_delta < 0:
                self._expected = None
                return
            # The CRC does not cover the base offset: later checks use the offsets of the records.
            self._expected = expected + header.last_offset_delta + 1
            first = expected
        last = first + max(header.last_offset_delta, 0)
        if not batch.is_intact:
            cause = "the CRC of a batch does not match its bytes"
            self._damage("batch-crc", batch.position, cause, first, last)
            return
        if header.leader_epoch != self._link.leader_epoch:
            epochs = f"{header.leader_epoch}, expected {self._link.leader_epoch}"
            self._damage("batch-epoch", batch.position, f"leader epoch {epochs}", first, last)
        self._max_ms = max(self._max_ms, header.max_timestamp_ms)
        self.seen.end_offset = last + 1
        self._check_contents(batch, first, last)

    def _fits(self, batch: FoundBatch, expected: int) -> bool:
        base = batch.header.base_offset
        if self._footer is not None and self._footer.is_compacted:
            return base == self._indexed.get(batch.position, max(base, expected))
        return base == expected

    def _check_contents(self, batch: FoundBatch, first: int, last: int) -> None:
        """Check that markers and internal records decode, because a coordinator replays them."""
        try:
            if batch.header.is_control:
                marker = marker_in(batch)
                if marker is not None and marker["marker"] == "abort":
                    self.seen.aborts.add(batch.header.base_offset)
            elif self._decode is not None:
                for record in decode_batch(batch.data):
                    state_in(record, self._decode)
        except HeadraceError as error:
            self._damage("batch-records", batch.position, str(error), first, last)

    # --- the footer ----------------------------------------------------------------------------

    def _read_footer(self) -> None:
        if not self._ledger.is_sealed:
            return
        name = self._ledgers.folder.name(self._ledger.footer_file)
        try:
            self._footer = decode_footer(self._ledgers.footer(self._ledger))
        except FormatUnsupported as error:
            step = "start the version that wrote it"
            self.seen.findings.append(unreadable("footer-format", name, str(error), step))
        except DataCorrupt as error:
            is_missing = self._ledgers.folder.size(self._ledger.footer_file) is None
            cause = "the file is missing" if is_missing else f"it cannot be read: {error}"
            effect = f"{self._chain.name}: the records of ledger {self._ledger.id} are not served"
            place = self._chain.place_in(self._link, self._link.base_offset, self._last())
            at = None if is_missing else 0
            self.seen.findings.append(damage("footer", name, at, cause, effect, RESTORE, place))

    def _last(self) -> int | None:
        return None if self._link.end_offset is None else self._link.end_offset - 1

    def _check_end(self) -> None:
        """Check its end offset against its batches, its footer and its chain."""
        if self._ledger.is_short or self.seen.findings:
            return
        end = self._ledger.end
        ends = {
            "its footer": None if self._footer is None else self._footer.end_offset,
            "its chain": self._link.end_offset,
        }
        for who, offset in ends.items():
            is_compacted = self._footer is not None and self._footer.is_compacted
            if offset is not None and offset != self._expected and not is_compacted:
                cause = f"its batches end at offset {self._expected}, but {who} says {offset}"
                self._damage("ledger-end", end, cause, self._expected, offset - 1)
        size = self._link.size_bytes
        if size is not None and self._link.is_sealed and size != end:
            cause = f"it has {end} bytes, but its chain says {size}"
            self._damage("ledger-end", end, cause)
        if self._footer is not None:
            self._check_index(self._footer)

    def _check_index(self, footer: Footer) -> None:
        """Check that index entries point at batches: a wrong one hides existing records."""
        found = dict(self._positions(footer))
        index = footer.offset_index
        wrong = [
            (position, offset)
            for position, offset in zip(index.positions, index.offsets, strict=True)
            if found.get(position) != offset
        ]
        for position, offset in wrong[:1]:
            cause = (
                f"its index has offset {offset} at byte {position}, but no such batch begins there"
            )
            self._footer_damage(cause, offset)
        if index.max_timestamp_ms < self._max_ms and not footer.is_compacted:
            cause = (
                f"its index has times up to {index.max_timestamp_ms}, but a batch has"
                f" {self._max_ms}"
            )
            self._footer_damage(cause, None)
        markers = set() if footer.aborted is None else set(footer.aborted.marker_offsets)
        for offset in sorted(markers - self.seen.aborts)[:1]:
            cause = f"it lists an abort marker at offset {offset}, but there is none"
            self._footer_damage(cause, offset)

    def _positions(self, footer: Footer) -> list[tuple[int, int]]:
        """Return (position, base offset) of the batch at each position of the index."""
        return [
            (position, int.from_bytes(self._ledgers.read(self._ledger, position, 8), "big"))
            for position in footer.offset_index.positions
        ]

    def _footer_damage(self, cause: str, offset: int | None) -> None:
        name = self._ledgers.folder.name(self._ledger.footer_file)
        effect = f"{self._chain.name}: lookups by offset or time can miss records"
        place: RecordRange = self._chain.place_in(self._link, offset, offset)
        self.seen.findings.append(damage("footer-index", name, None, cause, effect, RESTORE, place))
