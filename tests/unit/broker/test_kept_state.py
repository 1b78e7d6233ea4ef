"""What clients keep in a broker without tenants is bounded, and what is there goes on."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker
from tests.kit.records import append, batch
from tests.waiting import until

import headrace.broker.node as node_module
from headrace.broker.broker_config import BrokerConfig
from headrace.broker.coordinators import groups_configured
from headrace.broker.coordinators.kept_state import SLICE, Kept
from headrace.broker.coordinators.transaction_coordinator import IDLE_MS_MIN
from headrace.broker.security import tenant_shares
from headrace.broker.security.principal import BROKER, Principal
from headrace.broker.security.tenant_shares import NOBODY
from headrace.broker.services.configurations import SET, ConfigChange
from headrace.broker.shares import lite_partitions, parked_room, share_partitions
from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    JoinCommand,
    LeaveCommand,
    LeavingMember,
    OffsetToCommit,
    SyncCommand,
)
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.shares.membership import ShareHeartbeat
from headrace.coordination.streams.commands import (
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)
from headrace.coordination.streams.tasks import StreamTasks
from headrace.coordination.streams.topology import Subtopology, Topology
from headrace.coordination.transactions.commands import AddPartitionsCommand, InitProducerIdCommand
from headrace.errors import (
    GroupFull,
    HeadraceError,
    PolicyViolation,
    ProducerIdMappingInvalid,
)
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from uuid import UUID

    from tests.kit.broker import BrokerHarness

    from headrace.broker.node import Node

NS_PER_S = 1_000_000_000


@pytest.fixture(autouse=True)
def _no_rounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine takes longer than the interval between two rounds."""
    monkeypatch.setattr(node_module, "PRODUCERS_INTERVAL_MS", 3_600_000)


def config(**bounds: int) -> BrokerConfig:
    return BrokerConfig(
        offsets_partition_count=1,
        transactions_partition_count=1,
        group_initial_rebalance_delay_ms=0,
        **bounds,
    )


async def prepared(rig: BrokerHarness) -> Node:
    for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        await rig.node.topics.ensure_internal(name)
    await rig.node.topics.create("t", 2)
    for shards in (rig.node.groups.shards, rig.node.transactions.shards):
        for shard in shards.owned():
            shard.load()
        await until(lambda found=shards: len(found.machines()) == 1)
    return rig.node


async def commit(node: Node, group_id: str, user: str = NOBODY) -> HeadraceError | None:
    command = CommitCommand(group_id, -1, "", None, [OffsetToCommit("t", 0, 1)])
    return (await node.groups.submit(command, user)).results[0].error


async def join(
    node: Node,
    group_id: str,
    size: int,
    member_id: str = "",
    instance_id: str | None = None,
    user: str = NOBODY,
):
    described = [("range", b"x" * size)]
    ids = group_id, member_id, instance_id, "client"
    command = JoinCommand(*ids, "/h", 10_000, 20_000, "consumer", described)
    return await node.groups.submit(command, user)


async def begin(node: Node, transactional_id: str, user: str = NOBODY) -> HeadraceError | None:
    command = InitProducerIdCommand(transactional_id, 60_000)
    return (await node.transactions.submit(command, user)).error


NOISY, QUIET = "User:noisy", "User:quiet"


def kept_ids(node: Node):
    return node.transactions.shards.machine_of("").transactions


def members_of(node: Node, group_id: str):
    return node.groups.shards.machine_of(group_id).groups[group_id].members


