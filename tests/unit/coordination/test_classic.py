"""The rules of classic groups, one example each."""

from __future__ import annotations

import pytest
from tests.unit.coordination.group_rig import PARKED, GroupHarness, subscription

from headrace.coordination.groups.commands import LeavingMember, SyncCommand
from headrace.coordination.groups.config import GroupConfig
from headrace.errors import (
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    InstanceIdFenced,
    MemberIdRequired,
    MemberUnknown,
    RebalanceInProgress,
    RequestInvalid,
    SessionTimeoutInvalid,
)


def test_a_lone_member_joins_syncs_and_is_stable():
    rig = GroupHarness()
    joined = rig.replies[rig.join()]
    assert joined.error is None
    assert (joined.generation, joined.leader, joined.protocol_name) == (
        1,
        joined.member_id,
        "range",
    )
    assert [m.member_id for m in joined.members] == [joined.member_id]
    assert rig.group().state == "CompletingRebalance"
    synced = rig.replies[rig.sync(joined.member_id, 1, {joined.member_id: b"all"})]
    assert (synced.error, synced.assignment) == (None, b"all")
    assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
    assert rig.group().state == "Stable"


def test_a_member_without_an_id_is_given_one_to_join_with():
    rig = GroupHarness()
    reply = rig.replies[rig.join(is_member_id_required=True)]
    assert isinstance(reply.error, MemberIdRequired)
    assert reply.member_id == "c-1"
    assert rig.replies[rig.join("c-1", is_member_id_required=True)].generation == 1


def test_an_id_that_was_handed_out_holds_the_rebalance_up_until_it_lapses():
    rig = GroupHarness()
    first = rig.settle(1)[0]
    rig.join(is_member_id_required=True)
    ticket = rig.join(first)
    assert ticket not in rig.replies
    rig.advance(9_999)
    assert ticket not in rig.replies
    rig.advance(1)
    assert rig.replies[ticket].generation == 2


def test_only_the_leader_sees_the_members():
    rig = GroupHarness()
    a, b = rig.settle(2)
    of_b = rig.join(b, protocols=[("range", b"new")])
    leader, metadata_cache = rig.replies[rig.join(a)], rig.replies[of_b]
    assert {m.member_id: m.metadata for m in leader.members} == {
        a: subscription("t"),
        b: b"new",
    }
    assert metadata_cache.members == []
    assert metadata_cache.leader == leader.leader == a


@pytest.mark.parametrize("timeout_ms", [-1, 0, 5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(timeout_ms):
    rig = GroupHarness()
    reply = rig.replies[rig.join(session_timeout_ms=timeout_ms)]
    assert isinstance(reply.error, SessionTimeoutInvalid)
    assert "g" not in rig.machine.groups


@pytest.mark.parametrize("timeout_ms", [6_000, 1_800_000])
def test_a_session_timeout_on_a_bound_is_taken(timeout_ms):
    rig = GroupHarness()
    assert rig.replies[rig.join(session_timeout_ms=timeout_ms)].error is None


def test_a_member_id_of_an_unknown_group_is_unknown():
    rig = GroupHarness()
    assert isinstance(rig.replies[rig.join("who")].error, MemberUnknown)
    assert isinstance(rig.replies[rig.sync("who", 1)].error, MemberUnknown)
    assert isinstance(rig.heartbeat("who", 1), MemberUnknown)
    assert isinstance(rig.leave(LeavingMember("who"))[0], MemberUnknown)


@pytest.mark.parametrize(
    "changes",
    [{"protocols": []}, {"protocol_type": ""}],
)
def test_a_member_must_name_a_protocol(changes):
    rig = GroupHarness()
    assert isinstance(rig.replies[rig.join(**changes)].error, InconsistentProtocol)


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": [("sticky", b"")]}],
)
def test_a_member_must_share_a_protocol_with_the_group(changes):
    rig = GroupHarness()
    rig.settle(1)
    assert isinstance(rig.replies[rig.join(**changes)].error, InconsistentProtocol)
    assert rig.group().state == "Stable"


def test_the_protocol_with_most_votes_among_the_common_ones_wins():
    rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=100))
    orders = ["abc", "cab", "cb", "cbx"]
    tickets = [rig.join(protocols=[(p, p.encode()) for p in order]) for order in orders]
    rig.advance(1_000)
    assert {rig.replies[t].protocol_name for t in tickets} == {"c"}


