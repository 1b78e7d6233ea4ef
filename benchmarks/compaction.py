"""Log compaction beside Apache Kafka's cleaner: its rate, its CPU, and what a producer feels of it.

    python -m benchmarks.compaction [MB] [keys] [system ...]

Responsibilities: each broker is started as `headrace bench` starts it. A compacted topic of one
partition gets records of 1 KiB with keys drawn at random, while its dirty ratio forbids compaction;
then the ratio is lowered, and both look for work each half second and have no limit of bytes a
second (Kafka comes without one). A round ends when the broker says so: Headrace in its metrics,
Kafka in its checkpoint file. Meanwhile one producer sends a record of 200 B to another topic
and waits for it, 5 ms apart, as it did for 10 s before.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from headrace.java.jars import cache_folder
from headrace_bench.peers import Headrace, Kafka, cpu_s

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = 1024
KEYS = 1_000_000
SEGMENT_BYTES = 256 * 1024 * 1024
BEFORE_S = 10.0
ROUND_MAX_S = 3_600.0
UNLIMITED = 10**12
BROKER_CONFIG = {
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.io.max.bytes.per.second": str(UNLIMITED),
}


def _set(admin: AdminClient, kind: Any, name: str, values: dict[str, str]) -> None:
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def _fill(bootstrap: str, records: int, keys: int) -> None:
    """Records of random bytes: nothing to be compressed."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 131_072}
        | {"queue.buffering.max.messages": 200_000}
    )
    chance, body = random.Random(7), random.Random(8).randbytes(1 << 20)
    for number in range(records):
        at = chance.randrange(len(body) - RECORD_BYTES)
        key = b"key-%012d" % chance.randrange(keys)
        while True:
            try:
                producer.produce("table", body[at : at + RECORD_BYTES], key)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    assert not producer.flush(300), "not all records were stored"


def _probe(bootstrap: str, is_over: Callable[[], bool]) -> dict[str, float]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    taken = []
    while not is_over():
        begin = time.perf_counter()
        producer.produce("probe", b"x" * 200)
        producer.flush(60)
        taken.append((time.perf_counter() - begin) * 1e3)
        time.sleep(0.005)
    taken.sort()
    shares = {"p50_ms": 0.5, "p99_ms": 0.99}
    return {
        **{name: round(taken[int(len(taken) * share)], 2) for name, share in shares.items()},
        "largest_ms": round(taken[-1], 1),
    }


def _is_cleaned(peer: Headrace | Kafka) -> bool:
    if isinstance(peer, Kafka):
        checkpoint = peer.folder / "data" / "cleaner-offset-checkpoint"
        return checkpoint.exists() and "table 0 " in checkpoint.read_text()
    found = re.search(r"http://[\d.]+:\d+", (peer.folder / "broker.log").read_text())
    assert found is not None, "the broker's log names its HTTP address"
    with urllib.request.urlopen(found[0] + "/metrics", timeout=60) as page:
        rounds = re.search(rb"^headrace_compaction_rounds_total (\S+)", page.read(), re.MULTILINE)
    return rounds is not None and float(rounds[1]) >= 1


def measure(peer: Headrace | Kafka, size_mb: int, keys: int) -> dict[str, Any]:
    """One round of one broker."""
    peer.start()
    try:
        admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
        table = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES)}
        table["min.cleanable.dirty.ratio"] = "1.0"
        topics = [NewTopic("table", 1, 1, config=table), NewTopic("probe", 1, 1)]
        for done in admin.create_topics(topics).values():
            done.result(30)
        (broker,) = admin.list_topics(timeout=10).brokers
        _set(admin, ConfigResource.Type.BROKER, str(broker), BROKER_CONFIG)
        begin = time.perf_counter()
        records = size_mb * 1_000_000 // RECORD_BYTES
        _fill(peer.bootstrap, records, keys)
        filled_s = time.perf_counter() - begin
        os.sync()
        until = time.monotonic() + BEFORE_S
        before = _probe(peer.bootstrap, lambda: time.monotonic() > until)
        begin, used, looked_at = time.perf_counter(), cpu_s(peer.pid), time.monotonic()
        _set(admin, ConfigResource.Type.TOPIC, "table", {"min.cleanable.dirty.ratio": "0.01"})

        def is_over() -> bool:
            nonlocal looked_at
            now = time.monotonic()
            if now - looked_at < 0.5:
                return False
            looked_at = now
            assert time.perf_counter() - begin < ROUND_MAX_S, "the round did not end"
            return _is_cleaned(peer)

        during = _probe(peer.bootstrap, is_over)
        took, used = time.perf_counter() - begin, cpu_s(peer.pid) - used
        return {
            "system": peer.name,
            "mb": size_mb,
            "keys": keys,
            "fill_s": round(filled_s, 1),
            "round_s": round(took, 1),
            "mb_per_s": round(size_mb / took, 1),
            "cpu_s": round(used, 1),
            "load": round(os.getloadavg()[0], 1),
            "before": before,
            "during": during,
            "p99_ratio": round(during["p99_ms"] / before["p99_ms"], 2),
        }
    finally:
        peer.stop()


def main() -> None:
    """Measure the systems named, one after the other; a line of JSON each."""
    size_mb = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    keys = int(sys.argv[2]) if len(sys.argv) > 2 else KEYS
    folder = cache_folder() / "bench-data" / "compaction"
    for name in sys.argv[3:] or ("headrace", "kafka"):
        peer = Headrace(folder / "headrace") if name == "headrace" else Kafka(folder / "kafka")
        print(json.dumps(measure(peer, size_mb, keys)), flush=True)


if __name__ == "__main__":
    main()
