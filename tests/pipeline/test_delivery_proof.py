"""A proof of delivery finds exactly what was lost, doubled or left, against a plain count."""

import http.client
import json
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker

from headrace.cli.main import cli
from headrace.dev_cluster.ports import free_ports
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.certificate import verify
from headrace.pipeline.jobs.delivery_proof import (
    DeliveryConfig,
    GroupPosition,
    Sent,
    prove_delivery,
)
from headrace.pipeline.jobs.traces import TraceConfig, stored_events
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Bounds,
    Connection,
    read_window,
    resolve_window,
)
from headrace.pipeline.journal_source import JournalReader, parse_journal
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.tenant_names import OPEN

PARTITIONS = 3
START_MS = 1_700_000_000_000


@pytest.fixture
def topic(broker, topic):
    """A topic that stores named sequences as they come: the broker drops no duplicate."""
    name = f"{topic}-stored"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, name, PARTITIONS, settings)
    return name


def numbered(producer, sequence):
    return [("headrace-producer", producer.encode()), ("headrace-sequence", b"%d" % sequence)]


def publish(broker, topic, sends):
    """Write (producer, sequence or None, partition) in this order."""
    client = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    refused = []
    for number, (producer, sequence, partition) in enumerate(sends):
        headers = None if sequence is None else numbered(producer, sequence)
        client.produce(
            topic, b"value-%d" % number, producer.encode(), partition, headers=headers,
            timestamp=START_MS + number * 1000,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )  # fmt: skip
    assert client.flush(60) == 0
    assert not refused


def commit(broker, topic, group, offsets):
    consumer = Consumer({"bootstrap.servers": broker, "group.id": group})
    parts = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()


@pytest.fixture
def exact(broker, topic, table, warehouse, spark):
    """Two producers of 100 and 50 records, archived and acknowledged completely."""
    sends = [("a", n, n % PARTITIONS) for n in range(100)]
    sends += [("b", n, n % PARTITIONS) for n in range(50)]
    random.Random(5).shuffle(sends)
    publish(broker, topic, sends)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    ends = Counter(partition for *_, partition in sends)
    offsets = {topic: {str(partition): count for partition, count in ends.items()}}
    return DeliveryConfig(
        Connection(broker),
        topic,
        table=table,
        groups=(GroupPosition("workers", offsets),),
        sent={"a": Sent(0, 99), "b": Sent(0, 49)},
    )


def test_complete_delivery_is_proven_and_the_certificate_holds_the_evidence(exact, spark):
    found = prove_delivery(exact, spark=spark)
    assert (found["verdict"], found["problems"], found["not_proven"]) == ("proven", [], [])
    assert [(one["producer"], one["sent"], one["distinct"]) for one in found["producers"]] == [
        ("a", 100, 100),
        ("b", 50, 50),
    ]
    assert found["groups"][0]["acknowledged"] == 150
    assert found["stored"] == found["archived"]["partitions"]
    assert verify(json.loads(json.dumps(found))) == []
    for change in (
        lambda body: body["producers"][0].update(distinct=99),
        lambda body: body["window"]["0"].__setitem__(1, 5),
        lambda body: body.update(topic="other"),
        lambda body: body["stored"]["0"]["fingerprint"].__setitem__(0, 1),
    ):
        body = json.loads(json.dumps(found))
        change(body)
        assert verify(body) != []


def test_without_the_producers_own_count_it_is_not_proven(exact, spark):
    found = prove_delivery(replace(exact, sent=None), spark=spark)
    assert found["verdict"] == "not proven"
    assert found["not_proven"] == [
        f"{name}: what was sent outside sequences 0 to {last}, because the producer's own count was"
        " not given"
        for name, last in (("a", 99), ("b", 49))
    ]


