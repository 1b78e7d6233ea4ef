"""The picture of a prefix: no change waits for the reads of others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tests.waiting import until

from headrace.broker.ownership.metadata_cache import RETRY_S, MetadataCache
from headrace.errors import MetadataUnavailable
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.metadata.store import MetadataEntry

FOLDER = "/things/"


class SlowStore(MemoryMetadataStore):
    """Reads of some keys are answered when the test says so; those of others fail."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, asyncio.Event] = {}
        self.failing: set[str] = set()
        self.reads: list[str] = []

    async def get(self, key: str) -> MetadataEntry | None:
        self.reads.append(key)
        if key in self.failing:
            raise MetadataUnavailable("it does not answer: try again")
        found = await super().get(key)  # as of when it was asked
        if key in self.held:
            await self.held[key].wait()
        return found


class Picture:
    """What a cache has reported, in order; `settled`: as of the last time it settled."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bytes | None]] = []
        self.settled: list[tuple[str, bytes | None]] = []
        self.refused: bytes | None = None

    def changed(self, key: str, entry: MetadataEntry | None) -> None:
        if entry is not None and entry.value == self.refused:
            raise KeyError(key)
        self.told.append((key, None if entry is None else entry.value))

    def settle(self) -> None:
        self.settled = list(self.told)


@asynccontextmanager
async def following() -> AsyncIterator[tuple[SlowStore, Picture]]:
    store, picture, tasks = SlowStore(), Picture(), Tasks()
    try:
        await MetadataCache(store, FOLDER, picture.changed, picture.settle, tasks).start()
        yield store, picture
    finally:
        await tasks.close()


async def put(store: SlowStore, name: str, value: bytes) -> None:
    await store.put(FOLDER + name, value, ANY)


async def test_a_change_is_acted_upon_while_the_read_of_another_is_slow() -> None:
    async with following() as (store, picture):
        store.held[FOLDER + "slow"] = asyncio.Event()
        await put(store, "slow", b"1")
        await until(lambda: FOLDER + "slow" in store.reads)
        await put(store, "quick", b"2")
        await until(lambda: (FOLDER + "quick", b"2") in picture.settled)
        assert (FOLDER + "slow", b"1") not in picture.told
        store.held[FOLDER + "slow"].set()
        await until(lambda: (FOLDER + "slow", b"1") in picture.settled)


async def test_a_change_is_acted_upon_while_more_changes_come() -> None:
    async with following() as (store, picture):
        store.held[FOLDER + "next"] = asyncio.Event()
        await put(store, "first", b"1")
        await until(lambda: FOLDER + "first" in store.reads)
        await put(store, "next", b"2")
        await until(lambda: picture.settled == [(FOLDER + "first", b"1")])


async def test_the_newest_entry_of_a_key_is_notified_last() -> None:
    async with following() as (store, picture):
        held = store.held[FOLDER + "one"] = asyncio.Event()
        await put(store, "one", b"old")
        await until(lambda: store.reads == [FOLDER + "one"])
        await put(store, "one", b"new")
        await asyncio.sleep(0.01)
        assert store.reads == [FOLDER + "one"], "one read of a key at a time"
        held.set()
        await until(lambda: picture.settled[-1:] == [(FOLDER + "one", b"new")])
        assert picture.told == [(FOLDER + "one", b"old"), (FOLDER + "one", b"new")]


async def test_an_unreadable_key_is_retried_and_delays_no_other() -> None:
    async with following() as (store, picture):
        store.failing.add(FOLDER + "bad")
        await put(store, "bad", b"1")
        await until(lambda: FOLDER + "bad" in store.reads)
        await put(store, "good", b"2")
        await until(lambda: picture.settled == [(FOLDER + "good", b"2")])
        store.failing.clear()
        await asyncio.sleep(RETRY_S)
        await until(lambda: (FOLDER + "bad", b"1") in picture.settled)


async def test_an_entry_that_cannot_be_taken_hides_no_other() -> None:
    async with following() as (store, picture):
        picture.refused = b"odd"
        await put(store, "odd", b"odd")
        await put(store, "even", b"even")
        await until(lambda: picture.settled == [(FOLDER + "even", b"even")])


async def test_thousands_of_changes_cost_few_turns_each_and_all_are_notified() -> None:
    async with following() as (store, picture):
        names = [f"n{number}" for number in range(3_000)]
        for name in names:
            await put(store, name, name.encode())
        await until(lambda: len(picture.settled) >= len(names))
        assert sorted(picture.settled) == sorted((FOLDER + name, name.encode()) for name in names)
