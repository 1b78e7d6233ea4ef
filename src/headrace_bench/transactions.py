"""Transactions under load: copies with Kafka's own tool, small commits, read_committed fetches.

Invariants: the first tenth of a copy is its warm-up and not measured, nor is a JVM's start.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from headrace_bench import java_tools, raw_client
from headrace_bench.peers import Peer, cpu_s
from headrace_bench.processes import SystemFailed
from headrace_bench.tools import check_server, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

Figures = dict[str, float]
COPY_MAX_S = 300.0
READS = 4  # of each kind, alternately
_numbers = iter(range(1, 1_000_000))


def copy(peer: Peer, source: str, target: str, records: int) -> Figures:
    """Copy `records` from partition 0 of `source` to `target`, offsets in each transaction."""
    name = f"bench-copy-{next(_numbers):06d}"
    warmup = records // 10
    began_at = began_cpu = 0.0
    began = done = 0
    for done in _copied(java_tools.copier(peer.bootstrap, source, target, name)):
        if not began and done >= warmup:
            began, began_at, began_cpu = done, time.perf_counter(), cpu_s(peer.pid)
        if done >= records:
            break
    took, used = time.perf_counter() - began_at, cpu_s(peer.pid) - began_cpu
    if done < records or done == began:
        raise SystemFailed(f"only {done} of {records} records were copied")
    return {
        "records_per_s": (done - began) / took,
        "cpu_us_per_record": used / (done - began) * 1e6,
        "records": done - began,
    }


def _copied(command: list[str]) -> Iterator[int]:
    """The number of records that the tool has copied, for each line that reports it."""
    deadline = time.monotonic() + COPY_MAX_S
    with tool(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            check_server()
            if time.monotonic() > deadline:
                raise SystemFailed(f"the copy took more than {COPY_MAX_S:.0f} s")
            if line.startswith(b"{"):
                yield int(json.loads(line)["totalProcessed"])
        assert process.stderr is not None
        if process.wait():
            raise SystemFailed(f"the copy failed: {process.stderr.read()[-2000:]!r}")


def commit(peer: Peer, topic: str, record_bytes: int, seconds: float) -> Figures:
    """Transactions of one record, one after the other; each timed from begin to commit."""
    producer = Producer(
        {"bootstrap.servers": peer.bootstrap, "log_level": 0, "linger.ms": 0}
        | {"transactional.id": f"bench-commit-{next(_numbers):06d}"}
    )
    producer.init_transactions(30)
    value = b"x" * record_bytes
    for _ in range(20):
        _one(producer, topic, value)
    taken = []
    before, started = cpu_s(peer.pid), time.perf_counter()
    now, deadline = started, started + seconds
    while now < deadline:
        _one(producer, topic, value)
        after = time.perf_counter()
        taken.append((after - now) * 1e3)
        now = after
    used = cpu_s(peer.pid) - before
    taken.sort()
    return {
        "transactions_per_s": len(taken) / (now - started),
        "p50_ms": taken[len(taken) // 2],
        "p99_ms": taken[len(taken) * 99 // 100],
        "cpu_us_per_transaction": used / len(taken) * 1e6,
    }


def _one(producer: Producer, topic: str, value: bytes) -> None:
    producer.begin_transaction()
    producer.produce(topic, value, partition=0)
    producer.commit_transaction(30)


def isolation(peer: Peer, topic: str, records: int, fetch_bytes: int) -> Figures:
    """Read a partition alternately with and without read_committed; the ratio of CPU and time."""
    sums = {0: [0.0, 0.0, 0.0], 1: [0.0, 0.0, 0.0]}
    for number in range(2 * READS + 2):
        level = number % 2
        before = cpu_s(peer.pid)
        size_bytes, took = raw_client.fetch_all(peer.bootstrap, topic, records, fetch_bytes, level)
        used = cpu_s(peer.pid) - before
        if number >= 2:  # the first of each is a warm-up
            sums[level] = [
                a + b for a, b in zip(sums[level], (size_bytes, took, used), strict=True)
            ]
    return {
        "mb_per_s": sums[1][0] / sums[1][1] / 1e6,
        "cpu_s_per_gb": sums[1][2] / (sums[1][0] / 1e9),
        "committed_cpu": sums[1][2] / max(sums[0][2], 1e-9),
        "committed_time": sums[1][1] / sums[0][1],
    }
