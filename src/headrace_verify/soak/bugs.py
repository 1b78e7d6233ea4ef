"""Self-test: leaks planted in a real broker, each of which the quick soak must find.

Invariants: as in `wire.bugs`: `spoiled.py` patches the process before it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.kafka import connection
from headrace.kafka.handlers import produce
from headrace.log import retention
from headrace.metadata.facts import PARTITIONS
from headrace.runtime.clock import SystemClock
from headrace.runtime.tasks import Tasks
from headrace_verify.self_proof import Bug
from headrace_verify.soak.targets import BROKER, CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.log.partition_log import PartitionLog
    from headrace.storage.ledger import LedgerId
    from headrace_verify.self_proof import Patch

QUICK_S, LEFT_S = 12.0, 100.0
LEAKED_BYTES = 1 << 20
DOUBLING_S, SLOW_S_MAX = 5, 1.5
"""For a growing latency: however slowly the load starts, it is much higher at the end."""


@dataclass(frozen=True)
class Leak(Bug):
    """Found by words of the figure that reveals it."""

    seconds: float = QUICK_S
    target: str = BROKER


def _on_close(patch: Patch, leak: Callable[[Any], None]) -> None:
    lost = connection.KafkaConnection.connection_lost

    def connection_lost(self: connection.KafkaConnection, exc: Exception | None) -> None:
        leak(self)
        lost(self, exc)

    patch(connection.KafkaConnection, "connection_lost", connection_lost)


def keep_memory_for_each_connection(patch: Patch) -> None:
    kept: list[bytes] = []
    _on_close(patch, lambda _one: kept.append(b"x" * LEAKED_BYTES))


def keep_a_descriptor_for_each_connection(patch: Patch) -> None:
    def leak(one: Any) -> None:
        if one.transport is not None:
            with contextlib.suppress(OSError):
                os.dup(one.transport.get_extra_info("socket").fileno())

    _on_close(patch, leak)


def keep_a_task_for_each_connection(patch: Patch) -> None:
    tasks = Tasks()
    _on_close(patch, lambda _one: tasks.spawn(asyncio.sleep(1 << 20), "for ever"))


def keep_a_thread_for_some_connections(patch: Patch) -> None:
    count = 0

    def leak(_one: Any) -> None:
        nonlocal count
        count += 1
        if count % 4 == 0:
            threading.Thread(target=threading.Event().wait, daemon=True).start()

    _on_close(patch, leak)


def take_longer_the_longer_it_runs(patch: Patch) -> None:
    handle = produce.ProduceHandler.handle
    clock = SystemClock()
    begun_ns = 0

    def slower(self: Any, *arguments: Any) -> Any:
        nonlocal begun_ns
        begun_ns = begun_ns or clock.now_ns()
        age_s = (clock.now_ns() - begun_ns) / 1e9
        threading.Event().wait(min(SLOW_S_MAX, 0.004 * 2 ** (age_s / DOUBLING_S)))
        return handle(self, *arguments)

    patch(produce.ProduceHandler, "handle", slower)


def keep_what_retention_lets_go(patch: Patch) -> None:
    patch(retention, "start_after_retention", lambda log, _now_ms: log.log_start_offset)


def let_retention_take_all_that_is_closed(patch: Patch) -> None:
    def start(log: PartitionLog, _now_ms: int) -> int:
        sealed = [one.end_offset for one in log.segments if one.is_sealed]
        return max([log.log_start_offset, *sealed])

    patch(retention, "start_after_retention", start)


def sweep_away_no_ledger(patch: Patch) -> None:
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore

    async def delete(_self: object, _ledger: LedgerId) -> None:
        return

    patch(BookKeeperLedgerStore, "delete", delete)


def sweep_away_no_fact(patch: Patch) -> None:
    from headrace.metadata.zookeeper import ZooKeeperMetadataStore

    delete = ZooKeeperMetadataStore.delete

    async def no_partition(self: ZooKeeperMetadataStore, key: str, version: int) -> None:
        if not key.startswith(PARTITIONS):
            await delete(self, key, version)

    patch(ZooKeeperMetadataStore, "delete", no_partition)


BUGS = (
    Leak(keep_memory_for_each_connection, ("memory, bytes: ",)),
    Leak(keep_a_descriptor_for_each_connection, ("sockets: ",)),
    Leak(keep_a_task_for_each_connection, ("tasks: ",)),
    Leak(keep_a_thread_for_some_connections, ("threads: ",)),
    Leak(take_longer_the_longer_it_runs, ("the probe's produce_p50_ms",), seconds=30),
    Leak(keep_what_retention_lets_go, ("retention keeps",), seconds=25),
    Leak(let_retention_take_all_that_is_closed, ("retention has taken",), seconds=20),
    Leak(
        sweep_away_no_ledger, ("a ledger that no chain names has",), seconds=LEFT_S, target=CLUSTER
    ),
    Leak(
        sweep_away_no_fact, ("a fact of a deleted partition has",), seconds=LEFT_S, target=CLUSTER
    ),
)


def find(bug: Leak, seed: int, on_progress: Callable[[float, str], None]) -> list[str]:
    """What the soak has found of it; empty if nothing."""
    from headrace_verify.soak.run import Plan, run_soak

    outcome = run_soak(Plan(bug.seconds, seed, bug.name, bug.target), on_progress)
    return [one for one in outcome.violations if any(words in one for words in bug.found_by)]
