"""A proof compares a topic with its copy in another cluster, and in a database."""

import json
import random
import sqlite3

import pytest
from confluent_kafka import Producer

from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jobs.certificate import verify
from headrace.pipeline.jobs.copies import DatabaseCopy, TopicCopy, _figures
from headrace.pipeline.jobs.delivery_proof import DeliveryConfig, prove_delivery
from headrace.pipeline.jobs.identity import numbered
from headrace.pipeline.jobs.windows import WHOLE_LOG, Bounds, Connection

START_MS = 1_700_000_000_000
COUNT = 300
CHANGED, LOST, TWICE, MORE = {7, 155}, {0, 20, 21, 299}, {33}, {900}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another cluster."""
    folder = tmp_path_factory.mktemp("other")
    with BrokerProcess(folder / "data", folder / "log") as process:
        yield process.kafka


def publish(broker, topic, numbers, partitions, changed=()):
    """Records of the same content wherever they are; two of each ten are equal to each other."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number in numbers:
        own = number - number % 10 if number % 10 == 1 else number
        text = "changed" if number in changed else f"value-{own}"
        producer.produce(
            topic, text, b"%d" % own, partition=number % partitions,
            timestamp=START_MS + own * 1000, headers=[("h", b"%d" % own)],
        )  # fmt: skip
    assert producer.flush(120) == 0


def copied():
    numbers = [n for n in range(COUNT) if n not in LOST] + sorted(TWICE | MORE)
    random.Random(3).shuffle(numbers)
    return numbers


def offsets_of(numbers, partitions=3):
    """As a certificate has them, of records that were written in the order of their numbers."""
    found = {}
    for number in sorted(numbers):
        spans = found.setdefault(str(number % partitions), [])
        offset = number // partitions
        if spans and spans[-1][1] == offset - 1:
            spans[-1][1] = offset
        else:
            spans.append([offset, offset])
    return found


def test_a_copy_in_another_cluster_is_compared_by_content(broker, other, topic, spark):
    """Partitions and order differ there. Of equal records each needs a copy of its own."""
    publish(broker, topic, range(COUNT), 3)
    create_topic(other, "mirror", 2, {"retention.ms": "-1"})
    publish(other, "mirror", range(COUNT), 2)
    whole = TopicCopy(Connection(other), "mirror")
    base = DeliveryConfig(Connection(broker), topic, is_numbered=False, copies=(whole,))
    found = prove_delivery(base, spark=spark)
    assert (found["verdict"], found["problems"], found["not_proven"]) == ("proven", [], [])
    assert (found["copies"][0]["records"], found["copies"][0]["rows"]) == (COUNT, COUNT)

    create_topic(other, "damaged", 2, {"retention.ms": "-1"})
    publish(other, "damaged", copied(), 2, CHANGED)
    damaged = TopicCopy(Connection(other), "damaged")
    found = prove_delivery(
        DeliveryConfig(Connection(broker), topic, is_numbered=False, copies=(damaged,)),
        spark=spark,
    )
    figures = found["copies"][0]
    # By content, a changed record is one that is missing, and one that is more. Of the equal
    # records 0 and 1, one is there, and counts as the first.
    missing = {1, 20, 21, 299} | CHANGED
    assert figures["missing"] == len(missing)
    assert figures["missing_spans"] == offsets_of(missing)
    assert (figures["repeated"], figures["surplus"]) == (len(TWICE), len(CHANGED | MORE))
    assert found["verdict"] == "failed"
    assert verify(json.loads(json.dumps(found))) == []
    figures["missing"] = 0
    assert verify(found) != []


def test_equal_records_of_one_id_are_matched_whatever_their_order(spark):
    """Only what is left over on both sides differs; what precedes the window is no part of it."""
    log = spark.sql(
        "SELECT 'orders' AS topic, 0 AS partition, * FROM VALUES (0, 'a', 'new'), (1, 'a', 'old'),"
        " (2, 'b', '1'), (3, 'b', '2'), (4, 'c', 'x'), (5, 'c', 'x'), (6, 'd', NULL)"
        " AS given (offset, identity, content)"
    )
    rows = spark.sql(
        "SELECT *, identity AS place FROM VALUES ('a', 'new'), ('a', 'old'), ('b', '2'),"
        " ('b', '3'), ('c', 'x'), ('d', NULL) AS given (identity, content)"
    )
    log = numbered(log, "offset")
    figures = _figures(log.where("offset <> 4"), log, numbered(rows, "content"))
    assert (figures["missing"], figures["surplus"], figures["repeated"]) == (0, 0, 0)
    assert figures["differing_spans"] == {"0": [[2, 2]]}
    assert _figures(log, log, numbered(rows, "content"))["missing_spans"] == {"0": [[5, 5]]}


def test_a_database_table_is_compared_by_ids_and_values(broker, topic, spark, tmp_path):
    name = f"{topic}-orders"
    create_topic(broker, name, 3, {"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": broker})
    for number in range(COUNT):
        body = json.dumps({"id": number, "amount": number * 2})
        producer.produce(name, body, partition=number % 3)
    assert producer.flush(120) == 0
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE orders (id INTEGER, amount INTEGER)")
    amounts = [(n, -1 if n in CHANGED else n * 2) for n in copied()]
    database.executemany("INSERT INTO orders VALUES (?, ?)", amounts)
    database.commit()

    def figures(where="true", bounds=WHOLE_LOG):
        copy = DatabaseCopy(
            f"jdbc:sqlite:{path}", "orders", "get_json_object(cast(value AS string), '$.id')",
            "id", "get_json_object(cast(value AS string), '$.amount')", "amount", where,
        )  # fmt: skip
        found = prove_delivery(
            DeliveryConfig(
                Connection(broker), name, bounds, is_numbered=False, copies=(copy,)
            ),
            spark=spark,
        )  # fmt: skip
        assert verify(found) == []
        return found["copies"][0] | {"verdict": found["verdict"]}

    found = figures()
    assert (found["missing"], found["missing_spans"]) == (len(LOST), offsets_of(LOST))
    assert (found["differing"], found["differing_spans"]) == (len(CHANGED), offsets_of(CHANGED))
    assert (found["repeated_shown"], found["surplus_shown"]) == (["33"], ["900"])
    assert found["verdict"] == "failed"
    begin, end = (json.dumps({name: dict.fromkeys("012", offset)}) for offset in (14, 40))
    window = Bounds(from_offsets=begin, to_offsets=end)
    found = figures("id >= 42 AND id < 120", window)
    assert (found["records"], found["rows"], found["verdict"]) == (78, 78, "proven")
    database.execute("INSERT INTO orders VALUES (NULL, 5)")
    database.commit()
    database.close()
    assert figures("id IS NULL OR id BETWEEN 42 AND 119", window)["verdict"] == "not proven"
