"""Brokers without state over a real BookKeeper: real processes, real clients, real deaths."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cluster.brokers import SESSION_MS, Brokers, Load
from tests.documents.commands import ROOT
from tests.integration.browser import CHROMIUM, accessibility_violations, chromium
from tests.integration.clients import TIMEOUT_S, admin, create_topic
from tests.integration.raw import Raw
from tests.integration.streams import Thread, counting
from tests.integration.test_quotas import quotas, set_quota
from tests.waiting import wait_until

PARTITIONS = 6
FAIL_OVER_S_MAX = 40
"""On a machine that does other things as well; docs/CLUSTER-EVIDENCE.md has what was measured."""


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    # A cluster of its own beside others in the same ZooKeeper.
    root = ("--zookeeper-root", f"/{tmp_path.name}")
    made = Brokers(tmp_path, shared_cluster.zookeeper.address, 3, *root)
    yield made
    made.close()


def start_load(brokers: Brokers, topic: str) -> Load:
    create_topic(brokers.bootstrap, topic, PARTITIONS)
    load = Load(brokers.bootstrap, topic, PARTITIONS)
    load.wait_acked(20)
    return load


def test_three_brokers_are_one_cluster_for_their_clients(brokers):
    from confluent_kafka import Consumer

    load = start_load(brokers, "one")
    client = admin(brokers.by_id[2].kafka)
    wait_until(lambda: set(client.list_topics(timeout=TIMEOUT_S).brokers) == {1, 2, 3})
    wait_until(lambda: sorted(brokers.leaders("one").values()) == [1, 1, 2, 2, 3, 3])
    load.wait_acked(20)
    load.stop()
    total = load.check(brokers.by_id[3].kafka)
    set_quota(brokers.by_id[1].address, "c", "request_percentage", 50)
    for broker in brokers.by_id.values():
        wait_until(lambda at=broker: quotas(at.address) == [("c", {"request_percentage": 50.0})])
    for group in ("a", "b", "c"):  # their coordinators are not all at one broker
        members = [
            Consumer(
                {
                    "bootstrap.servers": brokers.by_id[number].kafka,
                    "group.id": group,
                    "auto.offset.reset": "earliest",
                    "log_level": 0,
                }
            )
            for number in (1, 2)
        ]
        found = []
        for member in members:
            member.subscribe(["one"])
        deadline = time.monotonic() + TIMEOUT_S
        while len(set(found)) < total:
            assert time.monotonic() < deadline, f"{len(found)} of {total} in group {group}"
            for member in members:
                found += [m.value() for m in member.consume(1_000, 0.1) if m.error() is None]
        for member in members:
            member.close()


def test_a_broker_is_killed_under_load_and_nothing_is_lost_doubled_or_out_of_order(brokers):
    load = start_load(brokers, "killed")
    for victim in (2, 1):
        before = time.monotonic()
        brokers.by_id[victim].kill()
        load.wait_acked(20)
        wait_until(lambda v=victim: v not in brokers.leaders("killed").values())
        assert load.gap_s(before) < FAIL_OVER_S_MAX
        brokers.add(victim)
        wait_until(lambda v=victim: v in brokers.leaders("killed").values())
    load.wait_acked(20)
    load.stop()
    assert load.check(brokers.bootstrap) > 0


def test_clients_of_a_killed_broker_need_not_wait_for_the_end_of_its_session(
    tmp_path, shared_cluster
):
    options = ("--zookeeper-root", f"/{tmp_path.name}", "--session-timeout-ms", "10000")
    brokers = Brokers(tmp_path, shared_cluster.zookeeper.address, 3, *options)
    try:
        load = start_load(brokers, "long-session")
        for victim in (1, 2, 3):
            wait_until(lambda v=victim: v in brokers.leaders("long-session").values())
            load.wait_acked(20)
            before = time.monotonic()
            brokers.by_id[victim].kill()
            load.wait_acked(20)
            assert load.gap_s(before) < 7
            brokers.add(victim)
        load.stop()
        assert load.check(brokers.bootstrap) > 0
    finally:
        brokers.close()


def test_a_broker_that_is_stopped_hands_over_and_no_client_sees_an_error(brokers):
    load = start_load(brokers, "stopped")
    before = time.monotonic()
    brokers.by_id[1].stop()
    load.wait_acked(20)
    wait_until(lambda: set(brokers.leaders("stopped").values()) == {2, 3})
    gap_s = load.gap_s(before)
    load.stop()
    load.check(brokers.bootstrap)
    assert gap_s < FAIL_OVER_S_MAX


def test_a_broker_that_hangs_longer_than_its_session_acknowledges_nothing_when_it_wakes(brokers):
    load = start_load(brokers, "hung")
    brokers.signal(3, signal.SIGSTOP)
    time.sleep(SESSION_MS / 1000 * 2)
    wait_until(lambda: 3 not in _leaders_by(brokers, 1, "hung"))
    brokers.signal(3, signal.SIGCONT)
    load.wait_acked(20)
    wait_until(lambda: 3 in _leaders_by(brokers, 1, "hung"))
    load.wait_acked(20)
    load.stop()
    load.check(brokers.bootstrap)


def _leaders_by(brokers: Brokers, broker_id: int, topic: str) -> set[int]:
    client = admin(brokers.by_id[broker_id].kafka)
    found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return {partition.leader for partition in found.values()}


def test_a_group_goes_on_where_it_committed_when_its_coordinator_dies(brokers):
    from confluent_kafka import Consumer, TopicPartition

    load = start_load(brokers, "grouped")
    load.wait_acked(50)
    load.stop()
    settings = {
        "bootstrap.servers": brokers.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "log_level": 0,
    }
    places = [TopicPartition("grouped", number, 10 + number) for number in range(PARTITIONS)]
    client = Consumer(settings)
    client.commit(offsets=places, asynchronous=False)
    client.close()
    for victim in (1, 2, 3):
        brokers.by_id[victim].kill()
        settings["bootstrap.servers"] = brokers.bootstrap
        client = Consumer(settings)
        found = wait_until(lambda c=client: _committed(c, places), 180)
        assert found == [10 + number for number in range(PARTITIONS)]
        client.close()
        brokers.add(victim)
    load.check(brokers.bootstrap)


def test_a_streams_group_keeps_its_tasks_when_its_coordinator_dies(brokers):
    """The next coordinator reads the group back; internal topics are created by whichever it is."""
    create_topic(brokers.bootstrap, "lines", 4)
    topology = counting("lines", "app")

    def coordinator() -> int:
        with Raw(next(iter(brokers.by_id.values())).address) as raw:
            found = raw.call(10, 4, key_type=0, coordinator_keys=("app",))
        return int(found.coordinators[0].node_id)

    first = wait_until(lambda: max(0, coordinator()))
    thread = Thread(brokers.by_id[first].address, "app", topology)
    wait_until(lambda: thread.beat().error_code == 0 and thread.has_all(), 60)
    epoch, tasks = thread.epoch, set(thread.tasks)
    brokers.by_id[first].kill()
    del brokers.by_id[first]
    second = wait_until(lambda: coordinator() if coordinator() not in (-1, first) else 0, 120)
    thread.address = brokers.by_id[second].address
    wait_until(lambda: thread.beat().error_code == 0, 60)
    assert (thread.epoch, thread.tasks, thread.statuses) == (epoch, tasks, {})


@contextlib.contextmanager
def console_of(broker):
    """The console's page of the cluster in a browser; None without a browser."""
    if CHROMIUM is None:
        yield None
        return
    with chromium(f"http://{broker.http}") as started, started.page("cluster") as page:
        yield page


