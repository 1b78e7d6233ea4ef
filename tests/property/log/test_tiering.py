"""A broker whose ledgers move to object storage, against a plain list: through offloads, drops of
local copies, trims, sweeps, and crashes before or after any change of the outside world."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import tempfile
from pathlib import Path
from typing import Any

import obstore
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.clocks import HandClock
from tests.kit.broker import BrokerHarness
from tests.kit.records import batch
from tests.unit.storage.test_recipe import table_file

from headrace.broker.broker_config import BrokerConfig
from headrace.errors import HeadraceError
from headrace.log.tiering import local_start_offset
from headrace.metadata.facts import PARTITIONS, PartitionFact
from headrace.metadata.memory import MemoryMetadataStore
from headrace.records.batch import check_batch
from headrace.records.codec import Record, decode_batch
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering.blob_store import BlobLimits, BlobStore
from headrace.storage.tiering.recipe_format import TableFile
from headrace.storage.tiering.table_files import ProtectedFiles, Protection
from headrace.storage.tiering.tiered_store import TieredLedgerStore

CONFIGS = {
    "segment.bytes": "200",
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
    "retention.ms": "-1",
}


BORROWING = {**CONFIGS, "headrace.table": "append", "headrace.table.replaces.objects": "true"}

BEFORE, BEHIND, STOP = range(3)


class FileTables:
    """The topic's table: Parquet files in a folder, written when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: list[Record] = []
        self.tags: set[tuple[str, int]] = set()

    async def settled(self, topic: str) -> dict[int, int]:
        return {0: len(self.records)}

    async def protect(self, place: Any, base_offset: int, end_offset: int) -> ProtectedFiles:
        path = self.folder / f"{base_offset}-{end_offset}.parquet"
        if not path.exists():
            table_file(path, self.records[max(0, base_offset - 1) : end_offset + 1])
        self.tags.add((place.topic, place.ledger))
        data = path.read_bytes()
        file = TableFile(str(path), len(data), hashlib.sha256(data).hexdigest())
        return ProtectedFiles(1, [file])

    async def is_protected(self, topic: str, ledger: int, snapshot: int) -> bool:
        return (topic, ledger) in self.tags

    async def protected(self, topics: Any) -> Protection:
        return Protection(frozenset(self.tags))

    def close(self) -> None:
        """Nothing."""

    async def release(self, topic: str, ledger: int, snapshot: int | None = None) -> None:
        self.tags.discard((topic, ledger))


class Fuse:
    """Ends a broker at its n-th change of the outside world: killed before or after it, or stopped,
    so that the change is made while its caller is cancelled."""

    def __init__(self) -> None:
        self.left = -1
        self.kind = BEFORE
        self.blown = asyncio.Event()

    @property
    def is_dead(self) -> bool:
        return self.blown.is_set() and self.kind != STOP

    async def around(self, change: Any) -> Any:
        if self.is_dead:
            change.close()
            await asyncio.Event().wait()
        self.left -= 1
        if self.left != 0:
            return await change
        if self.kind == BEFORE:
            change.close()
        else:
            found = await change
        self.blown.set()
        if self.kind == STOP:
            await asyncio.sleep(0.002)
            return found
        return await asyncio.Event().wait()


class Fused:
    """Passes everything on; what changes something goes through the fuse."""

    def __init__(self, real: Any, fuse: Fuse, *changes: str) -> None:
        self._real, self._fuse, self._changes = real, fuse, changes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in self._changes:
            return found
        return lambda *values, **named: self._fuse.around(found(*values, **named))


