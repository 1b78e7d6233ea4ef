"""Other engines read the tables of topics, as docs/TABLES.md says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.pipeline.engines import READERS, flink, flink_catalog, reader, trino
from tests.pipeline.iceberg_rest import iceberg_rest
from tests.s3_server import BUCKET, S3Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]
PLACE = f"s3://{BUCKET}/lake"
FIGURES = (
    "SELECT count(*), count(DISTINCT CAST({p} AS VARCHAR) || '-' || CAST({o} AS VARCHAR)),"
    " max({o}), sum(cardinality(headers)) FROM lake.headrace.{table}"
)


@pytest.fixture
def store(tmp_path):
    server = S3Server(tmp_path).start()
    yield server.environment()
    server.stop()


@pytest.fixture
def rest(store, tmp_path):
    with iceberg_rest(store, PLACE, tmp_path / "rest.log") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def archived(broker, topic, send, store, rest):
    """Send records, and archive all of the topic; twice, it archives what came since."""

    def more(first, count):
        send(topic, count, first=first, headers=[("h", b"x")])
        child = Path(__file__).parent / "lake_child.py"
        subprocess.run(
            [sys.executable, child, broker, topic, PLACE, f"rest:{rest}"],
            env={**os.environ, **store}, check=True, timeout=900,
        )  # fmt: skip

    return more


def test_flink_and_trino_read_a_table_and_flink_streams_on(archived, store, rest, topic, tmp_path):
    archived(0, 300)
    catalog = flink_catalog(rest, store, PLACE)
    table = f"`{topic}`"
    environment = {**os.environ, **store}
    query = FIGURES.format(p="`partition`", o="`offset`", table=table)
    batch = subprocess.run(
        flink("batch", [catalog, query]),
        env=environment, capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    assert batch.stdout.split("\n")[0] == "ROW +I[300, 300, 99, 300]"

    hint = "'streaming'='true', 'monitor-interval'='1s'"
    hint += ", 'starting-strategy'='TABLE_SCAN_THEN_INCREMENTAL'"
    on = f"SELECT CAST(`value` AS STRING) FROM lake.headrace.{table} /*+ OPTIONS({hint}) */"
    out = tmp_path / "stream.out"
    with (
        out.open("w") as shown,
        subprocess.Popen(
            flink("streaming", [catalog, on]), env=environment, stdout=shown, stderr=shown
        ) as streaming,
    ):
        try:

            def rows(count):
                assert streaming.poll() is None, out.read_text()[-3000:]
                found = [line for line in out.read_text().split("\n") if line.startswith("ROW +I[")]
                return len(found) >= count and sorted(found)

            wait_until(lambda: rows(300), 600, 0.5)
            archived(300, 30)
            found = wait_until(lambda: rows(330), 600, 0.5)
        finally:
            streaming.kill()
    assert found == sorted(f"ROW +I[value-{number}]" for number in range(330))

    with trino(rest, store, PLACE, tmp_path / "trino") as run:
        query = FIGURES.format(p="partition", o='"offset"', table=f'"{topic}"')
        assert run(query) == [[330, 330, 109, 330]]
        assert run("SELECT count(*) FROM lake.headrace.latest") == [[30]]


def test_what_python_installs_reads_a_table_and_one_with_replaced_and_deleted_rows(
    archived, broker, store, rest, topic
):
    archived(0, 300)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, None, b"key-9", 2)
    assert producer.flush(60) == 0
    archived(300, 29)  # all keys but that one
    lake = {"rest": rest, "place": PLACE, "bucket": BUCKET, "store": store, "topic": topic}
    latest = sorted(f"value-{number}" for number in range(300, 329))
    for name in READERS:
        done = subprocess.run(
            reader(name),
            env={**os.environ, "LAKE": json.dumps(lake)},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr[-3000:]}"
        found = json.loads(done.stdout.splitlines()[-1])
        assert found == [[330, 330, 109, 329], latest], name
