"""Queues over HTTP on a broker in memory: what a receive does with failures, limits and gaps."""

from __future__ import annotations

import asyncio
import functools
import json
import os

import pytest
from starlette.applications import Starlette
from tests.kit.broker import broker
from tests.kit.records import append, batch
from tests.unit.broker.test_dead_letters import broken_batch
from tests.unit.http.http_rig import on_the_web
from tests.waiting import until

from headrace.broker.services.queue_receipts import ReceiptSettlements, receipt_text
from headrace.broker.services.queue_service import QueueService
from headrace.broker.shares.queue_peers import MemberSettlements
from headrace.broker.shares.share_reads import row_reader, rows_of
from headrace.coordination.groups.commands import CommitCommand, OffsetToCommit
from headrace.coordination.shares.commands import ACCEPT, Settlement
from headrace.coordination.shares.config import ShareConfig
from headrace.errors import DataCorrupt
from headrace.http import parked, queues
from headrace.http.operations import routes
from headrace.http.queues import Queues
from headrace.kafka.handlers.groups import ensure_offsets_topic
from headrace.metadata.facts import CompanionKind
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch, retain_records
from headrace.records.compression import GZIP, NONE

GROUP = "workers"


@on_the_web
async def test_in_partition_order_a_standby_takes_over_where_the_former_consumer_stood(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    config = {"share.auto.offset.reset": "earliest", "headrace.share.partition.order": "true"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    records = [{"key": str(n), "value": str(n)} for n in range(4)] + [{"value": "4"}]
    await web.ask("POST", "/v1/topics/jobs/records", {"records": records})
    path = f"/v1/queues/jobs/{GROUP}"

    async def receive(**more):
        _, got = await web.ask("POST", f"{path}/receive", {"max": 10, **more})
        return [(one["value"], one["deliveries"]) for one in got["messages"]], got["messages"]

    active, _held = await receive(lock_ms=50)
    assert active == [("0", 1)]
    assert (await receive())[0] == [], "the standby gets nothing while a message is in flight"
    taken, held = await receive(wait_ms=20_000)
    assert taken == [("0", 2)], "then it takes over, with the message that was not finished"
    seen = []
    while held:
        seen += [one["value"] for one in held]
        assert len(held) == 1
        receipts = [one["receipt"] for one in held]
        await web.ask("POST", f"{path}/settle", {"ack": receipts})
        _, held = await receive()
    assert seen == ["0", "1", "2", "3", "4"]
    refused = await web.ask("POST", f"{path}/park", {"keys": ["1"]})
    assert refused[0] == 409


@on_the_web
async def test_a_parked_key_is_set_aside_and_goes_on_where_it_stood(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 2})
    config = {"share.auto.offset.reset": "earliest", "headrace.share.key.order": "true"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    records = [{"key": key, "value": f"{key}{n}"} for n in range(3) for key in ("hot", "cold")]
    await web.ask("POST", "/v1/topics/jobs/records", {"records": records})
    path = f"/v1/queues/jobs/{GROUP}"

    async def drain():
        found = []
        while True:
            _, got = await web.ask("POST", f"{path}/receive", {"max": 10})
            if not got["messages"]:
                return found
            found += [one["value"] for one in got["messages"]]
            receipts = [one["receipt"] for one in got["messages"]]
            await web.ask("POST", f"{path}/settle", {"ack": receipts})

    body = {"keys": ["hot", "new"]}
    _, dry = await web.ask("POST", f"{path}/park?dry_run=true", body)
    assert (dry["dry_run"], dry["parked"], dry["records"]) == (True, 2, 0), "none is read yet"
    assert "others" not in str(await web.ask("GET", "/v1/groups")), "the group has not begun"
    status, parked = await web.ask("POST", f"{path}/park", {"keys": ["hot", "hot"]})
    assert parked["parked"] == 1
    _, parked = await web.ask("POST", f"{path}/park", {"keys": ["hot"]})
    assert parked["parked"] == 0, "it is parked already"
    assert status == 200
    _, dry = await web.ask("POST", f"{path}/park?dry_run=true", body)
    assert (dry["parked"], dry["records"]) == (1, 0), "what is parked already changes nothing"
    assert await drain() == ["cold0", "cold1", "cold2"]
    _, listed = await web.ask("GET", f"{path}/parked")
    assert {(one["key"], one["records"]) for one in listed["parked"]} >= {("hot", 3)}
    body = {"keys": ["hot", "other"]}
    _, dry = await web.ask("POST", f"{path}/unpark?dry_run=true", body)
    assert (dry["released"], dry["keys"], dry["records"]) == (1, ["hot"], 3)
    assert (await web.ask("GET", f"{path}/parked"))[1]["parked"], "a dry run releases none"
    _, released = await web.ask("POST", f"{path}/unpark", body)
    assert (released["released"], released["keys"]) == (1, ["hot"])
    _, dry = await web.ask("POST", f"{path}/park?dry_run=true", body)
    assert (dry["parked"], dry["records"]) == (2, 3)
    assert await drain() == ["hot0", "hot1", "hot2"]
    assert (await web.ask("GET", f"{path}/parked"))[1]["parked"] == []
    body = {"keys": ["%%"], "key_encoding": "base64"}
    assert (await web.ask("POST", f"{path}/park", body))[0] == 409
    for dry in ("?dry_run=true", ""):
        refused = await web.ask("POST", f"/v1/queues/jobs/others/park{dry}", {"keys": ["hot"]})
        assert refused[0] == 409
    listed = await web.ask("GET", "/v1/groups")
    assert "others" not in str(listed[1]), "a group that is refused has not begun"
    assert "headrace.share.key.order" in refused[1]["detail"]


@on_the_web
async def test_parked_keys_are_listed_in_pages_that_read_few_partitions(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 5})
    config = {"headrace.share.key.order": "true"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    path = f"/v1/queues/jobs/{GROUP}"
    await web.ask("POST", f"{path}/park", {"keys": ["b", "a", "c"]})
    asked, list_parked = [], QueueService.list_parked

    def counted(self, topic, group_id, numbers):
        asked.extend(numbers)
        return list_parked(self, topic, group_id, numbers)

    found, token, read = [], "", []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parked, "LISTED_AT_ONCE", 2)
        patch.setattr(QueueService, "list_parked", counted)
        while token is not None:
            asked.clear()
            _, page = await web.ask("GET", f"{path}/parked?limit=4&page_token={token}")
            found += [(one["partition"], one["key"]) for one in page["parked"]]
            token = page.get("next_page_token")
            read.append([*asked])
    assert found == [(number, key) for number in range(5) for key in "abc"]
    assert read == [[0, 1], [1, 2], [2, 3, 4], [3, 4]]
    _, dry = await web.ask("POST", f"{path}/unpark?dry_run=true", {"keys": ["b", "x"]})
    assert (dry["released"], dry["keys"]) == (1, ["b"])


@on_the_web
async def test_parked_keys_are_listed_and_released_without_a_write_where_no_group_is(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 2})
    path = f"/v1/queues/jobs/{GROUP}"
    status, listed = await web.ask("GET", f"{path}/parked")
    assert (status, listed["parked"]) == (200, [])
    status, released = await web.ask("POST", f"{path}/unpark", {"keys": ["hot"]})
    assert (status, released["released"], released["keys"]) == (200, 0, [])
    status, _ = await web.ask("POST", f"{path}/park", {"keys": ["hot"]})
    assert status == 409
    for log in web.node.topics.get("jobs").partitions:
        await log.wait_loaded()
        assert not log.lifecycle_host.chain.fact.has_companion(CompanionKind.SHARES)


