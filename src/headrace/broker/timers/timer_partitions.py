"""The timers of one broker: their host, delayed records, and half messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.timers.delayed_records import DelayedRecords
from headrace.broker.timers.half_messages import CheckWaiters, HalfMessages, wake
from headrace.broker.timers.timer_host import TimerHost
from headrace.broker.timers.timer_room import TimerRoom

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment


class TimerPartitions:
    """See the module."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        producer_ids: ProducerIds,
        bytes_max: Callable[[], int],
        *,
        is_standalone: bool,
    ) -> None:
        """`bytes_max`: of memory, for what waits."""
        waiters: CheckWaiters = {}
        self.host = TimerHost(
            environment, topics, producer_ids, partial(wake, waiters), is_standalone=is_standalone
        )
        room = TimerRoom(bytes_max, lambda: self.host.hosted, environment.clock)
        self.delayed = DelayedRecords(self.host, room)
        self.halves = HalfMessages(self.host, waiters)
