"""Reads ledgers from object storage for clients that ask again.

Invariants: no fetch waits long for object storage. The read continues when the fetch is answered
without it, and the next fetch for the same offset finds it in progress or done. So a consumer that
reads old and new partitions in one request gets the new ones at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.log.reading import segment_of

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.reading import FetchedBatches
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WAIT_MS = 500
"""Kafka's `remote.fetch.max.wait.ms`."""
WAIT_WITH_DATA_MS = 20
"""If the response already has records of other partitions."""
READS_MAX = 1_000
"""Reads in progress; further requests get no data and are repeated by the client."""
LOG_INTERVAL_S = 60

_Place = tuple["PartitionLog", int, int, int]
"""(partition, offset, bytes_max, isolation)."""


class ColdReads:
    """The reads from object storage that are in progress."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._reads: dict[_Place, asyncio.Task[FetchedBatches | HeadraceError]] = {}
        self._failures = 0
        self._quiet_until_s = 0.0

    @staticmethod
    def is_cold(partition: PartitionLog, offset: int) -> bool:
        """Whether `offset` has no local copy."""
        segment = segment_of(partition, offset)
        return segment is not None and not segment.is_local

    async def fetch(
        self, partition: PartitionLog, offset: int, bytes_max: int, isolation: int, wait_ms: int
    ) -> FetchedBatches | None:
        """As `LogReader.fetch`; None if that takes longer than `wait_ms`."""
        place = (partition, offset, bytes_max, isolation)
        task = self._reads.get(place)
        if task is None:
            if len(self._reads) >= READS_MAX:
                return None
            task = self._tasks.start(self._read(place), f"cold read of {partition.name}")
            self._reads[place] = task
        await asyncio.wait([task], timeout=wait_ms / 1000)
        if not task.done():
            return None
        found = task.result()
        if isinstance(found, HeadraceError):
            raise type(found)(str(found), **found.fields)
        return found

    async def _read(self, place: _Place) -> FetchedBatches | HeadraceError:
        partition, offset, bytes_max, isolation = place
        try:
            return await partition.reader.fetch(offset, bytes_max, isolation)
        except HeadraceError as error:
            self._log_failure(partition, error)
            return error  # for fetches that may still wait
        finally:
            del self._reads[place]

    def _log_failure(self, partition: PartitionLog, error: HeadraceError) -> None:
        """Log a failure, at most one a minute: a consumer retries twice a second."""
        self._failures += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + LOG_INTERVAL_S
            log.warning(
                "%s cannot be read from object storage (%d such reads failed): %s",
                partition.name,
                self._failures,
                error,
            )
