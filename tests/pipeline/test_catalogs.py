"""REST catalogs that people run, each with what a topic's table needs (docs/PIPELINE.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer
from tests.pipeline.iceberg_rest import iceberg_rest, nessie
from tests.pipeline.login_proxy import CREDENTIAL, SCOPE, TOKEN_PATH, Login, login_proxy
from tests.pipeline.process_trees import kill_tree
from tests.s3_server import BUCKET, SECRET_KEY, S3Server
from tests.waiting import wait_until

from headrace.java.jars import cache_folder
from headrace.pipeline.demo.clients import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(2_400)]
PLACE = f"s3://{BUCKET}/lake"
START_S = 500
"""Bounds a hang: a service starts Spark, which on a busy machine takes minutes."""
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
WIDER = {**SCHEMA, "properties": {"note": {"type": "string"}, **SCHEMA["properties"]}}


class Catalog(NamedTuple):
    """How a catalog is reached."""

    place: str
    kept_in: str
    environment: dict[str, str]
    login: Login | None = None
    stages: bool = True


@contextmanager
def iceberg_with_login(server: S3Server, folder: Path) -> Iterator[Catalog]:
    """Clients log in for a while, and have no keys of S3 but those that the catalog lends."""
    store = server.environment()
    with (
        iceberg_rest(store, PLACE, folder / "rest.log", lends_keys=True) as port,
        login_proxy(port) as (front, login),
    ):
        url = f"http://127.0.0.1:{front}"
        own = {
            "AWS_ENDPOINT_URL": store["AWS_ENDPOINT_URL"],
            "AWS_REGION": store["AWS_REGION"],
            "AWS_EC2_METADATA_DISABLED": "true",
            "HEADRACE_CATALOG_CREDENTIAL": CREDENTIAL,
            "HEADRACE_CATALOG_OAUTH2_URI": url + TOKEN_PATH,
            "HEADRACE_CATALOG_SCOPE": SCOPE,
        }
        yield Catalog(PLACE, f"rest:{url}", own, login)


@contextmanager
def nessie_with_keys(server: S3Server, folder: Path) -> Iterator[Catalog]:
    """A warehouse by its name; clients have keys of S3."""
    with nessie(server.environment(), PLACE, folder / "nessie.log") as port:
        url = f"rest:http://127.0.0.1:{port}/iceberg"
        yield Catalog("lake", url, server.environment(), stages=False)


@pytest.fixture(params=[iceberg_with_login, nessie_with_keys], ids=["login", "nessie"])
def catalog(request: Any, tmp_path: Path) -> Iterator[Catalog]:
    server = S3Server(tmp_path).start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        yield stack.enter_context(request.param(server, tmp_path))


def headrace(broker: str, catalog: Catalog, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """A command, and its environment."""
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, *arguments]
    return command, {**os.environ, **catalog.environment}


@contextmanager
def service(broker: str, catalog: Catalog, log: Path) -> Iterator[None]:
    """Killed at the end, with all of its processes."""
    place = ("--warehouse", catalog.place, "--catalog", catalog.kept_in)
    command, environment = headrace(
        broker, catalog, "pipeline", "tables", *place, "--master", "local[2]"
    )
    with (
        log.open("a") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process,
    ):
        try:
            yield
        finally:
            kill_tree(process)


def produce(broker: str, topic: str, records: list[tuple[int, bytes, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": broker})
    for partition, key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(60) == 0


def by_hand(broker: str, catalog: Catalog, **given: Any) -> dict[str, Any]:
    child = Path(__file__).parent / "catalog_child.py"
    given |= {"bootstrap": broker, "place": catalog.place, "kept_in": catalog.kept_in}
    done = subprocess.run(
        [sys.executable, child, json.dumps(given)],
        env={**os.environ, **catalog.environment}, capture_output=True, text=True, timeout=900,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_catalog_holds_the_tables_of_topics(
    broker: str, topic: str, send: Callable[..., None], catalog: Catalog, tmp_path: Path
) -> None:
    odd, typed, kept = (f"{topic}.Odd_name-{number}" for number in range(3))
    create_topic(broker, odd, 3, {"retention.ms": "-1", "headrace.table": "append"})
    create_topic(broker, typed, 1, {})
    create_topic(broker, kept, 2, {"cleanup.policy": "compact"})
    log = tmp_path / "service.log"

    def pending() -> tuple[int, str | None]:
        place = ("--warehouse", catalog.place, "--catalog", catalog.kept_in)
        command, environment = headrace(broker, catalog, "table", "status", odd, *place, "--json")
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr + log.read_text()[-3000:]
        (row,) = json.loads(done.stdout)
        return row["pending"], row["problem"]

    send(odd, 3_000)
    with service(broker, catalog, log):  # killed as soon as a round is done
        wait_until(lambda: pending()[0] < 3_000, START_S, 1)
    send(odd, 300, first=3_000)
    with service(broker, catalog, log):
        wait_until(lambda: pending() == (0, None), START_S, 1)
        if catalog.login is not None:  # as Java and Python do, each when its token expires
            count = catalog.login.count
            wait_until(lambda: catalog.login.count > count + 4, START_S, 1)
        send(odd, 3, first=3_300)
        wait_until(lambda: pending() == (0, None), START_S, 1)
    command, environment = headrace(broker, catalog, "table", "disable", odd)
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)

    produce(broker, typed, [(0, b"k", value) for value in (b'{"id":1}', b"none", b'{"id":2}')])
    records = [(n % 2, b"k%d" % (n % 30), b"%d" % n if n % 7 else None) for n in range(200)]
    produce(broker, kept, records)
    found = by_hand(
        broker, catalog, topic=odd, typed=typed, compacted=kept,
        schemas=[SCHEMA], folder=str(tmp_path),
    )  # fmt: skip
    assert found["typed"] == [[0, {"id": 1}], [2, {"id": 2}]]
    produce(broker, typed, [(0, b"k", b'{"id":3,"note":"n"}')])
    found = by_hand(
        broker, catalog, topic=odd, typed=typed, compacted=kept,
        schemas=[WIDER], folder=str(tmp_path),
    )  # fmt: skip
    rows = [[0, 1, None], [2, 2, None], [3, 3, "n"]]
    assert [[at, value["id"], value["note"]] for at, value in found["typed"]] == rows
    assert found["side"] == [[1, "none"]]
    model = {(partition, key.decode()): value for partition, key, value in records}
    latest = [[*place, value.decode()] for place, value in model.items() if value is not None]
    if catalog.stages:
        assert sorted(found["latest"]) == sorted(latest)
    else:
        assert "keep the table in another catalog" in found["latest"]
    assert found["is_catalogs_own"] is not catalog.stages
    assert (found["archived"], found["problems"]) == (3_303, [])
    assert not any(secret in log.read_text() for secret in (SECRET_KEY, "not-to-be-shown"))
    if catalog.login is not None:
        assert catalog.login.refused == []


def test_of_two_archives_at_once_each_record_is_in_the_table_once(
    broker: str, topic: str, send: Callable[..., None], catalog: Catalog, tmp_path: Path
) -> None:
    """As on two machines, where no lease keeps them apart: they meet in each round."""
    send(topic, 3_000)
    caches = [tmp_path / name for name in ("one", "other")]
    for cache in caches:
        cache.mkdir()
        (cache / "jars").symlink_to(cache_folder() / "jars")
    place = ("--warehouse", catalog.place, "--catalog", catalog.kept_in)
    job = ("--topic", topic, *place, "--master", "local[2]")
    command, environment = headrace(broker, catalog, "pipeline", "run", "archive", *job)
    command += ["--round-records", "300"]
    runs = [
        subprocess.Popen(
            command, env={**environment, "HEADRACE_CACHE": str(cache)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for cache in caches
    ]  # fmt: skip
    for run in runs:
        said, _ = run.communicate(timeout=START_S * 2)
        assert run.returncode == 0 or "another writer changed the table" in said, said
    assert 0 in [run.returncode for run in runs]
    command, environment = headrace(broker, catalog, "pipeline", "run", "reconcile", *job)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=START_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3,000 records stored, 3,000 archived" in done.stdout