def test_an_operator_sees_the_cluster_drains_a_broker_and_pins_a_partition(
    brokers, shared_cluster, tmp_path
):
    pages = "".join(
        (ROOT / "docs" / f"{one}.md").read_text() for one in ("CLUSTER", "ADMINISTRATION")
    )
    env = os.environ | {
        "HEADRACE_ZOOKEEPER": shared_cluster.zookeeper.address,
        "HEADRACE_ZOOKEEPER_ROOT": f"/{tmp_path.name}",
        "HEADRACE_BOOTSTRAP": brokers.by_id[1].kafka,
    }

    def headrace(typed: str, *more: str, **values: str) -> subprocess.CompletedProcess[str]:
        """A command of the pages, with values for its capital letters."""
        assert f"`{typed}`" in pages, typed
        _program, *words = typed.split()
        command = [sys.executable, "-m", "headrace", *(values.get(one, one) for one in words)]
        return subprocess.run(
            [*command, *more], env=env, capture_output=True, text=True, timeout=240
        )

    def moves(partition: str, broker: str) -> subprocess.CompletedProcess[str]:
        values = {"TOPIC": "moved", "PARTITION": partition, "ID": broker}
        return headrace("headrace cluster move TOPIC PARTITION --to ID", **values)

    load = start_load(brokers, "moved")

    def status() -> tuple:
        seen = json.loads(headrace("headrace cluster status", "--json").stdout)
        served = sum(broker["partitions"] for broker in seen["brokers"])
        names = [broker["broker"] for broker in seen["brokers"]]
        return names, served, len(seen["bookies"]), seen["unserved"]

    wait_until(lambda: status() == (["1", "2", "3"], PARTITIONS, 4, []))
    with console_of(brokers.by_id[1]) as page:
        drained = headrace("headrace cluster drain ID", ID="2")
        assert drained.returncode == 0, drained.stderr
        wait_until(lambda: set(brokers.leaders("moved").values()) == {1, 3})
        if page is not None:  # it follows the drain by itself
            page.wait_for_selector("text=is drained: it may be stopped")
            page.wait_for_selector("text=All partitions are where they belong.")
            handed_over = page.locator("progress[aria-label='Partitions handed over']")
            assert handed_over.get_attribute("value") == handed_over.get_attribute("max")
            assert accessibility_violations(page) == []
    shown = json.loads(headrace("headrace cluster brokers", "--json").stdout)["brokers"]
    assert [broker["id"] for broker in shown if broker["is_draining"]] == [2]
    assert "draining" in headrace("headrace cluster brokers").stdout
    wait_until(lambda: json.loads(headrace("headrace cluster moves", "--json").stdout) == [])
    assert "ledgers" in json.loads(headrace("headrace cluster lacking", "--json").stdout)
    moved = moves("0", "3")
    assert moved.returncode == 0, moved.stderr
    wait_until(lambda: brokers.leaders("moved")[0] == 3)
    assert moves("9", "3").returncode != 0
    assert moves("0", "8").returncode != 0
    assert headrace("headrace cluster drain ID", "--undo", ID="2").returncode == 0
    wait_until(lambda: 2 in brokers.leaders("moved").values())
    load.wait_acked(20)
    load.stop()
    load.check(brokers.bootstrap)

    def verified() -> str:
        done = headrace("headrace cluster verify", "--json")
        return done.stdout if done.returncode == 0 else ""

    found = json.loads(wait_until(verified))  # a partition may be on its way still
    assert found["problems"] == []
    assert found["partitions"] >= PARTITIONS  # and those of the groups
    assert headrace("headrace cluster repair").returncode == 0  # nothing to do
    unpinned = headrace(
        "headrace cluster move TOPIC PARTITION --unpin", TOPIC="moved", PARTITION="0"
    )
    assert unpinned.returncode == 0, unpinned.stderr
    brokers.close()
    # Nobody serves anything, as soon as the sessions of the dead are over.
    wait_until(lambda: headrace("headrace cluster status").returncode != 0)


