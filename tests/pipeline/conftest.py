"""One broker and one Spark session for the whole suite; a topic, a table, a checkpoint per test."""

import itertools
import os
from collections import namedtuple

import pytest
from confluent_kafka import Producer

from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.session import SessionConfig, make_session
from headrace.pipeline.warehouse import Warehouse

Sent = namedtuple("Sent", "topic count")  # noqa: PYI024 - a test's pair


def pytest_collection_modifyitems(items):
    here = os.path.dirname(__file__)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.pipeline)
            # pyspark leaves its sockets to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning"))


@pytest.fixture(scope="session")
def broker_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with BrokerProcess(folder / "data", folder / "log") as process:
        yield process


@pytest.fixture(scope="session")
def broker(broker_process):
    return broker_process.kafka


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory):
    return Warehouse(tmp_path_factory.mktemp("warehouse"))


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory):
    """What Java and the workers say."""
    return tmp_path_factory.mktemp("spark") / "log"


@pytest.fixture(scope="session")
def spark(warehouse, spark_log):
    session = make_session(
        SessionConfig(
            "local[2]",
            warehouse=warehouse,
            memory_mb=768,
            short_run=True,
            log_file=spark_log,
        )
    )
    yield session
    session.stop()


_numbers = itertools.count()


@pytest.fixture
def topic(broker, request):
    """A new topic of three partitions, which keeps records with timestamps of years ago."""
    name = f"t{next(_numbers)}-{request.node.originalname[5:40]}"
    create_topic(broker, name, 3, {"retention.ms": "-1"})
    return name


@pytest.fixture
def table():
    return f"headrace.table{next(_numbers)}"


@pytest.fixture
def send(broker):
    """Write `count` records to a topic, round robin, numbered from `first`."""

    def write(topic, count, first=0, value=b"value", partitions=3, **fields):
        producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
        for number in range(first, first + count):
            producer.produce(
                topic, b"%s-%d" % (value, number), b"key-%d" % (number % 10),
                partition=number % partitions, **fields,
            )  # fmt: skip
        assert producer.flush(120) == 0

    return write


@pytest.fixture
def read(spark, broker):
    """A batch reader on a topic."""

    def frame(topic, **options):
        reader = spark.read.format("headrace").option("bootstrap.servers", broker)
        reader = reader.option("subscribe", topic) if topic else reader
        return reader.options(**options).load()

    return frame


@pytest.fixture
def streamed(spark, broker):
    """A stream of a topic."""

    def frame(topic, **options):
        given = {"bootstrap.servers": broker, "subscribe": topic, **options}
        return spark.readStream.format("headrace").options(**given).load()

    return frame


@pytest.fixture
def written(tmp_path):
    """What writes a stream to files in `out`, on one checkpoint."""
    places = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    return lambda frame: frame.writeStream.format("parquet").options(**places)


@pytest.fixture
def to_topic(broker, tmp_path):
    """What writes a stream to a topic, on one checkpoint."""

    def writer(frame, topic):
        given = {"bootstrap.servers": broker, "topic": topic}
        given["checkpointLocation"] = str(tmp_path / "checkpoint")
        return frame.writeStream.format("headrace").options(**given)

    return writer


@pytest.fixture
def finish():
    """Run a stream until all that is there is written; returns its query."""

    def run(writer):
        query = writer.start()
        try:
            query.processAllAvailable()
            return query
        finally:
            query.stop()

    return run


@pytest.fixture
def contents(read):
    """(partition, offset, value) of all of a topic, in order."""

    def rows(topic):
        found = read(topic).select("partition", "offset", "value").collect()
        return sorted((row.partition, row.offset, bytes(row.value)) for row in found)

    return rows
