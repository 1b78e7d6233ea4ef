"""Administration of share groups: members, positions, resets.

Invariants: queries a group's coordinator with Kafka's protocol, because the client library has no
calls for it. The coordinator rejects changes of a group with members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.cli.broker_calls import ask_broker, group_coordinator
from headrace.cli.failures import CONFLICT, FAILED, CommandFailed
from headrace.cli.positions import Partition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.session import CliSession

# do not change: protocol. (key, version)
DESCRIBE_SHARE_GROUP = 77, 1
DESCRIBE_SHARE_GROUP_OFFSETS, ALTER_SHARE_GROUP_OFFSETS = (90, 1), (91, 0)
NONE, NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND = 0, 68, 69


class ShareStart(NamedTuple):
    """A share group's position on one partition; `lag` is -1 if it is unknown."""

    offset: int
    lag: int


def without_dead_letters(limit: int) -> str:
    """What it means that a share group has no dead letter topic. `limit`: deliveries of a
    message."""
    return (
        f"The group has no dead letter topic: a message is dropped after {limit} deliveries,"
        " without a copy"
    )


def share_group(session: CliSession, group: str) -> Any:
    """Return the group with its members, from ShareGroupDescribe. Raises CommandFailed."""
    address = group_coordinator(session, group)
    body = {"group_ids": (group,), "include_authorized_operations": False}
    (answer,) = ask_broker(session, address, DESCRIBE_SHARE_GROUP, body).groups
    if int(answer.error_code) == GROUP_ID_NOT_FOUND:
        raise session.no_group(group)
    _check(answer, f"members of group {group!r}")
    return answer


def share_starts(session: CliSession, group: str) -> dict[Partition, ShareStart]:
    """The group's position on each partition that it has started."""
    address = group_coordinator(session, group)
    body = {"groups": [{"group_id": group, "topics": None}]}
    (answer,) = ask_broker(session, address, DESCRIBE_SHARE_GROUP_OFFSETS, body).groups
    if int(answer.error_code) == GROUP_ID_NOT_FOUND:
        raise session.no_group(group)
    _check(answer, f"progress of group {group!r}")
    found: dict[Partition, ShareStart] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            partition = Partition(topic.topic_name, part.partition_index)
            _check(part, f"progress of group {group!r} on {partition.topic}-{partition.number}")
            found[partition] = ShareStart(part.start_offset, part.lag)
    return dict(sorted(found.items()))


def move_share_group(session: CliSession, group: str, starts: Mapping[Partition, int]) -> None:
    """Set the group's start offsets. Raises CommandFailed, also if it has members."""
    topics: dict[str, list[dict[str, int]]] = {}
    for partition, offset in starts.items():
        part = {"partition_index": partition.number, "start_offset": offset}
        topics.setdefault(partition.topic, []).append(part)
    body = {
        "group_id": group,
        "topics": [{"topic_name": name, "partitions": parts} for name, parts in topics.items()],
    }
    address = group_coordinator(session, group)
    answer = ask_broker(session, address, ALTER_SHARE_GROUP_OFFSETS, body)
    if int(answer.error_code) == NON_EMPTY_GROUP:
        raise CommandFailed(
            f"share group {group!r} has members; nothing was changed",
            "Stop its consumers, then try again",
            CONFLICT,
        )
    _check(answer, f"move group {group!r}")
    for topic in answer.responses:
        for part in topic.partitions:
            _check(part, f"move group {group!r} on {topic.topic_name}-{part.partition_index}")


def _check(answer: Any, doing: str) -> None:
    code = int(answer.error_code)
    if code != NONE:
        raise CommandFailed(
            f"{doing}: {answer.error_message or 'the broker refused it'} (code {code})",
            "See its state: headrace backlog list",
            FAILED,
        )
