"""The contract of LedgerStore (`storage/ledger.py`), which every implementation passes.

A Harness opens a store, and where the store outlives its process it also `restarts` it: cleanly
or by leaving it as a killed process would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from headrace.errors import LedgerSealed, LedgerUnknown, Rejected
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore
from headrace.storage.ledger import LedgerId, LedgerInfo, LedgerStore
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.objects.blob_store import BlobStore
from headrace.storage.objects.tiered_store import TieredLedgerStore

if TYPE_CHECKING:
    from pathlib import Path


class MemoryHarness:
    survives_restart = False

    def __init__(self, folder: Path) -> None:
        self.store: LedgerStore

    async def open(self) -> LedgerStore:
        self.store = MemoryLedgerStore()
        return self.store

    async def close(self) -> None:
        await self.store.close()


class FilesHarness:
    survives_restart = True

    def __init__(self, folder: Path) -> None:
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
    def __init__(self, folder: Path) -> None:
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


HARNESSES = [MemoryHarness, FilesHarness, TieredHarness]
Scenario = Callable[[LedgerStore, object], Awaitable[None]]


@pytest.fixture(params=HARNESSES, ids=["memory", "files", "tiered"])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            harness = request.param(tmp_path)
            store = await harness.open()
            try:
                await scenario(store, harness)
            finally:
                await harness.close()

        asyncio.run(main())

    return run


async def append(store: LedgerStore, ledger: int, data: bytes, flush_ms: int | None = None) -> int:
    position, completion = store.append(ledger, [data], len(data), flush_ms)
    await completion.wait()
    return position


async def content(store: LedgerStore, ledger: int) -> bytes:
    return bytes(await store.read(ledger, 0, 1 << 30))


def test_appends_lie_next_to_each_other_and_read_back(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        assert await append(store, ledger, b"one") == 0
        assert await append(store, ledger, b"") == 3
        assert await append(store, ledger, b"two", flush_ms=100) == 3
        position, completion = store.append(ledger, [b"th", memoryview(b"re"), b"e"], 5, None)
        assert position == 6
        await completion.wait()
        assert await content(store, ledger) == b"onetwothree"
        assert bytes(await store.read(ledger, 2, 5)) == b"etwot"

    check(scenario)


def test_what_was_just_written_is_read_without_a_disk(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        await append(store, ledger, b"abcdef")
        assert bytes(store.read_cached(ledger, 1, 3)) == b"bcd"
        assert bytes(store.read_cached(ledger, 4, 100)) == b"ef"
        assert bytes(store.read_cached(ledger, 6, 100)) == b""
        assert bytes(store.read_cached(ledger, 99, 100)) == b""

    check(scenario)


def test_nothing_is_readable_before_its_completion(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        _position, completion = store.append(ledger, [b"unseen"], 6, None)
        assert not completion.done
        assert bytes(store.read_cached(ledger, 0, 100)) == b""
        assert store.list()[0].end == 0
        await completion.wait()
        assert bytes(store.read_cached(ledger, 0, 100)) == b"unseen"
        assert store.list()[0].end == 6

    check(scenario)


@pytest.mark.parametrize("flush_ms", [None, 0, 1_000])
def test_appends_of_one_ledger_complete_in_order(check, flush_ms):
    async def scenario(store, _harness):
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

    check(scenario)


def test_appends_of_one_turn_share_a_completion(check):
    async def scenario(store, _harness):
        first, second = await store.create(), await store.create()
        _, one = store.append(first, [b"1"], 1, None)
        _, two = store.append(second, [b"2"], 1, None)
        assert one is two
        await one.wait()

    check(scenario)


def test_an_unsynced_append_waits_for_the_synced_one_before_it(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        _, synced = store.append(ledger, [b"synced"], 6, None)
        _, unsynced = store.append(ledger, [b"unsynced"], 8, 60_000)
        unsynced.then(lambda _error, _context: readable_then.append(synced.done), None)
        readable_then: list[bool] = []
        await unsynced.wait()
        await synced.wait()
        assert unsynced is synced or readable_then == [True]

    check(scenario)


def test_ids_are_never_given_out_twice(check):
    async def scenario(store, _harness):
        ids = [await store.create() for _ in range(5)]
        await store.delete(ids[4])
        ids += await asyncio.gather(*(store.create() for _ in range(5)))
        assert len(set(ids)) == len(ids)

    check(scenario)


def test_a_ledger_that_does_not_exist_is_unknown(check):
    async def scenario(store, _harness):
        with pytest.raises(LedgerUnknown):
            store.append(99, [b"x"], 1, None)
        with pytest.raises(LedgerUnknown):
            store.read_cached(99, 0, 1)
        for call in (
            store.read(99, 0, 1),
            store.seal(99, b""),
            store.recover(99),
            store.delete(99),
        ):
            with pytest.raises(LedgerUnknown):
                await call

    check(scenario)


def test_a_sealed_ledger_takes_no_appends_and_keeps_its_footer(check):
    async def scenario(store, _harness):
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

    check(scenario)


def test_appends_are_refused_from_the_moment_seal_is_called(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        sealing = asyncio.ensure_future(store.seal(ledger, b""))
        await asyncio.sleep(0)
        with pytest.raises(LedgerSealed):
            store.append(ledger, [b"x"], 1, None)
        await sealing

    check(scenario)


def test_a_footer_beyond_its_limit_is_rejected(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        with pytest.raises(Rejected):
            await store.seal(ledger, bytes((16 << 20) + 1))
        await append(store, ledger, b"still open")

    check(scenario)


def test_a_deleted_ledger_is_gone(check):
    async def scenario(store, _harness):
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

    check(scenario)


def test_recover_counts_what_was_pending(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        store.append(ledger, [b"pending"], 7, None)
        assert (await store.recover(ledger)).end == 7
        await append(store, ledger, b" and on")
        assert await content(store, ledger) == b"pending and on"

    check(scenario)


def test_an_append_of_many_megabytes(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        await append(store, ledger, b"before")
        big = bytes(range(256)) * (5 << 12)
        half = memoryview(big)[: len(big) // 2]
        _, completion = store.append(ledger, [half, memoryview(big)[len(half) :]], len(big), None)
        await completion.wait()
        await append(store, ledger, b"behind")
        assert await content(store, ledger) == b"before" + big + b"behind"

    check(scenario)


def test_many_small_parts_in_one_turn(check):
    async def scenario(store, _harness):
        ledger = await store.create()
        parts = [bytes([index % 251]) * 20 for index in range(3_000)]
        completions = {store.append(ledger, [part], 20, None)[1] for part in parts}
        for completion in completions:
            await completion.wait()
        assert await content(store, ledger) == b"".join(parts)

    check(scenario)


def test_an_append_from_a_callback_belongs_to_the_next_group(check):
    async def scenario(store, _harness):
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

    check(scenario)


def test_everything_is_there_after_a_restart(check):
    async def scenario(store, harness):
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
            assert store.list() == before
            for ledger, data in model.items():
                assert await content(store, ledger) == data
        new = await store.create()
        assert new > max(info.ledger for info in before)
        sealed = next(info.ledger for info in before if info.is_sealed)
        with pytest.raises(LedgerSealed):
            store.append(sealed, [b"x"], 1, None)

    check(scenario)