class Queue:
    """A topic of some partitions, and its queue."""

    def __init__(self, rig, topic):
        self.topic = topic
        self.node = rig.node
        services = rig.node.services
        self.app = Starlette(routes=routes(services, Queues(services).operations, is_local=True))

    @classmethod
    async def make(cls, rig, partition_count=1):
        await rig.node.group_configs.change(
            GROUP, lambda _: {"share.auto.offset.reset": "earliest"}
        )
        await rig.node.topics.create("jobs", partition_count, 1, {})
        return cls(rig, rig.node.topics.get("jobs"))

    async def append(self, *batches, partition=0):
        log = self.topic.partitions[partition]
        await log.wait_loaded()
        for data in batches:
            await append(log, data)

    async def ask(self, suffix, body):
        sent = []

        async def receive():
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

        async def send(message):
            sent.append(message)

        path = f"/v1/queues/jobs/{GROUP}/{suffix}"
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "root_path": ""}
        await asyncio.wait_for(self.app(scope, receive, send), 30)
        content = b"".join(message.get("body", b"") for message in sent[1:])
        return sent[0]["status"], json.loads(content)

    async def receive(self, **body):
        status, answer = await self.ask("receive", body)
        assert status == 200, answer
        return answer["messages"]

    async def acknowledge(self, messages):
        status, answer = await self.ask("settle", {"ack": [m["receipt"] for m in messages]})
        assert status == 200, answer
        assert all(result["ok"] for result in answer["results"])

    async def described(self, partition=0):
        (found,) = await self.node.shares.describe(self.topic, partition)
        return found


