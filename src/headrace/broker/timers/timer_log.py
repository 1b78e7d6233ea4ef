"""The timer companion of a partition, as the shard of its machine needs it.

Invariants: a replay begins at the newest complete checkpoint, which the last record of the log
names, and first reports its offset. There are no snapshots: checkpoints take their place, and
`timer_space` trims the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.timers.state_records import checkpoint_of
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.broker.coordinators.internal_topics import InternalPartition, KeyValue
    from headrace.broker.coordinators.shard_log import Replayed
    from headrace.coordination.kit.machine import EndsTransaction, InTransaction
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.completion import Completion


class TimerLog:
    """Implements `coordinator_shard.ShardLog`."""

    def __init__(self, companion: PartitionLog, inner: InternalPartition) -> None:
        self._companion = companion
        self._inner = inner

    @property
    def leader_epoch(self) -> int:
        """See ShardLog."""
        return self._inner.leader_epoch

    @property
    def batch_bytes_max(self) -> int:
        """See ShardLog."""
        return self._inner.batch_bytes_max

    def append(
        self, records: list[KeyValue], transaction: InTransaction | None = None
    ) -> Completion:
        """See ShardLog."""
        return self._inner.append(records, transaction)

    def append_marker(self, marker: EndsTransaction) -> Completion:
        """See ShardLog."""
        return self._inner.append_marker(marker)

    async def replay(self, after: int | None = None) -> AsyncIterator[Replayed]:
        """See ShardLog."""
        assert after is None, "timers are not read ahead"
        await self._companion.wait_settled()
        start = max(await self._checkpoint(), self._companion.log_start_offset)
        yield [(None, start.to_bytes(8))]
        async for replayed in self._inner.replay_from(start):
            yield replayed

    async def _checkpoint(self) -> int:
        companion = self._companion
        last = companion.high_watermark - 1
        if last < companion.log_start_offset:
            return 0
        record = decode_batch(await companion.reader.read(last, 1))[-1]
        return checkpoint_of(record.key or b"")

    def begin_snapshot(self) -> int:
        """See ShardLog."""
        raise AssertionError("timers use checkpoints, not snapshots")

    async def end_snapshot(self, needed_from: int) -> None:
        """See ShardLog."""
        raise AssertionError("timers use checkpoints, not snapshots")
