"""The contract of MetadataStore (`headrace/metadata/store.py`), passed by every implementation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import pytest

from headrace.errors import DataCorrupt, FormatUnsupported, MetadataUnavailable, VersionConflict
from headrace.metadata.facts import allocate_producer_ids, ensure_cluster_id
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.store import ABSENT, ANY, MetadataEntry, MetadataStore, MultiOperation
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.session import SessionState
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions

if TYPE_CHECKING:
    from pathlib import Path

_roots = itertools.count()
Open = Callable[[], Awaitable[MetadataStore]]


class House:
    """Opens sessions on one shared metadata, and closes those that a test leaves open."""

    def __init__(self, kind: str, folder: Path, zookeeper: str = "") -> None:
        self.kind = kind
        self.path = folder / "metadata.sqlite"
        self._zookeeper = zookeeper
        self._root = f"/contract-{next(_roots)}"
        self._shared = MemoryMetadata()
        self._stores: list[MetadataStore] = []
        self._clients: list[ZooKeeper] = []

    async def open(self) -> MetadataStore:
        if self.kind == "memory":
            store: MetadataStore = MemoryMetadataStore(self._shared)
        elif self.kind == "zookeeper":
            options = ZooKeeperOptions(self._zookeeper, session_timeout_ms=10_000)
            self._clients.append(await ZooKeeper.connect(options, SystemClock()))
            store = await ZooKeeperMetadataStore.open(self._clients[-1], self._root)
        else:
            store = await SqliteMetadataStore.open(self.path, SystemClock(), poll_ms=5)
        self._stores.append(store)
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for opened in (*self._stores, *self._clients):
            await opened.close()


@pytest.fixture(params=["memory", "sqlite", "zookeeper"])
def house(request, tmp_path):
    if request.param != "zookeeper":
        return House(request.param, tmp_path)
    return House(request.param, tmp_path, request.getfixturevalue("shared_zookeeper").address)


@pytest.fixture
def sqlite_house(tmp_path):
    return House("sqlite", tmp_path)


async def next_of(watch: AsyncIterator[str]) -> str:
    return await asyncio.wait_for(anext(watch), 60)


# --- versions --------------------------------------------------------------------------------


async def test_a_key_starts_at_version_0_and_counts_its_changes(house):
    async with house:
        store = await house.open()
        assert await store.get("/a") is None
        assert await store.put("/a", b"1", ABSENT) == 0
        assert await store.put("/a", b"", 0) == 1
        assert await store.put("/a", b"\0\xff", ANY) == 2
        assert await store.get("/a") == MetadataEntry("/a", b"\0\xff", 2)


@pytest.mark.parametrize("expected", [1, 7, ABSENT])
async def test_a_put_with_another_version_changes_nothing(house, expected):
    async with house:
        store = await house.open()
        await store.put("/a", b"kept", ABSENT)
        with pytest.raises(VersionConflict) as caught:
            await store.put("/a", b"lost", expected)
        assert caught.value.fields == {"key": "/a", "expected": expected, "actual": 0}
        assert await store.get("/a") == MetadataEntry("/a", b"kept", 0)


async def test_a_delete_obeys_versions_and_a_new_key_starts_again(house):
    async with house:
        store = await house.open()
        await store.put("/a", b"1", ABSENT)
        with pytest.raises(VersionConflict):
            await store.delete("/a", 4)
        await store.delete("/a", 0)
        assert await store.get("/a") is None
        with pytest.raises(VersionConflict):
            await store.delete("/a", 0)
        with pytest.raises(VersionConflict):
            await store.put("/a", b"2", 0)
        await store.delete("/a", ANY)
        assert await store.put("/a", b"2", ABSENT) == 0


async def test_list_is_by_key_and_by_prefix(house):
    async with house:
        store = await house.open()
        for key in ("/b/2", "/a", "/b/1", "/b", "/b/10", "/c", "/b/é", "/b0", "/b/%", "/b/_"):
            await store.put(key, key.encode(), ABSENT)
        await store.put("/b/gone", b"", ABSENT)
        await store.delete("/b/gone", 0)
        keys = [entry.key for entry in await store.list("/b/")]
        assert keys == ["/b/%", "/b/1", "/b/10", "/b/2", "/b/_", "/b/é"]
        assert len(await store.list("")) == 10
        assert [entry.key for entry in await store.list("/c")] == ["/c"]
        assert list(await store.list("/z")) == []


async def test_one_of_many_rivals_wins_a_compare_and_set(house):
    async with house:
        stores = [await house.open() for _ in range(3)]

        async def rival(number):
            try:
                await stores[number % 3].put("/owner", b"%d" % number, ABSENT)
            except VersionConflict:
                return None
            return number

        results = await asyncio.gather(*map(rival, range(24)))
        (winner,) = [number for number in results if number is not None]
        assert await stores[0].get("/owner") == MetadataEntry("/owner", b"%d" % winner, 0)


async def test_a_counter_that_many_raise_loses_nothing(house):
    async with house:
        stores = [await house.open() for _ in range(3)]
        blocks = await asyncio.gather(
            *(allocate_producer_ids(stores[n % 3], 1 + n % 5) for n in range(30))
        )
        given = [producer_id for block in blocks for producer_id in block]
        assert sorted(given) == list(range(len(given)))


async def test_all_brokers_agree_on_the_cluster_id(house):
    async with house:
        stores = [await house.open() for _ in range(4)]
        ids = await asyncio.gather(*(ensure_cluster_id(s, SystemRandomness()) for s in stores))
        assert len(set(ids)) == 1
        assert len(ids[0]) == 22


# --- multi -----------------------------------------------------------------------------------


async def test_a_multi_is_done_as_a_whole(house):
    async with house:
        store = await house.open()
        await store.put("/a", b"a", ABSENT)
        operations = [
            MultiOperation("/a", None, 0),
            MultiOperation("/b", b"b", ABSENT),
            MultiOperation("/a", b"again", ABSENT),
            MultiOperation("/b", b"bb", 0),
            MultiOperation("/nothing", None, ANY),
        ]
        assert list(await store.multi(operations)) == [ABSENT, 0, 0, 1, ABSENT]
        assert list(await store.list("/")) == [
            MetadataEntry("/a", b"again", 0),
            MetadataEntry("/b", b"bb", 1),
        ]
        assert list(await store.multi([])) == []


async def test_a_topic_of_a_tenant_is_stored_with_what_orders_them_and_listed_by_its_prefix(house):
    async with house:
        store = await house.open()
        for name in ("b", "«acme-x»b", "«acm»b"):
            await store.put(f"/topics/{name}", b"", ABSENT)
        made = [
            MultiOperation("/topics/«acme»b", b"b", ABSENT),
            MultiOperation("/tenant-topics/acme", b"{}", ABSENT),
            MultiOperation("/partitions/0/0", b"", ABSENT),
        ]
        assert list(await store.multi(made)) == [0, 0, 0]
        assert list(await store.list("/topics/«acme»")) == [
            MetadataEntry("/topics/«acme»b", b"b", 0)
        ]
        with pytest.raises(VersionConflict):
            await store.multi(
                [
                    MultiOperation("/topics/«acme»c", b"c", ABSENT),
                    MultiOperation("/tenant-topics/acme", b"{}", 1),
                ]
            )


async def test_a_multi_with_one_conflict_does_nothing(house):
    async with house:
        store = await house.open()
        await store.put("/a", b"a", ABSENT)
        watch = store.watch("/")
        with pytest.raises(VersionConflict):
            await store.multi(
                [
                    MultiOperation("/new", b"x", ABSENT),
                    MultiOperation("/a", None, 0),
                    MultiOperation("/b", b"y", 3),
                ]
            )
        assert list(await store.list("/")) == [MetadataEntry("/a", b"a", 0)]
        await store.put("/last", b"", ABSENT)
        assert await next_of(watch) == "/last"  # nobody was told of what did not happen


# --- watches ---------------------------------------------------------------------------------


async def test_a_watch_reports_puts_and_deletes_under_its_prefix_from_any_session(house):
    async with house:
        mine, other = await house.open(), await house.open()
        watch = mine.watch("/t/")
        await mine.put("/t/1", b"", ABSENT)
        assert await next_of(watch) == "/t/1"
        await other.put("/u/1", b"", ABSENT)
        await other.put("/t/2", b"", ABSENT)
        assert await next_of(watch) == "/t/2"
        await other.delete("/t/1", 0)
        assert await next_of(watch) == "/t/1"
        assert await mine.get("/t/1") is None


async def test_a_watch_misses_no_key_of_a_burst_and_holds_up_no_writer(house):
    async with house:
        mine, other = await house.open(), await house.open()
        watch = mine.watch("/k/")
        for number in range(40):
            await (mine if number % 3 else other).put(f"/k/{number % 20}", b"", ANY)
        told = set()
        while len(told) < 20:
            told.add(await next_of(watch))


async def test_a_watch_reports_a_key_that_changes_again(house):
    async with house:
        mine, other = await house.open(), await house.open()
        watch = mine.watch("/k")
        for number in range(10):
            await (mine if number % 2 else other).put("/k", b"%d" % number, ANY)
            assert await next_of(watch) == "/k"


async def test_a_watch_ends_when_its_store_closes(house):
    async with house:
        store = await house.open()

        async def consume():
            return [key async for key in store.watch("/")]

        consumer = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await store.put("/a", b"", ABSENT)
        await store.close()
        assert await asyncio.wait_for(consumer, 60) == ["/a"]


async def test_a_cancelled_watcher_may_go_on_watching(house):
    async with house:
        store = await house.open()
        watch = store.watch("/")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(anext(watch), 0.01)
        await store.put("/a", b"", ABSENT)
        assert await next_of(watch) == "/a"


# --- ephemeral keys --------------------------------------------------------------------------


async def test_an_ephemeral_key_goes_with_its_session(house):
    async with house:
        mine, other = await house.open(), await house.open()
        watch = other.watch("/brokers/")
        await mine.put("/brokers/1", b"me", ABSENT, ephemeral=True)
        await mine.put("/stays", b"me", ABSENT)
        await other.put("/brokers/2", b"you", ABSENT, ephemeral=True)
        while await next_of(watch) != "/brokers/1":
            pass
        assert [entry.key for entry in await other.list("/brokers/")] == [
            "/brokers/1",
            "/brokers/2",
        ]
        await mine.close()
        assert [entry.key for entry in await other.list("/brokers/")] == ["/brokers/2"]
        while await next_of(watch) != "/brokers/1":
            pass
        assert await other.get("/stays") is not None
        assert await other.put("/brokers/1", b"new", ABSENT, ephemeral=True) == 0


async def test_a_put_of_another_session_takes_the_key_over(house):
    async with house:
        mine, other = await house.open(), await house.open()
        await mine.put("/a", b"", ABSENT, ephemeral=True)
        await mine.put("/b", b"", ABSENT, ephemeral=True)
        await other.put("/a", b"", 0, ephemeral=True)
        await other.put("/b", b"", 0)
        await mine.close()
        assert [entry.key for entry in await other.list("/")] == ["/a", "/b"]
        await other.close()
        third = await house.open()
        assert [entry.key for entry in await third.list("/")] == ["/b"]


async def test_a_version_goes_on_when_a_key_changes_its_owner(house):
    async with house:
        mine, other = await house.open(), await house.open()
        assert await mine.put("/a", b"", ABSENT, ephemeral=True) == 0
        assert await other.put("/a", b"", ANY, ephemeral=True) == 1
        with pytest.raises(VersionConflict):  # else two would believe that it is theirs
            await mine.put("/a", b"", 0, ephemeral=True)
        assert await mine.put("/a", b"", 1) == 2
        await other.close()
        assert await mine.get("/a") == MetadataEntry("/a", b"", 2)


async def test_a_store_closes_while_ephemeral_keys_of_its_own_are_deleted(house):
    """It had asked for all of them, and was told of more than it had left."""

    async with house:
        mine, other = await house.open(), await house.open()
        for number in range(4):
            await mine.put(f"/brokers/{number}", b"me", ABSENT, ephemeral=True)

        async def delete(number: int) -> None:
            with contextlib.suppress(MetadataUnavailable):  # closed before it was its turn
                await mine.delete(f"/brokers/{number}", ANY)

        await asyncio.gather(*map(delete, range(4)), mine.close())
        assert await other.list("/brokers/") == []


async def test_a_session_says_how_long_it_is_safe(house):
    async with house:
        session = (await house.open()).session
        now_ns = SystemClock().now_ns()
        assert (session.state, session.number) == (SessionState.CONNECTED, 1)
        assert session.is_safe(now_ns, margin_ms=100)
        assert not session.is_safe(now_ns, margin_ms=session.timeout_ms)
        await session.wait_change_after(session.changes - 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.wait_change_after(session.changes), 0.01)


async def test_a_closed_store_says_so(house):
    async with house:
        store = await house.open()
        await store.close()
        await store.close()
        with pytest.raises(MetadataUnavailable):
            await store.get("/a")
        with pytest.raises(MetadataUnavailable):
            await store.put("/a", b"", ANY)
        with pytest.raises(MetadataUnavailable):
            store.watch("/")


# --- durability, and other processes ---------------------------------------------------------

CHILD = """
import asyncio, sys
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.store import ABSENT, ANY
from headrace.metadata.facts import allocate_producer_ids
from headrace.runtime.clock import SystemClock