async def test_groups_beyond_the_bound_are_refused_and_those_that_exist_go_on():
    async with broker(config(groups_max=3)) as rig:
        node = await prepared(rig)
        errors = [await commit(node, f"g{number}") for number in range(6)]
        assert [error is None for error in errors] == [True] * 3 + [False] * 3
        assert isinstance(errors[-1], PolicyViolation)
        assert "headrace.groups.max" in str(errors[-1])
        assert [await commit(node, f"g{number}") for number in range(3)] == [None] * 3
        assert isinstance((await join(node, "other", 1)).error, PolicyViolation)
        await node.groups.submit_each(DeleteGroupsCommand(["g0"]))
        rig.clock.ahead_ms += 1_001
        assert await commit(node, "g9") is None


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_user_that_makes_groups_without_end_leaves_room_for_others(is_commit: bool):
    async def make(name: str, user: str) -> HeadraceError | None:
        if is_commit:
            return await commit(node, name, user)
        return (await join(node, name, 1, "", None, user)).error

    async with broker(config(groups_max=30)) as rig:
        node = await prepared(rig)
        assert await commit(node, "before") is None
        errors = [await make(f"noisy{number}", NOISY) for number in range(60)]
        assert sum(error is None for error in errors) == 20
        assert isinstance(errors[-1], PolicyViolation)
        assert "the user has 20 groups" in str(errors[-1])
        assert [await make(f"quiet{number}", QUIET) for number in range(5)] == [None] * 5
        if is_commit:
            assert await commit(node, "noisy3", NOISY) is None, "what is there goes on"
            await node.groups.submit_each(DeleteGroupsCommand([f"noisy{n}" for n in range(10)]))
            rig.clock.ahead_ms += 1_001
            assert await make("more", NOISY) is None


async def test_groups_of_a_tenant_have_a_part_of_the_bound():
    async with broker(config(groups_max=40)) as rig:
        node = await prepared(rig)
        errors = [
            await commit(node, f"«acme»{number}", f"User:{number % 5}") for number in range(40)
        ]
        assert sum(error is None for error in errors) <= 10
        assert [await commit(node, f"g{number}", QUIET) for number in range(10)] == [None] * 10


async def test_a_user_whose_members_say_much_leaves_room_for_others():
    async with broker(config(members_bytes_max=60_000)) as rig:
        node = await prepared(rig)
        errors = [(await join(node, f"g{n}", 4_000, "", None, NOISY)).error for n in range(20)]
        assert 6 <= sum(error is None for error in errors) <= 8
        assert isinstance(errors[-1], GroupFull)
        assert (await join(node, "h", 6_000, "", None, QUIET)).error is None
        first = await join(node, "g0", 4_000, next(iter(members_of(node, "g0"))), None, NOISY)
        assert first.error is None, "a known member says as much as before"


async def test_what_members_say_is_bounded_and_members_stay():
    async with broker(config(members_bytes_max=10_000)) as rig:
        node = await prepared(rig)
        first = await join(node, "g", 6_000)
        assert first.error is None
        other = await join(node, "h", 6_000)
        assert isinstance(other.error, GroupFull)
        assert "headrace.group.members.max.bytes" in str(other.error)
        names = [f"{number}" * 500 for number in range(9)]
        beat = ConsumerHeartbeatCommand("i", "m", 0, None, None, 30_000, topic_names=names)
        assert isinstance((await node.groups.submit(beat)).error, GroupFull)
        shares = [(first.member_id, b"x" * 5_000)]
        large = SyncCommand("g", first.generation, first.member_id, assignments=shares)
        assert (await node.groups.submit(large)).error is None, "of a member, as much as it said"
        again = await join(node, "g", 6_000, first.member_id)
        assert again.error is None, "a member joins again, whatever others say"
        leaving = [LeavingMember(first.member_id, None)]
        await node.groups.submit(LeaveCommand("g", leaving))
        rig.clock.ahead_ms += 1_001
        assert (await join(node, "h", 6_000)).error is None


async def test_tags_of_streams_members_count():
    async with broker(config(members_bytes_max=100_000)) as rig:
        node = await prepared(rig)
        tags = tuple((f"{number}", "v" * 900) for number in range(100))
        topology = Topology(0, (Subtopology("0", ("t",)),))

        async def beat(group_id: str, **fields: Any) -> StreamsHeartbeatReply:
            known = {"rebalance_timeout_ms": 30_000, "topology": topology, "process_id": "p"}
            known |= {"owned": StreamTasks({}, {}, {}), "member_epoch": 0} | fields
            return await node.groups.submit(StreamsHeartbeatCommand(group_id, "m", **known))

        assert (await beat("g", tags=tags)).error is None
        assert isinstance((await beat("h", tags=tags)).error, GroupFull)
        assert (await beat("g", tags=tags)).error is None, "a known member says as much as before"
        small = await beat("i")
        assert small.error is None
        more = {"topology": None, "owned": None, "member_epoch": small.member_epoch}
        assert isinstance((await beat("i", tags=tags, **more)).error, GroupFull)


