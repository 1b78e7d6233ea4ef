"""How long partitions of a cluster stand still: brokers killed and stopped, ten thousand moved.

    python -m benchmarks.failover [--rounds 10] [--partitions 10000] [--moved 50] [--rate 300]
        [--storage-rounds 2] [--zookeepers 3] [--hogs 18] [--minutes 60] [--folder kept] [--kills]

Invariants: real brokers over a real ZooKeeper and real bookies, all on this machine; an
idempotent producer (librdkafka) writes to every partition, and its longest pause is the figure.
What it wrote is read back and compared after each series.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.brokers import SESSION_MS, Brokers, Load
from tests.integration.broker import wait_until

from headrace.dev_cluster.cluster import ClusterOptions, DevCluster
from headrace.dev_cluster.parts import find_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.dev_cluster.processes import ServerProcess

PARTITIONS = 6
GROUPS = 12
COMMIT_PAUSE_S = 0.05
"""Between two commits of a group."""
SETTLE_S = 5.0
"""Until a broker that came back has its share again."""
LOAD_SETTLE_S = 60.0
"""Until the load average shows the processes besides."""
STORAGE_SETTLE_S = 2.0
"""Until clients go on that a bookie or a ZooKeeper has held up."""
BOOKIE_SESSION_S = 12.0
"""Until the session of a killed bookie has ended (`zkTimeout`): one that is started before waits
for that, and gives up if it takes longer."""


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


class Readers:
    """A consumer of every partition, and members of groups that commit offsets, in threads."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.received_at: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self.commits: list[list[tuple[float, float]]] = [[] for _ in range(GROUPS)]
        """Of each group, when each commit began and how long it took."""
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._consume, name="consumer", daemon=True)]
        for number in range(GROUPS):
            thread = threading.Thread(target=self._commit, args=(number,), daemon=True)
            self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def _client(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": group,
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def _consume(self) -> None:
        client = self._client("readers")
        client.assign([TopicPartition(self._topic, number, 0) for number in self.received_at])
        while not self._is_over.is_set():
            for message in client.consume(100, 0.005):
                if message.error() is None:
                    self.received_at[message.partition()].append(time.monotonic())
        client.close()

    def _commit(self, number: int) -> None:
        client = self._client(f"group-{number}")
        count, began = 0, time.monotonic()
        while not self._is_over.is_set():
            count += 1
            try:
                offsets = [TopicPartition(self._topic, number, count)]
                client.commit(offsets=offsets, asynchronous=False)
            except KafkaException:
                continue  # the wait goes on
            self.commits[number].append((began, time.monotonic() - began))
            time.sleep(COMMIT_PAUSE_S)
            began = time.monotonic()
        client.close()

    def coordinators(self) -> list[int]:
        """The broker that coordinates each group."""
        client = AdminClient({"bootstrap.servers": self._bootstrap})
        names = [f"group-{number}" for number in range(GROUPS)]

        def known() -> list[int]:
            asked = client.describe_consumer_groups(names, request_timeout=30)
            try:
                return [asked[name].result().coordinator.id for name in names]
            except KafkaException:  # one is moving
                return []

        return wait_until(known)

    def waits_s(self, since: float, acked_at: list[float], part: int) -> float:
        """The longest time from a record's acknowledgement to its arrival at the consumer."""
        pairs = zip(acked_at, self.received_at[part], strict=False)
        return max((seen - acked for acked, seen in pairs if seen >= since), default=0.0)

    def commit_waits_s(self, since: float, groups: list[int]) -> list[float]:
        """The longest commit of each of these groups, retries included."""
        return [
            max((took for began, took in self.commits[one] if began + took >= since), default=0.0)
            for one in groups
        ]

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)


