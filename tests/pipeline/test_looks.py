"""Backlog, quality, traces and search against answers computed in plain Python."""

import json
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from tests.waiting import wait_until

from headrace.pipeline import publishing
from headrace.pipeline.catalog import TableName
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid, TableMoved
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.backlog import (
    BacklogConfig,
    Sample,
    run_backlog,
    store_samples,
    stored_samples,
)
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.jobs.quality import (
    VIOLATION_COLUMNS,
    Expectations,
    check_quality,
    parse_expectations,
    store_violations,
)
from headrace.pipeline.jobs.search import Query, documents, search
from headrace.pipeline.jobs.traces import (
    TraceConfig,
    group_events,
    sampled_positions,
    store_events,
    stored_events,
    summarize,
)
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    read_table,
    read_window,
    resolve_window,
)
from headrace.pipeline.publishing import replace_rows

START_MS = 1_700_000_040_000  # a full minute


def publish(broker, topic, records):
    """Write (partition, key, value, timestamp, headers)."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for partition, key, value, at_ms, headers in records:
        producer.produce(topic, value, key, partition, timestamp=at_ms, headers=headers)
    assert producer.flush(60) == 0


@pytest.fixture
def window_of(broker):
    def resolved(*topics):
        return resolve_window(Connection(broker).cluster, topics, WHOLE_LOG)

    return resolved


@pytest.fixture
def records_of(broker, spark, window_of):
    def frame(*topics):
        return read_window(spark, Connection(broker), window_of(*topics))

    return frame


def test_a_backlog_has_the_keys_and_arrivals_that_a_count_finds(broker, topic, spark, table):
    chance = random.Random(3)
    sent = [
        (n % 3, b"hot" if chance.random() < 0.6 else b"key-%d" % (n % 9), b"x" * (n % 5),
         START_MS + chance.randrange(600_000), None)
        for n in range(900)
    ]  # fmt: skip
    publish(broker, topic, sent)
    committed = {topic: {"0": 100, "1": 250}}
    ends = {topic: {"0": 300, "1": 300, "2": 300}}
    before = Sample(
        START_MS + 600_000, {topic: {"0": 40, "1": 250}}, {topic: dict.fromkeys("012", 280)}
    )
    now = Sample(START_MS + 610_000, committed, ends)
    config = BacklogConfig(Connection(broker), topic, "workers", (before, now), hot_keys=3)
    found = run_backlog(config, spark=spark)
    unread = [
        one for p, first in ((0, 100), (1, 250), (2, 0))
        for one in [s for s in sent if s[0] == p][first:]
    ]  # fmt: skip
    assert found["lag"] == len(unread) == 550
    counts = Counter(key.decode() for _, key, *_ in unread)
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
    assert [(one["key"], one["records"]) for one in found["hot_keys"]] == best
    buckets = Counter(at // 60_000 * 60_000 for *_, at, _ in sent)
    assert {begin: count for begin, count, _ in found["arrivals"]} == buckets
    assert sum(size for *_, size in found["arrivals"]) == sum(
        len(value) for _, _, value, *_ in sent
    )
    assert [one["oldest_ms"] for one in found["partitions"]] == [
        [s for s in sent if s[0] == p][first][3] for p, first in ((0, 100), (1, 250), (2, 0))
    ]
    assert (found["forecast"]["arrival_per_s"], found["forecast"]["drain_per_s"]) == (6.0, 6.0)
    assert found["forecast"]["verdict"] == "never at this rate"
    name = f"headrace.{table}"
    store_samples(config, name, spark=spark)
    assert stored_samples(spark, name, "workers", topic, 0)[-1].lag(topic) == 550
    assert stored_samples(spark, name, "others", topic, 0) == ()
    older = spark.range(4_000).selectExpr(
        f"timestamp_millis({START_MS} + id) AS at", "'workers' AS group_name",
        f"'{topic}' AS topic", "explode(array(0, 1, 2)) AS partition", "0L AS committed",
        "1L AS end",
    )  # fmt: skip
    older.writeTo(name).append()
    found = stored_samples(spark, name, "workers", topic, 0)
    assert [one.lag(topic) for one in found] == [*[3] * 4_000, 840 - 290, 550]


EXPECTED = """
[orders]
columns = "id BIGINT, amount DOUBLE, currency STRING"
required = ["body.id"]
unique = ["body.id"]
fresh_within_s = 900
[orders.ranges]
"body.amount" = [0, 1000]
[orders.checks]
"known currency" = "body.currency IN ('EUR', 'USD')"
"has a key" = "key IS NOT NULL"
"""


def test_violations_are_those_that_were_planted(broker, topic, spark, table, window_of, records_of):
    good = {"id": 0, "amount": 10.0, "currency": "EUR"}
    sent, planted = [], Counter()
    for n in range(200):
        body, key = good | {"id": n}, b"k"
        if n % 20 == 3:
            body["amount"] = -1 if n % 40 == 3 else 1001
            planted["range: body.amount"] += 1
        if n % 25 == 4:
            body["id"] = n - 1
            planted["unique: body.id"] += 1
        if n % 50 == 6:
            body["id"] = None
            planted["required: body.id"] += 1
        if n % 40 == 8:
            body["currency"] = "XYZ"
            planted["known currency"] += 1
        value = json.dumps(body).encode()
        if n % 50 == 9:
            value = b'{"id": "not a number"}' if n == 9 else b"\xff\xfenot JSON"
            planted["schema"] += 1
        if n % 100 == 11:
            key = None
            planted["has a key"] += 1
        sent.append((0, key, value, START_MS + n, None))
    sent.append((1, b"tombstone", None, START_MS, None))
    publish(broker, topic, sent)
    (expected,) = parse_expectations(EXPECTED).values()
    window = window_of(topic)
    report = check_quality(records_of(topic), topic, expected, window, START_MS + 800_000)
    planted["has a key"] += 0
    assert +Counter(report.counts) == planted
    assert (report.checked, report.is_met) == (201, False)
    assert report.samples["schema"][0]["offset"] == 9
    stale = check_quality(records_of(topic), topic, expected, window, START_MS + 2_000_000)
    assert stale.counts["fresh"] == 1
    part = window._replace(end={topic: {"0": 120, "1": 1}})
    some = check_quality(
        read_window(spark, Connection(broker), part), topic, expected, part, START_MS + 800_000
    )
    for one in (some, report, report):  # a repeated run replaces its rows, also if it sees more
        store_violations(one, f"headrace.{table}", spark=spark)
        spark.sql(
            f"CALL headrace.system.rewrite_data_files(table => 'headrace.{table}',"
            " options => map('rewrite-all', 'true'))"
        )
    stored = Counter(row.expectation for row in spark.table(f"headrace.{table}").collect())
    assert stored == planted


def kept(spark, table):
    """The rows of a table of violations, and the names of the table's branches."""
    rows = Counter(
        (row.expectations, row.offset) for row in spark.table(f"headrace.{table}").collect()
    )
    return rows, [row.name for row in spark.table(f"headrace.{table}.refs").collect()]


