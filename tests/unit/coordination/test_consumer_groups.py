"""Consumer groups of the new protocol (KIP-848), one rule at a time."""

from __future__ import annotations

from uuid import UUID

import pytest
from tests.unit.coordination.consumer_rig import GROUP, SESSION_MS, ConsumerGroupHarness, Topics
from tests.unit.coordination.group_rig import GroupHarness, subscription

from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    LeavingMember,
    ListGroupsCommand,
    OffsetToCommit,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_commands import DescribeConsumerGroupsCommand
from headrace.coordination.groups.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.errors import (
    AssignorUnsupported,
    GroupFull,
    GroupNotEmpty,
    GroupSubscribed,
    GroupUnknown,
    IllegalGeneration,
    InconsistentProtocol,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberEpochStale,
    MemberUnknown,
    RebalanceInProgress,
    RequestInvalid,
)

T = UUID(int=1)


@pytest.fixture
def rig() -> ConsumerGroupHarness:
    return ConsumerGroupHarness(Topics(t=4))


def test_a_first_member_gets_everything_at_once(rig):
    reply = rig.join("a")
    assert reply.error is None
    assert reply.member_epoch == 1
    assert reply.assignment == {T: (0, 1, 2, 3)}


def test_a_partition_is_revoked_before_another_member_gets_it(rig):
    rig.join("a")
    rig.advance(1_000)
    joined = rig.join("b")
    assert joined.assignment == {}
    told = rig.beat("a", 1)
    assert told.member_epoch == 1, "its epoch stays until it has revoked"
    assert told.assignment == {T: (0, 1)}
    assert rig.beat("b", 2).assignment is None, "not released yet"
    acknowledged = rig.beat("a", 1, owned={T: {0, 1}})
    assert acknowledged.member_epoch == 2
    assert rig.beat("b", 2).assignment == {T: (2, 3)}
    assert rig.state() == "Stable"


def test_a_list_from_before_the_revocation_does_not_release(rig):
    rig.join("a")  # it was promised 0 to 3, and may take them any moment
    rig.advance(1_000)
    rig.join("b")
    told = rig.beat("a", 1, owned={})
    assert told.assignment == {T: (0, 1)}
    assert rig.beat("b", 2).assignment is None
    assert rig.beat("a", 1).member_epoch == 1, "without a list, it still owns what it owned"
    assert rig.beat("b", 2).assignment is None
    assert rig.beat("a", 1, owned={T: {0, 1, 2, 3}}).member_epoch == 1, "a slow client took them"
    assert rig.beat("b", 2).assignment is None
    assert rig.beat("a", 1, owned={T: {0, 1}}).member_epoch == 2
    assert rig.beat("b", 2).assignment == {T: (2, 3)}


FULL = {"rebalance_timeout_ms": 30_000, "topic_names": ["t"]}


def test_after_a_lost_answer_only_what_was_reported_before_is_released(rig):
    rig.join("a")
    rig.beat("a", 1, owned={T: {0, 1, 2, 3}})
    rig.advance(1_000)
    rig.join("b")
    rig.beat("a", 1)
    assert rig.beat("a", 1, owned={T: {0, 1}}, **FULL).member_epoch == 2
    assert rig.beat("b", 2).assignment == {T: (2, 3)}


@pytest.mark.parametrize("is_revoking", [True, False])
def test_a_member_that_may_be_taking_what_it_must_give_up_is_fenced(rig, is_revoking):
    rig.join("a")
    rig.advance(1_000)
    rig.join("b")
    if is_revoking:
        assert rig.beat("a", 1).assignment == {T: (0, 1)}  # this answer is lost
    assert isinstance(rig.beat("a", 1, owned={}, **FULL).error, MemberEpochFenced)
    assert rig.beat("b", 2).assignment is None, "it may own them until it joins again"
    assert rig.join("a").assignment == {T: (0, 1)}
    assert rig.beat("b", 2).assignment == {T: (2, 3)}


