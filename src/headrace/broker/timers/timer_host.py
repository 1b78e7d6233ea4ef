"""Hosts the timers of the partitions that this broker serves, and maintains them.

Invariants: a partition with timers is hosted as soon as this broker serves it, since due records
are delivered without a request. What is delayed, and which half messages wait, is in
`delayed_records.py` and `half_messages.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.broker.companions.companion_host import CompanionHost
from headrace.broker.timers.deliveries import DeliveryFigures
from headrace.broker.timers.hosted_timers import HostedTimers
from headrace.broker.timers.timer_space import keep_small
from headrace.broker.topics.overrides import half_config
from headrace.coordination.timers.commands import ConfigureCommand, OpenTimersCommand
from headrace.errors import HeadraceError
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    PARTITIONS,
    CompanionKind,
    PartitionFact,
    partition_of_key,
)
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.log_state import LogState
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Interval between checks for records due soon, and of the wall clock, while there are timers; also
the first wait before a partition that could not be opened is tried again. A partition is opened as
soon as it is loaded."""
RETRY_S_MAX: Final = 2.0
SPACE_LOOKS: Final = 10
"""Checks between two evaluations of disk space."""


def number_of(log: LogState) -> int:
    """The number of a partition in its topic."""
    return int(log.name.rpartition("-")[2])


class TimerHost:
    """See the module."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        producer_ids: ProducerIds,
        checks_due: Callable[[tuple[str, ...]], None],
        *,
        is_standalone: bool,
    ) -> None:
        """`checks_due(groups)`: half messages of these producer groups are due for a check-back."""
        self.environment = environment
        self.topics = topics
        self._producer_ids = producer_ids
        self._checks_due = checks_due
        self._is_standalone = is_standalone
        self.figures = DeliveryFigures()
        self._looking = FairLock(1, Hold.LONG)
        self._has_hosted = asyncio.Event()
        self._opening: dict[PartitionLog, None] = {}
        """Partitions whose timers are being opened."""
        self.hosted = CompanionHost(
            environment,
            topics,
            CompanionKind.TIMERS,
            self._make,
            self._begin,
            is_standalone=is_standalone,
        )

    def _make(self, topic: Topic, number: int, companion: PartitionLog) -> HostedTimers:
        self._has_hosted.set()
        environment, figures = self.environment, self.figures
        return HostedTimers(
            topic, number, companion, environment, figures, self._checks_due, self._looking
        )

    async def run(self) -> None:
        """Host the partitions that have timers and maintain them, until cancelled."""
        if self._is_standalone:
            await self._load_all()
        loaded = self.environment.companioned
        assert loaded is not None, "a host of timers is notified of loaded logs"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._maintain(), name="maintain timers")
            while True:
                for data in await loaded.wait_loaded():
                    self._begin_opening(data)

    async def _maintain(self) -> None:
        """Read ahead what is due soon, follow the wall clock, and keep the logs small; idle while
        no partition has timers."""
        looks = 0
        while True:
            await self._has_hosted.wait()
            self._has_hosted.clear()
            while hosted_now := list(self.hosted):
                looks += 1
                for hosted in hosted_now:
                    if hosted.serves(hosted.data):
                        await self._look_after(hosted, is_with_space=looks % SPACE_LOOKS == 0)
                    else:
                        self._begin_opening(hosted.data)  # its companion log was fenced
                await asyncio.sleep(LOOK_S)

    async def _look_after(self, hosted: HostedTimers, *, is_with_space: bool) -> None:
        try:
            await hosted.check_clock()
            await hosted.preload_due()
            if is_with_space:
                await self._configure(hosted)
                await keep_small(hosted)
        except HeadraceError as error:
            log.info("%s: cannot maintain its timers yet: %s", hosted.data.name, error)

    async def _load_all(self) -> None:
        """Load the partitions that have timers: no client may use them before records are due."""
        for entry in await self.environment.metadata.list(PARTITIONS):
            topic_id, number = partition_of_key(entry.key)
            topic = self.topics.by_id.get(topic_id)
            data = None if topic is None else topic.log(number)
            if data is not None and decode_fact(PartitionFact, entry).has_companion(
                CompanionKind.TIMERS
            ):
                data.load()

    def _begin_opening(self, loaded: LogState) -> None:
        """Host a partition that is loaded, if it has timers and they do not run."""
        topic, number = self.topics.by_id.get(loaded.topic_id), number_of(loaded)
        data = None if topic is None else topic.log(number)
        if topic is None or data is None or data is not loaded:
            return
        if data not in self._opening:
            self._opening[data] = None
            opening = self._open(topic, number, data)
            self.environment.tasks.spawn(opening, f"timers {data.name}")

    async def _open(self, topic: Topic, number: int, data: PartitionLog) -> None:
        """Tries again while the log is loaded: another broker may still own the partition, or the
        storage fail."""
        wait_s = LOOK_S
        try:
            while topic.log(number) is data and data.is_loaded:
                hosted = self.hosted.get(topic, number)
                is_hosted = hosted is not None and hosted.serves(data) and hosted.is_open
                if is_hosted or not data.has_companion(CompanionKind.TIMERS):
                    return
                if self.topics.ownership.is_mine(topic, number):
                    try:
                        await self.hosted.open(topic, number)
                    except HeadraceError as error:
                        log.info("cannot open the timers of %s yet: %s", data.name, error)
                    else:
                        return
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
        finally:
            del self._opening[data]

    async def _begin(self, hosted: HostedTimers) -> None:
        await self._configure(hosted)
        state = hosted.state
        if state is not None and state.producer_id < 0:
            await hosted.ask(OpenTimersCommand(await self._producer_ids.take()))

    @staticmethod
    async def _configure(hosted: HostedTimers) -> None:
        config = half_config(hosted.topic.fact.configs)
        state = hosted.state
        if state is None or state.halves.config != config:
            await hosted.ask(ConfigureCommand(config))

    async def hosted_or_none(self, topic: Topic, number: int) -> HostedTimers | None:
        """The timers of a partition, None if it never had any. Raises HeadraceError."""
        self.hosted.check_owned(topic, number)
        hosted = await self.hosted.open_or_none(topic, number)
        if hosted is not None and hosted.state is None:
            await self._configure(hosted)  # waits until it is loaded, or raises
        return hosted