async def test_groups_that_exist_rebalance_whatever_others_keep():
    async with broker(config(members_bytes_max=20_000)) as rig:
        node = await prepared(rig)
        first = await join(node, "g", 100)
        alone = [(first.member_id, b"x" * 50)]
        sync = SyncCommand("g", first.generation, first.member_id, assignments=alone)
        assert (await node.groups.submit(sync)).error is None
        joining = asyncio.create_task(join(node, "g", 100))
        await until(lambda: len(members_of(node, "g")) == 2)
        assert (await join(node, "flood", 16_000)).error is None
        assert isinstance((await join(node, "other", 16_000)).error, GroupFull)

        # What it owns is in a member's subscription, and its leader assigns to all at once.
        again, second = await asyncio.gather(join(node, "g", 300, first.member_id), joining)
        assert (again.error, second.error) == (None, None)
        shares = [(one, b"x" * 700) for one in (again.member_id, second.member_id)]
        large = SyncCommand("g", again.generation, again.member_id, assignments=shares)
        follow = SyncCommand("g", second.generation, second.member_id)
        synced = await asyncio.gather(*map(node.groups.submit, (large, follow)))
        assert [(one.error, len(one.assignment)) for one in synced] == [(None, 700)] * 2
        assert isinstance((await join(node, "other", 16_000)).error, GroupFull), "a new one"
        huge = [(again.member_id, b"x" * 20_000)]
        more = SyncCommand("g", again.generation, again.member_id, assignments=huge)
        assert isinstance((await node.groups.submit(more)).error, GroupFull), "but not without end"


async def test_a_static_member_that_restarts_is_a_known_one():
    async with broker(config(members_bytes_max=8_000)) as rig:
        node = await prepared(rig)
        first = await join(node, "g", 6_000, instance_id="i")
        assert first.error is None
        assert isinstance((await join(node, "h", 6_000)).error, GroupFull)
        sync = SyncCommand("g", first.generation, first.member_id, assignments=[])
        assert (await node.groups.submit(sync)).error is None
        assert (await join(node, "g", 6_000, instance_id="i")).error is None


async def test_a_static_member_of_the_new_protocol_that_restarts_is_a_known_one():
    async with broker(config(members_bytes_max=6_000)) as rig:
        node = await prepared(rig)
        names = [f"{number}" * 500 for number in range(8)]

        async def beat(member_id: str, epoch: int, group_id: str = "g") -> HeadraceError | None:
            command = ConsumerHeartbeatCommand(group_id, member_id, epoch, instance_id="i")
            if epoch == 0:
                command.rebalance_timeout_ms, command.topic_names = 30_000, names
                command.owned = {}
            return (await node.groups.submit(command)).error

        assert await beat("m", 0) is None
        assert isinstance(await beat("m", 0, "h"), GroupFull)
        assert await beat("m", -2) is None
        assert await beat("n", 0) is None


async def test_a_bound_that_is_set_lower_or_higher_holds_at_once():
    bounds = config(groups_max=100)
    async with broker(bounds) as rig:
        node = await prepared(rig)
        assert (await join(node, "g", 1)).error is None
        node.config.groups_max = 1
        assert isinstance((await join(node, "h", 1)).error, PolicyViolation)
        node.config.groups_max = 2
        assert (await join(node, "h", 1)).error is None


async def test_transactional_ids_beyond_the_bound_are_refused_and_those_that_exist_go_on():
    async with broker(config(transactional_ids_max=3)) as rig:
        node = await prepared(rig)

        errors = [await begin(node, f"t{number}") for number in range(5)]
        assert [error is None for error in errors] == [True] * 3 + [False] * 2
        assert isinstance(errors[-1], PolicyViolation)
        assert "headrace.transactional.ids.max" in str(errors[-1])
        assert [await begin(node, f"t{number}") for number in range(3)] == [None] * 3


