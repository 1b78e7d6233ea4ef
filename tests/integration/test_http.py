"""The HTTP face: alive, ready, and figures that Prometheus can read and that are true."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.clients import Confluent, Rec, create_topic, delete_topic
from tests.waiting import wait_until


def figures(broker) -> dict[tuple, float]:
    """Every sample: (name, label values by label name...) to its value."""
    status, text = broker.get("/metrics")
    assert status == 200, text
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_unused_broker_answers_every_path(own_broker):
    assert own_broker.get("/healthz")[0] == 200
    assert own_broker.get("/readyz")[0] == 200
    found = figures(own_broker)
    assert found["headrace_topics",] == 0
    assert found["headrace_groups",] == 0
    assert own_broker.get("/no-such-page")[0] == 404


def test_a_topic_is_deleted_where_there_was_never_a_group(own_broker):
    create_topic(own_broker.kafka, "first")
    delete_topic(own_broker.kafka, "first")
    assert " ERROR " not in own_broker.log()


def test_every_family_says_what_it_is(broker):
    text = broker.get("/metrics")[1]
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        assert family.name.startswith(("headrace_", "process_")), family.name


def test_figures_move_with_what_clients_do(broker, name):
    create_topic(broker.kafka, name, 2)
    before = figures(broker)
    Confluent.produce(broker.kafka, name, [Rec(b"k", b"v" * 100)] * 50)
    Confluent.consume(broker.kafka, name, 50)
    after = figures(broker)

    def moved(*sample):
        return after[sample] - before.get(sample, 0)

    assert moved("headrace_produce_records_total") == 50
    assert moved("headrace_produce_bytes_total") > 5_000
    assert 1 <= moved("headrace_produce_batches_total") <= 50
    assert moved("headrace_fetch_bytes_total") > 5_000
    assert moved("headrace_requests_total", "Produce") >= 1
    assert moved("headrace_requests_total", "Fetch") >= 1
    assert moved("headrace_storage_sync_duration_seconds_count") >= 1
    assert moved("headrace_storage_wal_bytes_total") > 5_000
    assert after["headrace_topic_size_bytes", name] > 5_000
    assert after["process_cpu_seconds_total",] > 0


def test_lag_is_end_offset_minus_committed_offset(broker, name):
    from confluent_kafka import Consumer, TopicPartition

    create_topic(broker.kafka, name)
    Confluent.produce(broker.kafka, name, [Rec(None, b"v")] * 30)
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": name})
    try:
        at = TopicPartition(name, 0, 12)
        consumer.commit(offsets=[at], asynchronous=False)
        lag = ("headrace_group_lag_records", name, "0", name)
        assert figures(broker)[lag] == 18
        Confluent.produce(broker.kafka, name, [Rec(None, b"v")] * 5)
        assert figures(broker)[lag] == 23
        consumer.commit(offsets=[TopicPartition(name, 0, 35)], asynchronous=False)
        assert figures(broker)[lag] == 0
    finally:
        consumer.close()


def test_connections_are_counted_while_they_last(own_broker):
    open_ = [own_broker.connect() for _ in range(5)]
    wait_until(lambda: figures(own_broker)["headrace_connections",] == 5)
    for connection in open_:
        connection.close()
    wait_until(lambda: figures(own_broker)["headrace_connections",] == 0)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_http_answers_after_a_restart(own_broker, path):
    own_broker.restart()
    assert own_broker.get(path)[0] == 200


def test_a_damaged_partition_is_named_and_hides_nothing_else(own_broker):
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    for topic in ("damaged", "sound"):
        create_topic(own_broker.kafka, topic)
        Confluent.produce(own_broker.kafka, topic, [Rec(None, topic.encode() * 100)] * 50)
    consumer = Consumer({"bootstrap.servers": own_broker.kafka, "group.id": "g"})
    offsets = [TopicPartition(topic, 0, 10) for topic in ("damaged", "sound")]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()
    own_broker.stop()
    damaged = [
        path
        for path in (own_broker.data_dir / "ledgers").rglob("*.ledger")
        if b"damageddamaged" in path.read_bytes()
    ]
    assert damaged
    own_broker.is_damaged = True
    for path in damaged:
        data = bytearray(path.read_bytes())
        data[data.index(b"damageddamaged")] ^= 1
        path.write_bytes(data)
    own_broker.start()
    # A scrape and a health check load nothing: they report what clients have asked for.
    consumer = Consumer({"bootstrap.servers": own_broker.kafka, "group.id": "g"})
    assert [one.offset for one in consumer.committed(offsets, 60)] == [10, 10]
    for topic in ("damaged", "sound"):
        try:
            consumer.get_watermark_offsets(TopicPartition(topic, 0), 60, cached=False)
        except KafkaException:
            assert topic == "damaged"
    consumer.close()
    found = figures(own_broker)
    assert found["headrace_group_lag_records", "g", "0", "sound"] == 40
    status, text = own_broker.get("/readyz")
    assert status == 200
    assert "damaged-0" in text
    assert len(Confluent.consume(own_broker.kafka, "sound", 50)) == 50
