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


DAY_MS = 86_400_000
YEARS_MS = {1: -62_135_596_800_000, 1900: -2_208_988_800_000, 1969: -1_000, 2263: 9_246_182_400_000,
            9999: 253_402_300_799_000}  # fmt: skip
LARGE = 10_000_000


@pytest.fixture
def edge_topic(broker, topic):
    """A record for each of `YEARS_MS`, then one of 10 MB, then one with 1,000 headers."""
    name = f"{topic}-edge"
    create_topic(broker, name, 1, {
        "message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1",
        "max.message.bytes": str(2 * LARGE),
    })  # fmt: skip
    producer = Producer({"bootstrap.servers": broker, "message.max.bytes": 2 * LARGE})
    for at_ms in YEARS_MS.values():
        producer.produce(name, b"year", timestamp=at_ms)
        assert producer.flush(60) == 0
    producer.produce(name, bytes(LARGE), b"large", timestamp=DAY_MS)
    headers = [(f"h{number % 7}", b"%d" % number) for number in range(1_000)]
    producer.produce(name, b"headers", headers=headers, timestamp=DAY_MS)
    assert producer.flush(60) == 0
    return name


def test_edge_values_are_read_archived_and_proven_in_any_time_zone(
    spark, broker, edge_topic, warehouse, table, read
):
    run_archive(ArchiveConfig(broker, edge_topic, warehouse.folder, table), spark=spark)
    away = spark.newSession()
    away.conf.set("spark.sql.session.timeZone", "America/New_York")
    for session in (spark, away):
        archived = session.table(f"headrace.{table}")
        frame = session.read.format("headrace").option("bootstrap.servers", broker)
        for rows in (archived, frame.option("subscribe", edge_topic).load()):
            found = rows.orderBy("offset").selectExpr(
                "unix_millis(timestamp) AS ms", "length(value) AS size", "headers"
            )
            *years, large, last = found.collect()
            assert [row.ms for row in years] == list(YEARS_MS.values())
            assert (large.size, last.ms) == (LARGE, DAY_MS)
            assert [(h.key, bytes(h.value)) for h in last.headers] == [
                (f"h{number % 7}", b"%d" % number) for number in range(1_000)
            ]
        assert archived.where("timestamp < TIMESTAMP '1970-01-01 00:00:00Z'").count() == 3
    report = run_reconcile(ReconcileConfig(broker, edge_topic, table), spark=spark)
    assert report.problems == []


def test_rows_that_the_sink_cannot_write_are_refused_with_the_setting_to_change(
    spark, broker, edge_topic, topic, read
):
    topic = f"{topic}-any-time"
    create_topic(broker, topic, 3, {
        "message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1",
    })  # fmt: skip

    def write(frame, **options):
        given = {"bootstrap.servers": broker, "topic": topic, **options}
        frame.select("value", "headers", "timestamp").write.format("headrace").options(
            **given
        ).mode("append").save()

    rows = read(edge_topic)
    with pytest.raises(Exception, match="before 1970"):
        write(rows.where("offset < 3"))
    with pytest.raises(Exception, match=r"kafka\.message\.max\.bytes"):
        write(rows.where("key IS NOT NULL"))
    assert read(topic).isEmpty()
    write(rows.where("offset IN (3, 4) OR value = cast('headers' AS binary)"))
    written = read(topic).selectExpr("unix_millis(timestamp) AS ms", "size(headers) AS n")
    assert sorted(map(tuple, written.collect())) == [
        (DAY_MS, 1_001), *((YEARS_MS[year], 1) for year in (2263, 9999)),
    ]  # fmt: skip


def test_a_range_cannot_begin_before_1970(read, edge_topic):
    with pytest.raises(Exception, match=r"(?i)startingTimestamp"):
        read(edge_topic, startingTimestamp="-1").collect()
