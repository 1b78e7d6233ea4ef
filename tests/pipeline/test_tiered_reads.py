"""Records in object storage, read there by the source's tasks instead of from brokers."""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.integration.broker import Broker
from tests.integration.clients import TIMEOUT_S, create_topic
from tests.pipeline.test_job_commands import headrace
from tests.s3_server import S3Server
from tests.waiting import wait_until

from headrace.pipeline import object_list
from headrace.pipeline.errors import OptionInvalid, RecordsLost, StoreUnavailable
from headrace.pipeline.journal_pages import WebConnection
from headrace.pipeline.object_list import ASK_AGAIN_S
from headrace.pipeline.options import parse_source
from headrace.pipeline.position import StreamPosition
from headrace.pipeline.source import HeadraceReader
from headrace.pipeline.stream_reader import HeadraceStreamReader
from headrace.pipeline.tasks import object_lists

SLOW_S = 300
COUNT = 4_000
SETTINGS = {
    "segment_bytes": 30_000, "retention_ms": -1, "remote_storage_enable": "true",
    "local_retention_bytes": "0",
}  # fmt: skip


class Lake:
    """A broker with a tiered topic, and reads of it."""

    def __init__(self, folder: Any, url: str, *options: str) -> None:
        self.broker = Broker(
            folder / "broker", "--tiering-interval-ms", "200", "--objects", url, *options
        )
        self.url = url
        self.sent = 0

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {"bootstrap.servers": self.broker.kafka, "subscribe": topic, **more}

    def tiered(self, topic: str, **more: str) -> dict[str, str]:
        return self.options(topic, objects=self.url, http=self.broker.http, **more)

    def figure(self, name: str) -> float:
        _, body = self.broker.get("/metrics")
        lines = [line for line in body.splitlines() if line.startswith(f"{name} ")]
        return float(lines[0].split()[1]) if lines else 0.0

    def ledgers(self, topic: str) -> list[dict[str, Any]]:
        status, body = self.broker.get(f"/v1/topics/{topic}/ledgers?partition=0")
        assert status == 200, body
        found: list[dict[str, Any]] = json.loads(body)["partitions"][0]["ledgers"]
        return found

    def wait_offloaded(self, topic: str) -> int:
        """Until all but the open ledger are in object storage; the offset where that one begins."""
        wait_until(lambda: all(one["is_offloaded"] for one in self.ledgers(topic)[:-1]), SLOW_S)
        found = self.ledgers(topic)
        assert len(found) > 4
        return int(found[-1]["base_offset"])

    def stored(self, topic: str) -> tuple[int, list[dict[str, Any]], dict[str, str]]:
        """Until all but the open ledger are in object storage: the offset where that one begins,
        all rows as brokers return them, and the options to read those before that offset."""
        end = self.wait_offloaded(topic)
        expected = rows(self.options(topic))
        return end, expected, {"endingOffsets": json.dumps({topic: {"0": end}})}

    def send(self, topic: str, count: int = COUNT, codec: str = "none") -> None:
        rng = Random(self.sent)
        producer = Producer({
            "bootstrap.servers": self.broker.kafka, "batch.num.messages": 9,
            "compression.type": codec,
        })  # fmt: skip
        for number in range(self.sent, self.sent + count):
            value = rng.choice([None, b"", b"%d" % number + rng.randbytes(rng.choice([10, 300]))])
            headers = rng.choice([None, [("a", b"1"), ("a", None)]])
            producer.produce(topic, value, rng.choice([None, b"k%d" % number]), 0, headers=headers)
            if number % 50 == 49:  # in bursts, so that ledgers are closed on the way
                assert producer.flush(TIMEOUT_S) == 0
        assert producer.flush(TIMEOUT_S) == 0
        self.sent += count


def rows(options: dict[str, str]) -> list[dict[str, Any]]:
    """What the tasks of a bounded read return, as Spark's workers would execute them."""
    reader = HeadraceReader(parse_source(options))
    return rows_of(reader, reader.partitions())


def rows_of(reader: Any, tasks: Any) -> list[dict[str, Any]]:
    return [row for task in tasks for part in reader.read(task) for row in part.to_pylist()]


