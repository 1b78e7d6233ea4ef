"""Drives a GroupMachine by heartbeats of the new consumer protocol."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.unit.coordination.group_rig import GroupHarness, subscription

from headrace.coordination.groups.commands import LeavingMember
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.groups.consumer_protocol import write_assignment
from headrace.coordination.kit.topic_view import TopicShape

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

GROUP = "g"
SESSION_MS = 10_000


class Topics:
    """A TopicView that a test writes. Ids count from 1."""

    def __init__(self, **counts: int) -> None:
        self.version = 1
        self.shapes: dict[str, TopicShape] = {}
        self.last_id = 0
        for name, count in counts.items():
            self.set(name, count)

    def set(self, name: str, count: int) -> None:
        """Create a topic, or give it other partitions."""
        known = self.shapes.get(name)
        if known is None:
            self.last_id += 1
        topic_id = known.id if known else UUID(int=self.last_id)
        self.shapes[name] = TopicShape(topic_id, count)
        self.version += 1

    def drop(self, name: str) -> None:
        """Delete a topic."""
        del self.shapes[name]
        self.version += 1

    def shape(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((n for n, shape in self.shapes.items() if shape.id == topic_id), None)

    def matching(self, pattern: str) -> list[str]:
        return [name for name in self.shapes if re.fullmatch(pattern, name)]


class ConsumerGroupHarness(GroupHarness):
    """A machine whose clients speak the new protocol."""

    def __init__(self, topics: Topics, config: GroupConfig | None = None) -> None:
        super().__init__(config)
        self.topics = topics

    def join(self, member_id: str = "", **changes: Any) -> Any:
        """The reply to a member that joins group `g` for topic `t`."""
        fields: dict[str, Any] = {
            "member_epoch": 0,
            "rebalance_timeout_ms": 30_000,
            "topic_names": ["t"],
            "owned": {},
        }
        return self._send(member_id, fields | changes)

    def beat(self, member_id: str, epoch: int, **changes: Any) -> Any:
        """The reply to a member that stays or leaves."""
        return self._send(member_id, {"member_epoch": epoch} | changes)

    def _send(self, member_id: str, fields: dict[str, Any]) -> Any:
        owned = fields.get("owned")
        if owned is not None:
            fields["owned"] = {t: frozenset(numbers) for t, numbers in owned.items()}
        named = {"member_id": member_id} | fields
        return self.send(
            ConsumerHeartbeatCommand(
                GROUP,
                client_id="c",
                client_host="/127.0.0.1",
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=2_000,
                topics=self.topics,
                **named,
            )
        )

    def consumer(self) -> Any:
        """The group of the new protocol as it stands."""
        return self.machine.groups[GROUP].consumer

    def state(self) -> str:
        """The word for what it does."""
        return self.consumer().state()

    def join_classic(
        self, group_id: str, given: dict[str, tuple[int, ...]] | None = None, **changes: Any
    ) -> str:
        """Bring a classic member to a stable generation with these partitions; its id."""
        ticket = GroupHarness.join(self, group_id=group_id, topics=self.topics, **changes)
        joined = self.replies[ticket]
        assert joined.error is None, joined.error
        shares = {joined.member_id: write_assignment((given or {}).items(), 1)}
        self.sync(joined.member_id, joined.generation, shares, group_id=group_id)
        return joined.member_id

    def rejoin_classic(self, member_id: str, owned: dict[str, tuple[int, ...]]) -> Any:
        """The reply to a classic member that joins again with these partitions."""
        metadata = subscription("t")[:-4] + write_assignment(owned.items(), 1)[2:-4]
        protocols = [("range", metadata)]
        joined = self.replies[
            GroupHarness.join(self, member_id, protocols=protocols, topics=self.topics)
        ]
        assert joined.error is None, joined.error
        return joined

    def leave_classic(self, group_id: str, member_id: str) -> None:
        """Have a classic member leave."""
        assert group_id == GROUP
        assert self.leave(LeavingMember(member_id)) == [None]
