"""Traces: every step of a message's life, from the log, the journal and the timers."""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from typing import Any
from urllib.parse import urlencode

import pytest
from crc32c import crc32c
from tests.kit.records import append
from tests.unit.http.http_rig import Web, on_the_web
from tests.unit.http.test_search import create, message, send

from headrace.broker.services.search import Search
from headrace.broker.services.table_marks import MARKS_MAX
from headrace.broker.services.trace import Trace, Tracer
from headrace.broker.shares import journal_records
from headrace.broker.shares.delivery_history import read_history
from headrace.broker.shares.journal_pages import read_page
from headrace.broker.shares.share_partitions import SharePartitions
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.coordination.shares.state_records import (
    ShareGroupChanged,
    ShareGroupOpened,
    StoredRun,
    encode,
)
from headrace.coordination.shares.window import AVAILABLE
from headrace.log.reading import LogReader
from headrace.records.codec import Record, encode_batch
from headrace.records.table_marks import TableMark

QUEUE = "/v1/queues/orders/workers"


async def trace(web: Web, **query: Any) -> dict[str, Any]:
    status, answer = await web.ask("GET", f"/v1/topics/orders/trace?{urlencode(query)}")
    assert status == 200, answer
    return answer


def steps(answer: dict[str, Any]) -> list[tuple[str, int | None]]:
    return [(event["event"], event.get("attempt")) for event in answer["events"]]


async def receive(web: Web) -> str:
    _, got = await web.ask("POST", f"{QUEUE}/receive", {"max": 1})
    return got["messages"][0]["receipt"]


async def settle(web: Web, **how: Any) -> None:
    _, answer = await web.ask("POST", f"{QUEUE}/settle", how)
    assert all(result["ok"] for result in answer["results"])


async def configure(web: Web, **more: str) -> None:
    wanted = {"share.auto.offset.reset": "earliest", **more}
    assert (await web.ask("PATCH", "/v1/groups/workers/config", {"set": wanted}))[0] == 200


@on_the_web
async def test_each_delivery_is_traced_with_its_outcome(web: Web) -> None:
    await create(web)
    await configure(web)
    await send(web, message(1))
    await settle(web, nack=[await receive(web)])
    receipt = await receive(web)
    held = await trace(web, message_id="id-1")
    assert steps(held) == [("stored", None), ("delivery_failed", 1), ("now", 2)]
    assert held["events"][-1]["member"].startswith("http-")
    await settle(web, ack=[receipt])
    done = await trace(web, partition=0, offset=0)
    assert steps(done) == [("stored", None), ("delivery_failed", 1), ("acknowledged", 2)]
    times = [event["at_ms"] for event in done["events"]]
    assert times == sorted(times)
    assert {event.get("group") for event in done["events"][1:]} == {"workers"}


@on_the_web
async def test_a_dead_letter_belongs_to_the_trace_and_so_does_what_is_sent_back(web: Web) -> None:
    await create(web)
    await configure(web, **{"errors.deadletterqueue.topic.name": "orders.dead"})
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = message(1)
    sent["headers"].append(["traceparent", parent])
    await send(web, sent)
    await settle(web, dead_letter=[{"receipt": await receive(web), "reason": "broken"}])
    while ("dead_lettered", 1) not in steps(await trace(web, message_id="id-1")):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.005)  # a trace is sorted by milliseconds
    sent["headers"].append(["headrace-redrives", "1"])
    await send(web, sent)
    told = await trace(web, message_id="id-1")
    names = [name for name, _ in steps(told)]
    assert names[:2] == ["stored", "given_up"]
    assert sorted(names[2:]) == sorted(["dead_letter_stored", "dead_lettered", "redriven", "now"])
    assert told["traceparents"] == [parent]


