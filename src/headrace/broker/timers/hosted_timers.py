"""The timers of one partition that this broker serves, for one tenure.

Invariants: the machine's shard, its journal in the companion log, the stored records, and their
deliveries start and end together.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.timers.deliveries import TimerDeliveries
from headrace.broker.timers.timer_bodies import TimerBodies
from headrace.broker.timers.timer_log import TimerLog
from headrace.broker.timers.timer_room import Added
from headrace.broker.topics.overrides import half_config
from headrace.coordination.timers.commands import (
    AnyTimerReply,
    Deliver,
    DeliveredCommand,
    Effect,
    TimerCommand,
    TimersLoadedCommand,
    TimerTickCommand,
)
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.timer_machine import TimerMachine
from headrace.coordination.timers.timer_state import TimerRecord
from headrace.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    HeadraceError,
    NotCoordinator,
    NotOwner,
    StorageUnavailable,
)
from headrace.records.tenant_names import sibling

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.timers.deliveries import DeliveryFigures
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.kit.machine import Answer, Command
    from headrace.coordination.timers.timer_state import TimerState
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock
    from headrace.runtime.fair_locks import FairLock

READ_AHEAD_MS: Final = 3_000
READ_AHEAD_MAX: Final = 20_000
TimerShard = CoordinatorShard[TimerCommand, TimerRecord, AnyTimerReply]


class CalendarClock:
    """The wall clock for both readings: due times follow the wall clock even if it is set."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        """See Clock."""
        return self._clock.now_ms()

    def now_ns(self) -> int:
        """See Clock; unlike there, it moves back with the wall clock."""
        return self._clock.now_ms() * 1_000_000


class HostedTimers:
    """See the module."""

    def __init__(
        self,
        topic: Topic,
        number: int,
        companion: PartitionLog,
        environment: Environment,
        figures: DeliveryFigures,
        checks_due: Callable[[tuple[str, ...]], None],
        looking: FairLock,
    ) -> None:
        """`looking`: held by who looks through records; of all partitions together."""
        self.looking = looking
        self.topic = topic
        self.number = number
        self.data = data = topic.require_log(number)
        self.companion = companion
        self.bodies = TimerBodies(companion)
        self.added = Added()
        clock, tasks = environment.clock, environment.tasks
        self.deliveries = TimerDeliveries(data, self.bodies, clock, tasks, figures)
        inner = InternalPartition(companion, clock)
        self._clock = clock
        self._preloaded_to = ScheduleEntry(-1, -1)

        def perform(effect: Effect, report: Callable[[TimerCommand], None]) -> None:
            if isinstance(effect, Deliver):
                self.deliveries.add(effect, lambda upto: report(DeliveredCommand(upto)))
            else:
                checks_due(tuple(sibling(topic.name, name) for name in effect.groups))

        def make_machine() -> TimerMachine:
            # Outcomes and check-backs follow the topic's settings from the first record on.
            return TimerMachine(half_config(topic.fact.configs))

        self.shard: TimerShard = CoordinatorShard(
            f"timers of {self.data.name}",
            TimerLog(companion, inner),
            make_machine,
            (TimersLoadedCommand(), TimerTickCommand()),
            CalendarClock(clock),
            tasks,
            perform,
        )
        self.shard.snapshots.bytes_min = sys.maxsize  # checkpoints take the place of snapshots

    @property
    def state(self) -> TimerState | None:
        """The machine's state; None while it is loading."""
        machine = self.shard.machine
        return machine.state if isinstance(machine, TimerMachine) else None

    def serves(self, data: PartitionLog) -> bool:
        """Whether these are the timers of this tenure of the partition."""
        return self.data is data and not self.shard.is_closed

    @property
    def is_open(self) -> bool:
        """Whether records can be added, now or once the log has been read."""
        state = self.state
        return state is None or state.producer_id >= 0

    async def ask(self, command: Command[Answer]) -> Answer:
        """The reply to a command. Raises its error, translated to one that producers know."""
        reply = await self.shard.submit(command)
        if reply.error is not None:
            raise translated(reply.error)
        return reply

    async def preload_due(self) -> None:
        """Read the records that are due soon. Raises HeadraceError."""
        state = self.state
        if state is None:
            return
        until_ms = self._clock.now_ms() + READ_AHEAD_MS
        offsets: list[int] = []
        for entry in state.schedule.after(self._preloaded_to):
            if entry.due_ms > until_ms or len(offsets) >= READ_AHEAD_MAX:
                break
            offsets.append(entry.offset)
            self._preloaded_to = entry
        await self.bodies.read_ahead(offsets)

    async def check_clock(self) -> None:
        """Tick if the wall clock was set back: the deadline is in the future again."""
        state = self.state
        if state is not None and self._clock.now_ms() < state.last_tick_ms:
            self._preloaded_to = ScheduleEntry(-1, -1)
            await self.ask(TimerTickCommand())

    def stop(self, error: HeadraceError) -> None:
        """See Tenure."""
        self.deliveries.close()
        self.shard.close(error)

    def close(self, error: HeadraceError) -> None:
        """See Tenure."""
        self.stop(error)
        self.companion.abandon(NotOwner(str(error)))


def translated(error: HeadraceError) -> HeadraceError:
    """The error in terms of partitions: producers know no timer coordinator."""
    if isinstance(error, CoordinatorLoading | CoordinatorUnavailable):
        return StorageUnavailable(f"the partition's delayed records are not available: {error}")
    if isinstance(error, NotCoordinator):
        return NotOwner("the partition is served by another broker: refresh the metadata")
    return error
