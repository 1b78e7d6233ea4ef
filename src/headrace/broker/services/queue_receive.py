"""One receive of a queue: messages of a topic's partitions, from whichever brokers own them.

Invariants: knows no protocol; the caller makes messages of records. What is acquired reaches the
client, or is given back without counting as a delivery, also if the client disconnects while
brokers are asked; what an attempt acquired is kept for its repetition, until the locks end. Batches
are decoded here, whichever broker owns them. A partition that cannot be asked does not hold back
the messages of the others.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.broker.services.queue_deliveries import PartitionDeliveries
from headrace.broker.services.queue_owners import MOVING_PAUSES_S, away
from headrace.broker.shares.queue_peers import MemberSettlements, SeenPause
from headrace.broker.shares.share_receive import OFFSET_MAX, REPETITION_ONLY
from headrace.coordination.shares.commands import UNDELIVERED, Settlement
from headrace.errors import BrokerUnreachable, HeadraceError, NotOwner
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.services.queue_deliveries import Show
    from headrace.broker.services.queue_owners import Owners, QueueOwners
    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.shares.share_receive import Received, ReceiveRequest
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import Acquired
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""Between two attempts while a partition returns an error and others have nothing."""
SETTLED_ROUNDS_MAX: Final = 64
"""Of one receive after its time is up: each has finished offsets that hold no message."""


M = TypeVar("M")
"""A message, as the caller makes it."""


class Client(Protocol):
    """The client of a receive, which may disconnect before it gets the messages."""

    def has_gone(self) -> bool:
        """Whether it has disconnected."""
        ...

    async def wait_gone(self) -> None:
        """Return when it has disconnected."""
        ...


class ReceiveParts(NamedTuple):
    """What a receive uses of its broker."""

    owners: QueueOwners
    shares: SharePartitions
    clock: Clock
    randomness: Randomness
    tasks: Tasks


