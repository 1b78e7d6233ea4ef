"""Reads of ledgers that lie in object storage, for the Fetch API.

Invariants: no fetch waits long for a cloud. The read goes on when the fetch is answered
without it, and the next fetch for the same place finds it under way or done. So a consumer that
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
    from headrace.log.reading import Fetched
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WAIT_MS = 500
"""Kafka's `remote.fetch.max.wait.ms`."""
WAIT_WITH_DATA_MS = 20
"""Where the answer holds records of other partitions already."""
READS_MAX = 1_000
"""Under way at once; who comes later gets nothing, and asks again."""

TELL_INTERVAL_S = 60

_Place = tuple["PartitionLog", int, int, int]
"""(partition, offset, bytes_max, isolation)."""


class ColdReads:
    """The reads from object storage that are under way."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._reads: dict[_Place, asyncio.Task[Fetched | HeadraceError]] = {}
        self._failures = 0
        self._quiet_until_s = 0.0

    @staticmethod
    def is_cold(partition: PartitionLog, offset: int) -> bool:
        """Whether `offset` has no copy here."""
        segment = segment_of(partition, offset)
        return segment is not None and not segment.is_local

    async def fetch(
        self, partition: PartitionLog, offset: int, bytes_max: int, isolation: int, wait_ms: int
    ) -> Fetched | None:
        """Like `LogReader.fetch`; None where that takes longer than `wait_ms`."""
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

    async def _read(self, place: _Place) -> Fetched | HeadraceError:
        partition, offset, bytes_max, isolation = place
        try:
            return await partition.reader.fetch(offset, bytes_max, isolation)
        except HeadraceError as error:
            self._tell(partition, error)
            return error  # for those who wait, if anybody still does
        finally:
            del self._reads[place]

    def _tell(self, partition: PartitionLog, error: HeadraceError) -> None:
        """Log a failure, at most one a minute: a consumer tries again twice a second."""
        self._failures += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + TELL_INTERVAL_S
            log.warning(
                "%s cannot be read from object storage (%d such reads failed): %s",
                partition.name,
                self._failures,
                error,
            )