def test_expectations_of_two_names_keep_their_violations_in_one_table(
    broker, topic, spark, table, window_of, records_of
):
    publish(broker, topic, [(0, b"k", b"v", START_MS + n, None) for n in range(3)])
    window = window_of(topic)
    before = f"{VIOLATION_COLUMNS}, window string"
    spark.sql("CREATE NAMESPACE IF NOT EXISTS headrace.headrace")
    spark.sql(f"CREATE TABLE headrace.{table} ({before}) USING iceberg")
    spark.sql(f"INSERT INTO headrace.{table} VALUES ('{topic}', 0, 1, NULL, 'no', '', 'older')")
    for name, kept_of in (("a", 3), ("b", 6), ("a", 6)):
        (expected,) = parse_expectations("[t]\nchecks = {no = 'false'}", name).values()
        report = check_quality(records_of(topic), topic, expected, window, START_MS)
        store_violations(report, f"headrace.{table}", spark=spark)
        assert spark.table(f"headrace.{table}").count() == kept_of
    rows, branches = kept(spark, table)
    assert rows == Counter((name, offset) for name in "ab" for offset in range(3))
    assert branches == ["main"]


def test_rows_whose_replacement_fails_stay(spark, table):
    name = TableName.parse(f"headrace.{table}")
    columns = "offset bigint, expectations string"
    rows = spark.range(3).selectExpr("id AS offset", "'a' AS expectations")
    replace_rows(rows, name, columns, "true", spark=spark)
    late = rows.selectExpr(
        "CAST(raise_error('a broker is away') AS bigint) AS offset", "'b' AS expectations"
    )
    with pytest.raises(Exception, match="a broker is away"):
        replace_rows(late, name, columns, "true", spark=spark)
    assert kept(spark, table) == (Counter(("a", n) for n in range(3)), ["main"])


