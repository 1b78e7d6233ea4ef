"""The rules of committed offsets, and of listing, describing and deleting groups."""

from __future__ import annotations

from unittest.mock import Mock, patch
from uuid import UUID

import pytest
from tests.unit.coordination.group_rig import GroupHarness, subscription

from headrace.coordination.groups import offsets
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
from headrace.coordination.groups.host_commands import ForgetTopicsCommand
from headrace.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    GroupUnknown,
    IllegalGeneration,
    InstanceIdFenced,
    MemberUnknown,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    TopicUnknown,
)

WEEK_MS = 7 * 24 * 3_600_000


def test_committed_offsets_survive_a_crash_unchanged():
    rig = GroupHarness()
    assert rig.commit(7, metadata="caf\u00e9") is None
    rig.crash()
    (found,) = rig.send(FetchOffsetsCommand("g", [("t", 0)])).offsets
    assert (found.offset, found.leader_epoch, found.metadata) == (7, 3, "caf\u00e9")


def test_nothing_committed_is_offset_minus_one_and_no_error():
    rig = GroupHarness()
    reply = rig.send(FetchOffsetsCommand("nobody", [("t", 0)]))
    assert reply.error is None
    assert reply.offsets == [("t", 0, -1, -1, "", None, None)]
    assert rig.send(FetchOffsetsCommand("nobody")).offsets == []


def test_all_offsets_of_a_group_come_sorted():
    rig = GroupHarness()
    for topic in "cab":
        rig.commit(1, topic=topic)
    assert [o.topic for o in rig.send(FetchOffsetsCommand("g")).offsets] == ["a", "b", "c"]


def test_a_member_commits_in_its_generation_only():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    assert rig.commit(1, 1, a) is None
    assert isinstance(rig.commit(2, 0, a), IllegalGeneration)
    assert isinstance(rig.commit(2, 2, a), IllegalGeneration)
    assert isinstance(rig.commit(2, 1, "who"), MemberUnknown)
    assert isinstance(rig.commit(2, 1, a, instance_id="i"), MemberUnknown)
    assert rig.committed() == 1


def test_a_commit_of_an_old_generation_is_refused_after_a_rebalance():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    rig.join()
    rig.join(a)
    assert isinstance(rig.commit(1, 1, a), IllegalGeneration)


def test_a_commit_while_others_rejoin_is_taken_and_before_the_assignment_is_not():
    rig = GroupHarness()
    a, b = rig.settle(2)
    generation = rig.group().generation
    rig.join(a)
    assert rig.commit(1, generation, b) is None
    rig.join(b)
    assert isinstance(rig.commit(2, generation + 1, b), RebalanceInProgress)


def test_a_commit_counts_as_a_heartbeat():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    for offset in range(5):
        rig.advance(9_000)
        assert rig.commit(offset, 1, a) is None


def test_a_fenced_static_member_commits_no_more():
    rig = GroupHarness()
    old = rig.replies[rig.join(group_instance_id="i")].member_id
    rig.sync(old, 1, {old: b""})
    rig.join(group_instance_id="i")
    assert isinstance(rig.commit(1, 1, old, instance_id="i"), InstanceIdFenced)


def test_a_simple_consumer_commits_only_in_a_group_without_members():
    rig = GroupHarness()
    assert rig.commit(1) is None
    (a,) = rig.settle(1)
    assert isinstance(rig.commit(2), MemberUnknown)
    rig.leave(LeavingMember(a))
    assert rig.commit(3) is None
    assert isinstance(rig.commit(4, 1, "x", group_id="new"), IllegalGeneration)


def test_partitions_are_answered_one_by_one():
    rig = GroupHarness()
    offsets = [
        OffsetToCommit("t", 0, 1, -1, "x" * 4_096),
        OffsetToCommit("t", 1, 1, -1, "x" * 4_097),
        OffsetToCommit("t", 2, 1, -1, None),
        OffsetToCommit("", 3, 1, -1, ""),
    ]
    results = rig.send(CommitCommand("g", -1, "", None, offsets)).results
    assert [type(r.error) for r in results] == [
        type(None),
        OffsetMetadataTooLarge,
        type(None),
        TopicUnknown,
    ]
    assert [o.partition for o in rig.send(FetchOffsetsCommand("g")).offsets] == [0, 2]