async def test_a_user_with_many_transactional_ids_loses_its_own_idle_ones():
    async with broker(config(transactional_ids_max=30)) as rig:
        node = await prepared(rig)
        assert await begin(node, "quiet0", QUIET) is None
        errors = [await begin(node, f"noisy{number}", NOISY) for number in range(30)]
        assert [error is None for error in errors] == [True] * 20 + [False] * 10
        assert "the user has 20 transactional ids" in str(errors[-1])
        opened = AddPartitionsCommand("noisy0", 2, 0, frozenset({("t", 0)}))
        stored = kept_ids(node)["noisy0"]
        opened.producer_id, opened.producer_epoch = stored.producer_id, stored.producer_epoch
        assert (await node.transactions.submit(opened)).error is None
        rig.clock.ahead_ms += IDLE_MS_MIN - 60_000
        assert await begin(node, "noisy1", NOISY) is None, "it is in use"
        rig.clock.ahead_ms += 61_000
        assert await begin(node, "new", NOISY) is None
        ids = kept_ids(node)
        assert {"quiet0", "noisy1", "new"} <= ids.keys(), "of another user, used, or new"
        assert "noisy2" not in ids
        last = kept_ids(node)["noisy0"]
        assert last.producer_id == stored.producer_id, "it was in a transaction until it timed out"


async def test_a_producer_whose_idle_id_gave_way_writes_nothing_more():
    async def refuses(producer_id: int) -> None:
        """Partitions ask this before they accept a record of a transaction, or its offsets."""
        partitions = frozenset({("t", 0)})
        for is_verify_only in (False, True):
            command = AddPartitionsCommand("zombie", producer_id, 0, partitions, is_verify_only)
            error = (await node.transactions.submit(command)).error
            assert isinstance(error, ProducerIdMappingInvalid)

    async with broker(config(transactional_ids_max=3)) as rig:
        node = await prepared(rig)
        assert await begin(node, "zombie", NOISY) is None
        zombie = kept_ids(node)["zombie"]
        assert await begin(node, "b", NOISY) is None
        rig.clock.ahead_ms += IDLE_MS_MIN + 1_000
        assert await begin(node, "c", NOISY) is None
        assert "zombie" not in kept_ids(node)
        await refuses(zombie.producer_id)
        assert await begin(node, "zombie", NOISY) is None
        assert kept_ids(node)["zombie"].producer_id != zombie.producer_id
        await refuses(zombie.producer_id)


async def test_the_longest_idle_producers_are_forgotten_beyond_the_bound():
    async with broker(config(producer_ids_max=100)) as rig:
        node = await prepared(rig)
        topic = node.topics.by_name["t"]
        logs = [topic.require_log(number) for number in range(2)]

        async def write(number: int, producer_id: int, sequence: int = 0) -> int:
            of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            return await append(logs[number], batch(b"x", **of))

        for producer_id in range(60):
            await write(0, producer_id)
            rig.clock.ahead_ms += 1
        await write(1, 1_000)
        await node.retention.bound_producers()
        assert [len(log.producers) for log in logs] == [60, 1], "it may"
        for producer_id in range(60, 150):
            await write(0, producer_id)
            rig.clock.ahead_ms += 1
        await write(0, 0, 1)
        await node.retention.bound_producers()
        assert [len(log.producers) for log in logs] == [89, 1]
        kept = logs[0].producers
        assert 0 in kept, "it has written lately"
        assert 149 in kept
        assert 1 not in kept
        end = logs[0].end_offset
        assert await write(0, 149) < end, "a retry of one that is kept is none"


async def test_producers_that_may_send_again_are_forgotten_after_all_those_that_rest():
    async with broker(config(producer_ids_max=100)) as rig:
        node = await prepared(rig)
        logs = [node.topics.by_name["t"].require_log(number) for number in range(2)]

        async def write(number: int, producer_ids: range) -> None:
            for producer_id in producer_ids:
                of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
                await append(logs[number], batch(b"x", **of))

        await write(1, range(45))
        rig.clock.ahead_ms += 600_000
        await write(0, range(60))
        await node.retention.bound_producers()
        assert [len(log.producers) for log in logs] == [60, 30], "the larger one is in use"
        await write(0, range(60, 100))
        await node.retention.bound_producers()
        assert [len(log.producers) for log in logs] == [65, 25], "a part of each partition's stay"