class QueueReceive(Generic[M]):
    """See the module. `asked.member_id` belongs to this receive alone."""

    def __init__(
        self,
        parts: ReceiveParts,
        topic: Topic,
        asked: ReceiveRequest,
        show: Show[M],
        ends: Mapping[int, int] | None = None,
    ) -> None:
        """`show(partition, deliveries, records)` makes messages. `ends`: partition -> the offset
        from which on it has nothing for this request; a partition that is not among them has
        nothing at all. None: no bound."""
        self.messages: list[M] = []
        self.failed: dict[int, HeadraceError] = {}
        """Partitions that could not be asked in the last round."""
        self.begins_after_records = False
        """Whether the group is new on a partition of this broker, and begins after its records."""
        self.asked_at_ms = 0
        """When the last round began: no lock began before."""
        self._owners = parts.owners
        self._shares = parts.shares
        self._clock = parts.clock
        self._below = parts.randomness.below
        self._tasks = parts.tasks
        self._topic = topic
        self._asked = asked
        self._show = show
        self._ends = ends
        self._bytes_left = asked.bytes_max
        self._held: list[tuple[int, Sequence[Acquired]]] = []
        self._has_settled = False
        """Whether offsets without a message were acquired and finished in the last round."""
        self._has_moved = False
        """Whether a broker that was asked in the last round no longer serves a partition, or not
        yet."""
        self._waiting: list[tuple[Topic, int, Pause]] = []
        self._waiting_there: dict[int, tuple[Topic, dict[int, SeenPause]]] = {}

    async def receive(self, wait_s: float, client: Client) -> None:
        """Ask until there are messages, or the time is over, or the client has gone.

        Raises what a partition said only where there are no messages at all: what was acquired from
        others must reach the client, or it would lose a delivery.
        """
        try:
            owners = await self._owners.found(self._topic)
            await self._begin(owners)
            is_gone = await self._receive_until(wait_s, owners, client)
        except BaseException:
            self.give_back()
            raise
        if is_gone or client.has_gone():
            self.give_back()

    async def _receive_until(self, wait_s: float, owners: Owners, client: Client) -> bool:
        """Whether the client has gone meanwhile."""
        asked = self._asked
        if asked.attempt:  # everywhere first, or new messages would take the place of the same ones
            self._asked = replace(asked, attempt=REPETITION_ONLY)
            await self._round(owners)
            self._asked = asked
        if not self.messages:
            await self._round(owners)
        if self.messages and not owners.others:
            return False  # nothing was waited for
        gone = self._tasks.start(client.wait_gone(), "a client that receives")
        try:
            await self._continue(wait_s, gone)
            return gone.done()
        finally:
            gone.cancel()

    async def _continue(self, wait_s: float, gone: asyncio.Task[None]) -> None:
        """Go on from what the first round found."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        settled_rounds = moving_rounds = 0
        while not gone.done():
            left_s = deadline - loop.time()
            if self.messages:
                return
            if self._has_settled and (left_s > 0 or settled_rounds < SETTLED_ROUNDS_MAX):
                settled_rounds += 1  # all that was delivered is finished: there may be more
            elif self._has_moved and moving_rounds + 1 < len(MOVING_PAUSES_S):
                moving_rounds += 1
                await self._wait(MOVING_PAUSES_S[moving_rounds], gone)
            elif left_s <= 0 or (not self._has_anyone and not self._is_moving):
                self._raise_failure()
                return
            else:
                await self._wait(min(left_s, RETRY_S) if self.failed else left_s, gone)
            await self._round(self._owners.of(self._topic))

    @property
    def _has_anyone(self) -> bool:
        return bool(self._waiting or self._waiting_there)

    @property
    def _is_moving(self) -> bool:
        """Whether what could not be asked may have another owner before the time is over."""
        return any(isinstance(one, BrokerUnreachable) for one in self.failed.values())

    def _raise_failure(self) -> None:
        for error in self.failed.values():
            raise error

    async def _begin(self, owners: Owners) -> None:
        """Begin on every partition, though messages of the first may be enough: else what comes to
        the others before the group reaches them would not be its backlog."""
        topic, group_id, takes_lite = self._topic, self._asked.group_id, self._asked.takes_lite
        for number in owners.here:
            try:
                if await self._shares.begin(topic, number, group_id, takes_lite=takes_lite):
                    self.begins_after_records = True
            except HeadraceError as error:  # the receive itself reports it, unless others have some
                log.info("%s-%d: %s cannot begin yet: %s", topic.name, number, group_id, error)
        unbegun = {
            broker: numbers
            for broker, numbers in owners.others.items()
            if self._owners.unbegun(topic, group_id, numbers)
        }
        if unbegun:
            nothing = replace(self._asked, records_max=0)

            async def begin(broker: int, numbers: Sequence[int]) -> None:
                try:
                    await self._owners.receive(broker, topic, nothing, dict.fromkeys(numbers, 0))
                except HeadraceError as error:
                    log.info("%s: %s cannot begin yet: %s", topic.name, group_id, error)

            await gather_charged(begin(*one) for one in unbegun.items())

    # --- one round ---------------------------------------------------------------------------

    async def _round(self, owners: Owners) -> None:
        """Ask each owner, each time beginning with another, for what is left of the limits."""
        self.asked_at_ms = self._clock.now_ms()
        self.failed.clear()
        self._waiting.clear()
        self._waiting_there.clear()
        self._has_settled = self._has_moved = False
        brokers: list[int | None] = [*owners.others]
        if owners.here:
            brokers.append(None)
        first = self._below(len(brokers)) if len(brokers) > 1 else 0
        for broker in brokers[first:] + brokers[:first]:
            numbers = owners.here if broker is None else owners.others[broker]
            start = self._below(len(numbers)) if len(numbers) > 1 else 0
            numbers = self._wanted(numbers[start:] + numbers[:start])
            if not numbers:
                continue
            if self._is_full:
                return
            if broker is None:
                await self._ask_here(numbers)
            else:
                await self._ask(broker, numbers)
        if not self._is_full:
            missing = self._wanted(owners.away)
            self.failed.update(dict.fromkeys(missing, away(self._topic, missing)))

    def _wanted(self, numbers: list[int]) -> list[int]:
        ends = self._ends
        return numbers if ends is None else [number for number in numbers if number in ends]

    @property
    def _is_full(self) -> bool:
        return len(self.messages) >= self._asked.records_max or self._bytes_left <= 0

    def _rest(self) -> ReceiveRequest:
        records_left = self._asked.records_max - len(self.messages)
        return replace(self._asked, records_max=records_left, bytes_max=self._bytes_left)

    async def _ask_here(self, numbers: Sequence[int]) -> None:
        topic, ends = self._topic, self._ends
        for number in numbers:
            if self._is_full:
                return
            part = self._rest()
            if ends is not None:
                part.end = ends[number]
            try:
                received = await self._shares.receive(topic, number, part)
            except HeadraceError as error:
                self._note_failure(number, error)
                continue
            if received.pause is not None:
                self._waiting.append((topic, number, received.pause))
            else:
                await self._take(number, received)

    async def _ask(self, broker: int, numbers: Sequence[int]) -> None:
        ends = self._ends or {}
        asked = {number: ends.get(number, OFFSET_MAX) for number in numbers}
        try:
            answered = await self._owners.receive(broker, self._topic, self._rest(), asked)
        except HeadraceError as error:
            for number in numbers:
                self._note_failure(number, error)
            return
        seen: dict[int, SeenPause] = {}
        taken: list[tuple[int, Received]] = []
        for number, one in answered.items():
            if isinstance(one, HeadraceError):
                self._note_failure(number, one)
            elif isinstance(one, SeenPause):
                seen[number] = one
            else:
                self._held.append((number, one.acquired))
                taken.append((number, one))
        if seen:
            self._waiting_there[broker] = self._topic, seen
        for number, received in taken:
            await self._take(number, received, is_held=True)

    def _note_failure(self, number: int, error: HeadraceError) -> None:
        log.info("%s-%d: nothing can be received: %s", self._topic.name, number, error)
        if isinstance(error, NotOwner):
            self._has_moved = True
            error = away(self._topic, [number])
        self.failed[number] = error

    async def _take(self, number: int, received: Received, *, is_held: bool = False) -> None:
        """Make messages of what was acquired, and settle the rest of it."""
        if not is_held:
            self._held.append((number, received.acquired))
        deliveries = PartitionDeliveries(number, self._show, self._bytes_left)
        await deliveries.add(received)
        self._bytes_left = deliveries.bytes_left
        self.messages += deliveries.messages
        if not deliveries.settlements:
            return
        self._has_settled = True
        delivery = MemberSettlements(number, self._asked.member_id, deliveries.settlements)
        (errors,) = await self._owners.settle(self._topic, self._asked.group_id, [delivery])
        for error in errors:
            if error is not None:  # its locks end by themselves
                name = self._topic.name
                log.info("%s-%d: offsets without a message are kept: %s", name, number, error)
                break

    async def _wait(self, timeout_s: float, gone: asyncio.Task[None]) -> None:
        if not self._has_anyone:
            await asyncio.wait([gone], timeout=timeout_s)
            return
        group_id = self._asked.group_id
        waiting = self._owners.wait(group_id, self._waiting, self._waiting_there, timeout_s)
        task = self._tasks.start(waiting, "wait for messages")
        try:
            await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()

    # --- the client has gone -----------------------------------------------------------------

    def give_back(self) -> None:
        """The client did not get the messages: they are delivered again, at once and without
        counting as deliveries; what an attempt acquired, to its repetition.

        In a task: the request may be cancelled.
        """
        self.messages.clear()
        held, self._held = self._held, []
        if held and not self._asked.attempt:
            self._tasks.spawn(self._give_back(held), f"give back of {self._asked.member_id}")

    async def _give_back(self, held: Sequence[tuple[int, Sequence[Acquired]]]) -> None:
        deliveries: list[MemberSettlements] = []
        for number, acquired in held:
            # One by one: some may have been settled already.
            settlements = [
                Settlement(offset, offset, UNDELIVERED)
                for first, last, _deliveries in acquired
                for offset in range(first, last + 1)
            ]
            deliveries.append(MemberSettlements(number, self._asked.member_id, settlements))
        await self._owners.settle(self._topic, self._asked.group_id, deliveries)
