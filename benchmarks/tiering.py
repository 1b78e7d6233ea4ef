"""What tiers cost: CPU of offloading, and cold reads beside hot ones, by the same reader.

Invariants: one broker process, one reader that fetches 1 MiB at a time, figures in turn.
CPU is the broker's own (user and kernel), so other work on the machine matters little.

    python -m benchmarks.tiering [--mib 512] [--rounds 3] [--objects URL]

Without --objects, a folder on the same disk. For S3 the environment holds credentials and endpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from headrace_bench.raw_client import fetch_all
from headrace_verify.kafka_wire import LIST_OFFSETS, KafkaWire

FETCH_BYTES = 1 << 20
LEDGER_BYTES = 64 << 20


class TieredBroker:
    """One broker over a folder and object storage."""

    def __init__(self, folder: Path, objects: str) -> None:
        command = [sys.executable, "-m", "headrace.cli.main", "serve", "--json"]
        command += ["--data-dir", str(folder / "data"), "--kafka", "127.0.0.1:0"]
        command += ["--http", "127.0.0.1:0", "--objects", objects]
        command += ["--tiering-interval-ms", "200", "--offload-mib-per-s", "0"]
        self.process = subprocess.Popen(
            [*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.kafka: str = ready["kafka"]
        self.http: str = ready["http"]

    def metric(self, name: str) -> float:
        """One figure of /metrics, summed over its series."""
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """A clean stop."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def _configure(broker: TieredBroker, topic: str, **values: str) -> None:
    from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType

    entries = [ConfigEntry(name.replace("_", "."), value) for name, value in values.items()]
    for entry in entries:
        entry.incremental_operation = _set_operation()
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _set_operation() -> Any:
    from confluent_kafka.admin import AlterConfigOpType

    return AlterConfigOpType.SET


def _fill(broker: TieredBroker, topic: str, mib: int) -> int:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.kafka})
    configs = {"segment.bytes": str(LEDGER_BYTES)}
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=configs)]).values():
        future.result(30)
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "batch.size": 16_384,
            "linger.ms": 50,
            "queue.buffering.max.kbytes": 65_536,
        }
    )
    noise = os.urandom(1 << 20)
    count = mib * 1024
    for number in range(count):
        at = number * 7919 % (len(noise) - 1024)
        while True:
            try:
                producer.produce(topic, noise[at : at + 1000], partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)
    return count


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("tiering does not come to an end")
        time.sleep(0.05)


def _read(broker: TieredBroker, topic: str, end: int) -> tuple[float, float]:
    """(MB/s, broker CPU seconds a GB)."""
    before = broker.cpu_s()
    size, seconds = fetch_all(broker.kafka, topic, end, FETCH_BYTES)
    return size / seconds / 1e6, (broker.cpu_s() - before) / (size / 1e9)


def measure(folder: Path, objects: str, mib: int, rounds: int) -> dict[str, list[float]]:
    """All figures, one value for each round."""
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)
        print(f"  {name}: {value:.2f}", flush=True)

    topic = "tiers"
    broker = TieredBroker(folder, objects)
    try:
        end = _fill(broker, topic, mib)
        for _ in range(rounds):
            rate, cpu = _read(broker, topic, end)
            note("hot MB/s", rate)
            note("hot CPU s/GB", cpu)
        before, began = broker.cpu_s(), time.monotonic()
        _configure(broker, topic, remote_storage_enable="true")
        # All but the last ledger, which is open; what is pending is reported once an interval.
        due = (mib << 20) - 2 * LEDGER_BYTES
        _wait(lambda: broker.metric("headrace_tier_offload_bytes_total") >= due)
        _wait(lambda: broker.metric("headrace_tier_pending_ledgers") == 0)
        took = time.monotonic() - began
        size = broker.metric("headrace_tier_offload_bytes_total")
        note("offload MB per CPU s", size / 1e6 / (broker.cpu_s() - before))
        note("offload MB/s", size / 1e6 / took)
        _configure(broker, topic, local_retention_bytes="0")
        _wait(lambda: 0 < broker.metric("headrace_log_local_size_bytes") <= 3 * LEDGER_BYTES)
        _wait(lambda: _cold_end(broker, topic) > 0)
        for _ in range(rounds):
            rate, cpu = _read(broker, topic, _cold_end(broker, topic))
            note("cold MB/s", rate)
            note("cold CPU s/GB", cpu)
        if objects.startswith("file://"):
            for _ in range(rounds):
                _evict(Path(objects.removeprefix("file://")))
                rate, cpu = _read(broker, topic, _cold_end(broker, topic))
                note("cold from the disk MB/s", rate)
                note("cold from the disk CPU s/GB", cpu)
    finally:
        broker.stop()
    return figures


def _evict(folder: Path) -> None:
    """Have the page cache forget the objects."""
    for path in folder.rglob("*.ledger"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _cold_end(broker: TieredBroker, topic: str) -> int:
    """The first offset that is not in object storage alone (ListOffsets v8 of -4)."""
    host, _, port = broker.kafka.rpartition(":")
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -4}
    topics = [{"name": topic, "partitions": [partition]}]
    with KafkaWire((host, int(port)), 30) as wire:
        answer = wire.call(LIST_OFFSETS, 8, replica_id=-1, isolation_level=0, topics=topics)
    return int(answer.topics[0].partitions[0].offset)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--objects", default=None)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="headrace-tiers-"))
    try:
        objects = options.objects or f"file://{folder}/objects"
        print(f"load before: {os.getloadavg()[0]:.2f}")
        figures = measure(folder, objects, options.mib, options.rounds)
    finally:
        shutil.rmtree(folder)
    print("\n| figure | median | rounds |\n| --- | --- | --- |")
    for name, values in figures.items():
        rounds = ", ".join(f"{value:.2f}" for value in values)
        print(f"| {name} | {median(values):.2f} | {rounds} |")


if __name__ == "__main__":
    main()
