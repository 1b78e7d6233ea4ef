"""How long partitions of a cluster stand still: brokers killed and stopped, ten thousand moved.

    python -m benchmarks.failover [--rounds 10] [--partitions 10000] [--moved 50]

Invariants: real brokers over a real ZooKeeper and real bookies, all on this machine; an
idempotent producer (librdkafka) writes to every partition, and its longest pause is the figure.
What it wrote is read back and compared after each series.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.brokers import SESSION_MS, Brokers, Load

from headrace.dev_cluster.cluster import ClusterOptions, DevCluster
from headrace.dev_cluster.parts import find_parts

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = 6
SETTLE_S = 6.0
"""Until a broker that came back has its share again."""


def pauses(brokers: Brokers, rounds: int, how: str) -> list[float]:
    """Seconds for which the slowest partition stood still, in each round."""
    topic = f"{how}-{time.time_ns()}"
    _create(brokers, topic, PARTITIONS)
    load = Load(brokers.bootstrap, topic, PARTITIONS)
    load.wait_acked(50)
    found = []
    for number in range(rounds):
        victim = number % len(brokers.by_id) + 1
        began = time.monotonic()
        if how == "kill":
            brokers.by_id[victim].kill()
        else:
            brokers.by_id[victim].stop()
        load.wait_acked(50)
        found.append(load.gap_s(began))
        brokers.add(victim)
        time.sleep(SETTLE_S)
    load.stop()
    load.check(brokers.bootstrap)
    return found


def moves(brokers: Brokers, rounds: int, partitions: int, zookeeper: str) -> dict[str, list[float]]:
    """Seconds for which each partition that moved stood still: its longest pause, all rounds
    together, sorted. In each round one broker is stopped and comes back, is drained and gets its
    share again (`undrain`), is killed and comes back (`return after kill`)."""
    topic = f"moves-{time.time_ns()}"
    _create(brokers, topic, partitions)
    load = Load(brokers.bootstrap, topic, partitions)
    load.wait_acked(50)
    found: dict[str, list[float]] = {}

    def measure(how: str, change: Callable[[], object], wait_s: float) -> None:
        before = brokers.leaders(topic)
        began = time.monotonic()
        change()
        time.sleep(wait_s)
        load.wait_acked(20)
        moved = [part for part, leader in brokers.leaders(topic).items() if leader != before[part]]
        found.setdefault(how, []).extend(load.gaps_s(began, moved))

    def drain(broker_id: int, *options: str) -> None:
        command = [sys.executable, "-m", "headrace.cli.main", "cluster", "drain", *options]
        subprocess.run([*command, str(broker_id), "--zookeeper", zookeeper], check=True)

    for number in range(rounds):
        victim = number % len(brokers.by_id) + 1
        measure("stop", brokers.by_id[victim].stop, 0)
        measure("return", partial(brokers.add, victim), SETTLE_S)
        measure("drain", partial(drain, victim), SETTLE_S)
        measure("undrain", partial(drain, victim, "--undo"), SETTLE_S)
        measure("kill -9", brokers.by_id[victim].kill, SETTLE_S)
        measure("return after kill", partial(brokers.add, victim), SETTLE_S)
    load.stop()
    load.check(brokers.bootstrap)
    return {how: sorted(gaps) for how, gaps in found.items()}


def _percentiles(gaps: list[float]) -> dict[str, float]:
    at = [("p50_s", len(gaps) // 2), ("p99_s", len(gaps) * 99 // 100), ("max_s", len(gaps) - 1)]
    return {"moves": len(gaps), **{name: round(gaps[index], 3) for name, index in at}}


def _create(brokers: Brokers, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap})
    client.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def many(brokers: Brokers, partitions: int) -> dict[str, float]:
    """Seconds until `partitions` are led again when one of three brokers is killed, and until it
    has its share again."""
    for number in range(partitions // 1_000):
        _create(brokers, f"many-{number}", 1_000)
    client = AdminClient({"bootstrap.servers": brokers.by_id[1].kafka})

    def wait(is_done: Callable[[list[int]], bool]) -> float:
        began = time.monotonic()
        while True:
            topics = client.list_topics(timeout=60).topics
            leaders = [p.leader for topic in topics.values() for p in topic.partitions.values()]
            if len(leaders) >= partitions and -1 not in leaders and is_done(leaders):
                return time.monotonic() - began
            time.sleep(0.2)

    wait(lambda leaders: True)
    brokers.by_id[2].kill()
    failed_over = wait(lambda leaders: 2 not in leaders)
    began = time.monotonic()
    brokers.add(2)
    wait(lambda leaders: leaders.count(2) > partitions // 3 - 100)
    return {"fail_over_s": failed_over, "join_s": time.monotonic() - began}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--moved", type=int, default=50, help="partitions that move; 0: none")
    parser.add_argument("--how", default="kill,stop")
    asked = parser.parse_args()
    figures: dict[str, object] = {"session_ms": SESSION_MS, "rounds": asked.rounds}
    figures["load_average"] = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="headrace-failover-") as name:
        folder = Path(name)
        with DevCluster(folder / "cluster", ClusterOptions(bookie_count=4), find_parts()) as under:
            brokers = Brokers(folder, under.zookeeper.address, 3)
            try:
                if asked.moved:
                    address = under.zookeeper.address
                    gaps = moves(brokers, asked.rounds, asked.moved, address)
                    figures["moved"] = {how: _percentiles(gaps[how]) for how in gaps}
                    print("moved", figures["moved"], flush=True)
                for how in filter(None, asked.how.split(",")):
                    found = sorted(pauses(brokers, asked.rounds, how))
                    figures[how] = {
                        "median_s": round(statistics.median(found), 3),
                        "max_s": round(found[-1], 3),
                        "all_s": [round(value, 3) for value in found],
                    }
                    print(how, figures[how], flush=True)
                if asked.partitions:
                    figures["many"] = many(brokers, asked.partitions)
            finally:
                brokers.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
