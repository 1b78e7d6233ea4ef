"""Hosts the timers of the partitions that this broker serves, and maintains them.

Invariants: a partition with timers is hosted as soon as this broker serves it, since due records
are delivered without a request. What is delayed, and which half messages wait, is in
`delayed_records.py` and `half_messages.py`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""Interval between checks for records due soon, for partitions that could not be opened, and for
fenced ones. A partition is opened as soon as it is loaded."""
SPACE_LOOKS: Final = 10
"""Checks between two evaluations of disk space."""


def number_of(log: PartitionLog) -> int:
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
        self.hosted = CompanionHost(
            environment,
            lambda: topics.ownership,
            CompanionKind.TIMERS,
            self._make,
            self._begin,
            is_standalone=is_standalone,
        )

    def _make(self, topic: Topic, number: int, companion: PartitionLog) -> HostedTimers:
        return HostedTimers(
            topic, number, companion, self.environment, self.figures, self._checks_due
        )

    async def run(self) -> None:
        """Host the partitions that have timers and maintain them, until cancelled."""
        if self._is_standalone:
            await self._load_all()
        loaded = self.environment.companioned
        assert loaded is not None, "a host of timers is notified of loaded logs"
        looks = 0
        while True:
            self._open_waiting([*loaded.loaded, *(one.data for one in self.hosted)])
            looks += 1
            for hosted in self.hosted:
                try:
                    await hosted.check_clock()
                    await hosted.preload_due()
                    if looks % SPACE_LOOKS == 0:
                        await self._configure(hosted)
                        await keep_small(hosted)
                except HeadraceError as error:
                    log.info("%s: cannot maintain its timers yet: %s", hosted.data.name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    while True:
                        self._open_waiting(await loaded.wait_loaded())

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

    def _open_waiting(self, logs: list[PartitionLog]) -> None:
        """Host the partitions among these that have timers, and reopen fenced ones."""
        for data in dict.fromkeys(logs):
            topic = self.topics.by_id.get(data.topic_id)
            number = number_of(data)
            if (
                topic is not None
                and topic.log(number) is data
                and data.is_loaded
                and data.has_companion(CompanionKind.TIMERS)
                and not self._is_hosted(topic, number, data)
                and not self.hosted.is_opening(topic, number)
                and self.topics.ownership.is_mine(topic, number)
            ):
                self.environment.tasks.spawn(self._open(topic, number), f"timers {data.name}")

    def _is_hosted(self, topic: Topic, number: int, data: PartitionLog) -> bool:
        """Whether its timers run; those whose companion was fenced are reopened."""
        hosted = self.hosted.get(topic, number)
        return hosted is not None and hosted.serves(data)

    async def _open(self, topic: Topic, number: int) -> None:
        try:
            await self.hosted.open(topic, number)
        except HeadraceError as error:
            log.info("cannot open the timers of %s-%d yet: %s", topic.name, number, error)

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
