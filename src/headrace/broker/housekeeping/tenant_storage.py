"""What tenants store in the partitions of this broker: how much, and the oldest of it dropped.

Invariants: drops whole ledgers, the oldest of all of the tenant's first, as retention does, and
only from topics whose records retention may delete. An error in one partition does not affect the
others.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.log.retention import close_open, drop_before
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Collection, Iterator, Sequence

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

LOADS_MAX: Final = 100
"""Partitions that one count has loaded."""
COUNTS_TO_RETRY: Final = 30
"""After so many counts a load is tried again; until then others have their turn."""


class TenantStorage:
    """See the module."""

    def __init__(self, topics: Topics, ownership: Ownership) -> None:
        self._topics = topics
        self._ownership = ownership
        self._counts = 0
        self._loads_again: dict[PartitionLog, int] = {}
        """Of those whose load was begun and which are not loaded, from which count on."""

    def measure(self, tenants: Collection[str]) -> Counter[str]:
        """The bytes that tenants store in this broker's partitions, with what belongs to these:
        delayed records, and the journals of queues. Partitions that nobody has used since the
        broker started count once they are loaded, which begins here."""
        found: Counter[str] = Counter()
        waiting: list[PartitionLog] = []
        for topic in self._topics.by_name.values():
            tenant = tenant_of(topic.name)
            if tenant in tenants:
                for number, partition in topic.logs:
                    if not self._ownership.is_mine(topic, number):
                        continue
                    if not partition.is_loaded:
                        waiting.append(partition)
                    found[tenant] += partition.size_bytes
        for (topic_id, _), companion in self._topics.logs.companions.items():
            of = self._topics.by_id.get(topic_id)
            if of is not None and (tenant := tenant_of(of.name)) in tenants:
                found[tenant] += companion.size_bytes
        self._load(waiting)
        return found

    def _load(self, waiting: Sequence[PartitionLog]) -> None:
        """Begin to load some of these: those that can be, and have not just failed."""
        self._counts += 1
        known, loads = self._loads_again, 0
        self._loads_again = {one: known[one] for one in waiting if one in known}
        for partition in waiting:
            is_due = self._loads_again.get(partition, 0) <= self._counts
            if is_due and partition.lifecycle.can_load:
                self._loads_again[partition] = self._counts + COUNTS_TO_RETRY
                partition.load()
                loads += 1
                if loads == LOADS_MAX:
                    break

    def _logs(self, tenant: str) -> Iterator[PartitionLog]:
        for topic in list(self._topics.by_name.values()):
            if tenant_of(topic.name) == tenant:
                for number, partition in topic.logs:
                    is_served = self._ownership.is_mine(topic, number) and partition.is_loaded
                    is_served = is_served and partition.failure is None and not partition.is_deleted
                    if is_served and partition.config.is_deleted_by_retention:
                        yield partition

    async def drop(self, tenant: str, size_bytes: float) -> bool:
        """Drop the oldest that a tenant stores here, at least so many bytes; nothing if there are
        not so many that may be dropped, since that would lose them and make no room. If that takes
        what an open ledger holds, the largest one is closed: it is dropped the next time. Returns
        whether something was dropped."""
        logs = list(self._logs(tenant))
        if sum(partition.size_bytes for partition in logs) < size_bytes:
            return False
        closed: list[tuple[int, int, int, int]] = []
        for at, partition in enumerate(logs):
            newest_ms = 0
            for segment in partition.closed:  # in their order, whatever their times
                newest_ms = max(newest_ms, segment.newest_ms)
                closed.append((newest_ms, at, segment.end_offset, segment.end_position))
        starts: dict[int, int] = {}
        for _, at, end_offset, end_position in sorted(closed):
            if size_bytes <= 0:
                break
            starts[at] = end_offset
            size_bytes -= end_position
        for at, start in starts.items():
            await self._each(logs[at], drop_before(logs[at], start))
        if size_bytes > 0 and logs:
            sizes = [0 if one.active is None else one.active.end_position for one in logs]
            largest = logs[max(range(len(logs)), key=sizes.__getitem__)]
            await self._each(largest, close_open(largest))
        return bool(starts)

    @staticmethod
    async def _each(partition: PartitionLog, change: Awaitable[int | None]) -> None:
        try:
            if dropped := await change:
                log.info("%s: its tenant is full: dropped %d records", partition.name, dropped)
        except HeadraceError as error:
            log.warning("%s: cannot drop the oldest records: %s", partition.name, error)