@on_the_web
async def test_delayed_and_half_messages_have_traces(web: Web) -> None:
    await create(web)
    await send(web, message(1, delay="3600000"), message(2, half="shop"))
    await send(web, message(3, delay="1"))
    assert steps(await trace(web, message_id="id-1")) == [("delayed", None)]
    assert steps(await trace(web, message_id="id-2")) == [("half_received", None)]
    body = {"rollback": [{"message_id": "id-2", "reason": "no stock"}]}
    await web.ask("POST", "/v1/topics/orders/half/settle", body)
    told = await trace(web, message_id="id-2")
    assert steps(told) == [("half_received", None), ("half_rolled_back", None)]
    assert told["events"][-1]["reason"] == "no stock"
    while steps(told := await trace(web, message_id="id-3")) != [("stored", None)]:
        await asyncio.sleep(0.01)
    assert told["events"][0]["due_ms"] == told["events"][0]["at_ms"]


async def compact_journal(web: Web, deliveries: int) -> None:
    """Fail this many deliveries, and wait until the journal has been compacted."""
    hosted = await web.node.shares.watched(web.node.topics.get("orders"), 0)
    hosted.shard.snapshots.bytes_min = hosted.shard.snapshots.due_at_bytes = 0
    for _ in range(deliveries):
        await settle(web, nack=[await receive(web)])
    while hosted.journal.log_start_offset == 0:
        await asyncio.sleep(0.01)


@on_the_web
async def test_a_trace_reports_deliveries_lost_to_journal_compaction_as_unknown(web: Web) -> None:
    await create(web)
    await configure(web, **{"share.delivery.count.limit": "10"})
    await send(web, message(1), message(2), message(3))
    await settle(web, nack=[await receive(web)])
    await settle(web, ack=[await receive(web)])
    await compact_journal(web, 18)
    told = await trace(web, message_id="id-1")
    assert any("journal was compacted" in one for one in told["unknown"])
    assert ("acknowledged", 2) not in steps(told)
    assert ("earlier_state", None) in steps(told)


@on_the_web
async def test_a_trace_ends_reading_a_journal_after_its_time_and_says_so(web: Web) -> None:
    await create(web)
    await configure(web)
    await send(web, message(1))
    for _ in range(3):
        await settle(web, nack=[await receive(web)])
    node, failed = web.node, [("delivery_failed", number) for number in (1, 2, 3)]
    topic = node.topics.get("orders")
    search = Search(node.topics, node.shares, node.timers, set)
    tracer = Tracer(node.topics, search, node.shares, node.timers, node.services.ledgers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_records, "READ_BYTES", 1)
        assert steps(await trace(web, message_id="id-1"))[1:4] == failed
        for time_ms, is_complete in ((60_000, True), (0, False)):
            by_id, by_offset = Trace(), Trace()
            await tracer.by_id("orders", "id-1", time_ms, by_id)
            await tracer.by_offset(topic, 0, 0, time_ms, by_offset)
            for told in (by_id, by_offset):
                assert told.is_complete == is_complete
                deliveries = [one for one in told.events if one.event == "delivery_failed"]
                assert (len(deliveries) == len(failed)) == is_complete
                is_said = any("time limit expired" in one for one in told.unknown)
                assert is_said != is_complete


@on_the_web
async def test_a_store_that_does_not_say_where_a_ledger_is_delays_no_trace(web: Web) -> None:
    await create(web)
    await configure(web)
    await send(web, message(1), message(1))
    await settle(web, nack=[await receive(web)])
    node = web.node

    async def place(*_asked: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    search = Search(node.topics, node.shares, node.timers, set)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.services.ledgers, "place", place)
        tracer = Tracer(node.topics, search, node.shares, node.timers, node.services.ledgers)
        told = Trace()
        async with asyncio.timeout(20):
            await tracer.by_id("orders", "id-1", 2_000, told)
    assert [one.event for one in told.events if one.event == "stored"] == ["stored"] * 2
    assert "delivery_failed" in {one.event for one in told.events}
    assert sum("ledger" in one for one in told.unknown) == 1