async def main():
    store = await SqliteMetadataStore.open(sys.argv[1], SystemClock())
    {body}
    await store.close()

asyncio.run(main())
"""


@asynccontextmanager
async def child(house: House, body: str) -> AsyncIterator[asyncio.subprocess.Process]:
    code = CHILD.format(body=body.replace("\n", "\n    "))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(house.path), stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_writes_and_deletions_survive_reopening(sqlite_house):
    async with sqlite_house as house:
        store = await house.open()
        await store.put("/a", b"1", ABSENT)
        await store.put("/a", b"2", 0)
        await store.put("/gone", b"", ABSENT)
        await store.delete("/gone", 0)
        await store.close()
        store = await house.open()
        assert list(await store.list("/")) == [MetadataEntry("/a", b"2", 1)]


async def test_acknowledged_writes_survive_a_killed_writer(sqlite_house):
    body = "\n".join(
        [
            "await store.put('/broker', b'', ABSENT, ephemeral=True)",
            "for number in range(100_000):",
            "    await store.put(f'/k/{number:06}', b'v', ABSENT)",
            "    print(number, flush=True)",
        ]
    )

    async with sqlite_house as house, child(house, body) as process:
        answered = -1
        while answered < 50:
            answered = int(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        for line in (await process.stdout.read()).splitlines():
            answered = int(line)
        await process.wait()
        store = await house.open()
        keys = [entry.key for entry in await store.list("/k/")]
        assert keys == [f"/k/{number:06}" for number in range(len(keys))]
        assert answered < len(keys) <= answered + 2
        assert await store.get("/broker") is None  # and its session went with it
        assert not list(house.path.parent.glob("*-session-*"))


async def test_a_watcher_learns_of_another_process_and_of_its_death(sqlite_house):
    body = "\n".join(
        [
            "await store.put('/brokers/7', b'', ABSENT, ephemeral=True)",
            "await asyncio.sleep(3600)",
        ]
    )

    async with sqlite_house as house:
        store = await house.open()
        watch = store.watch("/brokers/")
        async with child(house, body) as process:
            assert await next_of(watch) == "/brokers/7"
            assert await store.get("/brokers/7") is not None
            with pytest.raises(VersionConflict):
                await store.put("/brokers/7", b"", ABSENT, ephemeral=True)
            process.kill()
            await process.wait()
            assert await next_of(watch) == "/brokers/7"  # nobody asked for it: the poll saw
            assert await store.put("/brokers/7", b"", ABSENT, ephemeral=True) == 0


async def test_the_successor_of_a_dead_process_takes_its_key_at_once(sqlite_house):
    body = "\n".join(
        [
            "await store.put('/brokers/7', b'', ABSENT, ephemeral=True)",
            "import os, signal",
            "os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )

    async with sqlite_house as house:
        async with child(house, body) as process:
            await process.wait()
        store = await house.open()
        assert await store.put("/brokers/7", b"", ABSENT, ephemeral=True) == 0


async def test_processes_race_and_lose_nothing(sqlite_house):
    body = "\n".join(
        [
            "for _ in range(25):",
            "    block = await allocate_producer_ids(store, 3)",
            "    print(*block, flush=True)",
        ]
    )

    async with sqlite_house as house, contextlib.AsyncExitStack() as stack:
        # Nobody made the file yet: they also race to make it.
        processes = [await stack.enter_async_context(child(house, body)) for _ in range(4)]
        outputs = [await process.stdout.read() for process in processes]
        given = [int(word) for output in outputs for word in output.split()]
        assert sorted(given) == list(range(4 * 25 * 3))


# --- faults ----------------------------------------------------------------------------------


async def test_a_file_that_is_no_database_is_reported(sqlite_house):
    sqlite_house.path.write_bytes(os.urandom(8192))
    with pytest.raises(DataCorrupt, match=r"restore metadata.sqlite from a backup"):
        await sqlite_house.open()


async def test_a_damaged_page_is_reported(sqlite_house):
    async with sqlite_house as house:
        store = await house.open()
        for number in range(200):
            await store.put(f"/k/{number}", os.urandom(200), ABSENT)
        await store.close()
        data = bytearray(house.path.read_bytes())
        data[4096 * 3 :] = os.urandom(len(data) - 4096 * 3)
        house.path.write_bytes(data)

        async def read_all():
            return await (await house.open()).list("/")

        with pytest.raises(DataCorrupt):
            await read_all()


async def test_a_flipped_bit_in_a_value_is_never_served(sqlite_house):
    async with sqlite_house as house:
        store = await house.open()
        await store.put("/k", b"partition count 6", ABSENT)
        await store.close()
        data = house.path.read_bytes()
        assert data.count(b"count 6") == 1
        house.path.write_bytes(data.replace(b"count 6", b"count 7"))
        store = await house.open()
        with pytest.raises(DataCorrupt, match="/k"):
            await store.get("/k")


async def test_a_newer_format_is_refused(sqlite_house):
    import sqlite3

    with contextlib.closing(sqlite3.connect(sqlite_house.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(FormatUnsupported):
        await sqlite_house.open()


async def test_a_full_disk_is_reported_and_changes_nothing(sqlite_house):
    async with sqlite_house as house:
        store = await house.open()
        await store.put("/a", b"kept", ABSENT)
        pages = await store._run(lambda: store._file._one("PRAGMA page_count"))
        await store._run(lambda: store._file._one(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(MetadataUnavailable, match="disk is full"):
            await store.multi(
                [
                    MultiOperation("/a", b"lost", 0),
                    MultiOperation("/big", bytes(1 << 20), ABSENT),
                ]
            )
        assert await store.get("/a") == MetadataEntry("/a", b"kept", 0)
        await store._run(lambda: store._file._one("PRAGMA max_page_count = 1000000"))
        assert await store.put("/big", bytes(1 << 20), ABSENT) == 0


async def test_a_lock_that_is_held_too_long_is_reported(tmp_path):
    import sqlite3

    path = tmp_path / "m"
    store = await SqliteMetadataStore.open(path, SystemClock(), busy_timeout_ms=20)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as rival:
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match="another process holds its lock"):
            await store.put("/a", b"", ABSENT)
        assert await store.get("/a") is None
        rival.execute("ROLLBACK")
    assert await store.put("/a", b"", ABSENT) == 0
    await store.close()
