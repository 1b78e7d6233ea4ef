"""Applies retention to the partitions that this broker owns.

Invariants: decides when; `log/retention.py` decides what is dropped. An error in one partition does
not affect the others.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.log.retention import enforce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)


class Retention:
    """The retention rounds of one broker."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        clock: Clock,
        ready: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        """`ready` waits until a partition's log has been read."""
        self._topics = topics
        self._ownership = ownership
        self._clock = clock
        self._ready = ready

    async def round(self) -> None:
        """Drop what the partitions of this broker do not keep."""
        for topic in list(self._topics.by_name.values()):
            for number, partition in list(topic.logs):
                if not self._ownership.is_mine(topic, number):
                    continue
                try:
                    await self.enforce(partition)
                except HeadraceError as error:
                    log.warning("%s: retention failed: %s", partition.name, error)

    async def enforce(self, partition: PartitionLog) -> None:
        """Drop the records of a partition that retention does not keep. Raises storage and metadata
        errors."""
        if partition.is_deleted:
            return
        if not partition.is_loaded and partition.failure is None:
            await self._ready(partition)
        dropped = await enforce(partition, self._clock.now_ms(), self._clock.now_ns())
        if dropped:
            log.info("%s: retention dropped %d records", partition.name, dropped)
