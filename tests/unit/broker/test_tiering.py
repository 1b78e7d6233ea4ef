"""What may be set about tiers, what rounds do, and what the sweeps take."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pytest
from tests.clocks import HandClock
from tests.kit.broker import BrokerHarness
from tests.kit.records import append, batch
from tests.property.log.test_tiering import FileTables

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.housekeeping.ledger_garbage import LedgerGarbageCollector
from headrace.broker.housekeeping.tabling import NOT_THERE, TRIED
from headrace.broker.housekeeping.tiering import PARTITION_REST_MS
from headrace.broker.topics.topic_checks import check_tiering
from headrace.errors import ConfigInvalid, DataCorrupt, RequestInvalid, StorageUnavailable
from headrace.log.tiering import (
    UNPROTECTED,
    first_pending_offset,
    last_offloaded_offset,
    local_start_offset,
    to_drop,
)
from headrace.metadata.facts import PARTITIONS, LedgerLink, PartitionFact
from headrace.metadata.store import ANY
from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, decode_batch
from headrace.runtime.disk import SystemDisk
from headrace.storage.ledger import LedgerId
from headrace.storage.tiering.blob_store import BlobLimits, BlobStore
from headrace.storage.tiering.iceberg_tables import IcebergTables
from headrace.storage.tiering.table_catalog import CATALOG, NAMESPACE, TableCatalog
from headrace.storage.tiering.table_files import ProtectedFiles, Protection, TablePlace
from headrace.storage.tiering.tiered_store import OTHER_FILES, TieredLedgerStore

if TYPE_CHECKING:
    from headrace.broker.node import Node

NOW_MS = 4_000_000_000_000
"""Later than the objects' own time."""
DAY_MS = 24 * 3600 * 1000


class Storage(BlobStore):
    """Object storage in memory that is away when the test says so."""

    def __init__(self) -> None:
        super().__init__(obstore.store.MemoryStore(), "memory", None, BlobLimits())
        self.is_away = False

    async def _call(self, call: Any, what: str, name: str) -> Any:
        if self.is_away:
            getattr(call, "close", getattr(call, "cancel", None))()
            raise StorageUnavailable(f"{what} {name}: away", is_objects=True)
        return await super()._call(call, what, name)


class TieredBroker(BrokerHarness):
    """A broker with one tiered topic."""

    def __init__(self, tables: Any = None) -> None:
        super().__init__(clock=HandClock(NOW_MS))
        self.inner, self.storage = self.store, Storage()
        self.tables = tables

    async def start(self) -> Node:
        self.store = TieredLedgerStore(
            self.inner, self.storage, "c", self.clock, tables=self.tables
        )
        self.of_node = {"tier": self.store}
        return await super().start()

    async def append(
        self, value: bytes, timestamp_ms: int | None = None, key: bytes | None = None
    ) -> None:
        at = self.clock.ms if timestamp_ms is None else timestamp_ms
        await append(self.log, batch(value, timestamp_ms=at, key=key))

    async def ledgers(self, count: int, values: int = 3) -> None:
        """So many closed ledgers."""
        for _ in range(count):
            for number in range(values):
                await self.append(b"%d" % number)
            await self.log.lifecycle_host.roll_now()

    async def objects(self) -> set[int]:
        while self.store._to_delete:
            await asyncio.sleep(0.001)
        return {item.ledger async for item in self.store.list_objects()}


@asynccontextmanager
async def bench(tables: Any = None, **configs: str):
    made = TieredBroker(tables)
    await made.start()
    named = {name.replace("_", "."): value for name, value in configs.items()}
    await made.node.topics.create("t", 1, 1, {"remote.storage.enable": "true", **named})
    made.log = made.node.topics.by_name["t"].partitions[0]
    await made.log.wait_loaded()
    try:
        yield made
    finally:
        await made.kill()
        await made.store.close()