def values(messages):
    return [message["value"] for message in messages]


def compacted(count, *kept):
    """A batch of `count` records as compaction leaves it, with those at `kept`."""
    records = [Record(i, 1, b"k", b"%d" % i, []) for i in range(count)]
    header = read_header(encode_batch(records))
    return retain_records(header, [records[i] for i in kept])


async def test_a_partition_that_fails_does_not_take_the_messages_of_the_others_with_it():
    async with broker() as rig:
        queue = await Queue.make(rig, 3)
        await queue.append(batch(b"first"), partition=0)
        await queue.append(batch(b"second"), partition=2)
        queue.topic.partitions[1].tenure.abandon(DataCorrupt("a batch is damaged"))
        messages = await queue.receive(max=10)
        assert sorted(values(messages)) == ["first", "second"]
        await queue.acknowledge(messages)


async def test_the_error_of_a_partition_is_returned_when_no_other_has_a_message():
    async with broker() as rig:
        queue = await Queue.make(rig, 2)
        queue.topic.partitions[1].tenure.abandon(DataCorrupt("a batch is damaged"))
        status, answer = await queue.ask("receive", {"max": 10, "wait_ms": 50})
        assert status != 200
        assert "a batch is damaged" in answer["detail"]


async def test_a_receive_waits_for_healthy_partitions_while_another_one_fails():
    async with broker() as rig:
        queue = await Queue.make(rig, 2)
        queue.topic.partitions[1].tenure.abandon(DataCorrupt("a batch is damaged"))
        waiting = asyncio.create_task(queue.receive(max=10, wait_ms=20_000))
        await until(lambda: queue.topic.partitions[0].waiters)
        await queue.append(batch(b"late"))
        assert values(await waiting) == ["late"]


async def test_the_bytes_of_a_receive_are_those_of_all_partitions_together(monkeypatch):
    monkeypatch.setattr(queues, "BYTES_MAX", 100_000)
    async with broker() as rig:
        queue = await Queue.make(rig, 3)
        for partition in range(3):
            await queue.append(*[batch(b"x" * 10_000)] * 8, partition=partition)
        messages = await queue.receive(max=1_000)
        assert 8 <= len(messages) <= 10
        again = await queue.receive(max=1_000)
        assert len(again) >= 8, "what did not fit is left to the next receive"


@pytest.mark.parametrize("codec", [NONE, GZIP])
async def test_a_large_batch_is_read_once_for_all_its_receives(codec):
    async with broker() as rig:
        queue = await Queue.make(rig)
        records = [Record(n, 1, None, b"%d" % n + bytes(20), []) for n in range(1_000)]
        incompressible = rig.node.randomness.uuid().bytes * 40
        records.append(Record(1_000, 1, incompressible + os.urandom(10_000), b"last", []))
        await queue.append(encode_batch(records, codec=codec), batch(b"next"))
        log = queue.topic.partitions[0]
        reads, read = [], log.reader.fetch

        async def counted(offset, *limits):
            reads.append(offset)
            return await read(offset, *limits)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(log.reader), "fetch", lambda _self, *asked: counted(*asked))
            seen = []
            while messages := await queue.receive(max=100):
                await queue.acknowledge(messages)
                seen += [(one["offset"], one["deliveries"]) for one in messages]
        assert seen == [(offset, 1) for offset in range(1_002)]
        assert len(reads) < 6, reads


async def test_a_batch_that_is_kept_is_not_served_before_the_log_start():
    async with broker() as rig:
        queue = await Queue.make(rig)
        await queue.append(batch(*[bytes(100)] * 200))
        first = await queue.receive(max=10)
        assert [one["offset"] for one in first] == list(range(10))
        await queue.topic.partitions[0].trim(150)
        assert (await queue.receive(max=1))[0]["offset"] == 150


async def test_offsets_that_compaction_emptied_are_finished_with_the_messages_around_them():
    async with broker() as rig:
        queue = await Queue.make(rig)
        await queue.append(compacted(5, 1, 3))
        messages = await queue.receive(max=10)
        assert values(messages) == ["1", "3"]
        assert (await queue.described()).acquired_records == 2
        await queue.acknowledge(messages)
        assert (await queue.described()).start == 5


