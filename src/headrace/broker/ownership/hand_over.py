"""Hands partitions over to other brokers that live.

Invariants: the former owner takes no more records before it names the next one, and names it by a
compare-and-set of the owner fact under its own epoch. Where that fails, or is in doubt, it serves
no more all the same: who owns the partition is what is stored.

How it works: of a partition that clients use, the next owner is announced and gets ready
(`next_owner`) while this one serves; the log of a coordinator is shortened to a snapshot first,
since the next owner reads all of it. Then this one refuses what comes, naming the next owner, where
clients wait; it seals its ledger, and writes the next owner, the chain under its epoch and its
ledger in one transaction. What is left for the next owner is to read the footer of the seal.

Few are in motion at once. A request that waits for one partition holds up the answers of its
connection, so that those in motion make each other slower, and partitions that stay as well.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.ownership.next_owner import WARM_VERSION
from headrace.broker.topics.ownership import Leader
from headrace.errors import NotOwner
from headrace.metadata.facts import OwnerFact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.ownership.cluster_view import ClusterView
    from headrace.broker.ownership.owner_facts import OwnerFacts
    from headrace.broker.ownership.ownership_waiter import OwnershipWaiter
    from headrace.broker.topics.topic import Topic
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey

log = logging.getLogger(__name__)

HAND_OVERS_AT_ONCE = 16
"""Of partitions that no client uses."""
WARM_AT_ONCE = 1
"""Of partitions that clients use."""
WARM_TURNS_MAX = 100
"""Of a broker that stops: it has no more time than for so many, one after the other."""
GETTING_READY_AT_ONCE = 2
"""Next owners that get ready while others are in motion: enough that the next one is there in time,
few enough that they take no processor from those in motion, and do not wait long for their turn."""
READY_WAIT_S = 2.0
"""For the next owner of such a partition to be ready; then it is handed over as it is."""
IN_MOTION_MAX_S = 5.0
"""Then others are moved besides: slow bookies of one ledger hold up its own partition alone."""
NAMED_WAIT_S = 0.5
NAMED_ATTEMPTS_MAX = 3


class Events(NamedTuple):
    """What the broker does when a tenure begins or ends; each with topic and partition."""

    loaded: Callable[[Topic, int], None]
    """The log of one with records has been read."""
    leaving: Callable[[Topic, int, float], Awaitable[None]]
    """One is to be handed over: prepare that within so many seconds, while it is served."""
    resigned: Callable[[Topic, int], None]
    """One is given up: it takes no more records, and its next owner is not named yet."""


class HandOvers:
    """Those of one broker."""

    def __init__(
        self,
        me: int,
        incarnation: str,
        served: dict[PartitionKey, PartitionLog],
        view: ClusterView,
        facts: OwnerFacts,
        waiter: OwnershipWaiter,
        events: Events,
    ) -> None:
        """`served`: the partitions of this broker, kept by the caller."""
        self._me = me
        self._incarnation = incarnation
        self._served = served
        self._view = view
        self._facts = facts
        self._waiter = waiter
        self._prepare, self._resigned = events.leaving, events.resigned
        self._next_leaders: dict[PartitionKey, Leader] = {}
        self._announced: dict[PartitionKey, str] = {}
        """The life of the next owner that gets ready, or is. What an owner fact says besides may be
        of a life that is over: its ledger may be deleted by now."""
        self._cold = asyncio.Semaphore(HAND_OVERS_AT_ONCE)
        self._limit(WARM_AT_ONCE)

    def _limit(self, at_once: int) -> None:
        self._in_motion = asyncio.Semaphore(at_once)
        self._getting_ready = asyncio.Semaphore(at_once + GETTING_READY_AT_ONCE)

    def hurry(self) -> None:
        """This broker stops: hand over so many at once that all are done in time."""
        self._limit(max(WARM_AT_ONCE, len(self._served) // WARM_TURNS_MAX))

    def next_leader(self, key: PartitionKey) -> Leader | None:
        """Where clients of a partition in motion wait for it to be served, None if they do not."""
        return self._next_leaders.get(key)

    async def run(self, topic: Topic, number: int, target: int) -> bool:
        """Hand one over; whether this broker served it until then, and serves it no more.

        Raises MetadataUnavailable: the next owner may have been named.
        """
        key = (topic.id, number)
        served = self._served.get(key)
        if served is None:
            return False
        if not self._is_warm(topic, served, target):
            async with self._cold:
                return await self._move(topic, number, served, target)
        try:
            return await self._run_warm(topic, number, served, target)
        finally:
            self._announced.pop(key, None)

    async def _run_warm(self, topic: Topic, number: int, served: PartitionLog, target: int) -> bool:
        getting_ready, in_motion = self._getting_ready, self._in_motion
        with ExitStack() as turns:
            await getting_ready.acquire()
            turns.callback(getting_ready.release)
            if topic.is_internal:
                await self._prepare(topic, number, READY_WAIT_S)
            if not self._can_take(target):  # it has begun to stop meanwhile
                return False
            await self._announce((topic.id, number), served, target)
            await in_motion.acquire()
            turns.callback(in_motion.release)
            late = asyncio.get_running_loop().call_later(IN_MOTION_MAX_S, turns.close)
            turns.callback(late.cancel)
            return await self._move(topic, number, served, target)

    def _is_warm(self, topic: Topic, served: PartitionLog, target: int) -> bool:
        """Whether clients would notice a pause, and the next owner knows how to get ready."""
        broker = self._view.brokers.get(target)
        if broker is None or broker.is_leaving or broker.warm_version != WARM_VERSION:
            return False
        return served.is_loaded and (served.active is not None or topic.is_internal)

    def _can_take(self, target: int) -> bool:
        broker = self._view.brokers.get(target)
        return broker is not None and not broker.is_leaving

    async def _announce(self, key: PartitionKey, served: PartitionLog, target: int) -> None:
        """Have the next owner get ready, within reason, while this one still serves."""
        epoch = served.leader_epoch
        owner = self._view.owners.get(key)
        if owner is None or self._served.get(key) is not served:
            return
        fact = OwnerFact(self._me, self._incarnation, epoch, successor=target)

        def is_decided() -> bool:
            now = self._view.owners.get(key)
            if now is None or now.fact.leader_epoch != epoch or now.fact.is_ready:
                return True
            return not self._can_take(target)

        life = self._view.brokers[target].incarnation
        if life is None or not await self._facts.write(key, fact, owner):
            return
        self._announced[key] = life
        if not await self._waiter.wait(is_decided, READY_WAIT_S):
            log.info("%s: broker %d is not ready; it is handed over", served.name, target)

    def _ready_fact(self, key: PartitionKey, target: int) -> OwnerFact | None:
        """The owner fact that says that the next owner is ready, in the life that it has now."""
        known, broker = self._view.owners.get(key), self._view.brokers.get(target)
        life = self._announced.get(key)
        if known is None or broker is None or life is None or broker.incarnation != life:
            return None
        return known.fact if known.fact.is_ready and known.fact.successor == target else None

    async def _move(self, topic: Topic, number: int, served: PartitionLog, target: int) -> bool:
        """Settle and seal, then name the next owner; it serves as soon as it sees that."""
        key = (topic.id, number)
        if self._served.get(key) is not served or not self._can_take(target):
            return False
        gone = NotOwner(f"{served.name} is at broker {target} now: refresh the metadata")
        # Coordinators' clients ask any broker where they are; until it knows, they wait here.
        is_awaited = self._ready_fact(key, target) is not None and not topic.is_internal
        if is_awaited:
            self._next_leaders[key] = Leader(target, served.leader_epoch + 1)
        try:
            await served.upkeep.settle_and_seal(gone if is_awaited else None)
            self._resigned(topic, number)
            # Without an answer it is in doubt whether it is named; clients do not wait for that.
            loop = asyncio.get_running_loop()
            giving_up = loop.call_later(NAMED_WAIT_S, served.upkeep.abandon, gone)
            try:
                await self._name(key, served, target)
            finally:
                # Waiting clients are sent to the next owner now, when it is known.
                giving_up.cancel()
                served.upkeep.abandon(gone)
                # Once more: a request may have made a coordinator over the log meanwhile.
                self._resigned(topic, number)
        finally:
            self._next_leaders.pop(key, None)
        return self._served.get(key) is served

    async def _name(self, key: PartitionKey, served: PartitionLog, target: int) -> None:
        """Name the next owner; once more where its mark that it is ready came in between.

        Its epoch and its ledger enter the chain with that, where this can be; else it enters them.
        """
        for attempt in range(NAMED_ATTEMPTS_MAX):
            fact = self._view.next_owner(key, self._incarnation, served.leader_epoch, target)
            if fact is None or self._served.get(key) is not served:
                break
            known = self._view.owners[key]
            ready = self._ready_fact(key, target)
            ahead = None if ready is None else ready.ledger_ahead
            chain = None
            if not attempt and ahead is not None:
                chain = served.upkeep.next_chain(fact.leader_epoch, ahead)
            if chain is None:
                served.upkeep.note_seal()
            if await self._facts.write(key, fact, known, chain):
                return
        served.upkeep.note_seal()
