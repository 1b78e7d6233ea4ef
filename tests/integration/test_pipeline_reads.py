"""The pipeline's own fetch against librdkafka's, on the same log: the same rows, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker
from tests.integration.test_transactions import fresh

from headrace.pipeline.direct import COLUMN_BYTES_MAX, addresses_of, is_possible, read_directly
from headrace.pipeline.errors import ReadRefused, ReadStalled, RecordsLost
from headrace.pipeline.fetch import read_through_client
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("read"))
    made.start()
    yield made
    made.stop()


def create_topic(broker: Broker, stem: str, **config: str) -> str:
    topic = fresh(stem)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    made = admin.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1", **config})])
    made[topic].result(TIMEOUT_S)
    return topic


def producer_of(broker: Broker, **settings: Any) -> Producer:
    return Producer({
        "bootstrap.servers": broker.kafka, "linger.ms": 20, "log_level": 0, **settings
    })  # fmt: skip


def options_of(broker: Broker, level: str = "read_committed", **more: Any) -> SourceOptions:
    client = {"bootstrap.servers": broker.kafka, "isolation.level": level}
    return SourceOptions(client=client, **more)


def rows_of(read: Any, piece: OffsetRange, options: SourceOptions) -> list[dict[str, Any]]:
    batches = list(read(piece, options))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def assert_same(piece: OffsetRange, options: SourceOptions) -> list[dict[str, Any]]:
    found = rows_of(read_directly, piece, options)
    assert found == rows_of(read_through_client, piece, options)
    return found


def produce_mixed(producer: Producer, topic: str, first: int, count: int) -> None:
    """Records with and without keys, values and headers, of sizes from nothing to 30 kB."""
    for number in range(first, first + count):
        producer.produce(
            topic,
            None if number % 7 == 0 else b"v" * (number % 5) * (6_000 if number % 11 == 0 else 9),
            None if number % 3 == 0 else b"key-%d" % number,
            headers=None if number % 4 else [("id", b"%d" % number), ("é", None), ("id", b"")],
            timestamp=1_700_000_000_000 + number % 13 * 100_000,
        )
    assert producer.flush(TIMEOUT_S) == 0


def test_every_codec_and_any_mixture_of_fields_is_read_as_librdkafka_reads_it(broker):
    topic = create_topic(broker, "codecs")
    for index, codec in enumerate(CODECS):
        producer = producer_of(broker, **{"compression.type": codec})
        produce_mixed(producer, topic, index * 200, 200)
    found = assert_same(OffsetRange(topic, 0, 0, 1_000), options_of(broker))
    assert len(found) == 1_000
    within = assert_same(OffsetRange(topic, 0, 333, 777), options_of(broker, batch_rows=50))
    assert [row["offset"] for row in within] == list(range(333, 777))
    assert_same(OffsetRange(topic, 0, 0, 1_000), options_of(broker, include_headers=False))


def test_times_of_the_broker_are_read_as_such(broker):
    topic = create_topic(broker, "append", **{"message.timestamp.type": "LogAppendTime"})
    produce_mixed(producer_of(broker), topic, 0, 50)
    found = assert_same(OffsetRange(topic, 0, 0, 50), options_of(broker))
    assert {row["timestampType"] for row in found} == {1}


def test_aborted_transactions_and_their_markers_are_not_read(broker):
    """Two producers interleave; every third transaction is aborted. Markers take offsets."""
    topic = create_topic(broker, "transactions")
    producers = [producer_of(broker, **{"transactional.id": fresh("txn")}) for _ in range(2)]
    for producer in producers:
        producer.init_transactions(TIMEOUT_S)
    committed = []
    for round_number in range(6):
        for producer in producers:
            producer.begin_transaction()
        for each in range(2):
            for which, producer in enumerate(producers):
                producer.produce(topic, b"%d-%d-%d" % (round_number, which, each))
                producer.flush(TIMEOUT_S)
        for which, producer in enumerate(producers):
            if (round_number + which) % 3 == 0:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
                committed += [b"%d-%d-%d" % (round_number, which, each) for each in range(2)]
    piece = OffsetRange(topic, 0, 0, 6 * 4 + 12)  # the last offset is a marker's
    found = assert_same(piece, options_of(broker))
    assert sorted(row["value"] for row in found) == sorted(committed)
    everything = assert_same(piece, options_of(broker, "read_uncommitted"))
    assert len(everything) == 24
    for start in range(0, 36, 5):
        assert_same(OffsetRange(topic, 0, start, min(start + 9, 36)), options_of(broker))


def test_large_records_are_read_within_the_bounds_of_a_batch(broker):
    topic = create_topic(broker, "large", **{"max.message.bytes": str(12 << 20)})
    producer = producer_of(broker, **{"message.max.bytes": 12 << 20, "compression.type": "zstd"})
    for number in range(12):
        producer.produce(topic, bytes([number]) * (9 << 20), b"k" * (number << 10))
        producer.flush(TIMEOUT_S)
    batches = list(read_directly(OffsetRange(topic, 0, 0, 12), options_of(broker)))
    assert [len(value) for each in batches for value in each["value"].to_pylist()] == [9 << 20] * 12
    assert [each.num_rows for each in batches] == [1] * 12  # each is larger than a batch's bound
    produce_mixed(producer, topic, 12, 9_000)
    batches = list(read_directly(OffsetRange(topic, 0, 12, 9_012), options_of(broker)))
    assert sum(each.num_rows for each in batches) == 9_000
    assert len(batches) > 1
    assert all(each.nbytes <= COLUMN_BYTES_MAX + (64 << 10) for each in batches)


def test_reads_of_deleted_records_fail_or_skip_them_as_configured(broker):
    topic = create_topic(broker, "deleted")
    produce_mixed(producer_of(broker), topic, 0, 100)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0, 40)].result(30)
    piece = OffsetRange(topic, 0, 10, 100)
    with pytest.raises(RecordsLost, match="offset 10 is no longer in the log"):
        list(read_directly(piece, options_of(broker)))
    found = assert_same(piece, options_of(broker, fail_on_data_loss=False))
    assert [row["offset"] for row in found] == list(range(40, 100))


def test_a_log_that_ends_before_the_range_is_waited_for_and_then_an_error_spark_may_retry(broker):
    topic = create_topic(broker, "short")
    produce_mixed(producer_of(broker), topic, 0, 10)
    options = options_of(broker, stall_timeout_ms=700)
    with pytest.raises(ReadStalled, match="offset 10, although the range ends at 20"):
        list(read_directly(OffsetRange(topic, 0, 0, 20), options))
    with pytest.raises(ReadStalled, match="UNKNOWN_TOPIC_OR_PART"):
        list(read_directly(OffsetRange("no-such-topic", 0, 0, 20), options))


def test_a_read_goes_on_when_the_broker_restarts(tmp_path):
    broker = Broker(tmp_path)
    broker.start()
    topic = create_topic(broker, "restarted")
    producer = producer_of(broker, **{"batch.num.messages": 500})
    for number in range(40_000):
        producer.produce(topic, b"%d" % number * 60)
        if number % 500 == 0:
            producer.flush(TIMEOUT_S)
    assert producer.flush(TIMEOUT_S) == 0
    options = options_of(broker)
    read = read_directly(OffsetRange(topic, 0, 0, 40_000), options)
    found = next(read)["offset"].to_pylist()
    broker.kill()
    broker.start()
    found += [offset for batch in read for offset in batch["offset"].to_pylist()]
    broker.stop()
    assert found == list(range(40_000))


def test_addresses_and_settings_that_are_understood():
    assert addresses_of("a:1, [::1]:2,b") == [("a", 1), ("::1", 2), ("b", 9092)]
    with pytest.raises(ReadRefused, match="not host:port"):
        addresses_of("a:b")
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
    assert is_possible({"bootstrap.servers": "a:1"})
    assert not is_possible({"bootstrap.servers": "a:1", **login})
    assert not is_possible({"bootstrap.servers": "a:1", "client.rack": "r"})
