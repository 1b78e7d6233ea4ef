"""Streams groups (KIP-1071): joining, tasks, internal topics, offsets, leaving."""

from __future__ import annotations

import pytest
from tests.unit.coordination.consumer_rig import Topics
from tests.unit.coordination.streams_rig import (
    GROUP,
    NOTHING,
    SESSION_MS,
    STATELESS,
    WITH_STATE,
    StreamsGroupHarness,
    active,
)

from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    JoinCommand,
    ListGroupsCommand,
    OffsetToCommit,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.streams.tasks import StreamTasks
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)
from headrace.errors import (
    GroupFull,
    GroupNotEmpty,
    GroupUnknown,
    InconsistentProtocol,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberEpochStale,
    MemberUnknown,
    RequestInvalid,
    StreamsTopologyInvalid,
)

SHUTDOWN, MISSING_INTERNAL, INCORRECT, MISSING_SOURCE, STALE = 4, 3, 2, 1, 0


@pytest.fixture
def rig() -> StreamsGroupHarness:
    """A machine that assigns at once; topic `t` has four partitions."""
    return StreamsGroupHarness(Topics(t=4), GroupConfig(assignment_interval_ms=0))


LONG = "x" * 1_001


@pytest.mark.parametrize(
    "field",
    [
        {"instance_id": LONG},
        {"rack": LONG},
        {"process_id": LONG},
        {"endpoint": (LONG, 1)},
        {"tags": ((LONG, "v"),)},
        {"tags": (("zone", LONG),)},
    ],
)
def test_a_member_has_short_names_and_tags(rig, field):
    """They are kept with it, and a request may have 8 MiB."""
    assert isinstance(rig.join("a", **field).error, RequestInvalid)
    assert isinstance(rig.join(LONG).error, RequestInvalid)
    assert rig.join("b", tags=(("zone", "z" * 1_000),), rack="r" * 1_000).error is None


def codes(reply) -> list[int]:
    return [status.code for status in reply.statuses]


# --- joining and tasks -----------------------------------------------------------------------


def test_a_member_alone_gets_all_tasks(rig):
    reply = rig.join("m1")
    assert (reply.error, reply.tasks) == (None, active(s0=(0, 1, 2, 3)))
    assert reply.member_epoch > 0
    assert rig.streams().state() == "Stable"


def test_tasks_are_revoked_before_another_member_gets_them(rig):
    first = rig.join("m1")
    rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)))
    second = rig.join("m2")
    assert second.tasks == NOTHING, "the first member still has them"
    asked = rig.beat("m1", first.member_epoch)
    assert asked.tasks == active(s0=(0, 1))
    assert asked.member_epoch == first.member_epoch, "its epoch stays until it has revoked"
    assert rig.beat("m2", second.member_epoch).tasks is None
    done = rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1)))
    assert done.member_epoch == second.member_epoch
    assert rig.beat("m2", second.member_epoch).tasks == active(s0=(2, 3))


def test_nothing_is_revoked_from_a_member_that_has_not_confirmed_its_tasks(rig):
    first = rig.join("m1")
    second = rig.join("m2")
    early = rig.beat("m1", first.member_epoch, owned=NOTHING)
    assert early.tasks == active(s0=(0, 1, 2, 3)), "the answer may have been lost: once more"
    assert rig.beat("m2", second.member_epoch).tasks is None
    asked = rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)))
    assert asked.tasks == active(s0=(0, 1))


def test_a_list_from_before_the_members_epoch_releases_nothing(rig):
    first = rig.join("m1")
    second = rig.join("m2")
    rig.beat("m2", -1)
    rig.beat("m1", first.member_epoch)
    at = rig.streams().current["m1"]
    rig.beat("m1", at.epoch, owned=active(s0=(0, 1, 2, 3)))
    third = rig.join("m3")
    rig.beat("m1", at.epoch)
    assert at.previous_epoch == first.member_epoch < second.member_epoch
    rig.beat("m1", at.previous_epoch, owned=active(s0=(0, 1)))
    assert rig.beat("m3", third.member_epoch).tasks is None, "the first member still has them"


def test_a_member_that_comes_back_in_another_process_shares_no_task_with_its_threads(rig):
    rig.topics.set("c", 4)
    rig.surroundings = {"standby_count": 1}
    one = rig.join("m1", WITH_STATE, instance_id="i", process_id="p1")
    two = rig.join("m2", WITH_STATE, process_id="p2")
    for _ in range(2):
        reply = rig.beat("m1", one.member_epoch, instance_id="i", owned=held(rig, "m1"))
        one = one if reply.error else reply
        reply = rig.beat("m2", two.member_epoch, owned=held(rig, "m2"))
        two = two if reply.error else reply
    rig.beat("m1", -2, instance_id="i")
    back = rig.join("m3", WITH_STATE, instance_id="i", process_id="p2")
    near = held(rig, "m2")
    for role in back.tasks.roles():
        for one_id, numbers in role.items():
            for other in near.roles():
                assert not {*numbers} & {*other.get(one_id, ())}


