"""Headrace and RocketMQ as RocketMQ 5's clients use them: over gRPC, with the same load.

Invariants: RocketMQ is its proxy with a broker in the same process, as it ships for one machine,
and a name server; for lite topics, which it does not have then, the broker is a process of its own.
The load is `headrace_bench.rocketmq`, one process; topics have QUEUES queues.
"""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.dev_cluster.ports import free_port
from headrace_bench.hdr import HdrHistogram
from headrace_bench.peers import Headrace
from headrace_bench.processes import SystemFailed, usage_of
from headrace_bench.rocketmq import (
    BATCH,
    DELAY,
    IN_FLIGHT,
    LITE,
    NORMAL,
    POLL_S,
    QUEUES,
    group_of,
)
from headrace_bench.systems import paced, rocketmq
from headrace_bench.systems.kafka_protocol import headrace_version
from headrace_bench.systems.system import Latency, System
from headrace_bench.tools import Steady, Window, check_server
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from headrace_bench.figures import Figures
    from headrace_bench.loads import Acknowledge
    from headrace_bench.rocketmq.client import Client
    from headrace_bench.systems.system import Side

DUE_IN_S = 6.0
_LATE_MAX_S = 60.0
_EARLY_NS_MAX = 1_000_000  # the due time is in whole milliseconds
_HEARTBEAT_S = 10.0
_STEP_S = 0.1
_TURN_S = 0.001  # how long one of two clients waits while the other one's answers arrive
_LITE_SETTINGS = "enableLmq=true\nenableMultiDispatch=true\n"
_EMPTY_SHARE = 0.8  # of a queue: its window ends before the last receives are only half full


class Server(Protocol):
    """A broker with RocketMQ's gRPC service."""

    port: int
    """Of the gRPC service."""
    ready_s: float

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        ...

    def start(self) -> None:
        """Start it with an empty folder; returns when it responds."""
        ...

    def stop(self) -> None:
        """Stop it and remove its data."""
        ...

    def is_alive(self) -> bool:
        """It was started, and all of its processes are running."""
        ...

    def create(self, name: str, message_type: str) -> None:
        """Create a topic of QUEUES queues, and its group."""
        ...


class OwnBroker(Headrace):
    """Headrace with its RocketMQ listener."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = 0

    @property
    def pids(self) -> list[int]:
        """See Server."""
        return [self.pid]

    def start(self) -> None:
        """See Server."""
        self.port = free_port()
        self.options = ["--rocketmq", f"127.0.0.1:{self.port}"]
        super().start()

    def create(self, name: str, message_type: str) -> None:
        """See Server."""
        config = {"headrace.message.type": message_type}
        new = NewTopic(name, QUEUES, 1, config=config)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([new])[name].result(60)


class Proxy(rocketmq.RocketMq):
    """RocketMQ's proxy with a broker, and a name server."""

    def __init__(self, folder: Path, policy: str, *, is_apart: bool = False) -> None:
        """`is_apart`: the broker is a process of its own, and has lite topics."""
        super().__init__(folder, policy)
        self._broker_port = 0
        self._is_apart = is_apart

    def spawn(self) -> None:
        """See OwnServer."""
        self._broker_port = free_port()
        settings = self.spawn_names(self._broker_port)
        proxy = self.processes.folder / "proxy.json"
        mode = "cluster" if self._is_apart else "local"
        ports = {"grpcServerPort": self.port, "remotingListenPort": free_port()}
        named = {"rocketMQClusterName": "bench", "proxyMode": mode.upper()}
        named["namesrvAddr"] = self.names
        proxy.write_text(json.dumps({**named, **ports}))
        words = ["-n", self.names, "-pm", mode, "-pc", str(proxy)]
        if self._is_apart:
            settings.write_text(settings.read_text() + _LITE_SETTINGS)
            self.spawn_java("1g", "broker.BrokerStartup", "-c", str(settings))
            self.processes.wait_until(lambda: self.accepts(self._broker_port))
        else:
            words += ["-bc", str(settings)]
        self.spawn_java("1g", "proxy.ProxyStartup", *words, classes=_native_classes())

    def answers(self) -> bool:
        """See OwnServer."""
        return self.accepts(self.port) and self.accepts(self._broker_port)

    def create(self, name: str, message_type: str) -> None:
        """See Server."""
        more = ("-a", f"+message.type={message_type.upper()}")
        if not self.makes_topic(name, QUEUES, *more):
            raise SystemFailed(f"RocketMQ did not create topic {name}")
        self.create_group(group_of(name), name if message_type == LITE else "")

    def create_group(self, name: str, lite_parent: str = "") -> None:
        """Create a group; `lite_parent`: the topic to whose lite topics it subscribes."""
        words = ["-o", "true", "--attributes", f"+lite.bind.topic={lite_parent}"]
        more = words if lite_parent else []
        self.run_admin("updateSubGroup", "-c", "bench", "-g", name, *more)


