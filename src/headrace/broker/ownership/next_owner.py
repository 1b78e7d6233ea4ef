"""Prepares to own partitions that other brokers are about to hand over.

Invariants: changes nothing but the mark that this broker is ready; the former owner serves until it
names the next one. Reading ahead does not fence.

How it works: an owner that wants to hand over a partition announces the next owner in its owner
fact. The next owner creates a waiting log, reads ahead what is stored, builds a coordinator's state
from it, and records in the fact that it is ready. Clients that arrive before it has seen that it is
the owner wait at that log instead of being sent back to the former owner. If the partition is not
handed over within `HELD_MS`, they are sent back after all.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, NotOwner

if TYPE_CHECKING:
    from headrace.broker.ownership.cluster_view import ClusterView, Owner
    from headrace.broker.ownership.hand_over import Events
    from headrace.broker.ownership.owner_facts import OwnerFacts
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WARM_VERSION = 1
"""The preparation protocol that a broker announces in its registration. Do not change: stored."""
HELD_MS = 10_000
"""How long a log waits to be handed over: longer than a former owner waits for this broker."""


class NextOwner:
    """The partitions for which this broker was announced."""

    def __init__(
        self,
        me: int,
        view: ClusterView,
        topics: Topics,
        facts: OwnerFacts,
        tasks: Tasks,
        events: Events,
    ) -> None:
        self._me = me
        self._expected, self._withdrawn = events.expected, events.withdrawn
        self._view = view
        self._topics = topics
        self._facts = facts
        self._tasks = tasks
        self._waiting: dict[PartitionKey, tuple[Topic, PartitionLog]] = {}

    def owner_changed(self, topic: Topic, number: int) -> None:
        """The owner fact of a partition that this broker does not own has changed: prepare, or give
        up."""
        key = (topic.id, number)
        owner = self._view.owners.get(key)
        is_next = (
            owner is not None
            and owner.fact.successor == self._me
            and self._view.is_alive(owner.fact)
        )
        found = self._waiting.get(key)
        if found is not None:
            if owner is None or not is_next or found[1].leader_epoch != owner.fact.leader_epoch + 1:
                self.drop(key, "it was not handed over")
        elif owner is not None and is_next and not owner.fact.is_ready:
            self._prepare(topic, number, owner)

    def _prepare(self, topic: Topic, number: int, owner: Owner) -> None:
        key = (topic.id, number)
        waiting = self._topics.logs.make(topic.fact, number, owner.fact.leader_epoch + 1)
        waiting.tenure.expect_handover()
        self._waiting[key] = topic, waiting
        topic.partitions[number] = waiting
        self._topics.version += 1
        self._tasks.spawn(self._read_ahead(key, waiting, owner), f"read ahead {waiting.name}")
        asyncio.get_running_loop().call_later(HELD_MS / 1000, self._expire, key, waiting)

    async def _read_ahead(self, key: PartitionKey, waiting: PartitionLog, owner: Owner) -> None:
        try:
            await waiting.tenure.read_ahead()
            await self._read_state_ahead(key, waiting)
            if self._is_waiting(key, waiting):
                ahead = waiting.tenure.ledger_ahead
                fact = replace(owner.fact, is_ready=1, ledger_ahead=ahead)
                if await self._facts.write(key, fact, owner) and self._is_waiting(key, waiting):
                    self._tasks.spawn(self._follow(waiting), f"follow {waiting.name}")
        except HeadraceError as error:
            log.info(
                "%s could not be read ahead and is taken over as it is: %s", waiting.name, error
            )
            if self._is_waiting(key, waiting):
                self.drop(key, "it could not be read ahead")

    async def _read_state_ahead(self, key: PartitionKey, waiting: PartitionLog) -> None:
        """For a coordinator; if that fails, it reads everything when it owns the partition."""
        found = self._waiting.get(key)
        if found is None or not found[0].is_internal:
            return
        try:
            chain = waiting.tenure.fact  # as it was just read
            await self._expected(found[0], key[1], waiting.leader_epoch, chain)
        except HeadraceError as error:
            log.info("the state of %s could not be read ahead: %s", waiting.name, error)
        if not self._is_waiting(key, waiting):
            self._withdrawn(found[0], key[1])

    @staticmethod
    async def _follow(waiting: PartitionLog) -> None:
        try:
            await waiting.tenure.follow_former()
        except HeadraceError as error:  # it is read when this broker becomes the owner instead
            log.debug("%s: not following the former owner: %s", waiting.name, error)

    def _is_waiting(self, key: PartitionKey, waiting: PartitionLog) -> bool:
        found = self._waiting.get(key)
        return found is not None and found[1] is waiting

    def _expire(self, key: PartitionKey, waiting: PartitionLog) -> None:
        if self._is_waiting(key, waiting):
            self._tasks.spawn(self._withdraw(key, waiting), f"withdraw from {waiting.name}")

    async def _withdraw(self, key: PartitionKey, waiting: PartitionLog) -> None:
        """Stop waiting, and record that first: the former owner would otherwise name this broker
        together with a ledger that it has discarded. If the former owner is faster, this broker is
        the owner."""
        owner = self._view.owners.get(key)
        if (
            owner is not None
            and owner.fact.successor == self._me
            and owner.fact.leader_epoch + 1 == waiting.leader_epoch
        ):
            fact = replace(owner.fact, successor=None, is_ready=None, ledger_ahead=None)
            try:
                if not await self._facts.write(key, fact, owner) and self._is_mine(key):
                    return
            except HeadraceError as error:
                log.info(
                    "%s: this broker is still announced as next owner: %s", waiting.name, error
                )
        if self._is_waiting(key, waiting):
            self.drop(key, "it was not handed over in time")

    def _is_mine(self, key: PartitionKey) -> bool:
        owner = self._view.owners.get(key)
        return owner is not None and owner.fact.broker == self._me

    def take(self, key: PartitionKey, leader_epoch: int) -> PartitionLog | None:
        """The log that waits under this epoch, now to be served; None if there is none."""
        found = self._waiting.pop(key, None)
        if found is None:
            return None
        waiting = found[1]
        if waiting.leader_epoch == leader_epoch and waiting.failure is None:
            return waiting
        waiting.tenure.abandon(NotOwner(f"{waiting.name} is served under another epoch"))
        return None

    def drop(self, key: PartitionKey, why: str) -> None:
        """Stop waiting for the partition."""
        topic, waiting = self._waiting.pop(key)
        self._withdrawn(topic, key[1])
        waiting.tenure.abandon(
            NotOwner(f"{waiting.name} is not served here: {why}; refresh the metadata")
        )
        if topic.partitions[key[1]] is waiting:
            self._topics.leave(topic, key[1])

    def drop_all(self, why: str) -> None:
        """Stop waiting for all partitions."""
        for key in list(self._waiting):
            self.drop(key, why)