# --- delete ---------------------------------------------------------------------------------------


def delete(rig: GroupHarness, *topics: str):
    return rig.send(DeleteOffsetsCommand("g", [(topic, 0) for topic in topics]))


def test_a_topic_of_a_tenant_has_a_name_as_long_as_others():
    rig = GroupHarness()
    assert rig.commit(1, topic="«acme»" + "t" * 249) is None
    assert isinstance(rig.commit(1, topic="«acme»" + "t" * 250), TopicUnknown)


def test_offsets_of_subscribed_topics_cannot_be_deleted():
    rig = GroupHarness()
    rig.commit(1)
    rig.commit(1, topic="u")
    rig.settle(1)
    reply = delete(rig, "t", "u", "v")
    assert reply.error is None
    assert isinstance(reply.results[0].error, GroupSubscribed)
    assert [r.error for r in reply.results[1:]] == [None, None]
    assert (rig.committed(), rig.committed("u")) == (1, -1)
    rig.crash()
    assert rig.committed("u") == -1


def test_offsets_of_an_empty_group_can_all_be_deleted():
    rig = GroupHarness()
    rig.commit(1)
    assert delete(rig, "t").results[0].error is None
    assert "g" not in rig.machine.groups


def test_offsets_are_kept_when_a_subscription_cannot_be_read():
    rig = GroupHarness()
    rig.commit(1)
    rig.settle(1, protocols=[("range", b"\0")])
    assert isinstance(delete(rig, "t").results[0].error, GroupSubscribed)


def test_offsets_of_other_kinds_of_groups_and_of_none_cannot_be_deleted():
    rig = GroupHarness()
    assert isinstance(delete(rig, "t").error, GroupUnknown)
    rig.settle(1, protocol_type="connect")
    assert isinstance(delete(rig, "t").error, GroupNotEmpty)


def test_offsets_committed_for_a_recreated_topic_are_kept():
    rig = GroupHarness()
    old, new = UUID(int=1), UUID(int=2)
    for group_id, meant in (("old", old), ("new", new), ("unknown", None)):
        offset = OffsetToCommit("t", 0, 1, -1, "", meant)
        rig.send(CommitCommand(group_id, -1, "", None, [offset]))
    rig.crash()
    rig.send(ForgetTopicsCommand([("t", old)]))
    assert list(rig.machine.groups) == ["new"]


def test_a_commit_is_kept_with_the_id_of_its_topic():
    rig = GroupHarness()
    old, new = UUID(int=1), UUID(int=2)
    offsets = [OffsetToCommit("t", n, 1, -1, "", meant) for n, meant in enumerate((None, old, new))]
    offsets.append(OffsetToCommit("gone", 0, 1))
    command = CommitCommand("g", -1, "", None, offsets, {"t": new})
    errors = [result.error for result in rig.send(command).results]
    assert [type(error) for error in errors] == [type(None), TopicUnknown, type(None), TopicUnknown]
    rig.crash()
    found = rig.send(FetchOffsetsCommand("g")).offsets
    assert [(o.partition, o.topic_id) for o in found] == [(0, new), (2, new)]


def test_a_deleted_topic_takes_its_offsets_along_in_every_group():
    rig = GroupHarness()
    rig.commit(1)
    rig.commit(1, topic="u", group_id="h")
    rig.commit(1, topic="t", group_id="h")
    rig.send(ForgetTopicsCommand([("t", UUID(int=1))]))
    assert (rig.committed(), rig.committed("t", "h"), rig.committed("u", "h")) == (-1, -1, 1)
    rig.crash()
    assert list(rig.machine.groups) == ["h"]


# --- expiry ---------------------------------------------------------------------------------------


def test_a_simple_consumers_offsets_expire_after_their_last_commit():
    rig = GroupHarness()
    rig.commit(1)
    rig.advance(WEEK_MS - 1_000_000)
    rig.commit(2)
    rig.advance(WEEK_MS - 1_000_000)
    assert rig.committed() == 2
    rig.advance(2_000_000)
    assert rig.committed() == -1
    assert rig.machine.groups == {}
    assert rig.machine.next_deadline_ms() is None


