"""A stream from topic to topic writes each record once, whatever is killed and changed meanwhile.

Killed at random moments: the driver with all its processes, Python workers, the planner, the
committer, the broker, and the owner of partitions. Between them options, the cut into tasks,
partition counts and the source's identity change, and whether old records are read from object
storage. A batch that has begun repeats its rows in any order, so a shuffle may change as well.
"""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from tests.integration.broker import Broker
from tests.integration.test_workers import kill_worker
from tests.pipeline.process_trees import kill_tree
from tests.waiting import wait_until

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.restarts import RestartPolicy, with_restarts

MODULES = {
    "planner": "python_streaming_source_runner", "committer": "python_streaming_sink_runner",
    "worker": "pyspark.daemon",
}  # fmt: skip
VICTIMS = ("driver", *MODULES, "broker", "owner")
PARTITIONS_MAX = 8
SOURCE, TARGET = "source", "target"
TIERED = {
    "remote.storage.enable": "true", "segment.bytes": "2000", "local.retention.bytes": "0",
    "retention.ms": "-1",
}  # fmt: skip


class Trial:
    """What one run of the test has sent, and the process that it kills."""

    def __init__(self, folder, seed):
        self.chance = random.Random(seed)
        self.objects = f"file://{folder / 'objects'}"
        tier = "--objects", self.objects, "--tiering-interval-ms", "200"
        self.broker = Broker.of_workers(folder, 2, *tier).start()
        self.admin = AdminClient({"bootstrap.servers": self.broker.kafka, "log_level": 0})
        self.checkpoint = str(folder / "checkpoint")
        self.partitions = {SOURCE: 3, TARGET: 2}
        self.sent = 0
        self.loses = False
        self.child = None
        for name, count in self.partitions.items():
            create_topic(self.broker.kafka, name, count, TIERED if name == SOURCE else {})

    def send(self, count):
        producer = Producer({"bootstrap.servers": self.broker.kafka, "enable.idempotence": True})
        for number in range(self.sent, self.sent + count):
            producer.produce(SOURCE, b"%d" % number, b"key-%d" % (number % 50))
        assert producer.flush(300) == 0
        self.sent += count

    def options(self):
        """Of the source: cuts that differ from run to run."""
        cuts = {
            "maxRecordsPerTask": self.chance.choice(["30", "100", "100000"]),
            "minPartitions": self.chance.choice(["1", "5"]),
            "maxOffsetsPerTrigger": self.chance.choice(["40", "300", "5000"]),
            "includeHeaders": self.chance.choice(["true", "false"]),
        }
        if self.chance.random() < 0.7:
            web = self.chance.choice(self.broker.http.split(","))
            cuts |= {"objects": self.objects, "http": web}
        return cuts | {"failOnDataLoss": "false"} if self.loses else cuts

    def change(self):
        """Add a partition somewhere, sometimes."""
        name = self.chance.choice([SOURCE, TARGET, ""])
        if not name or self.partitions[name] == PARTITIONS_MAX:
            return
        self.partitions[name] = count = self.partitions[name] + 1

        def is_added():
            with suppress(KafkaException):  # a worker is just starting, or it has been done
                self.admin.create_partitions([NewPartitions(name, count)])[name].result(60)
            return len(self.admin.list_topics(name, 60).topics[name].partitions) == count

        wait_until(is_added, 300)

    def recreate(self):
        """Delete the source, all of which was written, and create another of its name."""
        self.admin.delete_topics([SOURCE])[SOURCE].result(60)
        create_topic(self.broker.kafka, SOURCE, 3, TIERED)
        self.partitions[SOURCE] = 3
        self.loses = True

    def run_child(self):
        """Let the stream run in a process of its own, until it has written a batch."""
        if self.child is None or self.child.poll() is not None:
            given = json.dumps([self.options(), self.chance.choice([0, 2, 3])])
            self.child = subprocess.Popen(
                [sys.executable, Path(__file__).parent / "stream_child.py", self.broker.kafka,
                 SOURCE, TARGET, self.checkpoint, given], stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        self.send(self.chance.randrange(50, 400))
        assert self.child.stdout.readline(), "the stream failed for good"
        self.send(self.chance.randrange(50, 400))

    def kill(self, victim):
        if victim == "broker":
            self.broker.crash()
        elif victim == "owner":
            kill_worker(self.broker, self.chance.choice([0, 1]))
        elif victim == "driver":
            self.end()
        else:
            for each in psutil.Process(self.child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(MODULES[victim] in word for word in each.cmdline()):
                        each.kill()

    def end(self):
        """Kill the driver and its processes."""
        if self.child is not None and self.child.poll() is None:
            kill_tree(self.child)
        if self.child is not None:
            self.child.wait(60)
            self.child.stdout.close()
            self.child = None

    def settle(self, spark):
        """Let another driver write all that is left; the values in the target, by count."""
        self.end()
        at = {"bootstrap.servers": self.broker.kafka}

        def run():
            rows = spark.readStream.format("headrace").options(**at, **self.options())
            query = (
                rows.option("subscribe", SOURCE).load().select("key", "value")
                .writeStream.format("headrace").options(**at, topic=TARGET)
                .option("checkpointLocation", self.checkpoint).start()
            )  # fmt: skip
            try:
                query.processAllAvailable()
            finally:
                query.stop()

        with_restarts(run, "The last stream", RestartPolicy(delay_ms=100))
        rows = spark.read.format("headrace").options(**at, subscribe=TARGET).load()
        return Counter(int(bytes(row.value)) for row in rows.select("value").collect())


@pytest.fixture
def trial(tmp_path, request):
    made = Trial(tmp_path, request.node.callspec.params["kills"])
    yield made
    made.end()
    made.broker.stop()


@pytest.mark.parametrize("kills", [
    pytest.param(2, marks=pytest.mark.timeout(1_800)),
    pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(14_400)]),
])  # fmt: skip
def test_each_record_is_written_once_over_random_kills_and_changes(trial, spark, kills):
    victims = list(VICTIMS) * -(-kills // len(VICTIMS))
    trial.chance.shuffle(victims)
    victims = victims[:kills] if kills > 2 else ["planner", "owner"]  # both of them cheap
    for number, victim in enumerate(victims):
        trial.run_child()
        trial.change()
        time.sleep(trial.chance.random())  # a moment within a batch, or between two
        trial.kill(victim)
        print(f"{number + 1}: {victim}, {trial.sent} sent, {trial.partitions}", flush=True)
        if number % 25 == 1:
            assert trial.settle(spark) == Counter(range(trial.sent))
            trial.recreate()
    assert trial.settle(spark) == Counter(range(trial.sent))
