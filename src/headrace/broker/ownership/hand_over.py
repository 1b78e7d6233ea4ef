"""Hands partitions over to other live brokers.

Invariants: the former owner stops accepting records before it names the next one, and names it by a
compare-and-set of the owner fact under its own epoch. If that fails or its outcome is unknown, it
stops serving all the same: the stored fact decides who owns the partition.

How it works: for a partition that clients use, the next owner is announced and prepares
(`next_owner`) while this one serves; the log of a coordinator is first replaced by a snapshot and
sealed, since the next owner reads all of it. Then this broker refuses requests with the name of the
next owner, where clients wait; it seals its ledger, and writes the next owner, the chain under its
epoch and its ledger in one transaction. The next owner only has to read the footer of the sealed
ledger.

Few partitions move at once. A request that waits for one partition delays all responses on its
connection, so partitions in motion slow down each other and those that stay.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, suppress
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
    from headrace.metadata.facts import PartitionFact, PartitionKey

log = logging.getLogger(__name__)

HAND_OVERS_AT_ONCE = 16
"""Partitions that no client uses."""
WARM_AT_ONCE = 1
"""Partitions that clients use."""
WARM_TURNS_MAX = 100
"""Sequential hand-overs for which a stopping broker has time."""
GETTING_READY_AT_ONCE = 2
"""Next owners that prepare while other partitions are in motion: enough that the next one is ready
in time, few enough that they take no CPU from those in motion and do not wait long themselves."""
READY_WAIT_S = 2.0
"""For the next owner of a partition in use to be ready; after that it is handed over anyway."""
COORDINATOR_READY_WAIT_S = 8.0
"""The same for a coordinator's partition: a million offsets take seconds to read. Shorter than the
next owner waits."""
SEAL_BYTES_MIN = 16 * 1024
"""Of the open ledger of a coordinator's log: the next owner reads only sealed ones ahead."""
IN_MOTION_MAX_S = 5.0
"""After that, other partitions may move as well: slow bookies of one ledger delay only its own
partition."""
NAMED_WAIT_S = 0.5
NAMED_ATTEMPTS_MAX = 3


class Events(NamedTuple):
    """Called when a tenure begins or ends, with topic and partition."""

    loaded: Callable[[Topic, int], None]
    """The log of a partition with records has been read, or of an internal topic's that cannot be
    read yet: its coordinator tries until that succeeds."""
    leaving: Callable[[Topic, int, float], Awaitable[None]]
    """The partition is about to be handed over: prepare within the given seconds, while it is
    served."""
    moving: Callable[[Topic, int, bool], None]
    """The partition begins to be handed over, or it has been: to the next owner, or not at all."""
    expected: Callable[[Topic, int, int, PartitionFact], Awaitable[None]]
    """Another broker is about to hand over the partition, to be served under the given leader
    epoch: read what its chain names and does not change until then. Raises HeadraceError."""
    withdrawn: Callable[[Topic, int], None]
    """The partition is not handed over after all."""
    suspended: Callable[[Topic, int], None]
    """It is uncertain whether this broker owns the partition: it refuses everything, until it is
    loaded or resigned."""
    resigned: Callable[[Topic, int], None]
    """The partition is given up: it accepts no more records, and its next owner is not named
    yet."""