async def test_others_get_their_turn_while_the_producers_of_many_partitions_are_forgotten():
    async with broker(config(producer_ids_max=100)) as rig:
        node = await prepared(rig)
        logs = [node.topics.by_name["t"].require_log(number) for number in range(2)]
        for producer_id in range(100):
            of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
            for log in logs:
                await append(log, batch(b"x", **of))
        forgetting, seen = asyncio.create_task(node.retention.bound_producers()), set()
        while not forgetting.done():
            await asyncio.sleep(0)
            seen.add(tuple(len(log.producers) < 100 for log in logs))
        await forgetting
        assert seen >= {(True, False), (True, True)}
        assert sum(len(log.producers) for log in logs) <= 100


async def test_a_producer_is_forgotten_after_its_expiration_however_short_it_is():
    async with broker(config(producer_id_expiration_ms=60_000)) as rig:
        node = await prepared(rig)
        log = node.topics.by_name["t"].require_log(0)
        of = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        await append(log, batch(b"x", **of))
        for is_kept in (True, True, False):  # idle; found so; idle by the other clock, too
            assert (7 in log.producers) is True
            await node.retention.enforce(log)
            assert (7 in log.producers) is is_kept
            rig.clock.ahead_ms += 61_000


def test_a_week_of_transactional_ids_that_are_used_once_fits_in_one_broker():
    """Flink's Kafka sink uses one for each checkpoint of each of its writers by default, and they
    are kept for a week."""
    config = BrokerConfig()
    checkpoints = config.transactional_id_expiration_ms // 10_000
    assert config.transactional_ids_max >= 8 * checkpoints


async def test_what_is_added_while_all_is_counted_counts_and_others_have_their_turns():
    ids, bound, now_ns = dict.fromkeys(map(str, range(3 * SLICE))), 10 * SLICE, [0]
    kept = Kept("ids", lambda: bound, lambda: [ids], lambda: now_ns[0])
    assert not await kept.take("first", NOISY)
    ids["first"] = None
    bound = 3 * SLICE + 10  # which has to be counted
    counting = asyncio.create_task(kept.take("second", NOISY))
    await asyncio.sleep(0)
    kept.note("meanwhile", QUIET)
    ids["meanwhile"] = None
    turns = 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 3
    assert not await counting
    assert [kept.maker(one) for one in ("first", "second", "meanwhile")] == [NOISY, NOISY, QUIET]
    assert [not await kept.take(f"n{n}", NOISY) for n in range(5)] == [True] * 4 + [False]


async def test_who_makes_an_id_is_known_although_all_is_counted_before_it_is_stored():
    ids, bound, now_ns = dict[str, None](), 30, [0]
    kept = Kept("ids", lambda: bound, lambda: [ids], lambda: now_ns[0])
    with kept.making("slow"):
        assert not await kept.take("slow", NOISY)
        now_ns[0] += NS_PER_S
        bound = 31  # which has to be counted
        assert not await kept.take("other", QUIET)
        assert kept.maker("slow") == NOISY
        ids["slow"] = None
    errors = [await kept.take(f"n{number}", NOISY) for number in range(40)]
    assert errors.count("") == 19, "with the slow one, and beside another's, twice what is left"


async def test_what_is_removed_during_a_count_does_not_count():
    ids, bound, now_ns = dict[str, None](), 3 * SLICE, [0]
    kept = Kept("ids", lambda: bound, lambda: [ids], lambda: now_ns[0])
    for name in map(str, range(2 * SLICE)):
        assert not await kept.take(name, NOISY)
        ids[name] = None
    bound = 3 * SLICE + 1  # which has to be counted
    counting = asyncio.create_task(kept.take("other", QUIET))
    await asyncio.sleep(0)  # the first SLICE is counted
    for name in ("0", str(2 * SLICE - 1)):
        del ids[name]
        kept.forget(name)
    assert not await counting
    assert [kept.knows(name) for name in ("0", "1", str(2 * SLICE - 1))] == [False, True, False]
    assert not await kept.take("again", NOISY), "two are removed"


async def test_a_group_that_is_made_again_counts_for_who_makes_it():
    async with broker(config(groups_max=30)) as rig:
        node = await prepared(rig)
        for number in range(20):
            assert await commit(node, f"g{number}", NOISY) is None
        await node.groups.submit_each(DeleteGroupsCommand([f"g{n}" for n in range(15)]))
        for number in range(15):
            assert await commit(node, f"g{number}", QUIET) is None, "not for who had made it"
        errors = [await commit(node, f"more{number}", QUIET) for number in range(3)]
        assert errors[:2] == [None, None]
        assert "the user has 17 groups" in str(errors[-1])


