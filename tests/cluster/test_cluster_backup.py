"""A cluster's metadata comes back from a backup when ZooKeeper has lost everything."""

from __future__ import annotations

import asyncio
import json
import shutil

import pytest
from click.testing import CliRunner
from tests.cluster.brokers import Brokers
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_backup import commit, committed, read_all

from headrace.administration import backup_place, cluster_backup
from headrace.administration.cluster_backup import Node, Roots
from headrace.cli.backup import restore as restore_broker
from headrace.cli.cluster_admin import verify
from headrace.cli.cluster_backup import backup, restore
from headrace.metadata.facts import CLUSTER_ID, ClusterFact
from headrace.metadata.zookeeper_keys import path_of_key
from headrace.runtime.clock import SystemClock
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions

RECORDS = 200
CLUSTER = ClusterFact("a" * 22).encode()
ROOTS = Roots("/headrace", "/ledgers")


def asked(command, *arguments):
    return CliRunner().invoke(command, [*map(str, arguments)])


def emptied(cluster) -> None:
    """ZooKeeper starts with nothing."""
    zookeeper = cluster.zookeeper
    zookeeper.kill()
    shutil.rmtree(cluster.folder / "zookeeper" / "data")
    (cluster.folder / "zookeeper" / "data").mkdir()
    zookeeper.start()
    cluster.wait_ready(zookeeper)


def test_all_records_are_read_after_a_restore_into_an_empty_zookeeper(tmp_path, make_cluster):
    cluster = make_cluster(bookie_count=2, auto_recovery=False)
    where = ("--zookeeper", cluster.zookeeper.address)
    quorum = ("--quorum", "2,2,2")
    brokers = Brokers(tmp_path, cluster.zookeeper.address, 1, *quorum)
    values = [b"before-%d" % number for number in range(RECORDS)]
    try:
        create_topic(brokers.bootstrap, "t")
        Confluent.produce(brokers.bootstrap, "t", [Rec(None, value) for value in values])
        commit(brokers.by_id[1], "t", RECORDS // 2)
        done = asked(backup, tmp_path / "backup", *where, "--json")
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        # to a ledger that the backup knows: recovery finds them
        later = [b"later-%d" % number for number in range(RECORDS)]
        Confluent.produce(brokers.bootstrap, "t", [Rec(None, value) for value in later])
        done = asked(restore, tmp_path / "backup", *where)
        assert (done.exit_code, "is not empty" in done.output) == (1, True), done.output
        brokers.by_id[1].stop()
        for bookie in cluster.bookies:
            bookie.stop()
        emptied(cluster)
        done = asked(restore, tmp_path / "backup", *where, "--json")
        assert done.exit_code == 0, done.output
        assert {**json.loads(done.output), "place": "", "size_bytes": 0} == {
            **told,
            "place": "",
            "size_bytes": 0,
        }
        for bookie in cluster.bookies:
            bookie.start()
            cluster.wait_ready(bookie)
        broker = brokers.add(1)
        assert read_all(broker, "t") == values + later
        assert committed(broker, "t") == RECORDS // 2
        Confluent.produce(brokers.bootstrap, "t", [Rec(None, b"goes on")])
        assert read_all(broker, "t")[-1] == b"goes on"
        done = asked(verify, *where)
        assert done.exit_code == 0, done.output
    finally:
        brokers.close()


def connected(address: str, question):
    async def main():
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        try:
            return await question(zookeeper)
        finally:
            await zookeeper.close()

    return asyncio.run(main())


def test_a_backup_is_written_as_it_was_and_continued_after_an_interruption(
    tmp_path, make_cluster, monkeypatch
) -> None:
    address = make_cluster(bookie_count=0).zookeeper.address
    nodes = [
        Node("facts", "", b""),
        Node("facts", path_of_key(CLUSTER_ID), CLUSTER),
        Node("facts", path_of_key("/topics/ö/x"), bytes(range(256)) * 1_000),
        *(Node("facts", path_of_key(f"/groups/{n}"), b"%d" % n) for n in range(500)),
        Node("ledgers", "", b""),
        Node("ledgers", "/idgen", b"", 777),
        Node("ledgers", "/LAYOUT", b"1\nlayout"),
    ]
    folder = tmp_path / "backup"
    cluster_backup.back_up(nodes, folder, "1", 1)

    with monkeypatch.context() as patched:
        patched.setattr(cluster_backup, "_advance", None)  # ends there
        done = asked(restore, folder, "--zookeeper", address)
        assert done.exit_code != 0
    cluster_backup.back_up(nodes[:-1], tmp_path / "other", "1", 1)
    done = asked(restore, tmp_path / "other", "--zookeeper", address)
    assert (done.exit_code, "not restored completely" in done.output) == (1, True)
    done = asked(restore, folder, "--zookeeper", address)
    assert done.exit_code == 0, done.output

    async def read(zookeeper: ZooKeeper):
        return await cluster_backup.read_nodes(zookeeper, ROOTS)

    found = connected(address, read)
    folders = {"/cluster", "/topics", "/topics/ö", "/groups"}
    assert sorted(node for node in found if node.path not in folders) == sorted(nodes)
    done = asked(restore, folder, "--zookeeper", address)
    assert (done.exit_code, "is not empty" in done.output) == (1, True)


@pytest.mark.parametrize(
    "line",
    [
        b'{"tree": "facts", "path": "/../x", "value": ""}',
        b'{"tree": "facts", "path": "x", "value": ""}',
        b'{"tree": "other", "path": "/x", "value": ""}',
        b'{"tree": "facts", "path": "/x", "value": "?"}',
        b'["facts"]',
        b"{",
    ],
)
def test_a_node_that_cannot_be_is_refused_before_anything_is_written(tmp_path, line) -> None:
    (tmp_path / "nodes.ndjson").write_bytes(line + b"\n")
    backup_place.write_manifest(
        tmp_path,
        backup_place.CLUSTER,
        "1",
        1,
        {"nodes.ndjson": backup_place.digest_of(line + b"\n")},
    )
    done = asked(restore, tmp_path)
    assert (done.exit_code, "cannot be decoded" in done.output) == (1, True), done.output


def test_the_backup_of_a_cluster_is_not_restored_as_that_of_a_broker(tmp_path) -> None:
    nodes = [Node("facts", path_of_key(CLUSTER_ID), CLUSTER)]
    cluster_backup.back_up(nodes, tmp_path / "backup", "1", 1)
    done = asked(restore_broker, tmp_path / "backup", "--data-dir", tmp_path / "data")
    assert (done.exit_code, "headrace cluster restore" in done.output) == (1, True), done.output
