"""A batch of some kilobytes may have a million records: others have turns while it is decoded."""

from __future__ import annotations

import sys
import threading

import pytest
from tests.kit.broker import broker
from tests.kit.decoding import decoded_per_turn
from tests.unit.broker.test_dead_letters import Copying, letter
from tests.unit.broker.test_share_partitions import GROUP, ask, everything, make_topic, settle

from headrace.broker.services import batch_search
from headrace.broker.services.search import FIRST, SearchBounds
from headrace.broker.shares.share_reads import Selection
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.records import codec
from headrace.records.codec import DECODED_AT_ONCE, Record, encode_batch
from headrace.records.compression import ZSTD
from headrace.records.matching import Condition
from headrace.records.validation import INLINE_BYTES_MAX

COUNT = 20_000
NEWEST_MS = 1_700_000_000_000
MOST = 2 * DECODED_AT_ONCE
"""In a turn."""


async def topic_with_many(rig, name="t", **configs):
    """A topic with one batch, of which the last record is the newest."""
    await rig.node.topics.create(name, 1, configs=configs)
    topic = rig.node.topics.get(name)
    records = [Record(0, NEWEST_MS - 1, None, b"v", [])] * (COUNT - 1)
    records.append(Record(0, NEWEST_MS, None, b"v", []))
    await append(rig, topic, records)
    return topic


async def append(rig, topic, records):
    log = topic.require_log(0)
    await rig.node.services.appends.append_and_wait(log, encode_batch(records, codec=ZSTD))


async def test_a_record_is_looked_for_by_its_time_in_turns(monkeypatch):
    async with broker() as rig:
        log = (await topic_with_many(rig)).require_log(0)
        found, turns = await decoded_per_turn(log.reader.offset_of_time(NEWEST_MS), monkeypatch)
        assert found == (NEWEST_MS, COUNT - 1)
        assert max(turns) <= MOST
        found, turns = await decoded_per_turn(offset_of_max_timestamp(log), monkeypatch)
        assert found == (NEWEST_MS, COUNT - 1)
        assert max(turns) <= MOST


async def test_a_record_is_traced_without_the_others_of_its_batch(monkeypatch):
    async with broker() as rig:
        topic = await topic_with_many(rig)
        call = rig.node.services.search.trace_by_offset(topic, 0, COUNT - 1, 60_000)
        trace, turns = await decoded_per_turn(call, monkeypatch)
        assert [one.record.offset for one in trace.messages] == [COUNT - 1]
        assert sum(turns) <= 2


async def test_a_receive_with_a_selection_decodes_no_record_twice(monkeypatch):
    async with broker() as rig:
        topic = await topic_with_many(rig)
        asked = ReceiveRequest("g", "m", 10, 1 << 20, is_strict=True)
        await rig.node.shares.receive(topic, 0, asked)
        records = [Record(0, 1, None, b"v", [])] * COUNT
        await append(rig, topic, records)
        asked = ReceiveRequest("g", "m", 10, 1 << 20, is_strict=True, selection=Selection(tags="a"))
        received, turns = await decoded_per_turn(
            rig.node.shares.receive(topic, 0, asked), monkeypatch
        )
        assert not received.acquired
        assert max(turns) <= MOST
        assert sum(turns) <= COUNT


async def test_the_copy_of_a_dead_letter_costs_nothing_for_the_others_of_its_batch(monkeypatch):
    async with broker() as rig:
        topic = await topic_with_many(rig)
        copying = Copying(rig, topic)
        call = copying.copy(letter(COUNT - 1, COUNT - 1))
        _, turns = await decoded_per_turn(call, monkeypatch)
        assert copying.totals == (1, 0, 0)
        assert sum(turns) <= 10


@pytest.mark.parametrize(("is_ordered", "attributes"), [("true", "ignore"), ("false", "true")])
async def test_a_queue_learns_a_batch_in_parts_and_delivers_each_record_once(
    monkeypatch, is_ordered, attributes
):
    async with broker() as rig:
        configs = {"share.auto.offset.reset": "earliest", "headrace.share.key.order": is_ordered}
        await rig.node.group_configs.change(GROUP, lambda _: configs)
        topic = await make_topic(rig, "jobs", {"headrace.message.attributes": attributes})
        await append(rig, topic, [Record(0, 1, b"%d" % n, b"v", []) for n in range(COUNT)])
        got = []
        while len(got) < COUNT:
            call = rig.node.shares.receive(topic, 0, ask(records_max=5_000))
            received, turns = await decoded_per_turn(call, monkeypatch)
            assert max(turns) <= MOST
            assert received.acquired
            assert await settle(rig, topic, everything(received)) == [None] * len(received.acquired)
            got += [at for one in received.acquired for at in range(one.first, one.last + 1)]
        assert got == [*range(COUNT)]


async def test_a_search_leaves_large_batches_to_a_thread_that_lets_the_loop_go_first(monkeypatch):
    intervals, kept = [], batch_search._kept_of

    def noting(*asked):
        intervals.append(sys.getswitchinterval())
        return kept(*asked)

    async with broker() as rig:
        topic, before = await topic_with_many(rig), sys.getswitchinterval()
        monkeypatch.setattr(batch_search, "_kept_of", noting)
        asked = Condition(key="v"), FIRST, SearchBounds(10, 60_000)
        call = rig.node.services.search.page(topic, *asked)
        page, turns = await decoded_per_turn(call, monkeypatch)
        assert page.records == COUNT
        assert max(turns) <= MOST
        call = rig.node.services.hot_keys.of(topic, 0, COUNT)
        window, turns = await decoded_per_turn(call, monkeypatch)
        assert window.records >= COUNT // 2
        assert max(turns) <= MOST
        assert len(intervals) >= 2
        assert max(intervals) < before
        assert sys.getswitchinterval() == before


@pytest.mark.parametrize(("is_ordered", "attributes"), [("true", "ignore"), ("false", "true")])
async def test_a_queue_decompresses_large_batches_in_a_thread(monkeypatch, is_ordered, attributes):
    """A few records: what is large is what they expand to."""
    opened, decompress, loop = [], codec.decompress, threading.get_ident()

    def noting(*asked):
        data = decompress(*asked)
        if threading.get_ident() == loop:
            opened.append(len(data))
        return data

    async with broker() as rig:
        configs = {"share.auto.offset.reset": "earliest", "headrace.share.key.order": is_ordered}
        await rig.node.group_configs.change(GROUP, lambda _: configs)
        topic = await make_topic(rig, "jobs", {"headrace.message.attributes": attributes})
        await append(rig, topic, [Record(0, 1, b"%d" % n, bytes(100_000), []) for n in range(10)])
        monkeypatch.setattr(codec, "decompress", noting)
        received = await rig.node.shares.receive(topic, 0, ask(records_max=100))
        assert everything(received)
        assert sum(one.last - one.first + 1 for one in received.acquired) == 10
        assert max(opened, default=0) <= INLINE_BYTES_MAX
