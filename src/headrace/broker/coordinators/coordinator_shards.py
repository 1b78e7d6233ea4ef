"""This broker's coordinators of one kind: a shard for each partition of their internal topic.

Invariants: knows which partition a key belongs to (Kafka's hash), opens a shard on its first
command or when this broker serves its partition with records, and closes it when this broker no
longer owns the partition. Commands wait while the partition is handed over: clients that are
redirected before the next owner is named look for it in vain. It does not know what the machines
do. `CoordinatorRegistry` lists the kinds (groups, transactions), so that the node treats all of
them alike.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.shard_replay import StateAhead, read_back
from headrace.errors import CoordinatorUnavailable, HeadraceError, NotCoordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from headrace.broker.coordinators.shard_log import Replayed, ShardLog
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.kit.machine import Command, Machine
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

REMEMBERED_KEYS_MAX = 10_000
"""Keys whose partition is cached: hashing 30 characters costs 3 us."""

HAND_OVER_WAIT_S = 0.5
"""For the next owner to be named; after that, clients look for it themselves."""

Commands = TypeVar("Commands")
Record = TypeVar("Record")
Replies = TypeVar("Replies")
Reply = TypeVar("Reply")


class CoordinatorShards(Generic[Commands, Record, Replies]):
    """See the module."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        shard_log: Callable[[int], ShardLog],
        make_machine: Callable[[], Machine[Commands, Record, Replies]],
        host_commands: tuple[Commands, Commands],
        clock: Clock,
        tasks: Tasks,
        perform: Callable[[ShardLog, Any, Callable[[Commands], None]], None] | None = None,
    ) -> None:
        """`shard_log(partition)` opens a partition's log; it raises NotCoordinator (or another
        HeadraceError, which becomes the reply) if this broker does not own the partition.
        `perform(log, effect, report)` begins an effect of the shard over `log`."""
        assert partition_count > 0
        self.topic = topic
        self._partition_count = partition_count
        self._shard_log = shard_log
        self._make_machine = make_machine
        self._host_commands = host_commands
        self._clock = clock
        self._tasks = tasks
        self._perform = perform
        self._shards: dict[int, CoordinatorShard[Commands, Record, Replies]] = {}
        self._suspended: dict[int, CoordinatorShard[Commands, Record, Replies]] = {}
        """Of partitions whose logs refuse everything for now."""
        self._ahead: dict[int, StateAhead] = {}
        """Of partitions that other brokers are about to hand over."""
        self._partitions: dict[str, int] = {}
        self._handed_over: dict[int, asyncio.Event] = {}
        """Partitions in motion, and what is set when the next owner is named."""
        self._closed_with: HeadraceError | None = None

    def partition_for(self, key: str) -> int:
        """The partition of the internal topic that holds `key` (FindCoordinator)."""
        partition = self._partitions.get(key)
        if partition is None:
            if len(self._partitions) >= REMEMBERED_KEYS_MAX:
                self._partitions.clear()
            partition = self._partitions[key] = hash_key(key, self._partition_count)
        return partition

    def use_partition_count(self, count: int) -> None:
        """Adopt the stored partition count of the topic, which another broker may have created."""
        if count != self._partition_count:
            self._partition_count = count
            self._partitions.clear()

    def shard(self, partition: int) -> CoordinatorShard[Commands, Record, Replies]:
        """The shard of a partition. Raises what `shard_log` raises."""
        shard = self._shards.get(partition)
        if shard is None or (shard.is_closed and self._closed_with is None):
            if self._closed_with is not None:
                raise self._closed_with
            shard_log = self._shard_log(partition)
            suspended = self._suspended.pop(partition, None)
            if suspended is not None:
                if suspended.resume(shard_log):
                    self._shards[partition] = suspended
                    return suspended
                suspended.close(_moved())
            perform = self._perform
            shard = self._shards[partition] = CoordinatorShard(
                f"{self.topic}-{partition}",
                shard_log,
                self._make_machine,
                self._host_commands,
                self._clock,
                self._tasks,
                None if perform is None else lambda e, report: perform(shard_log, e, report),
                self._ahead.pop(partition, None),
            )
        return shard

    def owned(self) -> list[CoordinatorShard[Commands, Record, Replies]]:
        """Shards of all partitions whose log can be opened here."""
        shards: list[CoordinatorShard[Commands, Record, Replies]] = []
        for partition in range(self._partition_count):
            try:
                shards.append(self.shard(partition))
            except NotCoordinator:
                continue
        return shards

    def opened(self) -> list[CoordinatorShard[Commands, Record, Replies]]:
        """The shards that have been opened."""
        return list(self._shards.values())

    def machine_of(self, key: str) -> Machine[Commands, Record, Replies] | None:
        """The machine of a key, if it is loaded."""
        shard = self._shards.get(self.partition_for(key))
        return None if shard is None else shard.machine

    def machines(self) -> Iterable[Machine[Commands, Record, Replies]]:
        """The machines that are loaded, for metrics."""
        return [shard.machine for shard in self._shards.values() if shard.machine is not None]

    async def submit(self, key: str, command: Command[Reply]) -> Reply:
        """Have the shard of `key` answer a command."""
        try:
            shard = await self._shard_of(key)
        except HeadraceError as error:
            return command.refused(error)
        return await shard.submit(command)

    async def _shard_of(self, key: str) -> CoordinatorShard[Commands, Record, Replies]:
        """The shard of `key`, once it is not being handed over. Raises what `shard` raises."""
        if self._handed_over:
            await self.wait_handed_over(key)
        return self.shard(self.partition_for(key))

    def preload(self, partition: int) -> None:
        """This broker owns the partition, which has records: read them before a client waits."""
        try:
            self.shard(partition).preload()
        except HeadraceError as error:  # it was given up meanwhile, or the broker is stopping
            log.debug("%s-%d is not preloaded: %s", self.topic, partition, error)

    async def read_ahead(
        self, partition: int, records: AsyncIterator[Replayed], end_offset: int, leader_epoch: int
    ) -> None:
        """Another broker is about to hand over the partition: build the state from the records
        before `end_offset`, which do not change. Raises what reading them raises."""
        machine = self._make_machine()
        log_bytes = await read_back(machine, records)
        self._ahead[partition] = StateAhead(machine, end_offset, log_bytes, leader_epoch)

    def withdraw(self, partition: int) -> None:
        """The partition is not handed over after all."""
        self._ahead.pop(partition, None)

    async def shrink(self, partition: int, timeout_s: float) -> None:
        """This broker is about to hand over the partition: leave little for the next owner to
        read."""
        shard = self._shards.get(partition)
        if shard is not None:
            await shard.shrink(timeout_s)

    def hold(self, partition: int, *, is_moving: bool) -> None:
        """A hand-over of the partition begins, or has ended."""
        if is_moving:
            self._handed_over.setdefault(partition, asyncio.Event())
        elif (ended := self._handed_over.pop(partition, None)) is not None:
            ended.set()

    async def wait_handed_over(self, key: str) -> None:
        """Wait, up to a time limit, if the partition of `key` is being handed over."""
        ended = self._handed_over.get(self.partition_for(key))
        if ended is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(HAND_OVER_WAIT_S):
                    await ended.wait()

    def suspend(self, partition: int) -> None:
        """It is uncertain whether this broker owns the partition: clients are redirected. The state
        is kept, if possible, until `resign`, or until the partition's log can be opened again."""
        shard = self._shards.get(partition)
        if shard is None or not shard.suspend():
            self.resign(partition)
        else:
            self._suspended[partition] = self._shards.pop(partition)

    def resign(self, partition: int) -> None:
        """This broker no longer owns the partition: clients are redirected."""
        for shards in (self._shards, self._suspended):
            shard = shards.pop(partition, None)
            if shard is not None:
                shard.close(_moved())

    def close(self) -> None:
        """Refuse waiting commands and stop the timers. Replies to durable commands are still
        sent."""
        self._closed_with = CoordinatorUnavailable(
            "the broker is stopping: look up the coordinator again"
        )
        for shard in (*self._shards.values(), *self._suspended.values()):
            shard.close(self._closed_with)


