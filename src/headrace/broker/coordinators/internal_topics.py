"""A partition of an internal topic as a log of coordinator records.

Invariants: a coordinator's append is an ordinary record batch in the partition's log. Once a
snapshot is durable, the log before it is dropped, so the topic stays as small as the state.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.broker.coordinators.shard_log import PendingRecord, Replayed
from headrace.coordination.kit.machine import EndsTransaction, InTransaction, TransactionEnded
from headrace.errors import HeadraceError, OffsetOutOfRange, StorageUnavailable
from headrace.log.appended import Appended
from headrace.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    iterate_headers,
    read_header,
)
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace.records.keys_and_values import decode_keys_and_values
from headrace.records.marker import read_marker
from headrace.runtime.completion import Completion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

KeyValue = tuple[bytes | None, bytes | None]
REPLAY_BYTES = 1024 * 1024
READY_ATTEMPTS_MAX = 8


class InternalPartition:
    """Implements `coordinator_shard.ShardLog` over a PartitionLog."""

    def __init__(self, partition: PartitionLog, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock

    @property
    def leader_epoch(self) -> int:
        """The epoch under which this broker owns the partition: the coordinator epoch."""
        return self._partition.leader_epoch

    @property
    def batch_bytes_max(self) -> int:
        """See ShardLog."""
        return self._partition.config.max_message_bytes

    def append(
        self, records: list[KeyValue], transaction: InTransaction | None = None
    ) -> Completion:
        """See ShardLog."""
        partition, batch = self._partition, self._encode(records, transaction)
        header = read_header(batch)
        if transaction is None:
            return self._appended(lambda: partition.append(batch, header))
        return self._appended(lambda: partition.append_by_coordinator(batch, header))

    def append_marker(self, marker: EndsTransaction) -> Completion:
        """See ShardLog."""
        return self._appended(
            lambda: self._partition.append_marker(
                marker.producer_id,
                marker.producer_epoch,
                marker.coordinator_epoch,
                is_commit=marker.is_commit,
                transaction_version=marker.transaction_version,
            )
        )

    def _encode(self, records: list[KeyValue], transaction: InTransaction | None) -> bytes:
        now_ms = self._clock.now_ms()
        plain = [Record(i, now_ms, k, v) for i, (k, v) in enumerate(records)]
        if transaction is None:
            return encode_batch(plain)
        return encode_batch(
            plain,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            is_transactional=True,
        )

    def _appended(self, write: Callable[[], Appended | None]) -> Completion:
        """Completes when the record batch that `write` appends is durable."""
        completion = Completion()

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

        self._write(write, appended, READY_ATTEMPTS_MAX)
        return completion

    def _write(
        self,
        write: Callable[[], Appended | None],
        appended: Callable[[Appended | HeadraceError], None],
        attempts: int,
    ) -> None:
        """Append now, or as soon as the partition is ready."""
        try:
            outcome = write()
        except HeadraceError as error:
            appended(error)
            return
        if outcome is not None:
            appended(outcome)
            return
        ready = self._partition.ready
        if ready is None or attempts == 0:
            appended(
                StorageUnavailable(
                    f"{self._partition.name} does not accept writes at the moment: try again"
                )
            )
            return

        def again(error: BaseException | None, _context: object) -> None:
            if isinstance(error, HeadraceError):
                appended(error)
            else:
                self._write(write, appended, attempts - 1)

        ready.then(again, None)

    async def replay(self, after: int | None = None) -> AsyncIterator[Replayed]:
        """See ShardLog."""
        await self._partition.wait_settled()
        while self._partition.has_pending:  # of a coordinator that was closed
            await self._partition.settled()
            await self._partition.wait_settled()
        start = self._partition.log_start_offset
        if after is not None and after < start:
            raise OffsetOutOfRange(f"{self._partition.name} begins at offset {start} now")
        async for replayed in self.replay_from(start if after is None else after):
            yield replayed

    async def replay_from(self, start: int) -> AsyncIterator[Replayed]:
        """The records of the partition from `start` on."""
        partition, offset = self._partition, start
        while offset < partition.high_watermark:
            data = await partition.reader.read(offset, REPLAY_BYTES)
            for position, header in iterate_headers(data):
                if header.base_offset >= offset and not header.attributes & (
                    CONTROL | TRANSACTIONAL
                ):
                    yield decode_keys_and_values(data, position)
                else:
                    for replayed_offset, replayed in _replayed(data, position, header):
                        if replayed_offset >= offset:
                            yield replayed
                offset = max(offset, header.last_offset + 1)

    def begin_snapshot(self) -> int:
        """See ShardLog."""
        partition = self._partition
        # Not the offset at its end: a transaction may end in between, and its records are needed,
        # since the snapshot may have been written before its marker.
        return min(partition.end_offset, partition.visibility.last_stable_offset)

    async def end_snapshot(self, needed_from: int) -> None:
        """See ShardLog."""
        try:
            # The snapshot's ledger stays, earlier ones are deleted; without an occasional roll the
            # first ledger would keep everything.
            await self._partition.roll_now()
            await self._partition.trim(needed_from)
        except (StorageUnavailable, OffsetOutOfRange) as error:
            log.warning("%s: cannot trim old records yet: %s", self._partition.name, error)


def _replayed(data: Buffer, position: int, header: BatchHeader) -> Iterator[tuple[int, Replayed]]:
    """Decode a batch of the log, with offsets."""
    if header.attributes & CONTROL:
        marker = read_marker(data, position)
        if marker is not None:
            yield header.base_offset, TransactionEnded(header.producer_id, marker.is_commit)
    elif header.attributes & TRANSACTIONAL:
        transaction = InTransaction(header.producer_id, header.producer_epoch)
        for record in decode_batch(data, position):
            yield record.offset, PendingRecord(transaction, record.key, record.value)
    else:
        for record in decode_batch(data, position):
            yield record.offset, [(record.key, record.value)]
