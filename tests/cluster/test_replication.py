"""Bookies that die under brokers: what is said of it everywhere, and when all is well."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.brokers import Brokers, Load
from tests.cluster.fixtures import cluster as started
from tests.integration.broker import wait_until
from tests.integration.clients import create_topic

from headrace.cli.cluster_admin import status, verify

PARTITIONS = 4


@pytest.fixture
def own_cluster(cluster_parts):
    with started(cluster_parts, bookie_count=4, bookie_session_timeout_ms=2_000) as own:
        yield own


@pytest.fixture
def brokers(own_cluster, tmp_path):
    made = Brokers(tmp_path, own_cluster.zookeeper.address, 1)
    yield made
    made.close()


def metrics(broker) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{broker.http}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if "topic" not in sample.labels
    }


def readiness(broker) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def asked(cluster, command) -> tuple[int, dict]:
    done = CliRunner().invoke(
        command, ["--zookeeper", cluster.zookeeper.address, "--json"], standalone_mode=True
    )
    return done.exit_code, json.loads(done.stdout)


def test_missing_copies_and_lost_bookies_are_told_everywhere(own_cluster, brokers):
    cluster, broker = own_cluster, brokers.by_id[1]
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    load = Load(brokers.bootstrap, "t", PARTITIONS, rate=200)
    try:
        load.wait_acked(20)
        seen = wait_until(lambda: (m := metrics(broker))["headrace_can_write"] and m)
        assert seen["headrace_partitions_offline"] == 0
        assert seen["headrace_partitions_owned"] >= PARTITIONS
        assert seen["headrace_copies_missing"] == 0
        assert seen["headrace_bookiesknown"] == seen["headrace_bookieswritable"] == 4
        assert seen["headrace_zookeeper_sessionconnected"] == 1
        for command in (status, verify):
            code, said = asked(cluster, command)
            assert code == 0, said
            assert not said["under_replicated"]
        assert readiness(broker)[0] == 200

        # Two of four: every entry still has its ack quorum, and one copy less.
        dead = cluster.bookies[:2]
        for bookie in dead:
            bookie.kill()
        load.wait_acked(20)
        wait_until(lambda: metrics(broker)["headrace_copies_missing"])
        seen = wait_until(lambda: (m := metrics(broker))["headrace_bookiesregistered"] == 2 and m)
        assert seen["headrace_bookiesknown"] == 4
        assert seen["headrace_partitions_under_replicated"] >= PARTITIONS
        assert readiness(broker)[0] == 200, "two bookies are an ack quorum"
        for command in (status, verify):
            code, said = asked(cluster, command)
            assert code == 1, said
            assert said["lost_bookies"] == sorted(bookie.address for bookie in dead)
            names = {one["partition"] for one in said["under_replicated"]}
            assert {f"t-{number}" for number in range(PARTITIONS)} <= names

        # Three of four: nothing can be written, and readiness says why.
        cluster.bookies[2].kill()
        code, said = wait_until(lambda: (r := readiness(broker))[0] == 503 and r)
        assert "2 must acknowledge" in said["reason"]
        assert not said["ready"]
        wait_until(lambda: metrics(broker)["headrace_bookiesregistered"] == 1)
        assert asked(cluster, status)[1]["unwritable"]

        for bookie in cluster.bookies[:3]:
            bookie.start()
        for bookie in cluster.bookies[:3]:
            cluster.wait_ready(bookie)
        wait_until(lambda: readiness(broker)[0] == 200)
        load.wait_acked(20)
        wait_until(lambda: metrics(broker)["headrace_bookieswritable"] == 4)
        for command in (status, verify):
            # What a broker reports is as old as its last check.
            wait_until(lambda command=command: asked(cluster, command)[0] == 0)
    finally:
        load.stop()
    assert not load.errors