def test_replacements_at_once_leave_the_rows_of_one(spark, table, monkeypatch):
    name = TableName.parse(f"headrace.{table}")
    columns = "offset bigint, expectations string"
    rows = spark.range(3).selectExpr("id AS offset", "'a' AS expectations")
    first, others = publishing._set_current, ["a", "b"]

    def overtaken(*arguments):
        if others:
            other = rows.selectExpr("offset", f"'{others.pop()}' AS expectations")
            replace_rows(other, name, columns, "expectations = 'a'", spark=spark)
        return first(*arguments)

    monkeypatch.setattr(publishing, "_set_current", overtaken)
    replace_rows(rows, name, columns, "expectations = 'a'", spark=spark)
    assert kept(spark, table) == (Counter((k, n) for k in "ab" for n in range(3)), ["main"])
    monkeypatch.setattr(publishing, "_set_current", lambda *_: False)
    with pytest.raises(TableMoved, match="Nothing was changed"):
        replace_rows(rows, name, columns, "true", spark=spark)
    assert kept(spark, table) == (Counter((k, n) for k in "ab" for n in range(3)), ["main"])


def test_branches_of_killed_writers_are_removed_after_a_day(spark, warehouse, table):
    name = TableName.parse(f"headrace.{table}")
    rows = spark.range(1).selectExpr("id AS offset", "'a' AS expectations")
    columns = "offset bigint, expectations string"
    replace_rows(rows, name, columns, "true", spark=spark)
    now_ms = time.time_ns() // 1_000_000

    def leave():
        """What two writers leave that were killed, a while ago and just now, and a person."""
        old, young = (f"headrace_{now_ms - age}_{uuid4().hex}" for age in (90_000_000, 60_000))
        for one in (old, young, "mine"):
            spark.sql(f"ALTER TABLE {name.in_spark} CREATE OR REPLACE BRANCH `{one}`")
        return ["main", "mine", young]

    def branches():
        return sorted(kept(spark, table)[1], key=lambda one: (len(one), one))

    left = leave()
    replace_rows(rows, name, columns, "true", spark=spark)
    assert branches() == left
    spark.sql(f"ALTER TABLE {name.in_spark} DROP BRANCH `{left[-1]}`")
    left = leave()
    run_maintain(MaintainConfig(warehouse, name.in_spark, orphan_age_hours=None), spark=spark)
    assert branches() == left


