"""Receives and settles records of share groups on the partitions that this broker serves.

Invariants: the machine of the partition (`coordination.shares`), whose journal is a companion log,
decides what a group may have; this module reads batches, and waits. Nothing here knows a protocol:
Kafka's share groups and HTTP's queues call the same methods. Errors are part of the replies or
raised as HeadraceErrors.

How it works: a receive determines what could be acquired, reads whole batches for it, then acquires
within what was read; so only records that fit into the response are acquired.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.companions.companion_host import CompanionHost
from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.coordinators.group_config import duration_ms, own_dead_letter_topic
from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.shares.dead_letters import DeadLetters, LetterOrigin
from headrace.broker.shares.held_batches import HeldBatches
from headrace.broker.shares.hosted_shares import Hosted, Pause
from headrace.broker.shares.queue_figures import QueueFigures
from headrace.broker.shares.share_reads import BatchesRead, row_reader, rows_of
from headrace.coordination.shares.commands import (
    AcquireCommand,
    Acquired,
    AcquireReply,
    ClaimCommand,
    DescribeCommand,
    LearnCommand,
    LocksExpired,
    LogStartCommand,
    MoveStartCommand,
    OpenShareGroupCommand,
    PeekCommand,
    ReleaseMemberCommand,
    RemoveGroupCommand,
    SettleCommand,
    Settlement,
    ShareCommand,
    ShareLoadedCommand,
    ShareTickCommand,
    SkipCommand,
    StatesCommand,
)
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.errors import GroupUnknown, HeadraceError
from headrace.log.visibility import READ_COMMITTED, READ_UNCOMMITTED
from headrace.metadata.facts import CompanionKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from headrace.broker.shares.hosted_shares import ShareShard
    from headrace.broker.shares.share_group_settings import ShareGroupSettings
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.machine import Answer, Command
    from headrace.coordination.shares.commands import (
        DeadLetter,
        DeliveryState,
        ShareDescription,
    )
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

ROUNDS_MAX = 64
"""Per receive: each one learns keys, or skips records that are not delivered."""
ROWS_BYTES = 256 * 1024
"""Batches whose keys are learned at a time."""
OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class ReceiveRequest:
    """A member's request for records of one partition."""

    group_id: str
    member_id: str
    records_max: int
    bytes_max: int
    is_strict: bool = False
    lock_ms: int = -1
    end: int = OFFSET_MAX
    """Records from this offset on are not acquired."""
    owner: str = ""
    """The owner of the partition in a sticky group; empty: the member."""


@dataclass(slots=True)
class Received:
    """Whole batches in order of offset, and the records that the member acquired."""

    acquired: list[Acquired] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    pause: Pause | None = None
    """Set if nothing was acquired; for `wait`."""


