"""Priority, time to live and filters of share groups, on a broker."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.broker import broker
from tests.kit.records import append
from tests.unit.broker.test_share_partitions import (
    GROUP,
    ask,
    everything,
    make_topic,
    settle,
    values,
)

from headrace.broker.shares.share_reads import Selection
from headrace.coordination.shares.commands import RELEASE, Settlement
from headrace.errors import ConfigInvalid
from headrace.records.codec import Record, encode_batch, iterate_records

ON = {"headrace.message.attributes": "true"}


def batch_of(*items, timestamp_ms=1_700_000_000_000):
    """Of (value, {header: value}); without headers a value alone."""
    pairs = [item if isinstance(item, tuple) else (item, {}) for item in items]
    records = [
        Record(0, timestamp_ms, None, value, [(n, v.encode()) for n, v in headers.items()])
        for value, headers in pairs
    ]
    return encode_batch(records)


def rank(value, priority):
    return value, {"headrace-priority": str(priority)}


async def topic_of(rig, *batches, topic_configs=None, **configs):
    await rig.node.group_configs.change(
        GROUP, lambda _: {"share.auto.offset.reset": "earliest", **configs}
    )
    topic = await make_topic(rig, "jobs", topic_configs or {})
    for data in batches:
        await append(topic.partitions[0], data)
    return topic


async def received(rig, topic, records_max=500):
    return await rig.node.shares.receive(topic, 0, ask("a", records_max, is_strict=True))


async def drain(rig, topic, records_max=1):
    found = []
    while (got := await received(rig, topic, records_max)).acquired:
        found += values(got)
        await settle(rig, topic, everything(got))
    return found


async def test_higher_priorities_come_first_and_equal_ones_in_order():
    async with broker() as rig:
        topic = await topic_of(
            rig,
            batch_of(rank(b"a", 1), b"b", rank(b"c", 9)),
            batch_of(rank(b"d", 4), rank(b"e", 9), rank(b"f", 0)),
            topic_configs=ON,
        )
        assert await drain(rig, topic) == [b"c", b"e", b"b", b"d", b"a", b"f"]


async def test_a_priority_has_no_effect_where_the_topic_does_not_read_attributes():
    async with broker() as rig:
        topic = await topic_of(rig, batch_of(rank(b"a", 1), rank(b"b", 9)))
        assert await drain(rig, topic) == [b"a", b"b"]


async def test_expired_records_are_skipped_and_those_after_them_come():
    async with broker() as rig:
        gone = {"headrace-expire-at": "1000"}
        later = {"headrace-expire-at": str(2**53 - 1)}
        topic = await topic_of(
            rig, batch_of((b"a", gone), (b"b", later), (b"c", gone), b"d"), topic_configs=ON
        )
        assert values(await received(rig, topic)) == [b"b", b"d"]
        (described,) = await rig.node.shares.describe(topic, 0)
        assert described.start == 1


async def test_records_that_are_older_than_the_topics_limit_become_dead_letters():
    async with broker() as rig:
        now_ms = rig.node.clock.now_ms()
        topic = await topic_of(
            rig,
            batch_of(b"old", timestamp_ms=now_ms - 60_000),
            batch_of(b"new", timestamp_ms=now_ms),
            topic_configs={"headrace.message.ttl.ms": "30000"},
            **{
                "headrace.share.expired": "dead-letter",
                "errors.deadletterqueue.topic.name": "jobs.dead",
            },
        )
        assert values(await received(rig, topic)) == [b"new"]
        async with asyncio.timeout(20):
            while (await rig.node.shares.describe(topic, 0))[0].start != 1:
                await asyncio.sleep(0.001)
        dead = rig.node.topics.get("jobs.dead").partitions[0]
        (copy,) = iterate_records(await dead.reader.read(0, 10_000))
        assert copy.value == b"old"
        assert dict(copy.headers)["__dlq.errors.message"] == b"expired"


async def test_a_record_that_expires_while_it_is_held_is_not_delivered_again():
    async with broker() as rig:
        soon = {"headrace-expire-at": str(rig.node.clock.now_ms() + 20_000)}
        topic = await topic_of(rig, batch_of((b"a", soon), b"b"), topic_configs=ON)
        got = await received(rig, topic)
        assert values(got) == [b"a", b"b"]
        rig.clock.ahead_ms = 20_001  # less than a lock lasts
        await settle(rig, topic, [Settlement(0, 1, RELEASE)])
        assert values(await received(rig, topic)) == [b"b"]


@pytest.mark.parametrize(
    ("name", "expression"),
    [
        ("headrace.share.filter.tags", "order || invoice"),
        ("headrace.share.filter.sql", "TAGS = 'order' OR TAGS = 'invoice'"),
    ],
)
async def test_a_group_gets_what_its_filter_wants_and_the_rest_is_done(name, expression):
    async with broker() as rig:
        tags = ("order", "other", "invoice", "other")
        items = [(b"%d" % n, {"headrace-tag": tag}) for n, tag in enumerate(tags)]
        topic = await topic_of(rig, batch_of(*items, b"none"), **{name: expression})
        got = await received(rig, topic)
        assert values(got) == [b"0", b"2"]
        await settle(rig, topic, everything(got))
        (described,) = await rig.node.shares.describe(topic, 0)
        assert (described.start, described.end) == (5, 5)


async def test_a_filter_that_changes_counts_for_all_that_is_not_delivered_yet():
    async with broker() as rig:
        items = [(b"%d" % n, {"n": str(n)}) for n in range(6)]
        sql = "headrace.share.filter.sql"
        topic = await topic_of(rig, batch_of(*items), **{sql: "n < 5"})
        held = await received(rig, topic, 1)
        assert values(held) == [b"0"]
        await rig.node.group_configs.change(
            GROUP, lambda _: {"share.auto.offset.reset": "earliest", sql: "n IN ('2', '4')"}
        )
        assert values(await received(rig, topic)) == [b"2", b"4"]
        assert await settle(rig, topic, everything(held)) == [None]


async def test_a_malformed_filter_is_refused_when_it_is_set():
    async with broker() as rig:
        for name, text in (
            ("headrace.share.filter.sql", "a = "),
            ("headrace.share.filter.tags", "a | b"),
        ):
            with pytest.raises(ConfigInvalid, match=r"character 5|not a tag"):
                await rig.node.group_configs.change(GROUP, lambda _, n=name, t=text: {n: t})


# --- the selection of one receive --------------------------------------------------------------


def tagged(value, tag, key=None, **headers):
    pairs = {"headrace-tag": tag, **headers}
    return Record(0, 1_700_000_000_000, key, value, [(n, v.encode()) for n, v in pairs.items()])


async def chosen(rig, topic, selection, records_max=500, member="a"):
    request = ask(member, records_max, is_strict=True, selection=selection)
    return await rig.node.shares.receive(topic, 0, request)


def counts(rig):
    return rig.node.shares.figures.of(GROUP, "jobs")


async def start_of(rig, topic):
    return (await rig.node.shares.describe(topic, 0, [GROUP]))[0].start


async def test_a_receive_gets_what_it_selects_and_the_rest_is_skipped_for_the_group():
    async with broker() as rig:
        topic = await topic_of(
            rig,
            encode_batch([tagged(b"1", "x"), tagged(b"2", "y"), tagged(b"3", "x")]),
            encode_batch([tagged(b"4", "y"), tagged(b"5", "y")]),
            encode_batch([tagged(b"6", "z")]),
        )
        got = await chosen(rig, topic, Selection(tags="x || z"))
        assert values(got) == [b"1", b"3", b"6"]
        assert counts(rig).filtered == 3
        assert not (await chosen(rig, topic, None, member="b")).acquired
        await settle(rig, topic, everything(got))
        assert await start_of(rig, topic) == 6
        rig.node.shares.resign(topic, 0)
        assert not (await received(rig, topic)).acquired, "what was skipped is stored"


async def test_a_receive_can_leave_what_it_does_not_select_to_others():
    async with broker() as rig:
        topic = await topic_of(
            rig,
            *(encode_batch([tagged(b"%d" % n, "even" if n % 2 == 0 else "odd")]) for n in range(9)),
        )
        odd, even = (Selection(tags=name, leaves_others=True) for name in ("odd", "even"))
        first = await chosen(rig, topic, odd, 3)
        assert values(first) == [b"1", b"3", b"5"]
        assert values(await chosen(rig, topic, odd, 3, "b")) == [b"7"]
        nothing = await chosen(rig, topic, odd, 3, "c")
        assert not nothing.acquired
        assert nothing.pause.wait_ms != 0, "it would ask again and again"
        assert values(await chosen(rig, topic, even, 100, "d")) == [b"0", b"2", b"4", b"6", b"8"]
        assert counts(rig).filtered == 0


async def test_a_selected_message_is_found_after_many_others():
    async with broker() as rig:
        rest = [tagged(b"-", "no", n="0") for _ in range(700)]
        batches = [encode_batch(rest) for _ in range(5)]
        topic = await topic_of(rig, *batches, encode_batch([tagged(b"here", "no", n="12")]))
        for leaves_others in (True, False):
            # As many as may be unfinished are looked at, if they are left.
            selection = Selection(sql="n > 10 AND TAGS = 'no'", leaves_others=leaves_others)
            got = await chosen(rig, topic, selection, 1)
            assert values(got) == ([] if leaves_others else [b"here"])
        assert counts(rig).filtered == 3_500


async def test_a_skipped_record_lets_the_next_one_of_its_key_come():
    async with broker() as rig:
        records = [tagged(b"%d" % n, "xy"[n % 2], b"key") for n in range(6)]
        topic = await topic_of(rig, encode_batch(records), **{"headrace.share.key.order": "true"})
        found = []
        while (got := await chosen(rig, topic, Selection(tags="y"))).acquired:
            found += values(got)
            await settle(rig, topic, everything(got))
        assert found == [b"1", b"3", b"5"]
        assert (await start_of(rig, topic), counts(rig).filtered) == (6, 3)


async def test_a_record_that_was_released_is_skipped_by_a_receive_that_does_not_select_it():
    async with broker() as rig:
        topic = await topic_of(rig, encode_batch([tagged(b"1", "x"), tagged(b"2", "y")]))
        got = await received(rig, topic, 1)
        await settle(rig, topic, everything(got, RELEASE))
        assert values(await chosen(rig, topic, Selection(tags="y"))) == [b"2"]
        assert counts(rig).filtered == 1


async def test_a_wrong_selection_is_refused_and_changes_nothing():
    async with broker() as rig:
        topic = await topic_of(rig, encode_batch([tagged(b"1", "x")]))
        for selection in (Selection(tags="a | b"), Selection(sql="a >")):
            with pytest.raises(ConfigInvalid):
                await chosen(rig, topic, selection)
        assert values(await received(rig, topic)) == [b"1"]


async def test_a_batch_that_cannot_be_decoded_is_left_to_its_consumers_to_notice():
    async with broker() as rig:
        data = bytearray(encode_batch([tagged(b"1", "x")]))
        data[-30] ^= 0xFF
        topic = await topic_of(rig, bytes(data), encode_batch([tagged(b"2", "y")]))
        got = await chosen(rig, topic, Selection(tags="z"))
        assert [tuple(one)[:2] for one in got.acquired] == [(0, 0)]


async def test_the_groups_own_filter_counts_what_it_skips_too():
    async with broker() as rig:
        batch = encode_batch([tagged(b"1", "x"), tagged(b"2", "y")])
        topic = await topic_of(rig, batch, **{"headrace.share.filter.tags": "y"})
        assert values(await received(rig, topic)) == [b"2"]
        assert counts(rig).filtered == 1
