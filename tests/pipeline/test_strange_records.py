"""Records that Spark's types, or the client, cannot represent: read, archived and proven."""

import ctypes

import pytest
from confluent_kafka import Producer, cimpl

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.fetch import read_range
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange

NANOSECONDS = 1_700_000_000_000_000_000
TOPIC, VALUE, COPY, HEADER, END = 1, 4, 7, 9, 0  # rd_kafka_vtype_t
COPY_FLAG = 2


def send_headers(broker, topic, records):
    """Send records with header keys of any bytes, which confluent_kafka would not."""
    library = ctypes.CDLL(cimpl.__file__)
    for name in ("rd_kafka_conf_new", "rd_kafka_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_destroy.restype = None
    text = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    for name, value in ((b"bootstrap.servers", broker.encode()), (b"log_level", b"2")):
        assert library.rd_kafka_conf_set(conf, name, value, text, ctypes.c_size_t(512)) == 0
    handle = ctypes.c_void_p(library.rd_kafka_new(0, conf, text, ctypes.c_size_t(512)))
    for headers in records:
        arguments = [TOPIC, topic.encode(), VALUE, b"value", ctypes.c_size_t(5), COPY, COPY_FLAG]
        for key, value in headers:
            size = ctypes.c_ssize_t(0 if value is None else len(value))
            arguments += [HEADER, key, value, size]
        assert library.rd_kafka_producev(handle, *arguments, END) == 0
    assert library.rd_kafka_flush(handle, 30_000) == 0
    library.rd_kafka_destroy(handle)


@pytest.fixture
def strange_topic(broker, topic):
    """Ordinary records, and between them some with other header keys and timestamps."""
    name = f"{topic}-strange"
    any_time = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
    create_topic(broker, name, 1, any_time)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(name, b"first", headers=[("plain", b"0")], timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    send_headers(
        broker, name, [[(b"caf\xe9", b"1"), (b"ok", None)], [(b"\xff\xfe", b"")], [(b"ok", b"2")]]
    )
    producer.produce(name, b"nanoseconds", timestamp=NANOSECONDS)
    assert producer.flush(30) == 0
    send_headers(broker, name, [[(b"\xe9", b"3")]])
    return name


HEADER_KEYS = [None, [b"caf\xe9", b"ok"], [b"\xff\xfe"], None, None, [b"\xe9"]]


def test_the_fetch_layer_returns_them_as_they_are_stored(broker, strange_topic):
    options = SourceOptions(client={"bootstrap.servers": broker}, batch_rows=2)
    batches = read_range(OffsetRange(strange_topic, 0, 0, 6), options)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["raw"] and row["raw"]["headerKeys"] for row in rows] == HEADER_KEYS
    assert rows[1]["headers"] == [
        {"key": "caf\ufffd", "value": b"1"},
        {"key": "ok", "value": None},
    ]
    assert rows[3]["headers"] == [{"key": "ok", "value": b"2"}]
    assert (rows[4]["timestamp"], rows[4]["raw"]["timestampMs"]) == (None, NANOSECONDS)
    without = SourceOptions(client={"bootstrap.servers": broker}, include_headers=False)
    batches = read_range(OffsetRange(strange_topic, 0, 1, 4), without)
    assert [row["raw"] for batch in batches for row in batch.to_pylist()] == [None] * 3


def test_many_of_them_in_a_row_are_read_in_one_pass(broker, strange_topic):
    send_headers(broker, strange_topic, [[(b"\xff%d" % number, b"")] for number in range(3_000)])
    options = SourceOptions(client={"bootstrap.servers": broker})
    batches = read_range(OffsetRange(strange_topic, 0, 6, 3_006), options)
    seen = [row["raw"]["headerKeys"] for batch in batches for row in batch.to_pylist()]
    assert seen == [[b"\xff%d" % number] for number in range(3_000)]


def test_they_are_archived_and_proven(spark, broker, strange_topic, warehouse, table):
    run_archive(ArchiveConfig(broker, strange_topic, warehouse.folder, table), spark=spark)
    rows = spark.table(f"headrace.{table}").orderBy("offset").collect()
    assert [row.raw and row.raw.headerKeys for row in rows] == HEADER_KEYS
    assert rows[4].raw.timestampMs == NANOSECONDS
    config = ReconcileConfig(broker, strange_topic, table)
    assert run_reconcile(config, spark=spark).problems == []
    spark.sql(
        f"UPDATE headrace.{table} SET raw = CASE offset "
        "WHEN 1 THEN named_struct('timestampMs', CAST(NULL AS BIGINT), 'headerKeys', "
        "array(X'636166E8', X'6F6B')) "
        "WHEN 4 THEN named_struct('timestampMs', raw.timestampMs + 1, 'headerKeys', NULL) END "
        "WHERE offset IN (1, 2, 4)"
    )
    (problem,) = run_reconcile(config, spark=spark).problems
    assert problem.endswith("3 differ from the log (offset 1: raw; offset 2: raw; offset 4: raw)")
