"""Groups under random members, time and crashes, against what must always hold.

The clients here are honest but clumsy: they retry, forget, come late and with old generations.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.coordination.group_rig import GroupHarness, subscription

from headrace.coordination.groups.commands import LeavingMember
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.group import COMPLETING, EMPTY, PREPARING, STABLE
from headrace.errors import MemberIdRequired

WAIT_MS_MAX = 120_000 + 100
"""The longest rebalance timeout below, and the initial delay: no join may wait longer."""


class Groups(RuleBasedStateMachine):
    """One group, a few clients, one model of the answers they got."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=100, group_size_max=6))
        self.ids = ["stranger"]
        self.told: dict[tuple[str, int], bytes] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.generation = 0
        self.offset = -1
        self.joined_ms: dict[int, int] = {}
        self.syncs: dict[int, tuple[str, int]] = {}
        self.session_ends: dict[str, int] = {}
        self.count = 0

    @initialize(count=st.integers(0, 4), instance=st.sampled_from([None, "i1"]))
    def begin_with_a_stable_group(self, count, instance):
        """Most runs start where most groups are; rules alone reach it in one run of five."""
        for number in range(count):
            ticket = self.rig.join(group_instance_id=instance if number == 0 else None)
            self.joined_ms[ticket] = self.rig.now_ms
        self.rig.advance(250)
        self._hear()
        self.everybody_does_as_told()

    # --- clients ------------------------------------------------------------------------------

    def _any_id(self, data: Any) -> str:
        return data.draw(st.sampled_from(self.ids))

    def _generation(self, data: Any) -> int:
        now = self.rig.machine.groups["g"].generation if "g" in self.rig.machine.groups else 0
        return data.draw(st.sampled_from([now, now, now, now - 1, now + 1, 0]))

    @rule(
        is_required=st.booleans(),
        instance=st.sampled_from([None, None, "i1", "i2"]),
        topics=st.sampled_from(["t", "u"]),
        session_ms=st.sampled_from([6_000, 30_000]),
        rebalance_ms=st.sampled_from([10_000, 120_000]),
        can_skip=st.booleans(),
    )
    def join_new(self, is_required, instance, topics, session_ms, rebalance_ms, can_skip):
        ticket = self.rig.join(
            group_instance_id=instance,
            is_member_id_required=is_required,
            can_skip_assignment=can_skip,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocols=[("range", subscription(topics))],
        )
        self.joined_ms[ticket] = self.rig.now_ms
        self._hear()

    @rule(data=st.data(), topics=st.sampled_from(["t", "t", "u"]))
    def join_again(self, data, topics):
        member_id = self._any_id(data)
        ticket = self.rig.join(
            member_id,
            protocols=[("range", subscription(topics))],
            group_instance_id=self._instance(member_id),
        )
        self.joined_ms[ticket] = self.rig.now_ms
        self._hear()

    def _instance(self, member_id: str) -> str | None:
        return member_id[:2] if member_id.startswith("i") else None

    @rule(data=st.data())
    def sync(self, data):
        member_id, generation = self._any_id(data), self._generation(data)
        group = self.rig.machine.groups.get("g")
        shares = {}
        if group is not None and group.leader == member_id:
            self.count += 1
            shares = {m: f"{m}/{self.count}".encode() for m in group.members}
        ticket = self.rig.sync(member_id, generation, shares)
        self.syncs[ticket] = (member_id, generation)
        self._hear()

    @rule()
    def everybody_does_as_told(self):
        """All members rejoin and sync, so that stable groups are met often."""
        group = self.rig.machine.groups.get("g")
        if group is None or not group.members:
            return
        before = list(group.members) if group.state == PREPARING else []
        for member in list(group.members.values()):
            if member.join_ticket or group.state != PREPARING:
                continue
            instance = member.group_instance_id
            ticket = self.rig.join(
                member.member_id, group_instance_id=instance, protocols=list(member.protocols)
            )
            self.joined_ms[ticket] = self.rig.now_ms
        self._hear()
        if self.rig.machine.groups["g"].state == PREPARING:
            self.rig.advance(150)
            self._hear()
        group = self.rig.machine.groups["g"]
        assert set(before) <= set(group.members), "a member that has rejoined was forgotten"
        if group.state != COMPLETING:
            return
        self.count += 1
        shares = {m: f"{m}/{self.count}".encode() for m in group.members}
        for member_id in sorted(group.members, key=lambda m: m == group.leader):
            is_leader = member_id == group.leader
            ticket = self.rig.sync(member_id, group.generation, shares if is_leader else {})
            self.syncs[ticket] = (member_id, group.generation)
        assert self.rig.machine.groups["g"].state == STABLE
        self._hear()
        event("stable")

    @rule(data=st.data())
    def heartbeat(self, data):
        member_id, generation = self._any_id(data), self._generation(data)
        self.rig.heartbeat(member_id, generation, self._instance(member_id))

    @rule(data=st.data())
    def commit(self, data):
        member_id, generation = self._any_id(data), self._generation(data)
        group = self.rig.machine.groups.get("g")
        error = self.rig.commit(self.offset + 1, generation, member_id)
        if error is None:
            self.offset += 1
            if generation < 0:
                assert group is None or group.state == EMPTY, "a stranger's commit was taken"
                return
            assert group is not None
            assert generation == group.generation, "a commit of another generation was taken"
            assert member_id in group.members, "a commit of a stranger was taken"

    @rule()
    def commit_simply(self):
        group = self.rig.machine.groups.get("g")
        error = self.rig.commit(self.offset + 1)
        if error is None:
            self.offset += 1
        assert (error is None) == (group is None or group.state == EMPTY)

    @rule(data=st.data(), by_instance=st.booleans())
    def leave(self, data, by_instance):
        member_id = self._any_id(data)
        instance = self._instance(member_id)
        if by_instance and instance is not None:
            self.rig.leave(LeavingMember("", instance))
        else:
            self.rig.leave(LeavingMember(member_id, instance))
        self._hear()

    # --- the world ----------------------------------------------------------------------------

    @rule(wait_ms=st.sampled_from([1, 99, 100, 1_000, 5_999, 6_000, 10_000, 60_000, 130_000]))
    def time_passes(self, wait_ms):
        before = {}
        group = self.rig.machine.groups.get("g")
        if group is not None and group.state == STABLE and not group.pending_sync:
            before = {m.member_id: m.deadline_ms for m in group.members.values()}
        self.rig.advance(wait_ms)
        now = self.rig.machine.groups.get("g")
        if before and min(before.values()) > self.rig.now_ms:
            assert now is not None
            assert set(before) <= set(now.members), "a member in its session was forgotten"
        self._hear()

    @rule()
    def crash(self):
        group = self.rig.machine.groups.get("g")
        stable = dict(group.members) if group is not None and group.state == STABLE else {}
        generation = group.generation if group is not None else 0
        self.rig.crash()
        self.joined_ms.clear()
        self.syncs.clear()
        if stable:
            again = self.rig.machine.groups["g"]
            assert again.generation == generation
            # Members that left since are back until their session ends; none is missing.
            assert set(stable) <= set(again.members), "a crash lost a member"
            for member_id, member in stable.items():
                assert again.members[member_id].assignment == member.assignment

    def _hear(self) -> None:
        """Take in what was answered."""
        for ticket, reply in list(self.rig.replies.items()):
            if ticket in self.joined_ms:
                del self.joined_ms[ticket]
                if reply.error is None or isinstance(reply.error, MemberIdRequired):
                    if reply.member_id not in self.ids:
                        self.ids = [*self.ids[-7:], reply.member_id]
                    assert reply.error is not None or reply.generation >= 1
            elif ticket in self.syncs:
                member_id, generation = self.syncs.pop(ticket)
                if reply.error is None:
                    known = self.told.setdefault((member_id, generation), reply.assignment)
                    assert known == reply.assignment, "two assignments in one generation"

    # --- what must always hold ----------------------------------------------------------------

    def _is_removed(self) -> bool:
        """Whether the last word of the log about the group is its tombstone."""
        values = [value for key, value in self.rig.log if key == b"\0\x02\0\x01g"]
        return bool(values) and values[-1] is None

    @invariant()
    def generations_only_go_up(self):
        if self._is_removed():
            # Nothing was left of it: the next group of this name begins anew (as in Kafka),
            # and shares no member id with it.
            self.generation = 0
            self.assigned.clear()
        group = self.rig.machine.groups.get("g")
        if group is not None and (group.record is not None or group.members):
            assert group.generation >= self.generation
            self.generation = group.generation

    @invariant()
    def one_generation_has_one_assignment(self):
        group = self.rig.machine.groups.get("g")
        if group is None or group.state != STABLE:
            return
        # A takeover moves a share to the new id of its instance; the shares stay the same.
        shares = sorted(m.assignment for m in group.members.values())
        known = self.assigned.setdefault(group.generation, shares)
        assert known == shares, "a generation was assigned twice"
        owners = [s for s in shares if s]
        assert len(owners) == len(set(owners)), "two owners of one share"

    @invariant()
    def offsets_are_what_was_acknowledged(self):
        assert self.rig.committed() == self.offset

    @invariant()
    def every_join_is_answered_in_bounded_time(self):
        for ticket, joined_ms in self.joined_ms.items():
            assert self.rig.now_ms - joined_ms <= WAIT_MS_MAX, f"join {ticket} is forgotten"

    @invariant()
    def the_group_is_consistent(self):
        group = self.rig.machine.groups.get("g")
        if group is None:
            return
        assert len(group.members) <= self.rig.config.group_size_max
        assert (group.state == EMPTY) == (not group.members) or group.state == PREPARING
        for instance, member_id in group.static.items():
            assert group.members[member_id].group_instance_id == instance
        static = [m for m in group.members.values() if m.group_instance_id is not None]
        assert len(static) == len(group.static), "one instance, two members"
        assert group.leader is None or group.leader in group.members
        if group.state != PREPARING:
            assert not any(m.join_ticket for m in group.members.values())
        if group.state in (STABLE, PREPARING):
            assert not any(m.sync_ticket for m in group.members.values())
        if group.next_deadline_ms() is not None:
            armed_ms = self.rig.machine.next_deadline_ms()
            assert armed_ms is not None
            assert armed_ms <= group.next_deadline_ms(), "nobody would wake up in time"


Groups.TestCase.settings = settings(
    max_examples=int(os.environ.get("HEADRACE_EXAMPLES", "150")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGroups = Groups.TestCase
