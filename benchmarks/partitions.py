"""Very many partitions in one broker: creating them, memory, stop and restart, and producing.

    python -m benchmarks.partitions [topics, of 1,000 partitions each]

Invariants: a broker process of its own in a temporary folder, librdkafka as client. Produced are
records of 1 KiB in batches of 16, as many as fit into the Java client's, whose partitioner fills a
batch before it goes on to the next partition. Kafka's own producer tool then writes to one topic of
one partition and to one of as many as can be in a topic here: librdkafka itself uses several times
the CPU for many partitions. `Written for the first time` includes making the files of each
partition.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker

from headrace_bench.java_tools import producer_performance

PARTITIONS, RUN, SIZE = 1_000, 16, 1024
TOOL_RECORDS, TOOL_PARTITIONS_MAX = 400_000, 10_000


def cpu_s(process: psutil.Process) -> float:
    """User and system time."""
    return sum(process.cpu_times()[:2])


def create(address: str, topics: int) -> float:
    """Seconds."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    began = time.perf_counter()
    wanted = [NewTopic(f"t{number}", PARTITIONS, 1) for number in range(topics)]
    for created in admin.create_topics(wanted, request_timeout=300).values():
        created.result()
    return time.perf_counter() - began


def produce(process: psutil.Process, address: str, topics: int, partitions: int, runs: int) -> str:
    """The rate, and the CPU time that broker and client use for a record."""
    settings = {
        "bootstrap.servers": address,
        "linger.ms": 20,
        "batch.num.messages": RUN,
        "log_level": 0,
        "message.timeout.ms": 0,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_000_000,
    }
    producer, value, failed = Producer(settings), os.urandom(SIZE), []
    before = [cpu_s(one) for one in (process, psutil.Process())]
    began = time.perf_counter()
    for number in range(runs):
        partition, topic = divmod(number, topics)
        for _ in range(RUN):
            while True:
                try:
                    producer.produce(
                        f"t{topic}",
                        value,
                        partition=partition % partitions,
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    assert not producer.flush(600)
    assert not failed, failed[:3]
    count, seconds = runs * RUN, time.perf_counter() - began
    after = [cpu_s(one) for one in (process, psutil.Process())]
    broker, client = ((b - a) / count * 1e6 for a, b in zip(before, after, strict=True))
    return f"{count / seconds:.0f} records/s; CPU: broker {broker:.1f}, client {client:.1f} us"


def produce_with_tool(process: psutil.Process, address: str, topic: str) -> str:
    """The same with ProducerPerformance, whose batches are of 16 KiB."""
    before = cpu_s(process)
    done = producer_performance(address, topic, TOOL_RECORDS, SIZE, 0)
    used = (cpu_s(process) - before) / TOOL_RECORDS * 1e6
    return f"{done.records_per_s:.0f} records/s; CPU: broker {used:.1f} us"


def main(topics: int) -> None:
    """Print a line for each figure."""
    with tempfile.TemporaryDirectory() as name:
        broker = Broker(Path(name)).start()
        broker.is_damaged = True  # it is not, but checking the folder takes longer than the rest
        try:
            address = "{}:{}".format(*broker.address)
            count = topics * PARTITIONS
            print(f"created {count} partitions: {create(address, topics):.1f} s")
            time.sleep(10)
            process = psutil.Process(broker.process.pid)
            before = cpu_s(process)
            time.sleep(10)
            used = (cpu_s(process) - before) / 10
            memory = process.memory_info().rss / 1e6
            print(f"idle: {memory:.0f} MB, {used * 100:.1f} % of a core")
            print(f"one partition: {produce(process, address, 1, 1, 15_000)}")
            for what in ("all, written for the first time", "all"):
                print(f"{what}: {produce(process, address, topics, PARTITIONS, count)}")
            print(f"one partition: {produce(process, address, 1, 1, 15_000)}")
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            for topic, partitions in (("one", 1), ("all", min(count, TOOL_PARTITIONS_MAX))):
                admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
            for topic in ("one", "all", "all", "one", "all", "one"):
                print(f"Kafka's tool, {topic}: {produce_with_tool(process, address, topic)}")
            print(f"memory: {process.memory_info().rss / 1e6:.0f} MB")
            for how in ("stopped", "killed"):
                began = time.perf_counter()
                if how == "stopped":
                    broker.stop()
                else:
                    broker.kill()
                ended = time.perf_counter()
                broker.start()
                admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
                seen = len(admin.list_topics(timeout=60).topics)
                again = time.perf_counter() - ended
                print(
                    f"{how} in {ended - began:.1f} s; {seen} topics listed again in {again:.1f} s"
                )
        finally:
            broker.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
