"""Sends, half messages, delayed records, searches: one HTTP address serves the whole cluster."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc
from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest
from tests.clocks import HandClock
from tests.kit.records import append
from tests.unit.http.http_rig import Web, followed, on_the_web
from tests.unit.http.test_queues_of_brokers import TOPIC, with_brokers
from tests.waiting import until

from headrace.broker.services import group_figures, group_lags, hot_keys
from headrace.broker.services.group_lags import Sample as Kept
from headrace.broker.services.owner_calls import OwnerCalls
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.errors import BrokerUnreachable, CoordinatorUnavailable
from headrace.http.app import path_of_parts
from headrace.http.history import INTERVAL_S, Sample
from headrace.kafka.peers import queue_calls
from headrace.metadata.facts import draining_key
from headrace.metadata.store import ANY
from headrace.records.codec import Record, encode_batch
from headrace.records.compression import ZSTD
from headrace.records.letters import SHARE_FORMAT
from headrace.records.partitioner import partition_of_key

READ = {"headrace.message.attributes": "true"}
PATH = f"/v1/topics/{TOPIC}"
COUNT = 6


class Reached(Web):
    """All operations of one broker of a cluster."""

    async def ok(self, method, path, body=None):
        status, answer = await self.ask(method, path, body)
        assert status == 200, answer
        return answer

    async def send(self, *records, topic=TOPIC):
        answer = await self.ok("POST", f"/v1/topics/{topic}/records", {"records": [*records]})
        return answer["results"]

    async def settle(self, **asked):
        answer = await self.ok("POST", f"{PATH}/half/settle", asked)
        return [(one["ok"], one.get("outcome")) for one in answer["results"]]

    async def pending(self):
        answer = await self.ok("GET", f"{PATH}/half")
        assert "failed" not in answer
        return [(one["partition"], one["message_id"]) for one in answer["half"]]


async def webs_of(cluster, **config):
    first = next(iter(cluster.nodes.values()))
    await first.topics.create(TOPIC, COUNT, 1, READ | config)
    await until(lambda: len(set(cluster.topic_owners())) == len(cluster.brokers))
    return [Reached(rig) for rig in cluster.rigs.values()]


def half(message_id, partition=None, value="v", group="shop"):
    record = {
        "value": value,
        "headers": [["headrace-half", group], ["headrace-message-id", message_id]],
    }
    return record if partition is None else record | {"partition": partition}


@with_brokers(3)
async def test_any_broker_lists_the_figures_of_all_partitions_and_groups(cluster):
    webs = await webs_of(cluster)
    sent = [{"value": "x", "partition": number} for number in range(COUNT) for _ in range(4)]
    await webs[0].send(*sent)
    await webs[0].node.services.groups.ensure_offsets_topic()
    for group in ("billing", "shipping"):
        offsets = [OffsetToCommit(TOPIC, number, 1) for number in range(COUNT)]
        commit = CommitCommand(group, NO_GENERATION, "", None, offsets)
        await until(lambda group=group: coordinator_of(cluster, group) is not None)
        await coordinator_of(cluster, group).services.groups.commit(commit)
    lags = [{"group": group, "records": 3 * COUNT} for group in ("billing", "shipping")]
    for web in webs:
        (one,) = (await web.ok("GET", "/v1/topics?details=true"))["topics"]
        assert (one["partitions_shown"], one["records"]) == (COUNT, 4 * COUNT)
        assert one["records_in_per_s"] > 0
        assert (one["lag_records"], one["lags"]) == (6 * COUNT, lags)
        assert (one["is_partial"], one["lag_is_partial"]) == (False, False)


@with_brokers(2)
async def test_lag_in_partitions_of_a_broker_that_does_not_answer_is_not_counted_as_none(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    await webs[0].node.services.groups.ensure_offsets_topic()
    owners, committed = cluster.topic_owners(), {}
    for index in range(40):
        group = f"group-{index}"
        await until(lambda group=group: coordinator_of(cluster, group) is not None)
        if coordinator_of(cluster, group) is webs[0].node and len(committed) < 2:
            committed[group] = owner = len(committed) + 1
            offsets = [OffsetToCommit(TOPIC, owners.index(owner), 0)]
            commit = CommitCommand(group, NO_GENERATION, "", None, offsets)
            await webs[0].node.services.groups.commit(commit)
    here, _there = committed
    await cluster.rigs[2].face.close()
    answer = await webs[0].ok("GET", "/v1/topics?details=true")
    assert [one["broker"] for one in answer["failed"]] == [2]
    (one,) = answer["topics"]
    assert (one["lag_records"], one["lags"]) == (1, [{"group": here, "records": 1}])
    assert (one["is_partial"], one["lag_is_partial"]) == (True, True)


@with_brokers(2)
async def test_lags_that_are_cut_are_said_to_be_a_lower_bound(cluster):
    cluster.patch.setattr(group_figures, "LAGS_MAX", 3)
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    await webs[0].node.services.groups.ensure_offsets_topic()
    await until(lambda: coordinator_of(cluster, "billing") is not None)
    for count in (3, 4):
        offsets = [OffsetToCommit(TOPIC, number, 0) for number in range(count)]
        commit = CommitCommand("billing", NO_GENERATION, "", None, offsets)
        await coordinator_of(cluster, "billing").services.groups.commit(commit)
        (one,) = (await webs[0].ok("GET", "/v1/topics?details=true"))["topics"]
        lags = one["lag_records"], one["lag_is_partial"], one["is_partial"]
        assert lags == (3, count > 3, False)


def aged(now_ms, *ages_ms):
    """A record of each age, in partition after partition."""
    return [
        {"value": "x", "partition": number, "timestamp_ms": now_ms - age_ms}
        for number, age_ms in enumerate(ages_ms)
    ]


take_sample = group_lags.GroupLags.take


@pytest.fixture(autouse=True)
def samples_by_hand(monkeypatch):
    """Brokers take no sample of the lags by themselves: it would be one more, with what is there
    meanwhile, whenever a test spans one of their intervals."""

    async def nothing(_self):
        pass

    monkeypatch.setattr(group_lags.GroupLags, "take", nothing)


@with_brokers(3)
async def test_any_broker_shows_the_lag_of_a_group_over_the_last_hour(cluster):
    webs = await webs_of(cluster)
    now_ms = webs[0].node.clock.now_ms()
    for web in webs:
        cluster.patch.setattr(web.node.services.lags, "_clock", HandClock(now_ms))
    await webs[0].send(*aged(now_ms, *range(60_000, 60_000 + COUNT)))
    await webs[0].node.services.groups.ensure_offsets_topic()
    await until(lambda: coordinator_of(cluster, "billing") is not None)
    histories = [web.node.services.lags for web in webs]

    async def shown():
        return (await webs[0].ok("GET", "/v1/groups/billing/lag"))["points"]

    async def sample(at, committed):
        cluster.patch.setattr(group_lags.GroupLags, "_number", lambda _self: at)
        async with asyncio.timeout(60):  # what is coordinated may move to another broker
            while at * group_lags.INTERVAL_MS not in [one["at_ms"] for one in await shown()]:
                if (node := coordinator_of(cluster, "billing")) is not None:
                    offsets = [OffsetToCommit(TOPIC, number, committed) for number in range(COUNT)]
                    commit = CommitCommand("billing", NO_GENERATION, "", None, offsets)
                    await node.services.groups.commit(commit)
                for one in histories:
                    await take_sample(one)

    first = now_ms // group_lags.INTERVAL_MS
    await sample(first, 0)
    await sample(first + 1, 1)
    for web in webs:
        answer = await web.ok("GET", "/v1/groups/billing/lag")
        assert [one["lag_records"] for one in answer["points"]] == [COUNT, 0]
        assert [one["lag_ms"] for one in answer["points"]] == [60_000 + COUNT - 1, 0]
        assert answer["trend"] == {"records_per_s": -COUNT / 15, "span_ms": 15_000}
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    for web in webs:
        answer = await web.ok("GET", "/v1/overview")
        lag = {"group": "billing", "records": COUNT, "is_partial": False}
        assert answer["lags"] == [lag]
        assert (answer["lag_records"], "failed" in answer) == (COUNT, False)

    async def unreachable(_self, _name, _asked):
        return {2: BrokerUnreachable("it is away")}

    cluster.patch.setattr(group_lags.GroupLags, "_number", lambda _self: first + 2)
    cluster.patch.setattr(OwnerCalls, "ask_others", unreachable)
    for one in histories:
        await take_sample(one)  # no broker knows the ends of all partitions
    assert [one["lag_records"] for one in await shown()] == [COUNT, 0]


@on_the_web
async def test_an_age_that_is_not_in_memory_is_unknown_and_not_read(web):
    await web.node.topics.create(TOPIC, 2)
    lags = web.node.services.lags
    now_ms = web.node.clock.now_ms()
    lags._clock = HandClock(now_ms)
    await web.ask("POST", f"{PATH}/records", {"records": aged(now_ms, 5_000, 7_000)})
    groups = {"first": {0: 0}, "both": {0: 0, 1: 0}, "done": {0: 1, 1: 1}}
    for group, committed in groups.items():
        offsets = [OffsetToCommit(TOPIC, *place) for place in committed.items()]
        commit = CommitCommand(group, NO_GENERATION, "", None, offsets)
        await web.node.services.groups.commit(commit)

    async def shown():
        await take_sample(lags)
        answers = [await web.ask("GET", f"/v1/groups/{one}/lag") for one in groups]
        points = [answer["points"][-1] for _, answer in answers]
        return [(one["lag_records"], one["lag_ms"]) for one in points]

    assert await shown() == [(1, 5_000), (2, 7_000), (0, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_figures, "AGES_MAX", 1)
        assert await shown() == [(1, 5_000), (2, None), (0, 0)], "one is looked up"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(web.rig.store), "read_cached", lambda *_: None)
        patch.setattr(type(web.rig.store), "read", None)  # whatever reads the disk fails
        assert await shown() == [(1, None), (2, None), (0, 0)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_figures.Ages, "of", None)
        found, *_ = await lags.now()
        assert [one.records for one in found] == [2, 1, 0], "the lag now needs no age"


@on_the_web
async def test_the_lag_in_the_partitions_that_are_loaded_is_kept_as_a_lower_bound(web):
    """A partition that nobody has used since the start is not loaded for it."""
    await web.node.topics.create(TOPIC, 2)
    await web.ask("POST", f"{PATH}/records", {"records": [{"value": "x", "partition": 0}] * 3})
    for group, numbers in {"both": (0, 1), "cold": (1,)}.items():
        offsets = [OffsetToCommit(TOPIC, number, 0) for number in numbers]
        commit = CommitCommand(group, NO_GENERATION, "", None, offsets)
        await web.node.services.groups.commit(commit)
    cold = web.node.topics.by_name[TOPIC].log(1)
    assert cold is None or not cold.is_loaded
    await take_sample(web.node.services.lags)
    _, both = await web.ask("GET", "/v1/groups/both/lag")
    assert [(one["lag_records"], one["lag_ms"], one["is_partial"]) for one in both["points"]] == [
        (3, None, True)
    ]
    assert (both["lag_is_partial"], both["trend"]) == (True, None)
    _, nothing = await web.ask("GET", "/v1/groups/cold/lag")
    assert nothing["points"] == [], "nothing of its lag is known"
    _, shown = await web.ask("GET", "/v1/groups/both/offsets?loaded=true&times=true")
    assert [(one["offset"], one["lag"]) for one in shown["offsets"]] == [(0, 3), (0, None)]
    assert shown["offsets"][1]["lag_ms"] is None
    assert not cold.is_loaded, "a console that asks so loads nothing"
    _, whole = await web.ask("GET", "/v1/groups/both/offsets")
    assert [one["lag"] for one in whole["offsets"]] == [3, 0]


async def coordinated_by(cluster, web):
    """The id of a group that this broker coordinates."""
    for index in range(100):
        await until(lambda index=index: coordinator_of(cluster, f"group-{index}") is not None)
        if coordinator_of(cluster, f"group-{index}") is web.node:
            return f"group-{index}"
    raise AssertionError("it coordinates none of many groups")


@with_brokers(3)
async def test_a_frozen_broker_makes_no_other_one_look_unreachable(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    await webs[0].node.services.groups.ensure_offsets_topic()
    group = await coordinated_by(cluster, webs[1])
    offsets = [OffsetToCommit(TOPIC, number, 0) for number in range(COUNT)]
    commit = CommitCommand(group, NO_GENERATION, "", None, offsets)
    await webs[1].node.services.groups.commit(commit)
    whole = await webs[0].ok("GET", "/v1/overview")
    assert (whole["lag_records"], whole["lag_is_partial"], whole["problems"]) == (COUNT, False, [])

    async def frozen(_asked):
        await asyncio.Event().wait()

    for name in ("groups.ends", "groups.lags", "brokers.state"):
        webs[2].node.services.calls.offer_of_broker(name, frozen)
    cluster.patch.setattr(queue_calls, "TIMEOUT_S", 2.0)
    webs[0].history.take()
    at_once = await webs[0].ok("GET", "/v1/overview")
    assert at_once["lags"] == whole["lags"], "nobody waits for the frozen broker"
    async with asyncio.timeout(60):
        while "failed" not in (answer := await webs[0].ok("GET", "/v1/overview")):
            await asyncio.sleep(0.05)
    assert [one["broker"] for one in answer["failed"]] == [3]
    assert [(one["what"], one["brokers"]) for one in answer["problems"]] == [("broker 3", [3])]
    left = COUNT - cluster.topic_owners().count(3)
    assert answer["lags"] == [{"group": group, "records": left, "is_partial": True}]
    assert (answer["lag_records"], answer["lag_is_partial"]) == (left, True)


@with_brokers(2)
async def test_the_lag_of_a_share_group_is_a_lower_bound_without_one_of_its_brokers(cluster):
    webs = await webs_of(cluster)
    config = {"share.auto.offset.reset": "earliest"}
    await webs[0].node.group_configs.change("workers", lambda _: config)
    nodes = [web.node for web in webs]
    await until(lambda: all(node.group_configs.overrides("workers") == config for node in nodes))
    now_ms, ages_ms = nodes[0].clock.now_ms(), range(60_000, 60_000 + COUNT)
    await webs[0].send(*aged(now_ms, *ages_ms))
    queue = f"/v1/queues/{TOPIC}/workers/receive"
    await webs[0].ok("POST", queue, {"max": 1})
    await until(lambda: all(node.group_configs.share_topics("workers") for node in nodes))
    async with asyncio.timeout(60):  # until each broker serves the group on its partitions
        while [one.is_partial for one in (await nodes[0].services.lags.now())[0]] != [False]:
            await asyncio.sleep(0.01)
    cluster.patch.setattr(group_lags.GroupLags, "_number", lambda _self: 100)
    for web in webs:
        cluster.patch.setattr(web.node.services.lags, "_clock", HandClock(now_ms))
        await take_sample(web.node.services.lags)
    shown, left = await webs[0].ok("GET", "/v1/overview"), owned_of(cluster, 1)
    assert shown["lags"] == [{"group": "workers", "records": COUNT, "is_partial": False}]
    history = await webs[0].ok("GET", "/v1/groups/workers/lag")
    (point,) = history["points"]
    assert (point["lag_records"], history["lag_is_partial"]) == (COUNT, False)
    assert point["lag_ms"] == ages_ms[-1]
    await cluster.rigs[2].face.close()
    history = await webs[0].ok("GET", "/v1/groups/workers/lag")
    (point,) = history["points"]
    assert (point["lag_records"], point["is_partial"]) == (len(left), True)
    assert point["lag_ms"] == ages_ms[max(left)]
    assert (history["lag_is_partial"], history["trend"]) == (True, None)
    webs[0].history.take()
    async with asyncio.timeout(60):
        while not (shown := await webs[0].ok("GET", "/v1/overview"))["lag_is_partial"]:
            await asyncio.sleep(0.05)
    assert shown["lags"] == [{"group": "workers", "records": len(left), "is_partial": True}]


@with_brokers(2)
async def test_the_overview_shows_problems_letters_and_history_of_all_brokers(cluster):
    webs = await webs_of(cluster)
    webs[1].node.topics.damaged_facts["/topics/x"] = "cannot be decoded in /var/lib/x: restore it"
    webs[1].node.services.dead_letters.copied_total = 3
    answer = await webs[0].ok("GET", "/v1/overview")
    (problem,) = answer["problems"]
    shown = {name: problem[name] for name in ("cause", "next_step", "brokers")}
    assert shown == {
        "cause": "cannot be decoded in (a path)",
        "next_step": "restore it",
        "brokers": [2],
    }
    assert (answer["is_well"], answer["dead_letters"]["copied"]) == (False, 3)
    webs[0].node.topics.damaged_facts.update(webs[1].node.topics.damaged_facts)
    webs[0].history.take()
    (problem,) = (await webs[0].ok("GET", "/v1/overview"))["problems"]
    assert problem["brokers"] == [1, 2], "one problem of two brokers"


@with_brokers(2)
async def test_the_history_of_all_brokers_adds_what_each_has_counted(cluster):
    webs = await webs_of(cluster)
    for phase_ms, web in enumerate(webs):  # samples of brokers are not taken at the same time
        clock = HandClock(1_000_000 + 3_000 * phase_ms, step_ms=INTERVAL_S * 1_000)
        cluster.patch.setattr(web.history, "_clock", clock)
        count = itertools.count(step=50)
        cluster.patch.setattr(
            web.history, "_read", lambda count=count: Sample(next(count), connections=4)
        )
        for _ in range(25 + 20 * phase_ms):
            web.history.take()
    answer = await webs[0].ok("GET", "/v1/history?all_brokers=true&points=180")
    found = [(one["records_in_per_s"], one["connections"]) for one in answer["points"]]
    assert (found, "failed" in answer) == ([(20.0, 8)] * 6, False)
    assert {b["at_ms"] - a["at_ms"] for a, b in itertools.pairwise(answer["points"])} == {20_000}
    assert answer["points"][0]["disk_free_bytes"] == -1
    own = await webs[0].ok("GET", "/v1/history")
    assert {one["records_in_per_s"] for one in own["points"]} == {10.0}


@with_brokers(2)
async def test_any_broker_counts_the_keys_of_a_partition(cluster):
    webs = await webs_of(cluster)
    keys = ["hot"] * 6 + ["cold"] + ["/wAA"] * 2
    sent = [{"key": key, "value": "four", "partition": 3} for key in keys[:7]]
    sent += [
        {"key": key, "key_encoding": "base64", "value": "x", "partition": 3} for key in keys[7:]
    ]
    await webs[0].send(*sent)
    for web in webs:
        answer = await web.ok("GET", f"{PATH}/hot-keys/3")
        found = [(one["key"], one["records"], one["size_bytes"]) for one in answer["keys"]]
        assert found == [("hot", 6, 42), ("/wAA", 2, 8), ("cold", 1, 8)]
        assert answer["keys"][1]["key_encoding"] == "base64"
        counts = [answer[one] for one in ("first_offset", "end_offset", "records", "is_whole")]
        assert (counts, answer["distinct_keys"]) == ([0, 9, 9, True], 3)
        newest = await web.ok("GET", f"{PATH}/hot-keys/3?records=3")
        assert [one["records"] for one in newest["keys"]] == [2, 1]
        waiting = await web.ok("GET", f"{PATH}/hot-keys/3?records=3&offset=4")
        assert [one["key"] for one in waiting["keys"]] == ["hot", "cold"]
        assert (await web.ok("GET", f"{PATH}/hot-keys/0"))["keys"] == []
    cluster.patch.setattr(hot_keys, "TIME_S_MAX", 0.0)
    cut = await webs[0].ok("GET", f"{PATH}/hot-keys/3")
    assert (cut["is_whole"], cut["end_offset"], cut["keys"]) == (False, 0, [])


@with_brokers(1)
async def test_long_keys_that_compress_well_cost_little_memory_and_end_the_look(cluster):
    (web,) = await webs_of(cluster)
    await until(lambda: web.node.topics.get(TOPIC).log(0) is not None)
    log, mib = web.node.topics.get(TOPIC).require_log(0), 1024 * 1024
    for number in range(20):  # the keys differ at their end alone
        record = Record(0, 0, bytes(mib - 1) + bytes([number // 2]), b"x")
        data = encode_batch([record], codec=ZSTD)
        await append(log, data)
    tracemalloc.start()
    whole = await web.ok("GET", f"{PATH}/hot-keys/0")
    kept_and_passing = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (whole["is_whole"], whole["records"], whole["distinct_keys"]) == (True, 20, 10)
    assert {(one["key_bytes"], one["records"]) for one in whole["keys"]} == {(mib, 2)}
    assert kept_and_passing < 8 * mib
    cluster.patch.setattr(hot_keys, "WINDOW_BYTES_MAX", 3 * mib)
    cut = await web.ok("GET", f"{PATH}/hot-keys/0")
    assert (cut["is_whole"], cut["end_offset"], cut["records"]) == (False, 3, 3)


def test_samples_of_lag_keep_an_hour_and_the_groups_that_change():
    samples, unknown = group_lags.LagSamples(), group_lags.UNKNOWN
    still = {f"still-{one}": Kept(1, 10 * one) for one in range(group_lags.GROUPS_MAX - 1)}
    samples.add(1_000, {"moving": Kept(5, 40)} | still)
    samples.add(1_001, {"moving": Kept(6, unknown)} | still)
    assert samples.of("moving", 1_001) == {1_000: (5, 40), 1_001: (6, unknown)}
    new = {"moving": Kept(7, 0), "new": Kept(9, 90)}
    samples.add(1_002, new | still)  # has the place of one that stands still
    assert samples.of("new", 1_002) == {1_002: (9, 90)}
    last = 1_000 + group_lags.SAMPLES_MAX
    samples.add(last, {"new": Kept(1, 10)})
    assert samples.of("moving", last) == {1_001: (6, unknown), 1_002: (7, 0)}
    assert samples.of("new", last + group_lags.SAMPLES_MAX - 1) == {last: (1, 10)}


@with_brokers(3)
async def test_a_drain_is_shown_until_its_last_partition_has_moved(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    await wait_nothing_moves(webs)  # brokers have joined a moment ago
    held, ownership = asyncio.Event(), webs[0].node.ownership
    hand_over = ownership._hand_over

    async def slow(topic, number, target):
        await held.wait()
        await hand_over(topic, number, target)

    cluster.patch.setattr(ownership, "_hand_over", slow)  # others may still balance
    await cluster.brokers[1].node.metadata.put(draining_key(1), b"{}", ANY)
    views = [web.node.ownership.view for web in webs]
    await until(lambda: all(view.draining == {1} for view in views))
    owned_before = [view.drained_from[1] for view in views]
    for web, before in zip(webs, owned_before, strict=True):
        async with asyncio.timeout(60):  # what was moving before may still arrive
            while True:
                moves = (await web.ok("GET", "/v1/moves"))["moves"]
                # The others may exchange some, since there is another place for each.
                leaving = [one for one in moves if one["from"] == 1]
                numbers = [one["partition"] for one in leaving if one["topic"] == TOPIC]
                reasons = {one["reason"] for one in leaving}
                if (numbers, reasons) == (owned_of(cluster, 1), {"drained"}):
                    break
                await asyncio.sleep(0)
        first = (await web.ok("GET", "/v1/brokers"))["brokers"][0]
        assert (first["is_draining"], first["owned_before"]) == (True, before)
        assert first["partitions"] > 0
    (fact,) = await cluster.brokers[1].node.metadata.list(draining_key(1))
    held.set()
    await until(lambda: cluster.topic_owners() and 1 not in cluster.topic_owners())
    for web, before in zip(webs, owned_before, strict=True):
        await until(lambda web=web: not owned_by(web, 1))
        web.node.ownership.view._take_draining(fact.key, fact)  # as after a watch that failed
        await wait_nothing_moves([web])
        first = (await web.ok("GET", "/v1/brokers"))["brokers"][0]
        assert (first["is_draining"], first["partitions"]) == (True, 0)
        assert first["owned_before"] == before > 0


async def wait_nothing_moves(webs):
    async with asyncio.timeout(60):
        while any([(await web.ok("GET", "/v1/moves"))["count"] for web in webs]):
            await asyncio.sleep(0)


def owned_of(cluster, broker):
    return [number for number, owner in enumerate(cluster.topic_owners()) if owner == broker]


def owned_by(web, broker):
    view = web.node.ownership.view
    return [key for key, owner in view.owners.items() if owner.fact.broker == broker]


@with_brokers(2)
async def test_any_broker_shows_the_figures_of_all_and_who_does_not_answer(cluster):
    webs = await webs_of(cluster)
    for web in webs:
        web.history.take()
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    for web in webs:
        web.history.take()
    for web in webs:
        brokers = (await web.ok("GET", "/v1/brokers?details=true"))["brokers"]
        figures = [one["figures"] for one in brokers]
        assert all(one["records_in_per_s"] > 0 for one in figures)
        assert [(one["problems"], one["tier"]) for one in figures] == [(0, None)] * 2
        assert "figures" not in (await web.ok("GET", "/v1/brokers"))["brokers"][0]
    await cluster.rigs[2].face.close()
    answer = await webs[0].ok("GET", "/v1/brokers?details=true")
    assert [one["broker"] for one in answer["failed"]] == [2]
    assert "figures" in answer["brokers"][0]


@with_brokers(2)
async def test_any_broker_lists_the_ledgers_of_all_topics_that_lack_copies(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    assert await webs[0].ok("GET", "/v1/ledgers/lacking") == {"ledgers": [], "count": 0}
    lost = {}
    for web, broker in zip(webs, cluster.brokers, strict=True):
        number = cluster.topic_owners().index(broker)
        (segment,) = web.node.topics.get(TOPIC).require_log(number).segments
        lost[number] = segment.ledger
        ledgers = web.node.services.ledgers
        ledgers._replication = SimpleNamespace(lacking={segment.ledger: broker, 999: 1})
    expected = [
        {"topic": TOPIC, "partition": number, "ledger": lost[number], "copies_missing": owner}
        for number in sorted(lost)
        for owner in [cluster.topic_owners()[number]]
    ]
    for web in webs:
        answer = await web.ok("GET", "/v1/ledgers/lacking")
        assert answer == {"ledgers": expected, "count": 2}


@on_the_web
async def test_the_figures_of_a_topic_walk_neither_logs_nor_groups_of_others(web):
    for name in ("orders", "others"):
        await web.ask("POST", "/v1/topics", {"name": name, "partitions": 2})
        records = [{"value": "x", "partition": number} for number in range(2)]
        await web.ask("POST", f"/v1/topics/{name}/records", {"records": records})
    figures, asked = web.node.services.topic_figures, []
    describe = web.node.shares.describe_loaded
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(web.node.shares),
            "describe_loaded",
            lambda _self, topic, number: asked.append(topic.name) or describe(topic, number),
        )
        totals, _ = await figures.of(["orders"])
        assert ([*totals], asked) == (["orders"], ["orders"] * 2)
        patch.setattr(type(figures._calls), "ask_brokers", None)
        assert await figures.of([]) == ({}, {})


@with_brokers(3)
async def test_any_broker_lists_the_ledgers_of_all_partitions(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    owners = cluster.topic_owners()
    for web in webs:
        answer = await web.ok("GET", f"{PATH}/ledgers")
        assert [one["partition"] for one in answer["partitions"]] == list(range(COUNT))
        assert [one["broker"] for one in answer["partitions"]] == [*owners]
        for one in answer["partitions"]:
            last = one["ledgers"][-1]
            assert (last["end_offset"], last["is_open"], last["is_local"]) == (1, True, True)
            asked = await web.ok("GET", f"{PATH}/ledgers?partition={one['partition']}")
            assert asked["partitions"] == [one]


@with_brokers(3)
async def test_any_broker_lists_the_objects_of_a_partition(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*({"value": "x", "partition": number} for number in range(COUNT)))
    owners = cluster.topic_owners()
    for web in webs:
        answer = await web.ok("GET", f"{PATH}/objects/0")
        assert (answer["prefix"], answer["objects"]) == (None, [])  # without object storage
    tiering = SimpleNamespace(objects_prefix="c")
    for web, broker in zip(webs, cluster.brokers, strict=True):
        for number in range(COUNT):
            if owners[number] != broker:
                continue
            web.node.services.ledgers._tiering = tiering
            log = web.node.topics.get(TOPIC).require_log(number)
            await log.lifecycle_host.roll_now()
            log.segments[0].is_offloaded = True
    for web in webs:
        for number in range(COUNT):
            answer = await web.ok("GET", f"{PATH}/objects/{number}?limit=1")
            (one,) = answer["objects"]
            assert (answer["prefix"], one["base_offset"], one["end_offset"]) == ("c", 0, 1)
            assert answer["topic_id"] == (await web.ok("GET", PATH))["id"]
    assert (await webs[0].ask("GET", f"{PATH}/objects/{COUNT}"))[0] == 404


@with_brokers(3)
async def test_any_broker_takes_sends_of_all_partitions(cluster):
    webs = await webs_of(cluster)
    for web in webs:
        keys = [f"key-{number}" for number in range(30)]
        results = await web.send(*({"key": key, "value": key} for key in keys))
        assert [one["partition"] for one in results] == [
            partition_of_key(key.encode(), COUNT) for key in keys
        ]
        assert all(one["ok"] and one["offset"] >= 0 for one in results)
        named = await web.send(*({"value": "x", "partition": number} for number in range(COUNT)))
        assert [one["partition"] for one in named] == list(range(COUNT))
    mixed = await webs[0].send(
        *(
            {"partition": number, "value": "x", "headers": [["headrace-priority", priority]]}
            for number in range(COUNT)
            for priority in ("1", "x", "2")
        )
    )
    assert [one["ok"] for one in mixed] == [True, False, True] * COUNT
    assert "headrace-priority" in mixed[1]["error"]["detail"]


@with_brokers(3)
async def test_any_broker_settles_half_messages_whichever_partition_holds_them(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(*(half(f"id-{number}", number) for number in range(COUNT)))
    assert await webs[1].pending() == [(number, f"id-{number}") for number in range(COUNT)]
    commit = [{"message_id": f"id-{number}"} for number in range(COUNT)]
    assert await webs[2].settle(commit=commit) == [(True, "committed")] * COUNT
    assert await webs[0].settle(commit=commit) == [(True, "committed")] * COUNT
    contrary = await webs[1].settle(rollback=commit)
    assert not any(ok for ok, _ in contrary)
    assert await webs[1].pending() == []
    for dry in ({"commit": commit}, {"rollback": commit}):
        answer = await webs[2].ok("POST", f"{PATH}/half/settle?dry_run=true", dry)
        assert answer["dry_run"]
        assert [one["ok"] for one in answer["results"]] == ["commit" in dry] * COUNT
    # An id that was used before, in each other partition, and one that is pending twice.
    for number in range(COUNT):
        await webs[0].send(half("again", number))
        rolled_back = await webs[number % 3].settle(rollback=[{"message_id": "again"}])
        assert rolled_back == [(True, "rolled back")]
    await webs[1].send(half("again", 0), half("again", 0), half("again", 5))
    references = [{"message_id": one} for one in ("again", "never")]
    answer = await webs[0].ok("POST", f"{PATH}/half/settle?dry_run=true", {"commit": references})
    found, missing = answer["results"]
    assert (found["ok"], found["outcome"], found["settled_now"]) == (True, "committed", 3)
    assert (missing["ok"], missing["outcome"]) == (False, "unknown")
    assert len(await webs[2].pending()) == 3, "a dry run changes nothing"
    assert await webs[2].settle(commit=[{"message_id": "again"}]) == [(True, "committed")]
    assert await webs[2].pending() == []
    listed = (await webs[0].ok("GET", f"{PATH}/half?state=settled&limit=1000"))["half"]
    states = [one["state"] for one in listed if one["message_id"] == "again"]
    assert sorted(states) == ["committed"] * 3 + ["rolled back"] * COUNT
    assert await webs[0].settle(commit=[{"message_id": "never"}]) == [(False, "unknown")]


@with_brokers(2)
async def test_messages_that_an_unreachable_broker_may_hold_are_not_reported_absent(cluster):
    webs = await webs_of(cluster)
    await webs[0].send(half("there", cluster.topic_owners().index(2)))
    there = [number for number, owner in enumerate(cluster.topic_owners()) if owner == 2]
    await cluster.rigs[2].face.close()
    body = {"commit": [{"message_id": "there"}, {"message_id": "nowhere"}]}
    answer = await webs[0].ok("POST", f"{PATH}/half/settle", body)
    for one in answer["results"]:
        assert (one["ok"], one["retriable"]) == (False, True)
        assert "broker 2" in one["error"] or f"of {TOPIC} at the moment" in one["error"]
    missing = [one["partition"] for one in answer["failed"]]
    assert missing == there
    answer = await webs[0].ok("POST", f"{PATH}/delayed/cancel", {"message_ids": ["there"]})
    assert answer["results"][0]["retriable"]
    sent = await webs[0].send({"value": "x", "partition": missing[0]})
    assert (sent[0]["ok"], sent[0]["error"]["retriable"]) == (False, True)
    found = await webs[0].ok("GET", f"{PATH}/messages?message_id=there")
    assert not found["is_complete"]
    assert [(one["topic"], one["partition"]) for one in found["failed"]] == [
        (TOPIC, number) for number in missing
    ]
    traced = await webs[0].ok("GET", f"{PATH}/trace?message_id=there")
    assert (traced["is_complete"], [one["broker"] for one in traced["failed"]]) == (False, [2])
    assert (await webs[0].ask("GET", f"{PATH}/half?partition={missing[0]}"))[0] == 503


@with_brokers(2)
async def test_any_broker_lists_and_cancels_delayed_records(cluster):
    webs = await webs_of(cluster)
    for number in range(COUNT):
        headers = [["headrace-delay", "600000"], ["headrace-message-id", f"id-{number}"]]
        (sent,) = await webs[0].send({"partition": number, "value": "v", "headers": headers})
        assert (sent["offset"], sent["state"]) == (None, "delayed")
    listed, token = [], ""
    while token is not None:
        page = await webs[len(listed) % 2].ok("GET", f"{PATH}/delayed?limit=2{token}")
        listed += page["delayed"]
        token = page.get("next_page_token") and f"&page_token={page['next_page_token']}"
    assert [one["message_id"] for one in listed] == [f"id-{number}" for number in range(COUNT)]
    body = {
        "receipts": [listed[0]["receipt"], listed[5]["receipt"], "x"],
        "message_ids": ["id-1", "id-4", "id-1"],
    }
    for verb, done in (("cancel", "cancelled"), ("deliver", "delivered")):
        dry = await webs[0].ok("POST", f"{PATH}/delayed/{verb}?dry_run=true", body)
        assert (dry["dry_run"], [one[done] for one in dry["results"]]) == (True, [1, 1, 0, 1, 1, 0])
        assert len((await webs[1].ok("GET", f"{PATH}/delayed"))["delayed"]) == COUNT
    results = (await webs[1].ok("POST", f"{PATH}/delayed/cancel", body))["results"]
    assert [one["cancelled"] for one in results] == [1, 1, 0, 1, 1, 0]
    left = (await webs[0].ok("GET", f"{PATH}/delayed"))["delayed"]
    assert [one["message_id"] for one in left] == ["id-2", "id-3"]
    body = {"receipts": [left[0]["receipt"], listed[0]["receipt"]], "message_ids": ["id-3"]}
    results = (await webs[1].ok("POST", f"{PATH}/delayed/deliver", body))["results"]
    assert [one["delivered"] for one in results] == [1, 0, 1]
    for number in (2, 3):
        read = f"{PATH}/records?partition={number}&offset=0&wait_ms=30000"
        (record,) = (await webs[0].ok("GET", read))["records"]
        assert ["headrace-message-id", f"id-{number}"] in record["headers"]
        (due,) = [int(text) for name, text in record["headers"] if name == "headrace-deliver-at"]
        assert due <= record["timestamp_ms"]
    assert (await webs[0].ok("GET", f"{PATH}/delayed"))["delayed"] == []


@with_brokers(2)
async def test_a_producer_is_asked_for_half_messages_of_all_brokers_at_one(cluster):
    webs = await webs_of(cluster, **{"headrace.half.check.first.ms": "50"})
    asking = asyncio.create_task(
        webs[0].ok("POST", "/v1/half/shop/checks", {"wait_ms": 20_000, "max": 1})
    )
    await webs[1].send(half("there", cluster.topic_owners().index(2), "content"))
    (check,) = (await asking)["checks"]
    assert (check["message_id"], check["value"]) == ("there", "content")
    assert await webs[0].settle(commit=[{"receipt": check["receipt"]}]) == [(True, "committed")]
    await webs[0].send(*(half(f"id-{number}", number) for number in range(COUNT)))
    found = set()
    async with asyncio.timeout(60):
        while len(found) < COUNT:
            answer = await webs[1].ok("POST", "/v1/half/shop/checks", {"wait_ms": 1_000, "max": 4})
            assert len(answer["checks"]) <= 4
            found |= {one["message_id"] for one in answer["checks"]}


@with_brokers(2)
async def test_any_broker_finds_and_traces_the_messages_of_all(cluster):
    webs = await webs_of(cluster)
    await webs[0].node.topics.create("dead", COUNT, 1, READ)
    config = {"set": {"errors.deadletterqueue.topic.name": "dead"}}
    await webs[0].ok("PATCH", "/v1/groups/workers/config", config)
    assert all(web.node.group_configs.overrides("workers") for web in webs), "at once"
    headers = [["headrace-message-id", "id"]]
    for number in range(COUNT):
        record = {"value": "v", "partition": number}
        await webs[0].send(record | {"headers": headers})
        copied = [*headers, [SHARE_FORMAT.topic, TOPIC]]
        await webs[1].send(record | {"headers": copied}, topic="dead")
    places = [(name, number) for name in (TOPIC, "dead") for number in range(COUNT)]
    for web in webs:
        listed = await web.ok("GET", "/v1/dead-letters")
        assert listed == {"topics": [{"name": "dead", "partitions": COUNT, "records": COUNT}]}
        whole = await web.ok("GET", f"{PATH}/messages?message_id=id")
        assert [(one["topic"], one["partition"]) for one in whole["messages"]] == places
        assert whole["is_complete"]
        paged, query = [], {"message_id": "id", "limit": 1}
        while True:  # each page from another broker
            at = webs[len(paged) % 2]
            page = await at.ok("GET", f"{PATH}/messages?{urlencode(query)}")
            paged += page["messages"]
            if "next_page_token" not in page:
                break
            query["page_token"] = page["next_page_token"]
        assert paged == whole["messages"]
        traced = await web.ok("GET", f"{PATH}/trace?message_id=id")
        events = {(one["topic"], one["partition"]) for one in traced["events"]}
        assert (events, traced["is_complete"]) == (set(places), True)
        for number in range(COUNT):
            one = await web.ok("GET", f"{PATH}/trace?partition={number}&offset=0")
            assert [event["event"] for event in one["events"]] == ["stored"]
            kept = await web.ok("GET", f"{PATH}/journal/{number}")
            assert (kept["changes"], kept["first_position"]) == ([], 0)
    await cluster.kill(2)
    await until(lambda: set(cluster.topic_owners()) == {1})
    whole = await webs[0].ok("GET", f"{PATH}/messages?message_id=id&time_ms=30000")
    assert len(whole["messages"]) == len(places)


@with_brokers(2)
async def test_messages_of_one_message_group_are_in_one_partition_at_every_broker(cluster):
    webs = await webs_of(cluster)
    for group in ("order-1", "order-2", "order-3"):
        number = partition_of_key(group.encode(), COUNT)
        grouped = {"value": "v", "headers": [["headrace-message-group", group]]}
        for turn in range(6):
            (sent,) = await webs[turn % 2].send(grouped)
            assert (sent["ok"], sent["partition"]) == (True, number), sent
        (keyed,) = await webs[0].send(grouped | {"key": "k"})
        assert keyed["partition"] == partition_of_key(b"k", COUNT), "a key decides first"


# --- one broker ------------------------------------------------------------------------------


@on_the_web
async def test_a_record_that_is_refused_costs_its_neighbours_nothing(web):
    config = READ | {
        "max.message.bytes": "2000", "headrace.delay.max.ms": "1000",
        "message.timestamp.after.max.ms": "3600000",
    }  # fmt: skip
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 1, "config": config})

    def record(value, headers=(), **more):
        return {"value": value, "headers": [[f"headrace-{n}", v] for n, v in headers], **more}

    records = [
        record("0"),
        record("1", [("priority", "x")]),
        record("x" * 1500),
        record("3" * 1500),
        record("x" * 3000),
        record("5", [("delay", "5000")]),
        record("6", [("producer", "p"), ("sequence", "1")]),
        record("7", [("delay", "500")]),
        record("8", [("producer", "p"), ("sequence", "1")]),
        record("9", timestamp_ms=200_000_000_000_000),
        record("10", [("half", "g"), ("message-id", "i")]),
        record("11", [("half", "g")]),
        record("12"),
    ]
    answer = (await web.ask("POST", "/v1/topics/t/records", {"records": records}))[1]["results"]
    assert [n for n, one in enumerate(answer) if not one["ok"]] == [1, 4, 5, 9, 11]
    states = {n: one["state"] for n, one in enumerate(answer) if "state" in one}
    assert states == {7: "delayed", 8: "duplicate", 10: "half"}
    stored = {n: one["offset"] for n, one in enumerate(answer) if one.get("offset") is not None}
    path = "/v1/topics/t/records?partition=0&offset=0"
    log = {one["offset"]: one["value"] for one in (await web.ask("GET", path))[1]["records"]}
    assert {n: log[offset] for n, offset in stored.items()} == {
        n: records[n]["value"] for n in (0, 2, 3, 6, 12)
    }


@on_the_web
async def test_a_repeated_request_without_keys_is_stored_once(web):
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 5, "config": READ})
    names = (["headrace-producer", "request-77"], ["headrace-sequence", "{}"])
    body = {
        "records": [
            {"value": str(n), "headers": [names[0], ["headrace-sequence", str(n)]]}
            for n in range(3)
        ]
    }
    places = set()
    for _ in range(8):
        answer = (await web.ask("POST", "/v1/topics/t/records", body))[1]["results"]
        assert all(one["ok"] for one in answer)
        places |= {one["partition"] for one in answer}
    assert len(places) == 1
    path = f"/v1/topics/t/records?partition={places.pop()}&offset=0"
    stored = (await web.ask("GET", path))[1]["records"]
    assert [one["value"] for one in stored] == ["0", "1", "2"]


@on_the_web
async def test_attributes_that_a_topic_does_not_read_are_refused(web):
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 1})
    for headers in (
        [["headrace-delay", "500"]],
        [["headrace-half", "g"], ["headrace-message-id", "i"]],
        [["headrace-producer", "p"], ["headrace-sequence", "1"]],
        [["headrace-expire-at", "1"]],
    ):
        body = {"records": [{"value": "a"}, {"value": "b", "headers": headers}]}
        answer = (await web.ask("POST", "/v1/topics/t/records", body))[1]["results"]
        assert [one["ok"] for one in answer] == [True, False]
        assert "headrace.message.attributes=read" in answer[1]["error"]["detail"]
    harmless = [["headrace-message-id", "i"], ["headrace-tag", "t"], ["headrace-other", "x"]]
    body = {"records": [{"value": "a", "headers": harmless}]}
    assert (await web.ask("POST", "/v1/topics/t/records", body))[1]["results"][0]["ok"]


@on_the_web
async def test_valid_receipts_are_distinguished_from_finished_and_forged_ones(web):
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 1})
    config = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": "2",
        "errors.deadletterqueue.topic.name": "t.dead",
    }
    await web.ask("PATCH", "/v1/groups/g/config", {"set": config})
    await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": str(n)} for n in "012"]})
    before_ms = web.node.clock.now_ms()
    answer = (await web.ask("POST", "/v1/queues/t/g/receive", {"lock_ms": 40_000}))[1]
    assert 40_000 <= answer["lock_ends_ms"] - before_ms < 70_000
    first, second, third = (one["receipt"] for one in answer["messages"])
    path = "/v1/queues/t/g/settle"
    forged = first.rpartition(".")[0] + "." + "f" * 16
    asked = {"ack": [first, forged, "nonsense", second]}
    results = (await web.ask("POST", path, asked))[1]["results"]
    assert [one["ok"] for one in results] == [True, False, False, True]
    again = (await web.ask("POST", path, {"ack": [first, second]}))[1]["results"]
    assert ["finished" in one["error"] for one in again] == [True, True]
    for receipt in (third, None):
        if receipt is None:
            answer = (await web.ask("POST", "/v1/queues/t/g/receive", {}))[1]
            receipt = answer["messages"][0]["receipt"]
        nack = {"nack": [{"receipt": receipt, "reason": "database down"}]}
        assert (await web.ask("POST", path, nack))[1]["results"][0]["ok"]
    await until(lambda: "t.dead" in web.node.topics.by_name)
    log = web.node.topics.get("t.dead").require_log(0)
    await until(lambda: log.is_loaded and log.high_watermark > 0)
    (dead,) = (await web.ask("GET", "/v1/topics/t.dead/records?offset=0"))[1]["records"]
    assert dict(dead["headers"])["__dlq.errors.message"].endswith(": database down")
    assert (await web.ask("POST", "/v1/queues/t/g/receive", {"maximum": 3}))[0] == 400
    assert (await web.ask("GET", "/v1/queues/t/g?maximum=3"))[0] == 400


@on_the_web
async def test_numbers_that_json_has_not_are_refused_and_null_headers_are_stored(web):
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 1})
    for number in ("NaN", "Infinity", "-Infinity", "1e400"):
        body = '{"records":[{"value":[NUMBER],"value_encoding":"json"}]}'.replace("NUMBER", number)
        assert (await web.raw("POST", "/v1/topics/t/records", body.encode()))[0] == 400, number
    body = {"records": [{"value": "v", "headers": [["a", None], ["b", "x"]]}]}
    assert (await web.ask("POST", "/v1/topics/t/records", body))[1]["results"][0]["ok"]
    (record,) = (await web.ask("GET", "/v1/topics/t/records?offset=0"))[1]["records"]
    assert record["headers"] == body["records"][0]["headers"]
    body = {"records": [{"value": "v", "headers": [[None, "x"]]}]}
    assert not (await web.ask("POST", "/v1/topics/t/records", body))[1]["results"][0]["ok"]


@on_the_web
async def test_a_group_may_have_any_name(web):
    for group in ("a/b", "a/offsets", "..", "G" * 2_000, "a%2Fb", "\u00fc x"):
        path = path_of_parts(f"/v1/groups/{quote(group, safe='')}/config".encode())
        status, answer = await web.ask("GET", path)
        assert (status, answer["group"]) == (200, group)


@with_brokers(3)
async def test_any_broker_reads_and_follows_all_partitions(cluster):
    webs = await webs_of(cluster)
    headers = [["name", "v"], ["none", None]]
    for number in range(COUNT):
        record = {"value": f"v{number}", "headers": headers, "timestamp_ms": 1_000}
        await webs[0].send(record | {"partition": number}, {"value": "2", "partition": number})
    for web in webs:
        for number in range(COUNT):
            read = await web.ok("GET", f"{PATH}/records?partition={number}")
            assert [one["value"] for one in read["records"]] == [f"v{number}", "2"]
            assert read["records"][0]["headers"] == headers
            assert (read["next_offset"], read["start_offset"], read["end_offset"]) == (2, 0, 2)
            read = await web.ok("GET", f"{PATH}/records?partition={number}&timestamp_ms=1001")
            assert [one["offset"] for one in read["records"]] == [1]
            status, problem = await web.ask("GET", f"{PATH}/records?partition={number}&offset=9")
            assert (status, problem["retriable"]) == (409, False)
    elsewhere = cluster.topic_owners().index(2)
    path = f"{PATH}/records?partition={elsewhere}&offset=2&wait_ms=20000"
    waiting = asyncio.create_task(webs[0].ok("GET", path))
    async with followed(webs[0], f"{PATH}/tail") as next_record:
        await asyncio.sleep(0.05)
        for number in range(COUNT):
            await webs[2].send({"value": f"late {number}", "partition": number})
        late = [await next_record() for _ in range(COUNT)]
        assert sorted(one["value"] for one in late) == [f"late {n}" for n in range(COUNT)]
        assert all(one["value"] == f"late {one['partition']}" for one in late)
    assert [one["value"] for one in (await waiting)["records"]] == [f"late {elsewhere}"]


@with_brokers(3)
async def test_any_broker_shows_moves_and_deletes_groups(cluster):
    webs = await webs_of(cluster)
    for number in range(COUNT):
        await webs[0].send(*({"value": "v", "partition": number} for _ in range(5)))
    places = [{"topic": TOPIC, "partition": number, "offset": number} for number in range(COUNT)]
    places[4] = {"topic": TOPIC, "partition": 4, "position": "latest"}
    places[5] = {"topic": TOPIC, "partition": 5, "timestamp_ms": 1}
    for web in webs:
        group = f"group-{webs.index(web)}"  # with different coordinators, most likely
        consumer = OffsetToCommit(TOPIC, 0, 1)
        commit = CommitCommand(group, NO_GENERATION, "", None, [consumer])
        await web.node.services.groups.ensure_offsets_topic()
        await until(lambda group=group: coordinator_of(cluster, group) is not None)
        await coordinator_of(cluster, group).services.groups.commit(commit)
        for asked in webs:
            shown = await asked.ok("GET", f"/v1/groups/{group}")
            assert (shown["state"], shown["members"]) == ("Empty", [])
            moved = await asked.ok("PUT", f"/v1/groups/{group}/offsets", {"offsets": places})
            assert [one["ok"] for one in moved["results"]] == [True] * COUNT
            found = (await asked.ok("GET", f"/v1/groups/{group}/offsets"))["offsets"]
            expected = [(0, 5), (1, 4), (2, 3), (3, 2), (5, 0), (0, 5)]
            assert [(one["offset"], one["lag"]) for one in found] == expected
        await asked.ok("DELETE", f"/v1/groups/{group}")
        assert (await web.ask("GET", f"/v1/groups/{group}"))[0] == 404


def coordinator_of(cluster, group):
    """The node that coordinates the group; None if the brokers do not agree on one yet."""
    found = set()
    for one in cluster.brokers.values():
        try:
            found.add(one.node.cluster.coordinator_of(one.node.groups.shards, group).id)
        except CoordinatorUnavailable:
            return None
    return cluster.brokers[found.pop()].node if len(found) == 1 else None


@with_brokers(3)
async def test_a_search_asks_each_owner_once_for_the_first_step_of_its_partitions(cluster):
    webs = await webs_of(cluster)
    for number in range(COUNT):
        headers = [["headrace-message-id", "wanted"], ["n", str(number)]]
        await webs[0].send({"value": "x", "partition": number}, {"value": "y", "partition": number})
        await webs[0].send({"value": "z", "partition": number, "headers": headers})
    peers, asked = webs[0].node.queue_owners.peers, []
    real = peers.ask

    async def noted(broker, operation, topic_id, partitions, *rest):
        if operation == "search":
            asked.append((broker.id, [*partitions]))
        return await real(broker, operation, topic_id, partitions, *rest)

    cluster.patch.setattr(peers, "ask", noted)
    found = await webs[0].ok("GET", f"{PATH}/messages?message_id=wanted")
    assert [one["partition"] for one in found["messages"]] == [*range(COUNT)]
    assert (found["is_complete"], found["searched"]["records"]) == (True, 3 * COUNT)
    owners = cluster.topic_owners()
    own = {one: [n for n, owner in enumerate(owners) if owner == one] for one in (2, 3)}
    assert sorted(asked) == sorted((broker, numbers) for broker, numbers in own.items() if numbers)
    pages, token = [], ""
    while True:  # what a page has no room for is found by the next one
        more = f"&page_token={token}" if token else ""
        found = await webs[0].ok("GET", f"{PATH}/messages?limit=4{more}")
        pages += [(one["partition"], one["offset"]) for one in found["messages"]]
        token = found.get("next_page_token", "")
        if not token:
            break
    assert pages == [(number, offset) for number in range(COUNT) for offset in range(3)]


@pytest.mark.parametrize("answer", [b"{", b"{}", b"[[], 3]", b'[["a"], null]'])
def test_a_malformed_answer_of_one_owner_costs_the_partitions_of_others_nothing(answer):
    @with_brokers(2)
    async def scenario(cluster):
        webs = await webs_of(cluster)
        for number in range(COUNT):
            await webs[0].send({"value": "x", "partition": number})
        peers = webs[0].node.queue_owners.peers
        real = peers.ask

        async def malformed(broker, operation, topic_id, partitions, *rest):
            if operation == "search":
                return dict.fromkeys(partitions, answer)
            return await real(broker, operation, topic_id, partitions, *rest)

        cluster.patch.setattr(peers, "ask", malformed)
        found = await webs[0].ok("GET", f"{PATH}/messages")
        own = [number for number, owner in enumerate(cluster.topic_owners()) if owner == 1]
        assert [one["partition"] for one in found["messages"]] == own
        assert {one["partition"] for one in found["failed"]} == {*range(COUNT)} - {*own}
        assert not found["is_complete"]

    scenario()
