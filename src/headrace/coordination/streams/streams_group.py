"""Streams groups (KIP-1071): a member group of tasks."""

from __future__ import annotations

from headrace.coordination.member_groups.group import MemberGroup
from headrace.coordination.member_groups.records import CurrentStored
from headrace.coordination.streams.records import STREAMS, StreamsMemberStored
from headrace.coordination.streams.tasks import HeldTasks, StreamTasks

StreamsGroup = MemberGroup[StreamsMemberStored, StreamTasks, HeldTasks]
StreamsCurrent = CurrentStored[HeldTasks]


def streams_group(group_id: str) -> StreamsGroup:
    """A group without members."""
    return MemberGroup(STREAMS, group_id)