@pytest.fixture
def lake(tmp_path):
    made = Lake(tmp_path, f"file://{tmp_path / 'objects'}")
    made.broker.start()
    create_topic(made.broker.kafka, "old", **SETTINGS)
    yield made
    made.broker.kill()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tasks_return_the_same_records_and_brokers_send_none_of_those_in_object_storage(
    lake, codec
):
    lake.send("old", codec=codec)
    end, expected, old = lake.stored("old")
    assert [row["offset"] for row in expected] == [*range(COUNT)]
    names = "headrace_fetch_bytes_total", "headrace_tier_cold_read_bytes_total"
    before = [lake.figure(name) for name in names]
    assert rows(lake.tiered("old", **old)) == expected[:end]
    assert [lake.figure(name) for name in names] == before
    assert rows(lake.tiered("old")) == expected
    assert 0 < lake.figure(names[0]) - before[0] < 200_000  # the open ledger
    for cut in ({"maxRecordsPerTask": "77"}, {"minPartitions": "13"}, {"batchRows": "10"}):
        assert rows(lake.tiered("old", **cut)) == expected
    rng = Random(codec)
    for _ in range(10):
        first, last = sorted(rng.sample(range(COUNT + 1), 2))
        bounds = {"startingOffsets": first, "endingOffsets": last}
        part = {name: json.dumps({"old": {"0": one}}) for name, one in bounds.items()}
        assert rows(lake.tiered("old", **part)) == expected[first:last]


def test_transactions_end_as_brokers_say(lake):
    """Committed, aborted and open ones, within a ledger and across many."""
    names = ("commits", "aborts", "long-aborts", "long-commits")
    made = {
        name: Producer({"bootstrap.servers": lake.broker.kafka, "transactional.id": name})
        for name in names
    }
    for producer in made.values():
        producer.init_transactions()
    for name in names[2:]:
        made[name].begin_transaction()
    for turn in range(40):
        for name in names[:2]:
            made[name].begin_transaction()
        for name, producer in made.items():
            for number in range(10):
                producer.produce("old", b"%s-%d-%d" % (name.encode(), turn, number) + b"x" * 150)
            assert producer.flush(TIMEOUT_S) == 0
        made["commits"].commit_transaction(TIMEOUT_S)
        made["aborts"].abort_transaction(TIMEOUT_S)
        if turn == 30:  # both are open at the end of many ledgers
            made["long-aborts"].abort_transaction(TIMEOUT_S)
            made["long-aborts"].begin_transaction()
            made["long-commits"].commit_transaction(TIMEOUT_S)
            made["long-commits"].begin_transaction()
    lake.wait_offloaded("old")
    uncommitted = {"kafka.isolation.level": "read_uncommitted"}
    for more in ({}, uncommitted):
        expected = rows(lake.options("old", **more))
        assert expected
        assert rows(lake.tiered("old", **more)) == expected
        assert rows(lake.tiered("old", maxRecordsPerTask="13", **more)) == expected
    for producer in made.values():
        producer.purge()


def test_what_is_missing_or_damaged_comes_from_brokers(lake, tmp_path, monkeypatch, caplog):
    create_topic(lake.broker.kafka, "kept", **SETTINGS | {"local_retention_bytes": "-1"})
    lake.send("kept")
    lake.wait_offloaded("kept")
    expected = rows(lake.options("kept"))
    first, *others = sorted((tmp_path / "objects").rglob("*.ledger"), key=lambda path: path.name)
    reader = HeadraceReader(parse_source(lake.tiered("kept", maxRecordsPerTask="500")))
    tasks = reader.partitions()
    gone, damaged, exchanged, shorter, *_ = others
    exchanged.write_bytes(gone.read_bytes())
    gone.unlink()
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 1
    damaged.write_bytes(data)
    shorter.write_bytes(shorter.read_bytes()[:-1])
    found = rows_of(reader, tasks)
    assert found == expected
    assert "are read from brokers instead of ledger" in caplog.text
    # A list that is wrong in any way costs brokers' work, never a row.
    listed = object_list._listed
    changes = [
        lambda one: one._replace(ledger=one.ledger + 1),
        lambda one: one._replace(end_offset=one.end_offset - 1),
        lambda one: one._replace(base_offset=one.base_offset + 1),
        lambda one: one._replace(leader_epoch=one.leader_epoch + 1),
        lambda one: one._replace(size_bytes=one.size_bytes + 1),
        lambda one: one._replace(is_tabled=True),
        lambda one: one._replace(prefix="another-cluster"),
    ]
    for change in changes:
        monkeypatch.setattr(object_list, "_listed", lambda *given, c=change: map(c, listed(*given)))
        monkeypatch.setattr(object_list, "_found_prefix", lambda *given: given[-1].prefix)
        assert rows(lake.tiered("kept")) == expected
    assert first.exists()