def test_metadata_and_names_beyond_what_can_be_stored_are_refused():
    rig = GroupHarness()
    big = [("range", b"x" * 1_048_577)]
    assert isinstance(rig.replies[rig.join(protocols=big)].error, RequestInvalid)
    assert isinstance(rig.replies[rig.join(client_id="x" * 40_000)].error, RequestInvalid)
    for uncounted in ({"protocol_type": "x" * 1_001}, {"group_instance_id": "x" * 1_001}):
        assert isinstance(rig.replies[rig.join(**uncounted)].error, RequestInvalid)
    assert rig.replies[rig.join(client_id="\u00e9" * 9_000)].error is None


# --- the join phase -----------------------------------------------------------------------------


def test_the_initial_delay_gathers_members_into_one_generation():
    rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=100))
    tickets = []
    for _ in range(5):
        tickets.append(rig.join())
        rig.advance(60)
    assert not rig.replies
    rig.advance(200)
    assert {rig.replies[t].generation for t in tickets} == {1}


def test_the_initial_delay_ends_with_the_rebalance_timeout_however_many_come():
    rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=100))
    first = rig.join(rebalance_timeout_ms=450)
    for _ in range(9):
        rig.advance(50)
        rig.join(rebalance_timeout_ms=450)
    assert first in rig.replies


def test_the_rebalance_begins_with_a_new_member_and_waits_for_all():
    rig = GroupHarness()
    a, b = rig.settle(2)
    generation = rig.group().generation
    new = rig.join()
    assert isinstance(rig.heartbeat(a, generation), RebalanceInProgress)
    ticket_a = rig.join(a)
    assert new not in rig.replies
    ticket_b = rig.join(b)
    for ticket in (new, ticket_a, ticket_b):
        assert rig.replies[ticket].generation == generation + 1
        assert rig.replies[ticket].leader == a


def test_members_that_do_not_rejoin_in_time_are_removed():
    rig = GroupHarness()
    a, b = rig.settle(2, session_timeout_ms=100_000)
    new = rig.join(session_timeout_ms=100_000)
    ticket = rig.join(a, session_timeout_ms=100_000)
    rig.advance(59_999)
    assert new not in rig.replies
    rig.advance(1)
    assert rig.replies[ticket].error is None
    assert list(rig.group().members) == [a, rig.replies[new].member_id]
    assert isinstance(rig.heartbeat(b, 3), MemberUnknown)


def test_when_the_leader_has_left_another_member_leads():
    rig = GroupHarness()
    _, b = rig.settle(2, session_timeout_ms=100_000)
    ticket = rig.join(b, protocols=[("range", b"new")], session_timeout_ms=100_000)
    rig.advance(60_000)
    assert rig.replies[ticket].leader == b
    assert [m.member_id for m in rig.replies[ticket].members] == [b]


def test_a_second_join_of_one_member_replaces_the_first():
    rig = GroupHarness()
    a, _ = rig.settle(2)
    old = rig.join(a)
    new = rig.join(a)
    assert isinstance(rig.replies[old].error, RebalanceInProgress)
    assert new not in rig.replies


def test_an_unchanged_follower_that_rejoins_gets_the_generation_that_stands():
    rig = GroupHarness()
    _, b = rig.settle(2)
    reply = rig.replies[rig.join(b)]
    assert (reply.error, reply.generation, reply.members) == (None, rig.group().generation, [])
    assert rig.group().state == "Stable"


@pytest.mark.parametrize("who", ["leader", "changed follower"])
def test_a_leader_or_a_changed_follower_that_rejoins_begins_a_rebalance(who):
    rig = GroupHarness()
    a, b = rig.settle(2)
    if who == "leader":
        rig.join(a)
    else:
        rig.join(b, protocols=[("range", subscription("t", "u"))])
    assert rig.group().state == "PreparingRebalance"