# --- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configs", "is_legal"),
    [
        ({"local.retention.ms": "1000"}, True),
        ({"local.retention.ms": "-2", "retention.ms": "5"}, True),
        ({"local.retention.ms": "1000", "retention.ms": "999"}, False),
        ({"local.retention.ms": "1000", "retention.ms": "1000"}, True),
        ({"local.retention.ms": "-1", "retention.ms": "1000"}, False),
        ({"local.retention.ms": "-1", "retention.ms": "-1"}, True),
        ({"local.retention.bytes": "10", "retention.bytes": "-1"}, True),
        ({"local.retention.bytes": "10", "retention.bytes": "9"}, False),
        ({"local.retention.bytes": "-1", "retention.bytes": "9"}, False),
        ({"cleanup.policy": "compact"}, True),
        ({"cleanup.policy": "compact,delete"}, True),
    ],
)
def test_local_retention_stays_within_retention_whatever_the_policy(configs, is_legal):
    on = {"remote.storage.enable": "true", **configs}
    check_tiering(configs, {}, has_objects=True)  # off: what it says of tiers means nothing
    if is_legal:
        check_tiering(on, {}, has_objects=True)
    else:
        with pytest.raises(ConfigInvalid):
            check_tiering(on, {}, has_objects=True)


def test_a_broker_without_object_storage_refuses_to_begin_and_keeps_what_was_begun():
    on = {"remote.storage.enable": "true"}
    with pytest.raises(ConfigInvalid, match="--objects"):
        check_tiering(on, {}, has_objects=False)
    check_tiering({**on, "retention.ms": "1"}, on, has_objects=False)
    check_tiering({}, on, has_objects=False)


def test_a_table_replaces_objects_only_where_it_can_give_them_back():
    on = {"remote.storage.enable": "true", "headrace.table.replaces.objects": "true"}
    table = {**on, "headrace.table": "append"}
    check_tiering(table, {}, has_objects=True, has_tables=True)
    check_tiering(table, table, has_objects=True, has_tables=False)  # set before: it is served
    for configs, has_tables, reason in (
        (table, False, "--tables"),
        ({**table, "cleanup.policy": "compact"}, True, "compacted"),
        ({**table, "headrace.table": "upsert"}, True, "not append"),
        (on, True, "not append"),
        ({**table, "headrace.table.value": "avro"}, True, "not binary"),
        ({**table, "remote.storage.enable": "false"}, True, "remote.storage.enable=true"),
    ):
        before = table if has_tables else {}
        with pytest.raises(ConfigInvalid, match=reason):
            check_tiering(configs, before, has_objects=True, has_tables=has_tables)


@pytest.mark.parametrize(("place", "catalog", "reason"), [
    ("s3://bucket/lake", "", "needs the catalog"),
    ("s3://bucket/lake", "absent", "--tables-catalog absent is not a directory"),
    ("gs://bucket/lake", "", "is not a directory"),
    ("rest:http://127.0.0.1:8181", "", "is not a directory"),
    ("absent", "", "is not a directory"),
    ("lake", "rest:127.0.0.1:8181", "needs an http"),
    ("lake", "rest:http://me:secret@127.0.0.1:8181", "must hold no login"),
])  # fmt: skip
def test_tables_without_a_place_or_a_catalog_are_refused_at_the_start(place, catalog, reason):
    pytest.importorskip("pyiceberg")
    with pytest.raises(RequestInvalid, match=reason) as caught:
        IcebergTables.open(place, "c", catalog)
    assert "secret" not in str(caught.value)


def test_only_files_below_the_folder_of_the_tables_are_the_warehouses(tmp_path):
    pytest.importorskip("pyiceberg")
    lake = tmp_path / "lake"
    lake.mkdir()
    (tmp_path / "link").symlink_to(lake)
    catalog = TableCatalog(str(tmp_path / "link"))
    for named in (f"file://{lake}", f"file:{lake}", str(lake), f"file://{tmp_path}/link"):
        assert catalog.holds(f"{named}/headrace/t/data/1.parquet"), named
    others = (f"file://{lake}-2/t/1", f"{tmp_path}/1", f"file://{lake}/../1", "s3://lake/t/1")
    for other in others:
        assert not catalog.holds(other), other