class CoordinatorRegistry:
    """The kinds of coordinators of one broker, by internal topic."""

    def __init__(self) -> None:
        self._kinds: dict[str, CoordinatorShards[Any, Any, Any]] = {}

    def add(self, shards: CoordinatorShards[Any, Any, Any]) -> None:
        """Host another kind."""
        assert shards.topic not in self._kinds, "an internal topic has one kind of coordinators"
        self._kinds[shards.topic] = shards

    def __iter__(self) -> Any:
        """All kinds."""
        return iter(self._kinds.values())

    def preload(self, topic: Topic, partition: int) -> None:
        """This broker owns a partition with records, of an internal topic or any other."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            shards.preload(partition)

    async def read_ahead(
        self,
        topic: Topic,
        partition: int,
        records: AsyncIterator[Replayed],
        end_offset: int,
        leader_epoch: int,
    ) -> None:
        """Another broker is about to hand over a partition of an internal topic. Raises what
        reading its records raises."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            await shards.read_ahead(partition, records, end_offset, leader_epoch)

    def withdraw(self, topic: Topic, partition: int) -> None:
        """A partition, of an internal topic or any other, is not handed over after all."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            shards.withdraw(partition)

    async def shrink(self, topic: Topic, partition: int, timeout_s: float) -> None:
        """This broker is about to hand over a partition, of an internal topic or any other."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            await shards.shrink(partition, timeout_s)

    def hold(self, topic: Topic, partition: int, is_moving: bool) -> None:
        """A hand-over begins or has ended, of a partition of an internal topic or any other."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            shards.hold(partition, is_moving=is_moving)

    def suspend(self, topic: Topic, partition: int) -> None:
        """It is uncertain whether this broker owns a partition, of an internal topic or any
        other."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            shards.suspend(partition)

    def resign(self, topic: Topic, partition: int) -> None:
        """This broker no longer owns a partition, of an internal topic or any other."""
        shards = self._kinds.get(topic.name)
        if shards is not None:
            shards.resign(partition)

    def close(self) -> None:
        """Close all coordinators."""
        for shards in self._kinds.values():
            shards.close()


def _moved() -> NotCoordinator:
    return NotCoordinator("another broker coordinates this now: look up the coordinator")


def hash_key(key: str, partition_count: int) -> int:
    """Kafka's `Utils.abs(key.hashCode()) % partitions`. Do not change: stored."""
    units = key.encode("utf-16-be", "surrogatepass")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x100000000 - code
    # abs of the smallest int is 0 in Kafka, and 2^31 here
    return 0 if code == 0x80000000 else code % partition_count