class Moves:
    """What each partition's clients wait for: of those that moved, the longest time that one record
    took to be acknowledged, and from then on to be consumed; and of each group, the longest that a
    commit took. The load leaves the processors time: it sends `rate` records a second, and so sees
    a pause up to `partitions / rate` seconds shorter than it was."""

    def __init__(self, brokers: Brokers, partitions: int, rate: int, under: DevCluster) -> None:
        self._brokers = brokers
        self._under = under
        self._topic = f"moves-{time.time_ns()}"
        _create(brokers, self._topic, partitions)
        self._load = Load(brokers.bootstrap, self._topic, partitions, rate)
        self._load.wait_acked(20)
        self._readers = Readers(brokers.bootstrap, self._topic, partitions)
        self.found: dict[str, list[float]] = {}

    def _measure(self, how: str, change: Callable[[], object], wait_s: float) -> None:
        """Of the partitions that moved; of all where none did."""
        before, led = self._brokers.leaders(self._topic), self._readers.coordinators()
        began = time.monotonic()
        change()
        time.sleep(wait_s)
        self._load.wait_acked(3)
        after, leading = self._brokers.leaders(self._topic), self._readers.coordinators()
        moved = [part for part, leader in after.items() if leader != before[part]]
        parts = moved or list(after)
        waits = self._load.waits_s(began, parts)
        self.found.setdefault(how, []).extend(waits)
        acked_at = self._load.acked_at
        consumed = [self._readers.waits_s(began, acked_at[part], part) for part in parts]
        self.found.setdefault(f"{how}, consumers", []).extend(consumed)
        groups = [one for one in range(GROUPS) if led[one] != leading[one]]
        commits = self._readers.commit_waits_s(began, groups or list(range(GROUPS)))
        self.found.setdefault(f"{how}, commits", []).extend(commits)
        so_far = _percentiles(sorted(self.found[how]))
        at, load = time.strftime("%H:%M:%S"), os.getloadavg()[0]
        print(
            f"{at} {how}: slowest {max(waits):.3f} s, consumer {max(consumed):.3f}, commit"
            f" {max(commits):.3f}, load {load:.0f}; so far", so_far,
            flush=True,
        )  # fmt: skip

    def _drain(self, broker_id: int, *options: str) -> None:
        command = [sys.executable, "-m", "headrace.cli.main", "cluster", "drain", *options]
        address = self._under.zookeeper_addresses
        subprocess.run([*command, str(broker_id), "--zookeeper", address], check=True)

    def _back(self, server: ServerProcess) -> None:
        server.start()
        self._under.wait_ready(server)

    def brokers(self, number: int) -> None:
        """One broker is stopped and comes back, is drained and gets its share again (`undrain`), is
        killed and comes back."""
        brokers = self._brokers
        victim = number % len(brokers.by_id) + 1
        self._measure("stop", brokers.by_id[victim].stop, 0.5)
        self._measure("return", partial(brokers.add, victim), SETTLE_S)
        self._measure("drain", partial(self._drain, victim), SETTLE_S)
        self._measure("undrain", partial(self._drain, victim, "--undo"), SETTLE_S)
        self.kill(number)

    def kill(self, number: int) -> None:
        """One broker is killed and comes back."""
        brokers = self._brokers
        victim = number % len(brokers.by_id) + 1
        self._measure("kill -9", brokers.by_id[victim].kill, SETTLE_S)
        self._measure("return after kill", partial(brokers.add, victim), SETTLE_S)

    def storage(self, number: int) -> None:
        """Nothing happens, which shows what busy processors alone cost; a bookie and the ensemble's
        leader are killed, and come back."""
        self._measure("no event", lambda: None, STORAGE_SETTLE_S)
        bookie = self._under.bookies[number % len(self._under.bookies)]
        self._measure("bookie killed", bookie.kill, STORAGE_SETTLE_S)
        time.sleep(BOOKIE_SESSION_S)
        self._measure("bookie back", partial(self._back, bookie), STORAGE_SETTLE_S)
        if len(self._under.zookeepers) > 1:
            leader = next(one for one in self._under.zookeepers if _is_leader(one))
            self._measure("ZooKeeper's leader killed", leader.kill, STORAGE_SETTLE_S)
            self._measure("ZooKeeper back", partial(self._back, leader), STORAGE_SETTLE_S)

    def close(self) -> None:
        """End the load. What was acknowledged must be there, once, in order."""
        self._readers.stop()
        self._load.stop()
        self._load.check(self._brokers.bootstrap)