async def test_a_tag_survives_a_loss_of_power_with_all_that_leads_to_its_files(tmp_path):
    """Else a repair of the table deletes them as orphans."""
    pytest.importorskip("pyiceberg")
    table = table_of(tmp_path, 10)
    disk = SyncedFiles()
    tables = IcebergTables(TableCatalog(str(tmp_path)), "c", disk)
    for ledger in (1, 2):  # the second tag is another metadata file of the same snapshot
        disk.synced.clear()
        place = TablePlace("t", 0, LedgerId(ledger))
        found = await tables.protect(place, 0, 10)
        assert found is not None
        now = table.refresh().metadata_location
        assert {Path(now.removeprefix("file:")).resolve(), tmp_path / "catalog.db"} <= disk.synced
        assert {tmp_path, Path(now.removeprefix("file:")).resolve().parent} <= disk.synced
        if ledger == 1:
            assert {path.suffix for path in disk.synced} >= {".parquet", ".avro"}
            manifests = {path for path in disk.synced if path.suffix == ".avro"}
            assert manifests == set(tmp_path.rglob("*.avro"))


async def test_so_do_the_folders_of_files_whose_catalog_is_elsewhere(tmp_path):
    pytest.importorskip("pyiceberg")
    lake, catalog = tmp_path / "lake", tmp_path / "catalog"
    lake.mkdir()
    catalog.mkdir()
    table_of(lake, 10, catalog)
    disk = SyncedFiles()
    tables = IcebergTables(TableCatalog(str(lake), str(catalog)), "c", disk)
    assert await tables.protect(TablePlace("t", 0, LedgerId(1)), 0, 10) is not None
    for file in [*lake.rglob("*.parquet"), *lake.rglob("*.avro")]:
        assert {one for one in file.parents if one.is_relative_to(lake)} <= disk.synced
    assert {catalog / "catalog.db", catalog} <= disk.synced


async def test_a_tag_is_set_again_if_the_table_changed_meanwhile(tmp_path, monkeypatch):
    """Maintenance commits several times in a row; a failure would pause all of the topic."""
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    table = table_of(tmp_path, 10)
    commit, overtaken = SqlCatalog.commit_table, [1, 2]

    def overtake(*arguments: Any) -> Any:
        """As if another process committed between this one's read and its write."""
        if overtaken:
            overtaken.pop()
            raise CommitFailedException("Table has been updated by another process")
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtake)
    found = await IcebergTables.open(str(tmp_path), "c").protect(
        TablePlace("t", 0, LedgerId(1)), 0, 10
    )
    assert not overtaken
    assert found.snapshot in {ref.snapshot_id for ref in table.refresh().refs().values()}
    assert len(table.refs()) == 2


