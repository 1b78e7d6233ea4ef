"""What a proof shows missing is sent again from the archive or another topic, once."""

import subprocess
import sys
import time
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.pipeline.test_delivery_proof import PARTITIONS, publish

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.delivery_proof import DeliveryConfig, Sent, prove_delivery
from headrace.pipeline.jobs.resend import ResendConfig, plan_resend, run_resend
from headrace.pipeline.jobs.windows import Connection


def stored_topic(broker, name):
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, name, PARTITIONS, settings)
    return name


def numbers(rows):
    """(producer, sequence) of each record, in order of partition and offset."""
    found = []
    for row in sorted(rows, key=lambda each: (each.partition, each.offset)):
        headers = {header.key: bytes(header.value) for header in row.headers}
        name = headers.get("headrace-resent-producer", headers.get("headrace-producer"))
        number = headers.get("headrace-resent-sequence", headers.get("headrace-sequence"))
        found.append((name.decode(), int(number)))
    return found


def test_records_deleted_from_the_log_are_resent_from_the_archive(
    broker, topic, table, warehouse, spark, read
):
    """Records are deleted from the log's beginning, as retention does, after they were archived."""
    from confluent_kafka import TopicPartition

    name = stored_topic(broker, f"{topic}-stored")
    sends = [("a", n, n % PARTITIONS) for n in range(120)]
    publish(broker, name, sends)
    run_archive(ArchiveConfig(broker, name, warehouse.folder, table), spark=spark)
    admin = AdminClient({"bootstrap.servers": broker})
    cut = TopicPartition(name, 1, 15)
    admin.delete_records([cut])[cut].result(30)
    config = DeliveryConfig(Connection(broker), name, table=table, sent={"a": Sent(0, 119)})
    before = prove_delivery(config, spark=spark)
    assert before["producers"][0]["missing"] == before["producers"][0]["missing_in_table"] == 15
    resend = ResendConfig(Connection(broker), name, table=table, certificate=before)
    assert plan_resend(resend, spark=spark)["missing"] == 15
    assert run_resend(resend, spark=spark).written == 15
    assert plan_resend(resend, spark=spark)["missing"] == 0
    assert run_resend(resend, spark=spark).written == 0
    rows = read(name).collect()
    assert Counter(numbers(rows)) == Counter(("a", n) for n in range(120))
    again = [row for row in rows if any(h.key == "headrace-resent" for h in row.headers)]
    assert [number for _, number in sorted(numbers(again))] == list(range(1, 45, 3))
    after = prove_delivery(
        DeliveryConfig(Connection(broker), name, sent={"a": Sent(0, 119)}), spark=spark
    )
    assert after["verdict"] == "proven"


CHILD = """
import sys
from headrace.pipeline.jobs.resend import ResendConfig, run_resend
from headrace.pipeline.jobs.windows import Connection
from headrace.pipeline.session import SessionConfig, make_session
broker, source, target = sys.argv[1:]
spark = make_session(SessionConfig("local[2]", memory_mb=512, short_run=True))
print("ready", flush=True)
run_resend(ResendConfig(Connection(broker), target, source=source, job=target), spark=spark)
"""


def test_equal_records_are_counted_and_a_kill_doubles_none(broker, topic, spark, read):
    """Three copies where the target has one are two missing."""
    target = f"{topic}-mirror"
    create_topic(broker, target, 2, {"retention.ms": "-1"})
    values = [b"%d" % (number // 3) for number in range(6_000)]
    for name, some in ((topic, values), (target, values[::3])):
        producer = Producer({"bootstrap.servers": broker})
        for value in some:
            producer.produce(name, value, value, timestamp=1_700_000_000_000)
        assert producer.flush(60) == 0
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, broker, topic, target], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    deadline = time.monotonic() + 60
    while read(target).count() <= 2_000 and child.poll() is None and time.monotonic() < deadline:
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    config = ResendConfig(Connection(broker), target, source=topic, job=target)
    run_resend(config, spark=spark)
    assert Counter(bytes(row.value) for row in read(target).collect()) == Counter(values)
    again = ResendConfig(Connection(broker), target, source=topic, job=f"{target}-again")
    assert plan_resend(again, spark=spark)["missing"] == 0, "copies are known by their content"


def test_a_table_that_is_not_there_is_named(broker, topic, spark):
    resend = ResendConfig(Connection(broker), topic, table="shop.nosuch")
    with pytest.raises(OptionInvalid, match=r"no table headrace\.shop\.nosuch in the warehouse"):
        plan_resend(resend, spark=spark)
