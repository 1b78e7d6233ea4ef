"""What a topic no longer keeps goes; what is deleted stays deleted."""

from __future__ import annotations

import time

import pytest
from tests.integration.broker import Broker, bytes_below
from tests.integration.clients import (
    TIMEOUT_S,
    Confluent,
    Rec,
    admin,
    create_topic,
    delete_topic,
    watermarks,
)
from tests.integration.raw import (
    Raw,
    batch,
    error_codes,
    fetch_values,
    frame,
    parse,
    produce_values,
)
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker that looks for old records often."""
    broker = Broker(tmp_path_factory.mktemp("retention"), "--retention-check-interval-ms", "200")
    yield broker.start()
    assert " ERROR " not in broker.log()
    broker.stop()


def fill(broker: Broker, topic: str, batches: int, size: int = 1000) -> None:
    """So many batches of one record, each a request of its own."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    for number in range(batches):
        producer.produce(topic, str(number).encode().ljust(size))
        assert producer.flush(TIMEOUT_S) == 0


def first_value(broker: Broker, topic: str, offset: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "first"})
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        message = consumer.poll(TIMEOUT_S)
        assert message.error() is None
        assert message.offset() == offset
        return int(message.value())
    finally:
        consumer.close()


def first_kept(broker: Broker, topic: str) -> tuple[int, int]:
    """(log start offset, value of the first record), of one moment: retention may be at work."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": broker.kafka, "group.id": "kept"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    try:
        while True:
            low, _ = watermarks(broker.kafka, topic)
            consumer.assign([TopicPartition(topic, 0, low)])
            message = consumer.poll(TIMEOUT_S)
            assert message.error() is None
            if watermarks(broker.kafka, topic)[0] == low:
                assert message.offset() == low
                return low, int(message.value())
    finally:
        consumer.close()


def set_config(broker: Broker, topic: str, key: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("TOPIC", topic, incremental_configs=[entry])
    client = admin(broker.kafka)
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def files_bytes(broker: Broker) -> int:
    """What the records take for good; the write-ahead log beside them has room of its own."""
    return bytes_below(broker.data_dir / "ledgers")


def test_by_size_the_oldest_segments_go(broker, name):
    create_topic(broker.kafka, name, segment_bytes=10_000, retention_bytes=30_000)
    fill(broker, name, 100)
    wait_until(lambda: watermarks(broker.kafka, name)[0] >= 50)
    low, value = first_kept(broker, name)
    assert watermarks(broker.kafka, name)[1] == 100
    assert 50 <= low <= 71, "not more than a segment beyond what is allowed, nor less kept"
    assert value == low


def test_by_time_all_goes_and_offsets_go_on(broker, name):
    create_topic(broker.kafka, name, segment_ms=300, retention_ms=600)
    fill(broker, name, 20)
    wait_until(lambda: watermarks(broker.kafka, name) == (20, 20))
    set_config(broker, name, "retention.ms", "-1")  # what comes now is there to be looked at
    Confluent.produce(broker.kafka, name, [Rec(None, b"7")])
    assert watermarks(broker.kafka, name)[1] == 21
    assert first_value(broker, name, 20) == 7


def test_old_records_of_a_topic_that_keeps_for_ever_stay(broker, name):
    create_topic(broker.kafka, name, segment_bytes=5_000, retention_ms=-1, retention_bytes=-1)
    fill(broker, name, 30)
    time.sleep(1)
    assert watermarks(broker.kafka, name) == (0, 30)


def test_retention_set_later_takes_hold_and_survives_a_restart(broker, name):
    create_topic(broker.kafka, name, segment_bytes=10_000, retention_ms=-1)
    fill(broker, name, 50)
    assert watermarks(broker.kafka, name) == (0, 50)
    set_config(broker, name, "retention.bytes", "20000")
    wait_until(lambda: watermarks(broker.kafka, name)[0] >= 20)
    low, high = watermarks(broker.kafka, name)
    broker.restart()
    assert watermarks(broker.kafka, name)[0] >= low
    assert watermarks(broker.kafka, name)[1] == high


def test_deleted_records_give_their_room_back(broker, name):
    from confluent_kafka import TopicPartition

    create_topic(broker.kafka, name, segment_bytes=1_000_000, retention_ms=-1)
    fill(broker, name, 40, 200_000)
    before = wait_until(lambda: files_bytes(broker) > 8_000_000 and files_bytes(broker))
    at = TopicPartition(name, 0, 35)
    (future,) = admin_result(broker, at)
    assert future.low_watermark == 35
    assert watermarks(broker.kafka, name) == (35, 40)
    assert first_value(broker, name, 35) == 35
    wait_until(lambda: files_bytes(broker) < before - 5_000_000)
    broker.crash()
    assert watermarks(broker.kafka, name) == (35, 40)


def admin_result(broker: Broker, at) -> list:
    client = admin(broker.kafka)
    return [future.result(TIMEOUT_S) for future in client.delete_records([at]).values()]


def test_a_consumer_of_deleted_records_continues_at_the_earliest(broker, name):
    from confluent_kafka import Consumer, TopicPartition

    create_topic(broker.kafka, name)
    fill(broker, name, 10, 10)
    admin_result(broker, TopicPartition(name, 0, 6))
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": name,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(name, 0, 2)])
        assert consumer.poll(TIMEOUT_S).offset() == 6
    finally:
        consumer.close()


def test_a_topic_made_again_shows_nothing_of_the_old(broker, name):
    from confluent_kafka import Consumer, TopicPartition

    ids = set()
    for round_ in range(3):
        create_topic(broker.kafka, name, 2)
        assert watermarks(broker.kafka, name) == (0, 0)
        consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": f"g-{name}"})
        try:
            (at,) = consumer.committed([TopicPartition(name, 0)], TIMEOUT_S)
            assert at.offset < 0, "what was committed of the old topic is gone"
            records = [Rec(b"k", f"{round_}-{number}".encode()) for number in range(10)]
            Confluent.produce(broker.kafka, name, records)
            assert Confluent.consume(broker.kafka, name, 10) == records
            consumer.commit(offsets=[TopicPartition(name, 0, 10)], asynchronous=False)
        finally:
            consumer.close()
        with Raw(broker.address) as raw:
            told = raw.call(3, 12, topics=[{"name": name}]).topics[0]
            ids.add(told.topic_id)
            # A producer that still holds the old id is told so.
            for old in ids - {told.topic_id}:
                answer = raw.call(0, 13, **produce_values("", old, batch(b"stray")))
                assert error_codes(answer) == [100]
        if round_ == 1:
            broker.crash()
        delete_topic(broker.kafka, name)
    assert len(ids) == 3
    create_topic(broker.kafka, name)
    broker.restart()
    assert watermarks(broker.kafka, name) == (0, 0)


def test_a_deleted_topic_gives_its_room_back(broker, name):
    before = files_bytes(broker)
    create_topic(broker.kafka, name)
    fill(broker, name, 40, 200_000)
    wait_until(lambda: files_bytes(broker) > before + 7_000_000)  # others may shrink meanwhile
    delete_topic(broker.kafka, name)
    wait_until(lambda: files_bytes(broker) < before + 1_000_000)


@pytest.mark.parametrize("version", [4, 12, 13, 17])
def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(broker, name, version):
    create_topic(broker.kafka, name)
    with Raw(broker.address) as raw:
        topic_id = raw.call(3, 12, topics=[{"name": name}]).topics[0].topic_id
        asks = fetch_values(name, topic_id, 0, min_bytes=1, max_wait=55_000)
        raw.send(frame(1, version, asks))
        with Raw(broker.address) as other:
            assert error_codes(other.call(18, 0)) == [0]
        delete_topic(broker.kafka, name)
        started = time.monotonic()
        answer = parse(1, version, raw.receive())
        assert time.monotonic() - started < 30
        unknown = {3} if version < 13 else {3, 100}  # by name, by id
        assert unknown & set(error_codes(answer))
