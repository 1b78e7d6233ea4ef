"""Every client reads what every client wrote, in every codec; reading from anywhere; limits."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.integration.clients import (
    CLIENTS,
    CODECS,
    RECORDS,
    TIMEOUT_S,
    Confluent,
    Kcat,
    Rec,
    admin,
    create_topic,
    require,
    watermarks,
)
from tests.integration.test_transactions import fresh

KCAT_RECORDS = (
    Rec(b"k1", b"plain"),
    Rec(None, b"no key"),
    Rec(b"tombstone", None),
    Rec("ключ".encode(), "значение ✓".encode()),
    Rec(b"big", b"0123456789" * 2000),
    Rec(b"h", b"headers", (("a", b"1"), ("b", b"two"))),
)


@pytest.fixture(autouse=True)
def is_installed(request):
    """Skips a test whose parameters name a client that is not here, before it makes anything."""
    parameters = request.node.callspec.params.values() if hasattr(request.node, "callspec") else ()
    require(*(name for name in CLIENTS if name in parameters))


@pytest.fixture(scope="session")
def written(shared_broker):
    """Topics that a client has written, a set of records in each codec; made once a client."""
    topics: dict[str, tuple[str, list[Rec]]] = {}

    def write(client: str) -> tuple[str, list[Rec]]:
        if client not in topics:
            records = KCAT_RECORDS if client == "kcat" else RECORDS
            topic = fresh(f"written-by-{client}")  # a second attempt finds no topic of the first
            create_topic(shared_broker.kafka, topic)
            for codec in CODECS:
                CLIENTS[client].produce(shared_broker.kafka, topic, records, codec)
            topics[client] = topic, [*records] * len(CODECS)
        return topics[client]

    return write


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
def test_records_of_each_client_in_every_codec_are_read_by_every_client(
    broker, written, writer, reader
):
    topic, records = written(writer)
    found = CLIENTS[reader].consume(broker.kafka, topic, len(records))
    if reader == "kcat":  # shows no headers that are binary
        records = [record._replace(headers=()) for record in records]
    assert found == records


@pytest.mark.parametrize("writer", ["confluent", "java"])  # the others cannot write any
def test_null_headers_keep_their_null(broker, name, writer):
    create_topic(broker.kafka, name)
    records = [Rec(b"k", b"v", (("null", None), ("empty", b"")))]
    CLIENTS[writer].produce(broker.kafka, name, records)
    assert Confluent.consume(broker.kafka, name, 1) == records


# --- limits ----------------------------------------------------------------------------------


def produce_one(bootstrap: str, topic: str, value: bytes, **settings) -> object:
    """None, or the error that librdkafka reports."""
    from confluent_kafka import Producer

    reported = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "message.max.bytes": 100_000_000}
        | {key.replace("_", "."): setting for key, setting in settings.items()}
    )
    producer.produce(
        topic, value, on_delivery=lambda error, message: reported.append(error or message)
    )
    assert producer.flush(TIMEOUT_S) == 0
    return reported[0]


def test_max_message_bytes_is_the_size_of_a_batch_to_the_byte(broker, name):
    from confluent_kafka import KafkaError

    create_topic(broker.kafka, name, max_message_bytes=10_000)
    # 61 bytes of batch header; the record: size 3, attributes, timestamp, offset, key, size 3,
    # headers.
    largest = 10_000 - 61 - 11
    good = produce_one(broker.kafka, name, b"x" * largest)
    assert good.offset() == 0
    bad = produce_one(broker.kafka, name, b"x" * (largest + 1))
    assert bad.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert watermarks(broker.kafka, name) == (0, 1)


def test_max_message_bytes_counts_what_is_stored_after_compression(broker, name):
    create_topic(broker.kafka, name, max_message_bytes=10_000)
    good = produce_one(broker.kafka, name, b"x" * 1_000_000, compression_type="zstd")
    assert good.offset() == 0
    assert Confluent.consume(broker.kafka, name, 1) == [Rec(None, b"x" * 1_000_000)]


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python", "java"])
def test_a_record_near_the_default_limit_is_stored_and_read(broker, name, client):
    require("java")
    create_topic(broker.kafka, name)
    value = bytes(range(256)) * 4000  # 1,024,000 of 1,048,588
    CLIENTS["java"].produce(broker.kafka, name, [Rec(None, value[:1_000_000])])
    CLIENTS["kafka-python"].produce(broker.kafka, name, [Rec(None, value)])
    found = CLIENTS[client].consume(broker.kafka, name, 2)
    assert [record.value for record in found] == [value[:1_000_000], value]


def test_a_large_batch_passes_where_the_topic_allows_it(broker, name):
    create_topic(broker.kafka, name, max_message_bytes=20_000_000)
    value = bytes(range(256)) * 64_000  # 16 MB
    assert produce_one(broker.kafka, name, value).offset() == 0
    assert Confluent.consume(broker.kafka, name, 1) == [Rec(None, value)]


# --- reading from anywhere -------------------------------------------------------------------

FIRST_MS = 1_700_000_000_000


@pytest.fixture(scope="session")
def timed(shared_broker):
    """A topic of 300 records, a second apart, in batches of ten."""
    from confluent_kafka import Producer

    topic = "timed"
    create_topic(shared_broker.kafka, topic, retention_ms=-1)
    producer = Producer({"bootstrap.servers": shared_broker.kafka, "linger.ms": 0})
    for number in range(300):
        producer.produce(topic, f"v{number}".encode(), timestamp=FIRST_MS + number * 1000)
        if number % 10 == 9:
            assert producer.flush(TIMEOUT_S) == 0
    return topic


def test_confluent_reads_from_an_offset_and_from_a_timestamp(broker, timed):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "timed"})
    try:
        for offset in (0, 7, 123, 299):
            consumer.assign([TopicPartition(timed, 0, offset)])
            message = consumer.poll(TIMEOUT_S)
            assert (message.offset(), message.value()) == (offset, f"v{offset}".encode())
        (at,) = consumer.offsets_for_times([TopicPartition(timed, 0, FIRST_MS + 41_500)], TIMEOUT_S)
        assert at.offset == 42
        (at,) = consumer.offsets_for_times([TopicPartition(timed, 0, FIRST_MS + 10**9)], TIMEOUT_S)
        assert at.offset == -1  # librdkafka's name for the end
    finally:
        consumer.close()


def test_aiokafka_reads_from_an_offset_and_from_a_timestamp(broker, timed):
    async def read():
        from aiokafka import AIOKafkaConsumer, TopicPartition

        at = TopicPartition(timed, 0)
        consumer = AIOKafkaConsumer(bootstrap_servers=broker.kafka)
        await consumer.start()
        try:
            consumer.assign([at])
            consumer.seek(at, 123)
            message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            found = await consumer.offsets_for_times({at: FIRST_MS + 41_500})
            ends = await consumer.end_offsets([at])
            begins = await consumer.beginning_offsets([at])
            return message.offset, message.value, found[at].offset, ends[at], begins[at]
        finally:
            await consumer.stop()

    assert asyncio.run(read()) == (123, b"v123", 42, 300, 0)


def test_kafka_python_reads_from_an_offset_and_from_a_timestamp(broker, timed):
    from kafka import KafkaConsumer, TopicPartition

    at = TopicPartition(timed, 0)
    consumer = KafkaConsumer(bootstrap_servers=broker.kafka, consumer_timeout_ms=TIMEOUT_S * 1000)
    try:
        consumer.assign([at])
        consumer.seek(at, 123)
        message = next(consumer)
        assert (message.offset, message.value) == (123, b"v123")
        assert consumer.offsets_for_times({at: FIRST_MS + 41_500})[at].offset == 42
        assert consumer.end_offsets([at])[at] == 300
        assert consumer.beginning_offsets([at])[at] == 0
    finally:
        consumer.close()


def test_kcat_reads_from_an_offset_a_timestamp_and_the_end(broker, timed):
    require("kcat")

    def read(*flags: str) -> list[bytes]:
        return Kcat.run(broker.kafka, "-C", "-q", "-e", "-t", timed, *flags).split()

    assert read("-o", "297") == [b"v297", b"v298", b"v299"]
    assert read("-o", "-2") == [b"v298", b"v299"]
    assert read("-o", f"s@{FIRST_MS + 298_000}") == [b"v298", b"v299"]
    assert read("-o", f"s@{FIRST_MS + 5_000}", "-o", f"e@{FIRST_MS + 7_000}") == [b"v5", b"v6"]
    at = Kcat.run(broker.kafka, "-Q", "-t", f"{timed}:0:{FIRST_MS + 41_500}")
    assert b"offset 42" in at
    assert b'topic "timed" with 1 partitions' in Kcat.run(broker.kafka, "-L")


def test_a_consumer_that_waits_gets_a_record_at_once(broker, name):
    from confluent_kafka import Consumer, Producer, TopicPartition

    create_topic(broker.kafka, name)
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": name, "fetch.wait.max.ms": 30_000}
    )
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        assert consumer.poll(1.0) is None
        for number in range(3):
            started = time.monotonic()
            producer.produce(name, str(number).encode())
            producer.flush(TIMEOUT_S)
            message = consumer.poll(TIMEOUT_S)
            assert message.value() == str(number).encode()
            assert time.monotonic() - started < 20, "the long poll was not answered early"
    finally:
        consumer.close()


# --- topics that clients make by naming them --------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_is_made_when_a_producer_names_it(broker, name, client):
    CLIENTS[client].produce(broker.kafka, name, [Rec(b"k", b"v")])
    assert watermarks(broker.kafka, name) == (0, 1)


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python", "java"])
def test_no_topic_is_made_where_the_broker_forbids_it(forbidding, name, client):
    producing = {
        "confluent": lambda: confluent_fails(forbidding.kafka, name),
        "aiokafka": lambda: aiokafka_fails(forbidding.kafka, name),
        "kafka-python": lambda: kafka_python_fails(forbidding.kafka, name),
        "java": lambda: java_fails(forbidding.kafka, name),
    }
    producing[client]()
    assert name not in admin(forbidding.kafka).list_topics(timeout=TIMEOUT_S).topics


@pytest.fixture(scope="module")
def forbidding(tmp_path_factory):
    from tests.integration.broker import Broker

    broker = Broker(tmp_path_factory.mktemp("forbidding"), "--no-auto-create-topics")
    yield broker.start()
    broker.stop()


def confluent_fails(bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaError

    error = produce_one(bootstrap, topic, b"v", message_timeout_ms=3_000)
    assert error.code() == KafkaError._MSG_TIMED_OUT  # it hopes for the topic until then


def aiokafka_fails(bootstrap: str, topic: str) -> None:
    async def produce() -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, request_timeout_ms=5_000
        ) as producer:
            with pytest.raises(Exception, match=r"Unknown|Timeout|does not exist"):
                await producer.send_and_wait(topic, b"v")

    asyncio.run(produce())


def kafka_python_fails(bootstrap: str, topic: str) -> None:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=bootstrap, max_block_ms=1_500)
    try:
        with pytest.raises(KafkaError):
            producer.send(topic, b"v").get(60)
    finally:
        producer.close()


def java_fails(bootstrap: str, topic: str) -> None:
    from tests.integration.java import session

    session().run("Scenarios", bootstrap, "refusedCreation", topic)


# --- what a topic asks of its batches ---------------------------------------------------------


def test_log_append_time_gives_the_brokers_time_to_all(broker, name):
    from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition

    create_topic(broker.kafka, name, message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": codec})
        reported = []
        producer.produce(
            name, codec, timestamp=1000, on_delivery=lambda e, m, r=reported: r.append((e, m))
        )
        assert producer.flush(TIMEOUT_S) == 0
        assert reported[0][1].timestamp()[1] >= before_ms
    after_ms = time.time_ns() // 1_000_000
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": name})
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        for codec in CODECS:
            message = consumer.poll(TIMEOUT_S)
            assert message.value() == codec.encode()
            kind, time_ms = message.timestamp()
            assert kind == TIMESTAMP_LOG_APPEND_TIME
            assert before_ms <= time_ms <= after_ms
        (at,) = consumer.offsets_for_times([TopicPartition(name, 0, before_ms)], TIMEOUT_S)
        assert at.offset == 0
    finally:
        consumer.close()


@pytest.mark.parametrize("stored", ["zstd", "gzip", "snappy", "lz4", "uncompressed"])
def test_a_topic_stores_in_its_own_codec_whatever_comes(broker, name, stored):
    from tests.integration.raw import Raw, stored_codecs

    require("java")
    create_topic(broker.kafka, name, compression_type=stored)
    for client in ("confluent", "kafka-python"):
        for codec in CODECS:
            CLIENTS[client].produce(broker.kafka, name, RECORDS, codec)
    with Raw(broker.address) as raw:
        codec = "none" if stored == "uncompressed" else stored
        assert stored_codecs(raw, name) == {CODECS.index(codec)}
    expected = [*RECORDS] * len(CODECS) * 2
    for reader in ("confluent", "aiokafka", "java"):
        assert CLIENTS[reader].consume(broker.kafka, name, len(expected)) == expected


def test_a_topic_that_syncs_later_serves_at_once(broker, name):
    create_topic(broker.kafka, name, flush_ms=1000)
    records = [Rec(b"k", str(number).encode()) for number in range(1000)]
    Confluent.produce(broker.kafka, name, records)
    assert Confluent.consume(broker.kafka, name, 1000) == records


def test_a_timestamp_too_far_ahead_is_refused(broker, name):
    from confluent_kafka import KafkaError, Producer

    create_topic(broker.kafka, name)
    reported = []
    producer = Producer({"bootstrap.servers": broker.kafka})
    later_ms = time.time_ns() // 1_000_000 + 2 * 3600 * 1000
    producer.produce(name, b"v", timestamp=later_ms, on_delivery=lambda e, _m: reported.append(e))
    assert producer.flush(TIMEOUT_S) == 0
    assert reported[0].code() == KafkaError.INVALID_TIMESTAMP
    assert watermarks(broker.kafka, name) == (0, 0)


# --- producers -------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_each_kind_of_acknowledgement(broker, name, acks):
    from confluent_kafka import Producer

    create_topic(broker.kafka, name)
    failed = []
    producer = Producer({"bootstrap.servers": broker.kafka, "acks": acks})
    for number in range(200):
        producer.produce(
            name, str(number), on_delivery=lambda e, _m: failed.append(e) if e else None
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed
    found = Confluent.consume(broker.kafka, name, 200)
    assert [record.value for record in found] == [str(number).encode() for number in range(200)]


def idempotent_confluent(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    failed = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1}
    )
    for number in range(count):
        producer.produce(
            topic, str(number), on_delivery=lambda e, _m: failed.append(e) if e else None
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed


def idempotent_aiokafka(bootstrap: str, topic: str, count: int) -> None:
    async def produce() -> None:
        from aiokafka import AIOKafkaProducer

        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True
        ) as producer:
            for future in [await producer.send(topic, str(n).encode()) for n in range(count)]:
                await future

    asyncio.run(produce())


def idempotent_kafka_python(bootstrap: str, topic: str, count: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    try:
        for future in [producer.send(topic, str(n).encode()) for n in range(count)]:
            future.get(TIMEOUT_S)
    finally:
        producer.close()


@pytest.mark.parametrize(
    "produce", [idempotent_confluent, idempotent_aiokafka, idempotent_kafka_python]
)
def test_idempotent_producers_write_in_order_and_once(broker, name, produce):
    create_topic(broker.kafka, name)
    produce(broker.kafka, name, 2000)
    produce(broker.kafka, name, 10)
    found = [int(record.value) for record in Confluent.consume(broker.kafka, name, 2010)]
    assert found == [*range(2000), *range(10)]
    assert watermarks(broker.kafka, name) == (0, 2010)


def keyless_confluent(bootstrap: str, topic: str) -> str:
    return str(produce_one(bootstrap, topic, b"no key").name())


def keyless_aiokafka(bootstrap: str, topic: str) -> str:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    async def send() -> str:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            try:
                await producer.send_and_wait(topic, b"no key")
            except KafkaError as error:
                return type(error).__name__
        return "stored"

    return asyncio.run(send())


def keyless_kafka_python(bootstrap: str, topic: str) -> str:
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        producer.send(topic, b"no key").get(TIMEOUT_S)
    except KafkaError as error:
        return type(error).__name__
    finally:
        producer.close()
    return "stored"


@pytest.mark.parametrize(
    ("send", "error"),
    [
        (keyless_confluent, "INVALID_RECORD"),
        (keyless_aiokafka, "UnknownError"),  # it has no name for code 87
        (keyless_kafka_python, "InvalidRecordError"),
    ],
)
def test_a_compacted_topic_refuses_a_record_without_a_key_at_once(broker, name, send, error):
    create_topic(broker.kafka, name, cleanup_policy="compact")
    begun_s = time.monotonic()
    assert error in send(broker.kafka, name)
    assert time.monotonic() - begun_s < 15, "not after a time-out"
    assert watermarks(broker.kafka, name) == (0, 0)
