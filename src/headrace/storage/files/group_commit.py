"""Group commit: all appends in one turn of the loop form one WAL frame and share one sync.

Invariants: runs in the loop's thread; only the fdatasync itself may run in another. A sync covers
the frames that were completely written before it began, no others. A failed write is never assumed
to have succeeded: after a failed sync or WAL write every pending group fails, and no position is
assigned until `resume` reports that a new checkpoint and WAL file are durable.

`append` collects; `_flush`, called once per turn, writes each ledger's bytes to its segment, then
one frame to the WAL; then a sync begins, or the groups wait for the sync in progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.errors import StorageUnavailable
from headrace.runtime.completion import Completion, failed
from headrace.storage.files.format import (
    APPEND,
    CREATE,
    DELETE,
    ENTRY,
    EXTEND,
    FRAME_HEAD,
    SEAL,
    encode_frame_head,
)
from headrace.storage.files.group import AppendRun, Catalog, Change, CommitGroup, Ledger, fresh
from headrace.storage.files.wal_sync import Counters, WalSync
from headrace.storage.files.write_ahead_log import PARTS_MAX, WriteAheadLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.disk import Disk
    from headrace.storage.files.disk_reserve import DiskReserve
    from headrace.storage.files.segments import Segments
    from headrace.storage.ledger import Buffer

FLUSH_MS_MAX: Final = 60_000
"""Upper limit of `flush_ms`: no bytes stay unsynced longer."""
GROUP_BYTES_MAX: Final = 64 << 20
"""Larger groups are split into several frames (a frame's length is a u32)."""
UNSYNCED_BYTES_MAX: Final = 16 << 20
"""More unsynced bytes are synced before `flush_ms`, so that a full WAL file is soon recyclable."""
_JOIN_BYTES_MAX: Final = 32 << 10


class GroupCommit:
    """The writer of a folder."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        wal: WriteAheadLog,
        segments: Segments,
        catalog: Catalog,
        salt: int,
        room: DiskReserve,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._wal = wal
        self._segments = segments
        self._catalog = catalog
        self._salt = salt
        self._room = room
        self.counters = Counters()
        self._sync = WalSync(disk, clock, self.counters)
        self.outage: StorageUnavailable | None = None
        self.attention = asyncio.Event()
        """Set when maintenance is due: a checkpoint or the end of an outage."""
        self.next_sequence = 1
        self.written_sequence = 0
        self.synced_sequence = 0
        self.bytes_since_checkpoint = 0
        self.checkpoint_bytes = 1 << 62
        self._unsynced_sequence = 0
        """The last group with appends acknowledged without a sync."""
        self._unsynced_bytes = 0
        self._sync_wanted = 0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._sync_timer_ms = 0
        self._group: CommitGroup | None = None
        self._full: list[CommitGroup] = []
        self._is_flush_due = False
        self._waiting: deque[CommitGroup] = deque()

    def append(
        self, ledger: Ledger, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore.append."""
        group = self._group
        if group is None or group.size + size > GROUP_BYTES_MAX:
            if self.outage is not None:
                return ledger.end, failed(fresh(self.outage))
            group = self._begin_group()
        run = ledger.run
        position = ledger.end
        if run is None:
            run = ledger.run = AppendRun(ledger, position)
            group.runs.append(run)
        run.parts += parts
        run.end = ledger.end = position + size
        group.size += size
        if flush_ms is None or ledger.sync_until > self.synced_sequence:
            ledger.sync_until = group.sequence
            completion = group.durable
            if completion is None:
                completion = group.durable = Completion()
            return position, completion
        run.written_end = run.end
        written = group.written
        if written is None:
            written = group.written = Completion()
            group.flush_ms = flush_ms
        elif flush_ms < group.flush_ms:
            group.flush_ms = flush_ms
        return position, written

    def change(self, kind: int, ledger: Ledger, payload: bytes = b"") -> Completion:
        """Add a CREATE, SEAL or DELETE to the current group; it is durable on completion."""
        if self.outage is not None:
            return failed(fresh(self.outage))
        group = self._group or self._begin_group()
        group.changes.append(Change(kind, ledger, ledger.end, payload))
        group.size += len(payload)
        return self._durable(group)

    def extend(self, ledger: Ledger, end: int) -> Completion:
        """Note that the segment holds all bytes of the ledger up to `end`, and that they are
        durable there; they are readable on completion."""
        assert ledger.end == ledger.readable < end, "nothing else is appended meanwhile"
        if self.outage is not None:
            return failed(fresh(self.outage))
        group = self._group or self._begin_group()
        ledger.end = end
        group.changes.append(Change(EXTEND, ledger, end, b""))
        return self._durable(group)

    def barrier(self) -> Completion:
        """Completes when everything appended before is durable."""
        if self.outage is not None:
            return failed(fresh(self.outage))
        return self._durable(self._group or self._begin_group())

    @property
    def is_syncing(self) -> bool:
        """Whether a thread uses the WAL's files."""
        return self._sync.is_running

    async def close(self) -> None:
        """Sync what was written. There must be no further appends."""
        if self.outage is None:
            try:
                await self.barrier().wait()
            except StorageUnavailable:
                pass  # the callers waiting for it got the error
        self.abandon()

    def abandon(self) -> None:
        """Stop the sync thread."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self._sync.close()

    def resume(self) -> None:
        """End the outage: a checkpoint up to `next_sequence - 1` and a new WAL file are durable."""
        self.synced_sequence = self.written_sequence = self.next_sequence - 1
        self._sync_wanted = 0
        self._unsynced_bytes = 0
        self.outage = None

    def fail(self, error: OSError, action: str) -> None:
        """Begin an outage: fail all pending groups, and roll back to what was acknowledged."""
        self.outage = self._room.failure(error, action) or StorageUnavailable(
            f"{action} failed ({error}): writes are refused until the store has recovered; "
            "free space or repair the disk, then try again",
            action=action,
            cause=str(error),
        )
        self._spoil_frames()
        groups = [*self._waiting, *self._full]
        if self._group is not None:
            groups.append(self._group)
        self._waiting.clear()
        self._full = []
        self._group = None
        self.attention.set()
        self._fail_groups(groups, self.outage)

    def _spoil_frames(self) -> None:
        """Invalidate the first frame after the last acknowledged one: the log ends there."""
        first = self._wal.rolled_at
        for group in self._waiting:
            if group.sequence > self._unsynced_sequence and group.sequence >= first:
                self._wal.spoil(group.frame)
                return

    def _durable(self, group: CommitGroup) -> Completion:
        if group.durable is None:
            group.durable = Completion()
        return group.durable

    def _begin_group(self) -> CommitGroup:
        full = self._group
        if full is not None:
            for run in full.runs:
                run.ledger.run = None
            self._full.append(full)
        group = self._group = CommitGroup(self.next_sequence)
        self.next_sequence += 1
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)
        return group

    def _flush(self) -> None:
        """Write the groups of this turn."""
        self._is_flush_due = False
        last = self._group
        if last is None:
            return  # an outage has failed the group
        for run in last.runs:
            run.ledger.run = None
        self._full.append(last)
        self._group = None
        while self._full:
            group = self._full[0]  # kept there until it is written, so that an outage finds it
            try:
                if group.runs:
                    self._room.take(group.size)
                body, entries = self._write_segments(group)
            except OSError as error:
                self._fail_unwritten(error)
                return
            if not self._write_frame(group, entries, body):
                return
            del self._full[0]
            if group.durable is not None:
                self._waiting.append(group)
            if group.written is not None:
                self._complete_written(group, group.written)
        if self._room.is_full and last.runs:
            self._room.wrote()
        is_due = self._waiting or self._unsynced_bytes > UNSYNCED_BYTES_MAX
        if is_due and not self._sync.is_running:
            self._begin_sync()

    def _write_segments(self, group: CommitGroup) -> tuple[list[Buffer], bytes]:
        """Write each run to its segment; returns the body and entries of the frame. Raises
        OSError."""
        body: list[Buffer] = []
        heads: list[bytes] = []
        for run in group.runs:
            size = run.end - run.start
            parts = run.parts
            if size == 0:
                continue
            if len(parts) == 1:
                self._segments.write(run.ledger, parts[0], run.start)
                body.append(parts[0])
            elif size < _JOIN_BYTES_MAX or len(parts) > PARTS_MAX:
                data = b"".join(parts)
                self._segments.write(run.ledger, data, run.start)
                body.append(data)
            else:
                self._segments.write_parts(run.ledger, parts, run.start, size)
                body += parts
            heads.append(ENTRY.pack(APPEND, size, run.ledger.id, run.start))
        for change in group.changes:
            if change.kind == SEAL:
                self._segments.write_footer(change.ledger.id, change.position, change.payload)
            heads.append(
                ENTRY.pack(change.kind, len(change.payload), change.ledger.id, change.position)
            )
            body.append(change.payload)
        return body, b"".join(heads)

    def _write_frame(self, group: CommitGroup, entries: bytes, body: list[Buffer]) -> bool:
        """Write the group's frame; returns False if an outage began."""
        wal = self._wal
        size = FRAME_HEAD.size + len(entries) + group.size
        try:
            if not wal.has_room(size):
                wal.roll(size)
                self.attention.set()
            head = encode_frame_head(
                self._salt, wal.number, group.sequence, self.synced_sequence, entries, body
            )
            group.frame = wal.write(head, body, size, group.sequence)
        except OSError as error:
            self.counters.errors += 1
            wal.spoil(wal.next_start())
            self.fail(error, "writing the WAL")
            return False
        assert group.sequence == self.written_sequence + 1, "frames are written in sequence"
        self.written_sequence = group.sequence
        self.bytes_since_checkpoint += size
        self._unsynced_bytes += size
        counters = self.counters
        counters.groups += 1
        counters.wal_bytes += size
        counters.append_bytes += group.size
        if self.bytes_since_checkpoint > self.checkpoint_bytes:
            self.attention.set()
        return True

    def _complete_written(self, group: CommitGroup, written: Completion) -> None:
        """Publish and complete the appends that requested no sync."""
        for run in group.runs:
            if run.written_end > run.start:
                assert run.ledger.readable == run.start, "appends complete in order"
                run.ledger.readable = run.written_end
        self._unsynced_sequence = group.sequence
        self._sync_within(group.flush_ms)
        written.succeed()

    def _begin_sync(self) -> None:
        size, self._unsynced_bytes = self._unsynced_bytes, 0
        begin = self._sync.begin if self._waiting else self._sync.begin_in_thread
        begin(self._wal.begin_sync(), size, self._sync_ended, self.written_sequence)

    def _sync_ended(self, error: OSError | None, covers: int) -> None:
        if self.outage is not None:
            self.attention.set()  # the files may be closed now
            return
        if error is not None:
            # The kernel may have dropped dirty pages: none of them can be trusted.
            self.counters.errors += 1
            self.fail(error, "syncing the WAL")
            return
        self.synced_sequence = covers
        waiting = self._waiting
        while waiting and waiting[0].sequence <= covers:
            self._acknowledge(waiting.popleft())
        if not self._sync.is_running and (waiting or self._sync_wanted > self.synced_sequence):
            self._begin_sync()

    def _acknowledge(self, group: CommitGroup) -> None:
        for run in group.runs:
            # A later group without a sync may have advanced it already.
            if run.ledger.readable < run.end:
                run.ledger.readable = run.end
        for change in group.changes:
            self._apply(change)
        assert group.durable is not None, "only groups with a durable completion wait"
        group.durable.succeed()

    def _apply(self, change: Change) -> None:
        ledger = change.ledger
        if change.kind == CREATE:
            self._catalog.ledgers[ledger.id] = ledger
        elif change.kind == SEAL:
            assert ledger.end == ledger.readable == change.position, "nothing follows a seal"
            ledger.seal()
        elif change.kind == DELETE:
            self._catalog.ledgers.pop(ledger.id, None)
            self._segments.forget(ledger)
        elif change.kind == EXTEND:
            ledger.readable = change.position

    def _fail_unwritten(self, error: OSError) -> None:
        """A segment write failed: nothing reached the WAL, so the positions can be reused."""
        self.counters.errors += 1
        groups, self._full = self._full, []
        if self._group is not None:  # begun by a callback of a group written before
            groups.append(self._group)
            self._group = None
        self.next_sequence = groups[0].sequence
        failure = self._room.failure(error, "writing a segment") or StorageUnavailable(
            f"writing a segment failed ({error}): nothing of this group was stored; "
            "free space or repair the disk, then try again",
            action="writing a segment",
            cause=str(error),
        )
        self._fail_groups(groups, failure)
        if self._waiting and not self._sync.is_running:
            self._begin_sync()

    def _fail_groups(self, groups: list[CommitGroup], failure: StorageUnavailable) -> None:
        for group in reversed(groups):
            for run in group.runs:
                ledger = run.ledger
                ledger.run = None
                ledger.end = max(run.start, ledger.readable)
                self._segments.discard_failed(ledger)
            for change in group.changes:
                change.ledger.unblock()
                if change.kind == EXTEND:
                    change.ledger.end = change.ledger.readable
        for group in groups:
            if group.written is not None and not group.written.done:
                group.written.fail(failure)
            if group.durable is not None:
                group.durable.fail(failure)

    def _sync_within(self, flush_ms: int) -> None:
        """Ensure that everything written so far is synced within `flush_ms`."""
        timer = self._sync_timer
        if timer is not None and self._sync_timer_ms <= flush_ms:
            return  # a timer that was set earlier is due no later
        due = self._loop.time() + min(flush_ms, FLUSH_MS_MAX) / 1000
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._sync_timer = self._loop.call_at(due, self._sync_due)
        self._sync_timer_ms = flush_ms

    def _sync_due(self) -> None:
        self._sync_timer = None
        if self.outage is None and self.written_sequence > self.synced_sequence:
            self._sync_wanted = self.written_sequence
            if not self._sync.is_running:
                self._begin_sync()
