"""A table that has the only copy of old records, and others who alter it: consumers get the exact
records or an error, never other records."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.pipeline.iceberg_rest import iceberg_rest
from tests.pipeline.test_second_copy import (
    SLOW_S,
    consume,
    headrace,
    ledgers_of,
    metric,
    produce,
)
from tests.pipeline.test_second_copy_in_s3 import (
    PLACE,
    hidden,
    is_replaced,
    spark_at,
)
from tests.s3_server import Proxy, S3Server
from tests.waiting import wait_until

from headrace.storage.tiering.table_catalog import KEEPS_TAGGED

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 3_000
MORE = 1_200
FAR = "TIMESTAMP '2100-01-01 00:00:00'"


class World:
    """A broker whose old records are in a table of a REST catalog in S3 alone."""

    def __init__(self, server: S3Server, topic: str, folder: Path, stack: ExitStack) -> None:
        own = iceberg_rest(server.environment(), PLACE, folder / "rest.log")
        self.way = Proxy(stack.enter_context(own))  # to the catalog
        stack.callback(self.way.close)
        self.server, self.topic = server, topic
        self.catalog = f"rest:http://127.0.0.1:{self.way.port}"
        self.table = f"headrace.headrace.`{topic}`"
        self.objects = folder / "objects"
        options = ("--tiering-interval-ms", "200", "--objects", f"file://{self.objects}")
        options += ("--tables", PLACE, "--tables-catalog", self.catalog)
        self.broker = Broker(folder / "broker", *options).start()
        stack.callback(self.broker.kill)
        create_topic(
            self.broker.kafka, topic, segment_bytes=60_000, retention_ms=-1,
            remote_storage_enable="true", local_retention_bytes="0",
            **{"headrace.table": "append"},
        )  # fmt: skip
        self._archives, self._other = (
            stack.enter_context(spark_at(self.catalog)) for _engine in range(2)
        )
        self.sent: list[tuple[Any, ...]] = []
        self.add(COUNT)
        self.sql(f"ALTER TABLE {self.table} SET TBLPROPERTIES ('{KEEPS_TAGGED}'='true')")
        self.replace(is_on=True)
        wait_until(lambda: is_replaced(self.broker, topic), SLOW_S)
        wait_until(lambda: len(list(self.objects.rglob("*.ledger"))) <= 1, SLOW_S)

    def replace(self, *, is_on: bool) -> None:
        """Whether the table may replace more objects."""
        setting = f"headrace.table.replaces.objects={str(is_on).lower()}"
        headrace(self.broker, "topic", "alter", self.topic, "--set", setting)

    def add(self, count: int) -> None:
        """More records, in the table, too."""
        self.sent += produce(self.broker, self.topic, count, len(self.sent))
        self.archive()

    def archive(self) -> None:
        self._archives(archive=[self.broker.kafka, self.topic])

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """What another engine does."""
        return self._other(sql=statement)

    def call(self, procedure: str, more: str) -> None:
        self.sql(f"CALL headrace.system.{procedure}(table => '{self.table}', {more})")

    def compact(self) -> None:
        """What another engine may do to all files, and then to all snapshots."""
        self.rewrite()
        self.call("expire_snapshots", f"older_than => {FAR}, retain_last => 1")

    def rewrite(self) -> None:
        self.call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def files(self) -> list[Path]:
        return [path for path in self.server.root.rglob("*.parquet") if self.topic in str(path)]

    def check(self) -> None:
        """All records, by this process of the broker and by the next one."""
        for again in (False, True):
            if again:
                self.broker.crash()
            assert consume(self.broker, self.topic, 0, len(self.sent)) == self.sent

    def check_refused(self) -> None:
        """An error for who asks for old records, and for nobody else."""
        newest = len(self.sent) - 5
        self.broker.restart()
        with pytest.raises(AssertionError, match="0 records"):
            consume(self.broker, self.topic, 0, 10, patience_s=10)
        path = f"/v1/topics/{self.topic}/records?partition=0&offset=0&max=3"
        assert self.broker.get(path)[0] >= 500
        assert consume(self.broker, self.topic, newest, len(self.sent)) == self.sent[newest:]


@pytest.mark.timeout(2_400)
def test_whatever_others_do_to_the_table_consumers_get_the_exact_records_or_an_error(
    tmp_path, monkeypatch
):
    server = S3Server(tmp_path).start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    with ExitStack() as stack:
        stack.callback(server.stop)
        world = World(server, f"old-{tmp_path.name}", tmp_path, stack)
        without_the_catalog(world)
        world.compact()
        world.check()
        altered_before_more_is_replaced(world)
        tags_removed_and_files_with_them(world)
        dropped_and_made_again(world)


def without_the_catalog(world: World) -> None:
    """Reads do not need it, nor does a start; what could not be looked at is named."""
    world.way.stall()
    world.check()
    wait_until(lambda: metric(world.broker, "headrace_tier_table_unread") == 1, SLOW_S)
    assert metric(world.broker, "headrace_tier_table_missing") == 0
    world.way.resume()


def altered_before_more_is_replaced(world: World) -> None:
    """Columns that change their names and types, rows that are deleted: before the broker looks for
    more to replace, in a table whose maintenance has compacted all."""
    broker, topic, table = world.broker, world.topic, world.table
    world.replace(is_on=False)
    world.add(MORE)
    before = {one["ledger"] for one in ledgers_of(broker, topic) if one["is_tabled"]}
    for change in (
        f"ALTER TABLE {table} ALTER COLUMN timestampType TYPE bigint",
        f"ALTER TABLE {table} RENAME COLUMN value TO other",
        f"ALTER TABLE {table} RENAME COLUMN key TO value",
        f"ALTER TABLE {table} RENAME COLUMN other TO key",
        f"ALTER TABLE {table} ADD COLUMN extra string",
        f"DELETE FROM {table} WHERE `offset` % 7 = 3",
    ):
        world.sql(change)
    world.rewrite()
    world.replace(is_on=True)

    def were_tried() -> bool:
        old = ledgers_of(broker, topic)[:-2]
        new = [one for one in old if one["ledger"] not in before]
        return len(new) > 1 and all(
            "does not" in (one["object_kept_because"] or "")
            or "do not give" in (one["object_kept_because"] or "")
            for one in new
        )

    wait_until(were_tried, SLOW_S)
    world.check()


def tags_removed_and_files_with_them(world: World) -> None:
    """The files stay until somebody expires snapshots: the audit tells before. Restored, they are
    read again."""
    world.replace(is_on=False)
    world.broker.restart()  # it sets no tags meanwhile, which would be in the way of these commits
    kept = {path: path.read_bytes() for path in world.files()}
    for row in world.sql(f"SELECT name FROM headrace.headrace.`{world.topic}`.refs"):
        if row["name"] != "main":
            world.sql(f"ALTER TABLE {world.table} DROP TAG `{row['name']}`")
    world.check()
    wait_until(lambda: metric(world.broker, "headrace_tier_table_missing") > 3, SLOW_S)
    world.compact()
    lost = [path for path in kept if not path.exists()]
    assert lost
    world.check_refused()
    for path in lost:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kept[path])
    world.check()


def dropped_and_made_again(world: World) -> None:
    """The table of this name has the same records, and is another."""
    old = world.files()
    world.sql(f"DROP TABLE {world.table}")
    world.check()
    world.archive()  # reads what it once wrote
    (row,) = world.sql(f"SELECT count(*) AS n, max(`offset`) AS last FROM {world.table}")
    assert row == {"n": len(world.sent), "last": len(world.sent) - 1}
    world.check()
    wait_until(lambda: metric(world.broker, "headrace_tier_table_missing") > 3, SLOW_S)
    with hidden([path for path in old if path.exists()]):
        world.check_refused()
    world.check()