def test_a_partition_of_an_answer_that_was_lost_is_taken_away_at_once(rig):
    rig.join("a")
    rig.beat("a", 1, owned={T: {0, 1, 2, 3}})
    rig.topics.set("t", 6)
    assert rig.beat("a", 1).member_epoch == 2  # this answer is lost
    rig.advance(1_000)
    rig.join("b")
    reply = rig.beat("a", 1, owned={T: {0, 1, 2}}, **FULL)
    assert reply.error is None
    assert reply.member_epoch == 3
    assert reply.assignment == {T: (0, 1, 2)}


def test_members_that_do_not_revoke_in_time_are_removed(rig):
    rig.join("a")
    rig.advance(1_000)
    rig.join("b")
    for _ in range(4):
        rig.beat("a", 1, owned={T: {0, 1, 2, 3}})
        rig.beat("b", 2)
        rig.advance(8_000)
    assert isinstance(rig.beat("a", 1).error, MemberUnknown)
    assert rig.beat("b", 2).assignment == {T: (0, 1, 2, 3)}


def test_a_session_ends_without_heartbeats(rig):
    rig.join("a")
    rig.advance(SESSION_MS - 1)
    assert rig.beat("a", 1).error is None
    rig.advance(SESSION_MS)
    assert isinstance(rig.beat("a", 1).error, MemberUnknown)
    assert rig.state() == "Empty"


def test_heartbeats_are_frequent_while_the_group_changes(rig):
    assert rig.join("a").heartbeat_interval_ms == 300
    rig.advance(4_000)
    assert rig.beat("a", 1).heartbeat_interval_ms == 2_000


def test_the_epoch_before_is_taken_if_the_answer_may_be_lost(rig):
    rig.join("a")
    rig.topics.set("t", 6)
    assert rig.beat("a", 1).member_epoch == 2
    assert isinstance(rig.beat("a", 1).error, MemberEpochFenced), "it does not say what it owns"
    again = rig.beat("a", 1, owned={T: {0, 1, 2, 3}})
    assert again.error is None
    assert again.member_epoch == 2
    assert isinstance(rig.beat("a", 1, owned={T: {9}}).error, MemberEpochFenced)
    assert isinstance(rig.beat("a", 3).error, MemberEpochFenced)


def test_a_fenced_member_joins_again_and_keeps_its_partitions(rig):
    rig.join("a")
    again = rig.join("a")
    assert again.member_epoch == 1, "nothing has changed for the group"
    assert again.assignment == {T: (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"rebalance_timeout_ms": -1}, RequestInvalid),
        ({"topic_names": None}, RequestInvalid),
        ({"owned": None}, RequestInvalid),
        ({"owned": {T: {1}}}, RequestInvalid),
        ({"instance_id": ""}, RequestInvalid),
        ({"rack": ""}, RequestInvalid),
        ({"rack": "r" * 1_001}, RequestInvalid),
        ({"instance_id": "i" * 1_001}, RequestInvalid),
        ({"member_epoch": -3}, RequestInvalid),
        ({"member_epoch": -2}, RequestInvalid),
        ({"member_id": "", "member_epoch": 3}, RequestInvalid),
        ({"member_id": "x" * 40_000}, RequestInvalid),
        ({"assignor": "best"}, AssignorUnsupported),
        ({"member_epoch": 5}, MemberUnknown),
        ({"member_epoch": -1}, MemberUnknown),
    ],
)
def test_a_wrong_heartbeat_is_refused(rig, changes, kind):
    member_id = changes.pop("member_id", "a")
    assert isinstance(rig.join(member_id, **changes).error, kind)
    assert GROUP not in rig.machine.groups


def test_a_member_without_an_id_gets_one(rig):
    reply = rig.join("", fresh_id="made")
    assert reply.member_id == "made"
    assert rig.beat("made", 1).error is None


def test_a_full_group_takes_back_its_own_alone():
    rig = ConsumerGroupHarness(Topics(t=4), GroupConfig(consumer_group_size_max=1))
    rig.join("a")
    assert isinstance(rig.join("b").error, GroupFull)
    assert rig.join("a").error is None


