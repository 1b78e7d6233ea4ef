"""Headrace and Apache Kafka: the same tools and clients, because both use the same protocol.

Invariants: Kafka's own ProducerPerformance and ConsumerPerformance write and read, librdkafka
measures latency, franz-go empties queues; each side has its own broker.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.java.jars import cache_folder
from headrace_bench import java_tools, latency, parts
from headrace_bench.hdr import HdrHistogram
from headrace_bench.kafka_parts import KAFKA_VERSION, java, kafka_classpath
from headrace_bench.peers import Headrace, Kafka
from headrace_bench.systems import share_groups
from headrace_bench.systems.system import Latency, Side, System, read_again
from headrace_bench.tools import Steady, Tool, Window, run_tool, watch
from headrace_bench.workloads import POLICY_SETTINGS, SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from headrace_bench.loads import Acknowledge

_WORDS = {
    ("headrace", SYNCED): "default",
    ("headrace", UNSYNCED): "flush.ms=1000",
    ("kafka", SYNCED): "flush.messages=1",
    ("kafka", UNSYNCED): "default",
}


class KafkaProtocolSide:
    """One broker, Headrace or Kafka, whose topics have one sync policy."""

    acknowledges: Collection[Acknowledge] = ("each", "hundred", "confirmed")

    def __init__(self, peer: Headrace | Kafka, policy: str) -> None:
        self.name = peer.name
        self.policy = policy
        self.words = _WORDS[peer.name, policy]
        self.peer = peer

    @property
    def ready_s(self) -> float:
        """See Side."""
        return self.peer.ready_s

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return [self.peer.pid]

    def start(self) -> None:
        """See Side."""
        self.peer.start()

    def stop(self) -> None:
        """See Side."""
        self.peer.stop()

    def admin(self) -> AdminClient:
        """A client; keep a reference until its responses have arrived."""
        return AdminClient({"bootstrap.servers": self.peer.bootstrap, "log_level": 0})

    def create(self, name: str, partitions: int = 1) -> None:
        """Create a topic with the guarantee of this side."""
        settings: dict[str, Any] = POLICY_SETTINGS[self.name, self.policy]
        new = NewTopic(name, partitions, 1, config=settings)
        admin = self.admin()
        admin.create_topics([new])[name].result(60)

    def is_alive(self) -> bool:
        """See Side."""
        return self.peer.is_alive()

    def produce(self, name: str, record_bytes: int, window: Window, partitions: int = 1) -> Steady:
        """See Side."""
        self.create(name, partitions)
        command = java_tools.endless_producer(self.peer.bootstrap, name, record_bytes)
        return watch(Tool(command, java_tools.produced_rate_of), window, self.pids)

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady:
        """See Side; each pass is a separate JVM, whose start is excluded."""
        del record_bytes
        command = java_tools.reporting_consumer(self.peer.bootstrap, name, records)

        def read() -> Steady:
            return watch(Tool(command, java_tools.consumed_rate_of), window, self.pids)

        return read_again(read, window)

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side: franz-go's share consumer, in a separate process."""
        del records
        asked = share_groups.emptying(self.peer.bootstrap, name, acknowledge)
        return watch(asked, window, self.pids)

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        self.create(name)
        taken_ns, _, _ = latency.collect(self.peer.bootstrap, name, rate_per_s, seconds)
        return Latency(HdrHistogram(taken_ns), {})

    def drop(self, name: str) -> None:
        """See Side."""
        try:
            admin = self.admin()
            admin.delete_topics([name])[name].result(30)
        except KafkaException:
            pass


def headrace_version() -> str:
    """Its version, and whether its brokers use the compiled core, as determined in a new
    process."""
    asks = "from headrace.runtime import compiled; print(compiled.use().partition(' (')[0])"
    core = run_tool([sys.executable, "-c", asks]).strip()
    return f"{importlib.metadata.version('headrace')}, {core}"


def _java_missing() -> str:
    try:
        java()
    except FileNotFoundError as error:
        return str(error)
    return ""


def _kafka_missing() -> str:
    if not (cache_folder() / f"kafka-{KAFKA_VERSION}" / ".complete").exists():
        return f"Kafka {KAFKA_VERSION} and its tools are not downloaded yet"
    return _java_missing()


def _fetch_kafka() -> None:
    try:
        kafka_classpath()
    except (RuntimeError, FileNotFoundError, AssertionError) as error:
        raise parts.PartMissing(str(error)) from error


def _headrace_sides(folder: Path) -> list[Side]:
    return [
        KafkaProtocolSide(Headrace(folder / f"headrace-{policy}"), policy)
        for policy in (SYNCED, UNSYNCED)
    ]


def _kafka_sides(folder: Path) -> list[Side]:
    return [
        KafkaProtocolSide(Kafka(folder / f"kafka-{policy}"), policy)
        for policy in (SYNCED, UNSYNCED)
    ]


_TOOL = (
    "ProducerPerformance, acks=all, batch.size=16384, linger.ms=0; ConsumerPerformance; "
    "franz-go's share consumer"
)
HEADRACE = System(
    name="headrace",
    title="Headrace",
    tool=_TOOL,
    version=headrace_version,
    missing=lambda: "",  # its load tools are Kafka's, downloaded on first use
    install=_fetch_kafka,
    sides=_headrace_sides,
)
KAFKA = System(
    name="kafka",
    title="Apache Kafka",
    tool=_TOOL,
    version=lambda: KAFKA_VERSION,
    missing=_kafka_missing,
    install=_fetch_kafka,
    sides=_kafka_sides,
)