@pytest.mark.parametrize("letter", ["x", "\N{GRINNING FACE}"])
async def test_long_ids_count_for_what_they_take(letter: str):
    long = letter * (6_000 if letter == "x" else 1_500)
    async with broker(config(groups_max=100, transactional_ids_max=100)) as rig:
        node = await prepared(rig)
        for make in (commit, begin):
            errors = [await make(node, f"{long}{number}") for number in range(20)]
            assert [error is None for error in errors] == [True] * 8 + [False] * 12
            assert isinstance(errors[-1], PolicyViolation)


def beat_of(group_id: str, member_id: str, *topics: str, epoch: int = 0) -> ShareHeartbeat:
    return ShareHeartbeat(group_id, member_id, epoch, topics or None, None, "c", "h")


async def test_share_groups_count_as_groups():
    async with broker(config(groups_max=30)) as rig:
        node = await prepared(rig)

        async def made(group_id: str, user: str) -> bool:
            try:
                await node.share_groups.heartbeat(beat_of(group_id, "m", "t"), user)
            except PolicyViolation as error:
                return "headrace.groups.max" not in str(error)
            return True

        assert [await made(f"noisy{n}", NOISY) for n in range(25)] == [True] * 20 + [False] * 5
        assert await made("noisy3", NOISY), "what is there goes on"
        assert await commit(node, "quiet", QUIET) is None
        assert await made("quiet2", QUIET)
        for number in range(10):
            await node.share_groups.heartbeat(beat_of(f"noisy{number}", "m", epoch=-1))
        rig.clock.ahead_ms += 1_001
        assert await made("noisy99", NOISY)


async def test_what_members_of_share_groups_say_counts():
    async with broker(config(members_bytes_max=300_000)) as rig:
        node = await prepared(rig)
        names = [f"{number}".zfill(200) for number in range(100)]

        async def beat(group_id: str, user: str, *topics: str) -> HeadraceError | None:
            try:
                await node.share_groups.heartbeat(beat_of(group_id, "m", *topics), user)
            except GroupFull as error:
                return error if "headrace.group.members.max.bytes" in str(error) else None
            return None

        found = [await beat(f"g{number}", NOISY, *names) is None for number in range(20)]
        assert found == [True] * 8 + [False] * 12
        assert await beat("quiet", QUIET, *names[:50]) is None
        assert await beat("g0", NOISY, *names) is None, "a known member says as much as before"
        assert await beat("g0", NOISY, *names[:99]) is None
        await node.topics.create("wide", 5_000)
        assert await beat("h", QUIET, "wide") is not None, "what is assigned counts"


async def test_share_groups_that_begin_are_bounded_and_users_leave_room(
    monkeypatch: pytest.MonkeyPatch,
):
    """They are facts, which every broker keeps until they are deleted."""
    async with broker(config(groups_max=30)) as rig:
        node = await prepared(rig)
        await node.topics.create("u", 1)
        first, second = (node.topics.get(name).id for name in ("t", "u"))

        async def begin(group_id: str, user: str | Principal, topic_id: UUID = first) -> bool:
            asker = SimpleNamespace(path=(None, user))
            monkeypatch.setattr(tenant_shares, "paced_here", lambda: asker)
            try:
                await node.group_configs.begin(group_id, topic_id)
            except PolicyViolation as error:
                return "headrace.groups.max" not in str(error)
            return True

        found = [await begin(f"noisy{number}", NOISY) for number in range(25)]
        assert found == [True] * 20 + [False] * 5
        assert await begin("noisy3", NOISY, second), "what is there goes on"
        assert await begin("quiet", QUIET)
        for number in range(10):
            await node.group_configs.end(f"noisy{number}")
        rig.clock.ahead_ms += 1_001
        assert await begin("noisy99", NOISY)
        broker_itself = Principal("2", BROKER)  # it asks for clients of any user
        found = [await begin(f"forwarded{number}", broker_itself) for number in range(20)]
        assert found == [True] * 18 + [False] * 2