def test_a_member_that_missed_its_answer_gets_it_again_before_the_assignment():
    rig = GroupHarness()
    first = rig.replies[rig.join()]
    again = rig.replies[rig.join(first.member_id)]
    assert again == first


def test_a_changed_member_before_the_assignment_begins_a_new_rebalance():
    rig = GroupHarness()
    a = rig.replies[rig.join()].member_id
    reply = rig.replies[rig.join(a, protocols=[("range", b"other")])]
    assert reply.generation == 2


def test_a_new_member_whose_connection_died_is_removed_after_five_minutes():
    rig = GroupHarness()
    a = rig.settle(1, rebalance_timeout_ms=3_600_000)[0]
    new = rig.join(rebalance_timeout_ms=3_600_000)
    for _ in range(100):
        rig.advance(3_000)
        rig.heartbeat(a, 1)
    assert isinstance(rig.replies[new].error, MemberUnknown)
    assert list(rig.group().members) == [a]


def test_a_full_group_takes_no_more_but_keeps_all_it_has():
    rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=0, group_size_max=2))
    a, b = rig.settle(2)
    assert isinstance(rig.replies[rig.join()].error, GroupFull)
    rig.join(a)
    assert isinstance(rig.replies[rig.join()].error, GroupFull)
    assert rig.replies[rig.join(b)].error is None


# --- the sync phase -----------------------------------------------------------------------------


def test_followers_wait_for_the_leader():
    rig = GroupHarness()
    a, b = rig.settle(2)
    rig.join(a)
    rig.join(b)
    generation = rig.group().generation
    ticket = rig.sync(b, generation)
    assert ticket not in rig.replies
    rig.sync(a, generation, {a: b"1", b: b"2", "stranger": b"3"})
    assert rig.replies[ticket].assignment == b"2"


def test_a_sync_must_name_generation_and_protocol_of_the_group():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    assert isinstance(rig.replies[rig.sync(a, 0)].error, IllegalGeneration)
    assert isinstance(rig.replies[rig.sync(a, 2)].error, IllegalGeneration)
    wrong = rig.sync(a, 1, protocol_type="connect")
    assert isinstance(rig.replies[wrong].error, InconsistentProtocol)
    wrong = rig.sync(a, 1, protocol_name="sticky")
    assert isinstance(rig.replies[wrong].error, InconsistentProtocol)
    right = rig.sync(a, 1, protocol_type="consumer", protocol_name="range")
    assert rig.replies[right].assignment == a.encode()


def test_a_parked_sync_is_sent_back_when_a_new_rebalance_begins():
    rig = GroupHarness()
    a, b = rig.settle(2)
    rig.join(a)
    rig.join(b)
    ticket = rig.sync(b, rig.group().generation)
    rig.join()
    assert isinstance(rig.replies[ticket].error, RebalanceInProgress)
    assert isinstance(rig.replies[rig.sync(a, rig.group().generation)].error, RebalanceInProgress)


def test_members_that_do_not_sync_in_time_are_removed():
    rig = GroupHarness()
    a, b = rig.settle(2, session_timeout_ms=100_000)
    rig.join(a, session_timeout_ms=100_000)
    rig.join(b, session_timeout_ms=100_000)
    ticket = rig.sync(b, rig.group().generation)
    rig.advance(60_000)
    assert isinstance(rig.replies[ticket].error, RebalanceInProgress)
    assert list(rig.group().members) == [b]
    assert rig.group().leader == b


def test_a_follower_that_never_syncs_is_out_of_a_stable_group_too():
    rig = GroupHarness()
    a, b = rig.settle(2, session_timeout_ms=100_000)
    rig.join(a, session_timeout_ms=100_000)
    rig.join(b, session_timeout_ms=100_000)
    rig.sync(a, rig.group().generation, {a: b"1", b: b"2"})
    assert rig.group().state == "Stable"
    rig.advance(60_000)
    assert list(rig.group().members) == [a]


