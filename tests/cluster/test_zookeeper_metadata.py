"""The metadata store over a real ZooKeeper that is cut off, suspended, killed and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time

import pytest
from tests.cluster.network import Proxy
from tests.waiting import until

from headrace.errors import MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.metadata.store import ABSENT, ANY, MetadataEntry, MultiOperation
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.session import SessionState
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions

_roots = itertools.count()
SESSION_MS = 3_000  # where it shall end; else ample, for machines that are busy


@pytest.fixture
def root():
    return f"/metadata-{next(_roots)}"


@contextlib.asynccontextmanager
async def store_on(address, root, **options):
    options = {"session_timeout_ms": 10_000, "call_timeout_ms": 10_000} | options
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address, **options), SystemClock())
    try:
        store = await ZooKeeperMetadataStore.open(zookeeper, root)
        yield store
        await store.close()
    finally:
        await zookeeper.close()


async def next_of(watch):
    return await asyncio.wait_for(anext(watch), 60)


class Mirror:
    """The view of a client that reads everything once, and then only what a watch names."""

    def __init__(self, store, prefix):
        self.believed = {}
        self.told = []
        self._store = store
        self._watch = store.watch(prefix)
        self._prefix = prefix
        self._task = asyncio.ensure_future(self._follow())

    async def _follow(self):
        for entry in await self._patiently(lambda: self._store.list(self._prefix)):
            self.believed[entry.key] = entry
        async for key in self._watch:
            self.told.append(key)
            entry = await self._patiently(lambda key=key: self._store.get(key))
            if entry is None:
                self.believed.pop(key, None)
            else:
                self.believed[key] = entry

    async def _patiently(self, read):
        while True:
            try:
                return await read()
            except MetadataUnavailable:
                await asyncio.sleep(0.05)

    async def close(self):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize("cut_s", [0.4, SESSION_MS / 1000 + 1.5])
async def test_a_watch_reports_only_what_happened_while_it_was_cut_off(
    shared_zookeeper, root, cut_s
):
    is_lost = cut_s > SESSION_MS / 1000

    session_ms = SESSION_MS if is_lost else 30_000
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        store_on(proxy.address, root, session_timeout_ms=session_ms) as store,
        store_on(shared_zookeeper.address, root) as other,
    ):
        for number in range(300):
            await other.put(f"/k/{number}", b"", ABSENT)
        await store.put("/k/mine", b"", ABSENT, ephemeral=True)
        watch = store.watch("/k/")
        proxy.swallow()
        await other.put("/k/7", b"changed", 0)
        await other.delete("/k/8", 0)
        await other.put("/k/new", b"", ABSENT)
        await other.put("/k/brief", b"", ABSENT)
        await other.delete("/k/brief", 0)
        await other.delete("/k/9", 0)
        await other.put("/k/9", b"again", ABSENT)
        await asyncio.sleep(cut_s)
        proxy.restore()
        proxy.break_connections()
        missed = {"/k/7", "/k/8", "/k/9", "/k/new"} | ({"/k/mine"} if is_lost else set())
        told = set()
        while not missed <= told:
            told.add(await next_of(watch))
        assert told - missed <= {"/k/brief", "/k/mine"}
        await until(lambda: store.session.number >= 1 + is_lost)
        await other.put("/k/last", b"", ABSENT)
        while await next_of(watch) != "/k/last":
            pass


async def test_after_a_gap_what_is_older_than_it_was_written_is_reported(shared_zookeeper, root):
    """ZooKeeper does not lose changes on purpose: the store believes it has written more."""

    async with store_on(shared_zookeeper.address, root) as store:
        for key in ("/lost", "/kept", "/gone", "/mine"):
            await store.put(key, b"", ABSENT, ephemeral=key == "/mine")
        await store.delete("/gone", ANY)
        assert store._written == {"/lost": 0, "/kept": 0}
        store._written["/lost"] += 1
        told = store.watch("/")
        store._note_gap(2**62)
        assert await next_of(told) == "/lost"
        await store.put("/kept", b"1", 0)
        assert await next_of(told) == "/kept"
        assert store._written == {"/kept": 1}


async def test_an_ephemeral_key_comes_back_in_the_next_session_unless_it_was_taken(
    shared_zookeeper, root
):
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        store_on(proxy.address, root, session_timeout_ms=SESSION_MS) as store,
        store_on(shared_zookeeper.address, root) as other,
    ):
        await store.put("/brokers/1", b"me", ABSENT, ephemeral=True)
        await store.put("/brokers/1", b"still me", 0, ephemeral=True)
        await store.put("/brokers/2", b"me", ABSENT, ephemeral=True)
        await store.put("/brokers/3", b"me", ABSENT, ephemeral=True)
        await store.put("/brokers/4", b"me", ABSENT, ephemeral=True)
        await store.delete("/brokers/3", 0)
        await other.put("/brokers/4", b"lasting", 0)
        watch = other.watch("/brokers/")
        proxy.swallow()
        gone = set()
        while gone != {"/brokers/1", "/brokers/2"}:
            gone.add(await next_of(watch))
        assert not store.session.is_safe(time.monotonic_ns(), 0)
        await other.put("/brokers/2", b"taken", ABSENT, ephemeral=True)
        proxy.restore()
        proxy.break_connections()
        while await next_of(watch) != "/brokers/1":
            pass
        assert list(await other.list("/brokers/")) == [
            MetadataEntry("/brokers/1", b"still me", 0),
            MetadataEntry("/brokers/2", b"taken", 0),
            MetadataEntry("/brokers/4", b"lasting", 1),
        ]
        assert store.session.number >= 2
        # And what came back belongs to the new session: it is removed with the store.
        await store.close()
        assert [entry.key for entry in await other.list("/brokers/")] == [
            "/brokers/2",
            "/brokers/4",
        ]


async def test_a_key_that_changes_its_owner_keeps_counting(shared_zookeeper, root):
    async with (
        store_on(shared_zookeeper.address, root) as store,
        store_on(shared_zookeeper.address, root) as other,
    ):
        assert await store.put("/a", b"1", ABSENT, ephemeral=True) == 0
        assert await other.put("/a", b"2", 0, ephemeral=True) == 1
        with pytest.raises(VersionConflict):
            await store.put("/a", b"old", 0, ephemeral=True)
        assert await store.put("/a", b"3", ANY) == 2
        assert await other.put("/a", b"4", 2) == 3
        assert await other.put("/a", b"5", 3, ephemeral=True) == 4
        assert list(await store.multi([MultiOperation("/a", b"6", 4)])) == [5]
        assert await store.get("/a") == MetadataEntry("/a", b"6", 5)
        await other.close()
        assert await store.get("/a") == MetadataEntry("/a", b"6", 5)


async def test_a_value_that_is_too_large_is_refused_in_words(shared_zookeeper, root):
    async with store_on(shared_zookeeper.address, root) as store:
        assert await store.put("/large", bytes(1_000_000), ABSENT) == 0
        with pytest.raises(RequestInvalid, match=r"large would hold 1000001 bytes.*split"):
            await store.put("/large", bytes(1_000_001), 0)
        assert store.session.changes == 1


async def test_folders_hold_no_value_and_are_made_when_they_are_missing(shared_zookeeper, root):
    async with store_on(shared_zookeeper.address, root) as store:
        operations = [MultiOperation(f"/p/{n % 3}/x/{n}", b"", ABSENT) for n in range(9)]
        assert list(await store.multi(operations)) == [0] * 9
        assert await store.get("/p") is None
        assert await store.get("/p/1") is None
        await store.put("/p/1", b"", ABSENT)
        assert len(await store.list("/p")) == 10
        assert len(await store.list("/p/1")) == 4
        assert len(await store.list("/p/1/")) == 3
        await store.delete("/p/1", 0)
        assert len(await store.list("/p/1")) == 3


async def test_a_view_by_a_watch_is_correct_after_every_kind_of_fault(make_cluster, root):
    zookeeper = make_cluster(bookie_count=0).zookeeper
    rng = random.Random(12)

    async def write(store, over):
        """Change keys until it is over, giving up on each change that is in doubt."""
        while not over.is_set():
            key = f"/k/{rng.randrange(40)}"
            with contextlib.suppress(MetadataUnavailable, VersionConflict):
                if rng.random() < 0.3:
                    await store.delete(key, ANY)
                else:
                    await store.put(key, b"%d" % rng.randrange(1000), ANY)
            await asyncio.sleep(0.002)

    async def trouble(proxy, store):
        yield "a broken connection", proxy.break_connections()
        for cut_s in (0.3, SESSION_MS / 1000 + 1.0):
            proxy.swallow()
            await asyncio.sleep(cut_s)
            yield f"a cut of {cut_s} s", proxy.restore()
        for _ in range(2):
            zookeeper.suspend()
            await asyncio.sleep(0.4)
            zookeeper.resume()
            yield "a suspended server", None
        zookeeper.kill()
        zookeeper.start()
        yield "a killed server", None
        for _ in range(5):
            proxy.break_connections()
            await asyncio.sleep(0.03)
        yield "breaks one after another", None

    async with (
        Proxy(zookeeper.address) as proxy,
        store_on(
            proxy.address, root, session_timeout_ms=SESSION_MS, call_timeout_ms=1_000
        ) as store,
        store_on(zookeeper.address, root) as other,
    ):
        mirror = Mirror(store, "/k/")
        async for what, _ in trouble(proxy, store):
            over = asyncio.Event()
            writers = [asyncio.ensure_future(write(other, over)) for _ in range(2)]
            await asyncio.sleep(0.15)
            over.set()
            await asyncio.gather(*writers)
            truth = {entry.key: entry for entry in await other.list("/k/")}
            try:
                await until(lambda truth=truth: mirror.believed == truth)
            except TimeoutError:
                pytest.fail(f"after {what}: {set(mirror.believed.items()) ^ set(truth.items())}")
        assert store.session.number >= 2
        await mirror.close()


async def test_no_call_hangs_and_no_success_is_false_while_the_server_is_killed(make_cluster, root):
    zookeeper = make_cluster(bookie_count=0).zookeeper

    async with store_on(zookeeper.address, root) as store:
        won, doubts = [], []
        over = asyncio.Event()

        async def count(name):
            """Raise one counter by compare-and-set, as allocators of ids do."""
            while not over.is_set():
                try:
                    entry = await store.get("/counter")
                    version = ABSENT if entry is None else entry.version
                    value = 0 if entry is None else int(entry.value.split()[0]) + 1
                    await store.put("/counter", b"%d %s" % (value, name), version)
                except VersionConflict:
                    continue
                except MetadataUnavailable as error:
                    doubts.append(error.fields["is_in_doubt"])
                    continue
                won.append(value)

        counters = [asyncio.ensure_future(count(b"%d" % n)) for n in range(4)]
        for _ in range(2):
            seen = len(won)
            await until(lambda seen=seen: len(won) > seen + 30)
            zookeeper.kill()
            zookeeper.start()
        seen = len(won)
        await until(lambda: len(won) > seen + 30)
        over.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*counters)
        assert len(set(won)) == len(won)
        assert store.session.state is SessionState.CONNECTED
        entry = await store.get("/counter")
        assert max(won) <= int(entry.value.split()[0]) <= len(won) + sum(doubts)
