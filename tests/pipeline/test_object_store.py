"""Tables in S3, in the catalog of a real REST server."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.pipeline.iceberg_rest import iceberg_rest
from tests.s3_server import BUCKET, SECRET_KEY, Proxy, S3Server
from tests.waiting import wait_until

from headrace.java.jars import cache_folder
from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.warehouse import Warehouse

TOKEN = "a-token-that-nobody-may-see"


@pytest.fixture
def store(tmp_path):
    server = S3Server(tmp_path).start()
    yield server.environment()
    server.stop()


@pytest.fixture
def kept_in(store, tmp_path):
    """(what --catalog takes, what was said to it)."""
    heard = []
    with iceberg_rest(store, f"s3://{BUCKET}/lake", tmp_path / "rest.log") as port:
        proxy = Proxy(port, heard.append)
        yield f"rest:http://127.0.0.1:{proxy.port}", heard
        proxy.close()


def command_lines(process):
    """Of a process and all that it started, as `ps` shows them to all users."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # one that has just ended hides no other
                found.append(" ".join(each.cmdline()))
    return found


@pytest.mark.timeout(1_200)
def test_tables_in_s3_are_archived_maintained_and_read_and_no_secret_is_shown(
    broker, topic, send, store, kept_in, tmp_path, monkeypatch
):
    place, (catalog, heard) = f"s3://{BUCKET}/lake", kept_in
    for name, value in {**store, "HEADRACE_CATALOG_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, value)
    send(topic, 300, headers=[("h", b"x")])
    child = Path(__file__).parent / "lake_child.py"
    log = tmp_path / "child.log"
    shown = set()
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, child, broker, topic, place, catalog],
            stdout=subprocess.PIPE, stderr=out, text=True,
        ) as process,
    ):  # fmt: skip
        tree = psutil.Process(process.pid)

        def has_ended():
            shown.update(command_lines(tree))
            return process.poll() is not None

        wait_until(has_ended, timeout_s=900, every_s=0.5)
        said = process.stdout.read()
    assert process.returncode == 0, log.read_text()[-3000:]
    assert json.loads(said.splitlines()[-1]) == [300, 3, []]
    assert any("org.apache.spark" in line for line in shown)
    spoken = "\n".join([*shown, said, log.read_text(), (cache_folder() / "spark.log").read_text()])
    assert TOKEN not in spoken
    assert SECRET_KEY not in spoken
    assert f"Authorization: Bearer {TOKEN}".lower() in b"".join(heard).decode("latin-1").lower()

    warehouse = Warehouse.at(place, kept_in=catalog)
    table = load_table(warehouse, TableName.of_topic(topic))
    assert table.location().startswith(f"s3://{BUCKET}/lake/")
    scan = table.scan()
    assert sorted(scan.to_arrow()["value"].to_pylist()) == sorted(
        b"value-%d" % number for number in range(300)
    )
    query = 'SELECT count(*), count(DISTINCT (partition, "offset")), sum(len(headers)) FROM records'
    assert scan.to_duckdb("records").execute(query).fetchall() == [(300, 300, 300)]
    latest = load_table(warehouse, TableName.parse("headrace.latest")).scan().to_arrow()
    assert latest.num_rows == 30  # keys by partition

    options = ("--warehouse", place, "--catalog", catalog, "--json")
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, "table"]
    subprocess.run([*command, "enable", topic], check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [*command, "status", topic, *options],
        check=True, capture_output=True, text=True, timeout=120, env=os.environ,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)
    assert (row["pending"], row["problem"]) == (0, None)