def test_an_assignment_too_large_to_store_is_refused():
    rig = GroupHarness(GroupConfig(initial_rebalance_delay_ms=0, assignment_bytes_max=10))
    a = rig.replies[rig.join()].member_id
    assert isinstance(rig.replies[rig.sync(a, 1, {a: b"x" * 11})].error, RequestInvalid)
    assert rig.replies[rig.sync(a, 1, {a: b"x" * 10})].error is None


# --- heartbeats, sessions, leaving --------------------------------------------------------------


def test_a_heartbeat_lengthens_the_session_and_its_absence_ends_it():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    for _ in range(5):
        rig.advance(9_999)
        assert rig.heartbeat(a, 1) is None
    rig.advance(10_000)
    assert isinstance(rig.heartbeat(a, 1), MemberUnknown)
    assert rig.group().state == "Empty"
    assert rig.group().generation == 2


def test_a_heartbeat_of_another_generation_is_refused():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    assert isinstance(rig.heartbeat(a, 0), IllegalGeneration)
    assert isinstance(rig.heartbeat(a, 2), IllegalGeneration)
    assert isinstance(rig.heartbeat("b", 1), MemberUnknown)


def test_a_heartbeat_before_the_assignment_is_welcome():
    rig = GroupHarness()
    a = rig.replies[rig.join()].member_id
    assert rig.heartbeat(a, 1) is None


def test_leaving_rebalances_the_others_at_once():
    rig = GroupHarness()
    a, b = rig.settle(2)
    assert rig.leave(LeavingMember(a)) == [None]
    assert isinstance(rig.heartbeat(b, rig.group().generation), RebalanceInProgress)
    assert rig.replies[rig.join(b)].leader == b


def test_leaving_answers_what_the_member_waits_for():
    rig = GroupHarness()
    a, b = rig.settle(2)
    ticket = rig.join(a)
    assert rig.leave(LeavingMember(a)) == [None]
    assert isinstance(rig.replies[ticket].error, MemberUnknown)
    assert rig.replies[rig.join(b)].error is None


def test_a_batch_of_leavers_is_answered_one_by_one():
    rig = GroupHarness()
    a, b = rig.settle(2)
    errors = rig.leave(LeavingMember(a), LeavingMember("who"), LeavingMember(b), LeavingMember(a))
    assert errors[0] is None
    assert errors[2] is None
    assert isinstance(errors[1], MemberUnknown)
    assert isinstance(errors[3], MemberUnknown)
    assert rig.group().state == "Empty"


def test_an_id_that_was_only_handed_out_can_leave():
    rig = GroupHarness()
    rig.join(is_member_id_required=True)
    assert rig.leave(LeavingMember("c-1")) == [None]
    assert isinstance(rig.replies[rig.join("c-1")].error, MemberUnknown)


# --- static members -------------------------------------------------------------------------------


def static_group(rig: GroupHarness) -> str:
    """One static member `i`, stable; its member id."""
    member_id = rig.replies[rig.join(group_instance_id="i", is_member_id_required=True)].member_id
    rig.sync(member_id, 1, {member_id: b"mine"}, group_instance_id="i")
    assert rig.group().state == "Stable"
    return member_id


def test_a_static_member_needs_no_second_join():
    assert static_group(GroupHarness()) == "i-1"


def test_a_restarted_static_leader_takes_over_without_a_rebalance():
    rig = GroupHarness()
    old = static_group(rig)
    reply = rig.replies[rig.join(group_instance_id="i", can_skip_assignment=True)]
    assert (reply.error, reply.generation, reply.member_id) == (None, 1, "i-2")
    assert (reply.leader, reply.skip_assignment) == ("i-2", True)
    assert [m.member_id for m in reply.members] == ["i-2"]
    assert rig.group().state == "Stable"
    assert rig.replies[rig.sync("i-2", 1, group_instance_id="i")].assignment == b"mine"
    assert isinstance(rig.heartbeat(old, 1, "i"), InstanceIdFenced)
    assert isinstance(rig.heartbeat(old, 1), MemberUnknown)
    rig.crash()
    assert rig.heartbeat("i-2", 1, "i") is None