# --- static members ------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had(rig):
    rig.join("a", instance_id="i")
    rig.advance(1_000)
    rig.join("b")
    rig.beat("a", 1)
    assert isinstance(rig.join("c", instance_id="i").error, InstanceIdUnreleased)
    assert rig.beat("a", -2, instance_id="i").member_epoch == -2
    back = rig.join("c", instance_id="i")
    assert back.error is None
    assert back.assignment == {T: (0, 1)}
    assert rig.consumer().epoch == 2, "nothing was assigned anew"
    assert isinstance(rig.beat("a", 1, instance_id="i").error, InstanceIdFenced)
    assert isinstance(rig.beat("a", 1).error, MemberUnknown)


def test_a_static_member_that_stays_away_is_removed(rig):
    rig.join("a", instance_id="i")
    rig.beat("a", -2, instance_id="i")
    rig.advance(SESSION_MS)
    assert rig.state() == "Empty"
    assert rig.join("b", instance_id="i").assignment == {T: (0, 1, 2, 3)}


def test_a_static_member_leaves_for_good_with_epoch_minus_one(rig):
    rig.join("a", instance_id="i")
    assert rig.beat("a", -1, instance_id="i").member_epoch == -1
    assert rig.state() == "Empty"


# --- topics --------------------------------------------------------------------------------------


def test_a_new_partition_and_a_new_topic_are_assigned(rig):
    rig.join("a", topic_names=[], pattern="t.*")
    rig.topics.set("t", 5)
    assert rig.beat("a", 1).assignment == {T: (0, 1, 2, 3, 4)}
    rig.topics.set("t2", 1)
    rig.advance(1_000)
    assert rig.beat("a", 2).assignment == {T: (0, 1, 2, 3, 4), UUID(int=2): (0,)}
    rig.topics.drop("t")
    rig.advance(1_000)
    assert rig.beat("a", 3).assignment == {UUID(int=2): (0,)}


def test_a_restart_changes_nothing(rig):
    rig.join("a", topic_names=[], pattern="t.*")
    rig.topics.version += 10  # another broker counts otherwise
    rig.crash()
    reply = rig.beat("a", 1)
    assert reply.error is None
    assert reply.member_epoch == 1
    assert reply.assignment is None


def test_a_change_of_subscription_is_followed(rig):
    rig.topics.set("u", 2)
    rig.join("a")
    changed = rig.beat("a", 1, topic_names=["u"])
    assert changed.assignment == {}
    assert rig.beat("a", 1, owned={}).assignment == {UUID(int=2): (0, 1)}


# --- offsets -------------------------------------------------------------------------------------


def commit(
    rig: ConsumerGroupHarness, epoch: int, member: str, partition: int = 0, topic_id: UUID = T
):
    offset = OffsetToCommit("t", partition, 7, topic_id=topic_id)
    command = CommitCommand(GROUP, epoch, member, None, [offset], {"t": T})
    return rig.send(command).results[0].error


def test_only_members_commit_with_their_epoch(rig):
    rig.join("a")
    assert commit(rig, 1, "a") is None
    assert isinstance(commit(rig, 2, "a"), MemberEpochStale)
    assert isinstance(commit(rig, 1, "b"), MemberUnknown)
    assert isinstance(commit(rig, -1, ""), MemberUnknown)
    rig.beat("a", -1)
    assert commit(rig, -1, "") is None


def test_a_commit_on_its_way_counts_if_the_partition_was_its_all_along(rig):
    rig.join("a")
    rig.topics.set("t", 6)
    rig.beat("a", 1)
    assert rig.consumer().current["a"].epoch == 2
    assert commit(rig, 1, "a", 0) is None, "assigned at epoch 1"
    assert isinstance(commit(rig, 1, "a", 5), MemberEpochStale), "assigned at epoch 2"
    rig.crash()
    assert isinstance(commit(rig, 1, "a", 5), MemberEpochStale)


def test_a_fetch_is_for_members_at_their_epoch(rig):
    rig.join("a")
    fetch = FetchOffsetsCommand(GROUP, None, member_id="a", member_epoch=1)
    assert rig.send(fetch).error is None
    fetch.member_epoch = 2
    assert isinstance(rig.send(fetch).error, MemberEpochStale)
    fetch.member_id = "b"
    assert isinstance(rig.send(fetch).error, MemberUnknown)
    assert rig.send(FetchOffsetsCommand(GROUP)).error is None


