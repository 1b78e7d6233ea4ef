"""CPU of one broker for the same produce and fetch with and without TLS, in alternating rounds.

    python benchmarks/tls.py [--rounds 6] [--records 100000] [--kafka]

Prints, for each listener, the broker's CPU seconds per GB and the ratio of the medians. One broker,
one topic without compression, 1 KiB records, librdkafka. With --kafka, the same of Apache Kafka,
and Headrace's CPU over TLS as a part of Kafka's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.runtime.new_certificates import Authority
from headrace_bench.peers import Kafka, free_port

VALUE = b"x" * 1024


def measured(process: psutil.Process, work: Any) -> float:
    """The process's CPU seconds during `work`."""
    before = process.cpu_times()
    work()
    after = process.cpu_times()
    return (after.user + after.system) - (before.user + before.system)


def produce(settings: dict[str, str], topic: str, count: int) -> None:
    """Write `count` records."""
    producer = Producer({**settings, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for number in range(count):
        producer.produce(topic, VALUE)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def fetch(settings: dict[str, str], topic: str, count: int) -> None:
    """Read `count` records."""
    consumer = Consumer({**settings, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = 0
    while found < count:
        found += len(consumer.consume(10_000, 1.0))
    consumer.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        authority = Authority("benchmark", time.time_ns() // 1_000_000)
        pem = authority.sign("broker", ["127.0.0.1"])
        (folder / "ca.pem").write_bytes(authority.certificate)
        (folder / "broker.pem").write_bytes(pem.key + pem.certificate)
        command = [sys.executable, "-m", "headrace.cli.main", "serve", "--json"]
        command += ["--data-dir", str(folder / "data"), "--http", "127.0.0.1:0"]
        command += ["--kafka", "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"]
        command += ["--ssl-keystore-location", str(folder / "broker.pem")]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert broker.stdout is not None
            listeners = json.loads(broker.stdout.readline())["listeners"]
            own = run(psutil.Process(broker.pid), listeners, str(folder / "ca.pem"), options)
        finally:
            broker.terminate()
            broker.wait()
        if options.kafka:
            print("Apache Kafka:")
            theirs = of_kafka(folder, options)
            for label in ("produce", "fetch"):
                ratio = own[label, "SSL"] / theirs[label, "SSL"]
                print(f"{label} over TLS, Headrace / Kafka: {ratio:.2f}")


def of_kafka(folder: Path, options: argparse.Namespace) -> dict[tuple[str, str], float]:
    """Run the same on Kafka, with the same certificate."""
    port = free_port()
    kafka = Kafka(folder / "kafka")
    kafka.more_properties = (
        f"listeners=PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port},"
        "CONTROLLER://127.0.0.1:{controller}\n"
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port}\n"
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={folder / 'broker.pem'}\n"
    )
    kafka.start()
    try:
        listeners = {"PLAINTEXT": kafka.bootstrap, "SSL": f"127.0.0.1:{port}"}
        return run(psutil.Process(kafka.pid), listeners, str(folder / "ca.pem"), options)
    finally:
        kafka.stop()


def run(
    process: psutil.Process, listeners: dict[str, str], ca: str, options: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """Alternate, and print the figures; the medians, by work and listener."""
    kinds = {
        name: {"bootstrap.servers": address, "log_level": 0, "security.protocol": name}
        | ({"ssl.ca.location": ca} if name == "SSL" else {})
        for name, address in listeners.items()
    }
    gb = options.records * len(VALUE) / 1e9
    found: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds + 1):  # the first warms up
        for name in sorted(kinds, reverse=bool(turn % 2)):
            topic, settings = f"{name}-{turn}", kinds[name]
            for label, work in (("produce", produce), ("fetch", fetch)):

                def once(work: Any = work, settings: Any = settings, topic: str = topic) -> None:
                    work(settings, topic, options.records)

                cpu_s = measured(process, once)
                if turn:
                    found.setdefault((label, name), []).append(cpu_s / gb)
    for label in ("produce", "fetch"):
        medians = {name: statistics.median(found[label, name]) for name in kinds}
        for name in kinds:
            each = " ".join(f"{one:.2f}" for one in found[label, name])
            print(f"{label} {name}: {medians[name]:.2f} CPU s/GB ({each})")
        print(f"{label} SSL / PLAINTEXT: {medians['SSL'] / medians['PLAINTEXT']:.2f}")
    return {key: statistics.median(values) for key, values in found.items()}


if __name__ == "__main__":
    main()
