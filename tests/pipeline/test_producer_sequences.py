"""What the sequences of idempotent producers prove, against a count in plain Python."""

import json
import random
from collections import Counter, defaultdict
from typing import NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.cli.pipeline_proof import equation
from headrace.pipeline.batches_source import SCHEMA
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jobs import producer_sequences
from headrace.pipeline.jobs.certificate import judge, verify
from headrace.pipeline.jobs.delivery_proof import DeliveryConfig, prove_delivery
from headrace.pipeline.jobs.producer_sequences import compare_sequences
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    Window,
    read_window,
    resolve_window,
)

WRAP = 1 << 31


class Batch(NamedTuple):
    """The columns of `headrace-batches`."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int
    records: int
    size_bytes: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False
    is_control: bool = False
    is_aborted: bool = False

    @property
    def run(self):
        return self.partition, self.producer_id, self.producer_epoch

    @property
    def sequences(self):
        count = self.last_offset - self.base_offset + 1
        return [(self.base_sequence + n) % WRAP for n in range(count)]


def publish(broker, topic, counts, **settings):
    """Write counts[partition] records to each partition, in batches of at most seven."""
    client = Producer({"bootstrap.servers": broker, "batch.num.messages": 7, **settings})
    refused = []
    is_transactional = "transactional.id" in settings
    if is_transactional:
        client.init_transactions(60)
    for number, is_aborted in enumerate((False, True) if is_transactional else (False,)):
        if is_transactional:
            client.begin_transaction()
        for partition, count in enumerate(counts):
            for each in range(count):
                client.produce(
                    topic, b"%d-%d" % (number, each), partition=partition,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                )  # fmt: skip
        assert client.flush(60) == 0
        if is_transactional:
            (client.abort_transaction if is_aborted else client.commit_transaction)(60)
    assert not refused


@pytest.fixture
def stored(broker, topic):
    """Records of three idempotent producers, a transactional one that commits a transaction and
    aborts one, and a producer without sequences."""
    sent = [(40, 23, 0), (15, 31, 8), (3, 60, 100)]
    for counts in sent:
        publish(broker, topic, counts, **{"enable.idempotence": True})
    publish(broker, topic, (12, 9, 5), **{"transactional.id": f"{topic}-writer"})
    publish(broker, topic, (4, 4, 4))
    return topic, Counter((p, n) for counts in sent for p, n in enumerate(counts) if n)


def test_sent_equals_stored_for_each_producer_without_headers(broker, stored, spark):
    topic, sent = stored
    config = DeliveryConfig(Connection(broker), topic, is_numbered=False, is_idempotent=True)
    found = prove_delivery(config, spark=spark)
    runs = found["idempotent"]["runs"]
    plain = Counter((r["partition"], r["sent"]) for r in runs if not r["aborted"])
    assert plain == sent
    # the transactional one has a run of both transactions, or one of each where epochs change
    aborted = Counter()
    for run in runs:
        assert run["stored"] == run["sent"]
        assert not run["repeated"] + run["never_stored"] + run["absent"] + run["earlier"]
        aborted[run["partition"]] += run["aborted"]
    assert aborted == {0: 12, 1: 9, 2: 5}
    assert found["problems"] == []
    assert found["not_proven"] == [
        "what idempotent producers sent in an epoch after the last sequence stored"
        f" ({len(runs)} producers, epochs and partitions)",
        "12 stored records have no producer id: whether all of their kind were stored, and once",
    ]
    assert verify(json.loads(json.dumps(found))) == []
    wrong = json.loads(json.dumps(found))
    wrong["idempotent"]["totals"]["earlier"] = 3
    assert verify(wrong) != []
    assert "of which batches lack" not in equation(found)
    # records deleted at the log's begin cannot be told from lost ones
    admin = AdminClient({"bootstrap.servers": broker})
    deleted = [TopicPartition(topic, 0, 10), TopicPartition(topic, 1, 30)]
    for one in admin.delete_records(deleted).values():
        one.result(60)
    later = prove_delivery(config, spark=spark)
    assert later["problems"] == []
    begins = {0: 10, 1: 30, 2: 0}
    for run in later["idempotent"]["runs"]:
        assert run["sent"] == run["stored"] + run["earlier"]
        assert run["earlier"] <= begins[run["partition"]]
    assert 0 < later["idempotent"]["totals"]["earlier"] <= 40


def test_batches_lost_from_a_real_log_are_found_exactly(broker, stored, spark):
    topic, _ = stored
    connection = Connection(broker)
    window = resolve_window(connection.cluster, (topic,), WHOLE_LOG)
    frame = read_window(
        spark, connection, window, "headrace-batches", maxRecordsPerTask="9"
    )  # so that batches lie across tasks
    rows = [Batch(*row) for row in frame.collect()]
    assert len({(row.partition, row.base_offset) for row in rows}) == len(rows)
    table = "batches_in_catalog"
    spark.sql(
        f"CREATE TABLE {table} USING `headrace-batches`"
        f" OPTIONS ('bootstrap.servers' '{broker}', 'subscribe' '{topic}')"
    )
    assert sorted(Batch(*row) for row in spark.table(table).collect()) == sorted(rows)
    spark.sql(f"DROP TABLE {table}")
    by_run = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.base_offset):
        if row.producer_id >= 0 and not row.is_control:
            by_run[row.run].append(row)
    chance = random.Random(3)
    lost = [
        row for each in by_run.values() if len(each) > 2
        for row in chance.sample(each[:-1], min(3, len(each) - 1))
    ]  # fmt: skip
    kept = spark.createDataFrame([row for row in rows if row not in lost], SCHEMA)
    found = compare_sequences(kept, topic, window) | {"is_compacted": False}
    missing = {
        (run["partition"], run["producer_id"], run["producer_epoch"], number)
        for run in found["runs"]
        for low, high in run["gaps"]
        for number in range(low, high + 1)
    }
    assert lost
    assert missing == {(*row.run, number) for row in lost for number in row.sequences}
    assert found["totals"]["absent"] == len(missing)
    assert found["totals"]["never_stored"] == found["totals"]["earlier"] == 0
    body = {"limits": [], "producers": [], "unnumbered": 0, "numbered_by": None, "groups": [],
            "stored": {}, "archived": None, "topic": topic, "idempotent": found}  # fmt: skip
    problems, _ = judge(body)
    assert len(problems) == len({row.run for row in lost})
    problems, not_proven = judge(body | {"idempotent": found | {"is_compacted": True}})
    assert problems == []
    assert (
        f"whether {len(missing)} records of idempotent producers were removed by compaction, or"
        " lost" in not_proven
    )


def test_records_that_their_batches_lack_are_not_proven(broker, topic, spark):
    """A delayed record leaves an empty batch where it was sent; here, it never comes."""
    name = f"{topic}-delayed"
    create_topic(broker, name, 1, {"headrace.message.attributes": "true"})
    client, refused = Producer({"bootstrap.servers": broker, "enable.idempotence": True}), []
    for number in range(8):
        headers = {"headrace-delay": "86400000"} if number >= 5 else None
        client.produce(
            name, b"%d" % number, headers=headers,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )  # fmt: skip
    assert client.flush(60) == 0
    assert not refused
    config = DeliveryConfig(Connection(broker), name, is_numbered=False, is_idempotent=True)
    found = prove_delivery(config, spark=spark)
    totals = found["idempotent"]["totals"]
    assert (totals["sent"], totals["stored"], totals["removed"]) == (8, 8, 3)
    assert found["problems"] == []
    assert found["not_proven"][0].startswith(
        "whether 3 records of idempotent producers are stored that their batches do not hold"
    )
    assert "sent by idempotent producers 8, stored 8, of which batches lack 3" in equation(found)


def simulated(chance, partition, first_offset, starts, faults):
    """The batches of a partition, what was made of each sequence ({run: {fault: count}}), how many
    each run sent, and the log's end. `starts`: (epoch, first sequence) of each producer.

    Batches are stored, never stored, deleted, stored twice, or thinned out.
    """
    rows, truth, offset = [], defaultdict(Counter), first_offset
    at = {(partition, 100 + n, epoch): start for n, (epoch, start) in enumerate(starts)}
    fault_of = {run: faults[n % len(faults)] for n, run in enumerate(at)}
    for number in range(400):
        run = chance.choice(list(at))
        size = chance.randint(1, 6)
        fault = fault_of[run] if number > 50 and chance.random() < 0.2 else None
        begin, at[run] = at[run], at[run] + size
        if fault:
            truth[run][fault] += 1 if fault == "removed" else size
        if fault == "never_stored":
            continue
        row = Batch("t", partition, offset, offset + size - 1, size, 99, *run[1:], begin % WRAP)
        offset += size
        if fault == "absent":
            continue
        rows.append(row._replace(records=size - 1) if fault == "removed" else row)
        if fault == "repeated":
            rows.append(row._replace(base_offset=offset, last_offset=offset + size - 1))
            offset += size
    for run, begin in at.items():  # so that no fault is the last
        rows.append(Batch("t", partition, offset, offset, 1, 99, *run[1:], begin % WRAP))
        offset += 1
    return rows, truth, {run: begin + 1 for run, begin in at.items()}, offset


def test_each_kind_of_fault_is_counted_in_simulated_logs(spark):
    """Over epochs, past the last sequence, and where the log's begin was deleted."""
    chance = random.Random(17)
    begin, near = 5 * WRAP, WRAP - 50
    logs = [
        simulated(chance, 0, 0, [(0, 0), (7, 0), (0, 0)], ["never_stored", "repeated", "removed"]),
        simulated(chance, 1, begin, [(0, near), (2, 9), (0, near)], ["absent", "repeated"]),
        simulated(chance, 2, 0, [(0, 0), (0, 0), (1, 0)], ["absent", "never_stored"]),
    ]
    rows = [row for log in logs for row in log[0]]
    ends = [end for *_, end in logs]
    chance.shuffle(rows)
    rows.append(Batch("t", 0, ends[0], ends[0], 1, 99, 100, 0, -1, True, True))
    rows.append(Batch("t", 0, ends[0] + 1, ends[0] + 5, 5, 99, -1, -1, -1))
    starts = {"0": 0, "1": begin, "2": 0}
    window = Window({"t": starts}, {"t": {"0": ends[0] + 6, "1": ends[1], "2": ends[2]}}, {})
    found = compare_sequences(spark.createDataFrame(rows, SCHEMA), "t", window)
    runs = {(r["partition"], r["producer_id"], r["producer_epoch"]): r for r in found["runs"]}
    assert len(runs) == found["totals"]["runs"] == 9
    for partition, (_, truth, sent, _) in enumerate(logs):
        for run, count in sent.items():
            one = runs[run]
            assert one["sent"] == count
            for fault in ("repeated", "removed"):
                assert one[fault] == truth[run][fault]
            # where another producer's records were deleted beside, both kinds are possible
            missing = truth[run]["never_stored"] + truth[run]["absent"]
            assert one["never_stored"] + one["absent"] == missing
            assert one["never_stored"] <= truth[run]["never_stored"]
            if partition < 2:
                assert one["never_stored"] == truth[run]["never_stored"]
            assert (one["earlier"] > 0) == (partition == 1)
            assert one["stored"] == count - missing - one["earlier"]
    assert found["without_producer"] == 5


def test_faults_before_the_window_take_no_room_of_its_ranges(spark, monkeypatch):
    monkeypatch.setattr(producer_sequences, "SPANS_MAX", 3)
    rows = [Batch("t", 0, 900 + n, 900 + n, 1, 99, n, 0, 7) for n in range(8)]
    rows += [Batch("t", 1, at, at, 1, 99, 50, 0, n) for at, n in enumerate((0, 4, 5, 9))]
    window = Window({"t": {"0": 900, "1": 0}}, {"t": {"0": 908, "1": 4}}, {})
    found = compare_sequences(spark.createDataFrame(rows, SCHEMA), "t", window)
    assert (found["totals"]["earlier"], found["totals"]["never_stored"]) == (56, 6)
    assert [run["gaps"] for run in found["runs"]] == [[[1, 3], [6, 8]], [], []]
