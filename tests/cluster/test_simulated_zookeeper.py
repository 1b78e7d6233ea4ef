"""What the simulated ZooKeeper servers answer is what real ones answer."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.zookeeper.client import Create, Delete, Put, ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions
from headrace_verify.simulation.clock import SimulatedClock
from headrace_verify.simulation.cluster import Cluster
from headrace_verify.simulation.loop import Host, SimulatedLoop
from headrace_verify.simulation.zookeeper import connect

ROOT = "/same"
STEPS = 300
PATHS = ("/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/e", "/e/below")
NAMES = ("create", "create", "put", "delete", "multi", "get", "exists", "children")
NAMES += ("many", "below", "sequence", "container")
_numbers = itertools.count()


def drawn(seed: int) -> list[tuple]:
    """Calls: a method's name, its arguments, and whether it sets a watch."""
    rng = random.Random(seed)

    def version() -> int:
        return rng.choice((-1, -1, 0, 1, 2))

    def part() -> Create | Put | Delete:
        path = rng.choice(PATHS)
        kind = rng.choice((Create, Put, Delete))
        if kind is Create:
            return Create(path, b"m", rng.random() < 0.2)
        return Put(path, b"n", version()) if kind is Put else Delete(path, version())

    def call() -> tuple:
        path = rng.choice(PATHS)
        name = rng.choice(NAMES)
        if name == "create":
            return name, path, rng.random() < 0.2, rng.random() < 0.2
        if name in {"put", "delete"}:
            return name, path, version()
        if name == "multi":
            return name, [part() for _ in range(rng.randint(1, 4))]
        return name, path, rng.random() < 0.5

    return [call() for _ in range(STEPS)]


async def outcomes(zk: ZooKeeper, calls: list[tuple]) -> list[object]:
    """What each call returned, and what watches reported before that."""
    told: list[object] = []
    found: list[object] = []
    await zk.watch_tree("/a", lambda path, is_gone: told.append((path, is_gone)), told.append)
    for number, (name, *arguments) in enumerate(calls):

        def changed(number: int = number) -> None:
            told.append(number)

        try:
            result = await make(zk, name, arguments, changed)
        except HeadraceError as error:
            result = (type(error).__name__, error.fields)
        await asyncio.sleep(0)
        # One event may use up several watches: in which order they are called is not promised.
        found.append((number, name, arguments, result, sorted(map(str, told))))
        told.clear()
    return found


async def make(zk: ZooKeeper, name: str, arguments: list, changed) -> object:
    path = arguments[0]
    if name == "create":
        return await zk.create(path, b"c", ephemeral=arguments[1], sequence=arguments[2])
    if name == "put":
        return await zk.put(path, b"p", arguments[1])
    if name == "delete":
        return await zk.delete(path, arguments[1])
    if name == "multi":
        written = await zk.multi(path)
        return [(one.version, one.owner == zk.session_id) for one in written]
    watch = changed if arguments[1] else None
    if name == "get":
        return await zk.get(path, watch)
    if name == "exists":
        return await zk.exists(path, watch)
    if name == "children":
        names = await zk.children(path, watch)
        return names and sorted(names)
    if name == "many":
        states = await zk.get_many(PATHS)
        return [one and (one.value, one.version, one.owner == zk.session_id) for one in states]
    if name == "below":
        return [names and sorted(names) for names in await zk.children_of_many(PATHS)]
    if name == "sequence":
        return await zk.next_sequence(path)
    return await zk.create_container(path)


def simulated(calls: list[tuple]) -> list[object]:
    loop = SimulatedLoop()
    cluster = Cluster("same", loop, 0, 1, Quorum(1, 1, 1))
    host = Host("tester")
    cluster.hosts.append(host)

    async def begin() -> list[object]:
        await asyncio.sleep(0.1)
        zk = await connect(cluster.world, SimulatedClock(loop), 10_000, "tester", ROOT)
        try:
            return await outcomes(zk, calls)
        finally:
            await zk.close()

    async def main() -> list[object]:
        return await host.run(lambda: loop.create_task(begin()))

    cluster.start()
    try:
        return loop.run_until_complete(main())
    finally:
        cluster.network.is_over = True
        loop.bury(cluster.hosts)


async def real(address: str, calls: list[tuple]) -> list[object]:
    options = ZooKeeperOptions(address, 30_000, root=f"{ROOT}-{next(_numbers)}")
    zk = await ZooKeeper.connect(options, SystemClock())
    try:
        return await outcomes(zk, calls)
    finally:
        await zk.close()


@pytest.mark.parametrize("seed", range(4))
def test_simulated_servers_answer_as_real_ones(shared_zookeeper, seed):
    calls = drawn(seed)
    expected = asyncio.run(real(shared_zookeeper.address, calls))
    found = simulated(calls)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs
    assert len({repr(one[3]) for one in found}) > 20, "much of it did something"
