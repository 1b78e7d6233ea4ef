"""Moves partitions off overloaded brokers, slowly and one at a time.

Invariants: `coordination/placement/load` chooses the best move; this module decides when one may be
made. Every broker publishes its load. One of them, elected by placement so that all brokers agree
on it, evaluates the loads. Its decision is a fact that all brokers follow (`MovesFact`), written by
compare-and-set.

How it works: a broker is overloaded when in `balance_patience` consecutive evaluations it carried
more than `balance_threshold_percent` of the mean and used `balance_cpu_percent_min` of a core. A
change in which brokers are live, draining or overloaded restarts the count, and so does a move,
whose effect is seen before the next one. A partition that was moved stays put for a while; a pinned
partition is never moved by load. Nothing moves while any partition is in motion or any broker's
load is unknown.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.ownership.load_meter import LoadMeter
from headrace.coordination.placement.load import BrokerLoad, choose_move, overloaded
from headrace.coordination.placement.rendezvous import NO_BROKER, one_of
from headrace.errors import HeadraceError, VersionConflict
from headrace.metadata.decoding import decode_fact
from headrace.metadata.load_facts import (
    LOADS,
    MOVES,
    MOVES_MAX,
    MOVES_VERSION,
    LoadFact,
    MovedPartition,
    MovesFact,
    load_key,
)
from headrace.metadata.store import ABSENT, ANY

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.ownership.shared_ownership import SharedOwnership
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.placement.load import Move
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

BALANCER = UUID(int=1)
"""Placed on the brokers like a topic, to elect the balancer."""
GAIN_PERCENT = 10
"""Percent of the mean that a move must gain, so that noise moves nothing."""
STALE_EVALUATIONS = 3
"""A broker's load is unknown after this many evaluations without an update."""


