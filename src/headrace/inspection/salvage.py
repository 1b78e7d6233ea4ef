"""Reads all records of a damaged partition that can be read, and says which cannot.

Invariants: reads only; whole batches are lost, never a part of one. What a committed transaction
wrote is returned and what an aborted one wrote is not, as a `read_committed` consumer would have
it; where the marker is lost, may be lost, or is not written yet, the outcome is unknown, and the
caller decides.

The CRC of a batch does not cover its base offset, so offsets are continued from the batch before:
if one was changed on the disk, the records are returned with the right offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError, RequestInvalid
from headrace.inspection.batches import FoundBatch, Gap, batches_in
from headrace.inspection.check import FLUSH_MS
from headrace.inspection.facts import DecodedMetadata
from headrace.inspection.findings import Severity
from headrace.inspection.folder import folders_of
from headrace.inspection.ledgers import Ledgers
from headrace.inspection.metadata_copy import MetadataCopy
from headrace.inspection.outcomes import Outcomes
from headrace.log.footer import decode_footer
from headrace.records.codec import decode_batch
from headrace.records.marker import read_marker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace.inspection.facts import Chain
    from headrace.inspection.ledgers import StoredLedger
    from headrace.log.footer import Footer
    from headrace.metadata.facts import LedgerLink
    from headrace.records.codec import Record


class Lost(NamedTuple):
    """Offsets whose records are not returned."""

    first: int
    last: int | None
    """None: to the end of the log, which is not known."""
    cause: str
    is_undecided: bool = False
    """The records can be read, but whether their transaction was committed is not known."""


class _Placed(NamedTuple):
    """A sound batch, and its offset."""

    batch: FoundBatch
    base_offset: int

    @property
    def end_offset(self) -> int:
        """The offset after it."""
        return self.base_offset + self.batch.header.last_offset_delta + 1


class DamagedLog:
    """One partition in the files of a broker, stopped or running."""

    def __init__(self, root: Path, name: str) -> None:
        """`name` as `orders-0`. Raises RequestInvalid, OSError."""
        folders = folders_of(root)
        copy = MetadataCopy(root)
        facts = DecodedMetadata(copy, max(one.number for one in folders) + 1)
        found = facts.find(name, None)
        if found is None:
            reason = f": {copy.findings[0].cause}" if copy.findings else ""
            raise RequestInvalid(
                f"no partition {name} in the metadata of {root}{reason}; nothing was salvaged: list"
                " topics with `headrace dump metadata DIR /topics`"
            )
        self._chain: Chain = found
        self._store = Ledgers(folders[facts.worker_of(found)])
        self.warnings = [
            f"{one.file}: {one.cause}"
            for one in (*copy.findings, *self._store.findings)
            if one.severity is not Severity.NOTE
        ]
        """Damage of the whole folder, after which later records may be missing without a gap."""

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._chain.partition

    @property
    def configs(self) -> Mapping[str, str]:
        """The topic's own settings; what it lacks came from its broker's, which are not here."""
        return self._chain.topic.configs

    def records(self, *, with_undecided: bool) -> Iterator[Record | Lost]:
        """Yield all records with their offsets, in order, and the gaps between them.

        Reads the log twice: the outcome of a transaction is after its records. Raises OSError.
        """
        outcomes = self._outcomes()
        for found in self._placed():
            if isinstance(found, Lost):
                yield found
                continue
            header = found.batch.header
            if header.is_control:
                continue
            if header.is_transactional:
                is_committed = outcomes.is_committed(header.producer_id, found.base_offset)
                if is_committed is False:
                    continue
                if is_committed is None and not with_undecided:
                    cause = f"the outcome of producer {header.producer_id}'s transaction is unknown"
                    yield Lost(found.base_offset, found.end_offset - 1, cause, is_undecided=True)
                    continue
            yield from self._decoded(found)

    def _decoded(self, found: _Placed) -> Iterator[Record | Lost]:
        try:
            records = decode_batch(found.batch.data)
        except HeadraceError as error:
            yield Lost(found.base_offset, found.end_offset - 1, str(error))
            return
        shift = found.base_offset - found.batch.header.base_offset
        for record in records:
            record.offset += shift
            if record.offset >= self._chain.fact.log_start_offset:
                yield record

    def _outcomes(self) -> Outcomes:
        """What the footers, the markers and the gaps between them say."""
        outcomes = Outcomes()
        for link in self._chain.fact.ledgers:
            ledger = self._store.by_id.get(link.ledger)
            footer = None if ledger is None else self._footer(ledger)
            if footer is not None and link.end_offset is not None:
                outcomes.add_index(link.base_offset, link.end_offset, footer.aborted)
        for found in self._placed():
            if isinstance(found, Lost):
                outcomes.add_lost(found.first, found.last)
                continue
            if not found.batch.header.is_control:
                continue
            try:
                marker = read_marker(found.batch.data)
            except HeadraceError:
                outcomes.add_lost(found.base_offset, found.end_offset - 1)
                continue
            if marker is not None:
                outcomes.add_marker(
                    found.batch.header.producer_id, found.base_offset, is_commit=marker.is_commit
                )
        return outcomes

    # --- batches -------------------------------------------------------------------------------

    def _placed(self) -> Iterator[_Placed | Lost]:
        """Yield all sound batches, and the gaps between them."""
        links = self._chain.fact.ledgers
        expected = links[0].base_offset if links else 0
        for link in links:
            if expected < link.base_offset and FLUSH_MS not in self._chain.topic.configs:
                yield Lost(expected, link.base_offset - 1, "no ledger has these offsets")
                expected = link.base_offset
            for found in self._in_ledger(link, expected):
                if isinstance(found, _Placed):
                    expected = found.end_offset
                elif found.last is not None:
                    expected = found.last + 1
                yield found

    def _in_ledger(self, link: LedgerLink, expected: int) -> Iterator[_Placed | Lost]:
        ledger = self._store.by_id.get(link.ledger)
        last = None if link.end_offset is None else link.end_offset - 1
        if ledger is None:
            where = "only in object storage" if link.local_deleted_ms is not None else "missing"
            where = where if link.tabled_ms is None else "only in the topic's table"
            yield Lost(expected, last, f"ledger {link.ledger} is {where}")
            return
        footer = self._footer(ledger)
        # Without a footer, whether offsets were removed by compaction is not known.
        is_dense = not (ledger.is_sealed and (footer is None or footer.is_compacted))
        cause, is_first = "", FLUSH_MS in self._chain.topic.configs
        boundaries = [] if footer is None else list(footer.offset_index.positions)
        end = min(ledger.end, ledger.file_size) if ledger.is_short else ledger.end
        for found in batches_in(
            lambda position, size: self._store.read(ledger, position, size), 0, end, boundaries
        ):
            if isinstance(found, Gap):
                cause = cause or found.problem
                continue
            if not found.is_intact or found.header.last_offset_delta < 0:
                cause = cause or "the CRC of a batch does not match its bytes"
                continue
            placed = _placed(
                found, expected, last, may_skip=bool(cause or is_first or not is_dense)
            )
            if cause and placed.base_offset > expected:
                yield Lost(expected, placed.base_offset - 1, cause)
            cause, is_first, expected = "", False, placed.end_offset
            yield placed
        if ledger.is_short:
            cause = cause or f"{ledger.durable - ledger.file_size} bytes of its file are missing"
        if last is None:
            if cause:
                yield Lost(expected, None, cause)
        elif expected <= last and (cause or is_dense):
            yield Lost(expected, last, cause or "the ledger ends before its end offset")

    def _footer(self, ledger: StoredLedger) -> Footer | None:
        if not ledger.is_sealed:
            return None
        try:
            return decode_footer(self._store.footer(ledger))
        except HeadraceError:
            return None


def _placed(found: FoundBatch, expected: int, last: int | None, *, may_skip: bool) -> _Placed:
    base, delta = found.header.base_offset, found.header.last_offset_delta
    is_possible = base >= expected and (last is None or base + delta <= last)
    if is_possible and (may_skip or base == expected):
        return _Placed(found, base)
    return _Placed(found, expected)
