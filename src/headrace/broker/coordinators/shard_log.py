"""The seam between a coordinator's shard and the partition that holds its records.

Invariants: reads and appends records in log order; records of a transaction are marked as such, and
markers are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.coordination.kit.machine import EndsTransaction, InTransaction, TransactionEnded
from headrace.errors import (
    BatchTooLarge,
    ProducerFenced,
    RecordInvalid,
    TransactionCoordinatorFenced,
    TransactionUnverified,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.runtime.completion import Completion

RECORD_OVERHEAD_BYTES = 16
BATCH_OVERHEAD_BYTES = 64

LogRecord = tuple[bytes | None, bytes | None]

REFUSALS = (
    BatchTooLarge,
    RecordInvalid,
    ProducerFenced,
    TransactionCoordinatorFenced,
    TransactionUnverified,
)
"""The log is healthy but refuses this batch: nothing was appended."""


class PendingRecord(NamedTuple):
    """A record of the log that belongs to a transaction."""

    transaction: InTransaction
    key: bytes | None
    value: bytes | None


Replayed = list[LogRecord] | PendingRecord | TransactionEnded
"""The non-transactional records of a batch, a transactional record, or a transaction's end."""


class ShardLog(Protocol):
    """One partition of the internal topic, as its shard needs it."""

    @property
    def leader_epoch(self) -> int:
        """The epoch under which this broker owns the partition: the coordinator epoch."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """The largest record batch that the log accepts."""
        ...

    def append(
        self, records: list[LogRecord], transaction: InTransaction | None = None
    ) -> Completion:
        """Append one record batch in this turn of the loop.

        Completes when it is durable, in append order; fails with StorageUnavailable, BatchTooLarge
        or, if the log knows a newer producer epoch, ProducerFenced.
        """
        ...

    def append_marker(self, marker: EndsTransaction) -> Completion:
        """Append the marker of a transaction; as `append`.

        Also fails with TransactionCoordinatorFenced on an older coordinator epoch.
        """
        ...

    def replay(self, after: int | None = None) -> AsyncIterator[Replayed]:
        """All records to the log's end, in order: from its start, or from the offset `after`.

        Raises OffsetOutOfRange if the log begins later than that.
        """
        ...

    def begin_snapshot(self) -> int:
        """The offset from which the log is needed once a snapshot that begins now is durable.

        Records of open transactions are not part of the state yet: they are needed until the
        transactions end.
        """
        ...

    async def end_snapshot(self, needed_from: int) -> None:
        """A snapshot is durable: trim the log before `needed_from`.

        The trim may fail: replaying records twice yields the same state.
        """
        ...


def size_of(records: list[LogRecord]) -> int:
    """Approximate size of these records in the log."""
    return sum(len(k or b"") + len(v or b"") + RECORD_OVERHEAD_BYTES for k, v in records)
