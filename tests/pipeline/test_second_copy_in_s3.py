"""Old records of a topic that is a table in S3: in the table alone, whatever happens to S3."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.pipeline.iceberg_rest import iceberg_rest
from tests.pipeline.test_second_copy import (
    SLOW_S,
    check_tasks,
    consume,
    files_of,
    ledgers_of,
    metric,
    produce,
)
from tests.s3_server import BUCKET, SECRET_KEY, Proxy, S3Server
from tests.waiting import wait_until

from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.warehouse import Warehouse
from headrace.storage.tiering.table_catalog import KEEPS_TAGGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 3_000
PLACE = f"s3://{BUCKET}/lake"


@pytest.fixture
def server(tmp_path):
    found = S3Server(tmp_path).start()
    yield found
    found.stop()


@contextmanager
def spark_at(catalog: str) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Runs requests of `spark_child.py`, in one session: archives, and statements of another
    engine."""
    command = [sys.executable, str(Path(__file__).parent / "spark_child.py"), PLACE, catalog]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        ask, answers = child.stdin, child.stdout

        def run(**request: Any) -> list[dict[str, Any]]:
            print(json.dumps(request), file=ask, flush=True)
            found = json.loads(answers.readline())
            assert "error" not in found, (request, found["error"][:2_000])
            rows: list[dict[str, Any]] = found["rows"]
            return rows

        try:
            yield run
        finally:
            ask.close()
            child.wait(60)


def is_replaced(broker: Broker, topic: str) -> bool:
    """All but the newest sealed ledger, whose footer the broker needs to open."""
    old = ledgers_of(broker, topic)[:-2]  # none until the broker serves the partition again
    return len(old) > 3 and all(one["is_tabled"] for one in old)


@contextmanager
def hidden(paths: list[Path]) -> Iterator[None]:
    """As if deleted."""
    for path in paths:
        path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        for path in paths:
            path.with_suffix(".away").rename(path)


@contextmanager
def changed(paths: list[Path]) -> Iterator[None]:
    """Other bytes, of the same size."""
    before = {path: path.read_bytes() for path in paths}
    for path, data in before.items():
        path.write_bytes(data[:4] + bytes(each ^ 1 for each in data[4:-1_000]) + data[-1_000:])
    try:
        yield
    finally:
        for path, data in before.items():
            path.write_bytes(data)


@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("kind", ["directory", "rest"])
def test_consumers_get_the_same_records_from_tables_in_s3_or_an_error(
    kind, server, tmp_path, monkeypatch
):
    topic = f"old-{tmp_path.name}"
    objects = tmp_path / "objects"
    proxy = Proxy(server.port)  # of all that reads S3 here, but for the REST catalog
    for name, value in server.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        stack.callback(proxy.close)
        catalog = str(tmp_path / "catalog")
        Path(catalog).mkdir()
        if kind == "rest":
            own = iceberg_rest(server.environment(), PLACE, tmp_path / "rest.log")
            catalog = f"rest:http://127.0.0.1:{stack.enter_context(own)}"
        options = ("--tiering-interval-ms", "200", "--objects", f"file://{objects}")
        options += ("--tables", PLACE, "--tables-catalog", catalog)
        broker = Broker(tmp_path / "broker", *options).start()
        stack.callback(broker.kill)
        create_topic(
            broker.kafka, topic, segment_bytes=60_000, retention_ms=-1,
            remote_storage_enable="true", local_retention_bytes="0",
            **{"headrace.table": "append", "headrace.table.replaces.objects": "true"},
        )  # fmt: skip
        sent = produce(broker, topic, COUNT)
        wait_until(lambda: len(list(objects.rglob("*.ledger"))) > 3, SLOW_S)
        spark = stack.enter_context(spark_at(catalog))
        spark(archive=[broker.kafka, topic])
        table = load_table(Warehouse.at(PLACE, kept_in=catalog), TableName.of_topic(topic))
        if kind == "rest":  # nobody has said yet that its maintenance heeds tags
            wait_until(lambda: KEEPS_TAGGED in broker.log(), SLOW_S)
            assert not any(one["is_tabled"] for one in ledgers_of(broker, topic))
            with table.transaction() as change:
                change.set_properties({KEEPS_TAGGED: "true"})
            broker.restart()
        wait_until(lambda: is_replaced(broker, topic), SLOW_S)
        wait_until(lambda: len(list(objects.rglob("*.ledger"))) <= 1, SLOW_S)
        assert consume(broker, topic, 0, COUNT) == sent
        *_, newest, _active = ledgers_of(broker, topic)
        check_tasks(broker, topic, f"file://{objects}", newest["base_offset"])

        kept = files_of(table.refresh())
        sent += produce(broker, topic, 300, COUNT)
        spark(archive=[broker.kafka, topic])  # all that may be rewritten: no second copy
        assert kept <= files_of(table.refresh())
        broker.kill()
        broker.start()
        assert consume(broker, topic, 100, len(sent)) == sent[100:]
        check_harm(broker, topic, server, proxy, sent)
        assert SECRET_KEY not in broker.log()


def check_harm(
    broker: Broker, topic: str, server: S3Server, proxy: Proxy, sent: list[tuple[Any, ...]]
) -> None:
    """Files that cannot be had are an error for those who ask for them, and for nobody else."""
    files = [path for path in server.root.rglob("*.parquet") if topic in str(path)]
    assert files
    newest = len(sent) - 5
    for harm in (hidden, changed):
        with harm(files):
            broker.restart()
            with pytest.raises(AssertionError, match="0 records"):
                consume(broker, topic, 0, 10, patience_s=10)
            assert broker.get(f"/v1/topics/{topic}/records?partition=0&offset=0&max=3")[0] >= 400
            assert consume(broker, topic, newest, len(sent)) == sent[newest:]
            if harm is hidden:
                wait_until(lambda: metric(broker, "headrace_tier_table_missing") > 3, SLOW_S)
                assert "restore the file" in broker.log()
        assert consume(broker, topic, 0, len(sent)) == sent
    broker.restart()
    proxy.stall()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(consume(broker, topic, 0, 50, SLOW_S)))
    waiting.start()
    assert consume(broker, topic, newest, len(sent)) == sent[newest:]
    assert not found
    proxy.resume()
    waiting.join(SLOW_S)
    assert found == [sent[:50]]
