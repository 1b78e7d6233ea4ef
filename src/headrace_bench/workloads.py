"""The workloads, and the target of each figure: data, no code that runs anything.

Invariants: equal guarantees are compared. *synced*: Headrace by default (fsync before the
acknowledgement) against a Kafka topic with flush.messages=1. *unsynced*: a Headrace topic with
flush.ms=1000 against Kafka by default. *third*: Headrace synced against Kafka by default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

SYNCED, UNSYNCED = "synced", "unsynced"
Kind = Literal[
    "produce",
    "single",
    "single_librdkafka",
    "consume",
    "fetch",
    "latency",
    "latency_tool",
    "copy",
    "commit",
    "isolation",
    "share",
    "share_by_key",
    "http_queue",
    "idle",
]

# The topic settings that make the guarantee; all others are defaults.
POLICY_SETTINGS: dict[tuple[str, str], dict[str, str]] = {
    ("headrace", SYNCED): {},
    ("headrace", UNSYNCED): {"flush.ms": "1000"},
    ("kafka", SYNCED): {"flush.messages": "1"},
    ("kafka", UNSYNCED): {},
}


class Side(NamedTuple):
    """One broker with one sync policy."""

    peer: str
    policy: str


HEADRACE_SYNCED, HEADRACE_UNSYNCED = Side("headrace", SYNCED), Side("headrace", UNSYNCED)
KAFKA_SYNCED, KAFKA_UNSYNCED = Side("kafka", SYNCED), Side("kafka", UNSYNCED)
# Alternating, so that a slow minute of the machine affects both.
ALL_SIDES = (HEADRACE_SYNCED, KAFKA_SYNCED, HEADRACE_UNSYNCED, KAFKA_UNSYNCED)
AS_THEY_COME = (HEADRACE_SYNCED, KAFKA_UNSYNCED)

PAIRS: dict[str, tuple[Side, Side]] = {
    "synced": (HEADRACE_SYNCED, KAFKA_SYNCED),
    "unsynced": (HEADRACE_UNSYNCED, KAFKA_UNSYNCED),
    "third": (HEADRACE_SYNCED, KAFKA_UNSYNCED),
}


class Bar(NamedTuple):
    """A figure's target: a ratio to Kafka's figure, or (`pair` empty) an absolute limit."""

    figure: str
    at_least: bool
    limit: float | None
    goal: float | None = None
    pair: str = ""
    side: Side = HEADRACE_SYNCED


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of runs. `seconds` is the intended length of a measured run."""

    name: str
    title: str
    kind: Kind
    tool: str
    bars: tuple[Bar, ...]
    sides: tuple[Side, ...] = ALL_SIDES
    seconds: float = 6.0
    options: dict[str, Any] = field(default_factory=dict)


# figure -> (heading, unit, digits)
FIGURES: dict[str, tuple[str, str, int]] = {
    "records_per_s": ("records", "/s", 0),
    "cpu_us_per_record": ("broker CPU per record", "us", 2),
    "requests_per_s": ("requests", "/s", 0),
    "cpu_us_per_request": ("broker CPU per request", "us", 1),
    "mb_per_s": ("throughput", "MB/s", 0),
    "cpu_s_per_gb": ("broker CPU per GB", "s", 3),
    "p50_ms": ("p50", "ms", 3),
    "p99_ms": ("p99", "ms", 3),
    "average_ms": ("average", "ms", 3),
    "transactions_per_s": ("transactions", "/s", 0),
    "cpu_us_per_transaction": ("broker CPU per transaction", "us", 1),
    "committed_cpu": ("broker CPU, read_committed / read_uncommitted", "x", 3),
    "committed_time": ("time, read_committed / read_uncommitted", "x", 3),
    "messages_per_s": ("messages", "/s", 0),
    "cpu_us_per_message": ("broker CPU per message", "us", 1),
    "by_key_rate": ("rate in key order / unordered", "x", 2),
    "by_key_cpu_us": ("broker CPU per message, in key order", "us", 1),
    "ready_s": ("ready after start", "s", 3),
    "idle_mb": ("memory idle", "MB", 1),
    "connections_mb": ("memory with 10,000 idle connections", "MB", 1),
}