def test_a_groups_offsets_expire_after_it_became_empty_and_never_before():
    rig = GroupHarness()
    (a,) = rig.settle(1, session_timeout_ms=1_800_000)
    rig.commit(1, 1, a)
    for _ in range(800):
        rig.advance(1_000_000)
        assert rig.heartbeat(a, 1) is None
    assert rig.committed() == 1
    rig.leave(LeavingMember(a))
    rig.advance(WEEK_MS - 1)
    assert rig.committed() == 1
    rig.crash()
    rig.advance(600_001)
    assert rig.committed() == -1
    rig.crash()
    assert rig.machine.groups == {}


def test_an_expiry_wave_is_cut_into_helpings():
    rig = GroupHarness(GroupConfig(expired_offsets_per_tick_max=10), check_purity=False)
    for number in range(50):
        rig.commit(1, group_id=f"g{number}")
    rig.advance(WEEK_MS + 600_000 - 1_000)
    before = len(rig.log)
    rig.advance(2_000)
    assert len(rig.log) - before <= 30
    rig.advance(60_000)
    assert rig.machine.groups == {}


def test_offsets_are_examined_in_helpings_and_the_next_tick_goes_on():
    """A million offsets at once held up the loop for 72 ms."""
    rig = GroupHarness(GroupConfig(offsets_examined_per_tick_max=10), check_purity=False)
    rig.commit(1, group_id="late")
    rig.advance(WEEK_MS)
    for number in range(50):
        rig.commit(1, group_id=f"g{number}")
    rig.commit(1, group_id="late")  # the first in order, and not expired
    for number in range(0, 50, 2):
        rig.send(DeleteGroupsCommand([f"g{number}"]))
    with patch.object(offsets, "_kept_since_ms", Mock(wraps=offsets._kept_since_ms)) as kept:
        rig.advance(600_000)
        assert 0 < kept.call_count <= 12
        rig.advance(60_000)
        assert kept.call_count >= 26
    rig.advance(WEEK_MS + 600_000)
    assert rig.machine.groups == {}


# --- groups ---------------------------------------------------------------------------------------


def test_groups_are_listed_by_state_and_type():
    rig = GroupHarness()
    rig.settle(1)
    rig.commit(1, group_id="f")
    everything = rig.send(ListGroupsCommand()).groups
    assert everything == [("f", "", "Empty", "classic"), ("g", "consumer", "Stable", "classic")]
    assert rig.send(ListGroupsCommand(["stable"])).groups == everything[1:]
    assert rig.send(ListGroupsCommand([], ["Classic"])).groups == everything
    assert rig.send(ListGroupsCommand([], ["consumer"])).groups == []


def test_a_stable_group_is_described_with_metadata_and_assignment():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    group, other = rig.send(DescribeGroupsCommand(["g", "x"])).groups
    assert (group.state, group.protocol_type, group.protocol_name) == (
        "Stable",
        "consumer",
        "range",
    )
    assert group.group_type == "classic"
    assert group.members == [(a, None, "c", "/127.0.0.1", subscription("t"), a.encode())]
    assert (other.state, type(other.error)) == ("Dead", GroupUnknown)


def test_a_group_that_rebalances_is_described_without_them():
    rig = GroupHarness()
    (a,) = rig.settle(1)
    rig.join()
    (group,) = rig.send(DescribeGroupsCommand(["g"])).groups
    assert (group.state, group.protocol_name) == ("PreparingRebalance", "")
    assert (group.members[0].member_id, group.members[0].assignment) == (a, b"")


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_empty_group_can_be_deleted_with_its_offsets(is_stored):
    rig = GroupHarness()
    if is_stored:
        rig.leave(LeavingMember(rig.settle(1)[0]))
    rig.commit(1)
    errors = [r.error for r in rig.send(DeleteGroupsCommand(["g", "g", "x"])).groups]
    assert errors[0] is None
    assert isinstance(errors[1], GroupUnknown)
    assert isinstance(errors[2], GroupUnknown)
    assert rig.machine.groups == {}
    rig.crash()
    assert rig.machine.groups == {}


def test_a_group_with_members_cannot_be_deleted():
    rig = GroupHarness()
    rig.settle(1)
    (result,) = rig.send(DeleteGroupsCommand(["g"])).groups
    assert isinstance(result.error, GroupNotEmpty)
