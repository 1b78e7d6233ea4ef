"""Several broker processes over a real ZooKeeper and real bookies, and a load that keeps the books.

Invariants: a test knows what a client knows. The load is produced by an idempotent producer
which retries, and every delivery report is written down; what is read back at the end must be that,
once each, in the order in which it was sent.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

from tests.integration.broker import Broker
from tests.integration.clients import TIMEOUT_S, admin
from tests.waiting import wait_until

SESSION_MS = 2_000


class Brokers:
    """Brokers by id, of one cluster."""

    def __init__(
        self, folder, zookeeper: str, count: int = 3, *options: str, host: str = "127.0.0.1"
    ) -> None:
        """`host`: where each listens; {} is its id plus one."""
        self._folder, self._zookeeper, self._options = folder, zookeeper, options
        self._host = host
        self.by_id: dict[int, Broker] = {}
        for broker_id in range(1, count + 1):
            self.add(broker_id)

    def prepare(self, broker_id: int, *more: str) -> Broker:
        """Another one, with `more` options, that is not started yet."""
        options = ("--zookeeper", self._zookeeper, "--broker-id", str(broker_id), *more)
        broker = self.by_id[broker_id] = Broker(
            self._folder / f"broker-{broker_id}",
            *options,
            *("--session-timeout-ms", str(SESSION_MS), *self._options),
        )
        broker.kafka = broker.http = f"{self._host.format(broker_id + 1)}:0"
        return broker

    def add(self, broker_id: int) -> Broker:
        """Start another one, or one that was prepared or stopped."""
        broker = self.by_id.get(broker_id) or self.prepare(broker_id)
        broker.start()
        return broker

    @property
    def bootstrap(self) -> str:
        """The addresses of all that run."""
        return ",".join(b.kafka for b in self.by_id.values() if b.process is not None)

    def signal(self, broker_id: int, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        os.kill(self.by_id[broker_id].process.pid, number)

    def close(self) -> None:
        for broker in self.by_id.values():
            if broker.process is not None:
                os.kill(broker.process.pid, signal.SIGCONT)
                broker.kill()

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition -> broker; waits until every partition has one."""
        client = admin(self.bootstrap)

        def known() -> dict[int, int]:
            found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
            leaders = {number: partition.leader for number, partition in found.items()}
            return {} if -1 in leaders.values() else leaders

        return wait_until(known)


class Load:
    """An idempotent producer in a thread, and the answers it got."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, rate: int = 1_000, **login: str
    ) -> None:
        self._login = login
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._pause_s = 1 / rate
        self._is_over = threading.Event()
        self.sent: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
        self.acked: dict[int, list[tuple[int, bytes]]] = {n: [] for n in range(partitions)}
        self.sent_at: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self.acked_at: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self.errors: list[object] = []
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "delivery.timeout.ms": 300_000,
                "log_level": 0,
                **self._login,
            }
        )

        def delivered(error, message):
            if error is not None:
                self.errors.append(error)
                return
            number = message.partition()
            self.acked[number].append((message.offset(), message.value()))
            self.acked_at[number].append(time.monotonic())

        count = 0
        while not self._is_over.is_set():
            for number in range(self._partitions):
                value = b"%d" % count
                count += 1
                self.sent[number].append(value)
                self.sent_at[number].append(time.monotonic())
                producer.produce(self._topic, value, partition=number, on_delivery=delivered)
                producer.poll(self._pause_s)
        self.left = producer.flush(200)

    def wait_acked(self, more: int = 1) -> None:
        """Wait until every partition has had `more` acknowledgements of what is sent from now on:
        what was sent before may have been acknowledged before, and reported late."""
        want = {number: len(sent) + more for number, sent in self.sent.items()}
        wait_until(lambda: all(len(self.acked[n]) >= want[n] for n in want), 90)

    def is_served(self, within_s: float, more: int) -> bool:
        """Whether so many that are sent from now on are acknowledged in time."""
        want = {number: len(sent) + more for number, sent in self.sent.items()}
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if all(len(self.acked[n]) >= want[n] for n in want):
                return True
            time.sleep(0.01)
        return False

    def stop(self) -> None:
        """End it; all that was sent must have been acknowledged."""
        self._is_over.set()
        self._thread.join(240)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors[:3]
        assert self.left == 0

    def gap_s(self, since: float) -> float:
        """The longest time between two acknowledgements of one partition, after `since`."""
        longest = 0.0
        for times in self.acked_at.values():
            for before, after in itertools.pairwise(times):
                if after >= since:
                    longest = max(longest, after - max(before, since))
        return longest

    def gaps_s(self, since: float, parts: list[int]) -> list[float]:
        """The same, of each of these partitions."""
        found = []
        for number in parts:
            times = [at for at in self.acked_at[number] if at >= since]
            found.append(
                max(after - before for before, after in itertools.pairwise([since, *times]))
            )
        return found

    def waits_s(self, since: float, parts: list[int]) -> list[float]:
        """The longest time that a record which was sent or open after `since` took to be
        acknowledged, of each of these partitions."""
        found = []
        for number in parts:
            times = zip(self.sent_at[number], self.acked_at[number], strict=False)
            found.append(max(acked - sent for sent, acked in times if acked >= since))
        return found

    def check(self, bootstrap: str, **login: str) -> int:
        """Read everything back; how many records. Each was sent, acknowledged and stored once."""
        from confluent_kafka import Consumer, TopicPartition

        client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "check",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "log_level": 0,
                **login,
            }
        )
        found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in self.sent}
        client.assign([TopicPartition(self._topic, number, 0) for number in self.sent])
        total = sum(map(len, self.acked.values()))
        deadline = time.monotonic() + 120
        while sum(map(len, found.values())) < total:
            assert time.monotonic() < deadline, {n: len(f) for n, f in found.items()}
            for message in client.consume(5_000, 0.2):
                assert message.error() is None, message.error()
                found[message.partition()].append((message.offset(), message.value()))
        assert not client.consume(1, 0.5), "nothing but what was acknowledged"
        client.close()
        for number, sent in self.sent.items():
            assert found[number] == self.acked[number], f"partition {number}"
            assert [value for _offset, value in found[number]] == sent
            assert [offset for offset, _value in found[number]] == list(range(len(sent)))
        return total
