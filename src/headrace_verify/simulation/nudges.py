"""Nudges: brokers of a simulated run do early, or again, what they may do at any moment.

Invariants: runs on the broker's own host, through its regular functions: nothing happens that the
broker could not do by itself. `fault_points` decides which, and counts.
"""

# ruff: noqa: SLF001 - a nudge triggers from outside what the broker's own timers would

from __future__ import annotations

import asyncio
from types import coroutine
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, StorageUnavailable
from headrace.kafka.apis import APIS
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace_verify.simulation.fault_points import NUDGES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from random import Random  # noqa: TID251 - a type

    from headrace.broker.node import Node
    from headrace.kafka.dispatch import KafkaFace
    from headrace.log.partition_log import PartitionLog
    from headrace_verify.simulation.cluster import Cluster, SimulatedBroker
    from headrace_verify.simulation.fault_points import FaultPoints

EVERY_S = 4.0
"""Mean interval for each broker."""
CANCEL_AWAITS = 6
"""The number of awaits after which a request is cancelled, at most."""
_REQUESTS = {api.name for api in APIS.values()}


class Nudges:
    """The nudges of one run."""

    def __init__(self, cluster: Cluster, rng: Random) -> None:
        self._cluster = cluster
        self._rng = rng

    def start(self) -> None:
        """Start nudging."""
        for broker in self._cluster.brokers:
            self._cluster.call_outside(self._wait, broker)

    def _wait(self, broker: SimulatedBroker) -> None:
        delay_s = self._rng.expovariate(1 / EVERY_S)
        self._cluster.loop.call_later(delay_s, self._nudge, broker)

    def _nudge(self, broker: SimulatedBroker) -> None:
        self._wait(broker)
        point = self._rng.choice(list(NUDGES))
        draw = self._rng.randrange(1_000)
        node, host = broker.node, broker.host
        if node is None or host is None or host.is_paused:
            return
        if self._cluster.loop.fault_points.does(point):
            work = _do(node, point, draw)
            _ = host.run(lambda: self._cluster.loop.create_task(work, name=f"nudge: {point}"))


async def _do(node: Node, point: str, draw: int) -> None:
    """Errors are ignored here: the code that runs without nudges reports them."""
    try:
        await _do_it(node, point, draw)
    except HeadraceError:
        return


async def _do_it(node: Node, point: str, draw: int) -> None:
    if point == "owners compared early":
        node.ownership.topics_changed()
    elif point == "sweep early":
        if node.ledger_garbage is not None:
            await node.ledger_garbage.collect()
    elif point == "producer ids used up":
        node.producer_ids._block = range(0)
    elif point == "coordinator reads its log again":
        for shard in node.groups.shards.opened():
            shard._drop(StorageUnavailable("nudged"))
    elif (log := _log(node, draw)) is not None:
        await _nudge_log(node, log, point)


def _log(node: Node, draw: int) -> PartitionLog | None:
    """One of the logs that the broker serves."""
    logs = [
        log
        for topic in node.topics.by_id.values()
        for number, log in topic.logs
        if node.ownership.is_mine(topic, number) and log.is_loaded
    ]
    return logs[draw % len(logs)] if logs else None


async def _nudge_log(node: Node, log: PartitionLog, point: str) -> None:
    if point == "ledger rolled":
        await log.roll_now()
    elif point == "retention early":
        await node.retention.enforce(log)
    elif point == "index given back":
        for segment in log.closed:
            if segment.is_sealed and segment.is_index_loaded:
                segment.unload_index()
    elif isinstance(node.store, BookKeeperLedgerStore):
        for segment in log.segments:
            node.store._cluster.cache.forget(segment.ledger)


def let_requests_be_cancelled(face: KafkaFace, fault_points: FaultPoints) -> None:
    """Cancel some of this broker's requests at one of their awaits, as at its shutdown."""
    spawn = face._tasks.spawn

    def spawn_and_cancel(work: Coroutine[Any, Any, Any], name: str) -> None:
        point = "request cancelled"
        if name in _REQUESTS and fault_points.does(point):
            work = _run_and_cancel(work, 1 + int(fault_points.strength(point) * CANCEL_AWAITS))
        spawn(work, name)

    tasks: Any = face._tasks
    tasks.spawn = spawn_and_cancel


async def _run_and_cancel(work: Coroutine[Any, Any, Any], awaits: int) -> None:
    await _steps(work, awaits)


@coroutine
def _steps(work: Coroutine[Any, Any, Any], awaits: int) -> Generator[Any, None, None]:
    """Run `work`; at its n-th wait, cancel its task."""
    error: BaseException | None = None
    while True:
        try:
            waited = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return
        awaits -= 1
        if awaits == 0:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        error = None
        try:
            yield waited
        except BaseException as thrown:  # noqa: BLE001 - what it is belongs to the work
            error = thrown