def test_deleted_records_are_not_read_from_objects(lake):
    lake.send("old")
    lake.wait_offloaded("old")
    expected = rows(lake.options("old"))
    strict = HeadraceReader(parse_source(lake.tiered("old")))
    lenient = HeadraceReader(parse_source(lake.tiered("old", failOnDataLoss="false")))
    planned = strict.partitions(), lenient.partitions()
    inside = lake.ledgers("old")[2]["base_offset"] + 3
    admin = AdminClient({"bootstrap.servers": lake.broker.kafka})
    (done,) = admin.delete_records([TopicPartition("old", 0, inside)]).values()
    done.result(TIMEOUT_S)
    with pytest.raises(RecordsLost):
        rows_of(strict, planned[0])
    found = rows_of(lenient, planned[1])
    assert found == expected[inside:]
    assert rows(lake.tiered("old")) == expected[inside:]


def test_options_that_cannot_work_say_so_when_a_read_is_planned(lake, tmp_path):
    lake.send("old")
    lake.wait_offloaded("old")
    with pytest.raises(OptionInvalid, match="needs the option http"):
        parse_source(lake.options("old", objects=lake.url))
    other = lake.tiered("old") | {"objects": f"file://{tmp_path / 'elsewhere'}"}
    with pytest.raises(OptionInvalid, match="does not have ledger"):
        rows(other)
    with pytest.raises(OptionInvalid, match="unknown kind of object storage"):
        rows(lake.tiered("old") | {"objects": "ftp://x/y"})
    with pytest.raises(OptionInvalid, match="without the client library"):
        rows(lake.tiered("old", **{"kafka.client.rack": "a"}))


def test_a_stream_is_exact_over_replays_and_other_cuts(lake):
    """Planning is tried without Spark: what a restart calls, with other options each time."""
    lake.send("old")
    lake.wait_offloaded("old")
    expected = rows(lake.options("old"))
    rng, found, start = Random(7), [], None
    while len(found) < COUNT:
        options = lake.tiered(
            "old", maxOffsetsPerTrigger=str(rng.randrange(100, 900)),
            maxRecordsPerTask=rng.choice(["40", "1000"]),
        )  # fmt: skip
        options = options if rng.random() < 0.8 else lake.options("old")
        reader = HeadraceStreamReader(parse_source(options))
        if start is not None:
            assert reader.partitions(start, start) == []
        end = reader.latestOffset()
        start = reader.initialOffset() if start is None else start
        once = rows_of(reader, reader.partitions(start, end))
        again = HeadraceStreamReader(parse_source(lake.tiered("old", minPartitions="9")))
        assert rows_of(again, again.partitions(start, end)) == once
        found += once
        start = end
    assert found == expected


def test_a_stream_asks_for_lists_only_where_records_may_be_in_them(lake):
    lake.send("old")
    lake.wait_offloaded("old")
    clock = [0.0]
    reader = HeadraceStreamReader(parse_source(lake.tiered("old")))
    last = StreamPosition.from_stored(reader.latestOffset())
    reader._lists = object_lists(reader.options, reader._asked())
    reader._lists._now_s = lambda: clock[0]

    def requests():
        labels = [f'operation="{name}",status="200"' for name in ("listObjects", "getCluster")]
        return [lake.figure(f"headrace_http_requests_total{{{one}}}") for one in labels]

    def batch(first, end):
        """The tasks of [first, end) of the partition, and the requests that their plan took."""
        before = requests()
        ends = [
            last._replace(offsets={"old": {"0": one}}, begins={}).stored() for one in (first, end)
        ]
        planned = reader.partitions(*ends)
        after = requests()
        return planned, [new - old for new, old in zip(after, before, strict=True)]

    ends = [one["base_offset"] for one in lake.ledgers("old")]
    for at, (first, end) in enumerate(pairwise(ends)):  # each batch ends with a ledger
        (task,), asked = batch(first, end)
        assert (len(task.places), asked) == (1, [1, at == 0])
    position = ends[-1]
    for number in range(5):
        lake.send("old", 10)
        planned, asked = batch(position, lake.sent)
        assert [row["offset"] for row in rows_of(reader, planned)] == [*range(position, lake.sent)]
        assert asked == [float(number == 0), 0]
        position = lake.sent
    clock[0] += ASK_AGAIN_S
    lake.send("old", 10)
    assert batch(position, lake.sent)[1] == [1, 0]


def test_brokers_are_asked_where_one_knows_no_lists(lake, monkeypatch, caplog):
    """As brokers of the version before, in a rolling upgrade."""
    lake.send("old")
    lake.wait_offloaded("old")
    unknown = lambda web, topic, partition, _: web._ask(f"/v1/topics/{topic}/lists/{partition}")  # noqa: E731
    monkeypatch.setattr(WebConnection, "objects", unknown)
    assert [row["offset"] for row in rows(lake.tiered("old"))] == [*range(COUNT)]
    assert "Brokers are asked for these records" in caplog.text