def test_a_restarted_static_leader_of_an_old_client_is_not_named_as_the_leader():
    rig = GroupHarness()
    old = static_group(rig)
    reply = rig.replies[rig.join(group_instance_id="i")]
    assert (reply.leader, reply.members, reply.skip_assignment) == (old, [], False)
    assert rig.replies[rig.sync("i-2", 1, group_instance_id="i")].assignment == b"mine"


def test_a_takeover_that_changes_the_protocol_rebalances():
    rig = GroupHarness()
    member_id = rig.replies[
        rig.join(group_instance_id="i", protocols=[("a", b""), ("b", b"")])
    ].member_id
    rig.sync(member_id, 1, {member_id: b"mine"})
    reply = rig.replies[rig.join(group_instance_id="i", protocols=[("b", b"")])]
    assert (reply.generation, reply.protocol_name) == (2, "b")


def test_a_takeover_fences_what_the_old_member_waits_for():
    rig = GroupHarness()
    a = rig.settle(1)[0]
    waiting = rig.join(group_instance_id="i")
    new = rig.join(group_instance_id="i")
    assert isinstance(rig.replies[waiting].error, InstanceIdFenced)
    rig.join(a)
    assert rig.replies[new].error is None
    assert list(rig.group().members) == [a, rig.replies[new].member_id]


def test_a_takeover_before_the_assignment_begins_a_new_rebalance():
    rig = GroupHarness()
    old = rig.replies[rig.join(group_instance_id="i")].member_id
    reply = rig.replies[rig.join(group_instance_id="i")]
    assert reply.generation == 2
    assert isinstance(rig.replies[rig.sync(old, 1, group_instance_id="i")].error, InstanceIdFenced)


def test_a_static_member_that_is_away_stays_until_its_session_ends():
    rig = GroupHarness()
    old = static_group(rig)
    rig.join(session_timeout_ms=100_000, rebalance_timeout_ms=5_000)
    rig.heartbeat(old, 1, "i")
    group = rig.group()
    group.members[old].rebalance_timeout_ms = 5_000
    rig.advance(5_000)
    rig.advance(4_000)
    assert old in rig.group().members
    rig.advance(60_000)
    assert old not in rig.group().members


def test_an_admin_removes_a_static_member_by_its_instance_id():
    rig = GroupHarness()
    static_group(rig)
    errors = rig.leave(LeavingMember("", "j"), LeavingMember("", "i"))
    assert isinstance(errors[0], MemberUnknown)
    assert errors[1] is None
    assert rig.group().state == "Empty"


def test_a_static_member_that_leaves_under_an_old_id_is_fenced():
    rig = GroupHarness()
    old = static_group(rig)
    rig.join(group_instance_id="i")
    assert isinstance(rig.leave(LeavingMember(old, "i"))[0], InstanceIdFenced)


# --- the log --------------------------------------------------------------------------------------


def test_a_stable_group_survives_a_crash_without_a_rebalance():
    rig = GroupHarness()
    a, b = rig.settle(2)
    generation = rig.group().generation
    rig.crash()
    assert rig.heartbeat(a, generation) is None
    assert rig.replies[rig.sync(b, generation)].assignment == b.encode()
    rig.advance(9_999)
    assert set(rig.group().members) == {a, b}
    rig.advance(1)
    assert rig.group().state == "Empty"


def test_an_announced_generation_that_was_never_assigned_is_not_reused():
    rig = GroupHarness()
    a, b = rig.settle(2)
    rig.join(a)
    rig.join(b)
    told = rig.group().generation
    rig.crash()
    assert isinstance(rig.replies[rig.sync(a, told, {a: b"old"})].error, RebalanceInProgress)
    assert isinstance(rig.heartbeat(b, told), RebalanceInProgress)
    rig.join(a)
    ticket = rig.join(b)
    assert rig.replies[ticket].generation == told + 1


def test_a_sync_without_its_group_is_not_parked():
    rig = GroupHarness()
    reply = rig.send(SyncCommand("other", 1, "m"))
    assert reply is not PARKED