def test_injected_loss_duplicates_and_reorder_are_found_exactly(
    broker, topic, table, warehouse, spark
):
    """Against a count in plain Python; the seed is the test's."""
    chance = random.Random(11)
    sent = {"p1": Sent(0, 299), "p2": Sent(10, 209), "p3": Sent(0, 9)}
    lost = {
        ("p1", 0),
        ("p1", 7),
        ("p1", 8),
        ("p1", 299),
        ("p2", 100),
        *[("p3", n) for n in range(10)],
    }
    doubled = {("p1", 20), ("p2", 30), ("p2", 31)}
    sends = [
        (name, number, chance.randrange(PARTITIONS))
        for name, each in sent.items()
        for number in range(each.first, each.last + 1)
        if (name, number) not in lost
    ]
    sends += [(name, number, chance.randrange(PARTITIONS)) for name, number in doubled]
    sends.append(("p2", 500, 0))  # more than it says it sent
    sends.append(("nobody", None, 1))
    chance.shuffle(sends)
    publish(broker, topic, sends)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    name = f"headrace.{table}"
    spark.sql(f"DELETE FROM {name} WHERE partition = 1 AND offset BETWEEN 5 AND 8")
    spark.sql(f"DELETE FROM {name} WHERE partition = 2 AND offset = 0")
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE partition = 0 AND offset = 3")
    counts = Counter(partition for *_, partition in sends)
    committed = {0: counts[0], 1: counts[1] - 4}
    commit(broker, topic, f"{topic}-readers", committed)
    progress = {topic: {str(partition): offset for partition, offset in committed.items()}}
    config = DeliveryConfig(
        Connection(broker), topic, table=table, sent=sent,
        groups=(GroupPosition("readers", progress),),
    )  # fmt: skip
    found = prove_delivery(config, spark=spark)
    assert found["verdict"] == "failed"
    missing = defaultdict(set)
    for one in found["producers"]:
        for low, high in one["missing_spans"]:
            missing[one["producer"]] |= set(range(low, high + 1))
    assert {(name, number) for name, all_ in missing.items() for number in all_} == lost
    assert {
        (one["producer"], number) for one in found["producers"] for number in one["duplicated"]
    } == doubled
    assert [one["unexpected"] for one in found["producers"]] == [0, 1, 0]
    assert found["unnumbered"] == 1
    assert found["archived"]["missing"] == {"1": [[5, 8]], "2": [[0, 0]]}
    assert found["archived"]["partitions"]["0"]["count"] == counts[0] + 1
    assert found["groups"][0]["unfinished"] == {
        "1": [[counts[1] - 4, counts[1] - 1]],
        "2": [[0, counts[2] - 1]],
    }
    assert found["groups"][0]["acknowledged"] == counts[0] + counts[1] - 4
    assert f"readers: no position on {topic}-2: offsets 0 to {counts[2] - 1}" in found["not_proven"]
    assert verify(json.loads(json.dumps(found))) == []


def test_a_window_by_time_is_the_same_offsets_each_time(broker, topic, spark):
    publish(broker, topic, [("a", n, 0) for n in range(60)])
    bounds = Bounds(since_ms=START_MS + 10_000, until_ms=START_MS + 40_000)
    config = DeliveryConfig(
        Connection(broker), topic, bounds, sent={"a": Sent(10, 39)}, bucket_ms=10_000
    )
    first = prove_delivery(config, spark=spark)
    assert first["window"]["0"] == [10, 40]
    assert first["verdict"] == "proven"
    assert [(one["begin_ms"] - START_MS, one["stored"]) for one in first["buckets"]] == [
        (10_000, 10),
        (20_000, 10),
        (30_000, 10),
    ]
    publish(broker, topic, [("a", n, 0) for n in range(60, 70)])
    again = prove_delivery(config, spark=spark)
    assert {**first, "made_at": "", "sha256": ""} == {**again, "made_at": "", "sha256": ""}


def test_records_that_a_group_gave_up_are_not_acknowledged(broker, topic, spark):
    dead = f"{topic}.dead"
    create_topic(broker, dead, 1, {})
    publish(broker, topic, [("a", n, 0) for n in range(20)])
    client = Producer({"bootstrap.servers": broker})
    for offset, group in ((3, b"workers"), (17, b"workers"), (4, b"others")):
        origin = {"topic": topic.encode(), "partition": b"0", "offset": b"%d" % offset}
        origin |= {"group": group, "message": b"failed"}
        client.produce(
            dead, b"v", headers=[(f"__dlq.errors.{name}", value) for name, value in origin.items()]
        )
    assert client.flush(30) == 0
    offsets = {topic: {"0": 20, "1": 0, "2": 0}}
    group = GroupPosition("workers", offsets, "share", (dead,), from_start=True)
    config = DeliveryConfig(Connection(broker), topic, groups=(group,), sent={"a": Sent(0, 19)})
    found = prove_delivery(config, spark=spark)
    assert found["problems"] == [f"workers: 2 given up to dead letters ({topic}-0:3, {topic}-0:17)"]
    assert found["groups"][0]["acknowledged"] == 18


