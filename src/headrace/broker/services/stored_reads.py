"""Reads stored batches of several partitions for one response, waiting for disks and objects.

Invariants: knows no protocol. Partitions whose data is in object storage are read last and only for
a moment (`cold_reads`), so that they do not delay local data. The first batch of a response is
returned whatever its size, later ones must fit (KIP-74). A partition that fails does not end the
read of the others. Callers first look at what is in memory (`LogReader.locate_now`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.broker.services.cold_reads import WAIT_MS, WAIT_WITH_DATA_MS, ColdReads
from headrace.errors import (
    HeadraceError,
    LeaderEpochFenced,
    LeaderEpochUnknown,
    NotOwner,
    OffsetOutOfRange,
    TopicUnknown,
)
from headrace.log.partition_log import PartitionLog
from headrace.log.reading import FetchedBatches, check_offset
from headrace.records.batch import iterate_headers
from headrace.runtime.rate_limited_warnings import RateLimitedWarnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.records.batch import Buffer
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

NOTHING: Final = FetchedBatches(b"")
_ANSWERS: Final = (LeaderEpochFenced, LeaderEpochUnknown, NotOwner, OffsetOutOfRange, TopicUnknown)


class Wanted(Protocol):
    """What is read of one partition."""

    @property
    def offset(self) -> int:
        """The first one."""
        ...

    @property
    def bytes_max(self) -> int:
        """For this partition."""
        ...

    @property
    def leader_epoch(self) -> int:
        """As the client knows it; -1: it does not."""
        ...


class StoredRead(NamedTuple):
    """What was read."""

    found: Sequence[FetchedBatches | HeadraceError]
    """Of each partition, in the order of the request."""
    size: int
    is_cold_due: bool
    """Whether object storage has not responded yet for some partition: ask again."""


class StoredReads:
    """See the module."""

    def __init__(self, tasks: Tasks, clock: Clock) -> None:
        self._cold = ColdReads(tasks)
        self._warnings = RateLimitedWarnings(log, clock)

    async def read(
        self,
        pairs: Sequence[tuple[Wanted, PartitionLog | HeadraceError]],
        bytes_max: int,
        isolation: int,
    ) -> StoredRead:
        """Read `bytes_max` of these partitions together; an error in the place of a partition is
        passed on."""
        results: dict[int, FetchedBatches | HeadraceError] = {}
        left, size, is_cold_due = bytes_max, 0, False
        for at in sorted(range(len(pairs)), key=lambda at: self._is_cold(*pairs[at])):
            wanted, partition = pairs[at]
            if not isinstance(partition, PartitionLog):
                results[at] = partition
                continue
            try:
                found = await self._read_one(partition, wanted, left, size, isolation)
            except HeadraceError as error:
                self._warn(partition, error)
                results[at] = error
                continue
            if found is None:
                found, is_cold_due = NOTHING, True
            size += len(found.data)
            left -= len(found.data)
            partition.traffic.went(_count(found.data), len(found.data))
            results[at] = found
        return StoredRead([results[at] for at in range(len(pairs))], size, is_cold_due)

    def _is_cold(self, wanted: Wanted, partition: PartitionLog | HeadraceError) -> bool:
        return isinstance(partition, PartitionLog) and self._cold.is_cold(partition, wanted.offset)

    async def _read_one(
        self, partition: PartitionLog, wanted: Wanted, left: int, size: int, isolation: int
    ) -> FetchedBatches | None:
        """None: not yet available from object storage."""
        if partition.is_deleted:
            raise TopicUnknown(f"{partition.name} was deleted")
        await partition.wait_loaded()
        partition.check_leader_epoch(wanted.leader_epoch)
        if left <= 0 and size:
            check_offset(partition, wanted.offset)
            return NOTHING
        limit = min(wanted.bytes_max, max(left, 0))
        found: FetchedBatches | None
        if self._is_cold(wanted, partition):
            wait_ms = WAIT_WITH_DATA_MS if size else WAIT_MS
            found = await self._cold.fetch(partition, wanted.offset, limit, isolation, wait_ms)
        else:
            found = await partition.reader.fetch(wanted.offset, limit, isolation)
        return NOTHING if size and found is not None and len(found.data) > left else found

    def _warn(self, partition: PartitionLog, error: HeadraceError) -> None:
        """Log a fault; not that the topic was deleted or the client lags behind, and not that
        object storage failed, which is logged where it is read."""
        is_expected = partition.is_deleted or isinstance(error, _ANSWERS)
        if not is_expected and not error.fields.get("is_objects"):
            self._warnings.warn(partition.name, f"{partition.name} cannot be read: {error}")


def _count(data: Buffer) -> int:
    """How many records these batches span."""
    return sum(header.last_offset_delta + 1 for _, header in iterate_headers(data))
