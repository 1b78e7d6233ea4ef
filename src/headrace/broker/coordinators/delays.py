"""The seam between the admission of appends and delayed delivery.

Invariants: admission decides which records are delayed; a `Delays` keeps them until they are due
and then appends them to their partition's log. A delayed record is acknowledged once `add` reports
it durable. The rest of its batch is appended to the log after that, so a producer that retries a
batch whose delayed records are durable and whose rest is not sends the delayed records a second
time: `origin` identifies them, and `add` keeps each of them once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.security.tenant_shares import NOBODY
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.log.partition_log import PartitionLog
    from headrace.records.codec import Record
    from headrace.runtime.completion import Completion


class BatchOrigin(NamedTuple):
    """The idempotent producer's batch that records come from."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class DelayedRecord(NamedTuple):
    """A record that is due later."""

    due_ms: int
    """Later than the time at which it was received, except perhaps in a batch of an idempotent
    producer. For a half message (`headrace-half`): when it is due after its commit, 0 for
    immediately."""
    batch_index: int
    """Index in the producer's batch, from 0. Its producer sequence is `base_sequence` plus this."""
    record: Record
    """As the producer sent it, reserved headers included; its offset is meaningless."""


class DelayedBatch(NamedTuple):
    """The delayed records of one batch, in the producer's order."""

    records: Sequence[DelayedRecord]
    origin: BatchOrigin | None
    """None if the producer is not idempotent: a retried batch is then not recognized."""


class Kept(NamedTuple):
    """The records of a batch that are being stored."""

    completion: Completion
    """Succeeds when they are durable."""
    numbers: list[int]
    """Then holds the number under which each of them is kept; empty if they were kept before."""


class Delays(Protocol):
    """Keeps records until they are due."""

    def add(self, partition: PartitionLog, batch: DelayedBatch, user: str = NOBODY) -> Kept:
        """Keep the records of `batch`, which count for `user`.

        Called while the partition's log accepts appends. If it raises HeadraceError, or the
        completion fails with one, none of the records is kept. Later appends to the partition wait
        until the completion is done.
        """
        ...


class NoDelays:
    """Refuses all delayed records."""

    def add(self, partition: PartitionLog, batch: DelayedBatch, user: str = NOBODY) -> Kept:
        """See Delays."""
        reason = (
            "this broker does not support delayed delivery: remove headrace-deliver-at "
            "and headrace-delay from the record"
        )
        raise RecordInvalid(
            f"{partition.name}: {reason}",
            record_errors=[(delayed.batch_index, reason) for delayed in batch.records],
        )