class HandOvers:
    """The hand-overs of one broker."""

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
        """`served`: the partitions of this broker, maintained by the caller."""
        self._me = me
        self._incarnation = incarnation
        self._served = served
        self._view = view
        self._facts = facts
        self._waiter = waiter
        self._prepare, self._resigned = events.leaving, events.resigned
        self._tell_moving = events.moving
        self._next_leaders: dict[PartitionKey, Leader] = {}
        self._announced: dict[PartitionKey, str] = {}
        """The incarnation of the next owner that is preparing or ready. An owner fact may also
        describe an incarnation that has ended, whose ledger may have been deleted."""
        self._cold = asyncio.Semaphore(HAND_OVERS_AT_ONCE)  # noqa: TID251  # of tasks
        self._limit(WARM_AT_ONCE)

    def _limit(self, at_once: int) -> None:
        self._in_motion = asyncio.Semaphore(at_once)  # noqa: TID251  # of tasks
        self._getting_ready = asyncio.Semaphore(at_once + GETTING_READY_AT_ONCE)  # noqa: TID251  # of tasks

    def expedite(self) -> None:
        """This broker is stopping: allow enough concurrent hand-overs to finish in time."""
        self._limit(max(WARM_AT_ONCE, len(self._served) // WARM_TURNS_MAX))

    def next_leader(self, key: PartitionKey) -> Leader | None:
        """Where clients of a partition in motion wait for it to be served, None if they do not
        wait."""
        return self._next_leaders.get(key)

    async def run(self, topic: Topic, number: int, target: int) -> bool:
        """Hand over one partition; whether this broker served it until then and no longer does.

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
                await _seal_most(served)
            if not self._can_take(target):  # it began to stop in the meantime
                return False
            await self._announce(topic, number, served, target)
            await in_motion.acquire()
            turns.callback(in_motion.release)
            late = asyncio.get_running_loop().call_later(IN_MOTION_MAX_S, turns.close)
            turns.callback(late.cancel)
            return await self._move(topic, number, served, target)

    def _is_warm(self, topic: Topic, served: PartitionLog, target: int) -> bool:
        """Whether clients would notice a pause, and the next owner supports preparing."""
        broker = self._view.brokers.get(target)
        if broker is None or broker.is_leaving or broker.warm_version != WARM_VERSION:
            return False
        return served.is_loaded and (served.active is not None or topic.is_internal)

    def _can_take(self, target: int) -> bool:
        broker = self._view.brokers.get(target)
        return broker is not None and not broker.is_leaving

    async def _announce(self, topic: Topic, number: int, served: PartitionLog, target: int) -> None:
        """Have the next owner prepare, up to a time limit, while this one still serves."""
        key, epoch = (topic.id, number), served.leader_epoch
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
        wait_s = COORDINATOR_READY_WAIT_S if topic.is_internal else READY_WAIT_S
        if not await self._waiter.wait(is_decided, wait_s):
            log.info(
                "%s: broker %d is not ready; handing the partition over anyway", served.name, target
            )

    def _ready_fact(self, key: PartitionKey, target: int) -> OwnerFact | None:
        """The owner fact in which the next owner's present incarnation reports that it is ready."""
        known, broker = self._view.owners.get(key), self._view.brokers.get(target)
        life = self._announced.get(key)
        if known is None or broker is None or life is None or broker.incarnation != life:
            return None
        return known.fact if known.fact.is_ready and known.fact.successor == target else None

    async def _move(self, topic: Topic, number: int, served: PartitionLog, target: int) -> bool:
        """Settle and seal, then name the next owner, which serves as soon as it sees that."""
        key = (topic.id, number)
        if self._served.get(key) is not served or not self._can_take(target):
            return False
        moved = NotOwner(f"{served.name} is at broker {target} now: refresh the metadata")
        # Coordinators' clients ask any broker for the coordinator; they wait here until the next
        # one is named.
        is_awaited = self._ready_fact(key, target) is not None and not topic.is_internal
        if is_awaited:
            self._next_leaders[key] = Leader(target, served.leader_epoch + 1)
        self._tell_moving(topic, number, True)
        try:
            await served.tenure.settle_and_seal(moved if is_awaited else None)
            self._resigned(topic, number)
            # Until the store answers, it is unknown whether the next owner is named; clients do not
            # wait for that.
            loop = asyncio.get_running_loop()
            giving_up = loop.call_later(NAMED_WAIT_S, served.tenure.abandon, moved)
            try:
                await self._name(key, served, target)
            finally:
                # Waiting clients are sent to the next owner now, if it is known.
                giving_up.cancel()
                served.tenure.abandon(moved)
                # Again: a request may have created a coordinator over the log in the meantime.
                self._resigned(topic, number)
        finally:
            self._next_leaders.pop(key, None)
            self._tell_moving(topic, number, False)
        return self._served.get(key) is served

    async def _name(self, key: PartitionKey, served: PartitionLog, target: int) -> None:
        """Name the next owner; retry if its ready mark was written in between.

        Its epoch and its ledger enter the chain in the same transaction if possible; otherwise it
        enters them itself.
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
                chain = served.tenure.next_chain(fact.leader_epoch, ahead)
            if chain is None:
                served.tenure.record_seal()
            if await self._facts.write(key, fact, known, chain):
                return
        served.tenure.record_seal()


async def _seal_most(served: PartitionLog) -> None:
    """Seal the open ledger unless it is short, and continue in the next one."""
    active = served.active
    if active is not None and active.end_position >= SEAL_BYTES_MIN:
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_WAIT_S):
                await served.roll_now()
