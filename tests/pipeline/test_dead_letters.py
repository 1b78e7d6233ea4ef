"""Dead letters of all writers are distinguished, and each is sent, dropped or kept once."""

import struct
import subprocess
import sys
import time
from collections import Counter

import pytest
from confluent_kafka import Producer

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.letters import causes, letters_of, read_letters
from headrace.pipeline.jobs.redrive import RedriveConfig, plan_redrive, run_redrive
from headrace.pipeline.jobs.windows import Connection


def share(topic, number, group="workers", message="timeout"):
    """As Kafka 4.4 (KIP-1191) and Headrace write them."""
    fields = {
        "topic": topic, "partition": number % 3, "offset": number, "group": group,
        "delivery.count": 5, "message": message,
    }  # fmt: skip
    return [(f"__dlq.errors.{name}", str(value).encode()) for name, value in fields.items()]


def spring(topic, number, cause="java.lang.IllegalStateException"):
    """As spring-kafka's DeadLetterPublishingRecoverer writes them: integers are big-endian."""
    return [
        ("kafka_dlt-original-topic", topic.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", number % 3)),
        ("kafka_dlt-original-offset", struct.pack(">q", number)),
        ("kafka_dlt-original-consumer-group", b"billing"),
        ("kafka_dlt-exception-fqcn", b"org.springframework.kafka.listener.ListenerException"),
        ("kafka_dlt-exception-cause-fqcn", cause.encode()),
        ("kafka_dlt-exception-message", b"no such customer"),
    ]


def connect(topic, number):
    """As Kafka Connect (KIP-298) writes them."""
    fields = {
        "topic": topic, "partition": number % 3, "offset": number, "connector.name": "jdbc-sink",
        "task.id": 0, "stage": "VALUE_CONVERTER",
        "exception.class.name": "org.apache.kafka.connect.errors.DataException",
        "exception.message": "not JSON",
    }  # fmt: skip
    return [(f"__connect.errors.{name}", str(value).encode()) for name, value in fields.items()]


@pytest.fixture
def dead(broker, topic):
    name = f"{topic}.dead"
    create_topic(broker, name, 2, {"retention.ms": "-1"})
    return name


def publish(broker, dead, letters):
    """Write (number, headers), by key."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number, headers in letters:
        own = [("own", b"%d" % number)]
        producer.produce(
            dead, b'{"n": %d}' % number, b"key-%d" % (number % 5), headers=own + headers
        )
    assert producer.flush(60) == 0


def number_of(row):
    return int(bytes(row.value).split(b":")[1].rstrip(b"}").strip())


def test_numbers_that_no_writer_writes_are_null_and_stop_nothing(spark):
    """Headers are copied from records, in which a producer may have written anything."""
    letters = [
        [*share("t", 1), ("__dlq.errors.partition", b"99999999999")],
        [*spring("t", 1), ("kafka_dlt-original-partition", b"\xff" * 9)],
        [*spring("t", 1), ("kafka_dlt-original-offset", b"\xff" * 20)],
        [*connect("t", 1), ("__connect.errors.partition", b"9" * 30)],
        spring("t", 1),
    ]
    columns = "topic string, partition int, offset bigint"
    columns += ", headers array<struct<key: string, value: binary>>"
    rows = [("t.dead", 0, offset, headers) for offset, headers in enumerate(letters)]
    found = letters_of(spark.createDataFrame(rows, columns)).orderBy("offset").collect()
    assert [(row.kind, row.origin_partition, row.origin_offset) for row in found] == [
        ("share", None, 1), ("spring", None, 1), ("spring", 1, None), ("connect", None, 1),
        ("spring", 1, 1),
    ]  # fmt: skip


def test_letters_of_all_writers_are_read(broker, topic, dead, spark):
    letters = [(n, share(topic, n)) for n in range(4)]
    letters += [(n, spring(topic, n)) for n in range(4, 10)]
    letters += [(n, connect(topic, n)) for n in range(10, 13)]
    letters += [(13, [])]
    publish(broker, dead, letters)
    found = read_letters(spark, Connection(broker), (dead,)).collect()
    for row in found:
        number = number_of(row)
        if number == 13:
            assert (row.kind, row.origin_topic, row.cause, row.redrives) == (None, None, None, 0)
            continue
        assert (row.origin_topic, row.origin_partition, row.origin_offset) == (
            topic, number % 3, number,
        )  # fmt: skip
        kind, consumer, cause, deliveries = (
            ("share", "workers", "timeout", 5) if number < 4
            else ("spring", "billing", "java.lang.IllegalStateException", None) if number < 10
            else ("connect", "jdbc-sink", "org.apache.kafka.connect.errors.DataException", None)
        )  # fmt: skip
        assert (row.kind, row.consumer, row.cause, row.deliveries) == (
            kind, consumer, cause, deliveries,
        )  # fmt: skip
    counted = causes(read_letters(spark, Connection(broker), (dead,)))
    assert [(one["kind"], one["count"]) for one in counted] == [
        ("spring", 6), ("share", 4), ("connect", 3), (None, 1),
    ]  # fmt: skip
    assert counted[0]["samples"][0]["message"] == "no such customer"


def test_each_letter_is_sent_dropped_or_kept_once(broker, topic, dead, spark, read):
    """Against a decision in plain Python; letters without origin and loops are kept."""
    letters = [(n, share(topic, n, message="timeout" if n % 4 else "poison")) for n in range(40)]
    letters += [(n, [*share(topic, n), ("headrace-redrives", b"3")]) for n in range(40, 44)]
    letters += [(44, []), (45, share(f"{topic}-gone", 45))]
    letters += [(n, spring(topic, n)) for n in range(50, 60)]
    publish(broker, dead, letters)
    config = RedriveConfig(
        Connection(broker), dead, where="kind = 'share' OR kind IS NULL",
        drop="message = 'poison'",
        edits={"value": "replace(cast(value AS string), 'n', 'edited')"}, chunk_records=10,
    )  # fmt: skip
    dropped = {n for n in range(40) if n % 4 == 0}
    sent = set(range(40)) - dropped
    kept = {*range(40, 46), *range(50, 60)}
    assert plan_redrive(config, spark=spark)["outcomes"] == {
        "sent": {topic: len(sent)},
        "dropped": {dead: len(dropped)},
        "kept": {dead: 10},
        "kept: loops": {dead: 4},
        "kept: no origin": {dead: 1},
        "kept: no such topic": {dead: 1},
    }
    report = run_redrive(config, spark=spark)
    assert report.by_topic == {topic: len(sent), dead: len(kept)}
    back = read(topic).collect()
    assert Counter(number_of(row) for row in back) == Counter(sent)
    for row in back:
        assert bytes(row.value).startswith(b'{"edited"')
        assert row.partition == number_of(row) % 3
        names = [header.key for header in row.headers if header.key != "headrace-written"]
        assert names == ["own", "headrace-redrives"]
        assert bytes(row.headers[1].value) == b"1"
    order = sorted(back, key=lambda row: (row.partition, row.offset))
    for key in {bytes(row.key) for row in back}:
        for partition in range(3):
            numbers = [
                number_of(r) for r in order if bytes(r.key) == key and r.partition == partition
            ]
            assert numbers == sorted(numbers)
    rest = plan_redrive(RedriveConfig(Connection(broker), dead, where="false"), spark=spark)
    assert rest["outcomes"] == {"kept": {dead: len(kept)}}


def test_an_edit_is_believed_if_it_comes_from_where_its_letter_comes_from(
    broker, topic, dead, spark, read
):
    """Spring copies a producer's headers, which may claim that its letter is an edit, and that it
    was written by another writer."""
    dead = f"{dead}-spring"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, dead, 2, settings)
    publish(broker, dead, [(0, spring(topic, 0)), (5, spring(topic, 5))])
    first = read(dead).where("offset = 0").first()
    place = f"{first.partition}:{first.offset}"
    claim = [
        ("headrace-dlq-edit-of", place.encode()),
        ("headrace-producer", b"letter-edit/00ff-%b/77" % place.encode()),
        ("headrace-sequence", b"0"),
    ]
    origin = [("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"0")]
    origin += [(name.replace("__dlq", "__connect"), value) for name, value in origin]
    publish(broker, dead, [(10, [*claim, *spring(topic, 10)])])
    publish(broker, dead, [(15, [*claim, *origin, *share("payments", 0), *spring(topic, 15)])])
    publish(broker, dead, [(20, [*origin, *share("payments", 0), *spring(topic, 20), *claim])])
    publish(broker, dead, [(25, [*claim, *spring(topic, 0)])])
    found = read_letters(spark, Connection(broker), (dead,)).collect()
    assert sorted(map(number_of, found)) == [0, 5, 10, 15, 20, 25], "all forged ones are letters"
    assert {(row.kind, row.origin_topic, row.consumer, row.cause) for row in found} == {
        ("spring", topic, "billing", "java.lang.IllegalStateException"),
    }  # fmt: skip
    assert sorted(row.origin_offset for row in found) == [0, 0, 5, 10, 15, 20]
    config = RedriveConfig(Connection(broker), dead, where="origin_offset = 10")
    assert plan_redrive(config, spark=spark)["outcomes"] == {
        "sent": {topic: 1}, "kept": {dead: 5},
    }  # fmt: skip
    publish(broker, dead, [(30, [*spring(topic, 0), *claim])])
    found = read_letters(spark, Connection(broker), (dead,)).collect()
    assert sorted(map(number_of, found)) == [0, 5, 10, 15, 20, 25], "the real one is none"
    with pytest.raises(OptionInvalid, match="headrace dead redrive"):
        run_redrive(config, spark=spark)
    assert read(topic).isEmpty()


def test_letters_of_more_topics_than_a_state_can_hold_are_redriven_in_parts(
    broker, topic, dead, spark, read
):
    """What a job stores is metadata of an offset, of which brokers take 4,096 characters. Names
    that no topic has are no topics."""
    others = [f"{topic}-{n}-{'x' * 180}" for n in range(30)]
    for name in others:
        create_topic(broker, name, 1, {"retention.ms": "-1"})
    named = [*others, "no topic's name", "y" * 5_000, "line\n", ".", topic]
    publish(broker, dead, [(n, share(name, n)) for n, name in enumerate(named)])
    with pytest.raises(OptionInvalid, match="Redrive some of them first"):
        run_redrive(RedriveConfig(Connection(broker), dead), spark=spark)
    one = RedriveConfig(Connection(broker), dead, where=f"origin_topic = '{topic}'")
    assert run_redrive(one, spark=spark).by_topic == {topic: 1, dead: len(named) - 1}
    many = RedriveConfig(Connection(broker), dead, drop=f"origin_topic RLIKE '^{topic}-[12]'")
    assert plan_redrive(many, spark=spark)["outcomes"] == {
        "sent": {name: 1 for name in others if name[len(topic) + 1] not in "12"},
        "dropped": {dead: 22},
        "kept: no such topic": {dead: 4},
    }


CHILD = """
import sys
from headrace.pipeline.jobs.redrive import RedriveConfig, run_redrive
from headrace.pipeline.jobs.windows import Connection
from headrace.pipeline.session import SessionConfig, make_session
broker, dead = sys.argv[1:]
spark = make_session(SessionConfig("local[2]", memory_mb=512, short_run=True))
config = RedriveConfig(Connection(broker), dead, where="origin_offset % 2 = 0", chunk_records=200)
run_redrive(config, spark=spark, on_chunk=lambda chunk: print(chunk.left, flush=True))
"""


def test_a_redrive_that_is_killed_is_completed_without_a_duplicate(
    broker, topic, dead, spark, read
):
    publish(broker, dead, [(n, share(topic, n)) for n in range(1_000)])
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, broker, dead], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    time.sleep(0.5)
    child.kill()
    child.wait()
    child.stdout.close()
    config = RedriveConfig(Connection(broker), dead, where="origin_offset % 2 = 0")
    report = run_redrive(config, spark=spark)
    assert (report.resumed, report.is_done) == (True, True)
    assert Counter(number_of(row) for row in read(topic).collect()) == Counter(range(0, 1_000, 2))
    rest = read(dead, startingOffsets="earliest").collect()
    kept = Counter(number_of(row) for row in rest) - Counter(range(1_000))
    assert kept == Counter(range(1, 1_000, 2))