def test_offsets_of_subscribed_topics_are_not_deleted(rig):
    rig.join("a", topic_names=[], pattern="t")
    command = DeleteOffsetsCommand(GROUP, [("t", 0), ("u", 0)], rig.topics)
    errors = [result.error for result in rig.send(command).results]
    assert isinstance(errors[0], GroupSubscribed)
    assert errors[1] is None


def test_offsets_outlive_the_last_member_by_the_retention():
    rig = ConsumerGroupHarness(Topics(t=4), GroupConfig(offsets_retention_ms=3_600_000))
    rig.join("a")
    assert commit(rig, 1, "a") is None
    for _ in range(800):
        rig.advance(SESSION_MS // 2)
        assert rig.beat("a", 1).error is None
    rig.beat("a", -1)
    rig.crash()
    rig.advance(2_400_000)
    assert rig.committed() == 7, "it counts from the end of the last member"
    rig.advance(1_900_000)
    assert GROUP not in rig.machine.groups
    assert rig.durable() == {}


# --- administration ------------------------------------------------------------------------------


def test_groups_are_listed_by_type(rig):
    rig.join("a")
    rig.join_classic("classic-group")
    listed = {g.group_id: g.group_type for g in rig.send(ListGroupsCommand()).groups}
    assert listed == {GROUP: "consumer", "classic-group": "classic"}
    only = rig.send(ListGroupsCommand([], ["Consumer"])).groups
    assert [(g.group_id, g.state) for g in only] == [(GROUP, "Stable")]


def test_a_group_is_described(rig):
    rig.join("a", rack="r", instance_id="i")
    rig.advance(1_000)
    rig.join("b", assignor="range")
    group, other = rig.send(DescribeConsumerGroupsCommand([GROUP, "x"], rig.topics)).groups
    assert isinstance(other.error, GroupUnknown)
    assert (group.state, group.epoch, group.target_epoch) == ("Reconciling", 2, 2)
    assert group.assignor == "range"
    first, second = group.members
    assert (first.rack, first.instance_id, first.member_epoch) == ("r", "i", 1)
    assert first.assigned == [(T, "t", (0, 1, 2, 3))]
    assert second.assigned == []
    assert {n for m in group.members for _, _, ns in m.target for n in ns} == {0, 1, 2, 3}


def test_a_tool_of_the_classic_protocol_sees_the_group(rig):
    rig.join("a")
    group = rig.send(DescribeGroupsCommand([GROUP], rig.topics)).groups[0]
    assert (group.state, group.protocol_type, group.protocol_name) == (
        "Stable",
        "consumer",
        "uniform",
    )
    assert group.group_type == "consumer"
    assert read_assignment(group.members[0].assignment) == {"t": (0, 1, 2, 3)}


def test_an_empty_group_is_deleted_with_all_its_records(rig):
    rig.join("a")
    assert commit(rig, 1, "a") is None
    refused = rig.send(DeleteGroupsCommand([GROUP])).groups[0].error
    assert isinstance(refused, GroupNotEmpty)
    rig.beat("a", -1)
    assert rig.send(DeleteGroupsCommand([GROUP])).groups[0].error is None
    assert rig.durable() == {}
    rig.crash()
    assert rig.machine.groups == {}


# --- from one protocol to the other --------------------------------------------------------------


def test_an_empty_classic_group_becomes_a_consumer_group_and_back(rig):
    member_id = rig.join_classic(GROUP)
    assert rig.send(CommitCommand(GROUP, 1, member_id, None, [OffsetToCommit("t", 0, 5)]))
    rig.leave_classic(GROUP, member_id)
    assert rig.join("a").error is None
    rig.crash()
    assert rig.committed() == 5
    rig.beat("a", -1)
    assert rig.join_classic(GROUP)
    rig.crash()
    assert rig.committed() == 5
    assert rig.machine.groups[GROUP].consumer is None


def assignment_of(
    rig: ConsumerGroupHarness, member_id: str, generation: int
) -> dict[str, tuple[int, ...]]:
    reply = rig.replies[rig.sync(member_id, generation, topics=rig.topics)]
    assert reply.error is None, reply.error
    return read_assignment(reply.assignment)


def test_a_classic_group_with_members_takes_one_of_the_new_protocol_and_back(rig):
    old = rig.join_classic(GROUP, {"t": (0, 1, 2, 3)})
    assert rig.join("a").assignment == {}
    assert rig.consumer().epoch == 2
    assert isinstance(rig.heartbeat(old, 1), RebalanceInProgress)
    joined = rig.rejoin_classic(old, {"t": (0, 1, 2, 3)})
    assert joined.generation == 1, "it has something to give up first"
    assert assignment_of(rig, old, 1) == {"t": (0, 1)}
    joined = rig.rejoin_classic(old, {"t": (0, 1)})
    assert joined.generation == 2
    assert joined.leader == ""
    assert assignment_of(rig, old, 2) == {"t": (0, 1)}
    assert rig.heartbeat(old, 2) is None
    assert rig.beat("a", 2).assignment == {T: (2, 3)}
    rig.crash()
    assert rig.state() == "Stable"
    assert commit(rig, 2, old) is None
    assert isinstance(commit(rig, 1, old), IllegalGeneration)
    rig.beat("a", -1)
    group = rig.machine.groups[GROUP]
    assert group.consumer is None
    assert (group.state, group.generation) == ("PreparingRebalance", 2)
    assert isinstance(rig.heartbeat(old, 2), RebalanceInProgress)
    rig.crash()
    assert isinstance(rig.heartbeat(old, 2), RebalanceInProgress)
    assert rig.committed() == 7


def test_a_group_of_other_clients_does_not_take_the_new_protocol(rig):
    rig.join_classic(GROUP, None, protocol_type="connect")
    assert isinstance(rig.join("a").error, InconsistentProtocol)
    assert rig.machine.groups[GROUP].state == "Stable"


def test_a_classic_client_that_shares_no_protocol_is_refused(rig):
    rig.join("a")
    for changes in ({"protocol_type": "connect"}, {"protocols": [("range", b"?")]}):
        ticket = GroupHarness.join(rig, **changes)
        assert isinstance(rig.replies[ticket].error, InconsistentProtocol)


def test_a_classic_member_that_was_removed_gives_up_what_it_has_first(rig):
    old = rig.join_classic(GROUP, {"t": (0, 1, 2, 3)})
    rig.join("a")
    rig.leave(LeavingMember(old))
    metadata = subscription("t")[:-4] + write_assignment([("t", (0, 1))], 1)[2:-4]
    ticket = GroupHarness.join(rig, old, protocols=[("range", metadata)], topics=rig.topics)
    assert isinstance(rig.replies[ticket].error, MemberUnknown)
    assert GroupHarness.join(rig, old, topics=rig.topics) in rig.replies
    assert old in rig.consumer().members


def test_a_classic_member_of_a_new_group_that_does_not_sync_is_removed(rig):
    rig.join("a")
    ticket = GroupHarness.join(rig, session_timeout_ms=1_000_000, rebalance_timeout_ms=5_000)
    member_id = rig.replies[ticket].member_id
    rig.advance(4_999)
    assert member_id in rig.consumer().members
    rig.advance(1)
    assert member_id not in rig.consumer().members


def test_an_administrator_removes_members_of_either_protocol(rig):
    rig.join("a", instance_id="i")
    rig.join("b")
    assert rig.leave(LeavingMember("", "i"), LeavingMember("b"), LeavingMember("c"))[:2] == [
        None,
        None,
    ]
    assert rig.state() == "Empty"


def test_classic_members_of_a_tenants_group_read_and_write_names_without_the_tenant():
    data = write_assignment([("«7»t", (0, 1))])
    assert data == write_assignment([("t", (0, 1))])
    assert read_assignment(data, "«7»g") == {"«7»t": (0, 1)}
    assert read_assignment(data, "g") == {"t": (0, 1)}
    found = read_subscription(write_subscription(["«7»t"]), "«8»g")
    assert found is not None
    assert found.topics == ("«8»t",)


def test_no_member_subscribes_to_a_key_of_a_tenant():
    named = write_subscription(["?acm?t", "own"]).replace(b"?acm?", "«a»".encode())
    found = read_subscription(named, "g")
    assert found is not None
    assert found.topics == ("own",)
