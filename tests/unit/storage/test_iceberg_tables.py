"""Files of real Iceberg tables, and the tags that keep them, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StorageUnavailable
from headrace.pipeline.catalog import TableName
from headrace.records.tenant_names import key_of
from headrace.storage.ledger import LedgerId
from headrace.storage.tiering.iceberg_tables import IcebergTables
from headrace.storage.tiering.table_files import Protection, TablePlace

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

TOPIC = "orders"
OWNER = "5L6g3nShT-eMCtK--X86sw"
SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


class Lake:
    """A warehouse as the table service keeps it."""

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        uri = f"sqlite:///{folder}/catalog.db?timeout=30"
        self.catalog = SqlCatalog("headrace", uri=uri, warehouse=f"file://{folder}")
        self.catalog.create_namespace("headrace")
        self.create()

    def create(self) -> None:
        self.catalog.create_table(("headrace", TOPIC), SCHEMA)

    @property
    def table(self) -> Any:
        return self.catalog.load_table(("headrace", TOPIC))

    def append(self, first: int, end: int, partition: int = 0) -> None:
        rows = [{"topic": TOPIC, "partition": partition, "offset": n} for n in range(first, end)]
        self.table.append(pa.Table.from_pylist(rows, SCHEMA))

    def set(self, name: str, value: str) -> None:
        with self.table.transaction() as change:
            change.set_properties({name: value})

    def expire(self) -> None:
        """All snapshots but the current one, as far as no tag keeps them."""
        table = self.table
        for one in table.snapshots():
            if one.snapshot_id not in {ref.snapshot_id for ref in table.refs().values()}:
                table.maintenance.expire_snapshots().by_id(one.snapshot_id).commit()

    def tags(self) -> list[str]:
        return sorted(name for name in self.table.refs() if name != "main")


@pytest.fixture
def lake(tmp_path):
    found = Lake(tmp_path)
    yield found
    found.catalog.close()


@pytest.fixture
def tables(lake, tmp_path):
    return IcebergTables.open(str(tmp_path), OWNER)


async def protected(tables: IcebergTables) -> list[tuple[str, int]]:
    found = await tables.protected([TOPIC])
    assert not found.unread
    return sorted(found.ledgers)


def place(ledger: int, partition: int = 0) -> TablePlace:
    return TablePlace(TOPIC, partition, LedgerId(ledger))


async def test_a_ledgers_files_are_those_with_its_offsets_and_outlive_expiry(lake, tables):
    lake.append(0, 10)
    lake.append(10, 20)
    lake.append(5, 15, partition=1)
    found = await tables.protect(place(7), 12, 20)
    (file,) = found.files
    assert [f"headrace-{OWNER}-0-20-0000000000000007"] == lake.tags()
    assert await protected(tables) == [(TOPIC, 7)]
    # The records move to another file: the tag keeps the first one.
    lake.table.delete("partition = 0")
    lake.append(0, 20)
    lake.expire()
    assert await tables.protect(place(7), 12, 20) == found
    assert Path(file.path.removeprefix("file:")).stat().st_size == file.size_bytes
    await tables.release(TOPIC, LedgerId(7))
    assert lake.tags() == []
    (other,) = (await tables.protect(place(7), 12, 20)).files
    assert other.path != file.path


async def test_a_release_after_a_pause_leaves_the_tag_that_another_broker_has_used_since(
    lake, tables
):
    lake.append(0, 10)
    slow = await tables.protect(place(7), 0, 10)
    await tables.release(TOPIC, LedgerId(7), slow.snapshot)
    lake.append(10, 20)
    used = await tables.protect(place(7), 0, 10)
    await tables.release(TOPIC, LedgerId(7), slow.snapshot)
    assert await protected(tables) == [(TOPIC, 7)]
    await tables.release(TOPIC, LedgerId(7), used.snapshot)
    assert await protected(tables) == []


async def test_a_snapshot_that_went_with_its_tag_is_not_protected(lake, tables):
    """A REST catalog removes both if an expiry began before the tag was set."""
    lake.append(0, 10)
    found = await tables.protect(place(7), 0, 10)
    assert await tables.is_protected(TOPIC, LedgerId(7), found.snapshot)
    assert not await tables.is_protected(TOPIC, LedgerId(8), found.snapshot)
    (tag,) = lake.tags()
    lake.append(10, 20)
    lake.table.manage_snapshots().remove_tag(tag).commit()
    lake.expire()
    assert not await tables.is_protected(TOPIC, LedgerId(7), found.snapshot)
    again = await tables.protect(place(7), 0, 10)
    assert not await tables.is_protected(TOPIC, LedgerId(7), found.snapshot)
    assert await tables.is_protected(TOPIC, LedgerId(7), again.snapshot)


async def test_tags_of_people_and_of_other_clusters_are_left_alone(lake, tables, tmp_path):
    lake.append(0, 10)
    other = IcebergTables.open(str(tmp_path), "3yJHOxNlTAaW9L3ZbYcN_Q")
    await other.protect(place(7), 0, 10)
    lake.table.manage_snapshots().create_tag(
        lake.table.current_snapshot().snapshot_id, "headrace-release"
    ).commit()
    assert await protected(tables) == []
    before = lake.tags()
    await tables.release(TOPIC, LedgerId(7))
    assert lake.tags() == before


async def test_a_table_rolled_back_keeps_the_files_of_tags_and_lends_no_rows_that_it_lost(
    lake, tables
):
    lake.append(0, 10)
    first = lake.table.current_snapshot().snapshot_id
    lake.append(10, 20)
    found = await tables.protect(place(7), 10, 20)
    lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    lake.expire()
    assert await tables.protect(place(7), 10, 20) == found
    assert await tables.protect(place(8), 10, 20) is None
    assert await protected(tables) == [(TOPIC, 7)]


async def test_a_table_replaced_by_another_of_its_name_has_no_tag(lake, tables):
    lake.append(0, 10)
    await tables.protect(place(7), 0, 10)
    lake.catalog.drop_table(("headrace", TOPIC))
    assert await protected(tables) == []
    assert await tables.settled(TOPIC) == {}
    assert await tables.protect(place(7), 0, 10) is None
    lake.create()
    assert await protected(tables) == []
    assert await tables.protect(place(7), 0, 10) is None


async def test_only_what_maintenance_said_is_settled(lake, tables):
    assert await tables.settled(TOPIC) == {}
    lake.set("headrace.offsets", json.dumps({TOPIC: {"0": 8, "1": 3}, "other": {"0": 99}}))
    assert await tables.settled(TOPIC) == {0: 8, 1: 3}
    for damaged in ("{", "[]", '{"orders": [1]}', '{"orders": {"0": null}}'):
        lake.set("headrace.offsets", damaged)
        assert await tables.settled(TOPIC) == {}


async def test_the_table_of_a_tenants_topic_is_where_the_pipeline_keeps_it(lake, tables):
    of_tenant = TableName.of_topic(key_of(f"acme/{TOPIC}")).in_catalog
    assert of_tenant == ("tenant_acme", TOPIC)
    lake.catalog.create_namespace("tenant_acme")
    table = lake.catalog.create_table(of_tenant, SCHEMA)
    topic = key_of(f"acme/{TOPIC}")
    row = {"topic": topic, "partition": 0, "offset": 3}
    table.append(pa.Table.from_pylist([row], SCHEMA))
    lake.append(0, 10)
    (file,) = (await tables.protect(TablePlace(topic, 0, LedgerId(8)), 0, 10)).files
    assert file.path.startswith(table.location())
    await tables.protect(place(7), 0, 10)
    for known in ([topic], []):  # the tenant's last topic may have been deleted
        assert (await tables.protected(known)).ledgers == {(TOPIC, 7), (topic, 8)}
    await tables.release(topic, LedgerId(8))
    assert (await tables.protected([topic])).ledgers == {(TOPIC, 7)}


async def test_a_catalog_that_lists_no_namespaces_has_those_of_topics(lake, tables, monkeypatch):
    lake.append(0, 10)
    await tables.protect(place(7), 0, 10)

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import ForbiddenError

    def refused(*_):
        raise ForbiddenError("not allowed to list namespaces")

    await tables.protected([])  # opens the catalog
    monkeypatch.setattr(SqlCatalog, "list_namespaces", refused)
    assert (await tables.protected([TOPIC, key_of(f"acme/{TOPIC}")])).ledgers == {(TOPIC, 7)}


async def test_a_table_that_cannot_be_loaded_hides_no_tags_of_others(lake, tables):
    lake.append(0, 10)
    await tables.protect(place(7), 0, 10)
    for name in ("a", "z"):  # before and after the sound one
        lake.catalog.create_table(("headrace", name), SCHEMA)
        damaged = lake.catalog.load_table(("headrace", name)).metadata_location
        Path(damaged.removeprefix("file://")).unlink()
    found = await tables.protected([])
    assert found.ledgers == {(TOPIC, 7)}
    assert found.unread.keys() == {"a", "z"}


async def test_what_was_settled_is_not_after_a_rollback(lake, tables):
    lake.append(0, 10)
    good = lake.table.current_snapshot().snapshot_id
    lake.append(10, 20)
    lake.set("headrace.offsets", json.dumps({TOPIC: {"0": 20}}))
    last = lake.table.current_snapshot()
    at = {"snapshot": last.snapshot_id, "sequence": last.sequence_number}
    lake.set("headrace.offsets-at", json.dumps(at))
    assert await tables.settled(TOPIC) == {0: 20}
    lake.table.manage_snapshots().rollback_to_snapshot(good).commit()
    assert await tables.settled(TOPIC) == {}
    lake.append(10, 12)
    assert await tables.settled(TOPIC) == {}


async def test_a_table_that_is_damaged_says_nothing_of_tags_and_a_missing_catalog_has_none(
    lake, tables, tmp_path
):
    lake.append(0, 10)
    metadata = Path(lake.table.metadata_location.removeprefix("file://"))
    data = metadata.read_bytes()
    for damaged in (b"{}", b"", data[:-9]):
        metadata.write_bytes(damaged)
        assert (await tables.protected([])).unread.keys() == {TOPIC}
        for call in (tables.settled(TOPIC), tables.protect(place(7), 0, 10)):
            with pytest.raises(StorageUnavailable, match="object storage keeps the records"):
                await call
    metadata.write_bytes(data)
    manifests = Path(lake.table.current_snapshot().manifest_list.removeprefix("file://"))
    listed = manifests.read_bytes()
    for damaged in (b"", listed[:-9], listed[: len(listed) // 2]):  # as power loss leaves them
        manifests.write_bytes(damaged)
        with pytest.raises(StorageUnavailable, match="object storage keeps the records"):
            await tables.protect(place(7), 0, 10)
    metadata.unlink()
    assert (await tables.protected([])).unread.keys() == {TOPIC}
    (tmp_path / "catalog.db").write_bytes(b"no database")
    with pytest.raises(StorageUnavailable, match="object storage keeps the records"):
        await IcebergTables.open(str(tmp_path), OWNER).protected([])
    (tmp_path / "catalog.db").rename(tmp_path / "away")
    assert await tables.protected([]) == Protection(frozenset())
    assert await tables.settled(TOPIC) == {}
    assert await tables.protect(place(7), 0, 10) is None