def held(rig: StreamsGroupHarness, member_id: str) -> StreamTasks:
    """What the group says that a member has."""
    return rig.streams().current[member_id].assigned.plain()


def test_a_member_does_not_change_its_process(rig):
    first = rig.join("m1")
    reply = rig.beat("m1", first.member_epoch, process_id="another")
    assert isinstance(reply.error, RequestInvalid)


def test_the_first_members_gather_before_tasks_are_assigned(rig):
    rig.surroundings = {"initial_delay_ms": 500}
    first, second = rig.join("m1"), rig.join("m2")
    assert (first.tasks, second.tasks) == (NOTHING, NOTHING)
    assert first.member_epoch > 0, "epoch 0 would tell the client that it has not joined"
    rig.advance(500)
    assert rig.beat("m1", first.member_epoch, owned=NOTHING).tasks == active(s0=(0, 2))
    assert rig.beat("m2", second.member_epoch, owned=NOTHING).tasks == active(s0=(1, 3))


def test_gathering_ends_though_the_coordinator_was_read_back_meanwhile(rig):
    rig.surroundings = {"initial_delay_ms": 500}
    reply = rig.join("m1")
    rig.crash()
    assert rig.beat("m1", reply.member_epoch).tasks == active(s0=(0, 1, 2, 3))


def test_standby_tasks_are_in_other_processes_and_no_task_is_twice_in_one(rig):
    rig.topics.set("c", 4)
    rig.surroundings = {"standby_count": 1}
    rig.join("m1", WITH_STATE, process_id="p1")
    rig.join("m2", WITH_STATE, process_id="p1")
    rig.join("m3", WITH_STATE, process_id="p2")
    target = rig.streams().target
    by_process = [[*target["m1"].active["0"], *target["m2"].active["0"]], target["m3"].active["0"]]
    near = [*target["m1"].standby.get("0", ()), *target["m2"].standby.get("0", ())]
    assert sorted(near) == sorted(by_process[1])
    assert sorted(target["m3"].standby["0"]) == sorted(by_process[0])


def test_another_number_of_standbys_changes_the_assignment(rig):
    rig.topics.set("c", 4)
    first = rig.join("m1", WITH_STATE)
    rig.join("m2", WITH_STATE)
    epoch = rig.streams().epoch
    rig.surroundings = {"standby_count": 1}
    rig.beat("m1", first.member_epoch)
    assert rig.streams().epoch == epoch + 1
    assert all(tasks.standby for tasks in rig.streams().target.values())


def test_a_lost_answer_is_made_good(rig):
    first = rig.join("m1")
    rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)))
    second = rig.join("m2")
    rig.beat("m1", first.member_epoch)
    rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1)))  # its answer is lost
    again = rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1)))
    assert (again.error, again.member_epoch) == (None, second.member_epoch)


def test_epochs_that_are_not_the_members_are_fenced(rig):
    first = rig.join("m1")
    for epoch in (first.member_epoch + 1, 1):
        assert isinstance(rig.beat("m1", epoch).error, MemberEpochFenced)
    assert isinstance(rig.beat("other", first.member_epoch).error, MemberUnknown)


def test_a_session_that_ends_gives_tasks_to_the_others(rig):
    first = rig.join("m1")
    rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)))
    second = rig.join("m2")
    rig.advance(SESSION_MS - 1)
    assert rig.beat("m2", second.member_epoch).tasks is None
    rig.advance(1)
    assert rig.beat("m2", second.member_epoch).tasks == active(s0=(0, 1, 2, 3))
    assert "m1" not in rig.streams().members


def test_a_static_member_keeps_its_tasks_while_it_is_away(rig):
    first = rig.join("m1", instance_id="i")
    rig.join("m2")
    epoch = rig.streams().epoch
    assert isinstance(rig.join("m3", instance_id="i").error, InstanceIdUnreleased)
    assert rig.beat("m1", -2, instance_id="i").error is None
    back = rig.join("m3", instance_id="i", process_id="process of m1")
    assert back.tasks == active(s0=(0, 1)), "what the target gives it, of what it had"
    assert rig.streams().epoch == epoch, "no new assignment"
    assert isinstance(rig.beat("m1", first.member_epoch).error, MemberUnknown)


