"""What reading and writing a topic cost in Spark: `headrace` beside Spark's own Kafka connector.

Invariants: one broker, one session, the sources in turn after a warm-up each, all columns into
Spark's noop sink; then the sinks in turn, `headrace` exactly once, the connector at least once;
then archives into new Iceberg tables of one layout, by `headrace`, and by the connector and one
append; then a topic's table, beside an idle broker. CPU is that of Java and the Python workers
together, and the broker's beside it, so other work on the machine matters little.

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
from headrace.pipeline.catalog import TableName, open_catalog, table_of_topic
from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jars import PINNED
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.layout import Layout, ensure_table
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
KINDS = ("read", "write", "archive", "table")
IDLE = "nothing, for 2 s"


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


def cpu_s(broker: int) -> tuple[float, float]:
    """CPU of this process and its descendants but the broker's, and of the broker's processes."""
    own = psutil.Process()
    found = [0.0, 0.0]
    for process in [own, *own.children(recursive=True)]:
        try:
            line = (process.pid, *(parent.pid for parent in process.parents()))
            found[broker in line] += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return found[0], found[1]


def read(spark: Any, bootstrap: str, topic: str, source: str) -> None:
    """Read all of a topic."""
    name, options = SOURCES[source]
    reader = spark.read.format(name).option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader.options(**options).load().write.format("noop").mode("overwrite").save()


def write(spark: Any, bootstrap: str, count: int, sink: str) -> None:
    """Write `count` records of 100 B, which Spark makes up, to a topic."""
    rows = spark.range(0, count, numPartitions=PARTITIONS).selectExpr(
        "concat('key-', id % 1000) AS key", "lpad(cast(id AS string), 100, 'value ') AS value"
    )
    writer = rows.write.format(SINKS[sink]).option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", "written").mode("append").save()


def archive(spark: Any, bootstrap: str, topic: str, warehouse: Warehouse, source: str) -> None:
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


def read_table(spark: Any, topic: str, warehouse: Warehouse, what: str) -> None:
    """Read all of a topic from its table, or nothing for as long as that takes about."""
    if what == IDLE:
        time.sleep(2)
        return
    table = table_of_topic(warehouse, topic)
    spark.table(table.in_spark).write.format("noop").mode("overwrite").save()


def measured(count: int, broker: BrokerProcess, run: Callable[[], None]) -> str:
    """Run, and say what it cost."""
    before, begun = cpu_s(broker.pid), time.monotonic()
    run()
    after, seconds = cpu_s(broker.pid), time.monotonic() - begun
    cpu, of_broker = ((now - then) / count * 1e6 for now, then in zip(after, before, strict=True))
    return (
        f"{cpu:.2f} CPU s per million (broker: {of_broker:.3f}), {count / seconds:,.0f} records/s"
    )


def main() -> None:
    """Measure, and print a line for each reading and writing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
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
            counts = {load.topic: int(options.records * load.share) for load in LOADS}
            jobs: list[tuple[str, str, int, Iterable[str], Callable[[str], None]]] = []
            for topic, count in counts.items():
                reading = partial(read, spark, broker.kafka, topic)
                jobs.append(("read", topic, count, SOURCES, reading))
            writing = partial(write, spark, broker.kafka, options.records)
            jobs.append(("write", "small", options.records, SINKS, writing))
            for topic, count in counts.items():
                archiving = partial(archive, spark, broker.kafka, topic, lake)
                jobs.append(("archive", topic, count, SINKS, archiving))
            reading_table = partial(read_table, spark, "small", lake)
            jobs.append(
                ("table", "small", options.records, ("the topic's table", IDLE), reading_table)
            )
            create_topic(broker.kafka, "written", PARTITIONS, {})
            if "table" in options.only:
                run_archive(ArchiveConfig(broker.kafka, "small", lake), spark=spark)
            for kind, topic, count, systems, job in jobs:
                for turn in range(options.rounds + 1 if kind in options.only else 0):
                    for system in systems:
                        line = measured(count, broker, partial(job, system))
                        if turn:  # the first is the warm-up
                            print(f"{kind} {topic}: {system}: {line}", flush=True)
            spark.stop()


if __name__ == "__main__":
    main()
