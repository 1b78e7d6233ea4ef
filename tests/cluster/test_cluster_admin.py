"""What an operator is told of a cluster whose brokers do not run: over a real ZooKeeper."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

import pytest
from click.testing import CliRunner

from headrace.cli.cluster_admin import status, verify
from headrace.cli.cluster_options import CREDENTIAL_VARIABLE
from headrace.metadata.facts import (
    OwnerFact,
    PartitionFact,
    PinFact,
    owner_key,
    partition_key,
    pin_key,
)
from headrace.metadata.store import ABSENT
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.zookeeper import ZooKeeper, ZooKeeperOptions
from headrace.server.cluster_admin import open_admin
from headrace.server.settings import ClusterSettings
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings

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


def test_what_waits_for_the_sweep_is_shown_with_what_it_was_for(shared_cluster, config, tmp_path):
    address = shared_cluster.zookeeper.address

    async def make() -> tuple[int, int]:
        async with open_admin(ClusterSettings(address, root=f"/{tmp_path.name}")) as admin:
            cluster = (await admin.picture()).cluster_id
        zookeeper = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        settings = BookKeeperSettings(cluster=cluster)
        store = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
        labels = {"partition": b"orders-3", "epoch": b"4", "cluster": b"not believed"}
        made = await store.create(labels), await store.create({"partition": b"\x1b[2J", "x": b""})
        await store.close()
        metadata = await ZooKeeperMetadataStore.open(zookeeper, f"/{tmp_path.name}")
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

    labelled, hostile = asyncio.run(make())
    found = json.loads(asked(verify, "--config", config, "--json").stdout)
    orphans = {orphan["ledger"]: orphan for orphan in found["orphans"]}
    assert orphans.keys() == {labelled, hostile}
    assert orphans[labelled]["partition"] == "orders-3"
    assert orphans[labelled]["epoch"] == "4"
    assert found["stale"] == [f"{DELETED.hex}-0", f"{DELETED.hex}-2"]
    shown = asked(verify, "--config", config)
    assert "2 ledgers and 2 deleted partitions wait for the sweep" in shown.output
    assert f"ledger {labelled}: of orders-3, epoch 4, made 20" in shown.output
    assert "\x1b" not in shown.output


def test_a_cluster_with_a_credential_is_closed_to_who_does_not_have_it(
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
def test_what_is_no_credential_is_refused_and_not_repeated(config, tmp_path, text):
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
