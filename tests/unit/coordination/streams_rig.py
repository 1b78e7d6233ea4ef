"""Drives a GroupMachine by heartbeats of Kafka Streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.unit.coordination.group_rig import GroupHarness

from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    StreamsHeartbeatCommand,
)
from headrace.coordination.streams.tasks import StreamTasks
from headrace.coordination.streams.topology import InternalTopic, Subtopology, Topology

if TYPE_CHECKING:
    from tests.unit.coordination.consumer_rig import Topics

    from headrace.coordination.groups.config import GroupConfig

GROUP = "g"
SESSION_MS = 10_000
NOTHING = StreamTasks({}, {}, {})
STATELESS = Topology(0, (Subtopology("0", ("t",)),))
WITH_STATE = Topology(0, (Subtopology("0", ("t",), changelog_topics=(InternalTopic("c"),)),))


def active(**tasks: tuple[int, ...]) -> StreamTasks:
    """Active tasks; `s0` stands for subtopology 0."""
    return StreamTasks({name[1:]: numbers for name, numbers in tasks.items()}, {}, {})


class StreamsGroupHarness(GroupHarness):
    """A machine whose clients are threads of a Kafka Streams application."""

    def __init__(self, topics: Topics, config: GroupConfig | None = None) -> None:
        super().__init__(config)
        self.topics = topics
        self.surroundings: dict[str, Any] = {}

    def join(self, member_id: str, topology: Topology = STATELESS, **changes: Any) -> Any:
        """The reply to a member that joins group `g`, in a process of its own."""
        fields: dict[str, Any] = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 30_000,
            "topology": topology,
            "owned": NOTHING,
            "process_id": f"process of {member_id}",
        }
        return self._send(member_id, fields | changes)

    def beat(self, member_id: str, epoch: int, **changes: Any) -> Any:
        """The reply to a member that stays or leaves."""
        return self._send(member_id, {"member_epoch": epoch} | changes)

    def _send(self, member_id: str, fields: dict[str, Any]) -> Any:
        command: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 2_000,
            "topics": self.topics,
        }
        return self.send(StreamsHeartbeatCommand(**(command | self.surroundings | fields)))

    def streams(self) -> Any:
        """The group as it stands."""
        return self.machine.groups[GROUP].streams

    def describe(self) -> Any:
        """The group as an administrator sees it."""
        (group,) = self.send(DescribeStreamsGroupsCommand([GROUP])).groups
        return group
