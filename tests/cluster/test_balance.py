"""Moves by load among real brokers: a real load, counted record by record."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from tests.cluster.brokers import Brokers, Load
from tests.integration.clients import TIMEOUT_S, admin, create_topic
from tests.waiting import wait_until

INTERVAL_MS = 300


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    made = Brokers(
        tmp_path,
        shared_cluster.zookeeper.address,
        2,
        *("--zookeeper-root", f"/{tmp_path.name}", "--balance-cpu-percent", "0"),
        *("--balance-interval-ms", str(INTERVAL_MS)),
    )
    yield made
    made.close()


def status(brokers: Brokers, root: str) -> dict:
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", "status", "--json"]
    where = ["--zookeeper", brokers._zookeeper, "--zookeeper-root", root]
    done = subprocess.run([*command, *where], capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.long
def test_partitions_that_share_a_broker_by_chance_are_parted_and_no_record_is_lost(
    brokers, tmp_path
):
    client = admin(brokers.bootstrap)
    create_topic(brokers.bootstrap, "quiet", 6)
    # Placement spreads each topic by itself: of several with one partition, two meet somewhere.
    names = [f"hot-{number}" for number in range(3)]
    for name in names:
        create_topic(brokers.bootstrap, name, 1)
    where = {name: brokers.leaders(name)[0] for name in names}
    shared = next(broker for broker in where.values() if [*where.values()].count(broker) > 1)
    hot = [name for name in names if where[name] == shared][:2]
    loads = [Load(brokers.bootstrap, name, 1, rate=400) for name in hot]
    try:
        wait_until(lambda: len({brokers.leaders(name)[0] for name in hot}) == 2, 100)
        parted = {name: brokers.leaders(name)[0] for name in hot}
        time.sleep(INTERVAL_MS / 1000 * 12)  # more than patience: what is even stays
        assert {name: brokers.leaders(name)[0] for name in hot} == parted
        told = status(brokers, f"/{tmp_path.name}")
        assert len(told["moved_by_load"]) == 1
        ((name, broker),) = told["moved_by_load"].items()
        assert parted[name.removesuffix("-0")] == broker
        busy = [row for row in told["brokers"] if row["broker"] in parted.values()]
        assert all(row["in_per_s"] > 0 and row["cpu"] >= 0 for row in busy)
    finally:
        for load in loads:
            load.stop()
    for load in loads:
        load.check(brokers.bootstrap)
    assert client.list_topics(timeout=TIMEOUT_S).topics.keys() >= set(names)
