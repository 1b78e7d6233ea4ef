"""Runs log compaction for one broker: chooses partitions, limits the rate, deletes replaced
ledgers.

Invariants: one partition at a time, the dirtiest first, and only those that this broker owns.
Internal topics are excluded, since their coordinators trim them. A failure of one partition delays
only that partition. The ledgers that a round replaced are deleted some time after it, so that reads
in progress can end; after a crash they are orphans, which the next start deletes.

Over ledgers that brokers share (BookKeeper) this broker deletes no replaced ledger, since a former
owner might still use it: garbage collection does (`ledger_garbage`), after its grace period. Their
copies in object storage are deleted here.

A partition that no client has used since the broker started, or took it over, is loaded only if its
fact names ledgers that compaction has not processed, so the others cost no memory.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, HeadraceError, LedgerUnknown
from headrace.log.compaction.cleanable import cleanable_bytes, is_due
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.remote_copies import discard
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import PartitionFact, partition_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import LedgerId

log = logging.getLogger(__name__)

PARTITION_REST_MS = 600_000
"""Pause after a failure of a single partition, such as damaged bytes."""
BUILD_MS_MAX = 15 * 60 * 1000
"""How long a compacted ledger may be missing from the chain while garbage collection deletes
orphans."""
PAUSE_S = 0.005
"""As long as the work before it takes."""
NEVER_MS = 2**63 - 1
"""`max.compaction.lag.ms` without a bound."""
DELETE_DELAY_NS = 60 * 10**9
"""Kafka's `file.delete.delay.ms`."""


class _RatePace:
    """Limits a round's bytes per second, and its share of the broker's time to about a half."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._paid_ns = 0
        """When all bytes so far are paid for (monotonic)."""

    async def pause(self) -> None:
        """See Pace."""
        await asyncio.sleep(PAUSE_S)

    async def spend(self, size: int) -> None:
        """See Pace."""
        bytes_per_s = self._config.compaction_bytes_per_s
        now_ns = self._clock.now_ns()
        if bytes_per_s:
            self._paid_ns = max(self._paid_ns, now_ns) + size * 10**9 // bytes_per_s
        # A timer takes at least a millisecond: small debts are accumulated.
        owed_s = (self._paid_ns - now_ns) / 1e9
        await asyncio.sleep(owed_s if owed_s > PAUSE_S else 0)


def _has_dirt(fact: PartitionFact, partition: PartitionLog) -> bool:
    """Whether a partition that is not loaded may have something to compact."""
    cleaned, is_bounded = (
        fact.cleaned_offset or 0,
        partition.config.compaction_lag_max_ms < NEVER_MS,
    )
    return any(
        link.end_offset > cleaned if link.end_offset is not None else is_bounded
        for link in fact.ledgers
    )


class Compactor:
    """See the module. The counters are for metrics."""

    def __init__(
        self,
        topics: Topics,
        environment: Environment,
        config: BrokerConfig,
        ready: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        """`ready` loads a partition, and raises the error that prevents it."""
        self._topics = topics
        self._ready = ready
        self._environment = environment
        self._clock = environment.clock
        self._config = config
        self._pace = _RatePace(config, environment.clock)
        self._resting: dict[str, int] = {}
        self._replaced: dict[LedgerId, tuple[Segment, int]] = {}
        """Ledgers to delete, and when (monotonic)."""
        self._clean: dict[PartitionLog, int] = {}
        """Partitions that are not loaded and whose facts name nothing to compact under this
        `max.compaction.lag.ms`."""
        self.rounds = 0
        self.failures = 0
        self.read_bytes = 0
        self.written_bytes = 0
        self.removed_records = 0
        self.last_round_ms = 0

    async def round(self) -> None:
        """Compact each due partition once, and delete ledgers that were replaced some time ago."""
        await self._delete_replaced()
        await self._load_idle()
        for partition in self._due():
            # Partitions that were due when the round began may have been deleted or handed over
            # since.
            if self._is_due(partition, self._clock.now_ms()):
                await self._compact(partition)
                await self._delete_replaced()

    def _owned(self) -> Iterator[tuple[Topic, int, PartitionLog]]:
        """All partitions with compaction that this broker owns, loaded or not."""
        for topic in list(self._topics.by_name.values()):
            if topic.is_internal:
                continue
            for number, partition in topic.logs:
                if partition.config.is_compacted and self._topics.ownership.is_mine(topic, number):
                    yield topic, number, partition

    @property
    def dirty_ratio(self) -> float:
        """The largest of all partitions: see `CleanableBytes`."""
        now_ms = self._clock.now_ms()
        loaded = (partition for _, _, partition in self._owned() if partition.is_loaded)
        return max((cleanable_bytes(partition, now_ms).ratio for partition in loaded), default=0.0)

    def _due(self) -> list[PartitionLog]:
        """The partitions to compact in this round, the dirtiest first."""
        now_ms = self._clock.now_ms()
        due = [partition for _, _, partition in self._owned() if self._is_due(partition, now_ms)]
        return sorted(due, key=lambda one: cleanable_bytes(one, now_ms).ratio, reverse=True)

    def _is_due(self, partition: PartitionLog, now_ms: int) -> bool:
        return (
            partition.is_loaded
            and not partition.is_deleted
            and partition.failure is None
            and self._resting.get(partition.name, 0) <= now_ms
            and (is_due(partition, now_ms) or self._is_active_overdue(partition, now_ms))
        )

    async def _load_idle(self) -> None:
        """Load partitions that no client has used yet and that compaction has not finished."""
        idle = [one for one in self._owned() if not one[2].is_loaded and one[2].failure is None]
        clean = self._clean
        self._clean = {one[2]: clean[one[2]] for one in idle if one[2] in clean}
        now_ms = self._clock.now_ms()
        for topic, number, partition in idle:
            lag_max_ms = partition.config.compaction_lag_max_ms
            if (
                self._clean.get(partition) == lag_max_ms
                or self._resting.get(partition.name, 0) > now_ms
            ):
                continue
            try:
                entry = await self._environment.metadata.get(partition_key(topic.id, number))
                if entry is None or not _has_dirt(decode_fact(PartitionFact, entry), partition):
                    self._clean[partition] = lag_max_ms
                elif not partition.is_deleted:
                    await self._ready(partition)
            except HeadraceError as error:
                self._resting[partition.name] = now_ms + PARTITION_REST_MS
                log.warning("%s: cannot load it for compaction yet: %s", partition.name, error)

    def _is_active_overdue(self, partition: PartitionLog, now_ms: int) -> bool:
        """Whether the open ledger has held records for longer than `max.compaction.lag.ms`."""
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
            process_bytes_min=self._config.compaction_process_bytes_min,
        )
        try:
            if self._is_active_overdue(partition, now_ms):
                await partition.roll_now()
            done = await cleaner.run()
        except HeadraceError as error:
            self.failures += 1
            rest_ms = PARTITION_REST_MS if isinstance(error, DataCorrupt) else 0
            self._resting[partition.name] = now_ms + rest_ms
            log.warning("%s: compaction failed and will be retried: %s", partition.name, error)
        except Exception:
            # Whatever the error, the other partitions have their turn.
            self.failures += 1
            self._resting[partition.name] = now_ms + PARTITION_REST_MS
            log.exception("%s: internal error in compaction", partition.name)
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
                pass  # deleted with its topic
            except HeadraceError as error:
                log.warning("cannot delete replaced ledger %s yet: %s", ledger, error)
                return
            del self._replaced[ledger]
