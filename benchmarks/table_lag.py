"""How long records wait until they are in the topic's table, at several rates.

Records of 100 B are sent at each rate in turn, each rate to a topic of its own, while
`headrace pipeline tables` keeps the topics as tables. The lag is not what the service says of
itself, but what the table holds: when a snapshot was committed, less the earliest timestamp in the
data files that it added. The first commits after the service's start are reported apart, since
they contain the start of Spark.

    python -m benchmarks.table_lag [--seconds 90] [--rates 1,1000,50000]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from headrace.pipeline.catalog import load_table_or_none, open_catalog, table_of_topic
from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 4
VALUE = b"order 4711 is paid " * 5 + b"today"
TICK_S = 0.02
IN_FLIGHT = 50_000
CATCH_UP_S = 120
START = "start"


def send(bootstrap: str, topic: str, rate: int, seconds: float) -> int:
    """Send `rate` records a second; the number that was acknowledged."""
    acknowledged = 0

    def done(error: object, _: object) -> None:
        nonlocal acknowledged
        acknowledged += error is None

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    begun, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < seconds:
        for _ in range(min(int(passed * rate) + 1, acknowledged + IN_FLIGHT) - sent):
            producer.produce(topic, VALUE, partition=sent % PARTITIONS, on_delivery=done)
            sent += 1
        producer.poll(TICK_S)
    producer.flush(60)
    return acknowledged


def commits(table: Any) -> Iterator[tuple[int, float]]:
    """(records added, lag in seconds of the earliest) of each snapshot that added files."""
    column = table.schema().find_field("timestamp").field_id
    for snapshot in table.snapshots():
        added = [
            entry.data_file
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
            if entry.snapshot_id == snapshot.snapshot_id and entry.status == 1
        ]
        if added:
            earliest_us = min(
                int.from_bytes(file.lower_bounds[column], "little", signed=True) for file in added
            )
            lag_s = snapshot.timestamp_ms / 1_000 - earliest_us / 1_000_000
            yield sum(file.record_count for file in added), lag_s


def all_there(place: Warehouse, topic: str, count: int) -> Any:
    """The topic's table, once it holds `count` records. Raises TimeoutError."""
    until = time.monotonic() + CATCH_UP_S
    while time.monotonic() < until:
        table = place.is_there and load_table_or_none(
            open_catalog(place), table_of_topic(place, topic)
        )
        if table and sum(added for added, _ in commits(table)) >= count:
            return table
        time.sleep(1)
    raise TimeoutError(f"the table of {topic} does not hold {count} records")


def main() -> None:
    """Measure, and print a line for each rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--rates", default="1,1000,50000")
    options = parser.parse_args()
    rates = {f"at-{rate}": int(rate) for rate in options.rates.split(",")}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        place = Warehouse.at(folder / "warehouse")
        with BrokerProcess(folder / "data", folder / "log") as broker:
            for topic in (START, *rates):
                create_topic(broker.kafka, topic, PARTITIONS, {"headrace.table": "append"})
            service = subprocess.Popen([
                sys.executable, "-m", "headrace.cli.main", "pipeline", "tables", "--quiet",
                "--bootstrap", broker.kafka, "--warehouse", str(folder / "warehouse"),
            ])  # fmt: skip
            try:
                all_there(place, START, send(broker.kafka, START, 10, 1))
                for topic, rate in rates.items():
                    count = send(broker.kafka, topic, rate, options.seconds)
                    found = list(commits(all_there(place, topic, count)))
                    lags = sorted(lag for _, lag in found)
                    print(
                        f"{count / options.seconds:,.0f} records/s: {len(found)} commits, the"
                        f" earliest record of each waited {median(lags):.1f} s (median),"
                        f" {lags[-1]:.1f} s (most)",
                        flush=True,
                    )
            finally:
                service.terminate()
                service.wait(60)


if __name__ == "__main__":
    main()