def _ratio_bars(
    figure: str, cpu: str, synced: tuple[float, float], unsynced: tuple[float, float]
) -> tuple[Bar, ...]:
    return (
        Bar(figure, True, synced[0], synced[1], "synced"),
        Bar(figure, True, unsynced[0], unsynced[1], "unsynced"),
        Bar(figure, True, None, 1.0, "third"),
        Bar(cpu, False, 0.5, 0.25, "synced"),
        Bar(cpu, False, 0.5, 0.25, "unsynced"),
    )


def _produce(record_bytes: int, partitions: int) -> Workload:
    size = "100 B" if record_bytes == 100 else "1 KiB"
    plural = "" if partitions == 1 else "s"
    return Workload(
        name=f"produce-{record_bytes}-{partitions}p",
        title=f"Produce {size} records, {partitions} partition{plural}",
        kind="produce",
        tool="ProducerPerformance, acks=all, batch.size=16384, linger.ms=0",
        bars=_ratio_bars("records_per_s", "cpu_us_per_record", (1.3, 3.0), (1.1, 1.5)),
        seconds=7.0,
        options={"record_bytes": record_bytes, "partitions": partitions},
    )


def _single(name: str, title: str, connections: int, in_flight: int) -> Workload:
    return Workload(
        name=name,
        title=title,
        kind="single",
        tool="raw socket client, requests encoded once, 100 B, acks=all",
        bars=(
            Bar("requests_per_s", True, 3.0, None, "synced"),
            Bar("requests_per_s", True, 3.0, None, "unsynced"),
            Bar("cpu_us_per_request", False, 10.0, 5.0),
        ),
        options={"connections": connections, "in_flight": in_flight},
    )


def _transaction_bars(figure: str, cpu: str) -> tuple[Bar, ...]:
    """A fifth faster than Kafka at half the CPU, with equal durability and by default."""
    pairs = ("synced", "unsynced", "third")
    return (
        *(Bar(figure, True, 1.2, None, pair) for pair in pairs),
        *(Bar(cpu, False, 0.5, None, pair) for pair in pairs),
    )


def _latency(rate_per_s: int) -> Workload:
    return Workload(
        name=f"latency-{rate_per_s}",
        title=f"End to end at {rate_per_s:,} messages/s",
        kind="latency",
        tool="librdkafka, one process sends and one receives, 100 B, acks=all, linger.ms=0",
        bars=(
            Bar("p50_ms", False, 0.4),
            Bar("p99_ms", False, 4.0),
            Bar("p50_ms", False, 1.0, None, "synced"),
            Bar("p99_ms", False, 1.0, None, "synced"),
            Bar("p50_ms", False, 1.0, None, "unsynced"),
            Bar("p99_ms", False, 1.0, None, "unsynced"),
        ),
        seconds=10.0,
        options={"rate_per_s": rate_per_s},
    )


