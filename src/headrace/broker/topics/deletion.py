"""Finishes the deletion of topics: their partitions are no longer served, their ledgers are
deleted.

Invariants: works on what is left of a topic that `Topics` no longer contains. Brokers learn of a
deletion one after another. A broker that has not learned of it yet could accept records for the
next topic of that name, acknowledge them and lose them a moment later; or it could return old
records. So a topic is first marked as deleted, and its name is free only after that: over shared
storage the logs are fenced, which stops writers, and the owners are waited for, which ends reads;
where each worker has ledgers of its own, owners are waited for. Any broker may finish a deletion
that another one began, and so does a request that needs the name. The key keeps a fact that records
this, and with it its version: a broker that lags must not change the next topic of this name.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StorageUnavailable, VersionConflict
from headrace.log.fencing import fence_brokers
from headrace.metadata.facts import (
    partition_key,
    partition_of_key,
    partitions_prefix,
    topic_key,
)
from headrace.metadata.store import ABSENT, ANY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topic_logs import TopicLogs
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

END_WAIT_S = 13.0
HEARD_WAIT_S = 3.0
PARTITIONS_AT_ONCE = 64
TRIES_MAX = 60
FREE_KEPT_MS = 600_000
"""Longer than a broker that may write can miss a change: its session would have expired."""
RETRY_S = 1.0


class _Ending:
    """One deletion that this broker is finishing."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.why: object = "it is still running"
        """What was in its way last."""
        self.task: asyncio.Task[bool]


class Deletions:
    """Topics marked as deleted, and names that became free, as this broker sees them."""

    def __init__(self, environment: Environment, logs: TopicLogs) -> None:
        self._environment = environment
        self._logs = logs
        self._marked: dict[str, Topic] = {}
        self._free: dict[str, tuple[int, int]] = {}
        """Names whose last topic is fully deleted: (version of the remaining fact, time of the
        end)."""
        self._endings: dict[UUID, _Ending] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._marked

    def holds(self, topic_id: UUID) -> bool:
        """Whether the topic is marked as deleted: events about it are older than the mark."""
        return any(topic.id == topic_id for topic in self._marked.values())

    def marked(self, topic: Topic) -> None:
        """The store has accepted the mark, from this broker or another."""
        self._marked[topic.name] = topic

    def ended(self, name: str, free: tuple[int, int] | None = None) -> None:
        """The name is free or belongs to another topic. `free`: (version, time) of the remaining
        fact."""
        self._marked.pop(name, None)
        if free is None:
            self._free.pop(name, None)
        else:
            self._free[name] = free

    def version_of_free(self, name: str) -> int:
        """The version of this name's key while no topic has the name."""
        return self._free[name][0] if name in self._free else ABSENT

    async def forget_old(self) -> None:
        """Delete the facts of topics whose deletion ended so long ago that every broker knows."""
        before_ms = self._environment.clock.now_ms() - FREE_KEPT_MS
        for name, (version, ended_ms) in list(self._free.items()):
            if ended_ms >= before_ms:
                continue
            try:
                await self._environment.metadata.delete(topic_key(name), version)
            except VersionConflict:  # another topic has the name
                continue
            except HeadraceError as error:
                log.info("cannot remove the fact of deleted topic %s yet: %s", name, error)
                return

    async def finish(self, name: str, ownership: Ownership) -> None:
        """Finish the deletion of a marked topic: on return no broker accepts records for it, and
        its name is free.

        Raises StorageUnavailable if a broker still might; the name is then not free, and the
        deletion continues in the background.
        """
        topic = self._marked.get(name)
        if topic is None:
            return
        ending = self._endings.get(topic.id)
        if ending is None:
            ending = self._endings[topic.id] = _Ending(topic)
            ending.task = self._environment.tasks.start(
                self._end(ending, ownership), f"finish the deletion of {name}"
            )
            ending.task.add_done_callback(lambda _: self._endings.pop(topic.id))
        await asyncio.wait({ending.task}, timeout=END_WAIT_S)
        task = ending.task
        if not task.done() or task.cancelled() or not task.result():
            raise StorageUnavailable(
                f"topic {name!r} is deleted, but a broker that has not been notified may "
                f"still accept records, which will be lost ({ending.why}): its name can be "
                "reused once that has ended; repeat the deletion to check"
            )

    async def clear(self, partitions: Iterable[PartitionLog], keys: Iterable[str]) -> None:
        """Delete the ledgers of a deleted topic's partitions, then the facts that name these
        ledgers."""
        metadata = self._environment.metadata
        for partition in partitions:
            await partition.delete()
        for key in keys:
            if await metadata.get(key) is not None:
                await metadata.delete(key, ANY)

    async def clear_alone(self, topic: Topic) -> None:
        """Clear a deleted topic whose partitions only this broker has ever served."""
        numbers = range(topic.fact.partition_count)
        keys = [partition_key(topic.id, number) for number in numbers]
        await self.clear([log for _, log in topic.logs], keys)
        # What remains are companions: the journals of share groups and the like.
        for entry in await self._environment.metadata.list(partitions_prefix(topic.id)):
            companion = self._logs.make(topic.fact, partition_of_key(entry.key)[1])
            await self.clear([companion], [entry.key])

    async def finish_all(self, ownership: Ownership) -> None:
        """Finish deletions that other brokers began and left, and remove the facts of old ones."""
        for name in list(self._marked):
            try:
                await self.finish(name, ownership)
            except HeadraceError as error:
                log.warning("%s", error)
        await self.forget_old()

    async def _end(self, ending: _Ending, ownership: Ownership) -> bool:
        """Whether the topic is fully deleted."""
        topic = ending.topic
        try:
            if self._environment.is_shared:
                await self._shut_out_all(ending)
            if not await ownership.wait_ended(topic, HEARD_WAIT_S):
                if not self._environment.is_shared:
                    ending.why = "a worker has not confirmed it"
                    return False
                log.warning("a broker may still serve records of deleted topic %s", topic.name)
            now_ms = self._environment.clock.now_ms()
            ended = replace(topic.fact, configs={}, ended_ms=now_ms)
            key = topic_key(topic.name)
            version = await self._environment.metadata.put(key, ended.encode(), topic.version)
            free = version, now_ms
        except VersionConflict:
            log.debug("another broker has finished deleting topic %s", topic.name)
            free = None
        except HeadraceError as error:
            ending.why = error
            return False
        if self._marked.get(topic.name) is topic:
            self.ended(topic.name, free)
        return True

    async def _shut_out_all(self, ending: _Ending) -> None:
        """Fence all writers of the topic. Raises the error that prevents it, after retrying for a
        minute."""
        at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)  # noqa: TID251  # of tasks

        async def persist(number: int) -> None:
            for left in reversed(range(TRIES_MAX)):
                try:
                    async with at_once:
                        await fence_brokers(self._environment, ending.topic.id, number)
                        return
                except HeadraceError as error:
                    ending.why = error
                    if not left:
                        raise
                    await asyncio.sleep(RETRY_S)

        numbers = range(ending.topic.fact.partition_count)
        await asyncio.gather(*(persist(number) for number in numbers))