class Queue:
    """A share group over HTTP, and what it did, in plain Python."""

    def __init__(self, broker_process, topic, group, **settings):
        self._address, self._path = broker_process.http, f"/v1/queues/{topic}/{group}"
        wanted = {"share.auto.offset.reset": "earliest", **settings}
        self.ask("PATCH", f"/v1/groups/{group}/config", {"set": wanted})
        self.attempts = Counter()
        self.acknowledged, self.given_up = set(), set()

    def ask(self, method, path, body):
        connection = http.client.HTTPConnection(self._address, timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request(method, path, json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status < 300, answer
            return answer
        finally:
            connection.close()

    def receive(self, count):
        """(place, receipt) of the next messages."""
        got = self.ask("POST", f"{self._path}/receive", {"max": count})["messages"]
        return [((one["partition"], one["offset"]), one["receipt"]) for one in got]

    def settle(self, received, decide):
        """Settle each as `decide(place)` says: ack, nack or dead_letter."""
        body = defaultdict(list)
        for place, receipt in received:
            how = decide(place)
            body[how].append({"receipt": receipt} if how == "dead_letter" else receipt)
            self.attempts[place] += 1
            if how == "ack":
                self.acknowledged.add(place)
            elif how == "dead_letter":
                self.given_up.add(place)
        answer = self.ask("POST", f"{self._path}/settle", body)
        assert all(result["ok"] for result in answer["results"])


def places_of(spans):
    return {
        (int(number), offset)
        for number, pairs in spans.items()
        for low, high in pairs
        for offset in range(low, high + 1)
    }


def test_a_share_groups_journal_proves_delivered_equal_acknowledged(
    broker, broker_process, topic, spark
):
    """With loss, duplicates, failed deliveries and dead letters, against plain Python."""
    chance = random.Random(29)
    lost = {("a", 7), ("a", 8), ("b", 0)}
    sends = [
        (name, number, chance.randrange(PARTITIONS))
        for name, count in (("a", 150), ("b", 60))
        for number in range(count)
        if (name, number) not in lost
    ]
    sends += [("a", 20, 0), ("a", 21, 2)]
    chance.shuffle(sends)
    publish(broker, topic, sends)
    group = f"{topic}-workers"
    # Locks must outlast the proof: on a busy machine Spark takes longer than the default of 30 s.
    settings = {"share.delivery.count.limit": "10", "share.record.lock.duration.ms": "600000"}
    queue = Queue(broker_process, topic, group, **settings)
    while len(queue.acknowledged) < 100:
        queue.settle(
            queue.receive(20),
            lambda _: chance.choices(["ack", "nack", "dead_letter"], [70, 25, 5])[0],
        )
    failed = queue.receive(5)
    queue.settle(failed, lambda _: "nack")
    held = queue.receive(3)  # in delivery during the proof
    config = DeliveryConfig(
        Connection(broker), topic, http=broker_process.http,
        sent={"a": Sent(0, 149), "b": Sent(0, 59)},
        groups=(GroupPosition(group, {topic: {"0": 0, "1": 0, "2": 0}}, "share"),),
    )  # fmt: skip
    found = prove_delivery(config, spark=spark)
    (told,) = found["groups"]
    stored = Counter(partition for *_, partition in sends)
    everything = {(p, o) for p, count in stored.items() for o in range(count)}
    tried = {place for place, count in queue.attempts.items() if count}
    assert found["verdict"] == "failed"
    assert told["acknowledged"] == len(queue.acknowledged)
    assert told["journal"]["delivered"] == len(tried)
    again = {place for place, count in queue.attempts.items() if count > 1}
    assert told["journal"]["redelivered"] == len(again)
    spans = {name: places_of(one) for name, one in told["journal"]["spans"].items()}
    expected = {
        "failed": tried - queue.acknowledged - queue.given_up,
        "dead": queue.given_up,
        "undelivered": everything - tried,
    }
    assert spans == {name: one for name, one in expected.items() if one}
    assert {
        (one["producer"], number)
        for one in found["producers"]
        for low, high in one["missing_spans"]
        for number in range(low, high + 1)
    } == lost
    order = Counter()
    by_producer = Counter()
    for producer, _, partition in sends:
        by_producer[producer] += (partition, order[partition]) in queue.acknowledged
        order[partition] += 1
    # by sequence: a duplicate is one message
    assert [one["duplicates"] for one in found["producers"]] == [2, 0]
    assert all(
        by_producer[one["producer"]] - one["duplicates"]
        <= one["acknowledged"][group]
        <= by_producer[one["producer"]]
        for one in found["producers"]
    )
    assert verify(json.loads(json.dumps(found))) == []
    wrong = json.loads(json.dumps(found))
    wrong["groups"][0]["journal"]["records"]["failed"] = 0
    assert verify(wrong) != []
    queue.settle(held, lambda _: "ack")


def test_a_share_group_that_acknowledged_everything_is_proven(broker, broker_process, topic, spark):
    publish(broker, topic, [("a", number, number % PARTITIONS) for number in range(90)])
    group = f"{topic}-workers"
    queue = Queue(broker_process, topic, group)
    queue.settle(queue.receive(10), lambda place: "nack")
    while len(queue.acknowledged) < 90:
        queue.settle(queue.receive(30), lambda place: "ack")
    position = GroupPosition(group, {topic: {"0": 30, "1": 30, "2": 30}}, "share")
    config = DeliveryConfig(
        Connection(broker), topic, groups=(position,), http=broker_process.http,
        sent={"a": Sent(0, 89)},
    )  # fmt: skip
    found = prove_delivery(config, spark=spark)
    assert (found["verdict"], found["problems"], found["not_proven"]) == ("proven", [], [])
    assert found["groups"][0]["journal"]["delivered"] == 90
    assert found["groups"][0]["journal"]["redelivered"] == 10
    without = prove_delivery(replace(config, http=None), spark=spark)
    assert without["verdict"] == "not proven"
    # an administrator moves the group's start past what it has not seen, and the same again
    publish(broker, topic, [("a", number, 0) for number in range(90, 100)])
    offsets = [{"topic": topic, "partition": 0, "position": "latest"}]
    queue.ask("PUT", f"/v1/groups/{group}/offsets", {"offsets": offsets})
    moved = prove_delivery(replace(config, sent={"a": Sent(0, 99)}), spark=spark)
    assert moved["groups"][0]["acknowledged"] == 90
    assert places_of(moved["groups"][0]["journal"]["spans"]["skipped"]) == {
        (0, offset) for offset in range(30, 40)
    }
    assert moved["verdict"] == "failed"


def test_the_journal_source_has_offsets_of_consumer_groups_and_says_what_is_wrong(
    broker, broker_process, topic, spark
):
    publish(broker, topic, [("a", number, number % PARTITIONS) for number in range(30)])
    commit(broker, topic, f"{topic}-readers", {0: 10, 2: 4})
    given = {"bootstrap.servers": broker, "subscribe": topic, "http": broker_process.http}

    def read(**options):
        return spark.read.format("headrace-journal").options(**given, **options).load()

    rows = read().collect()
    assert {(row.group_name, row.event, row.partition, row.last_offset) for row in rows} == {
        (f"{topic}-readers", "committed", 0, 9),
        (f"{topic}-readers", "committed", 2, 3),
    }
    assert read(groups="others").count() == 0
    for options, message in (
        ({"http": ""}, "Set the option http"),
        ({"htpt": "x"}, "Unknown option 'htpt'"),
        ({"http": "nowhere"}, "must be .https://.host:port"),
        ({"subscribe": "absent"}, "There is no topic 'absent'"),
    ):
        with pytest.raises(Exception, match=message):
            spark.read.format("headrace-journal").options(**given | options).load().count()


def test_the_journal_is_a_table_of_sparks_catalog(broker, broker_process, topic, spark):
    publish(broker, topic, [("a", number, number % PARTITIONS) for number in range(30)])
    commit(broker, topic, f"{topic}-readers", {0: 10, 2: 4})
    options = {"bootstrap.servers": broker, "subscribe": topic, "http": broker_process.http}

    def create(**given):
        named = ", ".join(f"'{name}' '{value}'" for name, value in given.items())
        spark.sql(f"CREATE TABLE journal_in_catalog USING `headrace-journal` OPTIONS ({named})")

    with pytest.raises(Exception, match="Set the option http"):
        create(**options | {"http": ""})
    create(**options)
    try:
        rows = spark.table("journal_in_catalog").collect()
        assert {(row.partition, row.last_offset) for row in rows} == {(0, 9), (2, 3)}
        others = spark.sql("SELECT * FROM journal_in_catalog WITH ('groups' = 'others')")
        assert others.count() == 0
    finally:
        spark.sql("DROP TABLE journal_in_catalog")


def test_an_operators_jobs_name_the_tenant_and_its_clients_do_not(tmp_path, warehouse, spark):
    first = free_ports(2)
    ops, team = f"127.0.0.1:{first}", f"127.0.0.1:{first + 1}"
    broker = Broker(
        tmp_path,
        *("--tenants", "acme=User:alice", "--super-users", "User:admin"),
        *("--listener-security-protocol-map", "OPS:SASL_PLAINTEXT,TEAM:PLAINTEXT"),
        *("--sasl-enabled-mechanisms", "PLAIN"),
        *("--listener-setting", "listener.name.team.headrace.tenant=acme"),
    )
    broker.kafka = f"OPS://{ops},TEAM://{team}"
    user = ["user", "add", "admin", "--data-dir", str(broker.data_dir), "--password-file", "-"]
    assert CliRunner().invoke(cli, user, input="password\n").exit_code == 0
    broker.start()
    try:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "password"}
        client = {"security.protocol": "SASL_PLAINTEXT", **login}
        connection = Connection(ops, client)
        for settings in ({"bootstrap.servers": team}, connection.settings):
            admin = AdminClient(settings)
            admin.create_topics([NewTopic("orders", 1)])["orders"].result(60)
        for topic, count in (("acme/orders", 20), ("orders", 3)):
            rows = spark.range(count).selectExpr(
                f"'{topic}' AS topic", "cast(id AS string) AS value"
            )
            rows.write.format("headrace").options(**connection.options).mode("append").save()

        def read(bootstrap, topic, **options):
            reader = spark.read.format("headrace").options(**options).option("subscribe", topic)
            return reader.option("bootstrap.servers", bootstrap).load()

        start = {"startingOffsets": '{"acme/orders":{"0":5}}', **connection.options}
        operators = read(ops, "acme/orders", **start).select("topic").collect()
        assert Counter(row.topic for row in operators) == {"«acme»orders": 15}
        assert Counter(row.topic for row in read(team, "orders").collect()) == {"orders": 20}

        for topic in ("acme/orders", "orders"):
            config = ArchiveConfig(ops, topic, warehouse.folder, client=client)
            run_archive(config, spark=spark)
            assert run_archive(config, spark=spark).record_count == 0
        assert spark.table("headrace.tenant_acme.orders").count() == 20
        assert spark.table("headrace.headrace.orders").count() == 3
        group = GroupPosition("«acme»billing", {"«acme»orders": {"0": 20}})
        wanted = DeliveryConfig(
            connection, "acme/orders", table="tenant_acme.orders", groups=(group,),
            is_numbered=False,
        )  # fmt: skip
        found = prove_delivery(wanted, spark=spark)
        assert OPEN not in json.dumps(found, ensure_ascii=False)
        assert [one["group"] for one in found["groups"]] == ["acme/billing"]
        window = resolve_window(connection.cluster, ("«acme»orders",), WHOLE_LOG)
        events = stored_events(read_window(spark, connection, window), TraceConfig("«acme»orders"))
        assert "acme/orders-0:7" in {row.message for row in events.collect()}
        assert (found["tenant"], found["topic"]) == ("acme", "acme/orders")
        assert found["stored"] == found["archived"]["partitions"]
        assert (found["stored"]["0"]["count"], found["verdict"]) == (20, "proven")
        assert verify(found) == []

        # A client of the tenant sees another cluster id, and another name of the topic.
        of_team = Connection(team)
        shown = of_team.cluster.cluster_id()
        assert shown == tenants_cluster_id(connection.cluster.cluster_id(), "acme")
        mine = ArchiveConfig(team, "orders", warehouse.folder, table="tenant_acme.own")
        assert [run_archive(mine, spark=spark).record_count for _ in range(2)] == [20, 0]
        wanted = DeliveryConfig(
            of_team, "orders", table=mine.table, is_numbered=False, cluster_id=shown
        )
        raw = {"bootstrap.servers": team, "subscribe": "orders", "http": broker.http}
        with pytest.raises(OptionInvalid, match="for one of another tenant"):
            JournalReader(parse_journal(raw)).partitions()
        again = prove_delivery(wanted, spark=spark)
        assert (again["cluster_id"], again["verdict"]) == (shown, "proven")
        assert again["topic_id"] == found["topic_id"]
    finally:
        broker.stop()