@on_the_web
async def test_a_trace_says_in_which_tables_a_message_is(web: Web) -> None:
    await create(web)
    await send(web, message(1), message(2))
    topic = web.node.topics.get("orders")
    topic_id = urlsafe_b64encode(topic.id.bytes).decode().rstrip("=")
    mark = TableMark("headrace.shop.orders", "uuid", 2**62 + 1, "append", topic_id)
    deleted = mark._replace(topic_id="of-a-topic-that-was-deleted")
    for group, metadata in (
        ("headrace-table.headrace.shop.orders", mark.encode() + "\0"),
        ("headrace-table.headrace.shop.earlier", deleted.encode()),
        ("headrace-table.by-hand", "[]"),
        ("billing", mark.encode()),
    ):
        offset = OffsetToCommit("orders", 0, 1, metadata=metadata)
        commit = CommitCommand(group, NO_GENERATION, "", None, [offset])
        await web.node.services.groups.commit(commit)
    told = await trace(web, message_id="id-1")
    assert steps(told) == [("stored", None), ("in_table", None)]
    assert "at_ms" not in told["events"][1]
    assert (
        told["events"][1].items()
        >= {
            "group": "headrace-table.headrace.shop.orders",
            "table": "headrace.shop.orders",
            "snapshot_or_earlier": str(2**62 + 1),
            "mode": "append",
            "offset": 0,
        }.items()
    )
    assert steps(await trace(web, partition=0, offset=0)) == steps(told)
    assert steps(await trace(web, message_id="id-2")) == [("stored", None)]
    assert "tables" not in told
    await topic.require_log(0).trim(2)
    for query in ({"message_id": "id-1"}, {"partition": 0, "offset": 0}):
        told = await trace(web, **query)
        assert told["events"] == []
        (table,) = told["tables"]
        assert (table["table"], table["mode"]) == ("headrace.shop.orders", "append")
    refused = await web.ask("GET", "/v1/topics/orders/trace?partition=0&offset=1")
    assert refused[0] == 409, "no archive has come so far"


@on_the_web
async def test_a_trace_says_that_there_are_more_tables_than_it_shows(web: Web) -> None:
    await create(web)
    await send(web, message(1))
    topic = web.node.topics.get("orders")
    topic_id = urlsafe_b64encode(topic.id.bytes).decode().rstrip("=")
    for number in range(MARKS_MAX + 1):
        mark = TableMark(f"headrace.shop.t{number}", "uuid", 1, "append", topic_id)
        offset = OffsetToCommit("orders", 0, 1, metadata=mark.encode())
        commit = CommitCommand(f"headrace-table.{mark.table}", NO_GENERATION, "", None, [offset])
        await web.node.services.groups.commit(commit)
        if number < MARKS_MAX - 1:
            continue
        told = await trace(web, message_id="id-1")
        assert steps(told) == [("stored", None), *[("in_table", None)] * MARKS_MAX]
        is_said = any("more than 1,000 marks" in one for one in told["unknown"])
        assert is_said == (number == MARKS_MAX)


@on_the_web
async def test_a_trace_that_names_no_message_is_refused(web: Web) -> None:
    await create(web)
    await send(web, message(1))
    for query in ("", "?message_id=a&partition=0&offset=1", "?partition=0", "?offset=1"):
        assert (await web.ask("GET", f"/v1/topics/orders/trace{query}"))[0] == 409
    assert (await web.ask("GET", "/v1/topics/orders/trace?partition=0&offset=7"))[0] == 409
    assert (await web.ask("POST", "/v1/traces", {"topic": "orders"}))[0] == 400
    assert (await trace(web, message_id="none"))["events"] == []


@on_the_web
async def test_a_trace_can_be_a_task(web: Web) -> None:
    await create(web)
    await send(web, message(1))
    status, task = await web.ask("POST", "/v1/traces", {"topic": "orders", "message_id": "id-1"})
    assert status == 202
    while task["state"] == "running":
        await asyncio.sleep(0)
        task = (await web.ask("GET", f"/v1/traces/{task['id']}"))[1]
    assert steps(task["results"][0]) == [("stored", None)]


