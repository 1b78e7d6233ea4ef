"""The seam between a coordinator's shard and the partition that holds its records.

Invariants: records in, records out, in the order of the log; what belongs to a transaction is said,
and so are the markers that end one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.coordination.machine import EndsTransaction, InTransaction, TransactionEnded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.runtime.completion import Completion

RECORD_OVERHEAD_BYTES = 16
BATCH_OVERHEAD_BYTES = 64

LogRecord = tuple[bytes | None, bytes | None]


class PendingRecord(NamedTuple):
    """A record of the log that belongs to a transaction."""

    transaction: InTransaction
    key: bytes | None
    value: bytes | None


Replayed = list[LogRecord] | PendingRecord | TransactionEnded
"""The records of a batch outside of transactions, one of a transaction, or a transaction's end."""


class ShardLog(Protocol):
    """One partition of the internal topic, as its shard needs it."""

    @property
    def leader_epoch(self) -> int:
        """Under which this broker owns the partition: the epoch of the coordinator."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """The largest record batch that the log takes."""
        ...

    def append(
        self, records: list[LogRecord], transaction: InTransaction | None = None
    ) -> Completion:
        """Append one record batch in this turn of the loop.

        Completes when it is durable, in the order of the appends; fails with StorageUnavailable,
        with BatchTooLarge, or, of an older producer epoch than the log knows, with ProducerFenced.
        """
        ...

    def append_marker(self, marker: EndsTransaction) -> Completion:
        """Append the marker of a transaction; as `append`.

        Fails with TransactionCoordinatorFenced on an older coordinator epoch, too.
        """
        ...

    def replay(self) -> AsyncIterator[Replayed]:
        """All records from the log's start to its end, in order."""
        ...

    def begin_snapshot(self) -> int:
        """From which offset on the log is needed once a snapshot that begins now is durable.

        What is open transactions' is no part of the state yet: it is needed to the end of them.
        """
        ...

    async def end_snapshot(self, needed_from: int) -> None:
        """A snapshot is durable: trim the log before `needed_from`.

        The trim may fail: what is replayed twice gives the same state.
        """
        ...


def size_of(records: list[LogRecord]) -> int:
    """About how many bytes these take in the log."""
    return sum(len(k or b"") + len(v or b"") + RECORD_OVERHEAD_BYTES for k, v in records)