class Tables:
    """The topic's table, which has no records, or gives other bytes; counts how often it is asked.

    In place of a real one because an attempt depends on its answers alone.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def settled(self, topic: str) -> dict[int, int]:
        return {0: 1_000}

    async def protect(self, place: TablePlace, base_offset: int, end_offset: int) -> None:
        self.asked.append(place.ledger)

    async def protected(self, topics: Any) -> Protection:
        return Protection(frozenset())

    def close(self) -> None:
        """Nothing."""


async def test_what_the_table_cannot_replace_is_tried_again_later_and_later_also_after_a_restart():
    async with bench(
        local_retention_bytes="0", tables=Tables(),
        **{"headrace.table": "append", "headrace.table.replaces.objects": "true"},
    ) as b:  # fmt: skip
        await b.ledgers(3)
        for _ in range(3):
            await b.node.tiering.round()
        old, tabling = [one.ledger for one in b.log.closed[:-1]], b.node.tiering.tabling
        assert b.tables.asked == old, "once in three rounds"
        assert tabling.why_kept(b.log.closed[0]) == NOT_THERE
        tried = []
        for hour in range(1, 41):
            b.clock.ms += 3600 * 1000
            if hour % 5 == 0:
                await b.kill()
                await b.start()
                b.log = b.node.topics.by_name["t"].partitions[0]
                await b.log.wait_loaded()
            b.tables.asked.clear()
            await b.node.tiering.round()
            if b.tables.asked:
                assert b.tables.asked == old
                tried.append(hour)
        assert tried == [1, 3, 7, 15, 31], "each wait is twice as long as the one before"
        assert b.node.tiering.tabling.why_kept(b.log.closed[0]) == TRIED
        b.clock.ms += 31 * DAY_MS
        await b.node.tiering.round()
        assert b.node.tiering.tabling._kept.keys() == set(old)
        await b.log.lifecycle_host.trim(b.log.closed[0].end_offset)
        await b.node.tiering.round()
        assert b.node.tiering.tabling._kept.keys() == set(old[1:])


class ExpiredTables(FileTables):
    """A table whose tags go while a recipe is written, as its catalog removes their snapshots."""

    is_lost = True

    async def is_protected(self, topic: str, ledger: int, snapshot: int) -> bool:
        if self.is_lost:
            self.tags.clear()
        return await super().is_protected(topic, ledger, snapshot)


async def test_an_object_stays_if_its_records_lose_their_tag_while_the_recipe_is_written(tmp_path):
    tables = ExpiredTables(tmp_path)
    async with bench(
        local_retention_bytes="0", tables=tables,
        **{"headrace.table": "append", "headrace.table.replaces.objects": "true"},
    ) as b:  # fmt: skip
        await three_ledgers(b)
        old = [one.ledger for one in b.log.closed[:-1]]
        assert not any(one.is_tabled for one in b.log.closed)
        assert b.node.tiering.tabling.why_kept(b.log.closed[0]) == UNPROTECTED
        assert not b.store._to_delete
        stored = [item async for item in b.store.list_objects()]
        assert {one.ledger for one in stored if not one.is_recipe} >= set(old)
        tables.is_lost = False
        b.clock.ms += DAY_MS
        await b.node.tiering.round()
        assert [one.ledger for one in b.log.closed if one.is_tabled] == old
        assert {ledger for _, ledger in tables.tags} == set(old)


class AlteredTables(FileTables):
    """A table that others may have compacted since, or that cannot be read."""

    is_rewritten = is_unread = False

    async def protect(self, place: Any, base_offset: int, end_offset: int) -> ProtectedFiles:
        found = await super().protect(place, base_offset, end_offset)
        if not self.is_rewritten:
            return found
        copies = [Path(f"{one.path}.rewritten") for one in found.files]
        for one, copy in zip(found.files, copies, strict=True):
            copy.write_bytes(Path(one.path).read_bytes())
        pairs = zip(found.files, copies, strict=True)
        return found._replace(files=[one._replace(path=str(copy)) for one, copy in pairs])

    async def protected(self, topics: Any) -> Protection:
        found = await super().protected(topics)
        return Protection(frozenset(), {"t": "damaged"}) if self.is_unread else found


async def three_ledgers(b: TieredBroker) -> None:
    """Of records that the table has, too; the first two are to be replaced."""
    for number in range(3):
        value = b"%06d" % number * 80
        b.tables.records.append(Record(number, b.clock.ms, None, value, []))
        await b.append(value)
        await b.log.lifecycle_host.roll_now()
    for _ in range(3):
        await b.node.tiering.round()


@asynccontextmanager
async def replaced(tables: FileTables):
    """A broker with two ledgers whose records are in the table alone, and a newer one."""
    async with bench(
        local_retention_bytes="0", tables=tables,
        **{"headrace.table": "append", "headrace.table.replaces.objects": "true"},
    ) as b:  # fmt: skip
        await three_ledgers(b)
        assert [one.is_tabled for one in b.log.closed] == [True, True, False]
        yield b


async def test_a_recipe_is_not_recorded_again_if_other_files_are_tagged_than_it_names(
    tmp_path, caplog
):
    """After a loss of the metadata and of the tags: nothing would keep the recipe's files."""
    tables = AlteredTables(tmp_path)
    async with replaced(tables) as b:
        await b.objects()  # once those that were replaced are deleted
        (entry,) = await b.metadata.list(PARTITIONS)
        await b.kill()
        fact = PartitionFact.decode(entry.value)
        links = [replace(one, tabled_ms=None) for one in fact.ledgers]
        await b.metadata.put(entry.key, replace(fact, ledgers=links).encode(), ANY)
        tables.tags.clear()
        tables.is_rewritten = True
        await b.start()
        b.log = b.node.topics.by_name["t"].partitions[0]
        await b.log.wait_loaded()
        for _ in range(2):
            await b.node.tiering.round()
        tabling = b.node.tiering.tabling
        assert not any(one.is_tabled for one in b.log.closed)
        assert tabling.why_kept(b.log.closed[0]) == OTHER_FILES
        assert not tables.tags
        await b.node.tiering.delete_orphans()
        assert tabling.missing == 2
        for one in b.log.closed[:2]:  # what a person has to restore
            assert f"the tag headrace-{b.store.prefix}-0-ENDROW-{one.ledger:016x} of" in caplog.text
            for path in await b.store.check_recipe(one.ledger):
                assert Path(path).is_file()
                assert path in caplog.text
        b.clock.ms += DAY_MS
        await b.node.tiering.delete_orphans()
        recipes = [one.ledger async for one in b.store.list_objects() if one.is_recipe]
        assert len(recipes) == 2
        assert await values(b) == [one.value for one in tables.records]
        tables.is_rewritten = False  # a snapshot with its files was tagged
        await b.node.tiering.round()
        assert [one.is_tabled for one in b.log.closed] == [True, True, False]
        await b.node.tiering.delete_orphans()
        assert tabling.missing == 0