@on_the_web
async def test_a_record_of_an_aborted_transaction_is_not_shown(web: Web) -> None:
    await create(web)
    log = web.node.topics.get("orders").require_log(0)
    batch = encode_batch(
        [Record(0, 1, None, b"never")],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    offset = await append(log, batch)
    marker = log.append_marker(7, 0, 0, is_commit=False)
    assert marker is not None
    await marker.completion.wait()
    query = urlencode({"partition": 0, "offset": offset})
    assert (await web.ask("GET", f"/v1/topics/orders/trace?{query}"))[0] != 200


@on_the_web
async def test_a_batch_that_cannot_be_decoded_has_no_records_to_trace(web: Web) -> None:
    """As such batches may have been stored before batches were validated."""
    await create(web)
    log = web.node.topics.get("orders").require_log(0)
    batch = bytearray(encode_batch([Record(0, 1, None, b"lost"), Record(1, 1, None, b"lost")]))
    batch[61] = 0x7F  # the length of the first record
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    offset = await append(log, bytes(batch))
    query = urlencode({"partition": 0, "offset": offset})
    status, answer = await web.ask("GET", f"/v1/topics/orders/trace?{query}")
    assert (status, "cannot be decoded" in str(answer)) == (409, True)
    await send(web, message(1))
    traced = await trace(web, message_id="id-1")
    assert steps(traced) == [("stored", None)]


async def journal(web: Web, limit: int = 1_000) -> list[tuple[str, int, int, int]]:
    """(event, first, last, deliveries) of all pages."""
    found, query = [], {"limit": str(limit)}
    while True:
        path = f"/v1/topics/orders/journal/0?{urlencode(query)}"
        status, answer = await web.ask("GET", path)
        assert status == 200, answer
        assert len(answer["changes"]) <= limit
        found += answer["changes"]
        if "next_page_token" not in answer:
            break
        query["page_token"] = answer["next_page_token"]
    assert {one["group"] for one in found} <= {"workers"}
    assert [one["position"] for one in found] == sorted(one["position"] for one in found)
    return [(one["event"], one["first"], one["last"], one["deliveries"]) for one in found]


@on_the_web
async def test_a_journal_is_read_in_pages_of_any_size(web: Web) -> None:
    await create(web)
    assert await journal(web) == []
    await configure(web, **{"errors.deadletterqueue.topic.name": "orders.dead"})
    await send(web, *(message(number) for number in range(1, 5)))
    await settle(web, nack=[await receive(web)])
    await settle(web, ack=[await receive(web)])
    await settle(web, dead_letter=[{"receipt": await receive(web), "reason": "broken"}])
    expected = [
        ("opened", 0, -1, 0),
        ("delivery_failed", 0, 0, 1),
        ("acknowledged", 0, 0, 2),
        ("given_up", 1, 1, 1),
        ("archived", 1, 1, 1),
    ]
    while len(await journal(web)) < len(expected):
        await asyncio.sleep(0.01)
    for limit in (1, 2, 1_000):
        assert await journal(web, limit) == expected
    assert (await web.ask("GET", "/v1/topics/orders/journal/0?page_token=x"))[0] == 400
    assert (await web.ask("GET", "/v1/topics/orders/journal/7"))[0] == 404
    assert (await web.ask("DELETE", "/v1/groups/workers"))[0] == 200
    assert await journal(web) == []


@on_the_web
async def test_a_compacted_journal_says_where_it_begins(web: Web) -> None:
    await create(web)
    await configure(web, **{"share.delivery.count.limit": "10"})
    await send(web, message(1), message(2), message(3))
    await settle(web, ack=[await receive(web)])
    await compact_journal(web, 9)
    _, answer = await web.ask("GET", "/v1/topics/orders/journal/0")
    assert answer["first_position"] > 0
    told = await journal(web)
    assert told[0] == ("opened", 0, 0, 0)
    assert told[1][:3] == ("delivery_failed", 1, 1)
    assert "acknowledged" not in {event for event, *_ in told}


async def page(web: Web, token: str = "0.0") -> tuple[list[int], int, str | None]:
    """(positions, where the journal begins, the next page) of one page."""
    target = f"/v1/topics/orders/journal/0?page_token={token}"
    status, answer = await web.ask("GET", target)
    assert status == 200, answer
    positions = [one["position"] for one in answer["changes"]]
    return positions, answer["first_position"], answer.get("next_page_token")


async def retried(web: Web, count: int) -> None:
    await create(web)
    await configure(web, **{"share.delivery.count.limit": "10"})
    await send(web, message(1))
    for _ in range(count):
        await settle(web, nack=[await receive(web)])


@on_the_web
async def test_a_compaction_within_a_page_shows_in_the_next_one(web: Web) -> None:
    await retried(web, 6)
    whole, first_position, token = await page(web)
    assert (first_position, token) == (0, None)
    log = (await web.node.shares.watched(web.node.topics.get("orders"), 0)).journal
    fetch_from = LogReader.fetch_from

    async def compacted(self: LogReader, offset: int, *rest: int) -> Any:
        if self is log.reader and offset == whole[2]:
            await log.trim(whole[4])
        return await fetch_from(self, offset, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_records, "READ_BYTES", 1)
        patch.setattr(LogReader, "fetch_from", compacted)
        assert await page(web) == (whole[:2], 0, f"{whole[4]}.0")
        assert await page(web, f"{whole[4]}.0") == (whole[4:], whole[4], None)


@on_the_web
async def test_a_page_ends_before_a_group_that_was_opened_during_its_read(web: Web) -> None:
    await retried(web, 2)
    before = await page(web)
    assert before[2] is None
    numbered_groups = SharePartitions.numbered_groups

    async def followed_by_another(self: SharePartitions, *of: Any) -> dict[int, str]:
        names = await numbered_groups(self, *of)
        other = {"set": {"share.auto.offset.reset": "earliest"}}
        assert (await web.ask("PATCH", "/v1/groups/others/config", other))[0] == 200
        await web.ask("POST", "/v1/queues/orders/others/receive", {"max": 1})
        await settle(web, nack=[await receive(web)])
        return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharePartitions, "numbered_groups", followed_by_another)
        assert await page(web) == before
    _, answer = await web.ask("GET", "/v1/topics/orders/journal/0")
    later = [(one["group"], one["event"]) for one in answer["changes"][len(before[0]) :]]
    assert later == [("others", "opened"), ("workers", "delivery_failed")]


