"""A partition of an internal topic as the coordinators see it: records in, records out.

Rules of the room: what a coordinator appends is a record batch like any other, in the partition's
log. A snapshot is the whole state appended once more; what lies before it is then dropped, so the
topic stays as small as the state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, OffsetOutOfRange, StorageUnavailable
from headrace.log.partition_log import Appended, PartitionLog
from headrace.log.reading import read
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.completion import Completion, completed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks
    from headrace.storage.ledger import LedgerStore

log = logging.getLogger(__name__)

KeyValue = tuple[bytes | None, bytes | None]
REPLAY_BYTES = 1024 * 1024
SNAPSHOT_BATCH_RECORDS = 1_000
READY_ATTEMPTS_MAX = 8


class InternalPartition:
    """Implements `coordinator_shard.ShardLog` over a PartitionLog."""

    def __init__(
        self, partition: PartitionLog, store: LedgerStore, clock: Clock, tasks: Tasks
    ) -> None:
        self._partition = partition
        self._store = store
        self._clock = clock
        self._tasks = tasks

    def append(self, records: list[KeyValue]) -> Completion:
        """See ShardLog."""
        completion = Completion()
        batch = self._encode(records)

        def stored(error: BaseException | None, _context: object) -> None:
            if error is None:
                completion.succeed()
            else:
                completion.fail(error)

        def appended(outcome: Appended | HeadraceError) -> None:
            if isinstance(outcome, Appended):
                outcome.completion.then(stored, None)
            else:
                completion.fail(outcome)

        self._append(batch, appended, READY_ATTEMPTS_MAX)
        return completion

    def _encode(self, records: list[KeyValue]) -> bytes:
        now_ms = self._clock.now_ms()
        return encode_batch([Record(i, now_ms, k, v) for i, (k, v) in enumerate(records)])

    def _append(
        self, batch: bytes, appended: Callable[[Appended | HeadraceError], None], attempts: int
    ) -> None:
        """Append now, or as soon as the partition is ready for it."""
        try:
            outcome = self._partition.append(batch, read_header(batch))
        except HeadraceError as error:
            appended(error)
            return
        if outcome is not None:
            appended(outcome)
            return
        ready = self._partition.ready
        if ready is None or attempts == 0:
            appended(StorageUnavailable(f"{self._partition.name} cannot be written now"))
            return

        def again(error: BaseException | None, _context: object) -> None:
            if isinstance(error, HeadraceError):
                appended(error)
            else:
                self._append(batch, appended, attempts - 1)

        ready.then(again, None)

    async def replay(self) -> AsyncIterator[KeyValue]:
        """See ShardLog."""
        partition = self._partition
        await partition.wait_loaded()
        if partition.upkeep.to_resume is not None and partition.ready is not None:
            # An append is in doubt. If it turns out to be stored, whoever reads this log next
            # finds it: it belongs to the state here as well.
            partition.upkeep.require_active()
            await partition.ready.wait()
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            data = await read(partition, self._store, offset, REPLAY_BYTES)
            for record in iterate_records(data):
                if record.offset >= offset:
                    yield record.key, record.value
                    offset = record.offset + 1

    def snapshot(self, records: list[KeyValue]) -> Completion:
        """See ShardLog."""
        start = self._partition.end_offset
        parts = [
            self.append(records[first : first + SNAPSHOT_BATCH_RECORDS])
            for first in range(0, len(records), SNAPSHOT_BATCH_RECORDS)
        ]
        self._tasks.spawn(self._trim(parts, start), f"{self._partition.name} snapshot")
        return parts[-1] if parts else completed()

    async def _trim(self, parts: list[Completion], start: int) -> None:
        try:
            for part in parts:  # what was there before goes only when every part is safe
                await part.wait()
            # The ledger of the snapshot stays, those before it go; without a roll here and there
            # the first ledger would keep everything.
            await self._partition.upkeep.roll_now()
            await self._partition.upkeep.trim(min(start, self._partition.high_watermark))
        except (StorageUnavailable, OffsetOutOfRange) as error:
            log.warning("%s: its old records stay for now: %s", self._partition.name, error)