WORKLOADS: tuple[Workload, ...] = (
    _produce(100, 1),
    _produce(100, 6),
    _produce(1024, 1),
    _produce(1024, 6),
    _single("single-pipelined", "Single-record requests, 1 connection, 100 in flight", 1, 100),
    _single("single-10x10", "Single-record requests, 10 connections, 10 in flight each", 10, 10),
    Workload(
        name="single-librdkafka",
        title="Single-record requests, 1 connection, 100 in flight, librdkafka",
        kind="single_librdkafka",
        tool="librdkafka, batch.num.messages=1, linger.ms=0, 100 B, acks=all",
        bars=(
            Bar("requests_per_s", True, 3.0, None, "synced"),
            Bar("requests_per_s", True, 3.0, None, "unsynced"),
            Bar("cpu_us_per_request", False, 10.0, 5.0),
        ),
        options={"in_flight": 100},
    ),
    Workload(
        name="single-one",
        title="Single-record requests, one at a time",
        kind="single",
        tool="raw socket client, requests encoded once, 100 B, acks=all",
        bars=(
            Bar("cpu_us_per_request", False, 0.5, None, "synced"),
            Bar("cpu_us_per_request", False, 0.5, None, "unsynced"),
        ),
        options={"connections": 1, "in_flight": 1},
    ),
    Workload(
        name="consume",
        title="Consume 1 KiB records, 1 partition",
        kind="consume",
        tool="ConsumerPerformance, fetch size 1 MiB; rate without the group join",
        bars=(
            Bar("mb_per_s", True, 1.0, None, "third"),
            Bar("cpu_s_per_gb", False, 0.5, None, "third"),
        ),
        sides=AS_THEY_COME,
        options={"size_mb": 3000},
    ),
    Workload(
        name="fetch-1mib",
        title="Fetches of 1 MiB, one at a time, 1 partition",
        kind="fetch",
        tool="raw socket client that discards the data",
        bars=(
            Bar("mb_per_s", True, 1.0, None, "third"),
            Bar("cpu_s_per_gb", False, 0.5, None, "third"),
            Bar("cpu_s_per_gb", False, None, 0.15),
        ),
        sides=AS_THEY_COME,
        options={"size_mb": 3000, "fetch_bytes": 1_048_576},
    ),
    _latency(2_000),
    _latency(10_000),
    Workload(
        name="latency-tool",
        title="End to end, one message at a time",
        kind="latency_tool",
        tool="EndToEndLatency, 100 B, acks=all; reports percentiles in whole milliseconds",
        bars=(
            Bar("average_ms", False, 1.0, None, "synced"),
            Bar("average_ms", False, 1.0, None, "unsynced"),
        ),
        options={"records": 5_000},
    ),
    Workload(
        name="transactions-copy",
        title="Transactional copy of 1 M records of 100 B, 200 per transaction",
        kind="copy",
        tool="TransactionalMessageCopier (batch.size=512), from one partition to another, "
        "offsets in the transaction",
        bars=_transaction_bars("records_per_s", "cpu_us_per_record"),
        options={"records": 1_000_000},
    ),
    Workload(
        name="transactions-commit",
        title="Transactions of one record, one at a time",
        kind="commit",
        tool="librdkafka: begin, one record of 100 B, commit",
        bars=(
            Bar("p50_ms", False, 1.0, None, "synced"),
            Bar("p50_ms", False, 1.0, None, "unsynced"),
            Bar("p50_ms", False, 1.0, None, "third"),
            Bar("p99_ms", False, None, 1.0, "third"),
            Bar("cpu_us_per_transaction", False, 0.5, None, "third"),
        ),
        options={"record_bytes": 100},
    ),
    Workload(
        name="transactions-read",
        title="Fetches of 1 MiB, read_committed and read_uncommitted",
        kind="isolation",
        tool="raw socket client that discards the data; one partition with 20 transactions "
        "per second, alternately with and without read_committed",
        bars=(Bar("committed_cpu", False, 1.05), Bar("committed_time", False, 1.05)),
        sides=AS_THEY_COME,
        options={"size_mb": 1000, "fetch_bytes": 1_048_576},
    ),
    Workload(
        name="queue-share",
        title="Share group, 3 partitions, messages of 100 B",
        kind="share",
        tool="ShareConsumerPerformance, 1 consumer; acknowledges records with the next fetch",
        bars=(
            Bar("messages_per_s", True, 1.0, None, "third"),
            Bar("cpu_us_per_message", False, 25.0),
            Bar("cpu_us_per_message", False, None, 1.0, "third"),
        ),
        sides=AS_THEY_COME,
        options={"records": 300_000, "partitions": 3},
    ),
    Workload(
        name="queue-share-by-key",
        title="Share group in key order with 100,000 keys, and an unordered one",
        kind="share_by_key",
        tool="ShareConsumerPerformance, 1 consumer; both groups read the same topic alternately",
        bars=(Bar("by_key_rate", True, 0.5), Bar("by_key_cpu_us", False, 25.0)),
        sides=(HEADRACE_SYNCED,),
        options={"records": 300_000, "partitions": 3},
    ),
    Workload(
        name="queue-http",
        title="Queue over HTTP, received and acknowledged in batches of 100",
        kind="http_queue",
        tool="2 processes with http.client, 3 partitions, messages of 100 B, receipts",
        bars=(Bar("messages_per_s", True, 20_000.0), Bar("cpu_us_per_message", False, None, 25.0)),
        sides=(HEADRACE_SYNCED,),
        options={"records": 100_000, "partitions": 3, "clients": 2},
    ),
    Workload(
        name="idle",
        title="Idle, after start-up",
        kind="idle",
        tool="/proc, first answer to ApiVersions, raw sockets",
        bars=(
            Bar("ready_s", False, 0.5, 0.2),
            Bar("idle_mb", False, 60.0, 40.0),
            Bar("connections_mb", False, 200.0),
        ),
        sides=AS_THEY_COME,
        options={"connections": 10_000},
    ),
)
