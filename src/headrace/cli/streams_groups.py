"""Administration of streams groups: their members and these members' partitions.

Invariants: queries a group's coordinator with Kafka's protocol, because the client library has no
calls for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.cli.broker_calls import ask_broker, group_coordinator
from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.positions import Partition

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

DESCRIBE_STREAMS_GROUP: Final = 89, 0  # do not change: protocol. (key, version)
NONE, GROUP_ID_NOT_FOUND = 0, 69


def streams_group(session: CliSession, group: str) -> Any:
    """Return the group with its members, from StreamsGroupDescribe. Raises CommandFailed."""
    address = group_coordinator(session, group)
    body = {"group_ids": (group,), "include_authorized_operations": False}
    (answer,) = ask_broker(session, address, DESCRIBE_STREAMS_GROUP, body).groups
    code = int(answer.error_code)
    if code == GROUP_ID_NOT_FOUND:
        raise session.no_group(group)
    if code != NONE:
        raise CommandFailed(
            f"members of group {group!r}: {answer.error_message or 'the broker refuses'} (code"
            f" {code})",
            "The coordinator may still be loading: try again",
            FAILED,
        )
    return answer


def read_by(session: CliSession, described: Any) -> dict[str, list[Partition]]:
    """The partitions read by each member's active tasks, by member id."""
    inputs: dict[str, list[str]] = {}
    for one in described.topology.subtopologies or () if described.topology else ():
        internal = [topic.name for topic in one.repartition_source_topics]
        inputs[one.subtopology_id] = [*one.source_topics, *internal]
    topics = session.cluster_metadata().topics
    counts = {name: len(topics[name].partitions) for name in topics}
    return {
        member.member_id: sorted(
            Partition(topic, number)
            for tasks in member.assignment.active_tasks
            for topic in inputs.get(tasks.subtopology_id, ())
            for number in tasks.partitions
            if number < counts.get(topic, 0)
        )
        for member in described.members
    }
