"""What the heartbeats of all kinds of member groups have in common.

Invariants: as in `groups/commands.py`. Fields that the host sets come by keyword and have defaults;
a face does not set them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.coordination.kit.topic_view import NoTopics, TopicView

if TYPE_CHECKING:
    from headrace.errors import HeadraceError

UNCHANGED_MS = -1


@dataclass(slots=True)
class MemberHeartbeat:
    """Join (epoch 0), stay, leave (-1), leave temporarily (-2).

    None (and -1 for the timeout) means unchanged since the last heartbeat.
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack: str | None = None
    rebalance_timeout_ms: int = UNCHANGED_MS
    fresh_id: str = field(default="", kw_only=True)
    """The id for a member that has none."""
    session_timeout_ms: int = field(default=45_000, kw_only=True)
    heartbeat_interval_ms: int = field(default=5_000, kw_only=True)
    topics: TopicView = field(default_factory=NoTopics, kw_only=True)


@dataclass(slots=True)
class MemberHeartbeatReply:
    """Answers a MemberHeartbeat."""

    error: HeadraceError | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