def test_a_writer_that_writes_for_days_keeps_its_branch(spark, table, monkeypatch):
    """Its time is passed by a clock that is set on; others remove branches meanwhile."""
    name = TableName.parse(f"headrace.{table}")
    rows = spark.range(1).selectExpr("id AS offset", "'a' AS expectations")
    replace_rows(rows, name, "offset bigint, expectations string", "true", spark=spark)
    now_ms, hour_ms = time.time_ns() // 1_000_000, 3_600_000
    monkeypatch.setattr(publishing, "_RENEWED_EVERY_S", 0.05)

    def limit_of(branch):
        (found,) = spark.sql(
            f"SELECT max_reference_age_in_ms FROM {name.in_spark}.refs WHERE name = '{branch}'"
        ).collect()
        return found[0]

    with publishing._branch(spark, name) as (branch, _):
        for passed in (20 * hour_ms, 40 * hour_ms):
            monkeypatch.setattr(publishing, "_wall_ms", lambda: now_ms + passed)  # noqa: B023
            wait_until(lambda: limit_of(branch) >= passed + 24 * hour_ms)  # noqa: B023
            assert not publishing.drop_stale_branches(spark, name, now_ms + passed + 23 * hour_ms)
        monkeypatch.setattr(publishing, "_RENEWED_EVERY_S", 3_600.0)  # as if it were killed
        wait_until(lambda: publishing.drop_stale_branches(spark, name, now_ms + 65 * hour_ms))
    assert kept(spark, table) == (Counter({("a", 0): 1}), ["main"])


def test_a_branch_is_made_though_another_writer_was_first(spark, table, monkeypatch):
    name = TableName.parse(f"headrace.{table}")
    rows = spark.range(1).selectExpr("id AS offset", "'a' AS expectations")
    replace_rows(rows, name, "offset bigint, expectations string", "true", spark=spark)
    load, loaded = publishing.java_table, []

    def late(*arguments):
        loaded.append(load(*arguments))
        if len(loaded) != 2:  # the first is looked through for stale branches
            return loaded[-1]
        found = Mock(currentSnapshot=loaded[-1].currentSnapshot)
        change = found.manageSnapshots.return_value.createBranch.return_value.setMaxRefAgeMs
        change.return_value.commit.side_effect = RuntimeError("CommitFailedException: changed")
        return found

    monkeypatch.setattr(publishing, "java_table", late)
    with publishing._branch(spark, name) as (branch, since):
        there = load(spark, name)
        assert (since, branch in there.refs()) == (there.currentSnapshot().snapshotId(), True)
    assert kept(spark, table) == (Counter([("a", 0)]), ["main"])


def test_rows_are_replaced_though_their_branch_cannot_be_removed(spark, table, monkeypatch, caplog):
    name = TableName.parse(f"headrace.{table}")
    first, columns = publishing._set_current, "offset bigint, expectations string"
    rows = spark.range(3).selectExpr("id AS offset", "'a' AS expectations")

    def then_away(*arguments):
        done = first(*arguments)
        monkeypatch.setattr(publishing, "java_table", lambda *_: 1 / 0)
        return done

    monkeypatch.setattr(publishing, "_set_current", then_away)
    replace_rows(rows, name, columns, "true", spark=spark)
    assert [row.name[:9] for row in spark.table(f"headrace.{table}.refs").collect()] != ["main"]
    assert kept(spark, table)[0] == Counter(("a", n) for n in range(3))
    assert "could not be removed" in caplog.text


def test_good_records_violate_nothing(broker, topic, spark, window_of, records_of):
    publish(broker, topic, [(0, b"k", b"v", START_MS, None)])
    window = window_of(topic)
    expected = Expectations(checks={"has a key": "key IS NOT NULL"}, unique=("key",))
    assert check_quality(records_of(topic), topic, expected, window, START_MS).is_met
    assert check_quality(records_of(topic), topic, Expectations(), window, START_MS).is_met


