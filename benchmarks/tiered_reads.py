"""What a read of tiered records costs: by tasks that read object storage, beside the same read from
the broker.

Invariants: one broker; tasks are planned and executed in this process as by Spark's workers, but
without Spark; both ways in turn after a warm-up each, all columns. Only records that are in object
storage alone are read. CPU is this process's and the broker's, so other work matters little.

    python -m benchmarks.tiered_reads [--records 1000000] [--rounds 2] [--objects URL]

Without --objects, a folder on the same disk. For S3 the environment holds credentials and endpoint.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.spark import LOADS, fill
from benchmarks.tiering import TieredBroker
from headrace.pipeline.options import parse_source
from headrace.pipeline.source import HeadraceReader

TIERED = {
    "remote_storage_enable": "true",
    "segment_bytes": str(4 << 20),
    "local_retention_bytes": "0",
}
IDLE_S = 5


def ends(broker: TieredBroker, topic: str) -> dict[str, int]:
    """Where the part that is in object storage alone ends, by partition; waits for it."""
    url = f"http://{broker.http}/v1/topics/{topic}/ledgers"
    while True:
        with urllib.request.urlopen(url, timeout=30) as answer:
            partitions = json.loads(answer.read())["partitions"]
        if not any(one["is_local"] for each in partitions for one in each["ledgers"][:-2]):
            return {
                str(each["partition"]): max(
                    (one["end_offset"] for one in each["ledgers"] if not one["is_local"]), default=0
                )
                for each in partitions
            }
        time.sleep(0.5)


def measured(broker: TieredBroker, given: dict[str, str], count: int) -> str:
    """Read all columns, and say what it cost."""
    sent = broker.metric("headrace_fetch_bytes_total")
    theirs, own, begun = broker.cpu_s(), time.process_time(), time.monotonic()
    reader = HeadraceReader(parse_source(given))
    found = sum(len(part) for task in reader.partitions() for part in reader.read(task))
    own, theirs = time.process_time() - own, broker.cpu_s() - theirs
    assert found == count, (found, count)
    return (
        f"{own / count * 1e6:.2f} CPU s of tasks and {theirs / count * 1e6:.2f} of the broker per"
        f" million, {count / (time.monotonic() - begun):,.0f} records/s,"
        f" {broker.metric('headrace_fetch_bytes_total') - sent:,.0f} bytes from the broker"
    )


def main() -> None:
    """Measure, and print a line for each reading."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--objects")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        url = options.objects or f"file://{Path(text) / 'objects'}"
        broker = TieredBroker(Path(text), url)
        try:
            for load in LOADS:
                fill(broker.kafka, load, int(options.records * load.share), **TIERED)
                until = ends(broker, load.topic)
                given = {
                    "bootstrap.servers": broker.kafka,
                    "subscribe": load.topic,
                    "endingOffsets": json.dumps({load.topic: until}),
                }
                ways = {
                    "from objects": {"objects": url, "http": broker.http},
                    "from the broker": {},
                }
                before = broker.cpu_s()
                time.sleep(IDLE_S)
                print(f"idle broker: {(broker.cpu_s() - before) / IDLE_S:.4f} CPU s a second")
                for turn in range(options.rounds + 1):
                    for way, more in ways.items():
                        line = measured(broker, given | more, sum(until.values()))
                        if turn:  # the first is the warm-up
                            print(f"{load.topic}, {way}: {line}", flush=True)
        finally:
            broker.process.kill()
            broker.process.wait()


if __name__ == "__main__":
    main()