class SharePartitions:
    """All share partitions of one broker."""

    def __init__(
        self,
        environment: Environment,
        ownership: Ownership,
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
        self._begin = begin
        self._dead_letters = dead_letters
        self._environment = environment
        self._ownership = ownership
        self._terms = terms
        self._host = CompanionHost(
            environment,
            lambda: ownership,
            CompanionKind.SHARES,
            self._make,
            is_standalone=is_standalone,
        )
        self._held_batches = HeldBatches()

    # --- requests of faces -------------------------------------------------------------------

    async def receive(self, topic: Topic, number: int, request: ReceiveRequest) -> Received:
        """Acquire available records; empty if there are none.

        Raises NotOwner, StorageUnavailable, CoordinatorLoading, CoordinatorUnavailable.
        """
        hosted = await self._host.open(topic, number)
        await self._open_group(hosted, request.group_id, topic, number)
        terms = self._terms(request.group_id)
        isolation = READ_COMMITTED if terms.is_committed_only else READ_UNCOMMITTED
        group_id = request.group_id
        pause, has_read_again = Pause(isolation, 0, hosted.settled), False
        for _ in range(ROUNDS_MAX):
            end, settled = hosted.data.visibility.bound(isolation).offset, hosted.settled
            if terms.config.is_sticky:  # in each round: a read may take longer than a claim lasts
                claim = ClaimCommand(group_id, request.owner or request.member_id, request.lock_ms)
                claimed = await hosted.ask(claim)
                if not claimed.is_owner:
                    return Received(pause=Pause(isolation, end, settled, claimed.wait_ms))
            command = PeekCommand(group_id, min(end, request.end), request.records_max)
            peeked = await hosted.ask(command)
            pause = Pause(isolation, end, settled, peeked.wait_ms)
            if peeked.again_from >= 0 and not (has_read_again and peeked.ranges):
                # Once, however many other records there are: these keys must not be left out.
                has_read_again = True
                if await self._learn(hosted, group_id, peeked.again_from, isolation):
                    continue
            if not peeked.ranges or peeked.reads_ahead:
                if peeked.rows_from >= 0 and await self._learn(
                    hosted, group_id, peeked.rows_from, isolation
                ):
                    continue
                if not peeked.ranges:
                    return Received(pause=pause)
            read_ = await self._read(hosted, sorted(peeked.ranges), request, isolation)
            if read_.skipped:
                await hosted.ask(SkipCommand(group_id, read_.skipped))
            elif not read_.within:
                return Received(pause=pause)
            reply = await self._acquire(hosted, request, read_.within)
            if reply.acquired:
                self.figures.note_acquired(group_id, topic.name, reply.acquired)
                return Received(reply.acquired, read_.holding(reply.acquired))
        return Received(pause=pause._replace(wait_ms=0))

    @staticmethod
    async def _acquire(
        hosted: Hosted, request: ReceiveRequest, within: Sequence[tuple[int, int]]
    ) -> AcquireReply:
        last = request.end - 1
        command = AcquireCommand(
            request.group_id,
            request.member_id,
            [(low, min(high, last)) for low, high in within if low <= last],
            request.records_max,
            request.is_strict,
            request.lock_ms,
            request.owner or request.member_id,
        )
        return await hosted.ask(command)

    async def watched(self, topic: Topic, number: int) -> Hosted:
        """The partition, for callers that wait. Raises what storage and ownership raise."""
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

        Raises NotOwner, StorageUnavailable.
        """
        hosted = await self._host.open(topic, number)
        command = SettleCommand(group_id, member_id, settlements, is_atomic)
        reply = await hosted.ask(command)
        self.figures.note_settled(group_id, topic.name, settlements, reply.errors)
        hosted.wake()
        return reply.errors

    async def begin(self, topic: Topic, number: int, group_id: str) -> None:
        """Register the group with the partition, so that new records from now on are its backlog.

        Raises NotOwner, StorageUnavailable, CoordinatorLoading, MetadataUnavailable.
        """
        hosted = await self._host.open(topic, number)
        await self._open_group(hosted, group_id, topic, number)

    async def release(self, topic: Topic, number: int, group_id: str, member_id: str) -> None:
        """A member's session has ended."""
        hosted = await self._host.open(topic, number)
        await hosted.ask(ReleaseMemberCommand(group_id, member_id))
        hosted.wake()

    async def describe(
        self, topic: Topic, number: int, group_ids: Sequence[str] | None = None
    ) -> Sequence[ShareDescription]:
        """The groups' positions in the partition, without those that have not begun there.

        Raises TopicUnknown, NotOwner, StorageUnavailable, CoordinatorLoading.
        """
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return []
        return (await hosted.ask(DescribeCommand(group_ids))).groups

    def describe_loaded(self, topic: Topic, number: int) -> Sequence[ShareDescription]:
        """As `describe`, of what is in memory."""
        hosted = self._host.get(topic, number)
        machine = None if hosted is None else hosted.shard.machine
        if not isinstance(machine, ShareMachine):
            return []
        return machine.describe(DescribeCommand()).groups

    async def states(
        self, topic: Topic, number: int, offsets: Sequence[int]
    ) -> list[list[DeliveryState]]:
        """The states of the records at `offsets` in each group that has begun on the partition.

        Raises TopicUnknown, NotOwner, StorageUnavailable, CoordinatorLoading.
        """
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return [[] for _ in offsets]
        return (await hosted.ask(StatesCommand(offsets))).states

    async def ask_of_keys(self, topic: Topic, number: int, command: Command[Answer]) -> Answer:
        """The reply to a command on parked keys. Raises RecordStateInvalid, GroupUnknown, NotOwner,
        StorageUnavailable."""
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            raise GroupUnknown(f"no share group has begun on {topic.name}-{number}")
        reply = await hosted.ask(command)
        hosted.wake()
        return reply

    def check_parks(self, group_id: str) -> None:
        """Raise RecordStateInvalid if the group's settings do not support parked keys."""
        refusal = self._terms(group_id).config.parking_refusal()
        if refusal is not None:
            raise refusal

    async def journal(self, topic: Topic, number: int) -> PartitionLog | None:
        """The journal of the partition's share groups; None if there never was one.

        Raises TopicUnknown, NotOwner, StorageUnavailable.
        """
        hosted = await self._hosted_or_none(topic, number)
        return None if hosted is None else hosted.journal

    async def move_start(self, topic: Topic, number: int, group_id: str, offset: int) -> None:
        """Reset the group to `offset`; in-flight state is dropped."""
        hosted = await self._host.open(topic, number)
        await self._open_group(hosted, group_id, topic, number)
        await hosted.ask(MoveStartCommand(group_id, offset))
        hosted.wake()

    async def remove_group(self, topic: Topic, number: int, group_id: str) -> None:
        """Delete the group on the partition."""
        hosted = await self._hosted_or_none(topic, number)
        if hosted is None:
            return
        with suppress(GroupUnknown):
            await hosted.ask(RemoveGroupCommand(group_id))
        hosted.wake()

    def resign(self, topic: Topic, number: int) -> None:
        """This broker no longer serves the partition."""
        self._host.resign(topic, number)

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic and its journals were deleted."""
        self._host.forget_topic(topic_id)

    def close(self) -> None:
        """Refuse waiting requests and stop the timers."""
        self._held_batches.drop()
        self._host.close()

    # --- the machine of a partition ----------------------------------------------------------

    async def _hosted_or_none(self, topic: Topic, number: int) -> Hosted | None:
        """None if no share group has ever begun on the partition."""
        is_new = self._host.get(topic, number) is None
        if is_new and self._ownership.is_mine(topic, number):
            return await self._host.open_or_none(topic, number)
        return await self._host.open(topic, number)

    def _dead_letter_topic(self, group_id: str) -> str:
        return self._terms(group_id).dead_letter_topic

    def _make(self, topic: Topic, number: int, journal: PartitionLog) -> Hosted:
        environment = self._environment

        def perform(
            effect: DeadLetter | LocksExpired, report: Callable[[ShareCommand], None]
        ) -> None:
            group_id = effect.group_id
            target = partial(self._dead_letter_topic, group_id)
            if isinstance(effect, LocksExpired):
                self.figures.of(group_id, topic.name).timed_out += effect.records
                return
            self.figures.note_given_up(topic.name, number, effect)
            if effect.has_copy:
                self._dead_letters.begin(LetterOrigin(topic, number, target), effect, report)

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

    async def _open_group(self, hosted: Hosted, group_id: str, topic: Topic, number: int) -> None:
        partitions_then = await self._begin(group_id, topic.id, len(topic.partitions))
        terms = self._terms(group_id)
        machine, log_config, config = hosted.shard.machine, hosted.data.config, terms.config
        if log_config.has_attributes or log_config.ttl_ms >= 0:
            has_attributes, ttl_ms = log_config.has_attributes, log_config.ttl_ms
            config = replace(config, has_attributes=has_attributes, ttl_ms=ttl_ms)
        if isinstance(machine, ShareMachine):
            group = machine.groups.get(group_id)
            if group is not None and group.config == config:
                if group.window.start < hosted.data.log_start_offset:
                    start = LogStartCommand(hosted.data.log_start_offset)
                    await hosted.ask(start)
                return
        if terms.dead_letter_topic == topic.name:
            raise own_dead_letter_topic(group_id, topic.name)
        # Nobody could have consumed a partition that was added later: none of it may be missed.
        is_added = partitions_then is not None and number >= partitions_then
        reset = "earliest" if is_added else terms.offset_reset
        start_offset = await self._first_offset(hosted.data, reset)
        await hosted.ask(OpenShareGroupCommand(group_id, start_offset, config))

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

    async def _learn(self, hosted: Hosted, group_id: str, rows_from: int, isolation: int) -> bool:
        """Pass the keys of the records from `rows_from` on to the machine; whether there are
        any."""
        start, fetched = await hosted.data.reader.fetch_from(rows_from, ROWS_BYTES, isolation)
        found = BatchesRead()
        rows_end = found.add(bytes(fetched.data), start, OFFSET_MAX, fetched.aborted or ())
        if rows_end <= rows_from:
            return False
        machine = hosted.shard.machine
        group = machine.groups.get(group_id) if isinstance(machine, ShareMachine) else None
        if group is None:
            return False
        reader = row_reader(group.config)
        rows = [row for data in found.batches for row in rows_of(data, start, reader)]
        command = LearnCommand(group_id, rows_from, rows, rows_end)
        await hosted.ask(command)
        return True

    async def _read(
        self,
        hosted: Hosted,
        ranges: Sequence[tuple[int, int]],
        request: ReceiveRequest,
        isolation: int,
    ) -> BatchesRead:
        """Whole batches for the first of `ranges`, up to the requested bytes."""
        found = BatchesRead()
        reached = 0
        for first, last in ranges:
            offset = max(first, reached, hosted.data.log_start_offset)
            while offset <= last and (request.bytes_max > found.size or not found.batches):
                held = self._held_batches.find(hosted, offset)
                if held is not None:
                    found.take(held, held.first_offset, held.last_offset)
                    reached = offset = held.last_offset + 1
                    continue
                size = min(request.bytes_max - found.size, hosted.size_of(last - offset + 1))
                offset, fetched = await hosted.data.reader.fetch_from(offset, size, isolation)
                if offset > last:
                    break  # deleted during the read
                data, aborted = bytes(fetched.data), fetched.aborted or ()
                reached = found.add(data, offset, last, aborted)
                if reached <= offset:  # nothing up to `last`
                    break
                offset = reached
        hosted.note_sizes(found)
        if found.batches and ranges and found.within[-1][1] > ranges[-1][1]:  # more of it is left
            found.batches[-1] = self._held_batches.keep(hosted, found.batches[-1])
        return found
