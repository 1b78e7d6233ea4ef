"""Committed offsets: commit, fetch, delete, expiry.

Invariants: each function decides one command and changes nothing. Offsets change through durable
records only; a commit has a result per partition. Offsets belong to a topic id, since another topic
may get the same name; the host supplies the existing ids. Retention counts from the moment the
group became empty; for a consumer that was never in a group, from its last commit (KIP-211).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headrace.coordination.groups.classic import check_member, seen
from headrace.coordination.groups.commands import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    CommitCommand,
    CommitReply,
    DeleteOffsetsCommand,
    DeleteOffsetsReply,
    FetchedOffset,
    FetchOffsetsCommand,
    FetchOffsetsReply,
    PartitionResult,
    TransactionalCommitCommand,
)
from headrace.coordination.groups.consumer_offsets import (
    check_fetch,
    check_member_epoch,
    partition_check,
    subscribed_by_consumers,
)
from headrace.coordination.groups.group import (
    COMPLETING,
    EMPTY,
    Group,
    GroupDecision,
    GroupForgotten,
    GroupRecord,
    refused,
)
from headrace.coordination.groups.open_commits import OffsetPending
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    OffsetRemoved,
    OffsetStored,
    read_subscribed_topics,
)
from headrace.coordination.kit.host_commands import DoneReply
from headrace.coordination.kit.machine import Decision, InTransaction, TransactionEnded
from headrace.coordination.kit.stored_bytes import STRING_SIZE_MAX
from headrace.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    GroupUnknown,
    HeadraceError,
    IllegalGeneration,
    MemberEpochStale,
    MemberUnknown,
    OffsetCommitUnstable,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    TopicUnknown,
)
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.host_commands import ForgetTopicsCommand, WriteMarkerCommand

CONSUMER_PROTOCOL_TYPE = "consumer"
TOPIC_NAME_LENGTH_MAX = 249


def decide_commit(
    group: Group | None, command: CommitCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Commit: membership is checked once for all, the rest per partition."""
    error = _check_commit(group, command)
    if error is not None:
        return refused(command, error)
    stored, results = _checked_offsets(group, command, now_ms, config)
    records: list[GroupRecord] = [*stored]
    if group is not None:
        member = group.members.get(command.member_id)
        if member is not None:
            records.append(seen(member, now_ms))
    return Decision(records, CommitReply(results))


