"""Exclusive and failover: one member at a time has a partition, and when another one may."""

from __future__ import annotations

import pytest

from headrace.coordination.shares.commands import (
    ACCEPT,
    AcquireCommand,
    ClaimCommand,
    OpenShareGroupCommand,
    ReleaseMemberCommand,
    SettleCommand,
    Settlement,
    ShareTickCommand,
)
from headrace.coordination.shares.config import EXCLUSIVE, FAILOVER, ShareConfig
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.errors import GroupFull

LOCK_MS = 1_000


class ClaimedGroup:
    def __init__(self, subscription):
        self.machine = ShareMachine()
        config = ShareConfig(subscription=subscription, lock_ms=LOCK_MS)
        self.ask(OpenShareGroupCommand("g", 0, config), 0)

    def ask(self, command, now_ms):
        decision = self.machine.decide(command, now_ms)
        for record in decision.records:
            self.machine.apply(record)
        self.machine.validate()
        return decision.reply

    def claim(self, owner, now_ms):
        return self.ask(ClaimCommand("g", owner), now_ms)

    def acquire(self, owner, now_ms, count=10):
        return self.ask(AcquireCommand("g", owner, [(0, 99)], count, True), now_ms).acquired


def test_the_first_member_that_asks_has_the_partition_until_its_session_ends():
    rig = ClaimedGroup(FAILOVER)
    assert rig.claim("a", 0).is_owner
    assert rig.claim("a", 900).is_owner
    waits = rig.claim("b", 1_500)
    assert (waits.is_owner, waits.error, waits.wait_ms) == (False, None, 400)
    assert [tuple(one) for one in rig.acquire("a", 1_500)] == [(0, 9, 1)]
    rig.ask(ReleaseMemberCommand("g", "a"), 1_600)
    assert rig.claim("b", 1_600).is_owner
    assert [tuple(one) for one in rig.acquire("b", 1_600, 20)] == [(0, 9, 2), (10, 19, 1)]
    assert not rig.claim("a", 1_700).is_owner


def test_a_member_that_lost_the_partition_while_it_read_gets_no_records():
    rig = ClaimedGroup(FAILOVER)
    rig.claim("a", 0)
    assert rig.claim("b", LOCK_MS).is_owner, "a has not come back for a whole lease"
    late = AcquireCommand("g", "a", [(0, 99)], 10, True, owner="a")
    assert not rig.ask(late, LOCK_MS + 1).acquired, "b has the partition"
    mine = AcquireCommand("g", "b", [(0, 99)], 10, True, owner="b")
    assert [tuple(one) for one in rig.ask(mine, LOCK_MS + 1).acquired] == [(0, 9, 1)]


def test_a_quiet_member_loses_the_partition_but_not_while_its_records_are_in_flight():
    rig = ClaimedGroup(FAILOVER)
    rig.claim("a", 0)
    rig.acquire("a", 500)
    assert not rig.claim("b", 1_200).is_owner, "the lease is over, the locks are not"
    settled = [Settlement(0, 4, ACCEPT)]
    assert rig.ask(SettleCommand("g", "a", settled, True), 1_300).errors == [None]
    assert not rig.claim("b", 1_300).is_owner
    rig.ask(ShareTickCommand(), 1_500)
    assert rig.claim("b", 1_500).is_owner
    assert [tuple(one) for one in rig.acquire("b", 1_500)] == [(5, 9, 2), (10, 14, 1)]


@pytest.mark.parametrize("subscription", [FAILOVER, EXCLUSIVE])
def test_a_second_member_waits_or_is_refused(subscription):
    rig = ClaimedGroup(subscription)
    rig.claim("a", 0)
    error = rig.claim("b", 1).error
    assert isinstance(error, GroupFull) == (subscription == EXCLUSIVE)
    assert rig.claim("b", 1_000).is_owner, "the first one has not asked for its lease"


def test_a_claim_is_not_stored():
    rig = ClaimedGroup(FAILOVER)
    rig.claim("a", 0)
    replayed = ShareMachine()
    for record in rig.machine.state_records():
        key, value = rig.machine.encode(record)
        replayed.apply(replayed.decode(key, value))
    rig.machine = replayed
    rig.ask(OpenShareGroupCommand("g", 0, ShareConfig(subscription=FAILOVER, lock_ms=LOCK_MS)), 1)
    assert rig.claim("b", 1).is_owner
