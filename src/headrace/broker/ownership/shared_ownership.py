"""Ownership of partitions that several brokers share: claim, serve, hand over, step down.

Invariants: every broker computes the same placement from the same view and acts on its own
partitions only; there is no controller. Each change of an owner is a compare-and-set of its fact,
which raises the leader epoch. That settles who *may* serve; storage keeps a former owner from
writing, because the log fences it when it loads (`PartitionLog`). A claim needs no consent, since
it is made only after the owner's registration has ended, which only its session and its own machine
end (`OwnerFacts.prove_ended`, `zookeeper/session_ender`); a live owner hands over by itself.

How it works: every change sets one event, and one task reconciles the actual with the desired state
of the partitions whose owner changed, or of all of them when brokers, topics or pins did.
What this broker serves is in `tenures`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.ownership.cluster_view import ClusterView
from headrace.broker.ownership.hand_over import Events, HandOvers
from headrace.broker.ownership.membership import Membership
from headrace.broker.ownership.next_owner import WARM_VERSION, NextOwner
from headrace.broker.ownership.orphaned_ownerships import OrphanedOwnerships
from headrace.broker.ownership.owner_facts import OwnerFacts
from headrace.broker.ownership.ownership_waiter import OwnershipWaiter
from headrace.broker.ownership.peers import Peers
from headrace.broker.ownership.placement import Placement
from headrace.broker.ownership.suspended_logs import KEPT_S
from headrace.broker.ownership.tenures import EXPIRED, Tenures
from headrace.broker.session_guard import SessionGuard
from headrace.broker.topics.ownership import NO_LEADER, Leader
from headrace.coordination.placement.rendezvous import NO_BROKER
from headrace.errors import ChainMissing, HeadraceError, NotOwner
from headrace.metadata.facts import OwnerFact, owner_key, partition_key
from headrace.metadata.load_facts import MOVES_VERSION

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.ownership import OpenLine
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import BrokerFact, PartitionKey
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

CHANGES_AT_ONCE = 512
RETRY_S = 0.2
LEAVE_ROUNDS_MAX = 3
"""Rounds of a stopping broker: partitions meant for a broker that died or is stopping, too, get
another next owner in the next round."""
LEFT_PAUSE_S = 0.3
"""For which a stopping broker stays registered and answers after its last hand-over. If a metadata
response names new leaders and no longer lists their former broker while a request to it is in
flight, librdkafka (2.10 and later) forgets the leaders, and asks again after 0.2 to 0.5 s."""


class SharedOwnership:
    """See Ownership."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        topics: Topics,
        events: Events,
        incarnation: str,
        clock: Clock,
        tasks: Tasks,
        slots: Sequence[int] = (),
        open_line: OpenLine | None = None,
    ) -> None:
        """`slots`: the ids of all brokers, live or not, if each keeps its ledgers in a folder of
        its own: a partition then stays with its first owner and waits for it if necessary.
        `open_line` opens the connections that tell of deaths."""
        self._me = config.broker_id
        self._config = config
        self._metadata = metadata
        self._topics = topics
        self._resigned = events.resigned
        self._incarnation = incarnation
        self._clock = clock
        self._tasks = tasks
        self._slots = slots
        self._wake = asyncio.Event()
        self.view = ClusterView(metadata, tasks, self._wake.set)
        self._facts = OwnerFacts(self.view, metadata, tasks)
        self._next = NextOwner(self._me, self.view, topics, self._facts, tasks, events)
        self._orphaned = OrphanedOwnerships(self.view, metadata, incarnation, tasks)
        self._is_all_due = True
        """Whether all partitions must be examined; otherwise only those the view marks as dirty."""
        self._peers = Peers(self._me, incarnation, tasks, self.view.departures, open_line)
        self._membership: Membership | None = None
        known = topics, self.view, incarnation, metadata, self._next, events
        self._tenures = Tenures(*known, self._mark, tasks)
        self._mine = self._tenures.served
        self._waiter = OwnershipWaiter(self.view, self._me, self._mine)
        parts = self._me, incarnation, self._mine, self.view, self._facts, self._waiter
        self._moving = HandOvers(*parts, events)
        self._busy: set[PartitionKey] = set()
        self._idle = asyncio.Event()
        self.placement = Placement(self.view, slots)
        self.first_owners = self.placement.first_owners
        self.damaged_facts = self.view.damaged_facts
        self.wait_settled = self.view.departures.wait_settled
        self._members_version = -1
        self._moves_at = 0.0
        """When partitions may move between live brokers: some time after the last membership
        change, so that a restarted broker keeps most of its partitions."""
        self._claims = asyncio.Semaphore(CHANGES_AT_ONCE)  # noqa: TID251  # of tasks
        self._is_leaving = False
        self._leaving: asyncio.Timeout | None = None  # while partitions are handed over
        self.guard: SessionGuard | None
        steps = self._step_down, self._step_up
        self._guard = self.guard = SessionGuard(metadata.session, clock, *steps)

    # --- requests of faces -------------------------------------------------------------------

    def leader(self, topic: Topic, partition: int) -> Leader:
        """See Ownership."""
        key = (topic.home.id, partition)
        owner = self.view.owners.get(key)
        if owner is None:
            return Leader(NO_LEADER, -1)
        broker, epoch = owner.fact.broker, owner.fact.leader_epoch
        # This broker has stepped down since, and another one may have taken over.
        is_over = key in self._tenures.suspended.by_key or self._tenures.ended.is_over(key, epoch)
        if not self.view.is_trusted(owner.fact) or (broker == self._me and is_over):
            return Leader(NO_LEADER, epoch)
        return self._moving.next_leader(key) or Leader(broker, epoch)

    def led_for_s(self, topic: Topic, partition: int) -> float:
        """See Ownership."""
        owner = self.view.owners.get((topic.home.id, partition))
        return 0.0 if owner is None else asyncio.get_running_loop().time() - owner.since_s

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """See Ownership."""
        return (topic.home.id, partition) in self._mine

    def brokers(self) -> Sequence[BrokerFact]:
        """See Ownership."""
        return [fact for _id, fact in sorted(self.view.brokers.items())]

    def listed_brokers(self) -> Sequence[BrokerFact]:
        """See Ownership."""
        return self.view.departures.listed(self.view.brokers.values())

    def line_ended(self, incarnation: str) -> None:
        """See Ownership."""
        self._peers.line_ended(incarnation)

    def topics_changed(self) -> None:
        """See Ownership."""
        self._mark_all()

    def _mark_all(self) -> None:
        self._is_all_due = True
        self._wake.set()

    def _mark(self, key: PartitionKey) -> None:
        self.view.dirty.add(key)
        self._wake.set()

    async def wait_served(self, topic: Topic, numbers: Collection[int] | None = None) -> None:
        """See Ownership."""
        await self._waiter.wait_served(topic.home, numbers)

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """See Ownership."""
        return await self._waiter.wait_ended(topic, timeout_s)

    # --- joining and leaving -----------------------------------------------------------------

    async def join(self, fact: BrokerFact) -> None:
        """See Ownership. Raises BrokerIdInUse, MetadataUnavailable."""
        fact.incarnation, fact.moves_version = self._incarnation, MOVES_VERSION
        fact.warm_version = WARM_VERSION
        self._membership = Membership(fact, self._metadata, self._config.join_timeout_ms)
        await self._membership.join()
        await self.view.start()
        self._tasks.spawn(self._reconcile_always(), "ownership")
        self._tasks.spawn(self._guard.run(), "session")
        self._tasks.spawn(self._tenures.chains.run(), "chains")
        self._mark_all()

    async def leave(self) -> None:
        """See Ownership: partitions not handed over in time are claimed after this broker has
        left."""
        self._is_leaving = True
        self._next.drop_all("this broker is stopping")
        self.placement.without = self._me
        if self._slots:
            return
        try:
            async with asyncio.timeout(self._config.hand_over_timeout_ms / 1000) as self._leaving:
                if self._membership is not None and self._guard.is_up:
                    await self._membership.announce_leave()
                while self._busy and self._guard.is_up:  # one change per partition at a time
                    self._idle.clear()
                    await self._idle.wait()
                self._moving.expedite()
                if await self._hand_over_all():
                    await asyncio.sleep(LEFT_PAUSE_S)
        except TimeoutError:
            if self._mine:
                log.warning("%d partitions were not handed over in time", len(self._mine))
        finally:
            self._leaving = None
            self._tenures.end_all("this broker is stopping")
            if self._membership is not None:
                await self._membership.leave()

    async def _hand_over_all(self) -> bool:
        """Whether there was anything to hand over."""
        for attempt in range(LEAVE_ROUNDS_MAX):
            targets = [
                (topic, number, self.placement.target(topic, number))
                for topic, number, served in self._tenures
                if served.failure is None
            ]
            moves = [self._hand_over(*one) for one in targets if one[2] != NO_BROKER]
            if not moves:
                return attempt > 0
            for result in await asyncio.gather(*moves, return_exceptions=True):
                if isinstance(result, Exception):
                    log.warning("a partition was not handed over: %s", result)
        return True

    # --- reconciliation ----------------------------------------------------------------------

    async def _reconcile_always(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._process_changes()
            except Exception:
                # Whatever the error: a broker that stopped reacting to changes would be worse.
                log.exception("cannot reconcile the owners of partitions: retrying")
                await asyncio.sleep(RETRY_S)
                self._mark_all()

    async def _process_changes(self) -> None:
        """Collect what changed and act on it."""
        loop = asyncio.get_running_loop()
        if self._members_version != self.view.members_version:
            self._members_version = self.view.members_version
            self._moves_at = loop.time() + self._config.rebalance_delay_ms / 1000
            loop.call_at(self._moves_at, self._mark_all)
            self._topics.version += 1
            self._peers.follow(self.view.brokers)
            self._is_all_due = True
        if not self._guard.is_up or self._is_leaving:
            self._waiter.notify()
        elif self._membership is not None and self._me not in self.view.brokers:
            if self._mine or self._busy:
                self._guard.renounce()  # others may have claimed what is served here
            if not await self._membership.restore():
                loop.call_later(RETRY_S, self._wake.set)
        else:
            self._reconcile()

    def _step_down(self) -> None:
        """The session may end soon: serve nothing, so that no client is directed here."""
        is_kept = self._clock.now_ns() < self._metadata.session.ends_ns + KEPT_S * 1_000_000_000
        if is_kept:
            self._tenures.suspend_all()
        else:
            self._tenures.end_all(EXPIRED)
        self._next.drop_all(EXPIRED)
        if self._leaving is not None and not self._leaving.expired():
            self._leaving.reschedule(asyncio.get_running_loop().time())

    def _step_up(self, has_survived: bool) -> None:
        if not has_survived:
            self._tenures.ended.end_all_of(self._incarnation, self.view.owners)
        self._tenures.resume_all(has_survived=has_survived)
        self._mark_all()

    def _reconcile(self) -> None:
        """Start the change that each partition of this broker needs; running changes continue."""
        is_moving = asyncio.get_running_loop().time() >= self._moves_at
        dirty, self.view.dirty = self.view.dirty, set()
        self._orphaned.note(dirty, self._topics.by_id)
        if self._is_all_due:
            self._is_all_due = False
            self._drop_deleted()
            for topic in list(self._topics.by_id.values()):
                for number in range(len(topic.partitions)):
                    self._settle(topic, number, is_moving=is_moving)
        else:
            for topic_id, number in dirty:
                found = self._topics.by_id.get(topic_id)
                if found is not None and number < len(found.partitions):
                    self._settle(found, number, is_moving=is_moving)
        self._waiter.notify()

    def _drop_deleted(self) -> None:
        known = self._topics.by_id
        for key, served in self._tenures.drop_deleted(known):
            releasing = self._release_deleted(key, served)
            self._tasks.spawn(releasing, f"release deleted {key[0]}-{key[1]}")
        self.placement.forget_all_but(known)

    async def _release_deleted(self, key: PartitionKey, served: PartitionLog | None) -> None:
        """Give up the ownership of a deleted topic's partition, which other brokers wait for."""
        # over shared storage the garbage collector deletes the ledgers
        if served is not None and self._slots:
            await self._topics.deletions.clear([served], [partition_key(*key)])
        owner = self.view.owners.get(key)
        if owner is None or owner.fact.incarnation != self._incarnation:
            return
        try:
            await self._metadata.delete(owner_key(*key), owner.version)
        except HeadraceError as error:
            log.debug("cannot remove the owner of a deleted partition yet: %s", error)

    def _settle(self, topic: Topic, number: int, *, is_moving: bool) -> None:
        key = (topic.id, number)
        if key in self._busy:  # examined again when that change is done
            return
        target = self.placement.target(topic, number)
        owner = self.view.owners.get(key)
        mine = self._mine.get(key)
        if owner is not None and owner.fact.incarnation == self._incarnation:
            epoch = owner.fact.leader_epoch
            if mine is None and self._tenures.ended.is_over(key, epoch):
                self._do(key, self._claim(topic, number))
            elif mine is None or mine.leader_epoch < epoch:
                self._tenures.begin(topic, number, epoch)
            elif isinstance(mine.failure, NotOwner):
                # Storage names another owner, the facts name none: claim again.
                self._do(key, self._claim(topic, number))
            elif isinstance(mine.failure, ChainMissing):
                if self._tenures.chains.is_back(key):
                    self._do(key, self._claim(topic, number))
                else:  # a coordinator over it must not continue from memory
                    self._resigned(topic, number)
            elif target not in {self._me, NO_BROKER} and is_moving:
                self._do(key, self._hand_over(topic, number, target))
            return
        if mine is not None:
            self._tenures.end(topic, number, "another broker has taken it over")
        if target == self._me and (owner is None or not self.view.is_alive(owner.fact)):
            self._do(key, self._claim(topic, number))
        else:
            self._next.owner_changed(topic, number)

    def _do(self, key: PartitionKey, change: Coroutine[None, None, None]) -> None:
        """Run one change of a partition; no other change of it starts meanwhile."""
        self._busy.add(key)

        async def run() -> None:
            try:
                await change
            except HeadraceError as error:
                log.warning("cannot change the owner of %s-%d: %s", *key, error)
                await asyncio.sleep(RETRY_S)
            finally:
                self._busy.discard(key)
                self._idle.set()
                self._mark(key)

        task = self._tasks.start(run(), f"own {key[0]}-{key[1]}")
        # in case it was cancelled before it started
        task.add_done_callback(lambda _: change.close())

    # --- changes -----------------------------------------------------------------------------

    async def _claim(self, topic: Topic, number: int) -> None:
        async with self._claims:
            known, term = self.view.owners.get((topic.id, number)), self._guard.term
            if known is None:
                epoch = await self._facts.first_epoch(topic, number)
            else:
                await self._facts.prove_ended(known.fact, self._incarnation)
                epoch = known.fact.leader_epoch + 1
            fact = OwnerFact(self._me, self._incarnation, epoch)
            is_mine = await self._facts.write((topic.id, number), fact, known)
        if is_mine and self._guard.term != term:
            self._tenures.ended.end((topic.id, number), epoch)
        elif is_mine and not self._is_leaving:
            self._tenures.begin(topic, number, epoch)

    async def _hand_over(self, topic: Topic, number: int, target: int) -> None:
        if await self._moving.run(topic, number, target):
            self._tenures.handed_over(topic, number, target)
