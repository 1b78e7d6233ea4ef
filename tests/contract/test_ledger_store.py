"""The contract of LedgerStore (`storage/ledger.py`), which every implementation passes.

A Harness opens a store, and where the store outlives its process it also `restarts` it: cleanly
or by leaving it as a killed process would. Where brokers share a store, `beside` opens another
broker's view of it: then a ledger that was recovered is sealed, and reads of ledgers that were not
opened yet may first say that they would have to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.errors import (
    Fenced,
    HeadraceError,
    LedgerFenced,
    LedgerSealed,
    LedgerUnknown,
    Rejected,
)
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.storage.files import FileLedgerStore
from headrace.storage.ledger import (
    LedgerId,
    LedgerInfo,
    LedgerStore,
    StoresInlineCheckpoints,
    WritesInBulk,
)
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering.blob_store import BlobStore
from headrace.storage.tiering.tiered_store import TieredLedgerStore
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

if TYPE_CHECKING:
    from pathlib import Path


UNKNOWN = 1 << 40  # no ledger has this id


class MemoryHarness:
    survives_restart = False
    is_shared = False

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.store: LedgerStore

    async def open(self) -> LedgerStore:
        self.store = MemoryLedgerStore()
        return self.store

    async def close(self) -> None:
        await self.store.close()


class SharedMemoryHarness(MemoryHarness):
    is_shared = True

    async def open(self) -> LedgerStore:
        self.store = MemoryLedgerStore()
        return self.store.beside()

    async def beside(self) -> LedgerStore:
        return self.store


class FilesHarness:
    survives_restart = True
    is_shared = False

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._folder = folder / "data"
        self.store: FileLedgerStore

    async def open(self) -> LedgerStore:
        self.store = await FileLedgerStore.open(
            self._folder, SystemClock(), wal_file_bytes=1 << 20, checkpoint_bytes=2 << 20
        )
        return self.store

    async def close(self) -> None:
        await self.store.close()

    async def restart(self) -> LedgerStore:
        await self.close()
        return await self.open()


class EagerTier(TieredLedgerStore):
    """Offloads at once what is sealed, so that the contract holds for objects, too."""

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        await super().seal(ledger, footer)
        if not (await self.recover(ledger)).end or ledger in self._remote:
            return
        self.attach(ledger, await self.offload(ledger), is_local=True)
        await self.drop_local(ledger)
        self.dropped = {**getattr(self, "dropped", {}), ledger: await self.recover(ledger)}

    def list(self) -> list[LedgerInfo]:
        """A tier lists what is here; this suite wants to see the others, too."""
        gone = getattr(self, "dropped", {})
        return sorted([*super().list(), *(gone[k] for k in gone if k in self._remote)])


class TieredHarness(MemoryHarness):
    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self._folder = folder / "objects"
        self._inner = MemoryLedgerStore()
        self.store: EagerTier

    async def open(self) -> LedgerStore:
        blobs = BlobStore.open(f"file://{self._folder}")
        self.store = EagerTier(self._inner, blobs, "cluster", SystemClock())
        return self.store

    async def close(self) -> None:
        await self.store.close()
        await self._inner.close()


class BookKeeperHarness:
    survives_restart = True
    is_shared = True

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        cluster = request.getfixturevalue("shared_cluster")
        self._options = ZooKeeperOptions(cluster.zookeeper.address)
        self._opened: list[tuple[ZooKeeper, BookKeeperLedgerStore]] = []

    async def open(self) -> LedgerStore:
        return await self.beside()

    async def beside(self) -> LedgerStore:
        zookeeper = await ZooKeeper.connect(self._options, SystemClock())
        store = await BookKeeperLedgerStore.open(zookeeper, BookKeeperSettings(), SystemClock())
        self._opened.append((zookeeper, store))
        return store

    async def close(self) -> None:
        for zookeeper, store in self._opened:
            await store.close()
            await zookeeper.close()
        self._opened.clear()

    async def restart(self) -> LedgerStore:
        await self.close()
        return await self.beside()


HARNESSES = {
    "memory": MemoryHarness,
    "shared memory": SharedMemoryHarness,
    "files": FilesHarness,
    "tiered": TieredHarness,
    "bookkeeper": BookKeeperHarness,
}
Opened = Callable[[], AbstractAsyncContextManager[tuple[LedgerStore, object]]]


@pytest.fixture(params=HARNESSES.values(), ids=HARNESSES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    @asynccontextmanager
    async def begin() -> AsyncIterator[tuple[LedgerStore, object]]:
        harness = request.param(request, tmp_path)
        store = await harness.open()
        try:
            yield store, harness
        finally:
            await harness.close()

    return begin


async def append(store: LedgerStore, ledger: int, data: bytes, flush_ms: int | None = None) -> int:
    position, completion = store.append(ledger, [data], len(data), flush_ms)
    await completion.wait()
    return position


async def content(store: LedgerStore, ledger: int) -> bytes:
    return bytes(await store.read(ledger, 0, 1 << 30))


async def test_appends_lie_next_to_each_other_and_read_back(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        assert await append(store, ledger, b"one") == 0
        assert await append(store, ledger, b"") == 3
        assert await append(store, ledger, b"two", flush_ms=100) == 3
        position, completion = store.append(ledger, [b"th", memoryview(b"re"), b"e"], 5, None)
        assert position == 6
        await completion.wait()
        assert await content(store, ledger) == b"onetwothree"
        assert bytes(await store.read(ledger, 2, 5)) == b"etwot"


async def test_recent_appends_are_read_from_memory(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        await append(store, ledger, b"abcdef")
        assert bytes(store.read_cached(ledger, 1, 3)) == b"bcd"
        assert bytes(store.read_cached(ledger, 4, 100)) == b"ef"
        assert bytes(store.read_cached(ledger, 6, 100)) == b""
        assert bytes(store.read_cached(ledger, 99, 100)) == b""


async def test_nothing_is_readable_before_its_completion(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        _position, completion = store.append(ledger, [b"unseen"], 6, None)
        assert not completion.done
        assert bytes(store.read_cached(ledger, 0, 100)) == b""
        assert store.list()[0].end == 0
        await completion.wait()
        assert bytes(store.read_cached(ledger, 0, 100)) == b"unseen"
        assert store.list()[0].end == 6


@pytest.mark.parametrize("flush_ms", [None, 0, 1_000])
async def test_appends_of_one_ledger_complete_in_order(opened, flush_ms):
    async with opened() as (store, _harness):
        ledger = await store.create()
        seen: list[int] = []
        last = None
        for index in range(50):
            mode = flush_ms if index % 3 else None
            _, last = store.append(ledger, [b"x"], 1, mode)
            last.then(lambda error, number: seen.append(number), index)
            if index % 7 == 0:
                await asyncio.sleep(0)
        await append(store, ledger, b"end")
        assert sorted(seen) == list(range(50))
        # Within one turn the two promises complete as two groups; across turns order holds.
        turns = [index // 7 + bool(index % 7) for index in seen]
        durable = [index for index in seen if index % 3 == 0]
        assert durable == sorted(durable)
        if flush_ms is None:
            assert turns == sorted(turns)


async def test_appends_of_one_turn_share_a_completion(opened):
    async with opened() as (store, harness):
        first, second = await store.create(), await store.create()
        _, one = store.append(first, [b"1"], 1, None)
        # Over shared storage a rival may fence one ledger and not the other.
        _, two = store.append(first if harness.is_shared else second, [b"2"], 1, None)
        assert one is two or isinstance(harness, SharedMemoryHarness)
        await one.wait()
        await two.wait()


async def test_an_unsynced_append_waits_for_the_synced_one_before_it(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        _, synced = store.append(ledger, [b"synced"], 6, None)
        _, unsynced = store.append(ledger, [b"unsynced"], 8, 60_000)
        unsynced.then(lambda _error, _context: readable_then.append(synced.done), None)
        readable_then: list[bool] = []
        await unsynced.wait()
        await synced.wait()
        assert unsynced is synced or readable_then == [True]


async def test_ids_are_never_given_out_twice(opened):
    async with opened() as (store, _harness):
        ids = [await store.create() for _ in range(5)]
        await store.delete(ids[4])
        ids += await asyncio.gather(*(store.create() for _ in range(5)))
        assert len(set(ids)) == len(ids)


async def test_a_ledger_that_does_not_exist_is_unknown(opened):
    async with opened() as (store, harness):
        with pytest.raises(LedgerUnknown):
            store.append(UNKNOWN, [b"x"], 1, None)
        if harness.is_shared and harness.survives_restart:
            assert store.read_cached(UNKNOWN, 0, 1) is None
        else:
            with pytest.raises(LedgerUnknown):
                store.read_cached(UNKNOWN, 0, 1)
        for call in (
            store.read(UNKNOWN, 0, 1),
            store.seal(UNKNOWN, b""),
            store.recover(UNKNOWN),
            store.delete(UNKNOWN),
        ):
            with pytest.raises(LedgerUnknown):
                await call


async def test_a_sealed_ledger_takes_no_appends_and_keeps_its_footer(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        _, pending = store.append(ledger, [b"last words"], 10, None)
        await store.seal(ledger, b"footer")
        assert pending.done
        assert pending.error is None
        with pytest.raises(LedgerSealed):
            store.append(ledger, [b"x"], 1, None)
        assert store.list() == [LedgerInfo(ledger, 10, True, b"footer")]
        assert await content(store, ledger) == b"last words"
        await store.seal(ledger, b"footer")
        with pytest.raises(LedgerSealed):
            await store.seal(ledger, b"another")
        assert (await store.recover(ledger)).footer == b"footer"


async def test_appends_are_refused_from_the_moment_seal_is_called(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        sealing = asyncio.ensure_future(store.seal(ledger, b""))
        await asyncio.sleep(0)
        with pytest.raises(LedgerSealed):
            store.append(ledger, [b"x"], 1, None)
        await sealing


async def test_a_footer_beyond_its_limit_is_rejected(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        with pytest.raises(Rejected):
            await store.seal(ledger, bytes((16 << 20) + 1))
        await append(store, ledger, b"still open")


async def test_a_deleted_ledger_is_gone(opened):
    async with opened() as (store, _harness):
        keep, ledger = await store.create(), await store.create()
        await append(store, keep, b"keep")
        await append(store, ledger, b"x")
        await store.delete(ledger)
        with pytest.raises(LedgerUnknown):
            store.append(ledger, [b"x"], 1, None)
        with pytest.raises(LedgerUnknown):
            await store.read(ledger, 0, 1)
        with pytest.raises(LedgerUnknown):
            await store.delete(ledger)
        assert [info.ledger for info in store.list()] == [keep]


async def test_recover_decides_what_was_pending(opened):
    async with opened() as (store, harness):
        ledger = await store.create()
        _, pending = store.append(ledger, [b"pending"], 7, None)
        info = await store.recover(ledger)
        if harness.is_shared:
            assert info.is_sealed
            assert info.end in {0, 7}
            if info.end == 0:
                with pytest.raises(Fenced):
                    await pending.wait()
            with pytest.raises(Fenced):
                store.append(ledger, [b" and on"], 7, None)
            assert await content(store, ledger) == b"pending"[: info.end]
            return
        assert info.end == 7
        await append(store, ledger, b" and on")
        assert await content(store, ledger) == b"pending and on"


async def test_an_append_of_many_megabytes(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        await append(store, ledger, b"before")
        big = bytes(range(256)) * (5 << 12)
        half = memoryview(big)[: len(big) // 2]
        _, completion = store.append(ledger, [half, memoryview(big)[len(half) :]], len(big), None)
        await completion.wait()
        await append(store, ledger, b"behind")
        assert await content(store, ledger) == b"before" + big + b"behind"


async def test_many_small_parts_in_one_turn(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        parts = [bytes([index % 251]) * 20 for index in range(3_000)]
        completions = {store.append(ledger, [part], 20, None)[1] for part in parts}
        for completion in completions:
            await completion.wait()
        assert await content(store, ledger) == b"".join(parts)


async def test_an_append_from_a_callback_belongs_to_the_next_group(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        chained: list[object] = []

        def go_on(error: BaseException | None, left: int) -> None:
            assert error is None
            _, completion = store.append(ledger, [bytes([left])], 1, None)
            chained.append(completion)
            if left:
                completion.then(go_on, left - 1)

        _, first = store.append(ledger, [b"\xff"], 1, None)
        first.then(go_on, 20)
        while len(chained) < 21:
            await chained[-1].wait() if chained else await first.wait()
        await chained[-1].wait()
        assert await content(store, ledger) == bytes([255, *range(20, -1, -1)])


async def test_everything_is_there_after_a_restart(opened):
    async with opened() as (store, harness):
        if not harness.survives_restart:
            return  # a store in memory promises nothing beyond its object
        model: dict[int, bytes] = {}
        for index in range(30):
            ledger = await store.create()
            data = bytes([index]) * (index * 997)
            await append(store, ledger, data, flush_ms=None if index % 2 else 10)
            model[ledger] = data
            if index % 5 == 4:
                await store.seal(ledger, b"footer %d" % index)
            if index % 7 == 6:
                await store.delete(ledger)
                del model[ledger]
        before = store.list()
        for _ in range(3):
            store = await harness.restart()
            if harness.is_shared:
                # A ledger that was not sealed is sealed now, at the end that it had.
                before = [info._replace(is_sealed=True) for info in before]
                assert [await store.recover(info.ledger) for info in before] == before
            assert store.list() == before
            for ledger, data in model.items():
                assert await content(store, ledger) == data
        new = await store.create()
        assert new > max(info.ledger for info in before)
        sealed = next(info.ledger for info in before if info.is_sealed)
        with pytest.raises(LedgerSealed):
            store.append(sealed, [b"x"], 1, None)


# --- where brokers share a store ---------------------------------------------------------------


async def test_recovery_fences_the_writer_and_finds_all_that_was_acknowledged(opened):
    async with opened() as (store, harness):
        if not harness.is_shared:
            return
        other = await harness.beside()
        ledger = await store.create()
        model = bytearray()
        outcomes: list[HeadraceError | None] = []
        recovering = None
        for index in range(400):
            data = b"%d," % index
            try:
                _, completion = store.append(ledger, [data], len(data), None)
            except Fenced:
                break
            completion.then(lambda error, data: outcomes.append(error or model.extend(data)), data)
            if index == 100:
                recovering = asyncio.ensure_future(other.recover(ledger))
            await asyncio.sleep(0.001 if index % 10 == 0 else 0)
        info = await recovering
        found = await content(other, ledger)
        assert info == (ledger, len(found), True, None)
        assert found.startswith(model)
        assert found == b"".join(b"%d," % index for index in range(400))[: len(found)]
        for _ in range(3):
            with pytest.raises(LedgerFenced):
                await append(store, ledger, b"late")
        assert await content(other, ledger) == found
        with pytest.raises(Fenced):
            await store.seal(ledger, b"")


async def test_two_that_recover_at_once_find_the_same(opened):
    async with opened() as (store, harness):
        if not harness.is_shared:
            return
        others = [await harness.beside() for _ in range(2)]
        ledger = await store.create()
        last = None
        for index in range(50):
            _, last = store.append(ledger, [b"%d," % index], len(b"%d," % index), None)
            await asyncio.sleep(0)
        first, second = await asyncio.gather(*(other.recover(ledger) for other in others))
        assert first == second
        assert await content(others[0], ledger) == await content(others[1], ledger)
        del last


async def test_another_broker_reads_what_was_sealed_with_its_footer(opened):
    async with opened() as (store, harness):
        if not harness.is_shared:
            return
        other = await harness.beside()
        ledger = await store.create()
        await append(store, ledger, b"some bytes")
        await store.seal(ledger, b"a footer")
        assert await content(other, ledger) == b"some bytes"
        assert await other.recover(ledger) == (ledger, 10, True, b"a footer")
        await other.delete(ledger)
        with pytest.raises(LedgerUnknown):
            await other.read(ledger, 0, 1)


async def test_notes_come_with_what_was_appended_before_them_and_are_no_part_of_it(opened):
    async with opened() as (store, harness):
        if not harness.is_shared:
            pytest.skip("a note is for who takes an open ledger over, and here nobody can")
        ledger = await store.create()
        large = bytes(range(256)) * (5 << 12)  # 5 MiB: more than an entry, or an answer, holds
        assert isinstance(store, StoresInlineCheckpoints)
        store.append_checkpoint(ledger, b"at the start")
        await append(store, ledger, b"one")
        # In one turn, while other appends are under way: each behind what came before it.
        first = store.append(ledger, [b"two"], 3, None)[1]
        store.append_checkpoint(ledger, large)
        store.append(ledger, [b"three"], 5, None)
        store.append_checkpoint(ledger, b"")
        last = store.append(ledger, [large], len(large), None)[1]
        await first.wait()
        await last.wait()
        await append(store, ledger, b"four")
        other = await harness.beside()
        await other.recover(ledger)
        assert await other.checkpoints(ledger) == [(0, b"at the start"), (6, large), (11, b"")]
        assert await content(other, ledger) == b"onetwothree" + large + b"four"
        for position in range(14):
            found = bytes(await other.read(ledger, position, 4))
            assert found == (b"onetwothree" + large)[position : position + 4]


async def test_a_ledger_with_notes_is_sealed_with_its_footer(opened):
    async with opened() as (store, harness):
        if not harness.is_shared:
            pytest.skip("a note is for who takes an open ledger over, and here nobody can")
        ledger = await store.create()
        store.append(ledger, [b"data"], 4, None)
        store.append_checkpoint(ledger, b"note")
        await store.seal(ledger, b"footer")
        other = await harness.beside()
        info = await other.recover(ledger)
        assert (info.end, info.footer) == (4, b"footer")
        assert await content(other, ledger) == b"data"
        with pytest.raises(LedgerSealed):
            store.append_checkpoint(ledger, b"late")


def bulk_writer(store: LedgerStore, ledger: int):
    writer = store.bulk_writer(LedgerId(ledger)) if isinstance(store, WritesInBulk) else None
    if writer is None:
        pytest.skip("this store writes nothing in bulk")
    return writer


async def test_a_bulk_write_is_readable_once_it_is_finished(opened):
    async with opened() as (store, harness):
        ledger = await store.create()
        writer = bulk_writer(store, ledger)
        for piece in (b"first" * 50_000, b"second" * 50_000):
            await writer.write([piece[:100], piece[100:]], len(piece)).wait()
        assert await content(store, ledger) == b""
        with pytest.raises(LedgerSealed):
            store.append(ledger, [b"x"], 1, None)
        await writer.finish()
        writer.close()
        data = b"first" * 50_000 + b"second" * 50_000
        assert await content(store, ledger) == data
        assert await append(store, ledger, b"third") == len(data)
        await store.seal(ledger, b"footer")
        if harness.survives_restart:
            store = await harness.restart()
        assert await content(store, ledger) == data + b"third"
        assert (await store.recover(ledger)).footer == b"footer"


async def test_a_bulk_that_is_not_finished_leaves_the_ledger_without_bytes(opened):
    async with opened() as (store, harness):
        ledger = await store.create()
        writer = bulk_writer(store, ledger)
        await writer.write([b"bytes" * 100], 500).wait()
        writer.close()
        assert await append(store, ledger, b"other") == 0
        if harness.survives_restart:
            store = await harness.restart()
        assert await content(store, ledger) == b"other"


async def test_a_ledger_may_be_deleted_while_it_is_written_in_bulk(opened):
    async with opened() as (store, _harness):
        ledger = await store.create()
        writer = bulk_writer(store, ledger)
        await writer.write([b"bytes"], 5).wait()
        await store.delete(ledger)
        with pytest.raises(LedgerUnknown):
            await writer.finish()
        writer.close()
        with pytest.raises(LedgerUnknown):
            await content(store, ledger)
