"""Transcripts of the group machine: what is asked, stored, answered, and when it will wake.

Rewrite them with HEADRACE_GOLDEN=write after a change, and read the difference in review.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.coordination.group_rig import START_MS, GroupHarness

from headrace.coordination.groups.commands import LeavingMember
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.state_records import GroupStored, OffsetStored, decode

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parent / "transcripts"


class Teller(GroupHarness):
    """A rig that writes down what happens."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.lines: list[str] = []
        super().__init__(config)

    def send(self, command: Any) -> Any:
        seen, told = len(self.log), len(self.replies)
        reply = super().send(command)
        name = type(command).__name__.removesuffix("Command")
        member = getattr(command, "member_id", "")
        ticket = getattr(command, "ticket", 0)
        mark = f" #{ticket}" if ticket else ""
        generation = f" generation {command.generation}" if hasattr(command, "generation") else ""
        self.lines.append(f"{self.now_ms - START_MS:>7} {name}{mark} {member}{generation}".rstrip())
        for key, value in self.log[seen:]:
            self.lines.append(f"          store  {self._record(decode(key, value))}")
        for number, answer in list(self.replies.items())[told:]:
            self.lines.append(f"          answer #{number} {self._reply(answer)}")
        if reply is not None and not ticket and name not in ("Tick", "Loaded"):
            self.lines.append(f"          answer {self._reply(reply)}")
        group = self.machine.groups.get("g")
        wake_ms = self.machine.next_deadline_ms()
        if group is not None:
            wake = "never" if wake_ms is None else str(wake_ms - START_MS)
            members = " ".join(
                m.member_id + ("*" if m.member_id == group.leader else "")
                for m in group.members.values()
            )
            self.lines.append(f"          {group.state} {group.generation} [{members}] wake {wake}")
        return reply

    def _record(self, record: Any) -> str:
        if isinstance(record, GroupStored):
            members = " ".join(f"{m.member_id}={m.assignment.decode()}" for m in record.members)
            return f"group generation {record.generation} leader {record.leader} [{members}]"
        if isinstance(record, OffsetStored):
            return f"offset {record.topic}-{record.partition} = {record.offset}"
        return f"{type(record).__name__} {record.group_id}"

    def _reply(self, reply: Any) -> str:
        parts = [type(e).__name__] if (e := getattr(reply, "error", None)) is not None else ["ok"]
        for field in ("member_id", "generation", "leader", "skip_assignment", "assignment"):
            value = getattr(reply, field, None)
            if value not in (None, "", -1, False, b""):
                parts.append(f"{field}={value.decode() if isinstance(value, bytes) else value}")
        for field in ("members", "results"):
            for item in getattr(reply, field, []):
                error = getattr(item, "error", None)
                name = getattr(item, "member_id", None) or getattr(item, "topic", "")
                parts.append(f"{name}:{type(error).__name__ if error else 'ok'}")
        return " ".join(parts)


def two_members_gather_and_one_leaves(rig: Teller) -> None:
    rig.join(is_member_id_required=True)
    rig.join("c-1", is_member_id_required=True)
    rig.advance(50)
    rig.join()
    rig.advance(250)
    rig.sync("c-3", 1)
    rig.sync("c-1", 1, {"c-1": b"0-2", "c-3": b"3-5"})
    rig.commit(10, 1, "c-3")
    rig.leave(LeavingMember("c-1"))
    rig.heartbeat("c-3", 1)
    rig.join("c-3")
    rig.commit(11, 1, "c-3")
    rig.sync("c-3", 2, {"c-3": b"0-5"})
    rig.advance(10_000)


def a_static_leader_restarts(rig: Teller) -> None:
    rig.join(group_instance_id="i")
    rig.join()
    rig.advance(200)
    rig.sync("i-1", 1, {"i-1": b"a", "c-2": b"b"}, group_instance_id="i")
    rig.sync("c-2", 1)
    rig.join(group_instance_id="i", can_skip_assignment=True)
    rig.sync("i-3", 1, group_instance_id="i")
    rig.heartbeat("i-1", 1, "i")
    rig.join(group_instance_id="i")
    rig.leave(LeavingMember("", "i"))


def a_crash_between_join_and_sync(rig: Teller) -> None:
    rig.join()
    rig.advance(100)
    rig.sync("c-1", 1, {"c-1": b"all"})
    rig.join()
    rig.join("c-1")
    rig.lines.append("          --- crash ---")
    rig.crash()
    rig.sync("c-1", 2, {"c-1": b"stale", "c-2": b"stale"})
    rig.heartbeat("c-2", 2)
    rig.join("c-2")
    rig.join("c-1")
    rig.sync("c-2", 3, {"c-1": b"x", "c-2": b"y"})
    rig.sync("c-1", 3)


def late_members_are_left_behind(rig: Teller) -> None:
    for _ in range(3):
        rig.join(rebalance_timeout_ms=5_000)
    rig.advance(400)
    rig.sync("c-1", 1, {"c-1": b"1", "c-2": b"2", "c-3": b"3"})
    rig.sync("c-2", 1)
    rig.advance(5_000)
    rig.join("c-1", rebalance_timeout_ms=5_000)
    rig.advance(5_000)
    rig.advance(5_000)


@pytest.mark.parametrize(
    "story",
    [
        two_members_gather_and_one_leaves,
        a_static_leader_restarts,
        a_crash_between_join_and_sync,
        late_members_are_left_behind,
    ],
    ids=lambda story: story.__name__,
)
def test_transcript(story: Callable[[Teller], None]):
    rig = Teller(GroupConfig(initial_rebalance_delay_ms=100))
    story(rig)
    told = "\n".join(rig.lines) + "\n"
    path = FOLDER / f"{story.__name__}.txt"
    if os.environ.get("HEADRACE_GOLDEN") == "write":
        FOLDER.mkdir(exist_ok=True)
        path.write_text(told)
    assert told == path.read_text()