@pytest.mark.parametrize(
    "text",
    ["[t]\nwhat = 1", "[t]\nranges = {a = [1]}", "t = 1", "[t", "[t]\nranges = {a = ['x', 1]}"],
)
def test_expectations_that_cannot_be_read_are_refused(text):
    with pytest.raises(OptionInvalid):
        parse_expectations(text)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("[t]\nrequired = 'body.id'", r"required of t must be a list"),
        ("[t]\nunique = 'body.id'", r"unique of t must be a list"),
        ("[t]\ncolumns = ['id BIGINT']", r"columns of t must be a text"),
        ("[t]\nchecks = 'key IS NOT NULL'", r"checks of t must be a table"),
        ("[t]\nranges = {a = 5}", r"range 'a' of t must be \[LEAST, MOST\], not 5"),
        ("[t]\nfresh_within_s = '15m'", r"a number of seconds, not '15m'"),
    ],
)
def test_an_expectation_of_another_shape_is_refused_with_the_one_that_it_has(text, shape):
    with pytest.raises(OptionInvalid, match=shape):
        parse_expectations(text)


def test_latencies_are_those_of_the_messages(broker, topic, spark, table, window_of, records_of):
    results = f"{topic}-results"
    create_topic(broker, results, 1, {"retention.ms": "-1"})
    chance = random.Random(8)
    delays = {}
    first, second = [], []
    for n in range(200):
        delays[n] = chance.randrange(1, 5_000) if n != 77 else 90_000
        name = [("headrace-message-id", b"m-%d" % n)]
        at = START_MS + n * 30_000
        first.append((n % 3, b"k", b"v", at, name))
        second.append((0, b"k", b"v", at + delays[n], name))
    publish(broker, topic, first)
    chance.shuffle(second)
    publish(broker, results, second)
    config = TraceConfig(topic, outliers=3)
    events = stored_events(records_of(topic, results), config)
    sample = sampled_positions(records_of(topic), config, 50)
    assert len(sample) == 50
    assert sample == sampled_positions(records_of(topic), config, 50)
    answer = {"events": [
        {"event": "acknowledged", "topic": topic, "partition": 0, "offset": 0, "group": "workers",
         "attempt": 2, "at_ms": START_MS + 1_234},
        {"event": "now", "topic": topic, "partition": 0, "offset": 0, "group": "workers"},
        {"event": "stored", "topic": topic, "partition": 0, "offset": 0, "at_ms": START_MS},
    ]}  # fmt: skip
    done = group_events(spark, [("m-0", answer)])
    found = summarize(events.unionByName(done), config)
    assert found["slow"][0]["message"] == "m-77"
    assert [one["latency_ms"] for one in found["slow"]] == sorted(delays.values())[:-4:-1]
    acknowledged = [one for one in found["latencies"] if one["group"] == "workers"]
    assert [(one["count"], one["slowest_ms"]) for one in acknowledged] == [(1, 1_234)]
    by_hour = {}
    for n, delay in delays.items():
        by_hour.setdefault((START_MS + n * 30_000) // 3_600_000 * 3_600_000, []).append(delay)
    stored = {one["hour_ms"]: one for one in found["latencies"] if one["topic"] == results}
    assert stored.keys() == by_hour.keys()
    for hour, all_ in by_hour.items():
        all_.sort()
        assert stored[hour]["count"] == len(all_)
        place = 0.5 * (len(all_) - 1)
        low, part = int(place), place % 1
        high = all_[min(low + 1, len(all_) - 1)]
        assert stored[hour]["p50_ms"] == pytest.approx(all_[low] + part * (high - all_[low]))
        assert stored[hour]["slowest_ms"] == all_[-1]
    name = TableName.parse(f"headrace.{table}")
    for _ in range(2):
        store_events(events, done, name, window_of(topic, results), spark=spark)
    assert spark.table(name.in_spark).count() == 401


@pytest.fixture
def traced(broker, topic, spark, table, window_of):
    """Keep the events of a range of 90 records, with what the brokers say of the offsets named; a
    function that also returns what is kept."""
    publish(broker, topic, [(n % 3, b"k", b"v", START_MS + n, None) for n in range(90)])
    name, config, whole = TableName.parse(f"headrace.{table}"), TraceConfig(topic), window_of(topic)

    def run(start, end, asked, session=spark):
        window = whole._replace(
            start={topic: dict.fromkeys("012", start)}, end={topic: dict.fromkeys("012", end)}
        )
        records = read_window(session, Connection(broker), window)
        done = {"event": "acknowledged", "topic": topic, "partition": 0, "group": "workers",
                "attempt": 1, "at_ms": START_MS + 1_000}  # fmt: skip
        answers = [(f"{topic}-0:{n}", {"events": [{**done, "offset": n}]}) for n in asked]
        events = stored_events(records, config), group_events(session, answers)
        store_events(*events, name, window, spark=session)

    def kept_events():
        rows = spark.table(name.in_spark).collect()
        stored = Counter((row.partition, row.offset) for row in rows if row.event == "stored")
        return stored, Counter(row.offset for row in rows if row.event == "acknowledged")

    return run, kept_events


def test_events_of_ranges_that_overlap_are_kept_once(traced):
    """As of a trace of the last day that runs each hour; each run asks for other messages."""
    run, kept_events = traced
    for start, end in ((0, 20), (10, 30), (0, 30), (10, 30), (5, 6)):
        run(start, end, {start, end - 1})
    stored, acknowledged = kept_events()
    assert stored == Counter((partition, n) for partition in range(3) for n in range(30))
    assert acknowledged == Counter([0, 19, 10, 29, 5])


def test_an_event_that_brokers_have_forgotten_stays(traced):
    run, kept_events = traced
    run(0, 20, {3})
    run(0, 30, {3, 25})
    run(0, 20, {})
    assert kept_events()[1] == Counter([3, 25])


def test_traces_at_once_keep_each_event_once(traced, spark, monkeypatch):
    run, kept_events = traced
    run(0, 1, {0})
    first, staged = publishing._set_current, Barrier(2)
    waits = [staged.wait] * 2

    def together(*arguments):
        """Both runs have written, each beside the table as it was, before either is the first."""
        if waits:
            waits.pop()(300)
        return first(*arguments)

    monkeypatch.setattr(publishing, "_set_current", together)
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run, start, end, {0, 15, end - 1}, spark.newSession())
            for start, end in ((0, 20), (10, 30))
        ]
        for one in runs:
            one.result()
    stored, acknowledged = kept_events()
    assert stored == Counter((partition, n) for partition in range(3) for n in range(30))
    assert acknowledged == Counter([0, 15, 19, 29])


