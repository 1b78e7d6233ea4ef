"""Transactions over brokers without state: decided once, though brokers die before all markers."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.cluster.brokers import Brokers
from tests.integration.clients import TIMEOUT_S, create_topic
from tests.integration.test_transactions import (
    coordinator_of,
    read_all,
    state_of,
    transactional,
)
from tests.waiting import wait_until

PARTITIONS = 6


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    root = ("--zookeeper-root", f"/{tmp_path.name}")
    made = Brokers(tmp_path, shared_cluster.zookeeper.address, 3, *root)
    yield made
    made.close()


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_coordinator_killed_between_prepare_and_complete_ends_the_transaction(brokers, is_commit):
    """An owner hangs, so that its marker cannot be written, and the coordinator is killed then: the
    next coordinator reads the decision from its log, and ends the transaction everywhere."""
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    wait_until(lambda: len(set(brokers.leaders("t").values())) == 3)
    producer = transactional(brokers.by_id[1], "killed", **_options(brokers))
    coordinator, address = coordinator_of(brokers.by_id[1], "killed")
    hanging = next(one for one in brokers.by_id if one != coordinator)
    reader = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g"})
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce("t", b"%d" % partition, partition=partition)
    places = [TopicPartition("t", partition, 10 + partition) for partition in range(PARTITIONS)]
    producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), TIMEOUT_S)
    assert producer.flush(TIMEOUT_S) == 0
    brokers.signal(hanging, signal.SIGSTOP)
    try:
        end = producer.commit_transaction if is_commit else producer.abort_transaction
        with ThreadPoolExecutor() as pool:
            ending = pool.submit(end, 180)
            state = "PrepareCommit" if is_commit else "PrepareAbort"
            wait_until(lambda: state_of(address, "killed") == state)
            brokers.by_id[coordinator].kill()
            brokers.signal(hanging, signal.SIGCONT)
            ending.result()
    finally:
        brokers.signal(hanging, signal.SIGCONT)
    reader.close()
    left = brokers.by_id[hanging]
    expected = [b"%d" % partition for partition in range(PARTITIONS)] if is_commit else []
    wait_until(lambda: read_all(left, "t") == expected, 60)
    reader = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g"})
    committed = [place.offset for place in reader.committed(places, TIMEOUT_S)]
    reader.close()
    assert committed == [place.offset if is_commit else -1001 for place in places]
    new_coordinator, address = coordinator_of(left, "killed")
    assert new_coordinator != coordinator
    assert state_of(address, "killed") == ("CompleteCommit" if is_commit else "CompleteAbort")


def _options(brokers: Brokers) -> dict[str, object]:
    """Options of a client that outlives the broker which it knew first."""
    return {"bootstrap.servers": brokers.bootstrap, "log_level": 0}
