"""Apache Kafka's own load tools, run as they come, and what they print.

Rules of the room: the rate is the tool's own, of its steady state where it tells one; the start
of its JVM is not in it.
"""

from __future__ import annotations

import re
import subprocess
from typing import NamedTuple

from headrace.bench.kafka_parts import java, kafka_classpath

TOOL_TIMEOUT_S = 300
_SUMMARY = re.compile(
    r"([\d.]+) (?:steady state )?records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), "
    r"([\d.]+) ms avg latency"
)


class Produced(NamedTuple):
    """What ProducerPerformance says."""

    records: int
    records_per_s: float
    average_latency_ms: float


def _run(tool: str, arguments: list[str]) -> str:
    command = [java(), "-Xms512m", "-Xmx512m", "-cp", kafka_classpath()]
    command += [f"org.apache.kafka.tools.{tool}", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{tool} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def producer_performance(
    bootstrap: str, topic: str, records: int, record_bytes: int, warmup: int
) -> Produced:
    """Send as fast as it goes: acks=all, batch.size=16384, linger.ms=0, else its defaults."""
    out = _run(
        "ProducerPerformance",
        ["--topic", topic, "--num-records", str(records + warmup), "--throughput", "-1"]
        + ["--record-size", str(record_bytes), "--bootstrap-server", bootstrap]
        + (["--warmup-records", str(warmup)] if warmup else [])
        + ["--command-property", "acks=all", "batch.size=16384", "linger.ms=0"],
    )
    found = [match for line in out.splitlines() if (match := _SUMMARY.search(line))]
    steady = [m for m in found if "steady state" in m[0]]
    last = (steady or found)[-1]
    if "exception" in out.lower():
        raise RuntimeError(f"ProducerPerformance met errors:\n{out[-2000:]}")
    return Produced(int(float(last[1])), float(last[2]), float(last[4]))


class Consumed(NamedTuple):
    """What ConsumerPerformance says; the rate without the time of joining the group."""

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


class EndToEnd(NamedTuple):
    """What EndToEndLatency says; its percentiles are whole milliseconds."""

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
