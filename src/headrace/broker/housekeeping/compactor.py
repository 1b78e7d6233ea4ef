"""Runs log compaction for one broker: which partition is next, how fast, and what is deleted after.

Invariants: one partition at a time, the dirtiest first, and only those that this broker owns.
Internal topics are left out, since their coordinators trim them themselves. A failure of one
partition delays that partition alone. The ledgers that a round replaced are deleted a while after
it, so that reads which are under way end; after a crash they are orphans, which the next start
collects.

Over ledgers that brokers share (BookKeeper) this broker deletes no ledger that was replaced, since
a former owner might still believe in it: the sweep does (`ledger_garbage`), after its grace. Their
copies in object storage go here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, HeadraceError, LedgerUnknown
from headrace.log.cleaner import Cleaner, dirt, is_due
from headrace.log.tiering import discard

if TYPE_CHECKING:
    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerId

log = logging.getLogger(__name__)

PARTITION_REST_MS = 600_000
"""After a failure that is one partition's own, such as damaged bytes."""
BUILD_MS_MAX = 15 * 60 * 1000
"""How long a compacted ledger may stay out of the chain, where the sweep deletes orphans."""
PAUSE_S = 0.005
"""As long as the work before it takes."""
DELETE_DELAY_NS = 60 * 10**9
"""Kafka's `file.delete.delay.ms`."""


class _RatePace:
    """Bounds a round's bytes per second, and its share of the broker's time to about a half."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    async def pause(self) -> None:
        """See Pace."""
        await asyncio.sleep(PAUSE_S)

    async def spend(self, size: int) -> None:
        """See Pace."""
        bytes_per_s = self._config.compaction_bytes_per_s
        await asyncio.sleep(size / bytes_per_s if bytes_per_s else 0)


class Compactor:
    """See the module. The counters are for metrics."""

    def __init__(self, topics: Topics, environment: Environment, config: BrokerConfig) -> None:
        self._topics = topics
        self._environment = environment
        self._clock = environment.clock
        self._config = config
        self._pace = _RatePace(config)
        self._resting: dict[str, int] = {}
        self._replaced: dict[LedgerId, tuple[Segment, int]] = {}
        """Ledgers to delete, and when (monotonic)."""
        self.rounds = 0
        self.failures = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.removed_records = 0
        self.last_round_ms = 0

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await asyncio.sleep(self._config.compaction_interval_ms / 1000)
            try:
                await self.round()
            except Exception:
                log.exception("log compaction met a fault of the broker")

    async def round(self) -> None:
        """Compact each partition that is due once, and delete what was replaced a while ago."""
        await self._delete_replaced()
        tried: set[PartitionLog] = set()
        while (partition := self._next(tried)) is not None:
            tried.add(partition)
            await self._compact(partition)
            await self._delete_replaced()

    def _mine(self) -> list[PartitionLog]:
        return [
            partition
            for topic in self._topics.by_name.values()
            if not topic.is_internal
            for number, partition in topic.logs
            if partition.config.is_compacted
            and partition.is_loaded
            and self._topics.ownership.is_mine(topic, number)
        ]

    @property
    def dirty_ratio(self) -> float:
        """The largest of all partitions: see `Dirt`."""
        now_ms = self._clock.now_ms()
        return max((dirt(partition, now_ms).ratio for partition in self._mine()), default=0.0)

    def _next(self, tried: set[PartitionLog]) -> PartitionLog | None:
        now_ms = self._clock.now_ms()
        due = [
            partition
            for partition in self._mine()
            if partition not in tried
            and self._resting.get(partition.name, 0) <= now_ms
            and (is_due(partition, now_ms) or self._is_active_overdue(partition, now_ms))
        ]
        return max(due, key=lambda one: dirt(one, now_ms).ratio, default=None)

    def _is_active_overdue(self, partition: PartitionLog, now_ms: int) -> bool:
        """Whether the open ledger holds records for longer than `max.compaction.lag.ms`."""
        active = partition.active
        return (
            active is not None
            and active.end_position > 0
            and partition.ready is None
            and not partition.has_pending
            and now_ms - active.first_append_ms > partition.config.compaction_lag_max_ms
        )

    async def _compact(self, partition: PartitionLog) -> None:
        now_ms = self._clock.now_ms()
        cleaner = Cleaner(
            partition,
            self._environment,
            self._pace,
            keys_max=self._config.compaction_keys_max,
            build_ms_max=min(BUILD_MS_MAX, self._config.sweep_grace_ms // 4),
        )
        try:
            if self._is_active_overdue(partition, now_ms):
                await partition.upkeep.roll_now()
            done = await cleaner.run()
        except HeadraceError as error:
            self.failures += 1
            rest_ms = PARTITION_REST_MS if isinstance(error, DataCorrupt) else 0
            self._resting[partition.name] = now_ms + rest_ms
            log.warning("%s: compaction failed, and is tried again: %s", partition.name, error)
        except Exception:
            # Whatever it was, the other partitions have their turn.
            self.failures += 1
            self._resting[partition.name] = now_ms + PARTITION_REST_MS
            log.exception("%s: compaction met a fault of the broker", partition.name)
        else:
            self._resting.pop(partition.name, None)
            self.rounds += 1
            self.read_bytes += done.read_bytes
            self.written_bytes += done.written_bytes
            self.removed_records += done.removed_records
            self.last_round_ms = self._clock.now_ms()
            if done.removed_records:
                log.info(
                    "%s: compaction removed %d records, %d bytes are written",
                    partition.name,
                    done.removed_records,
                    done.written_bytes,
                )
        finally:
            due_ns = self._clock.now_ns() + DELETE_DELAY_NS
            self._replaced |= {one.ledger: (one, due_ns) for one in cleaner.replaced}

    async def _delete_replaced(self) -> None:
        now_ns = self._clock.now_ns()
        due = [segment for segment, due_ns in self._replaced.values() if due_ns <= now_ns]
        if self._environment.is_shared:
            discard(due, self._environment.tier, self._environment.store)
            for segment in due:
                del self._replaced[segment.ledger]
            return
        for ledger in [segment.ledger for segment in due]:
            try:
                await self._environment.store.delete(ledger)
            except LedgerUnknown:
                pass  # with its topic
            except HeadraceError as error:
                log.warning("replaced ledger %s stays for now: %s", ledger, error)
                return
            del self._replaced[ledger]
