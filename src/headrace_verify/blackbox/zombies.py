"""Zombie members: removed from their group without knowing it, they commit for an old generation.

Invariants: a hand-written classic protocol, two members of one group on two connections. They send
requests that the broker must reject; the checkers verify that it did.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.routing import RETRY_S, Connection, Group
from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.kafka_wire import Refused

if TYPE_CHECKING:
    from headrace_verify.blackbox.context import Context

JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, OFFSET_COMMIT = 11, 13, 14, 8
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 6_000, 400
TIMEOUT_S = 12.0


class _Member:
    """One member with its own connection."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._connection = Connection(context, TIMEOUT_S)
        self.wire = self._connection.wire(Group(context.spec.group or ""))
        self.name = name
        self.id = ""
        self.generation = -1
        self.is_leader = False
        self.members: list[str] = []

    def close(self) -> None:
        """Close its connections."""
        self._connection.drop()

    def join(self) -> None:
        """Join, or rejoin. Raises OSError, Refused."""
        response = self.wire.call(
            JOIN_GROUP,
            3,
            group_id=self._context.spec.group,
            session_timeout=SESSION_TIMEOUT_MS,
            rebalance_timeout=REBALANCE_TIMEOUT_MS,
            member_id=self.id,
            protocol_type="verify",
            protocols=[{"name": "by-hand", "metadata": self.name.encode()}],
        )
        _check(response.error_code)
        self.id, self.generation = response.member_id, int(response.generation_id)
        self.is_leader = response.leader == response.member_id
        self.members = [member.member_id for member in response.members]

    def sync(self) -> None:
        """Sync, and record the partitions of this generation; the leader assigns them."""
        assignments = []
        if self.is_leader:
            for at, member in enumerate(self.members):
                mine = range(at, len(self._context.places), len(self.members))
                data = ",".join(map(str, mine)).encode()
                assignments.append({"member_id": member, "assignment": data})
        response = self.wire.call(
            SYNC_GROUP,
            2,
            group_id=self._context.spec.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=assignments,
        )
        _check(response.error_code)
        text = bytes(response.assignment).decode()
        parts = [self._context.places[int(number)] for number in text.split(",") if number]
        self._context.history.write(
            OK,
            "assign",
            group=self._context.spec.group,
            member=self.id,
            gen=self.generation,
            parts=self._context.owned(parts),
        )

    def commit(self, offset: int) -> None:
        """Commit for the generation that this member knows. Raises OSError."""
        topic, part = self._context.places[0]
        group = self._context.spec.group
        fields = {"group": group, "member": self.id, "gen": self.generation}
        op = self._context.history.invoke("commit", **fields, offs=[[topic, part, offset]])
        listed = {"partition_index": part, "committed_offset": offset}
        try:
            response = self.wire.call(
                OFFSET_COMMIT,
                2,
                group_id=group,
                generation_id_or_member_epoch=self.generation,
                member_id=self.id,
                retention_time=-1,
                topics=[{"name": topic, "partitions": [listed]}],
            )
        except OSError:
            self._context.history.write(INFO, "commit", op=op, **fields)
            raise
        code = int(response.topics[0].partitions[0].error_code)
        self._context.history.write(FAIL if code else OK, "commit", op=op, code=code, **fields)

    def leave(self) -> None:
        """Leave, so that the next round begins immediately."""
        response = self.wire.call(
            LEAVE_GROUP, 1, group_id=self._context.spec.group, member_id=self.id
        )
        _check(response.error_code)


def _check(code: Any) -> None:
    if int(code):
        raise Refused(int(code))


def run_zombies(context: Context) -> None:
    """Rounds with a member that is fenced, or left out, and commits anyway."""
    offset = 0
    while not context.over.is_set():
        members: list[_Member] = []
        try:
            offset = _round(context, members, offset)
        except OSError:
            context.pause(RETRY_S)  # rejected or disconnected: the next round starts over
        finally:
            for member in members:
                member.close()
        context.pause(context.rng.random() * 0.2)


def _round(context: Context, members: list[_Member], offset: int) -> int:
    first = _Member(context, "first")
    members.append(first)
    first.join()
    first.sync()
    first.commit(offset + 1)
    second = _Member(context, "second")
    members.append(second)
    old = first.generation
    if context.rng.random() < 0.5:
        second.join()  # the first does not rejoin: the rebalance continues without it
        second.sync()
        first.commit(offset + 2)
        second.commit(offset + 3)
        second.leave()
        return offset + 3
    _join_together(first, second)
    leader, metadata_cache = (first, second) if first.is_leader else (second, first)
    leader.sync()
    metadata_cache.sync()
    current, first.generation = first.generation, old
    first.commit(offset + 2)
    first.generation = current
    metadata_cache.commit(offset + 3)
    first.leave()
    second.leave()
    return offset + 3


def _join_together(first: _Member, second: _Member) -> None:
    """Both wait for each other, so one of them joins in a thread. Raises OSError."""
    failed: list[OSError] = []

    def join() -> None:
        try:
            second.join()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    first.join()
    thread.join(TIMEOUT_S)
    if failed:
        raise failed[0]
    if first.generation != second.generation:
        raise ConnectionError("they joined different generations")
