"""What commands report of a cluster whose brokers do not run: over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from click.testing import CliRunner
from tests.kit.records import append, batch

from headrace.administration import cluster as cluster_admin
from headrace.administration.cluster import open_admin
from headrace.administration.cluster_settings import ClusterSettings
from headrace.cli.cluster_admin import drain, move, status, verify
from headrace.cli.cluster_options import CREDENTIAL_VARIABLE
from headrace.cli.cluster_repair import repair
from headrace.log.environment import Environment
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.facts import (
    OwnerFact,
    PartitionFact,
    PinFact,
    TopicFact,
    ensure_cluster_id,
    owner_key,
    partition_key,
    pin_key,
    topic_key,
)
from headrace.metadata.store import ABSENT, ANY
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.tasks import Tasks
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions
from headrace.zookeeper.servers import ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DELETED = UUID(int=77)
"""The id of a topic that is no more."""


@pytest.fixture
def config(shared_cluster, tmp_path, monkeypatch):
    """A file that says where the cluster is, and nothing else does."""
    for name in ("ZOOKEEPER", "ZOOKEEPER_ROOT", "ZOOKEEPER_CREDENTIAL", "CONFIG"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    path = tmp_path / "headrace.toml"
    path.write_text(
        f'[serve]\nkafka = "127.0.0.1:9092"\n[cluster]\nrack = "r"\n'
        f'zookeeper = "{shared_cluster.zookeeper.address}"\nzookeeper-root = "/{tmp_path.name}"\n'
    )
    return path


def asked(command, *arguments):
    return CliRunner().invoke(command, [*map(str, arguments)])


@asynccontextmanager
async def orders(address: str, root: str) -> AsyncIterator[PartitionLog]:
    """The only partition of a topic `orders`, served by no broker."""
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    metadata = await ZooKeeperMetadataStore.open(zookeeper, root)
    cluster = await ensure_cluster_id(metadata, SystemRandomness())
    settings = BookKeeperSettings(cluster=cluster)
    store = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    tasks = Tasks()
    environment = Environment(store, metadata, SystemClock(), tasks, is_shared=True)
    topic = UUID(int=4)
    log = PartitionLog("orders-0", topic, 0, LogConfig(), environment, 0)
    fact = TopicFact("orders", topic, 1, 1, {}, 0, chain_count=1)
    await metadata.put(topic_key("orders"), fact.encode(), ABSENT)
    yield log
    await tasks.close()
    await store.close()
    await metadata.close()
    await zookeeper.close()


def test_orphans_awaiting_deletion_are_listed_with_their_origin(shared_cluster, config, tmp_path):
    address = shared_cluster.zookeeper.address

    async def make() -> tuple[int, int]:
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        metadata = await ZooKeeperMetadataStore.open(zookeeper, f"/{tmp_path.name}")
        settings = BookKeeperSettings(cluster=await ensure_cluster_id(metadata, SystemRandomness()))
        store = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
        labels = {"partition": b"orders-3", "epoch": b"4", "cluster": b"not believed"}
        made = await store.create(labels), await store.create({"partition": b"\x1b[2J", "x": b""})
        await store.close()
        facts = {
            partition_key(DELETED, 0): PartitionFact(),
            owner_key(DELETED, 2): OwnerFact(1, "", 0),
            pin_key(DELETED, 2): PinFact(1),
        }
        for key, fact in facts.items():
            await metadata.put(key, fact.encode(), ABSENT)
        await metadata.close()
        await zookeeper.close()
        return made

    earlier = json.loads(asked(verify, "--config", config, "--json").stdout)["orphans"]
    labelled, hostile = asyncio.run(make())
    found = json.loads(asked(verify, "--config", config, "--json").stdout)
    orphans = {orphan["ledger"]: orphan for orphan in found["orphans"]}
    of_others = {orphan["ledger"] for orphan in earlier}
    """Other tests use the same bookies."""
    assert orphans.keys() - of_others == {labelled, hostile}
    assert orphans[labelled]["partition"] == "orders-3"
    assert orphans[labelled]["epoch"] == "4"
    assert found["stale"] == [f"{DELETED.hex}-0", f"{DELETED.hex}-2"]
    shown = asked(verify, "--config", config)
    assert f"{len(orphans)} ledgers and 2 deleted partitions await deletion" in shown.output
    assert f"ledger {labelled}: of orders-3, epoch 4, created 20" in shown.output
    assert "\x1b" not in shown.output


def test_an_ensemble_that_can_lose_changes_is_a_problem(config, monkeypatch):
    losing = ZooKeeperServer("zk:2181", (3, 9, 3), "leader")

    async def answers(*_: object) -> list[ZooKeeperServer]:
        return [losing, losing._replace(version=(3, 9, 5))]

    monkeypatch.setattr(cluster_admin, "ask_servers", answers)
    found = asked(verify, "--config", config, "--json")
    assert found.exit_code == 1
    assert json.loads(found.stdout)["problems"].count(losing.warning) == 1


def test_unknown_brokers_and_partitions_are_neither_drained_nor_moved(
    shared_cluster, config, tmp_path
):
    address = shared_cluster.zookeeper.address

    async def make() -> None:
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        metadata = await ZooKeeperMetadataStore.open(zookeeper, f"/{tmp_path.name}")
        fact = TopicFact("orders", UUID(int=3), 2, 1, {}, 0)
        await metadata.put(topic_key("orders"), fact.encode(), ABSENT)
        await metadata.close()
        await zookeeper.close()

    asyncio.run(make())
    for command, arguments, why in (
        (drain, ("99",), "no broker with id 99 is running"),
        (drain, ("99", "--undo"), "broker 99 is not draining"),
        (move, ("nothing", "0", "--to", "1"), "topic 'nothing' does not exist"),
        (move, ("nothing", "0", "--unpin"), "topic 'nothing' does not exist"),
        (move, ("orders", "7", "--to", "1"), "has partitions 0 to 1 but not 7"),
        (move, ("orders", "1", "--to", "99"), "no broker with id 99 is running"),
    ):
        refused = asked(command, *arguments, "--config", config)
        assert refused.exit_code != 0
        assert why in refused.output
        assert "ZooKeeper" not in refused.output
    assert json.loads(asked(status, "--config", config, "--json").stdout)["pins"] == {}


def test_a_lost_chain_is_shown_and_rebuilt_from_the_ledgers(shared_cluster, config, tmp_path):
    address, topic = shared_cluster.zookeeper.address, UUID(int=4)
    key = partition_key(topic, 0)

    async def make() -> int:
        async with orders(address, f"/{tmp_path.name}") as log:
            for _ in range(2):
                await append(log, batch(b"value"))
                await log.lifecycle_host.roll_now()
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        metadata = await ZooKeeperMetadataStore.open(zookeeper, f"/{tmp_path.name}")
        await metadata.delete(key, ANY)
        await metadata.close()
        await zookeeper.close()
        return len(log.segments)

    async def chain() -> PartitionFact | None:
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        metadata = await ZooKeeperMetadataStore.open(zookeeper, f"/{tmp_path.name}")
        entry = await metadata.get(key)
        await metadata.close()
        await zookeeper.close()
        return None if entry is None else PartitionFact.decode(entry.value)

    assert asyncio.run(make()) == 3
    shown = asked(verify, "--config", config)
    assert shown.exit_code != 0
    assert "orders-0: its chain of ledgers is missing" in shown.output
    assert json.loads(asked(verify, "--config", config, "--json").stdout)["orphans"] == []
    assert asked(status, "--config", config).exit_code != 0
    plan = asked(repair, "--config", config)
    assert "orders-0: would be rebuilt of" in plan.output
    assert asyncio.run(chain()) is None, "a plan changes nothing"
    done = asked(repair, "--config", config, "--yes")
    assert done.exit_code == 0
    links = asyncio.run(chain()).ledgers
    assert [(link.base_offset, link.end_offset) for link in links] == [(0, 1), (1, 2)]
    assert "nothing to repair" in asked(repair, "--config", config).output


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_ledger_sealed_during_verify_is_no_contradiction(
    shared_cluster, tmp_path, monkeypatch, is_damaged
):
    """What was listed before is older than the chain. What still contradicts at a second look is
    reported."""
    address, root = shared_cluster.zookeeper.address, f"/{tmp_path.name}"

    async def main() -> list[str]:
        records = BookKeeperLedgerStore.records
        async with orders(address, root) as log:
            await append(log, batch(b"value"))

            async def listed(self: BookKeeperLedgerStore) -> object:
                found = await records(self)
                await log.lifecycle_host.roll_now()
                if is_damaged:
                    await self.delete(log.segments[0].ledger)
                return found

            monkeypatch.setattr(BookKeeperLedgerStore, "records", listed)
            async with open_admin(ClusterSettings(address, root=root)) as admin:
                return (await admin.verify()).problems

    told = [text for text in asyncio.run(main()) if text.startswith("orders-0: ")]
    assert len(told) == (1 if is_damaged else 0), told


def test_a_cluster_with_a_credential_is_closed_to_clients_without_it(
    shared_cluster, config, tmp_path, monkeypatch
):
    secret = tmp_path / "credential"
    secret.write_text("headrace:s3cret\n")
    with_file = asked(status, "--config", config, "--zookeeper-credential-file", secret, "--json")
    assert json.loads(with_file.stdout)["brokers"] == []
    without = asked(status, "--config", config)
    assert without.exit_code != 0
    assert "give the right credential" in without.output
    monkeypatch.setenv(CREDENTIAL_VARIABLE, "headrace:s3cret")
    assert asked(status, "--config", config, "--json").exit_code == 0
    monkeypatch.setenv(CREDENTIAL_VARIABLE, "headrace:other")
    assert asked(status, "--config", config).exit_code != 0
    monkeypatch.delenv(CREDENTIAL_VARIABLE)
    config.write_text(config.read_text() + f'zookeeper-credential-file = "{secret}"\n')
    assert asked(status, "--config", config, "--json").exit_code == 0


@pytest.mark.parametrize("text", ["", "s3cret", "a:s3 cret", ":s3cret", "a:"])
def test_malformed_credentials_are_refused_and_not_repeated(config, tmp_path, text):
    secret = tmp_path / "credential"
    secret.write_text(text)
    refused = asked(status, "--config", config, "--zookeeper-credential-file", secret)
    said = f"{refused.output} {refused.exception}"
    assert refused.exit_code != 0
    assert "USER:PASSWORD" in said
    assert "cret" not in said.replace("credential", "")


def test_settings_do_not_print_their_secret():
    assert "s3cret" not in repr(ClusterSettings("a:1", credential="u:s3cret"))
    assert "s3cret" not in repr(ZooKeeperOptions("a:1", credential="u:s3cret"))


async def test_the_next_id_can_be_read_without_taking_it(shared_cluster, tmp_path):
    """ZooKeeper keeps the counter; what it shows of it includes deletions."""

    zookeeper = await ZooKeeper.connect(
        ZooKeeperOptions(shared_cluster.zookeeper.address), SystemClock()
    )
    folder = f"/{tmp_path.name}"
    assert await zookeeper.next_sequence(folder) == 0
    for number in range(6):
        path = await zookeeper.create(f"{folder}/ID-", b"", sequence=True)
        assert int(path[-10:]) == number
        if number % 2:
            await zookeeper.delete(path)
        assert await zookeeper.next_sequence(folder) == number + 1
    await zookeeper.close()