def test_a_full_group_takes_no_more():
    rig = StreamsGroupHarness(Topics(t=4), GroupConfig(streams_group_size_max=1))
    rig.join("m1")
    assert isinstance(rig.join("m2").error, GroupFull)


def test_the_request_to_shut_down_reaches_all_members(rig):
    first = rig.join("m1")
    second = rig.join("m2")
    assert codes(rig.beat("m1", first.member_epoch, is_shutdown_asked=True)) == [SHUTDOWN]
    assert codes(rig.beat("m2", second.member_epoch)) == [SHUTDOWN]
    rig.beat("m1", -1)
    rig.beat("m2", -1)
    assert codes(rig.join("m3")) == [], "the next ones start anew"


def test_members_learn_where_other_processes_answer_queries(rig):
    first = rig.join("m1", endpoint=("h1", 1))
    assert [(e.endpoint, e.active) for e in first.endpoints] == [(("h1", 1), {"t": (0, 1, 2, 3)})]
    epoch = first.endpoint_epoch
    second = rig.join("m2", endpoint_epoch=epoch)
    assert second.endpoints is None, "nothing has changed"
    told = rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)), endpoint_epoch=epoch)
    assert told.endpoints is not None
    assert told.endpoint_epoch != epoch


def test_a_heartbeat_without_changes_writes_nothing(rig):
    first = rig.join("m1")
    rig.beat("m1", first.member_epoch, owned=active(s0=(0, 1, 2, 3)))
    size = len(rig.log)
    rig.advance(5_000)
    reply = rig.beat("m1", first.member_epoch, endpoint_epoch=0)
    assert (reply.error, reply.tasks, reply.heartbeat_interval_ms) == (None, None, 2_000)
    assert len(rig.log) == size


# --- topology and topics -----------------------------------------------------------------------

COUNTING = Topology(
    0,
    (
        Subtopology("0", ("t",), repartition_sinks=("r",)),
        Subtopology(
            "1",
            changelog_topics=(InternalTopic("c", configs=(("cleanup.policy", "compact"),)),),
            repartition_sources=(InternalTopic("r"),),
        ),
    ),
)


def test_missing_internal_topics_are_named_with_their_partition_counts(rig):
    reply = rig.join("m1", COUNTING)
    assert (codes(reply), reply.tasks) == ([MISSING_INTERNAL], NOTHING)
    assert {(t.name, t.partition_count) for t in reply.missing} == {("r", 4), ("c", 4)}
    assert rig.streams().state() == "NotReady"
    for topic in reply.missing:
        rig.topics.set(topic.name, topic.partition_count)
    ready = rig.beat("m1", reply.member_epoch)
    assert (codes(ready), ready.tasks) == ([], active(s0=(0, 1, 2, 3), s1=(0, 1, 2, 3)))


def test_missing_source_topics_are_named(rig):
    reply = rig.join("m1", Topology(0, (Subtopology("0", ("t", "absent")),)))
    assert codes(reply) == [MISSING_SOURCE]
    assert "absent" in reply.statuses[0].detail
    rig.topics.set("absent", 2)
    assert rig.beat("m1", reply.member_epoch).tasks == active(s0=(0, 1, 2, 3))


def test_topics_that_are_joined_need_as_many_partitions(rig):
    rig.topics.set("u", 3)
    joined = Subtopology("0", ("t", "u"), copartition_groups=(CopartitionGroup((0, 1)),))
    assert codes(rig.join("m1", Topology(0, (joined,)))) == [INCORRECT]


def test_a_repartition_topic_follows_the_topics_that_it_is_joined_with(rig):
    rig.topics.set("u", 6)
    topology = Topology(
        0,
        (
            Subtopology("0", ("t",), repartition_sinks=("r",)),
            Subtopology(
                "1",
                ("u",),
                repartition_sources=(InternalTopic("r"),),
                copartition_groups=(CopartitionGroup((0,), (), (0,)),),
            ),
        ),
    )
    reply = rig.join("m1", topology)
    assert [(t.name, t.partition_count) for t in reply.missing] == [("r", 6)]


def test_an_internal_topic_with_other_partitions_is_an_error(rig):
    rig.topics.set("c", 3)
    reply = rig.join("m1", WITH_STATE)
    assert (codes(reply), list(reply.missing)) == ([INCORRECT], [])


def test_members_keep_their_tasks_while_a_topic_is_missing(rig):
    rig.topics.set("c", 4)
    first = rig.join("m1", WITH_STATE)
    rig.topics.drop("c")
    reply = rig.beat("m1", first.member_epoch)
    assert (codes(reply), reply.tasks) == ([MISSING_INTERNAL], None)
    assert rig.streams().current["m1"].assigned.active["0"].keys() == {0, 1, 2, 3}