def test_kafkas_admin_client_reassigns_a_partition_under_load(brokers):
    from kafka import KafkaAdminClient, TopicPartition

    load = start_load(brokers, "reassigned")
    client = KafkaAdminClient(bootstrap_servers=brokers.bootstrap)
    place = TopicPartition("reassigned", 0)
    try:
        for target in (3, 1, 2):
            assert client.alter_partition_reassignments({place: [target]}) == {place: None}
            wait_until(lambda wanted=target: brokers.leaders("reassigned")[0] == wanted, 60)
            wait_until(lambda: client.list_partition_reassignments() == {}, 60)
            load.wait_acked(20)
    finally:
        client.close()
    load.stop()
    load.check(brokers.bootstrap)


def _committed(client, places) -> list[int]:
    from confluent_kafka import KafkaException

    try:
        return [place.offset for place in client.committed(places, timeout=60)]
    except KafkaException:
        return []


def test_zookeeper_and_bookies_hang_and_die_beneath_the_brokers(make_cluster, tmp_path):
    cluster = make_cluster(bookie_count=4)
    made = Brokers(tmp_path, cluster.zookeeper.address, 2)
    try:
        load = start_load(made, "shaken")
        # Away for less than a session: what is owned is served. On a machine that is busy the
        # session may be over before that was seen: then once more.
        for _ in range(10):
            cluster.zookeeper.suspend()
            time.sleep(SESSION_MS / 1000 / 3)
            is_served = load.is_served(SESSION_MS / 1000 / 3, 5)
            cluster.zookeeper.resume()
            load.wait_acked(20)
            if is_served:
                break
        assert is_served, "what is owned is served while ZooKeeper is away for a moment"
        # Away for longer: nobody serves anything, until it is back. A broker that is told to stop
        # meanwhile does so, without a fault; `test_stops.py` says how soon.
        cluster.zookeeper.suspend()
        time.sleep(SESSION_MS / 1000 * 2)
        made.by_id[2].stop()
        assert "cannot stop a part of the broker cleanly" not in made.by_id[2].log()
        cluster.zookeeper.resume()
        load.wait_acked(20)
        made.add(2)
        load.wait_acked(20)
        # One bookie of four dies, another hangs: two of three copies are enough.
        cluster.bookies[0].kill()
        load.wait_acked(20)
        cluster.bookies[1].suspend()
        load.wait_acked(20)
        cluster.bookies[1].resume()
        cluster.restart(cluster.bookies[0])
        made.by_id[1].kill()
        load.wait_acked(20)
        load.stop()
        load.check(made.bootstrap)
    finally:
        made.close()
