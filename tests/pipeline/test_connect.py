"""Spark Connect: the data sources are found in a server whose clients know nothing of us."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from tests.integration.broker import wait_until

from headrace.java.installation import find_java_home
from headrace.java.jars import cache_folder
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.session import SessionConfig, settings_of

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
        each.terminate()
    psutil.wait_procs(tree, timeout=30)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a Spark Connect server, a process of its own."""
    folder = tmp_path_factory.mktemp("connect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = settings_of(SessionConfig("local[2]", memory_mb=768, short_run=True), []) | {
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
