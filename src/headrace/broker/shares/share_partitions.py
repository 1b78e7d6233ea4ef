"""Receives and settles records of share groups on the partitions that this broker serves.

Invariants: the machine of the partition (`coordination.shares`), whose journal is a companion log,
decides what a group may have; `share_receive` reads batches for it. Nothing here knows a protocol:
Kafka's share groups and HTTP's queues call the same methods. Errors are part of the replies or
raised as HeadraceErrors.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.broker.companions.companion_host import CompanionHost
from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.group_config import duration_ms, own_dead_letter_topic
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.shares.dead_letters import DeadLetters, LetterOrigin
from headrace.broker.shares.filtering import Filtering
from headrace.broker.shares.held_batches import HeldBatches
from headrace.broker.shares.hosted_shares import LITE, Hosted
from headrace.broker.shares.lite_partitions import LitePartitions
from headrace.broker.shares.parked_room import ParkedRoom
from headrace.broker.shares.queue_figures import QueueFigures
from headrace.broker.shares.share_receive import Received, ReceiveRequest, ShareReceive
from headrace.coordination.shares.commands import (
    DescribeCommand,
    Filtered,
    LocksExpired,
    LogStartCommand,
    MoveStartCommand,
    OpenShareGroupCommand,
    ParkKeyCommand,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    SettleCommand,
    Settlement,
    ShareCommand,
    ShareLoadedCommand,
    ShareTickCommand,
    StatesCommand,
    TakeBackCommand,
)
from headrace.coordination.shares.share_machine import GROUPS_MAX, ShareMachine
from headrace.errors import (
    CoordinatorLoading,
    GroupKindMismatch,
    GroupUnknown,
    HeadraceError,
)
from headrace.metadata.facts import CompanionKind
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from headrace.broker.shares.hosted_shares import Pause, ShareShard
    from headrace.broker.shares.share_group_settings import ShareGroupSettings
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.kit.machine import Answer, Command
    from headrace.coordination.shares.commands import (
        DeadLetter,
        DeliveryState,
        ShareDescription,
    )
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.records.codec import Record


class SharePartitions:
    """All share partitions of one broker."""

    def __init__(
        self,
        environment: Environment,
        topics: Topics,
        terms: Callable[[str], ShareGroupSettings],
        dead_letters: DeadLetters,
        begin: Callable[[str, UUID, int], Awaitable[int | None]],
        *,
        is_standalone: bool,
    ) -> None:
        """`terms(group_id)`: the group's current settings. `begin(group_id, topic_id, partitions)`
        records that a group begins on a topic, before its first record is written, and returns how
        many partitions the topic had when it began; None if that is not known."""
        self.figures = QueueFigures(environment.clock)
        self._readable = topics.readable
        self._begin = begin
        self._dead_letters = dead_letters
        self._environment = environment
        self._terms = terms
        self._host = CompanionHost(
            environment,
            topics,
            CompanionKind.SHARES,
            self._make,
            is_standalone=is_standalone,
        )
        self._parked = ParkedRoom(lambda: self._host, environment.clock.now_ns)
        self._held_batches = HeldBatches()
        self._filtering = Filtering()
        self.lite = LitePartitions(
            environment, topics, terms, begin, self.give_up, is_standalone=is_standalone
        )
        """For groups that consume lite topics."""

    # --- requests of faces -------------------------------------------------------------------

    async def receive(self, topic: Topic, number: int, request: ReceiveRequest) -> Received:
        """Acquire available records; empty if there are none.

        Raises NotOwner, StorageUnavailable, CoordinatorLoading, CoordinatorUnavailable.
        """
        self._check(topic, request.group_id, takes_lite=request.takes_lite)
        if request.takes_lite:
            received = await self.lite.receive(topic, number, request, self._held_batches)
        else:
            hosted = await self._host.open(topic, number)
            await self._open_group(hosted, request.group_id, topic, number)
            terms = self._terms(request.group_id)
            parts = self._held_batches, self._filtering
            received = await ShareReceive(hosted, request, terms, *parts).receive()
        if received.acquired:
            self.figures.note_acquired(request.group_id, topic.name, received.acquired)
        return received

    async def watched(self, topic: Topic, number: int, pause: Pause | None = None) -> Hosted:
        """The partition, for callers that wait. Raises what storage and ownership raise."""
        if pause is not None and pause.isolation == LITE:
            return await self.lite.watched(topic, number)
        return await self._host.open(topic, number)

    async def settle(
        self,
        topic: Topic,
        number: int,
        group_id: str,
        member_id: str,
        settlements: Sequence[Settlement],
        *,
        is_atomic: bool,
    ) -> Sequence[HeadraceError | None]:
        """One error or None for each settlement, once it is durable.

        Raises GroupUnknown, NotOwner, StorageUnavailable.
        """
        hosted = await self._opened(topic, number, group_id)
        command = SettleCommand(group_id, member_id, settlements, is_atomic)
        errors = (await hosted.ask(command)).errors
        hosted.wake()
        self.figures.note_settled(group_id, topic.name, settlements, errors)
        return errors

    def _is_lite(self, group_id: str) -> bool:
        return self._terms(group_id).config.is_lite

    def _check(self, topic: Topic, group_id: str, *, takes_lite: bool) -> None:
        self._readable.check(topic)
        is_lite = self._is_lite(group_id)
        if takes_lite and not is_lite:  # the client's broker knows the settings
            raise CoordinatorLoading(
                f"this broker does not know yet that group {group_id!r} consumes lite topics: try"
                " again"
            )
        if is_lite and not takes_lite:
            raise GroupKindMismatch(
                f"group {group_id!r} consumes lite topics: use a lite consumer, or another group"
            )

    async def _opened(self, topic: Topic, number: int, group_id: str) -> Hosted:
        """What serves a group on the partition. Raises GroupUnknown if it is not even there,
        TopicUnknown if the topic is no longer shared with the group's tenant."""
        self._readable.check(topic)
        if self._is_lite(group_id):
            return await self.lite.begun(topic, number, group_id)
        return await self._host.open(topic, number)

    async def begin(
        self, topic: Topic, number: int, group_id: str, *, takes_lite: bool = False
    ) -> bool:
        """Register the group with the partition, so that new records from now on are its backlog.
        Returns whether it was new there and begins after the records that are there.
        `takes_lite`: as of ReceiveRequest.

        Raises GroupKindMismatch, NotOwner, StorageUnavailable, CoordinatorLoading,
        MetadataUnavailable.
        """
        self._check(topic, group_id, takes_lite=takes_lite)
        if takes_lite:
            await self.lite.begin(topic, number, group_id)
            return False
        hosted = await self._host.open(topic, number)
        return await self._open_group(hosted, group_id, topic, number)

    async def release(self, topic: Topic, number: int, group_id: str, member_id: str) -> None:
        """A member's session has ended."""
        hosted = await self._opened(topic, number, group_id)
        await hosted.ask(ReleaseMemberCommand(group_id, member_id))
        hosted.wake()

    async def describe(
        self, topic: Topic, number: int, group_ids: Sequence[str] | None = None
    ) -> Sequence[ShareDescription]:
        """The groups' positions in the partition, without those that have not begun there.

        Raises TopicUnknown, NotOwner, StorageUnavailable, CoordinatorLoading.
        """
        lite = await self.lite.describe(topic, number, group_ids)
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            return self._own(topic, lite)
        return self._own(topic, [*lite, *(await hosted.ask(DescribeCommand(group_ids))).groups])

    def _own(self, topic: Topic, found: Sequence[ShareDescription]) -> Sequence[ShareDescription]:
        """Without groups of tenants that know the topic by another name."""
        return [one for one in found if self._readable.has_group(topic, one.group_id)]

    def describe_loaded(self, topic: Topic, number: int) -> Sequence[ShareDescription]:
        """As `describe`, of what is in memory."""
        lite = self.lite.describe_loaded(topic, number)
        hosted = self._host.get(topic, number)
        machine = None if hosted is None else hosted.shard.machine
        if not isinstance(machine, ShareMachine):
            return self._own(topic, lite)
        return self._own(topic, [*lite, *machine.describe(DescribeCommand()).groups])

    async def states(
        self, topic: Topic, number: int, records: Sequence[Record]
    ) -> list[list[DeliveryState]]:
        """The states of some records in each group that has begun on the partition.

        Raises TopicUnknown, NotOwner, StorageUnavailable, CoordinatorLoading.
        """
        lite = await self.lite.states(topic, number, records)
        hosted = await self._host.open_if_begun(topic, number)
        found = lite
        if hosted is not None:
            plain = (await hosted.ask(StatesCommand([one.offset for one in records]))).states
            found = [one + others for one, others in zip(lite, plain, strict=True)]
        has_group = self._readable.has_group
        return [[one for one in of if has_group(topic, one.group_id)] for of in found]

    async def ask(self, topic: Topic, number: int, command: Command[Answer]) -> Answer:
        """The reply to a command on groups that have begun. Raises RecordStateInvalid,
        GroupUnknown, NotOwner, StorageUnavailable."""
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            raise GroupUnknown(f"no share group has begun on {topic.name}-{number}")
        reply = await hosted.ask(command)
        hosted.wake()
        return reply

    async def park(self, topic: Topic, number: int, group_id: str, keys: Sequence[bytes]) -> None:
        """Park keys of a group that has begun. Raises PolicyViolation if that would be too many of
        a user, a tenant or the broker, and as `ask`."""
        hosted = await self._host.open(topic, number)
        async with self._parked.taken(hosted, group_id, keys):
            commands = [ParkKeyCommand(group_id, key, crc32(key)) for key in keys]
            # Side by side they share a sync.
            await gather_charged(self.ask(topic, number, one) for one in commands)

    async def take_back(
        self, topic: Topic, number: int, offset: int, *, is_dry_run: bool
    ) -> Sequence[str]:
        """Have no group deliver a record; returns them, without those of tenants that know the
        topic by another name. Raises as `ask`."""
        is_own = partial(self._readable.has_group, topic)
        return (await self.ask(topic, number, TakeBackCommand(offset, is_dry_run, is_own))).groups

    def check_parks(self, group_id: str) -> None:
        """Raise RecordStateInvalid if the group's settings do not support parked keys."""
        refusal = self._terms(group_id).config.parking_refusal()
        if refusal is not None:
            raise refusal

    async def journal(self, topic: Topic, number: int) -> PartitionLog | None:
        """The journal of the partition's share groups; None if there never was one.

        Raises TopicUnknown, NotOwner, StorageUnavailable.
        """
        hosted = await self._host.open_if_begun(topic, number)
        return None if hosted is None else hosted.journal

    async def numbered_groups(self, topic: Topic, number: int) -> dict[int, str]:
        """The groups that have begun on the partition, without those of tenants that know the topic
        by another name, by their number in its journal.

        Raises as `journal`, and CoordinatorLoading.
        """
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            return {}
        await hosted.ask(DescribeCommand([]))  # once its machine is loaded
        machine = hosted.shard.machine
        assert isinstance(machine, ShareMachine)
        has_group = self._readable.has_group
        groups = machine.groups.items()
        return {one.number: group_id for group_id, one in groups if has_group(topic, group_id)}

    async def move_start(self, topic: Topic, number: int, group_id: str, offset: int) -> None:
        """Reset the group to `offset`; in-flight state is dropped. Raises GroupKindMismatch."""
        if self._is_lite(group_id):
            raise GroupKindMismatch(
                f"group {group_id!r} has a position in each lite topic, which cannot be moved: use"
                " another group"
            )
        hosted = await self._host.open(topic, number)
        await self._open_group(hosted, group_id, topic, number)
        await hosted.ask(MoveStartCommand(group_id, offset))
        hosted.wake()

    async def remove_group(self, topic: Topic, number: int, group_id: str) -> None:
        """Delete the group on the partition."""
        await self.lite.remove_group(topic, number, group_id)
        hosted = await self._host.open_if_begun(topic, number)
        if hosted is None:
            return
        with suppress(GroupUnknown):
            await hosted.ask(RemoveGroupCommand(group_id))
        hosted.wake()

    def resign(self, topic: Topic, number: int) -> None:
        """This broker no longer serves the partition."""
        self._host.resign(topic, number)
        self.lite.resign(topic, number)

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic and its journals were deleted."""
        self._host.forget_topic(topic_id)
        self.lite.forget_topic(topic_id)

    def close(self) -> None:
        """Refuse waiting requests and stop the timers."""
        self._held_batches.drop()
        self._host.close()
        self.lite.close()

    # --- the machine of a partition ----------------------------------------------------------

    def _dead_letter_topic(self, group_id: str) -> str:
        return self._terms(group_id).dead_letter_topic

    def give_up(
        self,
        topic: Topic,
        number: int,
        letter: DeadLetter,
        report: Callable[[ShareCommand], None],
    ) -> None:
        """Count records that are given up, and copy them if their group wants that, and may still
        read them."""
        seen = self._readable.seen_by(letter.group_id, topic) or topic
        self.figures.note_given_up(seen.name, number, letter)

        def target() -> str:
            now = self._readable.seen_by(letter.group_id, topic)
            is_seen = now is not None and now.id == seen.id
            return self._dead_letter_topic(letter.group_id) if is_seen else ""

        if letter.has_copy:
            self._dead_letters.begin(LetterOrigin(seen, number, target), letter, report)

    def _make(self, topic: Topic, number: int, journal: PartitionLog) -> Hosted:
        environment = self._environment

        def perform(
            effect: DeadLetter | LocksExpired | Filtered, report: Callable[[ShareCommand], None]
        ) -> None:
            group_id = effect.group_id
            name = (self._readable.seen_by(group_id, topic) or topic).name
            if isinstance(effect, LocksExpired):
                self.figures.of(group_id, name).timed_out += effect.records
                return
            if isinstance(effect, Filtered):
                self.figures.of(group_id, name).filtered += effect.records
                return
            self.give_up(topic, number, effect, report)

        shard: ShareShard = CoordinatorShard(
            f"share groups of {topic.name}-{number}",
            InternalPartition(journal, environment.clock),
            ShareMachine,
            (ShareLoadedCommand(), ShareTickCommand()),
            environment.clock,
            environment.tasks,
            perform,
        )
        return Hosted(topic.require_log(number), journal, shard)

    async def _open_group(self, hosted: Hosted, group_id: str, topic: Topic, number: int) -> bool:
        """Whether the group was new, and begins after records that are there."""
        partitions_then = await self._begin(group_id, topic.home.id, len(topic.partitions))
        terms = self._terms(group_id)
        machine, log_config, config = hosted.shard.machine, hosted.data.config, terms.config
        is_new = True
        if log_config.has_attributes or log_config.ttl_ms >= 0:
            has_attributes, ttl_ms = log_config.has_attributes, log_config.ttl_ms
            config = replace(config, has_attributes=has_attributes, ttl_ms=ttl_ms)
        if isinstance(machine, ShareMachine):
            group = machine.groups.get(group_id)
            is_new = group is None
            if group is not None and group.config == config:
                if group.window.start < hosted.data.log_start_offset:
                    start = LogStartCommand(hosted.data.log_start_offset)
                    await hosted.ask(start)
                return False
        if terms.dead_letter_topic == topic.name:
            raise own_dead_letter_topic(group_id, topic.name)
        # Nobody could have consumed a partition that was added later: none of it may be missed.
        is_added = partitions_then is not None and number >= partitions_then
        reset = "earliest" if is_added else terms.offset_reset
        start_offset = await self._first_offset(hosted.data, reset)
        if is_new and isinstance(machine, ShareMachine):
            hosted.begin_group(group_id, machine.groups.keys(), GROUPS_MAX)
        is_reader = topic.home is not topic
        await hosted.ask(OpenShareGroupCommand(group_id, start_offset, config, is_reader))
        return is_new and start_offset > hosted.data.log_start_offset

    async def _first_offset(self, data: PartitionLog, offset_reset: str) -> int:
        """The initial position of a group that is new to this partition."""
        if offset_reset == "earliest":
            return data.log_start_offset
        age_ms = duration_ms(offset_reset)
        if age_ms is None:
            return data.high_watermark
        environment = self._environment
        since_ms = environment.clock.now_ms() - age_ms
        found = await data.reader.offset_of_time(since_ms)
        return data.high_watermark if found.offset < 0 else found.offset