def test_more_partitions_of_a_source_topic_are_more_tasks(rig):
    first = rig.join("m1")
    rig.topics.set("t", 6)
    assert rig.beat("m1", first.member_epoch).tasks == active(s0=(0, 1, 2, 3, 4, 5))


def test_another_topology_waits_until_the_members_have_left(rig):
    rig.join("m1")
    other = Topology(0, (Subtopology("0", ("t",)), Subtopology("1", ("t",))))
    assert isinstance(rig.join("m2", other).error, RequestInvalid)
    assert isinstance(rig.join("m2", other._replace(epoch=1)).error, RequestInvalid)
    rig.beat("m1", -1)
    assert rig.join("m2", other._replace(epoch=1)).tasks == active(s0=(0, 1, 2, 3), s1=(0, 1, 2, 3))
    stale = rig.join("m3")
    assert (codes(stale), stale.tasks) == ([STALE], NOTHING)
    assert rig.streams().target["m3"] == NOTHING, "it does not know the new tasks"


BROKEN = {
    "no subtopology": Topology(0, ()),
    "negative epoch": STATELESS._replace(epoch=-1),
    "twice the same id": Topology(0, (Subtopology("0", ("t",)), Subtopology("0", ("t",)))),
    "reads nothing": Topology(0, (Subtopology("0"),)),
    "no topic name": Topology(0, (Subtopology("0", ("a/b",)),)),
    "a topic of the brokers": Topology(0, (Subtopology("0", ("__consumer_offsets",)),)),
    "a pattern": Topology(0, (Subtopology("0", ("t",), ("a.*",)),)),
    "a topic twice": Topology(0, (Subtopology("0", ("t", "t")),)),
    "too many": Topology(0, tuple(Subtopology(str(n), ("t",)) for n in range(1_001))),
    "too many topics": Topology(0, (Subtopology("0", tuple(map(str, range(10_001)))),)),
    "partitions of a changelog": Topology(
        0, (Subtopology("0", ("t",), changelog_topics=(InternalTopic("c", 3),)),)
    ),
    "partitions without end": Topology(
        0,
        (Subtopology("0", ("t",), repartition_sources=(InternalTopic("r", 2**31 - 1),)),),
    ),
    "an index out of range": Topology(
        0, (Subtopology("0", ("t",), copartition_groups=(CopartitionGroup((1,)),)),)
    ),
    "no writer": Topology(
        0, (Subtopology("0", ("t",), repartition_sources=(InternalTopic("r"),)),)
    ),
    "writes to itself": Topology(
        0,
        (Subtopology("0", repartition_sinks=("r",), repartition_sources=(InternalTopic("r"),)),),
    ),
    "too large": Topology(
        0,
        tuple(
            Subtopology(str(n) * 1_000, tuple(f"{'x' * 240}{m}" for m in range(9)))
            for n in range(500)
        ),
    ),
}


@pytest.mark.parametrize("topology", BROKEN.values(), ids=BROKEN)
def test_a_topology_that_cannot_be_is_refused_and_leaves_nothing(rig, topology):
    assert isinstance(rig.join("m1", topology).error, StreamsTopologyInvalid)
    assert GROUP not in rig.machine.groups


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": None},
        {"process_id": None},
        {"owned": None},
        {"owned": active(s0=(0,))},
        {"rebalance_timeout_ms": -1},
        {"instance_id": ""},
        {"member_epoch": -3},
        {"client_id": "x" * 40_000},
        {"tags": (("k", "v"),) * 101},
    ],
)
def test_a_join_that_contradicts_itself_is_refused(rig, changes):
    assert isinstance(rig.join("m1", **changes).error, RequestInvalid)


def test_tasks_that_the_topology_does_not_have_are_refused(rig):
    first = rig.join("m1")
    for tasks in (active(s0=(4,)), active(s0=(-1,)), active(s9=(0,))):
        assert isinstance(rig.beat("m1", first.member_epoch, owned=tasks).error, RequestInvalid)


# --- other kinds of groups -----------------------------------------------------------------------


def consumer_join(rig: StreamsGroupHarness):
    return rig.send(
        ConsumerHeartbeatCommand(
            GROUP,
            "c1",
            0,
            rebalance_timeout_ms=30_000,
            topic_names=["t"],
            owned={},
            topics=rig.topics,
        )
    )


