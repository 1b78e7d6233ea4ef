"""Apache Kafka's own load tools, unmodified, and parsers of their output.

Invariants: the rate is the tool's own, of its steady state if it reports one; it excludes the start
of its JVM.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace_bench.kafka_parts import java, kafka_classpath
from headrace_bench.processes import SystemFailed
from headrace_bench.tools import run_tool

TOOL_TIMEOUT_S = 300
_ENDLESS = 1_000_000_000_000  # records: the window ends it
_SUMMARY = re.compile(
    r"([\d.]+) (?:steady state )?records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), "
    r"([\d.]+) ms avg latency"
)


class Produced(NamedTuple):
    """The output of ProducerPerformance."""

    records: int
    records_per_s: float
    average_latency_ms: float


def _command(tool: str, arguments: list[str]) -> list[str]:
    command = [java(), "-Xms512m", "-Xmx512m", "-cp", kafka_classpath()]
    return [*command, f"org.apache.kafka.tools.{tool}", *arguments]


def _run(tool: str, arguments: list[str]) -> str:
    return run_tool(_command(tool, arguments), timeout_s=TOOL_TIMEOUT_S)


def _producer(bootstrap: str, topic: str, records: int, record_bytes: int) -> list[str]:
    """Send at full speed: acks=all, batch.size=16384, linger.ms=0, otherwise its defaults."""
    arguments = ["--topic", topic, "--num-records", str(records), "--throughput", "-1"]
    arguments += ["--record-size", str(record_bytes), "--bootstrap-server", bootstrap]
    return [*arguments, "--command-property", "acks=all", "batch.size=16384", "linger.ms=0"]


def endless_producer(bootstrap: str, topic: str, record_bytes: int) -> list[str]:
    """The command of a ProducerPerformance that reports its rate every half second, until
    killed."""
    arguments = _producer(bootstrap, topic, _ENDLESS, record_bytes)
    return _command("ProducerPerformance", ["--reporting-interval", "500", *arguments])


def produced_rate_of(line: str) -> float | None:
    """Acknowledged records per second since the previous line. Raises SystemFailed on errors."""
    if "exception" in line.lower():
        raise SystemFailed(f"ProducerPerformance reported errors: {line[:500]}")
    found = _SUMMARY.search(line)
    return float(found[2]) if found else None


def reporting_consumer(bootstrap: str, topic: str, records: int) -> list[str]:
    """The command of a ConsumerPerformance that reports its rate every quarter of a second."""
    arguments = ["--topic", topic, "--num-records", str(records), "--bootstrap-server", bootstrap]
    arguments += ["--hide-header", "--show-detailed-stats", "--reporting-interval", "250"]
    return _command("ConsumerPerformance", [*arguments, "--timeout", "20000"])


def consumed_rate_of(line: str) -> float | None:
    """Records per second since the previous line; None for other lines."""
    fields = [field.strip() for field in line.split(",")]
    return float(fields[5]) if len(fields) >= 10 and fields[0][:2] == "20" else None


def producer_performance(
    bootstrap: str,
    topic: str,
    records: int,
    record_bytes: int,
    warmup: int,
    transaction_ms: int = 0,
) -> Produced:
    """Send this many; see `_producer` for the settings; in transactions of `transaction_ms`."""
    arguments = _producer(bootstrap, topic, records + warmup, record_bytes)
    warm = ["--warmup-records", str(warmup)] if warmup else []
    if transaction_ms:
        warm += ["--transaction-duration-ms", str(transaction_ms)]
    out = _run("ProducerPerformance", [*warm, *arguments])
    found = [match for line in out.splitlines() if (match := _SUMMARY.search(line))]
    steady = [m for m in found if "steady state" in m[0]]
    last = (steady or found)[-1]
    if "exception" in out.lower():
        raise RuntimeError(f"ProducerPerformance reported errors:\n{out[-2000:]}")
    return Produced(int(float(last[1])), float(last[2]), float(last[4]))


class Consumed(NamedTuple):
    """The output of ConsumerPerformance; the rate without the time of joining the group."""

    records: int
    size_mb: float
    mb_per_s: float


def consumer_performance(bootstrap: str, topic: str, records: int) -> Consumed:
    """Read `records` from the beginning; fetch size 1 MiB, its default."""
    out = _run(
        "ConsumerPerformance",
        [
            "--topic",
            topic,
            "--num-records",
            str(records),
            "--bootstrap-server",
            bootstrap,
            "--hide-header",
            "--timeout",
            "60000",
        ],
    )
    line = [line for line in out.splitlines() if line.count(",") >= 9][-1]
    fields = [field.strip() for field in line.split(",")]
    return Consumed(int(fields[4]), float(fields[2]), float(fields[8]))


def share_consumer_performance(bootstrap: str, topic: str, group: str, records: int) -> float:
    """Receive and acknowledge `records` through a share group; returns the rate per second."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", group]
    arguments += ["--num-records", str(records), "--hide-header", "--timeout", "20000"]
    out = _run("ShareConsumerPerformance", arguments)
    lines = [line for line in out.splitlines() if line[:2] == "20"]
    if not lines:
        raise SystemFailed(f"ShareConsumerPerformance reported no rate:\n{out[-2000:]}")
    _, _, _, _, per_s, received, *_ = (field.strip() for field in lines[-1].split(","))
    if int(received) < records:
        raise SystemFailed(f"only {received} of {records} records were received")
    return float(per_s)


def copier(bootstrap: str, source: str, target: str, name: str) -> list[str]:
    """The command of a TransactionalMessageCopier; `name` is its group and transactional id."""
    arguments = ["--broker-list", bootstrap, "--input-topic", source, "--input-partition", "0"]
    arguments += ["--output-topic", target, "--consumer-group", name, "--transactional-id", name]
    return _command("TransactionalMessageCopier", [*arguments, "--use-group-metadata"])


class EndToEnd(NamedTuple):
    """The output of EndToEndLatency; its percentiles are integer milliseconds."""

    average_ms: float
    p50_ms: float
    p99_ms: float


def end_to_end_latency(bootstrap: str, topic: str, records: int) -> EndToEnd:
    """One message of 100 B at a time, acks=all: sent, stored, read back."""
    out = _run("EndToEndLatency", [bootstrap, topic, str(records), "all", "100"])
    average = re.search(r"Avg latency: ([\d.]+) ms", out)
    percentiles = re.search(r"50th = ([\d.]+), 99th = ([\d.]+)", out)
    assert average is not None, out
    assert percentiles is not None, out
    return EndToEnd(float(average[1]), float(percentiles[1]), float(percentiles[2]))