@pytest.mark.parametrize("kind", [share_partitions, lite_partitions])
async def test_users_leave_room_for_the_groups_of_others_on_a_partition(monkeypatch, kind):
    monkeypatch.setattr(kind, "GROUPS_MAX", 90)
    async with broker() as rig:
        node = rig.node
        is_lite = kind is lite_partitions
        configs = {"headrace.lite.topics.max": "10"} if is_lite else {}
        await node.topics.create("t", 1, configs=configs)
        topic = node.topics.get("t")
        of_partition = node.shares.lite if is_lite else node.shares

        async def begin(user: str, number: int) -> bool:
            asker = SimpleNamespace(path=(None, user))
            monkeypatch.setattr(tenant_shares, "paced_here", lambda: asker)
            try:
                await of_partition.begin(topic, 0, f"{user}-{number}")
            except GroupFull as error:
                return "user" not in str(error)
            return True

        found = [await begin(NOISY, number) for number in range(90)]
        assert found == [True] * 61 + [False] * 29
        assert await begin(NOISY, 0), "what is there goes on"
        assert await begin(QUIET, 0)
        for number in range(20):
            await of_partition.remove_group(topic, 0, f"{NOISY}-{number}")
        assert await begin(NOISY, 99)


async def test_users_leave_room_for_the_parked_keys_of_others(monkeypatch):
    monkeypatch.setattr(parked_room, "PARKED_MAX", 90)
    async with broker() as rig:
        node = rig.node
        await node.topics.create("t", 2)
        topic, queues = node.topics.get("t"), node.services.queues

        async def park(user: str, group: str, *numbers: int, partition: int = 0) -> bool:
            asker = SimpleNamespace(path=(None, user))
            monkeypatch.setattr(tenant_shares, "paced_here", lambda: asker)
            try:
                await queues.park_here(topic, partition, group, [b"%d" % one for one in numbers])
            except PolicyViolation as error:
                return "parked keys" not in str(error)
            return True

        ordered = [ConfigChange("headrace.share.key.order", SET, "true")]
        for group in ("a", "b", "c"):
            await node.services.configurations.change_group(group, ordered)
        assert await park(NOISY, "a", *range(30))
        assert await park(NOISY, "a", *range(20), partition=1)
        found = [await park(NOISY, "b", number) for number in range(25)]
        assert found == [True] * 10 + [False] * 15
        assert await park(NOISY, "a", *range(30)), "what is there goes on"
        assert await park(QUIET, "c", 1)
        assert not await park(NOISY, "b", 1, 2, 98, 99)
        assert len(await queues.list_parked_here(topic, 0, "b")) == 10
        await queues.unpark_here(topic, 0, "a", [b"%d" % number for number in range(10)])
        rig.clock.ahead_ms += 1_001
        assert await park(NOISY, "b", 99)


async def test_share_groups_that_begin_at_other_brokers_count():
    async with broker() as rig:
        topic_id = (await rig.node.topics.create("t", 1)).id
        brokers = [groups_configured.ConfiguredGroups(rig.metadata) for _ in range(3)]

        async def begin(at: int, group_id: str) -> bool:
            try:
                await brokers[at].begin(group_id, topic_id)
            except PolicyViolation:
                return False
            for other in brokers:
                await other.refresh(group_id)
            return True

        for at, one in enumerate(brokers):
            one.bound(lambda: 30, rig.clock.now_ns)
            assert await begin(at, f"first{at}")
        found = [await begin(at, f"g{at}-{number}") for at in range(3) for number in range(25)]
        assert found.count(True) == 27


async def test_a_look_that_was_cancelled_does_not_end_the_next_one():
    """Whenever what it holds is given back."""
    now_ns, kept = [0], {f"g{number}": None for number in range(3 * SLICE)}
    groups = Kept("groups", lambda: 4 * SLICE, lambda: [kept], lambda: now_ns[0])

    async def take(id_: str) -> str:
        with groups.making(id_):
            excess = await groups.take(id_, "")
            kept[id_] = None
            return excess

    first = asyncio.create_task(take("a"))
    await asyncio.sleep(0)
    first.cancel()
    (error,) = await asyncio.gather(first, return_exceptions=True)
    assert isinstance(error, asyncio.CancelledError)
    second = asyncio.create_task(take("b"))
    await asyncio.sleep(0)
    assert groups._seen
    del first, error
    gc.collect()
    assert groups._seen, "what it has seen"
    assert await second == ""