class TieredLog:
    """What outlives a broker, the broker of the moment, and the model."""

    def __init__(self, tables: FileTables | None = None) -> None:
        self.tables = tables
        self.inner = MemoryLedgerStore()
        self.metadata = MemoryMetadataStore()
        self.objects = obstore.store.MemoryStore()
        self.clock = HandClock(4_000_000_000_000)
        self.values: list[bytes] = []
        self.starts = {0}
        """Where the log may begin: two offsets after a crash in the middle of a trim."""

    async def start(self) -> None:
        self.fuse = Fuse()
        blobs = BlobStore(self.objects, "memory", None, BlobLimits())
        tables = None
        if self.tables is not None:
            tables = Fused(self.tables, self.fuse, "protect", "release")
        self.tier = TieredLedgerStore(
            Fused(self.inner, self.fuse, "create", "seal", "delete"),
            Fused(blobs, self.fuse, "put", "delete"),
            "c",
            self.clock,
            cache_bytes_max=2_000,
            tables=tables,
        )
        metadata = Fused(self.metadata, self.fuse, "put", "delete", "multi")
        config = BrokerConfig(orphan_grace_ms=0)
        self.rig = BrokerHarness(config, self.tier, metadata, self.clock, tier=self.tier)
        self.node = node = await self.rig.start()
        if "t" not in node.topics.by_name:
            await node.topics.create("t", 1, 1, BORROWING if self.tables else CONFIGS)
        self.log = node.topics.by_name["t"].partitions[0]
        await self.log.wait_loaded()

    async def crash(self) -> None:
        await self.rig.kill()
        if not self.fuse.is_dead:
            await asyncio.sleep(0.002)  # what is deleted in the background may still be
        await self.tier.close()
        await asyncio.sleep(0)

    # --- steps -------------------------------------------------------------------------------

    async def append(self, count: int) -> None:
        for _ in range(count):
            value = b"%06d" % len(self.values) * (80 if self.tables else 1)
            data = batch(value, timestamp_ms=self.clock.ms)
            while (appended := self.log.append(data, check_batch(data))) is None:
                await self.log.ready.wait()
            assert appended.base_offset == len(self.values)
            # Before the wait: a crash may come behind the append, and then it is there.
            self.values.append(value)
            if self.tables is not None:
                record = Record(appended.base_offset, self.clock.ms, None, value, [])
                self.tables.records.append(record)
            await appended.completion.wait()

    async def roll(self) -> None:
        await self.log.lifecycle_host.roll_now()

    async def tiers(self) -> None:
        await self.node.tiering.round()

    async def trim(self, share: float) -> None:
        start = self.log.log_start_offset
        target = start + round((self.log.high_watermark - start) * share)
        self.starts = {start, target}
        await self.log.lifecycle_host.trim(target)

    async def sweep(self) -> None:
        await self.node.tiering.delete_orphans()

    async def run(self, step: str, number: int) -> None:
        match step:
            case "append":
                await self.append(number)
            case "trim":
                await self.trim(number / 8)
            case _:
                await getattr(self, step)()

    # --- what must hold ----------------------------------------------------------------------

    async def check(self) -> None:
        log = self.log
        assert log.log_start_offset in self.starts
        self.starts = {log.log_start_offset}
        assert log.high_watermark == len(self.values)
        found: list[tuple[int, bytes]] = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            data = await log.reader.read(offset, 300)
            for record in decode_batch_run(data):
                if record.offset >= offset:
                    found.append((record.offset, record.value))
            offset = found[-1][0] + 1
        assert found == list(enumerate(self.values))[log.log_start_offset :]
        assert log.log_start_offset <= local_start_offset(log) <= log.high_watermark

    async def check_leftovers(self) -> None:
        """After a restart and a sweep all is where the chain says, and nothing else is anywhere."""
        await self.crash()
        await self.start()
        await self.sweep()
        while self.tier._to_delete:
            await asyncio.sleep(0.001)
        await self.sweep()  # a tag is released once its recipe is deleted
        links = [
            link
            for entry in await self.metadata.list(PARTITIONS)
            for link in PartitionFact.decode(entry.value).ledgers
        ]
        while self.tier._to_delete:
            await asyncio.sleep(0.001)
        listed = [item async for item in self.tier.list_objects()]
        objects = {item.ledger for item in listed if not item.is_recipe}
        recipes = {item.ledger for item in listed if item.is_recipe}
        tabled = {link.ledger for link in links if link.tabled_ms is not None}
        assert objects | recipes <= {link.ledger for link in links}
        assert {x.ledger for x in links if x.local_deleted_ms is not None} - tabled <= objects
        assert tabled <= recipes
        assert not tabled & objects
        if self.tables is not None:
            tagged = {ledger for _, ledger in self.tables.tags}
            assert tabled <= tagged <= {link.ledger for link in links}
        event(f"{min(len(tabled), 4)} recipes at the end")
        here = {info.ledger for info in self.inner.list()}
        assert here == {link.ledger for link in links if link.local_deleted_ms is None}


def decode_batch_run(data: Any) -> list[Record]:
    from headrace.records.batch import iterate_headers

    view = memoryview(data)
    return [
        record
        for at, header in iterate_headers(view)
        for record in decode_batch(view[at : at + header.size])
    ]


steps = st.tuples(
    st.sampled_from(["append", "append", "tiers", "tiers", "roll", "trim", "sweep"]),
    st.integers(1, 6),
    st.one_of(st.none(), st.tuples(st.integers(1, 6), st.integers(0, 2))),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=20, max_size=50))
def test_every_record_is_read_exactly_once_whichever_tier_has_it(script):
    run_script(script, TieredLog())


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, min_size=20, max_size=50))
def test_so_it_is_where_the_table_has_records_that_object_storage_gave_up(script):
    with tempfile.TemporaryDirectory() as folder:
        run_script(script, TieredLog(FileTables(Path(folder))))


def run_script(script: Any, world: TieredLog) -> None:
    faults: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            faults.append(record.getMessage())

    async def main() -> None:
        await world.start()
        for step, number, crash in script:
            if crash is not None:
                world.fuse.left, world.fuse.kind = crash
            task = asyncio.ensure_future(world.run(step, number))
            blown = asyncio.ensure_future(world.fuse.blown.wait())
            await asyncio.wait([task, blown], return_when=asyncio.FIRST_COMPLETED)
            if world.fuse.blown.is_set():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await world.crash()
                await world.start()
            else:
                blown.cancel()
                world.fuse.left = -1
                try:
                    await task
                except HeadraceError as error:
                    raise AssertionError(f"{step} failed") from error
            await world.check()
        await world.check_leftovers()
        await world.check()
        await world.crash()

    listener = Listener(logging.ERROR)
    logging.getLogger("headrace").addHandler(listener)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("headrace").removeHandler(listener)
    assert not faults
