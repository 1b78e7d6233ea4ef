"""The broker's part of tiering: schedules offloads and deletes orphaned objects.

Invariants: works in the background, on a bounded number of ledgers at once. Slow or unavailable
object storage delays this work and cold reads, nothing else: after a failure all of it pauses,
twice as long each time up to five minutes, and the log reports the beginning and the end of the
outage once.

An object is an orphan when no chain names its ledger, after a crash between the copy and its entry
in the chain, or between a trim and the delete. Objects are listed before chains are read; a ledger
enters its chain before its first byte and never returns to one, so an object that a chain may still
name is never taken for an orphan. It is deleted once passes have found it unnamed for a day,
regardless of its age: by then, a change of the chain whose response was lost has settled.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.housekeeping.tabling import Tabling
from headrace.errors import DataCorrupt, HeadraceError, LedgerUnknown
from headrace.log.tiering import drop_local, offload, to_offload
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import PARTITIONS, PartitionFact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import LedgerId, LedgerStore
    from headrace.storage.tiering.tier import Tier, TierCounters

log = logging.getLogger(__name__)

REST_MS_MAX = 300_000
"""Maximum pause between attempts while object storage is unavailable."""
PARTITION_REST_MS = 600_000
"""Pause after a failure of a single partition, such as damaged bytes."""
SWEEP_INTERVAL_MS = 24 * 3600 * 1000
SWEEP_RETRY_MS = 3600 * 1000


class TieringFigures(NamedTuple):
    """Figures for metrics."""

    counters: TierCounters
    pending_ledgers: int
    pending_bytes: int
    is_away: bool
    problem: str
    """Why the last round failed, or a partition in it; empty: nothing failed."""


class Tiering:
    """Offloads, drops local copies and deletes orphans for one broker."""

    def __init__(
        self,
        topics: Topics,
        store: LedgerStore,
        tier: Tier,
        metadata: MetadataStore,
        clock: Clock,
        config: BrokerConfig,
        ready: Callable[[PartitionLog], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._store = store
        self._tier = tier
        self._metadata = metadata
        self._clock = clock
        self._config = config
        self._ready = ready
        self._failures = 0
        """Consecutive rounds that object storage failed."""
        self._resting: dict[str, tuple[int, str]] = {}
        """Partitions with a failure of their own, the end of their pause, and the failure."""
        self._problem = self._failed_now = ""
        self._sweep_at_ms = 0
        self._unnamed_since_ms: dict[tuple[LedgerId, bool], int] = {}
        """Objects and recipes that no chain names, and when a pass first found that."""
        tables = tier.tables
        self.tabling = None if tables is None else Tabling(topics, tier, tables, clock)
        """None if objects are never replaced."""

    @property
    def objects_prefix(self) -> str:
        """What the names of this broker's objects begin with."""
        return self._tier.prefix

    def figures(self) -> TieringFigures:
        """See TieringFigures."""
        waiting = [
            segment
            for topic in self._topics.by_name.values()
            for _, partition in topic.logs
            if partition.config.is_remote_enabled and partition.is_loaded
            for segment in to_offload(partition)
        ]
        size = sum(segment.end_position for segment in waiting)
        counts = self._tier.counters, len(waiting), size
        return TieringFigures(*counts, self._failures > 0, self._problem)

    def interval_ms(self) -> int:
        """Between two rounds: longer while object storage fails."""
        rest_ms = self._config.tiering_interval_ms
        if self._failures:
            rest_ms = min(rest_ms << min(self._failures, 16), max(REST_MS_MAX, rest_ms))
        return rest_ms

    async def round(self) -> None:
        """Drop due local copies, offload sealed ledgers, replace objects by recipes, and once a day
        delete orphans."""
        self._failed_now = ""
        try:
            await self._offload_all(await self._survey())
            if self.tabling is not None:
                await self.tabling.round()
            now_ms = self._clock.now_ms()
            if now_ms >= self._sweep_at_ms:
                self._sweep_at_ms = now_ms + SWEEP_RETRY_MS
                await self.delete_orphans()
                self._sweep_at_ms = now_ms + SWEEP_INTERVAL_MS
        except HeadraceError as error:
            self._failed_now = str(error)
            if not error.fields.get("is_objects"):
                log.warning("tiering pauses: %s", error)
                return
            self._failures += 1
            if self._failures == 1:
                log.warning(
                    "object storage is unavailable: offloading and cold reads wait: %s", error
                )
        else:
            if self._failures:
                log.info("object storage is available again after %d failed rounds", self._failures)
            self._failures = 0
        finally:
            resting = (problem for _until_ms, problem in self._resting.values())
            self._problem = self._failed_now or next(resting, "")

    # --- one round -----------------------------------------------------------------------------

    async def _survey(self) -> deque[PartitionLog]:
        """Drop due local copies; returns the partitions that have ledgers to offload.

        Raises object storage errors.
        """
        now_ms = self._clock.now_ms()
        tiered = {
            partition.name: partition
            for topic in self._topics.by_name.values()
            for number, partition in topic.logs
            if partition.config.is_remote_enabled
            and not partition.is_deleted
            and self._topics.ownership.is_mine(topic, number)
        }
        self._resting = {
            name: rest
            for name, rest in self._resting.items()
            if name in tiered and rest[0] > now_ms
        }
        due = [one for name, one in tiered.items() if name not in self._resting]
        mine = [partition for partition in due if await self._is_ready(partition)]
        for partition in mine:
            try:
                await drop_local(partition, self._store, self._tier, now_ms)
            except HeadraceError as error:
                self._partition_failed(partition, error)
        return deque(partition for partition in mine if to_offload(partition))

    async def _is_ready(self, partition: PartitionLog) -> bool:
        try:
            await self._ready(partition)
        except HeadraceError as error:
            self._partition_failed(partition, error)
            return False
        return True

    async def _offload_all(self, waiting: deque[PartitionLog]) -> None:
        """Offload ledger by ledger, alternating between partitions. Raises object storage
        errors."""
        count = size = 0
        away: list[HeadraceError] = []

        async def work() -> None:
            nonlocal count, size
            while waiting and not away:
                partition = waiting.popleft()
                due = to_offload(partition)
                if not due or partition.is_deleted:
                    continue
                try:
                    size += await offload(partition, due[0], self._tier, self._clock.now_ms())
                except HeadraceError as error:
                    if error.fields.get("is_objects"):
                        away.append(error)
                    else:
                        self._partition_failed(partition, error)
                    continue
                count += 1
                if due[1:]:
                    waiting.append(partition)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._config.offloads_at_once, len(waiting))):
                    group.create_task(work())
        finally:
            if count:
                log.info("offloaded %d ledgers, %d bytes, to %s", count, size, self._tier.shown)
        if away:
            raise away[0]

    def _partition_failed(self, partition: PartitionLog, error: HeadraceError) -> None:
        """Record a failure of one partition. Raises it again if object storage is the cause."""
        if error.fields.get("is_objects"):
            raise error
        if partition.is_deleted or isinstance(error, LedgerUnknown) or not partition.is_loaded:
            return  # it was deleted, has another owner, or logs its failure elsewhere
        self._failed_now = f"{partition.name}: {error}"
        if isinstance(error, DataCorrupt):
            until_ms = self._clock.now_ms() + PARTITION_REST_MS
            self._resting[partition.name] = until_ms, self._failed_now
        log.warning("%s: tiering failed: %s", partition.name, error)

    # --- orphaned objects ----------------------------------------------------------------------

    async def delete_orphans(self) -> int:
        """Delete the objects that no chain has named for the grace period; returns how many. Raises
        storage and metadata errors, in which case nothing was deleted."""
        now_ms = self._clock.now_ms()
        objects = [(item.ledger, item.is_recipe) async for item in self._tier.list_objects()]
        protection = None if self.tabling is None else await self.tabling.protected()
        tags = frozenset() if protection is None else protection.ledgers
        tabled: dict[int, bool] = {}
        if objects or tags:
            for entry in await self._metadata.list(PARTITIONS):
                for link in decode_fact(PartitionFact, entry).ledgers:
                    # Workers number their ledgers alike: all that have the number must agree.
                    is_tabled = link.tabled_ms is not None
                    tabled[link.ledger] = tabled.get(link.ledger, True) and is_tabled
        # A recipe without an entry in the chain may be about to get it; the next attempt replaces
        # it. An object is superseded by the entry.
        self._unnamed_since_ms = {
            (ledger, is_recipe): self._unnamed_since_ms.get((ledger, is_recipe), now_ms)
            for ledger, is_recipe in objects
            if ledger not in tabled or (tabled[ledger] and not is_recipe)
        }
        before_ms = now_ms - self._config.orphan_grace_ms
        orphans = [one for one, since_ms in self._unnamed_since_ms.items() if since_ms <= before_ms]
        for one in orphans:
            discard = self._tier.discard_object if one[0] in tabled else self._tier.discard
            discard(one[0])
            del self._unnamed_since_ms[one]
        if orphans:
            log.info("deleting %d orphaned objects", len(orphans))
        if self.tabling is not None:
            # A recipe needs its tag as long as there is one, whether or not a chain names it.
            recipes = {ledger for ledger, is_recipe in objects if is_recipe}
            await self.tabling.release(
                [one for one in sorted(tags) if one[1] not in tabled and one[1] not in recipes]
            )
            await self.tabling.audit(protection)
        return len(orphans)