@on_the_web
async def test_other_work_is_done_while_a_long_batch_of_a_journal_is_read(web: Web) -> None:
    await create(web)
    run = StoredRun(0, 0, AVAILABLE, 1)
    changes = [ShareGroupOpened(0, "workers", 0), *[ShareGroupChanged(0, (run,))] * 4_999]
    batch = encode_batch([Record(0, 1, *encode(one)) for one in changes])
    log = web.node.topics.get("orders").require_log(0)
    await append(log, batch)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    read = 0
    at: tuple[int, int] | None = (0, 0)
    while at is not None:  # a slow machine needs more than one page: each has a limit of time
        page_read = await read_page(log, {0: "workers"}, at, (0, 5_000), 5_000)
        read, at = read + len(page_read.changes), page_read.next
    assert (read, turns >= 45) == (5_000, True), turns
    turns = 0
    history = await read_history(log, [0], asyncio.get_running_loop().time() + 60)
    assert (len(history.outcomes), history.up_to_ms, turns >= 45) == (1, -1, True), turns
    working.cancel()


@on_the_web
async def test_pages_of_journals_wait_for_each_other(web: Web) -> None:
    await retried(web, 1)
    running = web.node.services.journals._running
    places = 0
    while not running.locked():
        await running.acquire()
        places += 1
    asked = asyncio.create_task(page(web))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not asked.done()
    for _ in range(places):
        running.release()
    assert len((await asked)[0]) == 2
