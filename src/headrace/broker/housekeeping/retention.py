"""Applies retention to the partitions that this broker owns.

Invariants: decides when; `log/retention.py` decides what is dropped. An error in one partition does
not affect the others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Final, Protocol

from headrace.errors import HeadraceError
from headrace.log.retention import enforce

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)


PRODUCERS_INTERVAL_MS: Final = 5_000
"""In which as many producers come as one client can make: some 90,000, of 45 MB."""
RETRIES_MS: Final = 300_000
"""Kafka's clients send a batch again for two minutes by default: producers that may do so are
forgotten last."""
KEPT_FRACTION: Final = 0.9
"""Of the bound, once it was reached: dropping costs as much as there are producers."""


class ProducerBounds(Protocol):
    """A part of the broker's configuration, which may change."""

    producer_ids_max: int
    producer_id_expiration_ms: int


class Retention:
    """The retention rounds of one broker."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        clock: Clock,
        ready: Callable[[PartitionLog], Awaitable[None]],
        bounds: ProducerBounds,
    ) -> None:
        """`ready` waits until a partition's log has been read."""
        self._bounds = bounds
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
        now_ms, now_ns = self._clock.now_ms(), self._clock.now_ns()
        dropped = await enforce(partition, now_ms, now_ns, self._bounds.producer_id_expiration_ms)
        if dropped:
            log.info("%s: retention dropped %d records", partition.name, dropped)

    async def bound_producers(self) -> None:
        """Drop the longest idle producers of the partitions that have most, if this broker
        remembers more than it may. Costs about 0.1 us for each partition otherwise."""
        logs = [
            log_
            for topic in self._topics.by_name.values()
            for _number, log_ in topic.logs
            if log_.is_loaded and len(log_.producers)
        ]
        total = sum(len(log_.producers) for log_ in logs)
        most = self._bounds.producer_ids_max
        if total <= most:
            return
        excess = total - int(most * KEPT_FRACTION)
        for before_ms in (self._clock.now_ms() - RETRIES_MS, sys.maxsize):
            for log_ in sorted(logs, key=lambda one: len(one.producers), reverse=True):
                share = len(log_.producers) - most // (2 * len(logs))
                if share <= 0 or excess <= 0:
                    break
                if log_.is_loaded:
                    count, safe_offset = min(share, excess), log_.high_watermark
                    for dropped in log_.producers.drop_idle(count, safe_offset, before_ms):
                        excess -= dropped
                        await asyncio.sleep(0)
        log.warning(
            "partitions remember %d idempotent producers, more than headrace.producer.ids.max=%d:"
            " the longest idle ones were forgotten; a retry of one of theirs may be stored twice",
            total,
            most,
        )
