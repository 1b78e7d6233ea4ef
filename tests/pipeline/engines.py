"""Other engines that read Iceberg tables: Apache Flink, in one process, a Trino server, and what
Python installs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyspark
import pytest
from tests.integration.foreign import pinned_jars
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port
from headrace.java.download import Downloads
from headrace.java.installation import find_java_home, probe
from headrace.java.jars import cache_folder, ensure_jars, repository
from headrace.pipeline.jars import AWS
from headrace_verify.blackbox.languages.cached import made_once
from headrace_verify.blackbox.languages.rocketmq import NotInstalled, find_python

if TYPE_CHECKING:
    from collections.abc import Iterator

FLINK = Path(__file__).parent / "flink"
READ = Path(__file__).parent / "readers" / "read.py"
READERS = ("duckdb", "clickhouse", "polars", "daft", "datafusion")
TRINO = "476"
TRINO_SHA256 = "cfd5accde17e8ebd251eeeb78aed1f490e77bb3a164d95a0f454bf8a7c1cbd3f"
TRINO_JAVA = 24  # the first that it runs on
START_S = 300
OPENED = ("java.util", "java.lang", "java.net", "java.io", "java.nio", "java.time", "sun.nio.ch")


def _python_of(lock: Path) -> Path:
    """Of an environment of its own; the test is skipped where it cannot be had."""
    try:
        return find_python(lock.read_text())
    except NotInstalled as error:
        pytest.skip(str(error))


def reader(name: str) -> list[str]:
    """The command that prints what one of READERS reads."""
    return [str(_python_of(READ.with_name("requirements.lock"))), str(READ), name]


def flink(mode: str, statements: list[str]) -> list[str]:
    """The command that prints the rows of the last statement."""
    python = _python_of(FLINK / "requirements.lock")
    (own,) = python.parents[1].glob("lib/python*/site-packages/pyflink")
    spark = Path(pyspark.__file__).parent / "jars"
    jars = [*pinned_jars(FLINK / "jars.txt"), *ensure_jars([AWS])]
    jars += [own / "lib" / "*", own / "opt" / "*", *spark.glob("hadoop-client-*.jar")]
    return [
        str(find_java_home(cache_folder()) / "bin" / "java"),
        *("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in OPENED),
        *("-cp", os.pathsep.join(map(str, jars)), str(FLINK / "Lake.java"), mode, *statements),
    ]


def flink_catalog(rest: str, store: dict[str, str], place: str) -> str:
    """The statement that opens the REST catalog as `lake`."""
    settings = {
        "type": "iceberg",
        "catalog-type": "rest",
        "uri": rest,
        "warehouse": place,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": store["AWS_ENDPOINT_URL"],
        "s3.path-style-access": "true",
        # The Apache client of 1.11 is not in the bundle of 1.12.
        "http-client.type": "urlconnection",
    }
    given = ", ".join(f"'{name}'='{value}'" for name, value in settings.items())
    return f"CREATE CATALOG lake WITH ({given})"


@contextmanager
def trino(rest: str, store: dict[str, str], place: str, folder: Path) -> Iterator[Any]:
    """What runs SQL on a Trino server with the REST catalog as `lake`, and returns rows."""
    java = newer_java(TRINO_JAVA, f"Trino {TRINO}")
    home = made_once("peers", f"trino-{TRINO}", _unpack_trino) / f"trino-server-{TRINO}"
    port = free_port()
    catalog = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": rest,
        "iceberg.rest-catalog.warehouse": place,
        "fs.native-s3.enabled": "true",
        "s3.endpoint": store["AWS_ENDPOINT_URL"],
        "s3.path-style-access": "true",
        "s3.region": store["AWS_REGION"],
    }
    server = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "discovery.uri": f"http://127.0.0.1:{port}",
        "query.max-memory-per-node": "128MB",
        "memory.heap-headroom-per-node": "128MB",
    }
    (folder / "catalog").mkdir(parents=True)
    _write(folder / "catalog" / "lake.properties", catalog)
    _write(folder / "config.properties", server)
    properties = {
        "node.environment": "test",
        "node.id": "one",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "node.data-dir": str(folder),
        "plugin.dir": str(home / "plugin"),
        "config": str(folder / "config.properties"),
        "catalog.config-dir": str(folder / "catalog"),
        "jdk.attach.allowAttachSelf": "true",
    }
    command = [
        str(java),
        *("-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        "--add-modules=jdk.incubator.vector",
        *(f"-D{name}={value}" for name, value in properties.items()),
        *("-cp", str(home / "lib" / "*"), "io.trino.server.TrinoServer"),
    ]
    own = {name: value for name, value in store.items() if "ENDPOINT" not in name}
    log = folder / "trino.log"
    with (
        log.open("w") as out,
        subprocess.Popen(  # in its folder, where it writes a log of requests
            command, env={**os.environ, **own}, stdout=out, stderr=out, cwd=folder
        ) as it,
    ):
        try:

            def is_started() -> bool:
                assert it.poll() is None, log.read_text()[-3000:]
                return "SERVER STARTED" in log.read_text()

            wait_until(is_started, START_S, 0.5)
            wait_until(lambda: _has_nodes(port), START_S, 0.5)
            listening = psutil.Process(it.pid).net_connections("tcp")
            hosts = {one.laddr.ip for one in listening if one.status == psutil.CONN_LISTEN}
            assert {host.removeprefix("::ffff:") for host in hosts} == {"127.0.0.1"}
            yield lambda sql: _trino_rows(port, sql)
        finally:
            it.kill()


def newer_java(least: int, program: str) -> Path:
    """A Java of this machine that `program` runs on; the test is skipped where there is none."""
    homes = [os.environ.get("JAVA_HOME", "/none"), *sorted(Path("/usr/lib/jvm").glob("*"))]
    for java in (Path(home) / "bin" / "java" for home in homes):
        found = probe(java) if java.is_file() else None
        if found is not None and found[1] >= least:
            return java
    pytest.skip(f"{program} needs Java {least} or newer, in JAVA_HOME or /usr/lib/jvm")


def _unpack_trino(target: Path) -> None:
    """Its server, with the Iceberg plugin alone: the others have 700 MB."""
    archive = target.with_suffix(".tar.gz")
    url = f"{repository()}/io/trino/trino-server/{TRINO}/trino-server-{TRINO}.tar.gz"
    Downloads().fetch(url, archive, TRINO_SHA256, lambda _done, _all: None)
    try:
        with tarfile.open(archive) as packed:  # plugins share files by hard links
            packed.extractall(target, filter="data")
    finally:
        archive.unlink()
    for plugin in target.glob("*/plugin/*"):
        if plugin.name != "iceberg":
            shutil.rmtree(plugin)


def _write(path: Path, properties: dict[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def _has_nodes(port: int) -> bool:
    """A server knows itself as a node a moment after it has started."""
    page = _page(port, "SELECT 1")
    while "error" not in page:
        if "nextUri" not in page:
            return True
        page = _answer(page["nextUri"])
    assert "No nodes available" in page["error"]["message"], page["error"]["message"]
    return False


def _trino_rows(port: int, sql: str) -> list[list[Any]]:
    page, rows = _page(port, sql), []
    while True:
        assert "error" not in page, page["error"]["message"]
        rows += page.get("data", [])
        if "nextUri" not in page:
            return rows
        page = _answer(page["nextUri"])


def _page(port: int, sql: str) -> Any:
    return _answer(
        urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/statement", sql.encode(), {"X-Trino-User": "reader"}
        )
    )


def _answer(request: Any) -> Any:
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
