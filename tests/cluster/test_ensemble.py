"""Brokers over an ensemble of three ZooKeepers, and bookies that are lost for good."""

from __future__ import annotations

import asyncio
import re
import shutil
import time

import pytest
from tests.cluster.bookkeeper_rig import opened
from tests.cluster.brokers import Brokers, Load
from tests.integration.clients import create_topic

from headrace.dev_cluster.cluster import DevCluster, OtherEnsemble
from headrace.dev_cluster.settings import ClusterOptions
from headrace.runtime.clock import SystemClock
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions
from headrace.zookeeper.servers import ask_servers

PARTITIONS = 3
RECOVERY_S_MAX = 240
"""AutoRecovery leaves a ledger that is still being written alone for half a minute."""


def start_load(brokers: Brokers) -> Load:
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    load = Load(brokers.bootstrap, "t", PARTITIONS, rate=300)
    load.wait_acked(20)
    return load


def _lose_the_majority(cluster: DevCluster, seconds: float) -> None:
    """For a while only one ZooKeeper runs, which looks for a leader."""
    cluster.zookeepers[0].kill()
    cluster.zookeepers[1].suspend()
    time.sleep(seconds)
    cluster.zookeepers[1].resume()
    cluster.zookeepers[0].start()
    cluster.wait_ready(cluster.zookeepers[0])


def _pauses_between_votes_ms(cluster: DevCluster) -> list[int]:
    """By default they grow to 60 s, and a majority that is back looks for a leader as long."""
    logs = [zookeeper.log.read_text(errors="replace") for zookeeper in cluster.zookeepers]
    return [int(ms) for log in logs for ms in re.findall(r"Notification time out: (\d+) ms", log)]


def test_brokers_go_on_while_one_zookeeper_of_three_is_killed_or_hangs(make_cluster, tmp_path):
    cluster = make_cluster(bookie_count=3, zookeeper_count=3)
    brokers = Brokers(tmp_path, cluster.zookeeper_addresses, 2)
    try:
        load = start_load(brokers)
        for one in cluster.zookeepers:  # the leader is among them
            one.kill()
            load.wait_acked(20)
            one.start()
            cluster.wait_ready(one)
        cluster.zookeepers[0].suspend()
        load.wait_acked(20)
        brokers.by_id[1].kill()  # a takeover needs what two of three remember
        load.wait_acked(20)
        cluster.zookeepers[0].resume()
        _lose_the_majority(cluster, 2.0)
        load.wait_acked(20)
        assert max(_pauses_between_votes_ms(cluster)) == 400
        load.stop()
        load.check(brokers.by_id[2].kafka)
    finally:
        brokers.close()
    cluster.kill()
    with pytest.raises(OtherEnsemble, match="3 ZooKeepers, and 1"):
        DevCluster(cluster.folder, ClusterOptions(bookie_count=3), cluster.parts).start()


async def _write(zookeeper: str, names: range) -> set[str]:
    """Create nodes; returns all names that this server then has."""
    client = await ZooKeeper.connect(ZooKeeperOptions(zookeeper), SystemClock())
    for name in names:
        await client.create(f"/kept/{name}", b"")
    kept = await client.children("/kept")
    await client.close()
    return set(kept or ())


def test_acknowledged_changes_survive_when_a_server_that_missed_them_rejoins_as_leader(
    make_cluster,
):
    """ZooKeeper 3.9.3 had the server that rejoins the new leader drop what the latter had missed
    (ZOOKEEPER-4925)."""
    cluster = make_cluster(bookie_count=0, zookeeper_count=3)
    missing = cluster.zookeepers[-1]  # of two with the same log, the one with the higher id leads
    asyncio.run(_write(cluster.zookeeper_addresses, range(10)))
    missing.kill()
    asyncio.run(_write(cluster.zookeeper_addresses, range(10, 30)))
    leader = cluster.zookeepers[cluster.leading_zookeeper()]
    cluster.restart(missing)
    cluster.restart(leader)
    servers = asyncio.run(ask_servers(cluster.zookeeper_addresses))
    assert [server.mode for server in servers] == ["follower", "follower", "leader"]
    assert {server.warning for server in servers} == {""}
    for number, zookeeper in enumerate(cluster.zookeepers, 31):
        kept = asyncio.run(_write(zookeeper.address, range(number - 1, number)))
        assert kept == {str(name) for name in range(number)}


async def _ledgers_on(zookeeper: str, bookie: str) -> list[int]:
    """The ledgers whose metadata still name the bookie."""
    found = []
    async with opened(zookeeper) as store:
        for record in await store.records():
            metadata = (await store._cluster.service.read(record.ledger)).metadata
            if any(bookie in ensemble.bookies for ensemble in metadata.ensembles):
                found.append(int(record.ledger))
    return found


@pytest.mark.long
def test_auto_recovery_restores_the_readable_copies_of_a_lost_bookie(make_cluster, tmp_path):
    cluster = make_cluster(
        bookie_count=4, auto_recovery=True, bookie_settings={"lostBookieRecoveryDelay": "0"}
    )
    zookeeper = cluster.zookeeper.address
    brokers = Brokers(tmp_path, zookeeper, 2)
    try:
        load = start_load(brokers)
        lost = next(b for b in cluster.bookies if asyncio.run(_ledgers_on(zookeeper, b.address)))
        others = [bookie for bookie in cluster.bookies if bookie is not lost]
        lost.kill()
        shutil.rmtree(lost.log.parent)
        assert asyncio.run(_ledgers_on(zookeeper, lost.address))
        load.wait_acked(20)
        deadline = time.monotonic() + RECOVERY_S_MAX
        while left := asyncio.run(_ledgers_on(zookeeper, lost.address)):
            assert time.monotonic() < deadline, f"ledgers {left} are not copied"
            time.sleep(1)
        load.wait_acked(20)
        load.stop()
        # Each of the three that are left has all of it: any two may be away.
        for away in others[:2]:
            away.suspend()
        load.check(brokers.bootstrap)
    finally:
        brokers.close()