async def test_a_table_that_cannot_be_read_is_reported_and_its_tags_are_not_called_missing(
    tmp_path, caplog
):
    tables = AlteredTables(tmp_path)
    async with replaced(tables) as b:
        tabling = b.node.tiering.tabling
        await b.node.tiering.delete_orphans()
        assert (tabling.missing, tabling.unread) == (0, 0)
        tables.is_unread = True
        await b.node.tiering.delete_orphans()
        assert (tabling.missing, tabling.unread) == (0, 1)
        assert "t: its table cannot be read (damaged)" in caplog.text
        for path in tmp_path.glob("*.parquet"):
            path.unlink()
        await b.node.tiering.delete_orphans()
        assert (tabling.missing, tabling.unread) == (2, 1), "files are looked for all the same"
        assert len(tables.tags) == 2


async def values(b: TieredBroker) -> list[bytes | None]:
    found: list[bytes | None] = []
    while len(found) < b.log.high_watermark:
        data = bytes(await b.log.reader.read(len(found), 1))
        for at, _ in iterate_headers(data):
            found += [record.value for record in decode_batch(data, at)]
    return found


class SyncedFiles(SystemDisk):
    """Notes what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[Path] = set()

    def fdatasync(self, fd: int, /) -> None:
        self.synced.add(Path(os.readlink(f"/proc/self/fd/{fd}")))
        super().fdatasync(fd)

    def sync_folder(self, path: str, /) -> None:
        self.synced.add(Path(path))
        super().sync_folder(path)


def table_of(folder: Path, count: int, catalog_folder: Path | None = None) -> Any:
    """The table of the topic t, with records of its first partition."""
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    kept_in = catalog_folder or folder
    location = {"uri": f"sqlite:///{kept_in}/catalog.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog(CATALOG, **location)
    catalog.create_namespace(NAMESPACE)
    rows = pa.table(
        {
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": list(range(count)),
        }
    )
    table = catalog.create_table((NAMESPACE, "t"), rows.schema)
    table.append(rows)
    return table


# --- which ledgers go ----------------------------------------------------------------------------


async def test_by_local_retention_ms_the_old_local_copies_go_and_the_newest_stays():
    async with bench(local_retention_ms="1000", retention_ms="-1") as b:
        await b.ledgers(2)
        b.clock.ms += 5_000
        await b.ledgers(2)
        await b.node.tiering.round()
        assert last_offloaded_offset(b.log) == 11
        assert first_pending_offset(b.log) == 12
        await b.node.tiering.round()
        assert local_start_offset(b.log) == 6, "two are old"
        b.clock.ms += DAY_MS
        await b.node.tiering.round()
        assert local_start_offset(b.log) == 9, "the newest closed one stays here"


async def test_ledgers_with_producer_state_stay_local_so_logs_open_while_storage_is_away():
    """A ledger that was recovered has no footer: the producers are found in those before it."""

    async with bench(local_retention_bytes="0") as b:
        await b.ledgers(5)
        for segment in b.log.segments[3:5]:
            b.inner._ledgers[segment.ledger].footer = None
        for _ in range(2):
            await b.node.tiering.round()
        assert local_start_offset(b.log) == 6, "the third tells, two behind it do not"
        b.storage.is_away = True
        again = b.node.topics.logs.make(b.node.topics.by_name["t"].fact, 0)
        await again.wait_loaded()
        assert again.end_offset == 15


async def test_minus_2_means_as_long_as_the_ledger_is_kept_and_trims_after_the_offload():
    async with bench(retention_bytes="100000") as b:
        await b.ledgers(4)
        for _ in range(2):
            await b.node.tiering.round()
        assert local_start_offset(b.log) == 0
    async with bench(local_retention_bytes="0") as b:
        await b.ledgers(4)
        b.storage.is_away = True
        await b.node.tiering.round()
        assert to_drop(b.log, NOW_MS) == []
        assert local_start_offset(b.log) == 0


async def test_turned_off_what_is_offloaded_stays_readable_and_nothing_more_goes():
    async with bench(local_retention_bytes="0") as b:
        await b.ledgers(3)
        for _ in range(2):
            await b.node.tiering.round()
        await b.node.topics.change_configs(b.node.topics.by_name["t"], lambda _now: {})
        await b.ledgers(2)
        await b.node.tiering.round()
        assert last_offloaded_offset(b.log) == 8
        assert first_pending_offset(b.log) == -1
        assert len(await b.log.reader.read(0, 10_000)) > 0


# --- storage that is away ------------------------------------------------------------------------


async def test_while_storage_is_away_nothing_is_lost_one_line_is_logged_and_then_all_goes_on(
    caplog,
):
    caplog.set_level(logging.INFO, "headrace.broker.housekeeping.tiering")
    async with bench(local_retention_bytes="0") as b:
        b.storage.is_away = True
        await b.ledgers(3)
        for _ in range(5):
            await b.node.tiering.round()
        figures = b.node.tiering.figures()
        assert figures.is_away
        assert figures.pending_ledgers == 3
        assert len([line for line in caplog.messages if "away" in line]) == 1
        assert len(await b.log.reader.read(0, 10_000)) > 0
        b.storage.is_away = False
        for _ in range(2):
            await b.node.tiering.round()
        figures = b.node.tiering.figures()
        assert not figures.is_away
        assert figures.pending_ledgers == 0
        assert local_start_offset(b.log) == 6
        assert len([line for line in caplog.messages if "available again" in line]) == 1
        b.storage.is_away = True
        with pytest.raises(StorageUnavailable):
            await b.log.reader.read(0, 10_000)
        await b.append(b"and appends go on")


async def test_a_removed_copy_is_made_again_before_the_local_one_is_deleted():
    async with bench(local_retention_bytes="0") as b:
        await b.ledgers(3)
        await b.node.tiering.round()
        for ledger in await b.objects():
            await b.storage.delete(b.store._name(ledger))
        assert await b.objects() == set()
        await b.node.tiering.round()
        assert local_start_offset(b.log) == 6
        assert len(await b.log.reader.read(0, 10_000)) > 0


async def test_a_damaged_partition_is_a_problem_until_it_is_tried_again_and_succeeds():
    async with bench() as b:
        await b.ledgers(2)
        name, offload = b.log.name, b.store.offload

        async def damaged(_ledger):
            raise DataCorrupt("a block is damaged in /var/lib/headrace/segments")

        b.store.offload = damaged
        for _ in range(3):  # only the first one tries it
            await b.node.tiering.round()
            assert b.node.tiering.figures().problem.startswith(f"{name}: a block is damaged")
        b.store.offload = offload
        b.clock.ms += PARTITION_REST_MS
        await b.node.tiering.round()
        figures = b.node.tiering.figures()
        assert (figures.problem, figures.pending_ledgers) == ("", 0)


# --- sweeps --------------------------------------------------------------------------------------


async def leave_an_orphan(b: TieredBroker) -> int:
    orphan = await b.inner.create()
    _, done = b.inner.append(orphan, [b"x"], 1, None)
    await done.wait()
    await b.inner.seal(orphan, b"")
    await b.store.offload(orphan)
    return orphan


async def test_the_sweep_takes_objects_that_no_chain_names_when_they_are_old_and_no_others():
    async with bench() as b:
        await b.ledgers(2)
        await b.node.tiering.round()
        kept = await b.objects()
        orphan = await leave_an_orphan(b)
        assert await b.node.tiering.delete_orphans() == 0, "it may be about to be named"
        b.clock.ms += DAY_MS - 1
        assert await b.node.tiering.delete_orphans() == 0, (
            "it is old, and unnamed for less than a day"
        )
        assert await b.objects() == {*kept, orphan}
        b.clock.ms += 1
        assert await b.node.tiering.delete_orphans() == 1
        assert await b.objects() == kept


async def test_a_recipe_supersedes_an_object_once_all_links_with_its_number_have_one():
    """Workers that share the metadata number their ledgers alike."""
    async with bench() as b:
        ledger = await leave_an_orphan(b)
        offloaded = LedgerLink(ledger, 0, 1, 1, 1, 1, 1, 10, 20)
        tabled = replace(offloaded, tabled_ms=30)
        keys = [f"/partitions/{digit * 32}/0" for digit in "01"]

        async def sweep_for_a_day(*chains: LedgerLink) -> set[int]:
            for key, link in zip(keys, chains, strict=True):
                await b.metadata.put(key, PartitionFact(0, 1, [link]).encode(), ANY)
            await b.node.tiering.delete_orphans()
            b.clock.ms += DAY_MS
            await b.node.tiering.delete_orphans()
            return await b.objects()

        assert await sweep_for_a_day(tabled, offloaded) == {ledger}
        assert await sweep_for_a_day(tabled, tabled) == set()


async def test_a_sweep_that_cannot_read_a_chain_deletes_nothing():
    async with bench() as b:
        orphan = await leave_an_orphan(b)
        await b.metadata.put("/partitions/" + "0" * 32 + "/0", b'{"v":99}', -1)
        await b.node.tiering.round()  # tells, and goes on
        assert await b.objects() == {orphan}


async def test_over_shared_storage_a_dropped_ledger_is_left_to_the_sweep_of_ledgers():
    async with bench(local_retention_bytes="0") as b:
        b.store._is_inner_shared = True
        await b.ledgers(3)
        for _ in range(2):
            await b.node.tiering.round()
        assert local_start_offset(b.log) == 6
        before = {info.ledger for info in b.inner.list()}
        assert before >= {segment.ledger for segment in b.log.segments}
        garbage = LedgerGarbageCollector(
            BrokerConfig(), b.inner, b.metadata, b.node.topics, b.node.ownership, b.clock
        )
        await garbage.collect()
        b.clock.ms += 30 * DAY_MS
        await garbage.collect()
        here = {info.ledger for info in b.inner.list()}
        assert here == {segment.ledger for segment in b.log.segments if segment.is_local}
        assert len(await b.log.reader.read(0, 10_000)) > 0


async def test_a_deleted_topic_takes_its_objects_along_also_where_its_log_was_never_read():
    async with bench(local_retention_bytes="0") as b:
        await b.ledgers(3)
        for _ in range(2):
            await b.node.tiering.round()
        await b.kill()
        await b.start()
        assert len(await b.objects()) == 3
        await b.node.topics.delete(b.node.topics.by_name["t"], b.node.deleted_topics.forget)
        for _ in range(200):
            await asyncio.sleep(0.005)
            if not await b.objects():
                break
        assert await b.objects() == set()
        assert b.inner.list() == []


# --- compacted topics ----------------------------------------------------------------------------


async def table(made: TieredBroker) -> dict[bytes, bytes]:
    found, offset = {}, made.log.log_start_offset
    while offset < made.log.high_watermark:
        data = bytes(await made.log.reader.read(offset, 1))
        for at, header in iterate_headers(data):
            found |= {record.key: record.value for record in decode_batch(data, at)}
            offset = header.last_offset + 1
    return found


async def write_table(made: TieredBroker, turn: int) -> dict[bytes, bytes]:
    """Each key once, in a ledger of its own."""
    rows = {b"k%d" % number: b"%d.%d" % (number, turn) for number in range(3)}
    for key, value in rows.items():
        await made.append(value, key=key)
    await made.log.lifecycle_host.roll_now()
    return rows


async def test_a_compacted_topic_is_offloaded_when_it_is_compacted_and_objects_are_replaced():
    async with bench(
        cleanup_policy="compact", local_retention_ms="0", min_cleanable_dirty_ratio="0.1"
    ) as made:
        compactor, tiering = made.node.compactor, made.node.tiering
        await write_table(made, 0)
        rows = await write_table(made, 1)
        await tiering.round()
        assert not await made.objects(), "what compaction has not seen stays here"
        await compactor.round()
        assert len(made.log.segments) == 2  # the compacted ledger, and the open one
        await write_table(made, 2)
        await compactor.round()
        made.clock.ms += 5
        await tiering.round()
        await tiering.round()
        before = await made.objects()
        assert len(before) == 1
        rows = await write_table(made, 3)
        reading = made.log.segments[0].ledger
        await compactor.round()
        assert before <= await made.objects(), "a read that is under way ends"
        assert await made.store.read(reading, 0, 10)
        assert await table(made) == rows
        made.clock.ms += 61_000
        await compactor.round()
        await tiering.round()
        after = await made.objects()
        assert after
        assert not after & before
        assert await table(made) == rows


async def test_compaction_reads_what_lies_in_object_storage_alone_and_waits_while_that_is_away():
    async with bench(
        cleanup_policy="compact", local_retention_ms="0", min_cleanable_dirty_ratio="0.1"
    ) as made:
        compactor, tiering = made.node.compactor, made.node.tiering
        for turn in range(3):
            await write_table(made, turn)
            await compactor.round()
        made.clock.ms += 5
        await tiering.round()
        await write_table(made, 3)
        made.clock.ms += 5
        await tiering.round()
        assert not made.log.segments[0].is_local
        named = [segment.ledger for segment in made.log.segments]
        made.storage.is_away = True
        await compactor.round()
        assert compactor.failures
        assert [segment.ledger for segment in made.log.segments] == named
        made.storage.is_away = False
        rows = await write_table(made, 4)
        await compactor.round()
        assert made.log.segments[0].ledger not in named
        assert await table(made) == rows


async def test_the_map_of_objects_has_what_is_sealed_offloaded_and_not_deleted():
    async with bench(local_retention_bytes="1") as made:
        await made.ledgers(4)
        await made.append(b"in an open ledger")
        ledgers, topic = made.node.services.ledgers, made.node.topics.by_name["t"]
        assert await ledgers.objects_of(topic, 0, 0) == ("c", [], None)  # nothing is offloaded yet
        for _ in range(2):  # the second one deletes what was copied
            await made.node.tiering.round()
        whole = await ledgers.objects_of(topic, 0, 0)
        ends = [(one.base_offset, one.end_offset) for one in whole.objects]
        assert ends == [(0, 3), (3, 6), (6, 9), (9, 12)]
        segments = made.log.segments
        told = [(one.ledger, one.leader_epoch, one.size_bytes) for one in whole.objects]
        assert told == [(s.ledger, s.leader_epoch, s.end_position) for s in segments[:4]]
        assert not segments[0].is_local  # what has a local copy is in the list, too
        assert segments[3].is_local
        assert await ledgers.objects_of(topic, 0, 5) == ("c", whole.objects[1:], None)
        assert await ledgers.objects_of(topic, 0, 5, 2) == ("c", whole.objects[1:3], 9)
        assert await ledgers.objects_of(topic, 0, 12) == ("c", [], None)
        await made.log.trim(4)
        assert await ledgers.objects_of(topic, 0, 0) == ("c", whole.objects[1:], None)
