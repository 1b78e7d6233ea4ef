"""Receives and settles records of lite topics on the partitions that this broker serves.

Invariants: as `share_partitions`, which calls this for groups that consume lite topics. The machine
of the partition (`coordination.shares.lite_machine`) has a journal of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.companions.companion_host import CompanionHost
from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.group_config import own_dead_letter_topic
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.security.tenant_shares import NOBODY, Held
from headrace.broker.shares.hosted_shares import Hosted
from headrace.broker.shares.lite_receive import LiteReceive, catch_up
from headrace.broker.shares.lite_waits import LiteWaits
from headrace.broker.topics.overrides import lite_expiration_ms
from headrace.coordination.shares.commands import (
    RemoveGroupCommand,
    ShareDescription,
    ShareLoadedCommand,
    ShareTickCommand,
)
from headrace.coordination.shares.lite_commands import (
    ADD,
    SET,
    LiteStatesCommand,
    OpenLiteCommand,
)
from headrace.coordination.shares.lite_machine import GROUPS_MAX, LiteMachine
from headrace.errors import GroupKindMismatch, GroupUnknown, HeadraceError, LiteTopicsFull
from headrace.log.visibility import READ_COMMITTED
from headrace.metadata.facts import CompanionKind
from headrace.records.attributes import LITE_TOPIC, find_header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from uuid import UUID

    from headrace.broker.shares.held_batches import HeldBatches
    from headrace.broker.shares.hosted_shares import LiteShard
    from headrace.broker.shares.share_group_settings import ShareGroupSettings
    from headrace.broker.shares.share_receive import Received, ReceiveRequest
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.commands import DeadLetter, DeliveryState, ShareCommand
    from headrace.coordination.shares.lite_commands import LiteSyncCommand
    from headrace.coordination.shares.lite_index import LiteIndex
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.records.codec import Record

SESSION_MS = 120_000
"""Clients repeat what they subscribe to every 30 s; what is not repeated for so long ends."""


class LitePartitions:
    """The lite topics in all partitions of one broker."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        terms: Callable[[str], ShareGroupSettings],
        begin: Callable[[str, UUID, int], Awaitable[int | None]],
        give_up: Callable[[Topic, int, DeadLetter, Callable[[ShareCommand], None]], None],
        *,
        is_standalone: bool,
    ) -> None:
        """`terms`, `begin`: as of SharePartitions; `give_up`: as its method."""
        self._environment = environment
        self._terms = terms
        self._begin = begin
        self._give_up = give_up
        self._restore: Callable[[Topic, int], Coroutine[Any, Any, None]] | None = None
        self._host = CompanionHost(
            environment, topics, CompanionKind.LITE, self._make, is_standalone=is_standalone
        )

    def restore_by(self, restore: Callable[[Topic, int], Coroutine[Any, Any, None]]) -> None:
        """`restore(topic, number)` subscribes clients again where a machine knows none, because
        this broker has just begun to serve the partition, or has loaded it anew."""
        self._restore = restore

    async def watched(self, topic: Topic, number: int) -> Hosted:
        """See SharePartitions.watched."""
        return await self._host.open(topic, number)

    async def begin(self, topic: Topic, number: int, group_id: str) -> Hosted:
        """The partition, on which the group has begun, with its current settings.

        Raises GroupKindMismatch, ConfigInvalid, NotOwner, StorageUnavailable, CoordinatorLoading,
        MetadataUnavailable.
        """
        _check_own(topic)
        if self._terms(group_id).dead_letter_topic == topic.name:
            raise own_dead_letter_topic(group_id, topic.name)
        await self._begin(group_id, topic.id, len(topic.partitions))
        hosted = await self._host.open(topic, number)
        await self._configure(hosted, topic, group_id, begins=True)
        self._restore_once(hosted, topic, number)
        return hosted

    async def begun(self, topic: Topic, number: int, group_id: str) -> Hosted:
        """The same, if the group has begun there. Raises GroupUnknown, and as `begin`."""
        _check_own(topic)
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            raise GroupUnknown(f"no group consumes lite topics of {topic.name}-{number}")
        await self._configure(hosted, topic, group_id, begins=False)
        return hosted

    async def _configure(
        self, hosted: Hosted, topic: Topic, group_id: str, *, begins: bool
    ) -> None:
        expiration_ms = lite_expiration_ms(topic.fact.configs)
        command = OpenLiteCommand(group_id, self._terms(group_id).config, expiration_ms, begins)
        machine = hosted.shard.machine
        if isinstance(machine, LiteMachine):
            if machine.is_open(command):
                return
            if begins and group_id not in machine.groups:
                hosted.begin_group(group_id, machine.groups.keys(), GROUPS_MAX)
        await hosted.ask(command)

    async def receive(
        self, topic: Topic, number: int, request: ReceiveRequest, held_batches: HeldBatches
    ) -> Received:
        """See SharePartitions.receive; `request.owner` is the client, as in `sync`."""
        hosted = await self.begin(topic, number, request.group_id)
        receiving = LiteReceive(hosted, request, held_batches)
        return await receiving.receive(self._environment.clock.now_ms())

    async def sync(
        self, topic: Topic, number: int, command: LiteSyncCommand
    ) -> list[tuple[str, str]]:
        """Change what a client of the group subscribes to; returns (client, name) of subscriptions
        that end because this one is exclusive. Raises QuotaExceeded, and as `begin`."""
        begins = command.action in {ADD, SET}
        opens = self.begin if begins else self.begun
        try:
            hosted = await opens(topic, number, command.group_id)
            restoring = self._restore_once(hosted, topic, number)
            if restoring is not None:  # or it would undo what the client wants now
                await asyncio.wait([restoring])
            return (await hosted.ask(command)).displaced
        except GroupUnknown:  # it was deleted, with its subscriptions
            if begins:
                raise
            return []

    def _restore_once(self, hosted: Hosted, topic: Topic, number: int) -> asyncio.Task[None] | None:
        """Begin it, unless that was done; what is doing it. Receives do not wait for it: their
        clients are woken."""
        waits, machine, restore = hosted.lite, hosted.shard.machine, self._restore
        assert waits is not None
        if machine is not None and waits.restored is not machine and restore is not None:
            waits.restored = machine
            waits.restoring = self._environment.tasks.start(
                restore(topic, number), f"subscriptions to lite topics of {topic.name}-{number}"
            )
        return waits.restoring

    async def restore(
        self, topic: Topic, number: int, command: LiteSyncCommand
    ) -> list[tuple[str, str]]:
        """As `sync`, of a client that has not asked again."""
        hosted = await self.begun(topic, number, command.group_id)
        return (await hosted.ask(command)).displaced

    async def describe(
        self, topic: Topic, number: int, group_ids: Sequence[str] | None = None
    ) -> list[ShareDescription]:
        """See SharePartitions.describe: once all records of the partition are known."""
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            return []
        await hosted.ask(ShareLoadedCommand())  # once its machine is loaded
        await catch_up(hosted, self._environment.clock.now_ms())
        return _describe(hosted, group_ids)

    async def states(
        self, topic: Topic, number: int, records: Sequence[Record]
    ) -> list[list[DeliveryState]]:
        """See SharePartitions.states: in the groups that have to do with the lite topic of each."""
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            return [[] for _ in records]
        names = [(find_header(one.headers, LITE_TOPIC) or b"").decode("latin1") for one in records]
        offsets = [one.offset for one in records]
        return (await hosted.ask(LiteStatesCommand([*zip(offsets, names, strict=True)]))).states

    def describe_loaded(self, topic: Topic, number: int) -> list[ShareDescription]:
        """As `describe`, of what is in memory: records that have arrived while no client waits
        are known the next time."""
        hosted = self._host.get(topic, number)
        if hosted is None:
            return []
        machine, data = hosted.shard.machine, hosted.data
        if isinstance(machine, LiteMachine) and hosted.lite is not None:
            index, end = machine.index, data.visibility.bound(READ_COMMITTED).offset
            if index.end < end or index.start < data.log_start_offset:
                hosted.lite.learn()
        return _describe(hosted, None)

    # --- sends -------------------------------------------------------------------------------

    def check(self, partition: PartitionLog, records: Sequence[tuple[int, str]], user: str) -> None:
        """Records (index in their batch, lite topic) of a user are about to be appended. Raises
        LiteTopicsFull. Where nothing consumes, none takes memory, and nothing is checked."""
        found = self._known_of(partition)
        if found is None:
            return
        lite, index = found
        try:
            most = partition.config.lite_topics_max
            lite.room.check(index, records, most, user, self._held)
        except LiteTopicsFull:
            lite.learn()  # what has expired, for the next ones
            raise

    def _held(self) -> Held:
        """How many lite topics there are on all partitions."""
        held = Held()
        for hosted in self._host:
            machine = hosted.shard.machine
            if isinstance(machine, LiteMachine) and hosted.lite is not None:
                hosted.lite.room.add_to(held, machine.index)
        return held

    def note(
        self, partition: PartitionLog, records: Sequence[tuple[int, str]], user: str = NOBODY
    ) -> None:
        """They were appended."""
        found = self._known_of(partition)
        if found is not None:
            lite, index = found
            lite.room.note(index, records, user)

    def _known_of(self, partition: PartitionLog) -> tuple[LiteWaits, LiteIndex] | None:
        """What is known of a partition whose lite topics are loaded here."""
        number = int(partition.name.rpartition("-")[2])
        hosted = self._host.of(partition.topic_id, number)
        if hosted is None or hosted.lite is None or not hosted.serves(partition):
            return None
        machine = hosted.shard.machine
        return (hosted.lite, machine.index) if isinstance(machine, LiteMachine) else None

    # --- the end -----------------------------------------------------------------------------

    async def remove_group(self, topic: Topic, number: int, group_id: str) -> None:
        """Delete the group on the partition."""
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is not None:
            with suppress(GroupUnknown):
                await hosted.ask(RemoveGroupCommand(group_id))

    def resign(self, topic: Topic, number: int) -> None:
        """This broker no longer serves the partition."""
        self._host.resign(topic, number)

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic and its journals were deleted."""
        self._host.forget_topic(topic_id)

    def close(self) -> None:
        """Refuse waiting requests and stop the timers."""
        self._host.close()

    def _make(self, topic: Topic, number: int, journal: PartitionLog) -> Hosted:
        environment = self._environment

        def learn() -> None:
            environment.tasks.spawn(self._learn(hosted), f"lite topics of {topic.name}")

        data = topic.require_log(number)
        waits = LiteWaits(data, learn)
        shard: LiteShard = CoordinatorShard(
            f"lite topics of {topic.name}-{number}",
            InternalPartition(journal, environment.clock),
            partial(LiteMachine, waits),
            (ShareLoadedCommand(), ShareTickCommand()),
            environment.clock,
            environment.tasks,
            partial(self._give_up, topic, number),
        )
        hosted = Hosted(data, journal, shard, waits)
        return hosted

    async def _learn(self, hosted: Hosted) -> None:
        """Look at what has arrived, for the clients that wait."""
        waits = hosted.lite
        assert waits is not None
        waits.learned()  # of what arrives from now on, another one knows
        try:
            await catch_up(hosted, self._environment.clock.now_ms())
        except HeadraceError:
            waits.wake_all()


def _describe(hosted: Hosted, group_ids: Sequence[str] | None) -> list[ShareDescription]:
    """What is not left to a group counts as finished, as the records of lite topics to which no
    client of it subscribes."""
    machine, end = hosted.shard.machine, hosted.data.high_watermark
    if not isinstance(machine, LiteMachine):
        return []
    found = []
    for group_id, group in machine.groups.items():
        if group_ids is None or group_id in group_ids:
            left = group.describe()
            finished = max(end - left.first, 0) - left.records
            counts = left.acquired, finished, left.archiving, left.retried
            found.append(ShareDescription(group_id, left.first, group.known_end, *counts))
    return found


def _check_own(topic: Topic) -> None:
    """Raise GroupKindMismatch for a topic that another tenant shares: its lite topics are not."""
    if topic.home is not topic:
        raise GroupKindMismatch(
            f"topic {topic.name!r} is another tenant's, whose lite topics are not shared: use a"
            " group that consumes whole topics"
        )
