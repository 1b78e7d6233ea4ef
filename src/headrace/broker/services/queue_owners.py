"""Forwards queue requests to the owners of the partitions, so that any broker serves a queue.

Invariants: knows no protocol and no records. Owners are looked up for each round, so a takeover
only changes which broker is asked. A receive at another broker whose outcome is unknown is followed
by a release of what its member holds there. A wait delivers nothing, so it can be abandoned at any
time. Waits for one queue at one broker share a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.broker.services.long_poll import WAKE_LATE_MS, wait_for_records
from headrace.broker.shares.hosted_shares import LITE
from headrace.errors import (
    BrokerUnreachable,
    CoordinatorLoading,
    CoordinatorUnavailable,
    DeliveryUnknown,
    GroupUnknown,
    HeadraceError,
    NotOwner,
)
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.shares.queue_peers import (
        Answered,
        MemberSettlements,
        QueuePeerCalls,
        SeenPause,
    )
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.shares.share_receive import ReceiveRequest
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_U = TypeVar("_U")
WATCH_S: Final = 5.0
"""For one wait at another broker: longer ones are repeated, with the owners of that time."""
RETRY_S: Final = 1.0
"""Until a broker at which a wait failed is asked again."""
SUSPECT_S_MAX: Final = 3.0
"""How long a broker that did not answer is not asked: as long as the request waited for the answer,
so that a frozen broker does not delay every receive."""
MOVING_PAUSES_S: Final = (0, 0.1, 0.1, 0.2, 0.5, 1.0)
"""Before each round of a call while the owners of its partitions change: together less than
clients wait for a response, as some calls are not repeated by them (RocketMQ's EndTransaction)."""
RELEASE_PAUSES_S: Final = (0.2, 1.0, 5.0)
BEGUN_MAX: Final = 10_000
"""Queues whose groups are known to have begun."""


UNREADY: Final = NotOwner, CoordinatorLoading, CoordinatorUnavailable
"""What calls that may be repeated get from a partition that moves, or reads its state back."""


class Owners(NamedTuple):
    """The owners of a topic's partitions."""

    here: list[int]
    others: dict[int, list[int]]
    """By broker."""
    away: list[int]
    """Partitions that no broker serves now."""


class QueueOwners:
    """See the module."""

    def __init__(
        self,
        ownership: Ownership,
        broker_id: int,
        shares: SharePartitions,
        known: ConfiguredGroups,
        brokers: Callable[[], Sequence[BrokerFact]],
        tasks: Tasks,
        peers: QueuePeerCalls | None,
    ) -> None:
        """`peers`: None if this broker owns every partition."""
        self.peers = peers
        self._ownership = ownership
        self._broker_id = broker_id
        self._shares = shares
        self._known = known
        self._brokers = brokers
        self._tasks = tasks
        self._suspects: dict[int, tuple[float, str]] = {}
        """Broker -> until when it is not asked, and why."""
        self._watches: dict[tuple[int, UUID, str], asyncio.Task[None]] = {}
        self._begun: OrderedDict[tuple[UUID, str], set[int]] = OrderedDict()

    def of(self, topic: Topic) -> Owners:
        """The current owners of the topic's partitions."""
        found = Owners([], {}, [])
        alive: set[int] | None = None
        for number in range(len(topic.partitions)):
            if self._ownership.is_mine(topic, number):
                found.here.append(number)
                continue
            if alive is None:
                alive = {broker.id for broker in self._brokers()} if self.peers else set()
                alive.discard(self._broker_id)  # it may own what it does not serve yet
            broker = self._ownership.leader(topic, number).broker
            if broker in alive:
                found.others.setdefault(broker, []).append(number)
            else:
                found.away.append(number)
        return found

    async def found(self, topic: Topic) -> Owners:
        """As `of`; waits, up to a limit, until partitions that were just created have owners, and
        until this broker serves those of which it has just become the owner."""
        owners = self.of(topic)
        if new := [number for number in owners.away if self._is_beginning(topic, number)]:
            await self._ownership.wait_served(topic, new)
            owners = self.of(topic)
        return owners

    def _is_beginning(self, topic: Topic, number: int) -> bool:
        """Whether a partition that this broker does not serve has no owner that is known here, or
        is this broker's."""
        leader = self._ownership.leader(topic, number)
        return leader.leader_epoch < 0 or leader.broker == self._broker_id

    # --- receive -----------------------------------------------------------------------------

    def unbegun(self, topic: Topic, group_id: str, numbers: Sequence[int]) -> bool:
        """Whether the group may not have begun on some of these partitions of other brokers."""
        if topic.home.id not in self._known.share_topics(group_id):
            self._begun.pop((topic.id, group_id), None)  # it was deleted, if it ever began
            return True
        return not self._begun.get((topic.id, group_id), set()).issuperset(numbers)

    def _note_begun(self, topic: Topic, group_id: str, numbers: Sequence[int]) -> None:
        self._begun.setdefault((topic.id, group_id), set()).update(numbers)
        self._begun.move_to_end((topic.id, group_id))
        if len(self._begun) > BEGUN_MAX:
            self._begun.popitem(last=False)

    async def receive(
        self, broker_id: int, topic: Topic, asked: ReceiveRequest, ends: Mapping[int, int]
    ) -> Answered:
        """See QueuePeerCalls.receive. Raises BrokerUnreachable, TopicIdUnknown."""
        is_asked = has_answered = False

        async def ask(peers: QueuePeerCalls, broker: BrokerFact) -> Answered:
            nonlocal is_asked
            is_asked = True
            return await peers.receive(broker, topic.id, asked, ends)

        try:
            answered = await self.call(broker_id, ask)
            has_answered = True
        finally:
            # What an attempt holds is for its repetition, until the locks end.
            is_lost = is_asked and not has_answered and not asked.attempt
            if is_lost and asked.records_max > 0:
                release = self._release(topic, asked.group_id, asked.member_id, list(ends))
                self._tasks.spawn(release, f"release {asked.member_id}")
        failed = [number for number, one in answered.items() if isinstance(one, HeadraceError)]
        if not failed:
            self._note_begun(topic, asked.group_id, list(ends))
        return answered

    async def _release(
        self, topic: Topic, group_id: str, member_id: str, numbers: Sequence[int]
    ) -> None:
        """It is unknown whether the member received anything: make what it holds available again,
        at once if the owners can be reached, else when its locks expire."""
        for pause_s in RELEASE_PAUSES_S:
            await asyncio.sleep(pause_s)
            owners = self.of(topic)
            asked = {one: set(part) & {*numbers} for one, part in owners.others.items()}
            try:
                for broker_id, part in asked.items():
                    if part:
                        broker, peers = self.peer(broker_id)
                        await peers.release(broker, topic.id, group_id, member_id, sorted(part))
            except HeadraceError as error:
                log.info(
                    "cannot release the records of member %s in %s yet: %s",
                    member_id,
                    topic.name,
                    error,
                )
            else:
                return  # a partition that has moved since has no locks of the former tenure

    def is_there(self, broker_id: int) -> bool:
        """Whether a broker is registered."""
        return any(broker.id == broker_id for broker in self._brokers())

    def peer(self, broker_id: int) -> tuple[BrokerFact, QueuePeerCalls]:
        """A broker, and the calls to it. Raises BrokerUnreachable where it is not registered."""
        for broker in self._brokers():
            if broker.id == broker_id and self.peers is not None:
                return broker, self.peers
        raise BrokerUnreachable(
            f"broker {broker_id} has left the cluster, or no broker serves this partition "
            "at the moment: try again"
        )

    async def call(
        self, broker_id: int, ask: Callable[[QueuePeerCalls, BrokerFact], Awaitable[_T]]
    ) -> _T:
        """What another broker answers.

        Raises BrokerUnreachable, at once if it has just failed to answer a call, and what the call
        raises.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        until_s, problem = self._suspects.get(broker_id, (0.0, ""))
        if began_s < until_s:
            raise BrokerUnreachable(problem)
        broker, peers = self.peer(broker_id)
        try:
            answered = await ask(peers, broker)
        except BrokerUnreachable as error:
            now_s = loop.time()
            self._suspects[broker_id] = now_s + min(now_s - began_s, SUSPECT_S_MAX), str(error)
            raise
        self._suspects.pop(broker_id, None)
        return answered

    # --- waits -------------------------------------------------------------------------------

    async def wait(
        self,
        group_id: str,
        here: Sequence[tuple[Topic, int, Pause]],
        others: Mapping[int, tuple[Topic, Mapping[int, SeenPause]]],
        timeout_s: float,
    ) -> None:
        """Return when one of the partitions may have more than was seen, or after the timeout."""
        if not others:
            await wait_for_records(self._shares, here, timeout_s)
            return
        for _topic, seen in others.values():
            for pause, _epoch in seen.values():
                if pause.wait_ms >= 0:  # here: the shared wait may have begun before this was known
                    timeout_s = min(timeout_s, (pause.wait_ms + WAKE_LATE_MS) / 1000)
        own: asyncio.Task[None] | None = None
        if here:
            here_wait = wait_for_records(self._shares, here, timeout_s)
            own = self._tasks.start(here_wait, f"wait for {group_id}")
        waits = [self._watch(one, group_id, *seen) for one, seen in others.items()]
        try:
            await asyncio.wait(
                waits if own is None else [own, *waits],
                timeout=timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            if own is not None:
                own.cancel()

    def _watch(
        self, broker_id: int, group_id: str, topic: Topic, seen: Mapping[int, SeenPause]
    ) -> asyncio.Task[None]:
        """The shared wait for this queue at one broker. It may end too early."""
        # Of lite topics, each client waits for its own.
        numbers = {one.readable_end for one, _epoch in seen.values() if one.isolation == LITE}
        key = broker_id, topic.id, f"{group_id} {sorted(numbers)}" if numbers else group_id
        task = self._watches.get(key)
        if task is None:
            task = self._tasks.start(
                self._watch_once(broker_id, topic, seen), f"watch {topic.name}"
            )
            self._watches[key] = task
            task.add_done_callback(lambda _: self._watches.pop(key, None))
        return task

    async def _watch_once(
        self, broker_id: int, topic: Topic, seen: Mapping[int, SeenPause]
    ) -> None:
        try:
            broker, peers = self.peer(broker_id)
            await peers.wait(broker, topic.id, seen, WATCH_S)
        except HeadraceError as error:
            log.info("cannot wait for %s at broker %d: %s", topic.name, broker_id, error)
            await asyncio.sleep(RETRY_S)

    # --- settle ------------------------------------------------------------------------------

    async def settle(
        self, topic: Topic, group_id: str, deliveries: Sequence[MemberSettlements]
    ) -> list[Sequence[HeadraceError | None]]:
        """For each delivery, an error or None for each settlement, once it is durable.

        Settlements that could not be sent while owners change or do not answer get
        BrokerUnreachable.
        """
        outcomes: dict[int, Sequence[HeadraceError | None] | HeadraceError] = {}
        left = list(range(len(deliveries)))
        for pause_s in MOVING_PAUSES_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            outcomes.update(await self._settle_once(topic, group_id, deliveries, left))
            left = [at for at in left if isinstance(outcomes[at], NotOwner)]
            if not left:
                break
        return [_for_each(topic, one, outcomes[at]) for at, one in enumerate(deliveries)]

    async def _settle_once(
        self,
        topic: Topic,
        group_id: str,
        deliveries: Sequence[MemberSettlements],
        places: Sequence[int],
    ) -> dict[int, Sequence[HeadraceError | None] | HeadraceError]:
        found: dict[int, Sequence[HeadraceError | None] | HeadraceError] = {}
        here: list[int] = []
        elsewhere: dict[int, list[int]] = {}
        for at in places:
            number = deliveries[at].partition
            is_unknown = number >= len(topic.partitions)
            if is_unknown or self.peers is None or self._ownership.is_mine(topic, number):
                here.append(at)
            else:
                broker = self._ownership.leader(topic, number).broker
                elsewhere.setdefault(broker, []).append(at)

        async def settle_here(at: int) -> None:
            found[at] = await self._settle_here(topic, group_id, deliveries[at])

        async def ask(broker_id: int, part: Sequence[int]) -> None:
            try:
                if not self.is_there(broker_id):
                    raise _no_owner(topic, deliveries[part[0]].partition)
                broker, peers = self.peer(broker_id)
                asked = [deliveries[at] for at in part]
                found.update(
                    zip(part, await peers.settle(broker, topic.id, group_id, asked), strict=True)
                )
            except HeadraceError as error:
                found.update(dict.fromkeys(part, error))

        if len(here) == 1 and not elsewhere:
            await settle_here(here[0])  # a task would cost a quarter of it
            return found
        # Concurrently, so that all of them are made durable by one sync.
        others = (ask(one, part) for one, part in elsewhere.items())
        await gather_charged([*map(settle_here, here), *others])
        return found

    async def _settle_here(
        self, topic: Topic, group_id: str, delivery: MemberSettlements
    ) -> Sequence[HeadraceError | None] | HeadraceError:
        try:
            return await self._shares.settle(
                *(topic, delivery.partition, group_id, delivery.member_id),
                delivery.settlements,
                is_atomic=False,
            )
        except HeadraceError as error:
            return error

    # --- all partitions ----------------------------------------------------------------------

    async def ask_all(
        self,
        topic: Topic,
        here: Callable[[int], Awaitable[_T]],
        there: Callable[
            [QueuePeerCalls, BrokerFact, Sequence[int]],
            Awaitable[Mapping[int, _U | HeadraceError]],
        ],
        numbers: Sequence[int] | None = None,
    ) -> dict[int, _T | _U | HeadraceError]:
        """The response of the owner of each of these partitions (None: all of the topic), or why it
        could not be called.

        All owners are called concurrently, and again while they change; the call must be
        idempotent.
        """
        await self.found(topic)
        found: dict[int, _T | _U | HeadraceError] = {}
        left = set(range(len(topic.partitions)) if numbers is None else numbers)
        for pause_s in MOVING_PAUSES_S:
            if pause_s:
                await asyncio.sleep(pause_s)
            found.update(await self._ask_once(topic, left, here, there))
            left = {number for number in left if isinstance(found[number], UNREADY)}
            if not left:
                break
        for number in left:
            if isinstance(found[number], NotOwner):
                found[number] = self._away(topic, number)
        return dict(sorted(found.items()))

    def _away(self, topic: Topic, number: int) -> BrokerUnreachable:
        return away(topic, [number], self._ownership.leader(topic, number).broker)

    async def _ask_once(
        self,
        topic: Topic,
        numbers: set[int],
        here: Callable[[int], Awaitable[_T]],
        there: Callable[
            [QueuePeerCalls, BrokerFact, Sequence[int]],
            Awaitable[Mapping[int, _U | HeadraceError]],
        ],
    ) -> dict[int, _T | _U | HeadraceError]:
        owners = self.of(topic)
        found: dict[int, _T | _U | HeadraceError] = {
            number: _no_owner(topic, number) for number in owners.away if number in numbers
        }

        async def ask_here() -> None:
            for number in owners.here:
                if number in numbers:
                    try:
                        found[number] = await here(number)
                    except HeadraceError as error:
                        found[number] = error

        async def ask(broker_id: int, part: Sequence[int]) -> None:
            answered: Mapping[int, _U | HeadraceError]
            try:
                answered = await self.call(
                    broker_id, lambda peers, broker: there(peers, broker, part)
                )
            except HeadraceError as error:
                answered = dict.fromkeys(part, error)
            missing = BrokerUnreachable(f"broker {broker_id} omitted partitions in its response")
            found.update({number: answered.get(number, missing) for number in part})

        parts = {one: [n for n in of if n in numbers] for one, of in owners.others.items()}
        await gather_charged([ask_here(), *(ask(*part) for part in parts.items() if part[1])])
        return found


def _for_each(
    topic: Topic,
    delivery: MemberSettlements,
    outcome: Sequence[HeadraceError | None] | HeadraceError,
) -> Sequence[HeadraceError | None]:
    if not isinstance(outcome, HeadraceError):
        return outcome
    error = outcome
    if isinstance(error, GroupUnknown):
        error = DeliveryUnknown("no record of this partition was delivered to the group")
    elif isinstance(error, NotOwner):
        error = away(topic, [delivery.partition])
    return [error] * len(delivery.settlements)


def _no_owner(topic: Topic, number: int) -> NotOwner:
    """Until it has one, or that takes too long (`away`)."""
    return NotOwner(f"no broker serves {topic.name}-{number}")


def away(topic: Topic, numbers: Sequence[int], owner: int = -1) -> BrokerUnreachable:
    """The error that no broker serves these partitions now; `owner`: the one that did, if known."""
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    named = f"its owner, broker {owner}," if owner >= 0 else "its owner"
    return BrokerUnreachable(
        f"no broker serves partition {shown} of {topic.name} at the moment, because "
        f"{named} has stopped or is changing: try again"
    )