def decide_transactional_commit(
    group: Group | None, command: TransactionalCommitCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """TxnOffsetCommit: as a commit, in a batch of the producer's transaction."""
    is_checked = (
        command.generation >= 0 or command.member_id or command.group_instance_id is not None
    )
    error = _check_commit(group, command) if is_checked else None
    if error is not None:
        return refused(command, error)
    stored, results = _checked_offsets(group, command, now_ms, config)
    transaction = InTransaction(command.producer_id, command.producer_epoch)
    records: list[GroupRecord] = [OffsetPending(transaction, offset) for offset in stored]
    if group is not None:
        member = group.members.get(command.member_id)
        if member is not None:
            records.append(seen(member, now_ms))
    return Decision(records, CommitReply(results), batch=transaction)


def decide_marker(command: WriteMarkerCommand) -> GroupDecision:
    """A transaction ends: its commits take effect or are dropped."""
    marker = command.marker
    ended = TransactionEnded(marker.producer_id, marker.is_commit)
    return Decision([ended], DoneReply(), batch=marker)


def _checked_offsets(
    group: Group | None,
    command: CommitCommand | TransactionalCommitCommand,
    now_ms: int,
    config: GroupConfig,
) -> tuple[list[OffsetStored], list[PartitionResult]]:
    """The valid part of a commit, and the result for each partition."""
    stored: list[OffsetStored] = []
    results: list[PartitionResult] = []
    group_id = command.group_id
    size_max = config.offset_metadata_size_max
    ids = command.topic_ids
    check = partition_check(group, command)
    for topic, partition, offset, leader_epoch, metadata, meant_id in command.offsets:
        text = metadata or ""
        error: HeadraceError | None = None
        if len(text) > size_max or len(text) * 4 > STRING_SIZE_MAX < len(text.encode()):
            error = OffsetMetadataTooLarge(limit=size_max, actual=len(text))
        elif not 0 < len(name_in(topic)) <= TOPIC_NAME_LENGTH_MAX:
            error = TopicUnknown("not a legal topic name", topic=topic)
        elif ids is not None and (
            (topic_id := ids.get(topic)) is None or (meant_id or topic_id) != topic_id
        ):
            # Deleted between the arrival of the request and now.
            error = TopicUnknown("the topic was deleted: refresh the metadata", topic=topic)
        elif check is not None and not check(
            topic, meant_id if ids is None else ids[topic], partition
        ):
            error = MemberEpochStale(
                "the partition was not assigned to the member at this epoch: heartbeat first",
                topic=topic,
                partition=partition,
            )
        else:
            topic_id = meant_id if ids is None else ids[topic]
            stored.append(
                OffsetStored(
                    group_id, topic, partition, offset, leader_epoch, text, now_ms, topic_id
                )
            )
        results.append(PartitionResult(topic, partition, error))
    return stored, results


def _check_commit(
    group: Group | None, command: CommitCommand | TransactionalCommitCommand
) -> HeadraceError | None:
    generation = command.generation
    if group is None:
        # A group that the consumer manages itself is unknown here: a simple consumer may always
        # commit.
        return None if generation < 0 else IllegalGeneration(actual=generation)
    if group.managed is not None:
        return check_member_epoch(
            group.managed, command.member_id, generation, command.group_instance_id
        )
    if generation < 0 and group.state == EMPTY:
        return None
    if generation < 0 and not command.member_id and command.group_instance_id is None:
        return MemberUnknown("the group has members: only they may commit")
    error = check_member(group, command.member_id, command.group_instance_id)
    if error is not None:
        return error
    if generation != group.generation:
        return IllegalGeneration(limit=group.generation, actual=generation)
    if group.state == COMPLETING:
        return RebalanceInProgress("the generation has no assignment yet: sync first")
    return None


def decide_fetch(group: Group | None, command: FetchOffsetsCommand) -> GroupDecision:
    """Fetch: unknown groups and partitions have offset -1, which is not an error."""
    if command.member_id is not None and command.member_epoch >= 0:
        error = check_fetch(group, command.member_id, command.member_epoch)
        if error is not None:
            return refused(command, error)
    stored = group.offsets if group is not None else {}
    partitions: Iterable[tuple[str, int]] = (
        sorted(stored) if command.partitions is None else command.partitions
    )
    offsets: list[FetchedOffset] = []
    open_commits = group.open_commits if group is not None and command.require_stable else None
    for topic, partition in partitions:
        found = stored.get((topic, partition))
        if open_commits and open_commits.is_open((topic, partition)):
            unstable = OffsetCommitUnstable(
                "an open transaction has committed an offset of this partition: try again",
                topic=topic,
                partition=partition,
            )
            offsets.append(
                FetchedOffset(topic, partition, NO_OFFSET, NO_LEADER_EPOCH, "", unstable)
            )
        elif found is None:
            offsets.append(FetchedOffset(topic, partition, NO_OFFSET, NO_LEADER_EPOCH, ""))
        else:
            offsets.append(
                FetchedOffset(
                    topic,
                    partition,
                    found.offset,
                    found.leader_epoch,
                    found.metadata,
                    topic_id=found.topic_id,
                )
            )
    return Decision([], FetchOffsetsReply(None, offsets))


def decide_delete(group: Group | None, command: DeleteOffsetsCommand) -> GroupDecision:
    """Delete offsets: of any topic in an empty group, else of topics without a subscriber."""
    if group is None:
        return refused(command, GroupUnknown(group=command.group_id))
    topics: dict[str, None] | None = {}
    if group.consumer is not None:
        topics = subscribed_by_consumers(group.consumer, command.topics)
    elif group.streams is not None:
        topology = group.streams.topology if group.streams.members else None
        topics = {} if topology is None else topology.topics()
    elif group.state != EMPTY:
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return refused(
                command, GroupNotEmpty("the group has members: stop its consumers first")
            )
        topics = subscribed_topics(group)
    records: list[GroupRecord] = []
    results: list[PartitionResult] = []
    for topic, partition in command.partitions:
        if topics is None or topic in topics:
            error = GroupSubscribed("the group subscribes to the topic", topic=topic)
            results.append(PartitionResult(topic, partition, error))
            continue
        if (topic, partition) in group.offsets or group.open_commits.is_open((topic, partition)):
            records.append(OffsetRemoved(group.group_id, topic, partition))
        results.append(PartitionResult(topic, partition, None))
    return Decision(records, DeleteOffsetsReply(None, results))


def subscribed_topics(group: Group) -> dict[str, None] | None:
    """Every topic that a member subscribes to; None if a member's metadata is malformed."""
    topics: dict[str, None] = {}
    for member in group.members.values():
        for _, metadata in member.protocols:
            read = read_subscribed_topics(metadata)
            if read is None:
                return None
            topics.update(dict.fromkeys(read))
    return topics


def decide_forget_topics(groups: Iterable[Group], command: ForgetTopicsCommand) -> GroupDecision:
    """Drop a deleted topic's offsets, so that they do not apply to a new topic of that name.

    Offsets stored without an id are dropped by name; offsets stored for another id stay.
    """
    deleted = set(command.topics)
    names = {name for name, _ in deleted}
    records: list[GroupRecord] = [
        OffsetRemoved(group.group_id, topic, partition)
        for group in groups
        for (topic, partition), stored in [
            *group.offsets.items(),
            *(((s.topic, s.partition), s) for s in group.open_commits.in_force()),
        ]
        if topic in names and (stored.topic_id is None or (topic, stored.topic_id) in deleted)
    ]
    return Decision(records, DoneReply())


def find_expired(
    groups: Mapping[str, Group], first: int, now_ms: int, config: GroupConfig
) -> tuple[list[GroupRecord], int | None]:
    """Tombstones for expired offsets of empty groups, and then for the groups.

    Begins at the group at position `first`; returns where to go on, None after the last one. Groups
    that are removed meanwhile move others to the front, which then wait for the next round. At most
    `expired_offsets_per_tick_max` records after examining at most `offsets_examined_per_tick_max`
    offsets, both rounded up to whole groups.
    """
    records: list[GroupRecord] = []
    examined, removed = 0, 0
    for position, group in enumerate(islice(groups.values(), first, None), first):
        if len(records) >= config.expired_offsets_per_tick_max or (
            examined >= config.offsets_examined_per_tick_max
        ):
            return records, position - removed
        examined += 1
        if group.has_members() or group.open_commits:
            continue  # an offset that a transaction is about to replace must outlive it
        examined += len(group.offsets)
        expired = [
            OffsetRemoved(group.group_id, topic, partition)
            for (topic, partition), stored in group.offsets.items()
            if now_ms - _kept_since_ms(group, stored) >= config.offsets_retention_ms
        ]
        records += expired
        if len(expired) == len(group.offsets):
            records += removals(group)
            removed += 1
    return records, None


def _kept_since_ms(group: Group, stored: OffsetStored) -> int:
    if group.managed is not None:
        return max(group.managed.emptied_ms, stored.timestamp_ms)
    if group.protocol_type and group.timestamp_ms >= 0:
        return max(group.timestamp_ms, stored.timestamp_ms)
    return stored.timestamp_ms


def removals(group: Group) -> list[GroupRecord]:
    """The records that remove the group itself."""
    if group.managed is not None:
        return [*group.managed.removals()]
    if group.record is not None:
        return [GroupRemoved(group.group_id)]
    return [GroupForgotten(group.group_id)]