def test_a_search_finds_each_message_once_in_the_log_and_in_the_table(
    broker, topic, spark, warehouse, table, records_of
):
    sent = [
        (n % 3, b"customer-%d" % (n % 4), b'{"total": %d}' % n, START_MS + n * 1000,
         [("headrace-message-id", b"id-%d" % n), ("region", b"eu" if n % 2 else b"us"),
          ("headrace-keys", b"red blue" if n % 5 == 0 else b"green")])
        for n in range(60)
    ]  # fmt: skip
    publish(broker, topic, sent[:40])
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    publish(broker, topic, sent[40:])
    archive = read_table(spark, TableName.parse(f"headrace.{table}")).frame
    queries = {
        Query(topic, message_id="id-17"): lambda n: n == 17,
        Query(topic, key="customer-2"): lambda n: n % 4 == 2,
        Query(topic, key="blue", since_ms=START_MS + 30_000): lambda n: n % 5 == 0 and n >= 30,
        Query(topic, header="region=eu", partition=1): lambda n: n % 2 == 1 and n % 3 == 1,
        Query(topic, where="get_json_object(cast(value AS string), '$.total') > 50"):
            lambda n: n > 50,
        Query(topic, until_ms=START_MS + 5_000): lambda n: n < 5,
        Query(f"{topic}' OR '1'='1"): lambda n: False,
    }  # fmt: skip
    for query, is_wanted in queries.items():
        found = documents(search(query, archive, records_of(topic)), 1_000)
        totals = Counter(json.loads(one["value"])["total"] for one in found)
        assert totals == Counter(n for n in range(60) if is_wanted(n)), query
