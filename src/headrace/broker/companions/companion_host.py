"""Hosts what this broker keeps over the companion logs of one kind, a tenure per partition.

Invariants: knows partitions, owners and tenures, not what a tenure does. A partition has at most
one tenure at a time, opened under its lock; it ends when the partition is resigned or deleted, or
when the partition was loaded again. What is no longer served is replaced at the next request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headrace.broker.companions.companion_log import open_companion
from headrace.errors import HeadraceError, NotOwner, TopicUnknown
from headrace.metadata.facts import companion_number
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from uuid import UUID

    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import CompanionKind


class Tenure(Protocol):
    """What a host keeps for one partition from the time this broker serves it."""

    @property
    def is_open(self) -> bool:
        """Whether it has begun, so that requests need not wait for that."""
        ...

    def serves(self, data: PartitionLog) -> bool:
        """Whether it belongs to this load of the partition and has not ended."""
        ...

    def stop(self, error: HeadraceError) -> None:
        """The broker stops: waiting requests get `error`."""
        ...

    def close(self, error: HeadraceError) -> None:
        """End it, with its companion log; waiting requests get `error`."""
        ...


Hosted = TypeVar("Hosted", bound=Tenure)


class CompanionHost(Generic[Hosted]):
    """See the module."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        kind: CompanionKind,
        make: Callable[[Topic, int, PartitionLog], Hosted],
        begin: Callable[[Hosted], Awaitable[None]] | None = None,
        *,
        is_standalone: bool,
    ) -> None:
        """`make(topic, number, companion)` creates a tenure; `begin` finishes opening it, again
        after each failure."""
        self._environment = environment
        self._topics = topics
        self._kind = kind
        self._make = make
        self._begin = begin
        self._is_standalone = is_standalone
        self._hosted: dict[tuple[UUID, int], Hosted] = {}
        self._opening: dict[tuple[UUID, int], FairLock] = {}

    def __iter__(self) -> Iterator[Hosted]:
        """All tenures."""
        return iter(list(self._hosted.values()))

    def get(self, topic: Topic, number: int) -> Hosted | None:
        """The tenure of a partition, if it has one."""
        return self.of(topic.home.id, number)

    def of(self, topic_id: UUID, number: int) -> Hosted | None:
        """As `get`, by the topic's id."""
        return self._hosted.get((topic_id, number))

    async def open(self, topic: Topic, number: int) -> Hosted:
        """The tenure of a partition that this broker serves, with a new companion log if it has
        none. Raises TopicUnknown, NotOwner, StorageUnavailable, MetadataUnavailable."""
        data = topic.require_log(number)
        if data.is_deleted:
            raise TopicUnknown(f"topic {topic.name!r} was deleted")
        topic = topic.home  # readers of a shared topic are kept with it
        key = (topic.id, number)
        hosted = self._hosted.get(key)
        if hosted is not None and hosted.serves(data) and hosted.is_open:
            return hosted
        self.check_owned(topic, number)
        async with self._opening.setdefault(key, FairLock()):
            hosted = self._hosted.get(key)
            if hosted is None or not hosted.serves(data):
                self.resign(topic, number)
                companion = await open_companion(
                    self._environment, topic, number, self._kind, is_owned=not self._is_standalone
                )
                opened = topic.id, companion_number(number, self._kind)
                self._topics.logs.companions[opened] = companion
                if topic.log(number) is not data:
                    raise NotOwner(f"{data.name} has a new owner: refresh the metadata")
                hosted = self._hosted[key] = self._make(topic, number, companion)
            if self._begin is not None:
                await self._begin(hosted)
        self._opening.pop(key, None)
        return hosted

    async def open_or_none(self, topic: Topic, number: int) -> Hosted | None:
        """As `open`; None if the partition has no companion log of the kind."""
        data = topic.require_log(number)
        await data.wait_loaded()
        return await self.open(topic, number) if data.has_companion(self._kind) else None

    async def open_if_begun(self, topic: Topic, number: int) -> Hosted | None:
        """As `open`; None if nothing has ever begun on a partition that this broker serves."""
        is_new = self.get(topic, number) is None
        if is_new and self._topics.ownership.is_mine(topic, number):
            return await self.open_or_none(topic, number)
        return await self.open(topic, number)

    def check_owned(self, topic: Topic, number: int) -> None:
        """Raise NotOwner if this broker does not serve the partition."""
        if not self._topics.ownership.is_mine(topic, number):
            name = topic.require_log(number).name
            raise NotOwner(f"{name} is not served by this broker: refresh the metadata")

    def resign(self, topic: Topic, number: int) -> None:
        """This broker no longer serves the partition."""
        hosted = self._hosted.pop((topic.home.id, number), None)
        if hosted is not None:
            hosted.close(NotOwner(f"{topic.name}-{number} is served by another broker now"))

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic and its companion logs were deleted."""
        for key in [key for key in self._hosted if key[0] == topic_id]:
            self._hosted.pop(key).close(TopicUnknown("the topic was deleted"))

    def close(self) -> None:
        """Refuse waiting requests and stop the timers."""
        for hosted in self._hosted.values():
            hosted.stop(NotOwner("the broker is stopping: refresh the metadata"))