class RocketSide:
    """One server with one guarantee; see Side."""

    acknowledges: Collection[Acknowledge] = frozenset({"each", "batch"})

    def __init__(
        self, name: str, policy: str, words: str, server: Server, with_lite: Server | None = None
    ) -> None:
        """`with_lite`: what runs instead of `server` for lite topics."""
        self.name = name
        self.policy = policy
        self.words = words
        self._usual = self._server = server
        self._with_lite = with_lite or server

    @property
    def ready_s(self) -> float:
        """See Side."""
        return self._server.ready_s

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return self._server.pids

    def start(self) -> None:
        """See Side."""
        self._server = self._usual
        self._server.start()

    def stop(self) -> None:
        """See Side."""
        self._server.stop()

    def is_alive(self) -> bool:
        """See Side."""
        return self._server.is_alive()

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """See Side: a message with each call, IN_FLIGHT calls in progress."""
        from headrace_bench.rocketmq.client import Client

        self._server.create(name, NORMAL)
        client = Client(self._server.port, "producer", name)
        client.prepare(b"x" * record_bytes)

        def step() -> int:
            for _ in range(IN_FLIGHT - client.open_count):
                client.send()
            return sum(one.done for one in client.poll(1.0))

        try:
            done = steady(step, window, self.pids)
            while client.open_count:
                client.poll(1.0)
        finally:
            client.close()
        return done

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side."""
        from headrace_bench.rocketmq.client import Consumer

        at_once = 1 if acknowledge == "each" else BATCH
        window = window._replace(records_enough=records * _EMPTY_SHARE)
        consumer = Consumer(self._server.port, name, at_once)
        try:
            return steady(lambda: consumer.step(1.0)[0], window, self.pids)
        finally:
            consumer.close()

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> None:
        """See Side: this protocol has no consumers of a log."""
        del name, records, record_bytes, window

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency:
        """See Side."""
        self._server.create(name, NORMAL)
        module = "headrace_bench.rocketmq.channel"
        return paced.measure(module, self._server.port, name, rate_per_s, seconds)

    def drop(self, name: str) -> None:
        """See Side: topics are deleted with the broker."""

    def delayed(self, name: str, count: int) -> Latency:
        """How late messages arrive that are all due at one instant."""
        from headrace_bench.rocketmq.client import Client, Consumer

        self._server.create(name, DELAY)
        consumer = Consumer(self._server.port, name)
        consumer.step(0.5)
        client = Client(self._server.port, "producer", name)
        histogram = HdrHistogram()
        try:
            due_ms = int((time.time() + DUE_IN_S) * 1_000)
            client.prepare(b"x" * 128, due_ms)
            sent = 0
            while sent < count or client.open_count:
                for _ in range(min(IN_FLIGHT - client.open_count, count - sent)):
                    client.send()
                    sent += 1
                client.poll(1.0)
            if time.time() * 1_000 > due_ms - 500:
                raise SystemFailed(f"{count} messages were not sent before they were due")
            while histogram.count < count:
                bodies = consumer.step(1.0)[1]
                late_ns = time.time_ns() - due_ms * 1_000_000
                if bodies and late_ns < -_EARLY_NS_MAX:
                    raise SystemFailed(
                        f"messages came {-late_ns / 1e6:.0f} ms before they were due"
                    )
                if late_ns > _LATE_MAX_S * 1e9:
                    raise SystemFailed(f"{count - histogram.count} of {count} did not arrive")
                for _ in bodies:
                    histogram.add(late_ns)
        finally:
            client.close()
            consumer.close()
        return Latency(histogram, {})

    def lite(self, name: str, count: int, record_bytes: int, window: Window) -> Steady:
        """Send to `count` lite topics in turn, and consume them: acknowledged messages count. As
        many as there are lite topics are on the way at once."""
        from headrace_bench.rocketmq.client import Client, Consumer

        if self._server is not self._with_lite:
            self._server.stop()
            self._server = self._with_lite
            self._server.start()
        self._server.create(name, LITE)
        lite_topics = [f"lite-{number}" for number in range(count)]
        consumer = Consumer(self._server.port, name, BATCH, lite_topics)
        producer = Client(self._server.port, "producer", name)
        producer.prepare(b"x" * record_bytes, lite_topics=lite_topics)
        on_the_way = 0

        def step() -> int:
            nonlocal on_the_way
            for _ in range(min(IN_FLIGHT - producer.open_count, count - on_the_way)):
                producer.send()
                on_the_way += 1
            producer.poll(0)
            done = consumer.step(_TURN_S)[0]
            on_the_way -= done
            return done

        try:
            return steady(step, window, self.pids)
        finally:
            producer.close()
            consumer.close()

    def clients(self, name: str, count: int, seconds: float) -> Figures:
        """CPU of the server while nothing is sent: every second client is a consumer that polls
        each queue, and all send heartbeats."""
        from headrace_bench.rocketmq.client import Client

        self._server.create(name, NORMAL)
        port = self._server.port
        clients = [
            Client(port, f"client-{number}", name, group_of(name) if number % 2 else "")
            for number in range(count)
        ]
        try:
            return self._idle(clients, seconds)
        finally:
            for one in clients:
                one.close()

    def _idle(self, clients: Sequence[Client], seconds: float) -> Figures:
        began = time.perf_counter()
        beats = [began + _HEARTBEAT_S * at / len(clients) for at in range(len(clients))]
        polls: dict[Client, dict[int, int]] = {one: {} for one in clients}
        for client in clients:
            if client.group:
                polls[client] = {client.receive(queue): queue for queue in range(QUEUES)}
        before = usage_of(self.pids)
        while (now := time.perf_counter()) < began + seconds:
            check_server()
            for at, client in enumerate(clients):
                if now >= beats[at]:
                    client.heartbeat()
                    beats[at] += _HEARTBEAT_S
                for one in client.poll(0):
                    if one.stream in polls[client]:
                        queue = polls[client].pop(one.stream)
                        polls[client][client.receive(queue)] = queue
            time.sleep(_STEP_S)
        used = usage_of(self.pids).since(before)
        taken_s = time.perf_counter() - began
        return {
            "seconds": taken_s,
            "cpu_percent": used.cpu_s / taken_s * 100,
            "rss_mb": used.rss_bytes / 1e6,
        }


def steady(step: Callable[[], int], window: Window, pids: Sequence[int]) -> Steady:
    """Repeat `step`, which returns how many messages are done, for a window after its warm-up."""
    began = time.perf_counter()
    total = records = 0
    before, window_at = None, began
    while True:
        now = time.perf_counter()
        is_warm = now >= began + window.warmup_s or total >= window.records_enough / 2
        if before is None and is_warm:
            before, records, window_at = usage_of(pids), 0, now
        if before is not None:
            is_over = now >= window_at + window.seconds or total >= window.records_enough
            if is_over and records:
                return Steady(records, now - window_at, usage_of(pids).since(before), total)
            if now > window_at + window.seconds + POLL_S:
                raise SystemFailed("no message was done in the window")
        count = step()
        total += count
        records += count


def _headrace_sides(folder: Path) -> list[Side]:
    return [RocketSide("headrace", SYNCED, "default", OwnBroker(folder / "headrace-rocketmq"))]


def _rocketmq_sides(folder: Path) -> list[Side]:
    return [
        RocketSide(
            "rocketmq",
            policy,
            f"flushDiskType={rocketmq.FLUSH[policy]}",
            Proxy(folder, policy),
            Proxy(folder, policy, is_apart=True),
        )
        for policy in (SYNCED, UNSYNCED)
    ]


def _native_classes() -> str:
    """The TLS library without which the proxy does not start: Maven's clients fetch it without its
    native part, and Spark brings it whole."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None, "its Ivy has downloaded RocketMQ"
    assert spec.origin is not None
    return ":".join(map(str, (Path(spec.origin).parent / "jars").glob("netty-tcnative-*.jar")))


def _missing() -> str:
    if importlib.util.find_spec("google.protobuf") is None:
        return "no protobuf: pip install 'headrace[rocketmq]'"
    return ""


_TOOL = (
    f"own gRPC load, 1 process: {IN_FLIGHT} sends in flight; a consumer with a poll of {BATCH}"
    f" messages for each of {QUEUES} queues"
)
HEADRACE = System(
    name="headrace",
    title="Headrace",
    tool=_TOOL,
    version=headrace_version,
    missing=_missing,
    install=lambda: None,
    sides=_headrace_sides,
)
ROCKETMQ = System(
    name="rocketmq",
    title="Apache RocketMQ",
    tool=f"{_TOOL}; proxy and broker in one process with 1 GiB of heap, for lite topics in two",
    version=lambda: rocketmq.VERSION,
    missing=lambda: rocketmq.missing() or _missing(),
    install=rocketmq.install,
    sides=_rocketmq_sides,
)
