"""Spark Connect: the data sources are found in a server whose clients know nothing of us."""

import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
import pytest
from confluent_kafka import Producer
from tests.documents.commands import ROOT, blocks
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port
from headrace.java.installation import find_java_home
from headrace.java.jars import cache_folder, ensure_jars
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jars import PINNED
from headrace.pipeline.restarts import with_restarts
from headrace.pipeline.session import SessionConfig, settings_of
from headrace.pipeline.warehouse import Warehouse

SPARK_HOME = Path(pyspark.__file__).parent


def environment():
    own = {
        "JAVA_HOME": str(find_java_home(cache_folder())),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(SPARK_HOME),
    }
    return {**os.environ, **own}


def stop(process):
    """With what it started."""
    if process.poll() is not None:
        return
    tree = [*psutil.Process(process.pid).children(recursive=True), process]
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    psutil.wait_procs(tree, timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a Spark Connect server, a process of its own."""
    folder = tmp_path_factory.mktemp("connect")
    port = free_port()
    config = SessionConfig(
        "local[2]", warehouse=Warehouse(folder / "tables"), memory_mb=768, short_run=True
    )
    settings = settings_of(config, ensure_jars(PINNED)) | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    properties = folder / "spark.conf"
    properties.write_text("".join(f"{k} {v}\n" for k, v in settings.items() if v))
    command = [
        SPARK_HOME / "bin" / "spark-submit", "--properties-file", properties, "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment(), stdout=log, stderr=log, cwd=folder)
    try:
        wait_until(lambda: answers(port) or process.poll() is not None, timeout_s=400)
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop(process)


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


CLIENT = """
import sys
from pyspark.sql import SparkSession
remote, bootstrap, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
given = {"bootstrap.servers": bootstrap, "subscribe": source}
frame = spark.read.format("headrace").options(**given).load()
print("count", frame.where("partition = 1").count())
spark.sql(
    f"CREATE TEMPORARY VIEW records USING headrace OPTIONS"
    f" ('bootstrap.servers' '{bootstrap}', 'subscribe' '{source}')"
)
print("sql", spark.sql("SELECT count(DISTINCT value) AS n FROM records").first().n)
for _ in range(2):
    query = (
        spark.readStream.format("headrace").options(**given).load()
        .selectExpr("key", "upper(cast(value AS string)) AS value")
        .writeStream.format("headrace")
        .options(**{"bootstrap.servers": bootstrap, "topic": target})
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()
spark.stop()
"""


@pytest.mark.timeout(1_500)
def test_source_and_sink_work_through_a_connect_server(
    server, broker, topic, send, tmp_path, contents
):
    send(topic, 300)
    target = f"{topic}-upper"
    create_topic(broker, target, 3, {"retention.ms": "-1"})
    script = tmp_path / "client.py"
    script.write_text(CLIENT)
    done = subprocess.run(
        [sys.executable, script, server, broker, topic, target, tmp_path / "checkpoint"],
        capture_output=True, text=True, check=False, timeout=600, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == ["count 100", "sql 300"]
    written = sorted(value for *_, value in contents(target))
    assert written == sorted(b"VALUE-%d" % number for number in range(300))


TABLES = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
for sql in sys.argv[2:]:
    print(json.dumps([list(row) for row in spark.sql(sql).collect()], default=str))
spark.stop()
"""
START_MS = 1_700_000_040_000  # a full minute


@pytest.fixture
def etl(server, broker, topic, tmp_path):
    """Write the documented pipeline, for topics of this test; its commands, by name."""
    totals = f"{topic}-totals"
    create_topic(broker, totals, 2, {"retention.ms": "-1"})
    ours = {
        "file:///var/lib/orders": (tmp_path / "storage").as_uri(), "127.0.0.1:9092": broker,
        'subscribe="orders"': f'subscribe="{topic}"', '"topic": "totals"': f'"topic": "{totals}"',
    }  # fmt: skip
    (tmp_path / "steps").mkdir()
    for _, text in blocks(ROOT / "docs" / "PIPELINE.md"):
        first, _, rest = text.partition("\n")
        name = first.lstrip("#- ")
        if name == "spark-pipeline.yml" or name.startswith("steps/"):
            for theirs, own in ours.items():
                rest = rest.replace(theirs, own)
            (tmp_path / name).write_text(rest)
    script = tmp_path / "tables.py"
    script.write_text(TABLES)

    def command(*arguments):
        """Again where a Python worker started too late, as on a busy machine."""

        def once():
            done = subprocess.run(
                arguments, capture_output=True, text=True, check=False, timeout=900,
                env=environment(), cwd=tmp_path,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            return done.stdout

        return with_restarts(once, arguments[0])

    def run():
        command(SPARK_HOME / "bin" / "spark-pipelines", "run", "--remote", server)

    def tables(*statements):
        found = command(sys.executable, script, server, *statements)
        return [json.loads(line) for line in found.splitlines()]

    return run, tables


@pytest.mark.timeout(2_500)
def test_the_documented_pipeline_computes_windows_and_ignores_late_records_in_them(
    etl, broker, topic, contents
):
    """Two runs, the second with a late order, against sums in plain Python."""
    run, tables = etl
    tables("CREATE NAMESPACE IF NOT EXISTS headrace.shop")
    sent = [("ab"[n % 2], n, START_MS + n * 10_000) for n in range(240)]
    late = ("a", 1_000_000, START_MS)
    for part in (sent[:120], [late, *sent[120:]]):
        producer = Producer({"bootstrap.servers": broker})
        for shop, amount, at_ms in part:
            body = json.dumps({"shop": shop, "amount": amount})
            producer.produce(topic, body.encode(), partition=0, timestamp=at_ms)
        producer.produce(topic, b"not JSON", partition=0, timestamp=part[-1][2])
        assert producer.flush(60) == 0
        run()
    shops, minutes = tables(
        "SELECT shop, amount, orders FROM headrace.shop.shops ORDER BY shop NULLS LAST",
        "SELECT unix_millis(minute), shop, amount FROM headrace.shop.minutes ORDER BY 1, 2",
    )
    amounts = {shop: sum(a for s, a, _ in [*sent, late] if s == shop) for shop in "ab"}
    assert shops == [["a", amounts["a"], 121], ["b", amounts["b"], 120], [None, None, 2]]
    expected = {}
    for shop, amount, at_ms in sent:
        minute = at_ms // 60_000 * 60_000
        expected[minute, shop] = expected.get((minute, shop), 0) + amount
    complete_ms = sent[-1][2] - 600_000
    rows = sorted([*key, n] for key, n in expected.items() if key[0] + 60_000 <= complete_ms)
    assert minutes == rows
    written = [json.loads(value) for *_, value in contents(f"{topic}-totals")]
    assert sorted((each["shop"], each["amount"]) for each in written) == sorted(
        (shop, amount) for _, shop, amount in rows
    )