@contextmanager
def _busy(hogs: int) -> Iterator[None]:
    """So many processes besides, each of which wants a whole processor."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command) for _ in range(hogs)]
    try:
        yield
    finally:
        for hog in running:
            hog.kill()
            hog.wait()


def _is_leader(zookeeper: ServerProcess) -> bool:
    with socket.create_connection((zookeeper.host, zookeeper.port), 5) as connection:
        connection.sendall(b"srvr")
        with connection.makefile("rb") as answer:
            return b"Mode: leader" in answer.read()


def _percentiles(gaps: list[float]) -> dict[str, float]:
    at = [("p50_s", len(gaps) // 2), ("p99_s", len(gaps) * 99 // 100), ("max_s", len(gaps) - 1)]
    return {"moves": len(gaps), **{name: round(gaps[index], 3) for name, index in at}}


def _create(brokers: Brokers, topic: str, partitions: int) -> None:
    client = AdminClient({"bootstrap.servers": brokers.bootstrap})
    client.create_topics([NewTopic(topic, partitions)])[topic].result(60)


def many(brokers: Brokers, partitions: int, hogs: int) -> dict[str, float]:
    """Seconds until `partitions` are led again when one of three brokers is killed, and until it
    has its share again, beside so many processes that want a processor."""
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
    with _busy(hogs):
        time.sleep(LOAD_SETTLE_S if hogs else 0)
        load = os.getloadavg()[0]
        brokers.by_id[2].kill()
        failed_over = wait(lambda leaders: 2 not in leaders)
        began = time.monotonic()
        brokers.add(2)
        wait(lambda leaders: leaders.count(2) > partitions // 3 - 100)
        joined = time.monotonic() - began
    return {"fail_over_s": failed_over, "join_s": joined, "load_average": load}


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--moved", type=int, default=50, help="partitions that move; 0: none")
    parser.add_argument("--kills", action="store_true", help="of the moves, only kill -9")
    parser.add_argument("--rate", type=int, default=300, help="records a second while they move")
    parser.add_argument("--storage-rounds", type=int, default=0, help="bookies killed")
    parser.add_argument("--zookeepers", type=int, default=1)
    parser.add_argument("--hogs", type=int, default=0, help="processes that want a processor")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no round after that")
    parser.add_argument("--how", default="kill,stop")
    parser.add_argument("--folder", help="put the servers' files here and keep them")
    asked = parser.parse_args()
    ends = time.monotonic() + 60 * asked.minutes
    figures: dict[str, object] = {"session_ms": SESSION_MS, "rounds": asked.rounds}
    figures["load_average"] = os.getloadavg()
    removed = partial(tempfile.TemporaryDirectory, prefix="headrace-failover-")
    with nullcontext(asked.folder) if asked.folder else removed() as name:
        folder = Path(name).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        options = ClusterOptions(bookie_count=4, zookeeper_count=asked.zookeepers)
        with DevCluster(folder / "cluster", options, find_parts()) as under:
            brokers = Brokers(folder, under.zookeeper_addresses, 3)
            try:
                if asked.moved:
                    moves = Moves(brokers, asked.moved, asked.rate, under)
                    with _busy(asked.hogs):
                        events = moves.kill if asked.kills else moves.brokers
                        rounds = [partial(events, n) for n in range(asked.rounds)]
                        rounds += [partial(moves.storage, n) for n in range(asked.storage_rounds)]
                        for run_round in rounds:
                            if time.monotonic() >= ends:
                                break
                            run_round()
                    moves.close()
                    found = moves.found
                    figures["moved"] = {how: _percentiles(sorted(found[how])) for how in found}
                    print("moved", figures["moved"], flush=True)
                for how in filter(None, asked.how.split(",")):
                    gaps = sorted(pauses(brokers, asked.rounds, how))
                    figures[how] = {
                        "median_s": round(statistics.median(gaps), 3),
                        "max_s": round(gaps[-1], 3),
                        "all_s": [round(value, 3) for value in gaps],
                    }
                    print(how, figures[how], flush=True)
                if asked.partitions:
                    figures["many"] = many(brokers, asked.partitions, asked.hogs)
            finally:
                brokers.close()
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
