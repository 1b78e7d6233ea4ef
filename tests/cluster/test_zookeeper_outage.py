"""ZooKeeper away for longer than any session lasts, under brokers, bookies and AutoRecovery."""

from __future__ import annotations

import threading
import time

import pytest
from tests.cluster.brokers import SESSION_MS, Brokers, Load
from tests.cluster.fixtures import SESSION_MS as BOOKIE_SESSION_MS
from tests.cluster.fixtures import cluster as started
from tests.integration.clients import create_topic
from tests.waiting import wait_until

AWAY_S = 2 * max(SESSION_MS, BOOKIE_SESSION_MS) / 1000
PARTITIONS = 4


class Systemd:
    """What `Restart=always` does: `headrace cluster dev` and the units in deploy/ have it."""

    def __init__(self, cluster) -> None:
        self.revived: list[str] = []
        self._cluster = cluster
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(1.0):
            away = self._cluster.zookeeper
            if away.is_alive:
                self.revived += [server.name for server in self._cluster.revive()]

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.mark.parametrize("is_killed", [False, True], ids=["silent", "restarted"])
def test_bookies_and_brokers_outlive_a_zookeeper_that_is_away(cluster_parts, tmp_path, is_killed):
    with started(cluster_parts, bookie_count=3, auto_recovery=True) as cluster:
        brokers = Brokers(tmp_path, cluster.zookeeper.address, 2)
        systemd = Systemd(cluster)
        try:
            create_topic(brokers.bootstrap, "t", PARTITIONS)
            load = Load(brokers.bootstrap, "t", PARTITIONS, rate=200)
            load.wait_acked(20)
            lives = {bookie.address: bookie.pid for bookie in cluster.bookies}
            zookeeper = cluster.zookeeper
            zookeeper.kill() if is_killed else zookeeper.suspend()
            time.sleep(AWAY_S)  # the fault itself, not a wait for something
            zookeeper.start() if is_killed else zookeeper.resume()
            cluster.wait_ready(zookeeper)
            everyone = sorted(bookie.address for bookie in cluster.bookies)
            wait_until(lambda: cluster.available_bookies() == everyone)
            load.wait_acked(20)
            load.stop()
            assert not load.errors
            assert load.check(brokers.bootstrap)
            assert {b.address: b.pid for b in cluster.bookies} == lives, systemd.revived
            wait_until(lambda: cluster.auto_recovery.is_alive)
        finally:
            systemd.stop()
            brokers.close()