async def test_a_receive_that_gets_emptied_offsets_alone_goes_on_to_the_next_message():
    async with broker() as rig:
        queue = await Queue.make(rig)
        await queue.append(compacted(4, 3))
        assert values(await queue.receive(max=1, wait_ms=20_000)) == ["3"]
        await queue.append(compacted(4, 3))
        assert values(await queue.receive(max=1)) == ["3"]


async def test_a_batch_that_cannot_be_decoded_is_rejected_and_the_others_are_delivered():
    async with broker() as rig:
        queue = await Queue.make(rig)
        await queue.append(batch(b"before"), broken_batch(3), batch(b"after"))
        messages = await queue.receive(max=10)
        assert values(messages) == ["before", "after"]
        assert (await queue.described()).acquired_records == 2
        await queue.acknowledge(messages)
        assert (await queue.described()).start == 5


def test_undecodable_batches_keep_their_place_in_partition_order():
    for is_serial, keys in ((True, {0}), (False, {-1, -2, -3})):
        rows = rows_of(broken_batch(3), 0, row_reader(ShareConfig(is_serial=is_serial)))
        assert {row.key_hash for row in rows} == keys


@on_the_web
async def test_messages_over_the_response_limit_are_released_without_a_delivery(web):
    """A batch of some kilobytes may unfold to a thousand times that."""
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    config = {"share.auto.offset.reset": "earliest"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    value = bytes(3 * 1024 * 1024)
    records = [Record(0, 1, None, value) for _ in range(16)]
    log, data = web.node.topics.get("jobs").require_log(0), encode_batch(records, codec=GZIP)
    await log.wait_loaded()
    await append(log, data)
    seen = []
    for _ in range(10):
        _, got = await web.ask("POST", f"/v1/queues/jobs/{GROUP}/receive", {"max": 1_000})
        if not got["messages"]:
            break
        assert len(got["messages"]) <= 6, "16 MiB, and the one that goes beyond"
        assert {one["deliveries"] for one in got["messages"]} == {1}
        seen += [one["offset"] for one in got["messages"]]
        receipts = [one["receipt"] for one in got["messages"]]
        _, settled = await web.ask("POST", f"/v1/queues/jobs/{GROUP}/settle", {"ack": receipts})
        assert all(one["ok"] for one in settled["results"])
    assert seen == list(range(16))
    _, read = await web.ask("GET", "/v1/topics/jobs/records?max=1000")
    assert (len(read["records"]), read["next_offset"]) == (3, 3), "8 MiB in one response"


@on_the_web
async def test_deliveries_of_several_members_are_settled_side_by_side(web):
    """In a row, each would wait for a sync of its own."""
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 2})
    begun, all_begun = [], asyncio.Event()

    async def settle(_topic, number, _group, member, _settlements, *, is_atomic):
        begun.append((number, member, is_atomic))
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        return [None]

    web.node.shares.settle = settle
    done = [Settlement(0, 0, ACCEPT)]
    parts = [MemberSettlements(*one, done) for one in ((0, "a"), (0, "b"), (1, "a"))]
    async with asyncio.timeout(60):
        topic = web.node.topics.get("jobs")
        assert await web.node.queue_owners.settle(topic, GROUP, parts) == [[None]] * 3


@on_the_web
async def test_a_settlement_waits_for_no_partition_of_other_calls(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 2})
    hangs = asyncio.Event()

    async def settle(_topic, number, _group, _member, settlements, *, is_atomic):
        if number == 0:
            await hangs.wait()
        return [None] * len(settlements)

    web.node.shares.settle = settle
    outcomes = {}
    for number in range(2):
        asked = ReceiptSettlements()
        asked.add(receipt_text(number, 5, "m"), ACCEPT)
        asked.finish()
        done = functools.partial(outcomes.__setitem__, number)
        topic = web.node.topics.get("jobs")
        web.node.services.queues.settle_soon(topic, GROUP, asked, str, done)
    await until(lambda: outcomes)
    assert outcomes == {1: [None]}
    hangs.set()
    await until(lambda: len(outcomes) == 2)


