"""What reading and writing a topic cost in Spark: `headrace` beside Spark's own Kafka connector.

Invariants: one broker, one session, the sources in turn after a warm-up each, all columns into
Spark's noop sink; then the sinks in turn, `headrace` exactly once, the connector at least once;
then archives into new Iceberg tables of one layout, by `headrace`, and by the connector and one
append. CPU is that of Java and the Python workers together, without the broker's, so other work on
the machine matters little.

    python -m benchmarks.spark [--records 1000000] [--rounds 2]

The connector's jars come from a Maven repository once, as the pipeline's do.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import psutil
from confluent_kafka import Producer

from headrace.java.jars import Jar, ensure_jars
from headrace.pipeline.catalog import TableName, open_catalog
from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jars import PINNED
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.layout import Layout, ensure_table
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTOR = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1"
    " 9c1ce986f548e6b1dcb0e2dfe2f253a0bc58f2232a32a0c9c6c674dd25a8570c",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1"
    " e510adc37b03d01d0a190d0dab472b5538e05eaa77454f7e9477156d7a6820ae",
    "org.apache.kafka:kafka-clients:3.9.1"
    " 7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    "org.apache.commons:commons-pool2:2.12.1"
    " 5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
)
SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "headrace": ("headrace", {}),
    "headrace through librdkafka": ("headrace", {"kafka.client.rack": "none"}),
    "Spark's connector": ("kafka", {"includeHeaders": "true"}),
}
SINKS = {"headrace": "headrace", "Spark's connector": "kafka"}
PARTITIONS = 4


class Load(NamedTuple):
    """Records of one topic."""

    topic: str
    value_bytes: int
    codec: str
    share: float
    """Of the records asked for."""


LOADS = (Load("small", 100, "none", 1.0), Load("kib-zstd", 1_024, "zstd", 0.5))


def fill(bootstrap: str, load: Load, count: int, **settings: str) -> None:
    """Write `count` records of words, which compress as text does; settings have _ for dots."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    create_topic(bootstrap, load.topic, PARTITIONS, {"retention.ms": "-1", **config})
    chance = random.Random(1)
    words = [chance.randbytes(6).hex() for _ in range(400)]
    values = [
        (" ".join(chance.choice(words) for _ in range(load.value_bytes // 12)) + "x" * 99).encode()
        for _ in range(500)
    ]
    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 200_000, "log_level": 0,
        "compression.type": load.codec,
    })  # fmt: skip
    for number in range(count):
        value = values[number % len(values)][: load.value_bytes]
        while True:
            try:
                producer.produce(
                    load.topic, value, b"key-%d" % (number % 1_000), partition=number % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.2)
    producer.flush(120)


def cpu_s(without: int) -> float:
    """CPU of this process and its descendants, but those of the process `without`."""
    own = psutil.Process()
    found = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            if without not in (process.pid, *(parent.pid for parent in process.parents())):
                found += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return found


def read(spark: Any, bootstrap: str, source: str, topic: str) -> None:
    """Read all of a topic."""
    name, options = SOURCES[source]
    reader = spark.read.format(name).option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader.options(**options).load().write.format("noop").mode("overwrite").save()


def write(spark: Any, bootstrap: str, sink: str, count: int) -> None:
    """Write `count` records of 100 B, which Spark makes up, to a topic."""
    rows = spark.range(0, count, numPartitions=PARTITIONS).selectExpr(
        "concat('key-', id % 1000) AS key", "lpad(cast(id AS string), 100, 'value ') AS value"
    )
    writer = rows.write.format(SINKS[sink]).option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", "written").mode("append").save()


def archive(spark: Any, bootstrap: str, source: str, topic: str, warehouse: Warehouse) -> None:
    """Put all of a topic into a new Iceberg table."""
    config = ArchiveConfig(bootstrap, topic, warehouse, f"headrace.archived_{uuid4().hex}")
    if source == "headrace":
        run_archive(config, spark=spark)
        return
    table = TableName.parse(config.table or "")
    ensure_table(spark, open_catalog(config.place), config.place, table, Layout("append", "zstd"))
    spark.sql(f"ALTER TABLE {table.in_spark} UNSET TBLPROPERTIES ('write.wap.enabled')")
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true")
    frame, kept = reader.load(), spark.table(table.in_spark).schema.fields
    absent = [f"CAST(NULL AS {f.dataType.simpleString()}) {f.name}" for f in kept
              if f.name not in frame.columns]  # fmt: skip
    frame.selectExpr("*", *absent).select(*(f.name for f in kept)).writeTo(table.in_spark).append()


def measured(what: str, count: int, broker: BrokerProcess, run: Callable[[], None]) -> str:
    """Run, and say what it cost."""
    before, begun = cpu_s(broker.pid), time.monotonic()
    run()
    cpu, seconds = cpu_s(broker.pid) - before, time.monotonic() - begun
    return f"{what}: {cpu / count * 1e6:.2f} CPU s per million, {count / seconds:,.0f} records/s"


def main() -> None:
    """Measure, and print a line for each reading and writing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    jars = ensure_jars([*PINNED, *map(Jar.parse, CONNECTOR)])
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with BrokerProcess(folder / "data", folder / "log") as broker:
            for load in LOADS:
                fill(broker.kafka, load, int(options.records * load.share))
            settings = {"spark.jars": ",".join(map(str, jars))}
            lake = Warehouse(folder / "lake")
            spark = make_session(
                SessionConfig("local[2]", memory_mb=1_500, settings=settings, warehouse=lake)
            )
            for load in LOADS:
                count = int(options.records * load.share)
                for turn in range(options.rounds + 1):
                    for source in SOURCES:
                        job = partial(read, spark, broker.kafka, source, load.topic)
                        line = measured(f"{load.topic}: {source}", count, broker, job)
                        if turn:  # the first is the warm-up
                            print(line, flush=True)
            create_topic(broker.kafka, "written", PARTITIONS, {})
            for turn in range(options.rounds + 1):
                for sink in SINKS:
                    job = partial(write, spark, broker.kafka, sink, options.records)
                    line = measured(f"write: {sink}", options.records, broker, job)
                    if turn:
                        print(line, flush=True)
            for load in LOADS:
                count = int(options.records * load.share)
                for turn in range(options.rounds + 1):
                    for source in SINKS:
                        job = partial(archive, spark, broker.kafka, source, load.topic, lake)
                        line = measured(f"archive {load.topic}: {source}", count, broker, job)
                        if turn:
                            print(line, flush=True)
            spark.stop()


if __name__ == "__main__":
    main()