class Balance:
    """One broker's part in balancing."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        topics: Topics,
        ownership: SharedOwnership,
        clock: Clock,
        cpu_ns: Callable[[], int] | None = None,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._topics = topics
        self._view = ownership.view
        self._placement = ownership.placement
        self._clock = clock
        self.meter = LoadMeter(topics, ownership, clock, cpu_ns)
        self._load_versions: dict[int, tuple[int, int]] = {}
        """Broker -> version of its latest load fact, and the number of evaluations that have seen
        it."""
        self._members: object = None
        self._source = NO_BROKER
        self._streak = 0

    async def round(self) -> None:
        """Publish and evaluate loads."""
        try:
            await self.evaluate()
        except HeadraceError as error:
            self._reset_count()
            log.warning("the brokers' loads were not evaluated: %s", error)

    async def evaluate(self) -> Move | None:
        """Publish this broker's load and, on the balancer, evaluate all. Returns the move that was
        begun.

        Raises MetadataUnavailable, DataCorrupt, FormatUnsupported.
        """
        me = self._view.brokers.get(self._config.broker_id)
        if me is None or me.incarnation is None:
            return None
        measured = self.meter.measure(me.incarnation).encode()
        await self._metadata.put(load_key(me.id), measured, ANY, ephemeral=True)
        decider = one_of(BALANCER, list(self._view.brokers))
        if decider != me.id or not self._config.is_balancing:
            self._load_versions.clear()
            self._reset_count()
            return None
        return await self._decide()

    def _reset_count(self) -> None:
        self._source, self._streak = NO_BROKER, 0

    async def _decide(self) -> Move | None:
        loads = await self._read_loads()
        view, config = self._view, self._config
        members = (
            sorted((fact.id, fact.incarnation or "") for fact in view.brokers.values()),
            sorted(view.draining),
        )
        if members != self._members or loads is None or view.draining:
            self._members = members
            self._reset_count()
            return None
        carried = {
            broker: BrokerLoad(
                fact.bytes_per_s,
                {(rate.topic, rate.partition): rate.bytes_per_s for rate in fact.busiest},
            )
            for broker, fact in loads.items()
        }
        source = overloaded(carried, config.balance_threshold_percent)
        if source is None or loads[source].cpu_permille < config.balance_cpu_percent_min * 10:
            self._reset_count()
            return None
        self._streak = self._streak + 1 if source == self._source else 1
        self._source = source
        if self._streak < config.balance_patience or not self._is_settled():
            return None
        self._streak = 0
        return await self._move(carried, source)

    async def _read_loads(self) -> dict[int, LoadFact] | None:
        """The load of each live broker; None if any of them is unknown."""
        loads: dict[int, LoadFact] = {}
        versions: dict[int, tuple[int, int]] = {}
        entries = {entry.key: entry for entry in await self._metadata.list(LOADS)}
        for broker_id, broker in self._view.brokers.items():
            entry = entries.get(load_key(broker_id))
            if entry is None:
                continue
            version, evaluations = self._load_versions.get(broker_id, (entry.version, 0))
            versions[broker_id] = (
                entry.version,
                evaluations + 1 if version == entry.version else 0,
            )
            fact = decode_fact(LoadFact, entry)
            if (
                broker.incarnation == fact.incarnation
                and broker.moves_version == MOVES_VERSION
                and versions[broker_id][1] <= STALE_EVALUATIONS
            ):
                loads[broker_id] = fact
        self._load_versions = versions
        return loads if len(loads) == len(self._view.brokers) else None

    def _is_settled(self) -> bool:
        """Whether every partition is where it should be."""
        view = self._view
        for topic in self._topics.by_id.values():
            for number in range(len(topic.partitions)):
                owner = view.owners.get((topic.id, number))
                if owner is None or not view.is_alive(owner.fact):
                    return False
                if owner.fact.broker != self._placement.target(topic, number):
                    return False
        return True

    # --- moves -------------------------------------------------------------------------------

    async def _move(self, carried: dict[int, BrokerLoad], source: int) -> Move | None:
        entry = await self._metadata.get(MOVES)
        fact = MovesFact() if entry is None else decode_fact(MovesFact, entry)
        load = carried[source]
        carried[source] = BrokerLoad(
            load.bytes_per_s,
            {
                key: rate
                for key, rate in load.movable.items()
                if self._may_move(key, source, fact.by_partition.get(key))
            },
        )
        move = choose_move(carried, source, GAIN_PERCENT)
        if move is None:
            log.info("broker %d is overloaded, but no move would improve the balance", source)
            return None
        topic_id, number = move.partition
        kept = [one for one in fact.moves if one.key != move.partition and self._counts(one)]
        kept.append(MovedPartition(topic_id, number, move.target, self._clock.now_ms()))
        if len(kept) > MOVES_MAX:
            log.warning(
                "%d partitions have been moved by load, which is the limit: no more will move",
                MOVES_MAX,
            )
            return None
        fact.moves = kept
        try:
            version = ABSENT if entry is None else entry.version
            await self._metadata.put(MOVES, fact.encode(), version)
        except VersionConflict:
            log.info("another broker has moved a partition by load: evaluating again")
            return None
        name = self._topics.by_id[topic_id].name
        log.info(
            "moving %s-%d from broker %d to broker %d, which carry %d and %d bytes/s: %d "
            "of them belong to it",
            *(name, number, source, move.target),
            *(carried[broker].bytes_per_s for broker in (source, move.target)),
            carried[source].movable[move.partition],
        )
        return move

    def _may_move(self, key: tuple[UUID, int], source: int, last: MovedPartition | None) -> bool:
        topic, owner = self._topics.by_id.get(key[0]), self._view.owners.get(key)
        return (
            topic is not None
            and not topic.is_internal
            and owner is not None
            and owner.fact.broker == source
            and key[1] not in self._view.pins.get(key[0], {})
            and (last is None or not self._rests(last))
        )

    def _rests(self, move: MovedPartition) -> bool:
        # Either sign: the clock of the broker that moved it may have been ahead of this one's.
        return abs(self._clock.now_ms() - move.moved_ms) < self._config.balance_rest_ms

    def _counts(self, move: MovedPartition) -> bool:
        """Whether a move is still in force."""
        topic = self._topics.by_id.get(move.topic)
        if topic is None or move.partition >= len(topic.partitions):
            return False
        if move.broker not in self._view.brokers:
            # at least for as long as `balance_patience`: its former load has been redistributed
            return False
        return self._rests(move) or self._placement.by_count(topic, move.partition) != move.broker
