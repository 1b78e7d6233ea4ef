"""Dead letters: what is copied, what is given up, and when copying ends."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.kit.broker import broker, metrics_of
from tests.kit.records import append, batch
from tests.unit.broker.test_share_partitions import (
    GROUP,
    ask,
    make_topic,
    settle,
    topic_with,
)
from tests.waiting import until

from headrace.broker.shares.dead_letters import DeadLetters, LetterOrigin
from headrace.coordination.shares.commands import REJECT, DeadLetter, Settlement
from headrace.log.reading import LogReader
from headrace.records.batch import read_header
from headrace.records.codec import Record, assemble_batch, encode_batch, iterate_records
from headrace.records.compression import GZIP

DEAD = "jobs.dead"
TOPIC = "errors.deadletterqueue.topic.name"


def broken_batch(count=1):
    """A batch with a valid CRC whose compressed records cannot be read."""
    whole = read_header(encode_batch([Record(i, 1, None, b"x", []) for i in range(count)]))
    return assemble_batch(whole._replace(attributes=GZIP), b"this is not gzip")


def letter(first, last, reason="refused", given_up_ms=7):
    return DeadLetter(GROUP, first, last, 1, reason, given_up_ms)


class Copying:
    """The dead letters of a broker, and what they reported."""

    def __init__(self, rig, topic, target=DEAD):
        node = rig.node
        self.target = target
        self.letters = DeadLetters(
            node.topics._environment, node.topics, node.services.sends.append_copies
        )
        self.origin = LetterOrigin(topic, 0, lambda: self.target)
        self.reported = []
        self.has_reported = asyncio.Event()

    def begin(self, what):
        def report(command):
            self.reported.append((command.first, command.last))
            self.has_reported.set()

        self.letters.begin(self.origin, what, report)

    async def copy(self, what):
        self.begin(what)
        await asyncio.wait_for(self.has_reported.wait(), 20)

    @property
    def totals(self):
        letters = self.letters
        return letters.copied_total, letters.failed_total, letters.given_up_total


async def copies(rig):
    dead = rig.node.topics.get(DEAD).partitions[0]
    return list(iterate_records(await dead.reader.read(0, 10_000_000)))


async def test_a_letter_whose_last_records_were_compacted_away_ends():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        log = topic.partitions[0]
        log.end_offset = 5  # as compaction leaves a log: offsets 1 to 4 hold nothing
        await append(topic.partitions[0], batch(b"next"))
        data = bytes(await log.reader.read(0, 10_000))
        assert [record.offset for record in iterate_records(data)] == [0, 5]
        copying = Copying(rig, topic)
        await copying.copy(letter(0, 3))
        assert [record.value for record in await copies(rig)] == [b"1"]
        assert copying.reported == [(0, 3)]


@pytest.mark.parametrize(("last", "copied"), [(3, [b"2", b"3"]), (1, [])])
async def test_of_a_letter_what_is_not_deleted_meanwhile_is_copied(monkeypatch, last, copied):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"0"), batch(b"1"), batch(b"2"), batch(b"3"))
        log, fetch = topic.partitions[0], LogReader.fetch

        async def fetch_beside_retention(reader, offset, bytes_max, isolation):
            if reader is log.reader and not log.log_start_offset:
                await log.lifecycle_host.trim(2)
            return await fetch(reader, offset, bytes_max, isolation)

        monkeypatch.setattr(LogReader, "fetch", fetch_beside_retention)
        copying = Copying(rig, topic)
        await copying.copy(letter(0, last))
        assert copying.totals == (len(copied), 0, 0)
        if copied:
            assert [record.value for record in await copies(rig)] == copied


async def test_a_record_has_one_copy_for_each_time_it_is_given_up():
    """A crash before the letter is finished makes its copies again, perhaps in other ranges."""
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"0", b"1", b"2"))
        await Copying(rig, topic).copy(letter(0, 1))
        for first, last in ((0, 0), (1, 2), (0, 2)):
            await Copying(rig, topic).copy(letter(first, last))
        assert [record.value for record in await copies(rig)] == [b"0", b"1", b"2"]
        await Copying(rig, topic).copy(letter(1, 1, given_up_ms=8))
        assert [record.value for record in await copies(rig)] == [b"0", b"1", b"2", b"1"]
        assert rig.node.appends.duplicates_total == 5


async def test_times_and_sequences_of_a_record_have_no_effect_on_its_copy():
    async with broker() as rig:
        own = [
            ("headrace-expire-at", b"5"),
            ("headrace-producer", b"mine"),
            ("headrace-sequence", b"9"),
            ("headrace-priority", b"none"),
        ]
        data = encode_batch([Record(0, 1, None, b"0", own)])
        topic = await topic_with(rig, data)
        await make_topic(rig, DEAD, {"headrace.message.attributes": "true"})
        await Copying(rig, topic).copy(letter(0, 0))
        (copy,) = await copies(rig)
        headers = dict(copy.headers)
        assert headers["headrace-dlq-expire-at"] == b"5"
        assert headers["headrace-priority"] == b"none"
        assert headers["headrace-producer"].startswith(b"dead-letter/")
        assert "headrace-expire-at" not in headers


@pytest.mark.parametrize("setting", [None, "refuse", "ignore"])
async def test_records_with_attributes_are_copied_to_a_topic_that_does_not_read_them(setting):
    async with broker() as rig:
        own = [("headrace-priority", b"9"), ("headrace-message-group", b"g")]
        data = encode_batch([Record(0, 1, None, b"0", own)])
        topic = await topic_with(rig, data)
        if setting is not None:
            await make_topic(rig, DEAD, {"headrace.message.attributes": setting})
        await Copying(rig, topic).copy(letter(0, 0))
        (copy,) = await copies(rig)
        assert copy.value == b"0"
        assert set(own) <= set(copy.headers)
        # One that the broker creates takes letters back from clients, too.
        configs = rig.node.topics.get(DEAD).fact.configs
        assert configs == {"headrace.message.attributes": setting or "ignore"}


async def test_a_topic_that_is_not_ready_is_waited_for_without_holding_up_the_broker():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        dead = await make_topic(rig, DEAD)
        log = dead.partitions[0]
        await append(dead.partitions[0], batch(b"first"))
        copying = Copying(rig, topic)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(log.lifecycle_host), "require_active", lambda _: None)
            active, log.active = log.active, None
            copying.begin(letter(0, 0))
            await until(lambda: copying.letters.failed_total)
            log.active = active
        await asyncio.wait_for(copying.has_reported.wait(), 20)
        assert [record.value for record in await copies(rig)] == [b"first", b"1"]


async def test_a_batch_that_cannot_be_decoded_is_given_up_and_those_around_it_are_copied(caplog):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"0"), broken_batch(2), batch(b"3", b"4"))
        copying = Copying(rig, topic)
        with caplog.at_level(logging.ERROR):
            await copying.copy(letter(0, 3))
        assert [record.value for record in await copies(rig)] == [b"0", b"3"]
        copied, failed, given_up = copying.totals
        assert (copied, given_up) == (2, 2)
        assert failed > 1, "it is tried more than once"
        (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        assert "records 1 to 2 of jobs-0" in line
        assert GROUP in line


async def test_a_copy_that_is_too_large_is_made_without_its_value():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"small", b"x" * 900, b"small too"))
        await rig.node.topics.create(DEAD, 1, 1, {"max.message.bytes": "600"})
        copying = Copying(rig, topic)
        await copying.copy(letter(0, 2, "too odd"))
        small, large, last = await copies(rig)
        assert (small.value, large.value, last.value) == (b"small", None, b"small too")
        headers = dict(large.headers)
        assert headers["__dlq.errors.message"] == b"too odd"
        assert headers["__dlq.errors.offset"] == b"1"
        assert headers["headrace-dlq-value-omitted-bytes"] == b"900"
        assert copying.totals == (3, 0, 0)


async def test_a_record_that_is_too_large_without_its_value_is_given_up(caplog):
    async with broker() as rig:
        topic = await topic_with(
            rig, encode_batch([Record(0, 1, b"k" * 900, b"v", []), Record(1, 1, b"k", b"v", [])])
        )
        await rig.node.topics.create(DEAD, 1, 1, {"max.message.bytes": "600"})
        copying = Copying(rig, topic)
        await copying.copy(letter(0, 1))
        assert [record.key for record in await copies(rig)] == [b"k"]
        assert copying.totals[2] == 1
        assert "records 0 to 0 of jobs-0" in caplog.text


async def test_a_topic_that_is_its_own_dead_letter_topic_is_retried_and_warned_of_once(caplog):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2"))
        copying = Copying(rig, topic, "jobs")
        copying.begin(letter(0, 0))
        copying.begin(letter(1, 1))
        await until(lambda: copying.letters.failed_total >= 7)
        assert not copying.reported
        assert caplog.text.count("cannot be its own dead letter topic") == 1
        copying.target = DEAD
        await until(lambda: len(copying.reported) == 2)
        assert {record.value for record in await copies(rig)} == {b"1", b"2"}
        assert copying.letters.given_up_total == 0


async def test_copying_ends_when_another_broker_serves_the_partition():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        copying = Copying(rig, topic, "jobs")  # which fails for as long as it is tried
        copying.begin(letter(0, 0))
        await until(lambda: copying.letters.failed_total)
        topic.partitions[0] = rig.node.topics.logs.make(topic.fact, 0)
        await until(lambda: not tasks_of_letters())
        assert not copying.reported


async def test_a_letter_that_is_begun_again_is_copied_once_and_reported_to_the_last_one():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        copying = Copying(rig, topic, "jobs")
        copying.begin(letter(0, 0))
        await until(lambda: copying.letters.failed_total)
        copying.begin(letter(0, 0))
        assert len(tasks_of_letters()) == 1
        copying.target = DEAD
        await asyncio.wait_for(copying.has_reported.wait(), 20)
        assert len(await copies(rig)) == 1
        assert len(copying.reported) == 1


def tasks_of_letters():
    return [task for task in asyncio.all_tasks() if "dead letters of" in task.get_name()]


async def test_a_group_goes_on_after_a_record_that_cannot_be_copied_and_metrics_count_it():
    async with broker() as rig:
        topic = await topic_with(rig, broken_batch(), **{TOPIC: DEAD})
        shares = rig.node.shares
        await shares.receive(topic, 0, ask())
        await settle(rig, topic, [Settlement(0, 0, REJECT)])
        async with asyncio.timeout(20):
            while (await shares.describe(topic, 0))[0].start != 1:
                await asyncio.sleep(0.01)
        text, _type = metrics_of(rig).render()
        figures = dict(line.split() for line in text.decode().splitlines() if line[0] != "#")
        assert figures["headrace_dead_letters_copied_total"] == "0.0"
        assert figures["headrace_dead_letters_given_up_total"] == "1.0"
        assert float(figures["headrace_dead_letters_failed_total"]) > 1
