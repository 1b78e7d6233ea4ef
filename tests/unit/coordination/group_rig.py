"""Drives a GroupMachine without a host: a log in a list, a clock in a number, replies by ticket."""

from __future__ import annotations

import copy
from typing import Any

from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    HeartbeatCommand,
    JoinCommand,
    LeaveCommand,
    LeavingMember,
    OffsetToCommit,
    SyncCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.kit.host_commands import LoadedCommand, TickCommand

PARKED = None
START_MS = 1_000_000


def subscription(*topics: str, version: int = 1) -> bytes:
    """What a Java consumer puts into its metadata."""
    parts = [version.to_bytes(2, "big"), len(topics).to_bytes(4, "big")]
    for topic in topics:
        parts += [len(topic).to_bytes(2, "big"), topic.encode()]
    return b"".join(parts) + b"\xff\xff\xff\xff\0\0\0\0"


class GroupHarness:
    """A machine and the world around it."""

    def __init__(self, config: GroupConfig | None = None, *, check_purity: bool = True) -> None:
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.check_purity = check_purity
        self.now_ms = START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.replies: dict[int, Any] = {}
        self.tickets = 0
        self.ids = 0
        self.machine = GroupMachine(self.config)
        self.send(LoadedCommand())

    def send(self, command: Any) -> Any:
        """Run one command. Returns its reply, or PARKED; answers go to `replies` by ticket."""
        machine = self.machine
        before = self.picture() if self.check_purity else None
        decision = machine.decide(command, self.now_ms)
        if self.check_purity:
            assert self.picture() == before, "decide changed something"
        self.log += [pair for r in decision.records if (pair := machine.encode(r)) is not None]
        for record in decision.records:
            machine.apply(record)
        machine.validate()
        for ticket, reply in decision.answers:
            assert ticket not in self.replies, "a ticket is answered once"
            self.replies[ticket] = reply
        if decision.reply is not None and getattr(command, "ticket", 0):
            self.replies[command.ticket] = decision.reply
        return decision.reply

    def picture(self) -> Any:
        """Everything in the machine, as plain values that can be compared."""
        machine = self.machine
        return copy.deepcopy(vars(machine) | {"state": vars(machine.state)})

    def durable(self) -> dict[bytes, bytes | None]:
        """The durable state as a compacted log would hold it."""
        encode = self.machine.encode
        return dict(encode(r) for r in self.machine.state_records())

    def crash(self) -> None:
        """Lose all but the log, and read that."""
        before = self.durable()
        self.machine = GroupMachine(self.config)
        for key, value in self.log:
            record = self.machine.decode(key, value)
            assert record is not None
            self.machine.apply(record)
        assert self.durable() == before, "replay gives another durable state"
        slow, self.machine = self.picture(), GroupMachine(self.config)
        self.machine.replayer()(self.log)
        assert self.picture() == slow, "the quick replay gives another state"
        self.send(LoadedCommand())

    def advance(self, wait_ms: int) -> None:
        """Let time pass, ticking at every deadline on the way."""
        end_ms = self.now_ms + wait_ms
        for _ in range(10_000):
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, deadline_ms)
            self.send(TickCommand())
        else:
            raise AssertionError("time does not get on")
        self.now_ms = end_ms

    # --- what clients do ----------------------------------------------------------------------

    def join(self, member_id: str = "", **changes: Any) -> int:
        """Send a join; returns its ticket."""
        self.tickets += 1
        self.ids += 1
        fields: dict[str, Any] = {
            "group_id": "g",
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [("range", subscription("t"))],
            "fresh_id": str(self.ids),
        }
        fields |= changes
        self.send(JoinCommand(member_id=member_id, ticket=self.tickets, **fields))
        return self.tickets

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        **more: Any,
    ) -> int:
        """Send a sync; returns its ticket."""
        self.tickets += 1
        pairs = list((assignments or {}).items())
        group_id = more.pop("group_id", "g")
        command = SyncCommand(
            group_id, generation, member_id, assignments=pairs, ticket=self.tickets, **more
        )
        self.send(command)
        return self.tickets

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Any:
        """The error of a heartbeat."""
        return self.send(HeartbeatCommand("g", generation, member_id, instance_id)).error

    def leave(self, *members: LeavingMember) -> list[Any]:
        """The errors of a leave, member by member."""
        return [m.error for m in self.send(LeaveCommand("g", list(members))).members]

    def commit(self, offset: int, generation: int = -1, member_id: str = "", **more: Any) -> Any:
        """The error of a commit of partition 0 of `t` (or of topic=, metadata=)."""
        one = OffsetToCommit(more.pop("topic", "t"), 0, offset, 3, more.pop("metadata", "m"))
        instance_id = more.pop("instance_id", None)
        command = CommitCommand(
            more.pop("group_id", "g"), generation, member_id, instance_id, [one]
        )
        return self.send(command).results[0].error

    def committed(self, topic: str = "t", group_id: str = "g") -> int:
        """The offset stored for partition 0 of the topic."""
        command = FetchOffsetsCommand(group_id, [(topic, 0)])
        return self.machine.decide(command, self.now_ms).reply.offsets[0].offset

    def group(self) -> Any:
        """The group as it stands."""
        return self.machine.groups["g"]

    def settle(self, count: int, **changes: Any) -> list[str]:
        """Bring `count` dynamic members to a stable generation; returns ids, the leader first."""
        tickets = [self.join(**changes)]
        tickets += [self.join(**changes) for _ in range(count - 1)]
        self.advance(self.config.initial_rebalance_delay_ms)
        first = self.replies[tickets[0]].member_id
        if count > 1:
            tickets[0] = self.join(first, **changes)
        ids = [self.replies[t].member_id for t in tickets]
        generation = self.group().generation
        for member_id in reversed(ids):
            shares = {m: m.encode() for m in ids} if member_id == self.group().leader else None
            self.sync(member_id, generation, shares)
        assert self.group().state == "Stable"
        assert self.group().leader == ids[0]
        return ids
