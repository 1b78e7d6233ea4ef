"""`headrace check`: verifies a data folder, from its format file to its last record.

Invariants: reads only. A finding names the records that it affects in each partition. In a folder
that is in use, apparent damage is read again, because files change between two reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.inspection.facts import DecodedMetadata
from headrace.inspection.findings import (
    RESTORE,
    Finding,
    RecordRange,
    Severity,
    damage,
    note,
)
from headrace.inspection.folder import folders_of
from headrace.inspection.ledger_check import LedgerCheck
from headrace.inspection.ledgers import Ledgers
from headrace.inspection.metadata_copy import MetadataCopy
from headrace.metadata.sqlite_file import METADATA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace.inspection.facts import Chain
    from headrace.inspection.folder import Folder
    from headrace.inspection.ledgers import StoredLedger
    from headrace.metadata.facts import LedgerLink

FLUSH_MS = "flush.ms"
_NO_BROKER = "do not start a broker on this folder; restore the file from a backup"


class LogChecked(NamedTuple):
    """One log, as found."""

    name: str
    ledger_count: int
    batch_count: int
    record_count: int
    size_bytes: int
    first_offset: int
    end_offset: int
    damage_count: int


@dataclass(slots=True)
class Report:
    """What was checked, and the findings."""

    findings: list[Finding] = field(default_factory=list)
    logs: list[LogChecked] = field(default_factory=list)
    users: list[int] = field(default_factory=list)
    """Processes that had the folder open."""

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [one for one in self.findings if one.severity is severity]


def check(root: Path, progress: Callable[[int, int], None] = lambda _done, _all: None) -> Report:
    """Check a data folder; `progress(bytes done, total bytes)` is called between ledgers.

    Raises RequestInvalid if it is not a data folder, OSError if it cannot be read.
    """
    folders = folders_of(root)
    report = _Check(root, folders, progress).run()
    if report.users and report.of(Severity.DAMAGE):
        again = _Check(root, folders, progress).run()
        kept = {(one.kind, one.file, one.position) for one in report.of(Severity.DAMAGE)}
        again.findings = [
            one
            for one in again.findings
            if one.severity is not Severity.DAMAGE or (one.kind, one.file, one.position) in kept
        ]
        return again
    return report


class _Check:
    def __init__(
        self, root: Path, folders: Sequence[Folder], progress: Callable[[int, int], None]
    ) -> None:
        self._root = root
        self._progress = progress
        users = [one.user for one in folders]
        self._report = Report(users=[user for user in users if user is not None])
        # Metadata first: a ledger is in the store before a chain names it.
        self._copy = MetadataCopy(root)
        self._facts = DecodedMetadata(self._copy, max(one.number for one in folders) + 1)
        self._stores = {one.number: Ledgers(one) for one in folders}
        self._done = 0
        self._all = sum(
            ledger.end for store in self._stores.values() for ledger in store.by_id.values()
        )

    def run(self) -> Report:
        report = self._report
        report.findings += self._copy.findings + self._facts.findings
        for store in self._stores.values():
            report.findings += store.findings
        self._check_presence()
        named: dict[tuple[int, int], str] = {}
        for chain in self._facts.chains:
            if not chain.topic.is_deleted:
                self._check_chain(chain, named)
        self._check_unnamed(named)
        self._progress(self._all, self._all)
        return report

    def _check_presence(self) -> None:
        has_ledgers = any(store.by_id for store in self._stores.values())
        if not self._copy.is_there and has_ledgers:
            cause = "the file is missing, so no topic is known, but there are ledgers"
            effect = "no records are served"
            found = damage("metadata-file", METADATA, None, cause, effect, _NO_BROKER)
            self._report.findings.append(found)

    def _check_chain(self, chain: Chain, named: dict[tuple[int, int], str]) -> None:
        worker = self._facts.worker_of(chain)
        store = self._stores.get(worker)
        if store is None:
            cause = f"{chain.name} belongs to worker {worker}, whose folder is missing"
            self._log_damage("worker-missing", f"worker-{worker}", cause, chain)
            return
        found_before = len(self._report.findings)
        ledgers = batches = records = size = 0
        first = end = chain.fact.log_start_offset
        for at, link in enumerate(chain.fact.ledgers):
            other = named.setdefault((worker, link.ledger), chain.name)
            if other != chain.name:
                cause = f"ledger {link.ledger} is in the chains of both {other} and {chain.name}"
                self._log_damage("chain-overlap", METADATA, cause, chain)
            if link.local_deleted_ms is not None:
                end = link.end_offset or end
                self._note_tiered(chain, link)
                continue
            ledger = store.by_id.get(link.ledger)
            if ledger is None:
                self._missing_ledger(store, chain, link)
                end = link.end_offset or end
                continue
            base = self._base(chain, at, link, end)
            seen = LedgerCheck(store, ledger, chain, link, base).run()
            self._check_length(store, ledger, chain, link, seen.end_offset)
            self._report.findings += seen.findings
            ledgers, batches = ledgers + 1, batches + seen.batch_count
            records, size = records + seen.record_count, size + seen.size_bytes
            end = link.end_offset if link.end_offset is not None else seen.end_offset
            self._advance(ledger)
        damages = [
            one for one in self._report.findings[found_before:] if one.severity is Severity.DAMAGE
        ]
        log = LogChecked(chain.name, ledgers, batches, records, size, first, end, len(damages))
        self._report.logs.append(log)

    def _advance(self, ledger: StoredLedger) -> None:
        self._done += ledger.end
        self._progress(self._done, self._all)

    def _base(self, chain: Chain, at: int, link: LedgerLink, end: int) -> int:
        """Check where a ledger begins: the chain gives its minimum offset, the one before the exact
        one."""
        if at == 0:
            return link.base_offset
        base = max(end, min(link.base_offset, chain.fact.log_start_offset))
        if base >= link.base_offset:
            return base
        may_shrink = FLUSH_MS in chain.topic.configs and not link.is_sealed
        if not may_shrink and not self._has_damage(chain):
            begins = f"ledger {link.ledger} begins at offset {link.base_offset}"
            cause = f"{begins}, but the one before ends at {end}"
            self._log_damage("chain-gap", METADATA, cause, chain, end, link.base_offset - 1)
        return base if may_shrink else link.base_offset

    def _has_damage(self, chain: Chain) -> bool:
        return any(
            one.severity is Severity.DAMAGE and one.place.log_name == chain.place().log_name
            for one in self._report.findings
        )

    def _check_length(
        self, store: Ledgers, ledger: StoredLedger, chain: Chain, link: LedgerLink, end_offset: int
    ) -> None:
        if not ledger.is_short:
            return
        name = store.folder.name(ledger.segment)
        is_missing = store.folder.size(ledger.segment) is None
        cause = (
            f"the file is missing, but {ledger.durable} bytes of it were durable"
            if is_missing
            else f"it has {ledger.file_size} bytes, but {ledger.durable} were durable"
        )
        effect = f"{chain.name}: ledger {ledger.id} is quarantined: none of its records are served"
        last = None if link.end_offset is None else link.end_offset - 1
        place = chain.place_in(link, end_offset, last)
        position = None if is_missing else ledger.file_size
        found = damage("segment-short", name, position, cause, effect, RESTORE, place)
        self._report.findings.append(found)

    def _missing_ledger(self, store: Ledgers, chain: Chain, link: LedgerLink) -> None:
        if not store.is_known:
            cause = f"ledger {link.ledger} has no file"
        else:
            cause = f"ledger {link.ledger} is in the chain, but not in the store"
        last = None if link.end_offset is None else link.end_offset - 1
        file = store.folder.name(f"ledgers/{link.ledger & 0xFF:02x}/{link.ledger:016x}.ledger")
        effect = f"{chain.name}: the records of ledger {link.ledger} are not served"
        place = chain.place_in(link, link.base_offset, last)
        self._report.findings.append(
            damage("ledger-missing", file, None, cause, effect, RESTORE, place)
        )

    def _log_damage(
        self,
        kind: str,
        file: str,
        cause: str,
        chain: Chain,
        first: int | None = None,
        last: int | None = None,
    ) -> None:
        effect = f"{chain.name} is not served"
        place = chain.place(first, last)
        found = damage(kind, file, None, cause, effect, f"restore {METADATA} from a backup", place)
        self._report.findings.append(found)

    def _note_tiered(self, chain: Chain, link: LedgerLink) -> None:
        where = "in object storage only"
        if link.tabled_ms is not None:
            where = "a recipe in object storage, and its records are in the topic's table only"
        cause = f"{chain.name}: ledger {link.ledger} is {where}"
        effect = "it was not checked"
        place: RecordRange = chain.place_in(link, link.base_offset, (link.end_offset or 1) - 1)
        self._report.findings.append(note("ledger-tiered", METADATA, cause, effect, place))

    def _check_unnamed(self, named: dict[tuple[int, int], str]) -> None:
        """Report ledgers that are in no chain: left by a crash or a deletion, or their fact was
        lost."""
        if not self._copy.is_there or self._copy.findings:
            return
        for worker, store in self._stores.items():
            for number, ledger in store.by_id.items():
                if (worker, number) not in named:
                    cause = f"ledger {number} of {ledger.end} bytes is in no partition's chain"
                    effect = "left by a crash or a deletion; the next start deletes it"
                    name = store.folder.name(ledger.segment)
                    self._report.findings.append(
                        note("ledger-unnamed", name, cause, effect, RecordRange(number))
                    )
