"""What a second worker costs and gives: the same load on one worker and on two, in alternation.

    python -m benchmarks.workers [--rounds 3] [--records 3000000]

Invariants: Apache Kafka's ProducerPerformance is the load, and takes a core of its own; on a
machine of two cores a second worker competes with it, so the CPU a record is what to read there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from tests.integration.broker import Broker

from headrace_bench.java_tools import producer_performance

PARTITIONS = 6
RECORD_BYTES = 100


def cpu_s(broker: Broker) -> float:
    """User and system time of the workers, without their supervisor."""
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)
    workers = process.children() or [process]
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def measure(folder: Path, workers: int, records: int, configs: dict[str, str]) -> dict[str, float]:
    """Records a second, and CPU microseconds a record."""
    broker = Broker(folder, "--workers", str(workers)).start()
    try:
        client = AdminClient({"bootstrap.servers": broker.kafka})
        client.create_topics([NewTopic("t", PARTITIONS, config=configs)])["t"].result(30)
        producer_performance(broker.kafka, "t", records // 5, RECORD_BYTES, 0)
        before = cpu_s(broker)
        done = producer_performance(broker.kafka, "t", records, RECORD_BYTES, 0)
        used = cpu_s(broker) - before
    finally:
        broker.stop()
    return {"records_per_s": done.records_per_s, "cpu_us_per_record": used / records * 1e6}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=3_000_000)
    asked = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for name, configs in (("synced", {}), ("unsynced", {"flush.ms": "1000"})):
        found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for _ in range(asked.rounds):
            for workers, of_count in found.items():
                with tempfile.TemporaryDirectory(prefix="headrace-workers-") as folder:
                    of_count.append(measure(Path(folder), workers, asked.records, configs))
        for workers, of_count in found.items():
            figures[f"{name}, {workers} worker{'s' * (workers > 1)}"] = {
                figure: round(statistics.median(one[figure] for one in of_count), 3)
                for figure in of_count[0]
            }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
