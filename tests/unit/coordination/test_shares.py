"""Share groups by example: what a stale command, a torn snapshot and a lost answer must not do."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.coordination.shares.commands import (
    ACCEPT,
    RELEASE,
    RENEW,
    AcquireCommand,
    LearnCommand,
    OpenCommand,
    Row,
    SettleCommand,
    Settlement,
    ShareTickCommand,
)
from headrace.coordination.shares.config import ShareConfig
from headrace.coordination.shares.membership import ShareHeartbeat, ShareMembership
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.coordination.topic_view import TopicShape
from headrace.errors import RequestInvalid

SESSION_MS = 45_000


def ask(machine, command, now_ms=0):
    decision = machine.decide(command, now_ms)
    for record in decision.records:
        machine.apply(record)
    return decision.reply


def opened(*groups, **config):
    machine = ShareMachine()
    for group_id in groups or ("g",):
        ask(machine, OpenCommand(group_id, 100, ShareConfig(**config)))
    return machine


def test_rows_that_were_read_for_a_state_that_is_past_finish_nothing():
    machine = opened(is_ordered=True)
    ask(machine, LearnCommand("g", 500, [Row(500, 1)], 600))
    assert machine.groups["g"].window.start == 100


def test_a_snapshot_that_was_cut_after_a_groups_first_record_loses_nothing():
    machine = opened()
    ask(machine, AcquireCommand("g", "a", [(100, 199)], 100))
    ask(machine, SettleCommand("g", "a", [Settlement(101, 199, ACCEPT)]))
    before = repr(list(machine.groups["g"].window))
    machine.apply(machine.state_records()[0])
    assert repr(list(machine.groups["g"].window)) == before


def test_one_lock_that_ends_late_keeps_no_memory_of_those_after_it():
    machine = opened()
    ask(machine, AcquireCommand("g", "late", [(100, 100)], 1, True, 43_200_000))
    for offset in range(101, 3_000):
        ask(machine, AcquireCommand("g", "a", [(offset, offset)], 1))
        ask(machine, SettleCommand("g", "a", [Settlement(offset, offset, RENEW)]))
        ask(machine, SettleCommand("g", "a", [Settlement(offset, offset, ACCEPT)]))
    group = machine.groups["g"]
    assert len(group._locks) < 600
    assert len(machine._deadlines) < 600


def test_a_record_that_waits_for_long_keeps_no_memory_of_those_after_it():
    machine = opened(lock_ms=1_000)
    ask(machine, AcquireCommand("g", "a", [(100, 100)], 1))
    ask(machine, SettleCommand("g", "a", [Settlement(100, 100, RELEASE, 30_000_000_000)]))
    now_ms = 0
    for offset in range(101, 3_000):
        ask(machine, AcquireCommand("g", "a", [(offset, offset)], 1), now_ms)
        now_ms += 2_000
        ask(machine, ShareTickCommand(), now_ms)
    assert len(machine._deadlines) < 600


TOPICS = {"t": TopicShape(UUID(int=1), 4)}


def beat(membership, member, epoch, subscribed=("t",), group="g"):
    heartbeat = ShareHeartbeat(group, member, epoch, subscribed, None, "client", "/host")
    return membership.heartbeat(heartbeat, TOPICS, SESSION_MS, 0)


def test_a_member_that_says_everything_anew_gets_its_assignment_again():
    membership = ShareMembership()
    first = beat(membership, "a", 0)
    beat(membership, "b", 0)
    lost = beat(membership, "a", first.member_epoch, None)
    assert lost.assignment is not None
    again = beat(membership, "a", first.member_epoch)
    assert again.assignment == lost.assignment
    quiet = beat(membership, "a", again.member_epoch, None)
    assert quiet.assignment is None


def test_all_partitions_are_assigned_and_every_member_has_one():
    membership = ShareMembership()
    members = [f"m{number}" for number in range(6)]
    for member in members:
        beat(membership, member, 0)
    group = membership.groups["g"]
    assigned = [set(group.members[member].assigned) for member in members]
    assert set().union(*assigned) == {(UUID(int=1), number) for number in range(4)}
    assert all(assigned)


def test_groups_without_members_leave_nothing():
    membership = ShareMembership()
    with pytest.raises(RequestInvalid):
        beat(membership, "a", 0, None, "refused")
    beat(membership, "a", 0)
    beat(membership, "a", -1)
    beat(membership, "b", 0, group="silent")
    assert membership.expire(TOPICS, SESSION_MS) == [("silent", "b")]
    assert not membership.groups