def test_jobs_read_what_is_in_object_storage_there(lake, tmp_path):
    lake.send("old")
    lake.wait_offloaded("old")
    given = ["--topic", "old", "--warehouse", str(tmp_path / "lake"), "--objects", lake.url]
    before = lake.figure("headrace_fetch_bytes_total")
    for job in ("archive", "reconcile"):
        done = headrace(lake.broker.kafka, "run", job, *given, "--master", "local[2]")
        assert done.returncode == 0, done.stderr
    assert 0 < lake.figure("headrace_fetch_bytes_total") - before < 200_000  # the open ledger


def test_records_are_read_from_s3(tmp_path, monkeypatch):
    server = S3Server(tmp_path).start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    lake = Lake(tmp_path, server.url)
    lake.broker.start()
    try:
        create_topic(lake.broker.kafka, "old", **SETTINGS)
        lake.send("old")
        end, expected, old = lake.stored("old")
        before = lake.figure("headrace_fetch_bytes_total")
        assert rows(lake.tiered("old", **old)) == expected[:end]
        assert lake.figure("headrace_fetch_bytes_total") == before
        reader = HeadraceReader(parse_source(lake.tiered("old", maxRecordsPerTask="200")))
        tasks = reader.partitions()
        abandoned = reader.read(tasks[0])
        next(abandoned)
        del abandoned  # as by a query with LIMIT, while more is being read ahead
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
        with pytest.raises(StoreUnavailable, match="could not be read from object") as refused:
            rows_of(reader, tasks)
        assert "another" not in str(refused.value)
    finally:
        lake.broker.kill()
        server.stop()


def test_workers_have_objects_of_their_own(tmp_path):
    url = f"file://{tmp_path / 'objects'}"
    tier = "--objects", url, "--tiering-interval-ms", "200"
    broker = Broker.of_workers(tmp_path / "broker", 2, *tier).start()
    try:
        create_topic(broker.kafka, "old", 4, **SETTINGS | {"segment_bytes": 2_000})
        producer = Producer({"bootstrap.servers": broker.kafka})
        for number in range(2_000):
            producer.produce("old", b"%d" % number, partition=number % 4)
            if number % 100 == 99:
                assert producer.flush(TIMEOUT_S) == 0
        given = {"bootstrap.servers": broker.kafka, "subscribe": "old"}
        expected = rows(given)
        stored = given | {"objects": url, "http": broker.http.split(",")[1]}
        reader = HeadraceReader(parse_source(stored))

        def are_stored() -> bool:
            planned = reader.partitions()
            return len(planned) == 4 and all(len(task.places) > 1 for task in planned)

        wait_until(are_stored, SLOW_S)
        prefixes = {place.prefix for task in reader.partitions() for place in task.places}
        assert len(prefixes) == 2
        assert rows(stored) == expected
    finally:
        broker.kill()


def test_a_tenants_client_finds_objects_by_the_cluster_id_that_it_sees(tmp_path):
    """Objects are named by the cluster's own id, which its brokers do not tell it."""
    own = tmp_path / "objects" / "h7UtQ5nGT1e1Gq1pYv4bUg"
    (own / "ledgers").mkdir(parents=True)
    lake = Lake(
        tmp_path,
        f"file://{own.parent}",
        *("--authorizer", "acl", "--tenants", "acme=User:alice"),
        *(
            word
            for name in ("plaintext", "http")
            for word in ("--listener-setting", f"listener.name.{name}.headrace.tenant=acme")
        ),
    )
    lake.broker.start()
    try:
        create_topic(lake.broker.kafka, "old", **SETTINGS)
        lake.send("old")
        end, expected, old = lake.stored("old")
        reader = HeadraceReader(parse_source(lake.tiered("old", **old)))
        tasks = reader.partitions()
        (real,) = {place.prefix for task in tasks for place in task.places}
        assert [*sorted(own.parent.iterdir())] == sorted([own, own.parent / real])
        shown = json.loads(lake.broker.get("/v1/cluster")[1])["cluster_id"]
        listed = lake.broker.get("/v1/topics/old/objects/0")[1]
        assert shown != real
        assert (f'"prefix":"{shown}"' in listed, real in listed) == (True, False)
        assert rows_of(reader, tasks) == expected[:end]
    finally:
        lake.broker.kill()
