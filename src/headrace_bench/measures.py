"""One run of each kind of workload against one broker: returns figures, prints nothing.

Invariants: a run creates its own topic and deletes it. Broker CPU is the broker process's own, user
and kernel, over exactly the run, divided by everything that the broker did in it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace_bench import java_tools, latency, queue_rates, raw_client, transactions
from headrace_bench.peers import Peer, cpu_s, rss_bytes
from headrace_bench.processes import SystemFailed
from headrace_bench.tools import check_server
from headrace_bench.workloads import POLICY_SETTINGS, Side, Workload

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, float]
FILL_RECORD_BYTES = 1024
SMALL_RECORD_BYTES = 100
TRANSACTION_MS = 50
_FLUSH_MAX_S = 90.0
_numbers = iter(range(1, 1_000_000))


class Topic:
    """A topic for one run: `with Topic(...) as name`."""

    def __init__(self, peer: Peer, policy: str, partitions: int = 1) -> None:
        self._admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        self.name = f"bench-{next(_numbers):06d}"
        self._new = NewTopic(self.name, partitions, 1, config=POLICY_SETTINGS[peer.name, policy])

    def __enter__(self) -> str:
        self._admin.create_topics([self._new])[self.name].result(30)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            topic = self._admin.list_topics(self.name, timeout=10).topics.get(self.name)
            if topic and all(p.leader >= 0 for p in topic.partitions.values()):
                return self.name
            time.sleep(0.05)
        raise TimeoutError(f"topic {self.name} got no leader")

    def __exit__(self, *_: object) -> None:
        try:
            self._admin.delete_topics([self.name])[self.name].result(30)
        except KafkaException:
            pass


class Measures:
    """Runs workloads; remembers each side's speed, so that runs have the intended length."""

    def __init__(self, length: float) -> None:
        self._length = length  # 1.0, or less for a quick look
        self._rates: dict[tuple[str, Side], float] = {}
        self._filled: dict[tuple[str, str], tuple[Topic, str, int]] = {}

    def run(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        """One measured run."""
        kinds: dict[str, Callable[[Workload, Peer, Side], Figures]] = {
            "produce": self._produce,
            "single": self._single,
            "single_librdkafka": self._single_librdkafka,
            "consume": self._consume,
            "fetch": self._fetch,
            "latency": self._latency,
            "latency_tool": self._latency_tool,
            "copy": self._copy,
            "commit": self._commit,
            "isolation": self._isolation,
            "share": self._share,
            "share_by_key": self._share_by_key,
            "http_queue": self._http_queue,
        }
        return kinds[workload.kind](workload, peer, side)

    def calibrate(self, workload: Workload, peer: Peer, side: Side) -> None:
        """A short run that warms up this path of the broker and determines how long a run must
        be."""
        if workload.kind == "produce":
            size = workload.options["record_bytes"]
            records = int((40_000_000 if size == 100 else 120_000_000) / size * self._length)
            with Topic(peer, side.policy, workload.options["partitions"]) as topic:
                done = java_tools.producer_performance(
                    peer.bootstrap, topic, records, size, records // 3
                )
            self._rates[workload.name, side] = done.records_per_s
        elif workload.kind == "share":  # a path through a JVM needs as much as a run
            self.run(workload, peer, side)
        elif workload.kind in ("consume", "fetch"):
            self._fill(workload, peer)
        elif workload.kind != "idle":
            quick = Measures(min(0.2, self._length))
            quick.run(workload, peer, side)

    def _produce(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        size = workload.options["record_bytes"]
        rate = self._rates[workload.name, side]
        records = max(20_000, int(rate * workload.seconds * self._length))
        warmup = records // 4
        with Topic(peer, side.policy, workload.options["partitions"]) as topic:
            before = cpu_s(peer.pid)
            done = java_tools.producer_performance(peer.bootstrap, topic, records, size, warmup)
            used = cpu_s(peer.pid) - before
        return {
            "records_per_s": done.records_per_s,
            "cpu_us_per_record": used / (records + warmup) * 1e6,
            "average_latency_ms": done.average_latency_ms,
            "records": records,
        }

    def _single(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with Topic(peer, side.policy) as topic:
            before = cpu_s(peer.pid)
            done = raw_client.produce_single_records(
                peer.bootstrap,
                topic,
                workload.options["connections"],
                workload.options["in_flight"],
                workload.seconds * self._length,
            )
            used = cpu_s(peer.pid) - before
        figures = {
            "requests_per_s": done.requests / done.seconds,
            "cpu_us_per_request": used / done.requests * 1e6,
        }
        if done.latencies_us:
            figures["p50_us"] = done.latencies_us[len(done.latencies_us) // 2]
            figures["p99_us"] = done.latencies_us[len(done.latencies_us) * 99 // 100]
        return figures

    def _single_librdkafka(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with Topic(peer, side.policy) as topic:
            producer = Producer(
                {"bootstrap.servers": peer.bootstrap, "log_level": 0, "acks": "all"}
                | {"batch.num.messages": 1, "linger.ms": 0, "socket.nagle.disable": True}
                | {"max.in.flight.requests.per.connection": workload.options["in_flight"]}
                | {"queue.buffering.max.messages": 2_000, "delivery.report.only.error": True}
            )
            failed: list[object] = []

            def report(error: object, _message: object) -> None:
                failed.append(error)

            producer.list_topics(topic, timeout=10)
            value = b"x" * 100
            before, started = cpu_s(peer.pid), time.perf_counter()
            deadline = started + workload.seconds * self._length
            sent = 0
            while time.perf_counter() < deadline:
                try:
                    for _ in range(100):
                        producer.produce(topic, value, partition=0, on_delivery=report)
                        sent += 1
                except BufferError:
                    producer.poll(0.01)
                    check_server()
            left = _flush(producer)
            if left or failed:
                raise SystemFailed(f"librdkafka could not deliver {left} records: {failed[:1]}")
            seconds = time.perf_counter() - started
            used = cpu_s(peer.pid) - before
        return {"requests_per_s": sent / seconds, "cpu_us_per_request": used / sent * 1e6}

    def _fill(self, workload: Workload, peer: Peer) -> tuple[str, int]:
        """The topic to read, written once per broker."""
        size_mb = max(300, int(workload.options["size_mb"] * self._length))
        records = size_mb * 1_000_000 // FILL_RECORD_BYTES
        return self._filled_topic(peer, records, FILL_RECORD_BYTES, 0)

    def _filled_topic(
        self, peer: Peer, records: int, record_bytes: int, transaction_ms: int
    ) -> tuple[str, int]:
        key = (peer.name, f"{records} of {record_bytes}, {transaction_ms}")
        if key not in self._filled:
            # Synced writes would only take longer; reads are the same either way.
            topic = Topic(peer, "unsynced")
            name = topic.__enter__()
            java_tools.producer_performance(
                peer.bootstrap, name, records, record_bytes, 0, transaction_ms
            )
            self._filled[key] = (topic, name, records)
        _, name, records = self._filled[key]
        return name, records

    def forget_filled(self) -> None:
        """Delete the topics that were written to be read."""
        for topic, _, _ in self._filled.values():
            topic.__exit__()
        self._filled.clear()

    def forget_peer(self, peer: Peer) -> None:
        """Its topics are deleted with it."""
        for key in [key for key in self._filled if key[0] == peer.name]:
            del self._filled[key]

    def _consume(self, workload: Workload, peer: Peer, _side: Side) -> Figures:
        topic, records = self._fill(workload, peer)
        before = cpu_s(peer.pid)
        done = java_tools.consumer_performance(peer.bootstrap, topic, records)
        used = cpu_s(peer.pid) - before
        if done.records < records:
            raise RuntimeError(f"only {done.records} of {records} records were read")
        size_gb = done.size_mb * 1_048_576 / 1e9
        return {
            "mb_per_s": done.mb_per_s * 1.048576,
            "cpu_s_per_gb": used / size_gb,
            "records": done.records,
        }

    def _fetch(self, workload: Workload, peer: Peer, _side: Side) -> Figures:
        topic, records = self._fill(workload, peer)
        before = cpu_s(peer.pid)
        size_bytes, seconds = raw_client.fetch_all(
            peer.bootstrap, topic, records, workload.options["fetch_bytes"]
        )
        used = cpu_s(peer.pid) - before
        return {
            "mb_per_s": size_bytes / seconds / 1e6,
            "cpu_s_per_gb": used / (size_bytes / 1e9),
        }

    def _latency(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with Topic(peer, side.policy) as topic:
            before = cpu_s(peer.pid)
            seen = latency.measure(
                peer.bootstrap,
                topic,
                workload.options["rate_per_s"],
                workload.seconds * self._length,
            )
            used = cpu_s(peer.pid) - before
        return {**seen._asdict(), "cpu_us_per_message": used / seen.messages * 1e6}

    def _latency_tool(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with Topic(peer, side.policy) as topic:
            records = max(500, int(workload.options["records"] * self._length))
            return java_tools.end_to_end_latency(peer.bootstrap, topic, records)._asdict()

    def _copy(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        records = int(workload.options["records"] * self._length)
        source, _ = self._filled_topic(peer, records, SMALL_RECORD_BYTES, 0)
        with Topic(peer, side.policy) as target:
            return transactions.copy(peer, source, target, records)

    def _commit(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with Topic(peer, side.policy) as topic:
            return transactions.commit(
                peer, topic, workload.options["record_bytes"], workload.seconds * self._length
            )

    def _isolation(self, workload: Workload, peer: Peer, _side: Side) -> Figures:
        records = int(workload.options["size_mb"] * self._length) * 1_000_000 // FILL_RECORD_BYTES
        topic, records = self._filled_topic(peer, records, FILL_RECORD_BYTES, TRANSACTION_MS)
        return transactions.isolation(peer, topic, records, workload.options["fetch_bytes"])

    def _queue(self, workload: Workload, peer: Peer, side: Side) -> queue_rates.Queue:
        records = int(workload.options["records"] * self._length)
        topic = Topic(peer, side.policy, workload.options["partitions"])
        return queue_rates.Queue(peer, topic, records)

    def _share(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with self._queue(workload, peer, side) as queue:
            return queue.share("unordered", {})

    def _share_by_key(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with self._queue(workload, peer, side) as queue:
            return queue.share_by_key()

    def _http_queue(self, workload: Workload, peer: Peer, side: Side) -> Figures:
        with self._queue(workload, peer, side) as queue:
            return queue.over_http(workload.options["clients"])


def _flush(producer: Producer) -> int:
    """Wait for all responses; returns how many are missing. In slices, so that signals are
    handled."""
    deadline = time.monotonic() + _FLUSH_MAX_S
    while left := producer.flush(0.5):
        check_server()
        if time.monotonic() > deadline:
            return left
    return 0


def at_rest(peer: Peer, connections: int) -> Figures:
    """Restart `peer`; measures its start-up time, idle memory, and memory with idle connections."""
    peer.start()
    try:
        time.sleep(2.0)
        figures = {"ready_s": peer.ready_s, "idle_mb": rss_bytes(peer.pid) / 1e6}
        opened = open_idle(peer, connections)
        time.sleep(1.0)
        figures["connections_mb"] = rss_bytes(peer.pid) / 1e6
        figures["connections"] = _still_alive(opened)
        for connection in opened:
            connection.close()
        return figures
    finally:
        peer.stop()


_HELLO = struct.pack(">ihhih", 12, 18, 0, 1, 2) + b"ib"


def open_idle(peer: Peer, connections: int) -> list[socket.socket]:
    """Connections that have each received a response, from several loopback addresses."""
    host, _, port = peer.bootstrap.rpartition(":")
    opened = []
    for index in range(connections):
        source = (f"127.0.0.{2 + index % 8}", 0)
        connection = socket.create_connection((host, int(port)), 30.0, source)
        connection.sendall(_HELLO)
        if not connection.recv(4096):
            raise ConnectionError(f"the broker closed connection {index}")
        opened.append(connection)
    return opened


def _still_alive(opened: list[socket.socket]) -> int:
    """The number of connections that the broker has not closed."""
    closed = 0
    with selectors.DefaultSelector() as selector:
        for connection in opened:
            selector.register(connection, selectors.EVENT_READ)
        for key, _ in selector.select(0):
            found: Any = key.fileobj
            closed += found.recv(4096) == b""
    return len(opened) - closed
