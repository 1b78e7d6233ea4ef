"""Compacts the sealed ledgers of one partition: reads them, writes new ones, swaps them in.

Invariants: `rounds` decides which records are retained. Only ledgers that are sealed according
to the chain, and end at or before the last stable offset, are compacted, oldest first. A new ledger
is complete, sealed and verified before one compare-and-set of the chain replaces the old ones with
it; so after a crash at any point the chain names either the old ledgers or the new one, and the
others are orphans, which are garbage-collected as after any crash. If the compare-and-set raises,
it is unknown which of them the stored chain names, so neither is deleted. Readers switch at once;
the caller deletes the old ledgers later, so that reads in progress can complete.

Consecutive ledgers of one leader epoch are merged, up to `segment.bytes` of old bytes. A new
ledger's footer has the producers of the last old one, so idempotence is preserved, whichever
batches were removed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.errors import (
    BatchCorrupt,
    DataCorrupt,
    HeadraceError,
    LedgerUnknown,
    NotOwner,
)
from headrace.log.aborted_index import ENTRIES_MAX
from headrace.log.compaction.cleanable import cleanable_segments, is_served
from headrace.log.compaction.rounds import KEYS_MAX, whole_of
from headrace.log.compaction.workers import Job, LoopWorker, ProcessWorker
from headrace.log.sealed_runs import SealedRuns
from headrace.log.sealing import encoded
from headrace.log.segment import Segment, producers_after
from headrace.metadata.facts import LedgerLink
from headrace.records.batch import is_intact, iterate_headers
from headrace.storage.ledger import NamesFiles, WritesInBulk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.log.compaction.rounds import BatchRun
    from headrace.log.compaction.workers import CompactionWorker, MapProgress, Rewritten
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.records.batch import Buffer
    from headrace.runtime.completion import Completion
    from headrace.storage.ledger import BulkWriter, LedgerId

logger = logging.getLogger(__name__)

READ_BYTES: Final = 256 * 1024
"""Per read: its CRCs are verified without a pause, while clients wait."""
WRITE_BYTES: Final = 1024 * 1024
BULK_BYTES_MIN = 8 * 1024 * 1024
"""Of old bytes: fewer do not justify the syncs of a separate file."""
RECORD_BYTES: Final = 800
"""Minimum size assumed per record: the work is per record, and a batch may be compressed."""
PAUSE_BATCHES: Final = 1_000  # with header and CRC verified: about 3 ms of work


class Pace(Protocol):
    """Limits the speed of a round."""

    async def pause(self) -> None:
        """Yield to other work, about 3 ms after the last pause."""
        ...

    async def spend(self, size: int) -> None:
        """Wait until another `size` bytes may be read or written."""
        ...


class NoPace:
    """No rate limit; only yields to the event loop."""

    async def pause(self) -> None:
        """See Pace."""
        await asyncio.sleep(0)

    async def spend(self, size: int) -> None:
        """See Pace."""
        await asyncio.sleep(0)


class RoundSummary(NamedTuple):
    """The result of one round."""

    read_bytes: int
    written_bytes: int
    removed_records: int
    replaced: Sequence[LedgerId]
    """Ledgers that the chain no longer names: the caller deletes them when no read needs them.
    If brokers share the ledgers, the garbage collector does."""
    is_complete: bool
    """False if the partition was moved, trimmed or deleted meanwhile, which is not an error."""


class _Stopped(Exception):
    """Not an error: the partition has changed since the round began."""


class Cleaner:
    """One compaction round of one partition."""

    def __init__(
        self,
        log: PartitionLog,
        environment: Environment,
        pace: Pace | None = None,
        *,
        keys_max: int = KEYS_MAX,
        build_ms_max: int = 15 * 60 * 1000,
        process_bytes_min: int | None = None,
    ) -> None:
        """`build_ms_max`: how long a new ledger may exist outside the chain, if a garbage collector
        deletes unreferenced ledgers. `process_bytes_min`: a round that has to read more runs in a
        separate process; None: never."""
        self._log = log
        self._environment = environment
        self._store = environment.store
        self._pace = pace or NoPace()
        self._keys_max = keys_max
        self._build_ns_max = build_ms_max * 1_000_000
        self._process_bytes_min = process_bytes_min
        self._unpaused_batches = 0
        self._read_bytes = 0
        self._written_bytes = 0
        self._removed_records = 0
        self._dropped_markers: set[int] = set()
        self._storing: Completion | None = None
        self._bulk: BulkWriter | None = None
        self._replaced: list[Segment] = []

    async def run(self) -> RoundSummary:
        """Compact once. Raises DataCorrupt and the errors of storage and metadata; no data is lost,
        the next round starts over, and `replaced` lists the ledgers replaced before the error."""
        is_complete = True
        now_ms = self._environment.clock.now_ms()
        segments = cleanable_segments(self._log, now_ms)
        try:
            await self._compact(segments, now_ms)
        except (_Stopped, NotOwner):
            is_complete = False
        except BatchCorrupt as error:
            raise DataCorrupt(
                f"{self._log.name} cannot be compacted, and retains all records: {error}; delete"
                " the records up to there, or set cleanup.policy=delete"
            ) from error
        except LedgerUnknown as error:
            # Trimming or deleting a partition removes the bytes at once.
            named = {segment.ledger for segment in self._log.segments}
            if error.fields.get("ledger") in named and is_served(self._log):
                raise
            is_complete = False
        replaced = [segment.ledger for segment in self._replaced]
        return RoundSummary(
            self._read_bytes, self._written_bytes, self._removed_records, replaced, is_complete
        )

    @property
    def replaced(self) -> Sequence[Segment]:
        """Ledgers that the chain no longer names, also after an error."""
        return self._replaced

    async def _compact(self, segments: list[Segment], now_ms: int) -> None:
        log = self._log
        cleaned = log.lifecycle_host.chain.fact.cleaned_offset or 0
        dirty = [segment for segment in segments if segment.end_offset > cleaned]
        if not dirty:
            return
        aborted = await self._aborted(segments[0].base_offset, segments[-1].end_offset)
        job = Job(aborted, self._keys_max, now_ms, log.config.delete_retention_ms)
        size = sum(segment.end_position for segment in dirty)
        size = max(size, RECORD_BYTES * sum(one.end_offset - one.base_offset for one in dirty))
        worker: CompactionWorker = LoopWorker(job, self._pace.pause)
        if self._process_bytes_min is not None and size > self._process_bytes_min:
            worker = await ProcessWorker.start(job)
        try:
            end_offset = await self._map(worker, dirty, max(cleaned, log.log_start_offset))
            begun = [segment for segment in segments if segment.base_offset < end_offset]
            for group in await self._groups(begun):
                await self._replace(group, worker)
        finally:
            await worker.close()

        async def note() -> None:
            if end_offset > cleaned and is_served(log):
                await log.lifecycle_host.chain.cleaned(end_offset)

        await log.lifecycle_host.do(note(), "update of the cleaned offset")

    # --- reading -----------------------------------------------------------------------------

    async def _aborted(self, offset: int, end_offset: int) -> list[tuple[int, int, int]]:
        """(producer id, first offset, offset of the marker) of aborted transactions in a range.

        The range ends at or before the last stable offset, so every transaction has its marker.
        """
        found: list[tuple[int, int, int]] = []
        for segment in list(self._log.segments):
            if segment.end_offset <= offset:
                continue
            await self._log.reader.load_index(segment)
            index = segment.aborted
            if index is not None:
                columns = zip(
                    index.producer_ids, index.first_offsets, index.marker_offsets, strict=True
                )
                found += [entry for entry in columns if entry[1] < end_offset]
            if segment.first_open_offset >= end_offset and segment.end_offset >= end_offset:
                break
        return found

    async def _map(self, worker: CompactionWorker, dirty: list[Segment], offset: int) -> int:
        """Build the key map. Returns its end: later batches wait for the next round."""
        end_offset: int | None = None
        for segment in dirty:
            async for is_full in self._mapped(segment, offset, worker):
                if is_full:
                    return (await worker.end_map(None))[0]
            end_offset = segment.end_offset
        return (await worker.end_map(end_offset))[0]

    async def _mapped(
        self, segment: Segment, offset: int, worker: CompactionWorker
    ) -> AsyncIterator[bool]:
        """Add a ledger to the map, piece by piece; yields whether the map is full."""
        if (path := await self._file(segment, worker)) is not None:
            assert isinstance(worker, ProcessWorker)
            async for mapped in worker.map_file(segment, path, offset):
                await self._file_was_read(segment, mapped)
                yield mapped.is_full
        else:
            async for run in self._runs(segment):
                yield await worker.map(run, offset)

    async def _file(self, segment: Segment, worker: CompactionWorker) -> str | None:
        """The file of a sealed ledger, if the worker can read it itself."""
        if segment not in self._log.segments:  # deleted by retention
            raise _Stopped
        await self._log.reader.load_index(segment)
        if not (isinstance(worker, ProcessWorker) and worker.reads_files):
            return None
        return self._store.file_of(segment.ledger) if isinstance(self._store, NamesFiles) else None

    async def _file_was_read(self, segment: Segment, piece: MapProgress | Rewritten) -> None:
        if not is_served(self._log) or segment not in self._log.segments:
            raise _Stopped
        self._read_bytes += piece.read_bytes
        await self._pace.spend(piece.read_bytes)

    async def _runs(self, segment: Segment) -> AsyncIterator[BatchRun]:
        """All batches of a sealed ledger, with CRC and placement verified."""
        if segment not in self._log.segments:  # deleted by retention
            raise _Stopped
        await self._log.reader.load_index(segment)
        runs = SealedRuns(segment, segment.end_position, READ_BYTES)
        while size := runs.size:
            if not is_served(self._log):
                raise _Stopped
            await self._pace.spend(size)
            position = runs.position
            run = runs.take(await self._store.read(segment.ledger, position, size))
            if run is None:
                continue
            yield run
            self._read_bytes += runs.position - position
            self._unpaused_batches += len(run.batches)
            if self._unpaused_batches >= PAUSE_BATCHES:
                self._unpaused_batches = 0
                await self._pace.pause()

    # --- writing -----------------------------------------------------------------------------

    async def _groups(self, segments: list[Segment]) -> list[list[Segment]]:
        """Group the ledgers that are merged into one."""
        groups: list[list[Segment]] = []
        size = entries = 0
        for segment in segments:
            if segment not in self._log.segments:  # deleted by retention
                raise _Stopped
            await self._log.reader.load_index(segment)  # it may have been evicted
            more = len(segment.aborted) if segment.aborted is not None else 0
            before = groups[-1][-1] if groups else None
            if (
                before is None
                or before.leader_epoch != segment.leader_epoch
                or before.end_offset != segment.base_offset
                or size + segment.end_position > self._log.config.segment_bytes
                or entries + more > ENTRIES_MAX
            ):
                groups.append([])
                size = entries = 0
            groups[-1].append(segment)
            size, entries = size + segment.end_position, entries + more
        return [group for group in groups if any(segment.end_position for segment in group)]

    async def _replace(self, group: list[Segment], worker: CompactionWorker) -> None:
        """Write the retained batches of these ledgers to a new one, which replaces them."""
        log, store = self._log, self._store
        begin_ns = self._environment.clock.now_ns()
        # No label `partition`: the ledger belongs to one only when a chain names it.
        labels = {
            "compacted": log.name.encode(),
            "topic": log.lifecycle_host.chain.topic_id.hex.encode(),
            "epoch": b"%d" % log.leader_epoch,
            "base": b"%d" % group[0].base_offset,
            "end": b"%d" % group[-1].end_offset,
        }
        ledger = await store.create(labels, log.config.copies)
        new = Segment(ledger, group[0].base_offset, group[0].leader_epoch)
        new.is_compacted = True
        self._storing = None
        try:
            is_changed = await self._write_whole(group, new, worker)
            if is_changed or len(group) > 1:
                await self._finish(group, new)
        except BaseException:
            # It was never in a chain, so it can be deleted; if that fails, it is an orphan.
            self._environment.tasks.spawn(self._drop(ledger), "drop of a compacted ledger")
            raise
        if not is_changed and len(group) == 1:
            await self._drop(ledger)
            return
        await self._swap(group, new, begin_ns)

    async def _drop(self, ledger: LedgerId) -> None:
        try:
            await self._store.delete(ledger)
        except HeadraceError:
            pass  # an orphan: collected later

    async def _write_whole(
        self, group: list[Segment], new: Segment, worker: CompactionWorker
    ) -> bool:
        """Write the new ledger, in bulk if the store supports that, so that small appends do not
        wait for it."""
        size = sum(segment.end_position for segment in group)
        if size < BULK_BYTES_MIN or not isinstance(self._store, WritesInBulk):
            return await self._write(group, new, worker)
        self._bulk = bulk = self._store.bulk_writer(new.ledger)
        try:
            is_changed = await self._write(group, new, worker)
            if bulk is not None and (is_changed or len(group) > 1):  # else it is dropped
                await bulk.finish()
            return is_changed
        finally:
            self._bulk = None
            if bulk is not None:
                bulk.close()

    async def _write(self, group: list[Segment], new: Segment, worker: CompactionWorker) -> bool:
        """Append the retained batches. Returns whether anything has changed."""
        end_offset, is_changed = group[-1].end_offset, False
        left: list[Buffer] = []
        size = 0
        for segment in group:
            async for batches, are_changed in self._left(segment, new, end_offset, worker):
                is_changed = is_changed or are_changed
                _note(new, batches, new.end_position + size)
                left.append(batches)
                size += len(batches)
                if size >= WRITE_BYTES:
                    await self._append(new, left, size)
                    left, size = [], 0
        if size:
            await self._append(new, left, size)
        await self._stored()
        if new.end_offset != end_offset:
            raise new.corrupt(new.end_position, f"it would end at {new.end_offset}")
        return is_changed

    async def _left(
        self, segment: Segment, new: Segment, end_offset: int, worker: CompactionWorker
    ) -> AsyncIterator[tuple[Buffer, bool]]:
        """The retained batches of a ledger, piece by piece, and whether anything has changed."""
        if (path := await self._file(segment, worker)) is not None:
            assert isinstance(worker, ProcessWorker)
            async for piece in worker.rewrite_file(segment, path, new.base_offset, end_offset):
                await self._file_was_read(segment, piece)
                self._removed_records += piece.removed_records
                self._dropped_markers.update(piece.dropped_markers)
                yield piece.batches, piece.is_changed
            return
        async for run in self._runs(segment):
            rewritten = await worker.rewrite(run, new.base_offset, end_offset)
            self._removed_records += rewritten.removed_records
            self._dropped_markers.update(rewritten.dropped_markers)
            batches, is_changed = whole_of(run, rewritten)
            yield b"".join(batches), is_changed

    async def _append(self, new: Segment, parts: list[Buffer], size: int) -> None:
        """Pass to the store, which writes it while the next piece is read."""
        await self._pace.spend(size)
        await self._stored()
        if self._bulk is not None:
            self._storing = self._bulk.write(parts, size)
        else:
            position, self._storing = self._store.append(new.ledger, parts, size, None)
            assert position == new.end_position, "a new ledger has one writer"
        new.end_position += size
        self._written_bytes += size

    async def _stored(self) -> None:
        storing, self._storing = self._storing, None
        if storing is not None:
            await storing.wait()

    async def _finish(self, group: list[Segment], new: Segment) -> None:
        """Seal the new ledger, and verify that it is complete."""
        log, store = self._log, self._store
        new.max_timestamp_ms = new.safe_max_timestamp_ms = new.index.max_timestamp_ms
        new.first_append_ms = next((s.first_append_ms for s in group if s.first_append_ms >= 0), -1)
        for segment in group:
            await log.reader.load_index(segment)
            if segment.aborted is not None:
                new.abort_all(segment.aborted.without(self._dropped_markers))
        if not self._is_unchanged(group):
            raise _Stopped
        before = log.segments[: log.segments.index(group[-1]) + 1]
        producers = await producers_after(before, store, self._environment.clock.now_ms())
        footer = await encoded(new.footer_with(producers))
        await store.seal(new.ledger, footer)
        info = await store.recover(new.ledger)
        if not info.is_sealed or info.end != new.end_position or info.footer != footer:
            raise new.corrupt(info.end, "the stored ledger differs from what was written")
        new.is_sealed = True
        new.verified_from, new.verified_to = 0, new.end_position

    def _is_unchanged(self, group: list[Segment]) -> bool:
        segments = self._log.segments
        if not is_served(self._log) or group[0] not in segments:
            return False
        at = segments.index(group[0])
        return segments[at : at + len(group)] == group

    async def _swap(self, group: list[Segment], new: Segment, begin_ns: int) -> None:
        log, environment = self._log, self._environment
        link = LedgerLink(
            new.ledger,
            new.base_offset,
            new.leader_epoch,
            new.first_append_ms,
            new.end_position,
            new.end_offset,
            new.max_timestamp_ms,
        )
        ledgers = [segment.ledger for segment in group]
        is_swapped: bool | None = None

        def swapped() -> None:
            known = [one.ledger for one in log.segments]
            if ledgers[0] in known:  # it may have been reloaded
                at = known.index(ledgers[0])
                log.segments[at : at + len(ledgers)] = [new]

        async def swap() -> None:
            nonlocal is_swapped
            if not self._is_unchanged(group):
                is_swapped = False
                return
            if environment.is_shared and environment.clock.now_ns() - begin_ns > self._build_ns_max:
                is_swapped = False  # it may be about to be garbage-collected as an orphan
                logger.warning("%s: writing a compacted ledger took too long: dropped", log.name)
                return
            is_swapped = await log.lifecycle_host.chain.replace(ledgers, link, swapped)

        # None: an earlier step failed, or the compare-and-set did; see the module's docstring.
        await log.lifecycle_host.do(swap(), "swap of compacted ledgers")
        if is_swapped is False:
            await self._drop(new.ledger)
        if not is_swapped:
            raise _Stopped
        if log.indexes is not None:
            for segment in group:
                log.indexes.forget(segment)
            log.indexes.note(new)
        self._replaced += group


def _note(new: Segment, batches: Buffer, position: int) -> None:
    """Verify batches to be appended there, and add them to the index. Raises BatchCorrupt,
    DataCorrupt."""
    end = 0
    for at, header in iterate_headers(batches):
        if header.base_offset < new.end_offset or header.leader_epoch != new.leader_epoch:
            raise new.corrupt(position + at, f"offset {header.base_offset} does not belong there")
        if not is_intact(batches, at, header):
            raise new.corrupt(position + at, "the CRC of a batch does not match")
        new.index.add(header.base_offset, position + at, header.max_timestamp_ms)
        new.end_offset = header.last_offset + 1
        end = at + header.size
    if end != len(batches):
        raise new.corrupt(position + end, "a batch is truncated")
