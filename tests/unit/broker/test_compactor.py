"""Which partitions a round of log compaction takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.clocks import HandClock
from tests.kit.broker import BrokerHarness
from tests.kit.records import append, batch

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000


def partition(node: Node, topic: str) -> PartitionLog:
    return node.topics.by_name[topic].require_log(0)


async def put(node: Node, topic: str, count: int) -> None:
    """So many records of one key, in the open ledger."""
    log = partition(node, topic)
    await log.wait_loaded()
    for number in range(count):
        await append(log, batch(b"%d" % number, key=b"key", timestamp_ms=NOW_MS))


async def test_an_idle_partition_is_compacted_and_clean_ones_are_not_loaded():
    rig = BrokerHarness(clock=HandClock(NOW_MS))
    async with rig.running() as node:
        for topic in ("dirty", "clean", "empty"):
            await node.topics.create(topic, 1, 1, {"cleanup.policy": "compact"})
        await put(node, "clean", 5)
        await partition(node, "clean").lifecycle_host.roll_now()
        await node.compactor.round()
        assert node.compactor.removed_records == 4
        await put(node, "dirty", 5)
        await partition(node, "dirty").lifecycle_host.roll_now()
    async with rig.running() as node:
        await node.compactor.round()
        assert node.compactor.removed_records == 4
        assert partition(node, "dirty").is_loaded
        assert not partition(node, "clean").is_loaded
        assert not partition(node, "empty").is_loaded


async def test_an_idle_open_ledger_is_compacted_when_its_records_are_overdue():
    rig = BrokerHarness(clock=HandClock(NOW_MS))
    configs = {"cleanup.policy": "compact", "max.compaction.lag.ms": "1000"}
    async with rig.running() as node:
        await node.topics.create("bounded", 1, 1, configs)
        await node.topics.create("unbounded", 1, 1, {"cleanup.policy": "compact"})
        await put(node, "bounded", 5)
        await put(node, "unbounded", 5)
    rig.clock.ms += 2000
    async with rig.running() as node:
        await node.compactor.round()
        assert node.compactor.removed_records == 4
        assert not partition(node, "unbounded").is_loaded


async def test_a_partition_is_looked_at_again_when_its_lag_is_bounded_later():
    rig = BrokerHarness(clock=HandClock(NOW_MS))
    async with rig.running() as node:
        await node.topics.create("t", 1, 1, {"cleanup.policy": "compact"})
        await put(node, "t", 5)
    rig.clock.ms += 2000
    async with rig.running() as node:
        await node.compactor.round()
        assert not partition(node, "t").is_loaded
        log = partition(node, "t")
        log.config = replace(log.config, compaction_lag_max_ms=1000)
        await node.compactor.round()
        assert node.compactor.removed_records == 4


async def test_the_dirtiest_partition_is_first():
    rig = BrokerHarness(clock=HandClock(NOW_MS))
    async with rig.running() as node:
        for topic in ("half", "full"):
            await node.topics.create(
                topic, 1, 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            )
        await put(node, "half", 1)
        await partition(node, "half").lifecycle_host.roll_now()
        await node.compactor.round()
        await put(node, "half", 1)
        await partition(node, "half").lifecycle_host.roll_now()
        await put(node, "full", 2)
        await partition(node, "full").lifecycle_host.roll_now()
        assert [log.name for log in node.compactor._due()] == ["full-0", "half-0"]
        await node.compactor.round()
        assert node.compactor._due() == []
