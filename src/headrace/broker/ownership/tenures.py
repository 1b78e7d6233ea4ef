"""The partitions that this broker serves: one log for one tenure of each.

Invariants: carries out what `SharedOwnership` has decided, and reads no placement and writes no
fact. No method but the reading of a log suspends, so a partition is always in one place: served,
suspended, or another broker's (`ForeignPartition`, which refuses requests). A tenure that is over
is noted before the next one of that partition begins, which is told what was acknowledged in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import ChainMap
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.ownership.chain_watch import ChainWatch
from headrace.broker.ownership.ended_tenures import EndedTenures
from headrace.broker.ownership.suspended_logs import SuspendedLogs
from headrace.errors import ChainMissing, HeadraceError, NotOwner

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from uuid import UUID

    from headrace.broker.ownership.cluster_view import ClusterView
    from headrace.broker.ownership.hand_over import Events
    from headrace.broker.ownership.next_owner import NextOwner
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

EXPIRED = "the session with the metadata store has expired"
LOADS_AT_ONCE = 32
"""Logs that no client has requested yet; one that a client waits for is read at once."""


class Tenures:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        view: ClusterView,
        incarnation: str,
        metadata: MetadataStore,
        announced: NextOwner,
        events: Events,
        changed: Callable[[PartitionKey], None],
        tasks: Tasks,
    ) -> None:
        """`announced`: the partitions about to be handed over to this broker. `changed` is called
        when the owner of a partition must be examined, because its log has failed."""
        self.served: dict[PartitionKey, PartitionLog] = {}
        self.suspended = SuspendedLogs(topics, view, incarnation)
        """Of a broker that has stepped down."""
        self.ended = EndedTenures()
        known = ChainMap(self.served, self.suspended.by_key, topics.logs.companions)
        self.chains = ChainWatch(metadata, known, changed)
        self._topics = topics
        self._announced = announced
        self._loaded, self._resigned = events.loaded, events.resigned
        self._on_suspended = events.suspended
        self._changed = changed
        self._tasks = tasks
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE)  # noqa: TID251  # of tasks

    def __iter__(self) -> Iterator[tuple[Topic, int, PartitionLog]]:
        """Those of topics that exist; changes meanwhile do no harm."""
        found = [
            (topic, number, served)
            for topic in self._topics.by_id.values()
            for number in range(len(topic.partitions))
            if (served := self.served.get((topic.id, number))) is not None
        ]
        return iter(found)

    def begin(self, topic: Topic, number: int, leader_epoch: int) -> None:
        """Serve the partition under this epoch, with the log that waits for it if there is one."""
        key = (topic.id, number)
        former = self.served.pop(key, None)
        if former is not None:
            self.ended.note(key, former)
            former.tenure.abandon(NotOwner(f"{former.name} is served under a newer epoch"))
        self._resigned(topic, number)
        waiting = self._announced.take(key, leader_epoch)
        served = waiting or self._topics.logs.make(topic.fact, number, leader_epoch)
        served.tenure.acknowledged = self.ended.acknowledged(key)
        self.served[key] = topic.partitions[number] = served
        self.chains.begun(key)
        self._topics.version += 1
        served.on_lost = partial(self._on_lost, key, served)
        if waiting is not None:
            served.tenure.take_over()
        loading = self._warm(topic, number, served, is_in_use=waiting is not None)
        self._tasks.spawn(loading, f"load {served.name}")
        log.debug("%s is served here since epoch %d", served.name, leader_epoch)

    async def _warm(
        self, topic: Topic, number: int, served: PartitionLog, *, is_in_use: bool
    ) -> None:
        """Read the log at once: the first client should wait neither for it nor, in a partition
        that is in use, for the first ledger. A partition in use needs no slot."""
        key = (topic.id, number)
        try:
            if is_in_use:
                await served.wait_loaded()
                served.prepare()
            else:
                async with self._loads:
                    await served.wait_loaded()
            if key in self.served and served.high_watermark > served.log_start_offset:
                self._loaded(topic, number)
        except NotOwner as error:  # not a fault, and one for each partition of an expired session
            log.debug("%s is no longer read: %s", served.name, error)
        except HeadraceError as error:
            log.warning("%s cannot be read yet: %s", served.name, error)
            if topic.is_internal and key in self.served:
                self._loaded(topic, number)  # its coordinator reads it until that succeeds

    def _on_lost(self, key: PartitionKey, served: PartitionLog) -> None:
        self._changed(key)
        if isinstance(served.failure, ChainMissing):
            self._tasks.spawn(self.chains.recheck(key), f"chain of {served.name}")

    def end(self, topic: Topic, number: int, why: str) -> None:
        """Stop serving the partition; operations in progress fail."""
        served = self.served.pop((topic.id, number))
        self.ended.note((topic.id, number), served)
        error = NotOwner(f"{served.name} is not served here: {why}; refresh the metadata")
        self._resigned(topic, number)
        served.tenure.abandon(error)
        self._topics.leave(topic, number)
        log.debug("%s is no longer served here: %s", served.name, why)

    def end_all(self, why: str) -> None:
        """Stop serving all partitions, suspended ones too."""
        self.served.update(self.suspended.take_all())
        for topic, number, _ in self:
            self.end(topic, number, why)

    def handed_over(self, topic: Topic, number: int, target: int) -> None:
        """The log of the partition was given up for its next owner."""
        key = (topic.id, number)
        served = self.served.pop(key)
        self.ended.note(key, served)
        self._topics.leave(topic, number)
        log.debug("%s was handed over to broker %d", served.name, target)

    def drop_deleted(
        self, topics: Container[UUID]
    ) -> list[tuple[PartitionKey, PartitionLog | None]]:
        """Forget the partitions of topics that are not in `topics`; returns them, with their logs
        if they were served."""
        both = dict.fromkeys([*self.served, *self.ended])
        gone = [key for key in both if key[0] not in topics]
        for key in gone:
            self.ended.forget(key)
        return [(key, self.served.pop(key, None)) for key in gone]

    def suspend_all(self) -> None:
        """The session may end soon: serve nothing until `resume_all`. Logs that can be kept are."""
        for topic, number, served in self:
            if self.suspended.suspend(topic, number, served, EXPIRED):
                del self.served[topic.id, number]
                self._on_suspended(topic, number)
            else:
                self.end(topic, number, EXPIRED)

    def resume_all(self, *, has_survived: bool) -> None:
        """Serve what was suspended, if the session has survived; otherwise end these tenures."""
        for key, served in self.suspended.take_all().items():
            self.served[key] = served
            topic = self._topics.by_id.get(key[0])
            if topic is None:
                served.tenure.topic_deleted()
                served.abandon(NotOwner(f"the topic of {served.name} was deleted"))
            elif not has_survived or not self.suspended.reinstate(topic, key[1], served):
                self.end(topic, key[1], EXPIRED)
            elif topic.is_internal or not served.is_loaded:
                loading = self._warm(topic, key[1], served, is_in_use=False)
                self._tasks.spawn(loading, f"load {served.name}")
