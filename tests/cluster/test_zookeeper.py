"""The asyncio client, against a real ZooKeeper that is stopped, killed and cut off."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time

import pytest
import uvloop
from tests.cluster.network import Proxy
from tests.waiting import until

from headrace.errors import HeadraceError, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.runtime.clock import SystemClock
from headrace.runtime.session import SessionState
from headrace.zookeeper import link as zookeeper_link
from headrace.zookeeper.client import (
    VALUE_BYTES_MAX,
    Create,
    Delete,
    MultiResult,
    Put,
    ZNode,
    ZooKeeper,
)
from headrace.zookeeper.link import ZooKeeperOptions

_roots = itertools.count()
SESSION_MS = 2_000  # where it shall end; else ample, for machines that are busy


@contextlib.asynccontextmanager
async def client(address: str, **options):
    options = {"session_timeout_ms": 10_000, "call_timeout_ms": 10_000} | options
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address, **options), SystemClock())
    try:
        yield zookeeper
    finally:
        await zookeeper.close()


@pytest.fixture
def root():
    return f"/test-{next(_roots)}"


async def test_nodes_are_made_read_changed_and_removed(shared_zookeeper, root):
    async with client(shared_zookeeper.address, root=root) as zk:
        assert await zk.get("/a/b") is None
        assert await zk.children("/a") is None
        assert await zk.create("/a/b", b"1") == "/a/b"
        with pytest.raises(VersionConflict, match="/a/b already exists"):
            await zk.create("/a/b", b"")
        assert await zk.get("/a/b") == ZNode(b"1", 0)
        assert await zk.put("/a/b", b"\0\xff", 0) == 1
        for version in (0, 7):
            with pytest.raises(VersionConflict, match="another version"):
                await zk.put("/a/b", b"", version)
        with pytest.raises(VersionConflict, match="/c does not exist"):
            await zk.put("/c", b"")
        assert await zk.children("/a") == ["b"]
        with pytest.raises(VersionConflict, match="has children"):
            await zk.delete("/a")
        assert await zk.delete("/a/b", 1)
        assert not await zk.delete("/a/b")
        paths = [await zk.create("/s/n-", b"", ephemeral=True, sequence=True) for _ in "ab"]
        assert paths == ["/s/n-0000000000", "/s/n-0000000001"]
        found = await zk.get_many([*paths, "/none"])
        assert [node and node.owner for node in found] == [zk.session_id] * 2 + [None]
        await zk.create_container("/x/y/z")
        found = await zk.children_of_many(["/s", "/none", "/x"])
        assert [names and sorted(names) for names in found] == [
            ["n-0000000000", "n-0000000001"],
            None,
            ["y"],
        ]
        assert await zk.exists("/x/y/z")


async def test_a_multi_is_done_as_a_whole_or_says_what_does_not_fit(shared_zookeeper, root):
    async with client(shared_zookeeper.address, root=root) as zk:
        done = await zk.multi([Create("/a", b""), Put("/a", b"1", 0), Create("/b", b"")])
        assert done == [MultiResult(0, 0), MultiResult(1, 0), MultiResult(0, 0)]
        with pytest.raises(VersionConflict) as caught:
            await zk.multi([Create("/c", b""), Delete("/b", 0), Put("/a", b"2", 0)])
        assert caught.value.fields == {"path": "/a", "index": 2, "is_missing": False}
        assert await zk.get("/c") is None
        assert await zk.exists("/b")


async def test_a_value_that_is_too_large_is_refused_and_the_largest_is_not(shared_zookeeper, root):
    async with client(shared_zookeeper.address, root=root) as zk:
        largest = bytes(VALUE_BYTES_MAX)
        await zk.create("/a", largest)
        assert await zk.put("/a", largest) == 1
        for call in (
            zk.create("/b", largest + b"x"),
            zk.put("/a", largest + b"x"),
            zk.multi([Create("/b", largest), Put("/a", b"x")]),
        ):
            with pytest.raises(RequestInvalid, match="1000000"):
                await call
        assert zk.session.changes == 1  # the connection did not break over it


async def test_watches_fire_once_when_something_changed_and_when_the_connection_broke(
    shared_zookeeper, root
):
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        client(proxy.address, root=root) as zk,
        client(shared_zookeeper.address, root=root) as other,
    ):
        told = []
        await zk.create("/a/b", b"")
        await zk.get("/a/b", lambda: told.append("value"))
        await zk.children("/a", lambda: told.append("names"))
        await zk.exists("/a/c", lambda: told.append("comes"))
        await zk.get("/none", lambda: told.append("never"))
        await other.put("/a/b", b"")
        await until(lambda: told == ["value"])
        await other.create("/a/c", b"")
        await until(lambda: sorted(told) == ["comes", "names", "value"])
        await other.put("/a/b", b"")
        await zk.get("/a/b", lambda: told.append("broke"))
        proxy.break_connections()
        await until(lambda: sorted(told) == ["broke", "comes", "names", "value"])
        assert await zk.get("/a/b") == ZNode(b"", 2)  # and the session goes on
        assert zk.session.number == 1


async def test_a_tree_is_watched_through_lost_connections(shared_zookeeper, root):
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        client(proxy.address, root=root) as zk,
        client(shared_zookeeper.address, root=root) as other,
    ):
        told = []
        await other.create("/t/a", b"")
        await zk.watch_tree(
            "/t",
            lambda path, is_gone: told.append("-" * is_gone + path),
            lambda _zxid: told.append("gap"),
        )
        await other.put("/t/a", b"")
        await other.create("/t/b/c/d", b"")
        await other.create("/tt", b"")
        await other.delete("/t/b/c/d")
        await until(lambda: len(told) == 5)
        assert told == ["/t/a", "/t/b", "/t/b/c", "/t/b/c/d", "-/t/b/c/d"]
        for _ in range(3):
            told.clear()
            proxy.break_connections()
            await until(lambda: told == ["gap"])
            await other.put("/t/a", b"")
            await until(lambda: told == ["gap", "/t/a"])


async def test_a_gap_reaches_back_to_when_the_watch_was_last_set(shared_zookeeper, root):
    """Breaks in quick succession: no watch reports what is answered before it is set."""

    async with (
        Proxy(shared_zookeeper.address) as proxy,
        client(proxy.address, root=root) as zk,
        client(shared_zookeeper.address, root=root) as other,
    ):
        await other.create("/t/a", b"")
        gaps = []
        await zk.watch_tree("/t", lambda _path, _is_gone: None, gaps.append)
        gate, set_watch = asyncio.Event(), zk._set_tree_watch

        async def set_late(tree):
            await gate.wait()
            await set_watch(tree)

        zk._set_tree_watch = set_late
        for connections in (3, 5):
            proxy.break_connections()
            await until(lambda seen=connections: zk.session.changes == seen)
            await other.put("/t/a", b"")
            await zk.sync("/t")
        gate.set()
        await until(lambda: gaps)
        (state,) = await zk.get_many(["/t/a"])
        assert gaps[0] < state.changed_zxid - 1  # both puts lie behind it


async def test_a_server_that_falls_silent_is_noticed_while_much_is_asked_of_it(
    shared_zookeeper, root
):
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        client(proxy.address, session_timeout_ms=SESSION_MS) as zk,
    ):
        over = asyncio.Event()

        async def ask():
            with contextlib.suppress(MetadataUnavailable):
                await zk.exists(root)

        async def ask_much():
            calls = set()
            while not over.is_set():
                calls.add(asyncio.ensure_future(ask()))
                await asyncio.sleep(0.05)
            await asyncio.gather(*calls)

        asking = asyncio.ensure_future(ask_much())
        await asyncio.sleep(0.2)
        proxy.swallow()
        await until(lambda: zk.session.state is SessionState.SUSPENDED)
        proxy.restore()
        over.set()
        await asking


def test_an_unreachable_zookeeper_is_reported_with_cause_and_next_step(root):
    async def run():
        started = time.monotonic()
        options = ZooKeeperOptions("127.0.0.1:1", connect_timeout_ms=300)
        with pytest.raises(MetadataUnavailable, match=r"127.0.0.1:1.*refused.*try again"):
            await ZooKeeper.connect(options, SystemClock())
        with pytest.raises(RequestInvalid, match="not a list of ZooKeeper servers"):
            await ZooKeeper.connect(ZooKeeperOptions("host:no"), SystemClock())
        assert time.monotonic() - started < 30

    before = threading.active_count()
    asyncio.run(run())
    end = time.monotonic() + 60
    while threading.active_count() > before:
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


async def test_nodes_created_with_a_credential_are_closed_to_other_clients(shared_zookeeper, root):
    address = shared_zookeeper.address
    async with client(address, credential="headrace:secret") as zk, client(address) as other:
        await zk.create(root, b"mine")
        with pytest.raises(RequestInvalid, match="credential"):
            await other.get(root)
        assert await zk.get(root) == ZNode(b"mine", 0)


async def test_calls_that_find_no_place_wait_and_too_many_are_refused(
    shared_zookeeper, root, monkeypatch
):
    monkeypatch.setattr(zookeeper_link, "IN_FLIGHT_MAX", 4)
    monkeypatch.setattr(zookeeper_link, "WAITING_MAX", 50)

    async with client(shared_zookeeper.address, root=root) as zk:
        await zk.create("/n", b"")
        calls = [zk.put("/n", b"%d" % number) for number in range(80)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [result for result in results if isinstance(result, MetadataUnavailable)]
        done = sorted(result for result in results if isinstance(result, int))
        assert done == list(range(1, len(done) + 1))
        assert len(done) >= 50
        assert len(done) + len(refused) == 80
        assert len(refused) >= 20
        task = asyncio.ensure_future(zk.put("/n", b""))  # a cancelled one gives its place back
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(*(zk.get("/n") for _ in range(40)))


async def test_a_server_that_is_suspended_for_a_moment_costs_time_and_nothing_else(
    make_cluster, root
):
    zookeeper = make_cluster(bookie_count=0).zookeeper

    async with client(zookeeper.address, session_timeout_ms=6_000, call_timeout_ms=7_000) as zk:
        await zk.create(root, b"", ephemeral=True)
        zookeeper.suspend()
        call = asyncio.ensure_future(zk.put(root, b"later"))
        await asyncio.sleep(0.7)
        assert not call.done()
        assert zk.session.is_safe(time.monotonic_ns(), 500)
        zookeeper.resume()
        assert await call == 1
        assert (zk.session.number, zk.session.state) == (1, SessionState.CONNECTED)
        # For longer than the session: whoever waits is told, and a new session follows.
        zookeeper.suspend()
        started = time.monotonic()
        in_doubt = asyncio.ensure_future(zk.put(root, b"perhaps"))
        await asyncio.sleep(0.1)
        with pytest.raises(MetadataUnavailable, match="the change may have been made"):
            await in_doubt
        assert time.monotonic() - started < 30
        await until(lambda: not zk.session.is_safe(time.monotonic_ns(), 0))
        with pytest.raises(MetadataUnavailable, match="nothing was changed"):
            await zk.put(root, b"no")
        zookeeper.resume()
        await until(lambda: zk.session.is_safe(time.monotonic_ns(), 500))
        # Whether it ends sessions first or hears of us first is the server's own race.
        assert await zk.exists(root) == (zk.session.number == 1)


def test_a_killed_server_comes_back_and_no_change_is_reported_twice(make_cluster, root):
    zookeeper = make_cluster(bookie_count=0).zookeeper

    async def run():
        async with client(zookeeper.address, session_timeout_ms=20_000) as zk:
            await zk.create(root, b"")
            done, doubts, over = [], 0, asyncio.Event()

            async def count():
                nonlocal doubts
                while not over.is_set():
                    try:
                        done.append(await zk.put(root, b""))
                    except MetadataUnavailable as error:
                        doubts += error.fields["is_in_doubt"]

            def more_than(seen):
                return lambda: len(done) > seen

            counters = [asyncio.ensure_future(count()) for _ in range(8)]
            for _ in range(2):
                await until(more_than(len(done) + 50))
                zookeeper.kill()
                zookeeper.start()
            await until(more_than(len(done) + 50))
            over.set()
            await asyncio.gather(*counters)
            node = await zk.get(root)
            assert len(set(done)) == len(done)  # each success is a change of its own
            assert max(done) <= node.version <= len(done) + doubts
            assert zk.session.number == 1

    asyncio.run(run())


async def test_a_partitioned_client_is_unsafe_before_its_ephemeral_nodes_are_deleted(
    shared_zookeeper, root
):
    async with (
        Proxy(shared_zookeeper.address) as proxy,
        client(proxy.address, root=root, session_timeout_ms=SESSION_MS) as zk,
        client(shared_zookeeper.address, root=root) as other,
    ):
        assert zk.session.timeout_ms == SESSION_MS
        await zk.create("/mine", b"", ephemeral=True)
        gone_ns = []
        assert await other.exists("/mine", lambda: gone_ns.append(time.monotonic_ns()))
        heard_ns = time.monotonic_ns()
        await zk.exists("/mine")
        proxy.swallow()
        cut_ns = time.monotonic_ns()
        assert zk.session.is_safe(heard_ns + 500_000_000, 200)
        await until(lambda: not zk.session.is_safe(time.monotonic_ns(), 200))
        assert not zk.session.is_safe(cut_ns + (SESSION_MS - 200 + 100) * 1_000_000, 200)
        await until(lambda: gone_ns)
        assert not zk.session.is_safe(gone_ns[0], 200), "unsafe before it was gone"
        proxy.restore()
        await until(lambda: zk.session.number >= 2)
        await until(lambda: zk.session.is_safe(time.monotonic_ns(), 200))
        assert await zk.create("/mine", b"", ephemeral=True) == "/mine"


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_loop_that_was_held_up_knows_that_its_session_has_lived_on(
    shared_zookeeper, root, runner
):
    """Else an owner whose processor was taken from it for a while gives up all it owns."""

    async def run():
        async with client(shared_zookeeper.address, root=root, session_timeout_ms=6_000) as zk:
            margin_ms = 1_000
            await zk.create("/a", b"")
            for _ in range(2):
                time.sleep((zk.session.timeout_ms - margin_ms) / 1000)
                assert zk.session.is_safe(time.monotonic_ns(), margin_ms)
                assert await zk.exists("/a")
            assert (zk.session.number, zk.session.changes) == (1, 1)

    runner(run())


async def test_closing_ends_the_session_and_never_hangs(make_cluster, root):
    zookeeper = make_cluster(bookie_count=0).zookeeper

    async with client(zookeeper.address) as other:
        zk = await ZooKeeper.connect(ZooKeeperOptions(zookeeper.address), SystemClock())
        await zk.create(root, b"", ephemeral=True)
        await zk.close()
        await zk.close()
        assert not await other.exists(root)
        with pytest.raises(HeadraceError, match="closed"):
            await zk.get(root)
        zookeeper.suspend()
        waiting = asyncio.ensure_future(other.get(root))
        await asyncio.sleep(0.05)
        started = time.monotonic()
    assert time.monotonic() - started < 60
    with pytest.raises(MetadataUnavailable):
        await waiting
