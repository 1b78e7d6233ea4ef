"""The lag of groups, in messages and in seconds.

Invariants: reads only. Lag in seconds is the age of the first unread record; to determine it, that
record of each lagging partition is fetched, from all partitions concurrently. A consumer group's
position is its committed offset, a share group's is its first unfinished record.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.client import kafka
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.group_listing import SHARE
from headrace.cli.positions import Bounds, Partition, log_bounds
from headrace.cli.share_offsets import share_starts
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cli.session import CliSession

# the first unread records come in one fetch; a hanging broker must not block the command
FIRST_RECORD_TIMEOUT_S = 5.0


@dataclass(slots=True)
class PartitionLag:
    """One partition of a group. `committed` is None if there is no committed offset, `lag` if the
    partition's owner does not know it."""

    topic: str
    partition: int
    committed: int | None
    earliest: int
    latest: int
    lag: int | None
    lag_s: float | None
    member: str | None = None

    def document(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def describe_groups(session: CliSession, names: Sequence[str]) -> dict[str, Any]:
    """Describe the named groups. Raises CommandFailed (not found) if one does not exist."""
    futures = session.admin().describe_consumer_groups(
        list(names), request_timeout=session.timeout_s
    )
    found = {}
    for name in names:
        try:
            description = session.answer(
                futures[name], f"group {name!r}", Right("describe", "group", name)
            )
        except CommandFailed as failure:
            if failure.exit_code == NOT_FOUND:
                raise session.no_group(name) from None
            raise
        found[name] = description
    return found


def state_of(description: Any) -> str:
    """The state's name in Kafka's tools."""
    words = description.state.name.lower().split("_")
    return "".join(word.capitalize() for word in words)


def committed_offsets(session: CliSession, group: str) -> dict[Partition, int]:
    """The group's committed offset in each partition that has one."""
    request = kafka().ConsumerGroupTopicPartitions(group)
    future = session.admin().list_consumer_group_offsets(
        [request], request_timeout=session.timeout_s
    )[group]
    answer = session.answer(
        future, f"progress of group {group!r}", Right("describe", "group", group)
    )
    return {
        Partition(p.topic, p.partition): p.offset
        for p in answer.topic_partitions or []
        if p.offset >= 0
    }


def progress(session: CliSession, group: str, kind: str | None) -> dict[Partition, int]:
    """The positions of a group of this type."""
    if kind == SHARE:
        return {p: start.offset for p, start in share_starts(session, group).items()}
    return committed_offsets(session, group)


def members_by_partition(description: Any) -> dict[Partition, str]:
    """The member that owns each partition."""
    return {
        Partition(p.topic, p.partition): member.client_id or member.member_id
        for member in description.members
        for p in (member.assignment.topic_partitions if member.assignment else [])
    }


def group_lag(session: CliSession, group: str, members: dict[Partition, str]) -> list[PartitionLag]:
    """The lag of each partition with a committed offset or an owner, in order."""
    committed = committed_offsets(session, group)
    partitions = sorted({*committed, *members})
    bounds = log_bounds(session, partitions)
    waiting = {
        p: first_unread(committed.get(p), bounds[p])
        for p in partitions
        if first_unread(committed.get(p), bounds[p]) < bounds[p].latest
    }
    ages = ages_s(session, waiting)
    rows = []
    for p in partitions:
        unread = bounds[p].latest - first_unread(committed.get(p), bounds[p])
        rows.append(
            PartitionLag(
                topic=p.topic,
                partition=p.number,
                committed=committed.get(p),
                earliest=bounds[p].earliest,
                latest=bounds[p].latest,
                lag=max(unread, 0),
                lag_s=ages.get(p) if p in waiting else 0.0,
                member=members.get(p),
            )
        )
    return rows


def share_group_lag(session: CliSession, group: str) -> list[PartitionLag]:
    """The lag of each partition that the share group has started, in order."""
    starts = share_starts(session, group)
    bounds = log_bounds(session, [*starts])
    ages = ages_s(session, {p: start.offset for p, start in starts.items() if start.lag != 0})
    return [
        PartitionLag(
            topic=p.topic,
            partition=p.number,
            committed=start.offset,
            earliest=bounds[p].earliest,
            latest=bounds[p].latest,
            lag=start.lag if start.lag >= 0 else None,
            lag_s=ages.get(p) if start.lag else 0.0,
        )
        for p, start in starts.items()
    ]


def lag_of(session: CliSession, group: str, kind: str | None) -> list[PartitionLag]:
    """The lag of a group of this type, without its members."""
    return share_group_lag(session, group) if kind == SHARE else group_lag(session, group, {})


def first_unread(committed: int | None, bounds: Bounds) -> int:
    """The first unread offset that still exists."""
    return max(bounds.earliest, committed or 0)


def ages_s(session: CliSession, offsets: dict[Partition, int]) -> dict[Partition, float]:
    """The age of the record at each offset; partitions that do not respond in time are missing."""
    if not offsets:
        return {}
    consumer = session.consumer(
        {
            "group.id": "headrace-cli",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 1024,  # one batch is enough; the broker sends at least one
            "queued.min.messages": 1,
            "fetch.wait.max.ms": 10,
        }
    )
    ages: dict[Partition, float] = {}
    pending = set(offsets)
    deadline_ns = time.monotonic_ns() + int(FIRST_RECORD_TIMEOUT_S * 1e9)
    try:
        consumer.assign([kafka().TopicPartition(p.topic, p.number, o) for p, o in offsets.items()])
        while pending and time.monotonic_ns() < deadline_ns:
            for message in consumer.consume(1000, 0.05):
                partition = Partition(message.topic(), message.partition())
                if partition not in pending:
                    continue
                pending.discard(partition)
                if message.error() is None:
                    kind, timestamp_ms = message.timestamp()
                    age_ms = time.time_ns() // 1_000_000 - timestamp_ms
                    ages[partition] = max(0, age_ms) / 1000 if kind else 0.0
                elif message.error().name() == "_PARTITION_EOF":
                    ages[partition] = 0.0  # only markers or compacted holes are left
    finally:
        consumer.close()
    return ages