def classic_join(rig: StreamsGroupHarness):
    return rig.send(
        JoinCommand(GROUP, "", None, "c", "/h", 10_000, 10_000, "consumer", [("range", b"")])
    )


def test_consumers_do_not_join_a_streams_group_with_members(rig):
    rig.join("m1")
    assert isinstance(consumer_join(rig).error, GroupUnknown)
    assert isinstance(classic_join(rig).error, InconsistentProtocol)


def test_streams_do_not_join_a_group_of_consumers_with_members(rig):
    consumer_join(rig)
    assert isinstance(rig.join("m1").error, GroupUnknown)


def test_an_empty_group_takes_the_protocol_of_the_next_member_and_keeps_its_offsets(rig):
    rig.join("m1")
    rig.beat("m1", -1)
    commit(rig, "", -1, ("t", 0))
    assert consumer_join(rig).error is None
    assert rig.machine.groups[GROUP].streams is None
    rig.crash()
    assert rig.machine.groups[GROUP].consumer is not None
    rig.send(ConsumerHeartbeatCommand(GROUP, "c1", -1))
    assert rig.join("m2").tasks == active(s0=(0, 1, 2, 3))
    assert rig.machine.groups[GROUP].offsets["t", 0].offset == 5
    rig.crash()
    assert rig.streams().state() == "Stable"


# --- offsets and administration ------------------------------------------------------------------


def commit(rig: StreamsGroupHarness, member_id: str, epoch: int, *places: tuple[str, int]):
    offsets = [OffsetToCommit(topic, number, 5) for topic, number in places]
    return rig.send(CommitCommand(GROUP, epoch, member_id, None, offsets)).results


def test_a_member_commits_with_its_epoch_or_the_one_of_its_task(rig):
    first = rig.join("m1")
    old = first.member_epoch
    rig.beat("m1", old, owned=active(s0=(0, 1, 2, 3)))
    second = rig.join("m2")
    rig.beat("m1", old)
    rig.beat("m1", old, owned=active(s0=(0, 1)))
    rig.beat("m2", second.member_epoch)
    assert [r.error for r in commit(rig, "m1", old, ("t", 0))] == [None], "it has it since then"
    (refused,) = commit(rig, "m1", old, ("t", 2))
    assert isinstance(refused.error, MemberEpochStale), "another member has it now"
    (early,) = commit(rig, "m1", second.member_epoch + 1, ("t", 0))
    assert isinstance(early.error, MemberEpochStale)
    assert isinstance(commit(rig, "x", old, ("t", 0))[0].error, MemberUnknown)
    fetch = FetchOffsetsCommand(GROUP, [("t", 0)], member_id="m1", member_epoch=old)
    assert isinstance(rig.send(fetch).error, MemberEpochStale)


def test_a_streams_group_is_listed_described_and_deleted(rig):
    rig.join("m1", client_id="app", tags=(("zone", "z"),))
    (listed,) = rig.send(ListGroupsCommand(types=["Streams"])).groups
    assert tuple(listed) == (GROUP, "streams", "Stable", "streams")
    described = rig.describe()
    assert (described.state, described.topology) == ("Stable", STATELESS)
    (member,) = described.members
    assert (member.stored.client_id, member.assigned) == ("app", active(s0=(0, 1, 2, 3)))
    (classic,) = rig.send(DescribeGroupsCommand([GROUP])).groups
    assert (classic.error, classic.group_type, len(classic.members)) == (None, "streams", 1)
    (result,) = rig.send(DeleteGroupsCommand([GROUP])).groups
    assert isinstance(result.error, GroupNotEmpty)
    rig.beat("m1", -1)
    assert rig.describe().state == "Empty"
    (result,) = rig.send(DeleteGroupsCommand([GROUP])).groups
    assert result.error is None
    assert isinstance(rig.describe().error, GroupUnknown)
    rig.crash()
    assert GROUP not in rig.machine.groups


def test_an_unknown_group_is_described_as_dead(rig):
    assert isinstance(rig.describe().error, GroupUnknown)
    assert rig.describe().state == "Dead"


def test_an_empty_group_is_forgotten_after_its_offsets(rig):
    rig.join("m1")
    rig.beat("m1", -1)
    commit(rig, "", -1, ("t", 0))
    rig.advance(rig.config.offsets_retention_ms + 2 * rig.config.retention_check_interval_ms)
    assert GROUP not in rig.machine.groups


def test_warm_up_tasks_that_are_reported_are_taken(rig):
    first = rig.join("m1")
    owned = StreamTasks({"0": (0, 1, 2, 3)}, {}, {"0": (0,)})
    assert rig.beat("m1", first.member_epoch, owned=owned).error is None