@on_the_web
async def test_a_receive_up_to_an_end_uses_up_no_deliveries_of_later_records(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs", "partitions": 2})
    config = {"share.auto.offset.reset": "earliest"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    records = [{"value": f"{p}.{n}", "partition": p} for p in range(2) for n in range(6)]
    await web.ask("POST", "/v1/topics/jobs/records", {"records": records})
    path = f"/v1/queues/jobs/{GROUP}"
    ends = {"max": 100, "ends": [{"partition": 0, "offset": 4}]}
    _, got = await web.ask("POST", f"{path}/receive", ends)
    assert [one["value"] for one in got["messages"]] == ["0.0", "0.1", "0.2", "0.3"]
    _, got = await web.ask("POST", f"{path}/receive", {**ends, "wait_ms": 50})
    assert got["messages"] == []
    _, got = await web.ask("POST", f"{path}/receive", {"max": 100})
    assert {one["deliveries"] for one in got["messages"]} == {1}
    assert len(got["messages"]) == 8


@on_the_web
async def test_a_failover_group_has_one_consumer_at_a_time_and_keeps_the_order(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    config = {"share.auto.offset.reset": "earliest", "headrace.share.subscription": "failover"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    records = [{"value": str(n)} for n in range(6)]
    await web.ask("POST", "/v1/topics/jobs/records", {"records": records})
    path = f"/v1/queues/jobs/{GROUP}/receive"

    async def receive(consumer, **more):
        _, got = await web.ask("POST", path, {"max": 2, "consumer": consumer, **more})
        return [(one["value"], one["deliveries"]) for one in got["messages"]]

    lock = {"lock_ms": 1_000}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config",
                  {"set": {"share.record.lock.duration.ms": "1000"}})  # fmt: skip
    assert await receive("a", **lock) == [("0", 1), ("1", 1)]
    assert await receive("b") == [], "it stands by"
    assert await receive("a", **lock) == [("2", 1), ("3", 1)]
    assert await receive("b", wait_ms=20_000) == [("0", 2), ("1", 2)], "the first one is quiet"
    assert await receive("a") == []


@on_the_web
async def test_a_second_consumer_of_an_exclusive_group_is_refused(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    config = {"share.auto.offset.reset": "earliest", "headrace.share.subscription": "exclusive"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": config})
    await web.ask("POST", "/v1/topics/jobs/records", {"records": [{"value": "x"}]})
    path = f"/v1/queues/jobs/{GROUP}/receive"
    assert (await web.ask("POST", path, {"consumer": "a"}))[0] == 200
    status, refused = await web.ask("POST", path, {"consumer": "b"})
    assert status == 409
    assert "another consumer has this partition" in refused["detail"]


@on_the_web
async def test_the_id_of_a_consumer_group_is_refused(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    path = f"/v1/queues/jobs/{GROUP}/receive"
    await ensure_offsets_topic(web.node)
    committed = CommitCommand(GROUP, -1, "", None, [OffsetToCommit("jobs", 0, 1)])
    (result,) = (await web.node.groups.submit(committed)).results
    assert result.error is None
    status, problem = await web.ask("POST", path, {})
    assert (status, problem["retriable"]) == (409, False)
    assert "is a consumer group" in problem["detail"]
    assert not web.node.share_groups.exists(GROUP)
    status, _ = await web.ask("POST", "/v1/queues/jobs/others/receive", {})
    assert status == 200


@on_the_web
async def test_the_first_receive_of_a_group_that_begins_at_the_end_says_so(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    await web.ask("POST", "/v1/topics/jobs/records", {"records": [{"value": "before"}]})
    _, first = await web.ask("POST", f"/v1/queues/jobs/{GROUP}/receive", {})
    assert first["messages"] == []
    assert "share.auto.offset.reset=earliest" in first["note"]
    _, again = await web.ask("POST", f"/v1/queues/jobs/{GROUP}/receive", {})
    assert "note" not in again
    config = {"share.auto.offset.reset": "earliest"}
    await web.ask("PATCH", "/v1/groups/others/config", {"set": config})
    _, got = await web.ask("POST", "/v1/queues/jobs/others/receive", {})
    assert [one["value"] for one in got["messages"]] == ["before"]
    assert "note" not in got


@on_the_web
async def test_a_new_group_of_an_empty_topic_gets_no_warning(web):
    await web.ask("POST", "/v1/topics", {"name": "jobs"})
    _, first = await web.ask("POST", f"/v1/queues/jobs/{GROUP}/receive", {})
    assert first == {"topic": "jobs", "group": GROUP, "messages": []}
