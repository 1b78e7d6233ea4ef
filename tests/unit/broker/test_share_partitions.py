"""Share groups on a broker in memory: receive, settle, retry, restart, deletion."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.broker import broker
from tests.kit.records import append, batch

from headrace.broker.coordinators.groups_configured import ConfiguredGroups
from headrace.broker.services.long_poll import wait_for_records
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.shares.commands import ACCEPT, REJECT, RELEASE, Settlement
from headrace.errors import ConfigInvalid, RecordStateInvalid, TopicUnknown
from headrace.metadata.facts import partitions_prefix
from headrace.records.codec import Record, encode_batch, iterate_records

GROUP = "workers"


def ask(member="a", records_max=500, **options):
    return ReceiveRequest(GROUP, member, records_max, 1_000_000, **options)


async def topic_with(rig, *batches, **configs):
    await rig.node.group_configs.change(
        GROUP, lambda _: {"share.auto.offset.reset": "earliest", **configs}
    )
    topic = await make_topic(rig, "jobs")
    for data in batches:
        await append(topic.partitions[0], data)
    return topic


async def make_topic(rig, name, configs=None):
    await rig.node.topics.create(name, 1, 1, configs or {})
    return rig.node.topics.get(name)


def values(received):
    wanted = {n for first, last, _ in received.acquired for n in range(first, last + 1)}
    records = [record for data in received.batches for record in iterate_records(data)]
    return [record.value for record in records if record.offset in wanted]


def everything(received, kind=ACCEPT):
    return [Settlement(first, last, kind) for first, last, _ in received.acquired]


async def settle(rig, topic, settlements, member="a"):
    shares = rig.node.shares
    return await shares.settle(topic, 0, GROUP, member, settlements, is_atomic=True)


async def test_two_members_share_a_partition_and_each_record_is_delivered_once():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2"), batch(b"3", b"4"))
        first = await rig.node.shares.receive(topic, 0, ask("a", 2))
        second = await rig.node.shares.receive(topic, 0, ask("b", 2))
        third = await rig.node.shares.receive(topic, 0, ask("c", 2))
        assert (values(first), values(second)) == ([b"1", b"2"], [b"3", b"4"])
        assert not third.acquired
        assert await settle(rig, topic, everything(first)) == [None]
        with_wrong_member = await settle(rig, topic, everything(second))
        assert isinstance(with_wrong_member[0], RecordStateInvalid)


async def test_a_record_that_is_released_comes_again_and_its_deliveries_are_counted():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3"))
        received = await rig.node.shares.receive(topic, 0, ask())
        await settle(rig, topic, [Settlement(0, 0, ACCEPT), Settlement(1, 1, RELEASE)])
        again = await rig.node.shares.receive(topic, 0, ask("b"))
        assert values(received) == [b"1", b"2", b"3"]
        assert [tuple(item) for item in again.acquired] == [(1, 1, 2)]


async def test_progress_survives_a_restart_and_what_was_in_flight_comes_again():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3", b"4"))
        await rig.node.shares.receive(topic, 0, ask())
        await settle(rig, topic, [Settlement(0, 1, ACCEPT), Settlement(3, 3, REJECT)])
        rig.node.shares.resign(topic, 0)
        again = await rig.node.shares.receive(topic, 0, ask("b"))
        assert values(again) == [b"3"]


async def test_records_of_one_key_come_one_at_a_time_and_other_keys_go_on():
    records = [Record(i, 1, b"k%d" % (i % 2), b"%d" % i, []) for i in range(4)]
    async with broker() as rig:
        topic = await topic_with(rig, encode_batch(records), **{"headrace.share.key.order": "true"})
        received = await rig.node.shares.receive(topic, 0, ask())
        assert values(received) == [b"0", b"1"]
        assert not (await rig.node.shares.receive(topic, 0, ask("b"))).acquired
        await settle(rig, topic, [Settlement(1, 1, ACCEPT)])
        assert values(await rig.node.shares.receive(topic, 0, ask("b"))) == [b"3"]


async def test_waiters_are_notified_of_new_and_of_released_records():
    async with broker() as rig:
        topic = await topic_with(rig)
        shares = rig.node.shares
        empty = await shares.receive(topic, 0, ask())
        waiting = asyncio.create_task(wait_for_records(shares, [(topic, 0, empty.pause)], 30))
        await asyncio.sleep(0)
        await append(topic.partitions[0], batch(b"1"))
        await asyncio.wait_for(waiting, 5)
        received = await shares.receive(topic, 0, ask())
        empty = await shares.receive(topic, 0, ask("b"))
        waiting = asyncio.create_task(
            wait_for_records(shares, [(topic, 0, empty.pause._replace(wait_ms=-1))], 30)
        )
        await asyncio.sleep(0)
        await settle(rig, topic, everything(received, RELEASE))
        await asyncio.wait_for(waiting, 5)


async def test_a_lock_that_ends_makes_its_record_available_without_anything_new():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        shares = rig.node.shares
        await shares.receive(topic, 0, ask("a", lock_ms=30))
        async with asyncio.timeout(10):
            while not (again := await shares.receive(topic, 0, ask("b"))).acquired:
                await wait_for_records(shares, [(topic, 0, again.pause)], 30)
        assert again.acquired[0].deliveries == 2


async def test_a_group_begins_at_the_end_by_default():
    async with broker() as rig:
        topic = await make_topic(rig, "jobs")
        await append(topic.partitions[0], batch(b"old"))
        shares = rig.node.shares
        assert not (await shares.receive(topic, 0, ask())).acquired
        await append(topic.partitions[0], batch(b"new"))
        assert values(await shares.receive(topic, 0, ask())) == [b"new"]


async def test_nothing_of_a_journal_is_left_when_its_topic_is_deleted():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        await settle(rig, topic, everything(await rig.node.shares.receive(topic, 0, ask())))
        await rig.node.topics.delete(topic, rig.node.deleted_topics.forget)
        async with asyncio.timeout(5):
            while await rig.metadata.list(partitions_prefix(topic.id)):
                await asyncio.sleep(0.001)
        assert not [info for info in rig.store.list() if info.ledger]
        with pytest.raises(TopicUnknown):
            await rig.node.shares.receive(topic, 0, ask())


async def end(topic, producer_id, *, is_commit):
    appended = topic.partitions[0].append_marker(producer_id, 0, 0, is_commit=is_commit)
    await appended.completion.wait()


def transactional(producer_id, *values):
    options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    records = [Record(i, 1, value, value, []) for i, value in enumerate(values)]
    return encode_batch(records, is_transactional=True, **options)


@pytest.mark.parametrize("is_ordered", ["false", "true"])
async def test_a_group_of_committed_records_gets_neither_open_nor_aborted_ones(is_ordered):
    async with broker() as rig:
        topic = await topic_with(
            rig,
            transactional(1, b"aborted"),
            transactional(2, b"committed"),
            batch(b"plain"),
            **{
                "share.isolation.level": "read_committed",
                "headrace.share.key.order": is_ordered,
            },
        )
        assert not (await rig.node.shares.receive(topic, 0, ask())).acquired
        await end(topic, 1, is_commit=False)
        await end(topic, 2, is_commit=True)
        await append(topic.partitions[0], transactional(3, b"open"))
        received = await rig.node.shares.receive(topic, 0, ask())
        assert values(received) == [b"committed", b"plain"]
        await settle(rig, topic, everything(received))
        assert not (await rig.node.shares.receive(topic, 0, ask())).acquired
        described = await rig.node.shares.describe(topic, 0)
        assert described[0].start == 5, "what nobody gets does not hold up the group"


async def test_dead_letters_are_copied_with_their_origin_before_the_record_finishes():
    async with broker() as rig:
        topic = await topic_with(
            rig,
            batch(b"good", b"bad"),
            **{"errors.deadletterqueue.topic.name": "jobs.dead"},
        )
        received = await rig.node.shares.receive(topic, 0, ask())
        refused = Settlement(1, 1, REJECT, reason="cannot be parsed")
        await settle(rig, topic, [Settlement(0, 0, ACCEPT), refused])
        async with asyncio.timeout(10):
            while (await rig.node.shares.describe(topic, 0))[0].start != 2:
                await asyncio.sleep(0.001)
        dead = rig.node.topics.get("jobs.dead").partitions[0]
        (record,) = iterate_records(await dead.reader.read(0, 10_000))
        assert record.value == b"bad"
        headers = dict(record.headers)
        assert headers.pop("headrace-producer").startswith(b"dead-letter/")
        assert headers.pop("headrace-sequence") == b"0"
        assert headers.pop("headrace-dlq-path") == b"jobs"
        assert headers == {
            "__dlq.errors.topic": b"jobs",
            "__dlq.errors.partition": b"0",
            "__dlq.errors.offset": b"1",
            "__dlq.errors.group": GROUP.encode(),
            "__dlq.errors.delivery.count": b"1",
            "__dlq.errors.message": b"cannot be parsed",
        }
        assert received.acquired


async def test_a_dead_letter_whose_copy_a_crash_prevented_is_copied_after_the_restart():
    async with broker() as rig:
        topic = await topic_with(
            rig, batch(b"bad"), **{"errors.deadletterqueue.topic.name": ".."}
        )  # a topic that cannot be created: the copy fails until another one is named
        await rig.node.shares.receive(topic, 0, ask())
        await settle(rig, topic, [Settlement(0, 0, REJECT)])
        rig.node.shares.resign(topic, 0)
        described = (await rig.node.shares.describe(topic, 0))[0]
        assert (described.start, described.archiving_records) == (0, 1)
        await rig.node.group_configs.change(
            GROUP, lambda _: {"errors.deadletterqueue.topic.name": "jobs.dead"}
        )
        async with asyncio.timeout(10):
            while (await rig.node.shares.describe(topic, 0))[0].start != 1:
                await asyncio.sleep(0.01)
        assert rig.node.topics.get("jobs.dead").partitions[0].high_watermark >= 1


async def test_records_between_released_and_fresh_ones_are_never_passed_over():
    batches = [batch(*(b"%d" % (n * 10 + i) * 300 for i in range(10))) for n in range(60)]
    async with broker() as rig:
        topic = await topic_with(rig, *batches)
        first = await rig.node.shares.receive(topic, 0, ask("a", 10, is_strict=True))
        released = [Settlement(0, 0, RELEASE), Settlement(1, 1, ACCEPT), Settlement(2, 9, RELEASE)]
        await settle(rig, topic, released)
        seen = {1}
        while len(seen) < 600:
            request = ReceiveRequest(GROUP, "b", 200, 200_000)
            received = await rig.node.shares.receive(topic, 0, request)
            assert received.acquired, f"{600 - len(seen)} records never come"
            for low, high, _ in received.acquired:
                seen |= set(range(low, high + 1))
            await settle(rig, topic, everything(received), "b")
        assert first.acquired


async def test_an_idle_group_of_committed_records_waits_while_a_transaction_is_open():
    async with broker() as rig:
        topic = await topic_with(
            rig, transactional(1, b"open"), **{"share.isolation.level": "read_committed"}
        )
        received = await rig.node.shares.receive(topic, 0, ask())
        assert received.pause is not None
        assert received.pause.wait_ms == -1, "nothing comes by time alone"
        waiting = asyncio.create_task(
            wait_for_records(rig.node.shares, [(topic, 0, received.pause)], 30)
        )
        await append(topic.partitions[0], batch(b"behind it"))
        await asyncio.sleep(0)
        assert not waiting.done()
        await end(topic, 1, is_commit=True)
        await asyncio.wait_for(waiting, 5)


async def test_records_appended_between_a_receive_and_its_wait_are_not_missed():
    async with broker() as rig:
        topic = await topic_with(rig)
        received = await rig.node.shares.receive(topic, 0, ask())
        await append(topic.partitions[0], batch(b"1"))
        await asyncio.wait_for(
            wait_for_records(rig.node.shares, [(topic, 0, received.pause)], 30), 5
        )


async def test_batches_of_records_that_others_hold_are_not_sent_along():
    async with broker() as rig:
        topic = await topic_with(rig, *(batch(b"x" * 1000) for _ in range(20)))
        await rig.node.shares.receive(topic, 0, ask("a"))
        await settle(rig, topic, [Settlement(0, 0, RELEASE)])
        again = await rig.node.shares.receive(topic, 0, ask("b"))
        assert len(again.batches) == 1


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"headrace.share.key.order": "true"},
        {"headrace.share.partition.order": "true"},
        {"headrace.share.filter.sql": "x IS NULL"},
        {"share.isolation.level": "read_committed"},
    ],
)
async def test_a_gap_of_compaction_longer_than_a_request_is_passed(setting):
    async with broker() as rig:
        settings = {"share.auto.offset.reset": "earliest", **setting}
        await rig.node.group_configs.change(GROUP, lambda _: settings)
        topic = await make_topic(rig, "jobs", {"cleanup.policy": "compact"})
        again = [Record(i, 1, b"k%d" % (i % 3), b"v", []) for i in range(300)]
        await append(topic.partitions[0], encode_batch([Record(0, 1, b"first", b"v", [])]))
        for records in (again, again[:3]):
            await append(topic.partitions[0], encode_batch(records))
        await topic.partitions[0].lifecycle_host.roll_now()
        await rig.node.compactor.round()
        got = []
        for _ in range(10):
            received = await rig.node.shares.receive(topic, 0, ask("a", 10, is_strict=True))
            if not received.acquired:
                break
            got += [n for first, last, _ in received.acquired for n in range(first, last + 1)]
            await settle(rig, topic, everything(received))
        assert got == [0, 301, 302, 303]


async def test_a_key_with_a_long_backlog_delays_no_other_key_and_keeps_its_order():
    hot = [Record(i, 1, b"hot", b"%d" % i, []) for i in range(1_500)]
    async with broker() as rig:
        batches = [encode_batch(hot) for _ in range(4)]
        topic = await topic_with(rig, *batches, **{"headrace.share.key.order": "true"})
        others = [Record(i, 1, b"k%d" % i, b"other", []) for i in range(20)]
        await append(topic.partitions[0], encode_batch(others))
        first = await rig.node.shares.receive(topic, 0, ask("a", 1))
        assert [tuple(one) for one in first.acquired] == [(0, 0, 1)]
        got = []
        while received := await rig.node.shares.receive(topic, 0, ask("b")):
            if not received.acquired:
                break
            got += values(received)
            await settle(rig, topic, everything(received), "b")
        assert got == [b"other"] * 20, "while the first record of the long key is held"
        group = rig.node.shares._host.get(topic, 0).shard.machine.groups[GROUP]
        assert len(group.keyed._rows) <= 3_000, "memory is bounded"
        await settle(rig, topic, everything(first))
        for offset in range(1, 6_000):
            one = await rig.node.shares.receive(topic, 0, ask("a", 1))
            assert [tuple(found) for found in one.acquired] == [(offset, offset, 1)]
            await settle(rig, topic, everything(one))


@pytest.mark.parametrize("is_key_order", ["false", "true"])
async def test_messages_of_one_message_group_come_one_at_a_time_and_in_order(is_key_order):
    async with broker() as rig:
        settings = {
            "share.auto.offset.reset": "earliest",
            "headrace.share.key.order": is_key_order,
        }
        await rig.node.group_configs.change(GROUP, lambda _: settings)
        topic = await make_topic(rig, "jobs", {"headrace.message.attributes": "true"})
        in_group = [("headrace-message-group", b"order-1")]
        records = [
            Record(0, 1, b"a", b"1", in_group),
            Record(1, 1, b"b", b"2", in_group),
            Record(2, 1, b"c", b"other", []),
        ]
        await append(topic.partitions[0], encode_batch(records))
        received = await rig.node.shares.receive(topic, 0, ask())
        assert values(received) == [b"1", b"other"]
        await settle(rig, topic, everything(received))
        assert values(await rig.node.shares.receive(topic, 0, ask())) == [b"2"]


async def test_acquired_ranges_are_halved_after_nacks_once_the_delivery_count_is_high():
    async with broker() as rig:
        topic = await topic_with(rig, batch(*[b"x"] * 16), **{"share.delivery.count.limit": "10"})
        sizes = []
        for _ in range(9):
            received = await rig.node.shares.receive(topic, 0, ask())
            sizes.append(len(received.acquired) and received.acquired[0].last + 1)
            await settle(rig, topic, everything(received, RELEASE))
        assert sizes[:6] == [16, 16, 16, 16, 16, 8]


async def test_a_partition_that_is_added_later_is_consumed_from_its_start():
    async with broker() as rig:
        topic = await make_topic(rig, "jobs")
        shares = rig.node.shares
        await append(topic.partitions[0], batch(b"before the group"))
        assert not (await shares.receive(topic, 0, ask())).acquired, "it resets to latest"
        await rig.node.topics.add_partitions(topic, 2)
        log = topic.partitions[1]
        await log.wait_loaded()
        data = batch(b"new")
        await append(log, data)
        assert values(await shares.receive(topic, 1, ask())) == [b"new"]


async def test_records_given_up_without_a_dead_letter_are_counted_and_logged(caplog):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2"))
        for _ in range(5):
            received = await rig.node.shares.receive(topic, 0, ask("a", 2))
            for one in received.acquired:
                await settle(rig, topic, [Settlement(one.first, one.last, RELEASE)])
        while (received := await rig.node.shares.receive(topic, 0, ask())).acquired:
            await settle(rig, topic, everything(received, RELEASE))
        ((group, name, counts),) = list(rig.node.shares.figures)
        assert (group, name, counts.given_up) == (GROUP, "jobs", 2)
        assert counts.delivered == counts.released == 10
        (line,) = [one.message for one in caplog.records if "gave up" in one.message]
        assert "errors.deadletterqueue.topic.name" in line


async def test_a_topic_is_not_its_own_dead_letter_topic_nor_is_an_internal_one():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        await rig.node.shares.receive(topic, 0, ask())
        for name in ("jobs", "__consumer_offsets"):
            setting = {"errors.deadletterqueue.topic.name": name}
            with pytest.raises(ConfigInvalid):
                await rig.node.group_configs.change(GROUP, lambda _, one=setting: one)
        setting = {"errors.deadletterqueue.topic.name": "jobs"}
        await rig.node.group_configs.change("later", lambda _: setting)
        with pytest.raises(ConfigInvalid, match="another topic"):
            await rig.node.shares.begin(topic, 0, "later")


async def test_a_topic_that_takes_no_dead_letters_is_not_a_dead_letter_topic():
    """KIP-1191's setting of the topic; what was given up waits for a usable topic."""
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        enable = "errors.deadletterqueue.group.enable"
        await make_topic(rig, "closed", {enable: "false"})
        setting = {"errors.deadletterqueue.topic.name": "closed"}
        with pytest.raises(ConfigInvalid, match=enable):
            await rig.node.group_configs.change(GROUP, lambda _: setting)
        closed = rig.node.topics.get("closed")
        await rig.node.topics.change_configs(closed, lambda _: {enable: "true"})
        start = {"share.auto.offset.reset": "earliest"}
        await rig.node.group_configs.change(GROUP, lambda _: setting | start)
        received = await rig.node.shares.receive(topic, 0, ask())
        await rig.node.topics.change_configs(closed, lambda _: {enable: "false"})
        await settle(rig, topic, everything(received, REJECT))
        await asyncio.sleep(0.1)
        (position,) = await rig.node.shares.describe(topic, 0, [GROUP])
        assert (position.archiving_records, rig.node.dead_letters.copied_total) == (1, 0)


