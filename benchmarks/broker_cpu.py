"""What a record costs a broker over BookKeeper, beside a broker over its own files: CPU in turns.

    python -m benchmarks.broker_cpu [--rounds 3]

Invariants: real bookies and a real ZooKeeper as they are shipped, on this machine; both
brokers run all the time and take turns. The load is raw: requests made once, a fixed number under
way on one connection, every answer's error code looked at. CPU is the broker's own, user and kernel
(a send over loopback pays in the sender what a bookie's kernel does to receive it); the bookies' is
reported with it. Records are of 100 B, on disk before they are acknowledged on both sides.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster.fixtures import cluster
from tests.integration.broker import Broker

from headrace.dev_cluster.parts import find_parts
from headrace.records.codec import Record, encode_batch
from headrace_bench.raw_client import produce_request

TOPIC = "t"
RECORD = bytes(100)


class Load(NamedTuple):
    """`requests` of one batch of so many records each."""

    name: str
    records: int
    in_flight: int
    requests: int


LOADS = (
    Load("1 record a request", 1, 64, 20_000),
    Load("145 records a request (16 KiB)", 145, 16, 2_500),
    Load("1,170 records a request (128 KiB)", 1170, 8, 400),
)


def produce(address: str, load: Load) -> float:
    """Send it all and read every answer; seconds."""
    now_ms = time.time_ns() // 1_000_000
    records = [Record(at, now_ms, None, RECORD, []) for at in range(load.records)]
    return send(address, TOPIC, produce_request(TOPIC, 0, encode_batch(records)), load)


def send(address: str, topic: str, request: bytes, load: Load) -> float:
    """Send a Produce request with one partition of `topic` as often as the load says; seconds."""
    host, _, port = address.rpartition(":")
    error_at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    answer_size = error_at + 2 + 8 + 8 + 8 + 4
    sent = answered = 0
    rest = b""
    with socket.create_connection((host, int(port)), 30.0) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        while answered < load.requests:
            due = min(load.in_flight - (sent - answered), load.requests - sent)
            if due:
                connection.sendall(request * due)
                sent += due
            data = connection.recv(262_144)
            if not data:
                raise ConnectionError("the broker closed the connection")
            rest += data
            count = len(rest) // answer_size
            for number in range(count):
                (error,) = struct.unpack_from(">h", rest, number * answer_size + error_at)
                if error:
                    raise RuntimeError(f"the broker refused a Produce request: {error}")
            rest = rest[count * answer_size :]
            answered += count
        return time.perf_counter() - began


class Used(NamedTuple):
    """CPU seconds of one process or several."""

    user: float
    system: float


def used(pids: list[int]) -> Used:
    """So far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return Used(sum(one.user for one in times), sum(one.system for one in times))


def main(rounds: int) -> None:
    """Print a table."""
    with (
        cluster(find_parts(), bookie_count=3) as servers,
        tempfile.TemporaryDirectory(prefix="headrace-cpu-") as name,
    ):
        bookies = [bookie.pid for bookie in servers.bookies]
        zookeeper = ("--zookeeper", servers.zookeeper.address, "--broker-id", "1")
        brokers = {
            "own files": Broker(Path(name) / "files").start(),
            "BookKeeper": Broker(Path(name) / "cluster", *zookeeper).start(),
        }
        try:
            for broker in brokers.values():
                client = AdminClient({"bootstrap.servers": broker.kafka})
                client.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
            print(f"load {os.getloadavg()[0]:.1f}")
            print("| load | over | records/s | broker CPU us a record | user | kernel | bookies |")
            print("| --- | --- | --- | --- | --- | --- | --- |")
            for load in LOADS:
                _compare(load, brokers, bookies, rounds)
        finally:
            for broker in brokers.values():
                broker.stop()


def _compare(load: Load, brokers: dict[str, Broker], bookies: list[int], rounds: int) -> None:
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in brokers}
    for number in range(rounds + 1):
        for name, broker in brokers.items():
            assert broker.process is not None
            pids = [broker.process.pid]
            own, others = used(pids), used(bookies)
            seconds = produce(broker.kafka, load)
            own_after, others_after = used(pids), used(bookies)
            count = load.requests * load.records
            user = (own_after.user - own.user) / count * 1e6
            system = (own_after.system - own.system) / count * 1e6
            beneath = (sum(others_after) - sum(others)) / count * 1e6
            if number:  # the first round warms
                found[name].append((count / seconds, user + system, user, system, beneath))
    for name, values in found.items():
        rate, both, user, system, beneath = (median(column) for column in zip(*values, strict=True))
        spread = f"{min(v[1] for v in values):.2f}-{max(v[1] for v in values):.2f}"
        print(
            f"| {load.name} | {name} | {rate:,.0f} | {both:.2f} ({spread}) | {user:.2f} |"
            f" {system:.2f} | {beneath if name == 'BookKeeper' else 0:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    main(parser.parse_args().rounds)