async def test_topics_that_are_each_others_dead_letter_topics_do_not_circulate_records():
    async with broker() as rig:
        first = await make_topic(rig, "first")
        second = await make_topic(rig, "second")
        for group, letters in (("a", "second"), ("b", "first")):
            settings = {
                "share.auto.offset.reset": "earliest",
                "errors.deadletterqueue.topic.name": letters,
            }
            await rig.node.group_configs.change(group, lambda _, one=settings: one)
        await append(first.partitions[0], batch(b"1"))
        for group, topic in (("a", first), ("b", second)):
            asked = ReceiveRequest(group, "m", 10, 1_000_000)
            async with asyncio.timeout(10):
                while not (received := await rig.node.shares.receive(topic, 0, asked)).acquired:
                    await asyncio.sleep(0.01)
            refused = everything(received, REJECT)
            await rig.node.shares.settle(topic, 0, group, "m", refused, is_atomic=True)
        async with asyncio.timeout(10):
            while (await rig.node.shares.describe(second, 0))[0].start != 1:
                await asyncio.sleep(0.01)
        assert (first.partitions[0].high_watermark, second.partitions[0].high_watermark) == (1, 1)
        assert rig.node.dead_letters.given_up_total == 1


async def test_settings_that_another_broker_has_just_changed_are_read_before_a_refusal():
    async with broker() as rig:
        other = ConfiguredGroups(rig.metadata)
        await rig.node.group_configs.change(GROUP, lambda _: {"headrace.share.key.order": "true"})
        assert not other.share_config(GROUP).is_ordered
        await other.refresh(GROUP)
        assert other.share_config(GROUP).is_ordered
