"""TLS within a cluster: a real ZooKeeper's secure port, and real bookies that require TLS."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import NamedTuple

import pytest
from tests.cluster.bookie_tls import tls_of_bookie, with_tls
from tests.cluster.certificates import ROLE, Authority, Identity
from tests.cluster.fixtures import cluster
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic

from headrace.dev_cluster.ports import free_port
from headrace.errors import HeadraceError, MetadataUnavailable
from headrace.runtime.clock import SystemClock
from headrace.runtime.tls import TlsFiles, client_context
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions


class Parties(NamedTuple):
    """The parties that connect to each other."""

    server: Identity
    broker: Identity
    """With the role that bookies serve."""
    stranger: Identity
    """Signed by the same authority, without that role."""
    enemy: Identity
    """Signed by another authority, with that role."""


class Secure(NamedTuple):
    """A ZooKeeper with a secure port, which `address` names, and the parties that connect to it."""

    address: str
    parties: Parties


@pytest.fixture(scope="module")
def parties(tmp_path_factory) -> Parties:
    folder = tmp_path_factory.mktemp("certificates")
    ours, others = Authority(folder, "ours"), Authority(folder, "others")
    return Parties(
        ours.sign("server", role=ROLE),
        ours.sign("broker", role=ROLE),
        ours.sign("stranger"),
        others.sign("enemy", role=ROLE),
    )


def of_zookeeper(server: Identity) -> dict[str, str]:
    """What gives a ZooKeeper a secure port, where clients have to show certificates."""
    both = server.key.with_suffix(".both")
    both.write_text(server.key.read_text() + server.certificate.read_text())
    port = free_port()
    return {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.type": "PEM",
        "ssl.keyStore.location": str(both),
        "ssl.trustStore.type": "PEM",
        "ssl.trustStore.location": str(server.authority),
        "ssl.clientAuth": "need",
        "ssl.clientHostnameVerification": "false",
    }


def of_bookie(server: Identity) -> dict[str, str]:
    """Settings with which a bookie serves only clients whose certificates name a role."""
    return {
        **tls_of_bookie(server),
        "tlsClientAuthentication": "true",
        "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
        "authorizedRoles": ROLE,
    }


@pytest.fixture(scope="module")
def zookeeper(cluster_parts, parties):
    """A ZooKeeper alone."""
    settings = of_zookeeper(parties.server)
    with cluster(cluster_parts, bookie_count=0, zookeeper_settings=settings):
        yield Secure(f"127.0.0.1:{settings['secureClientPort']}", parties)


@pytest.fixture(scope="module")
def secure(cluster_parts, parties):
    """A ZooKeeper and a bookie."""
    settings = of_zookeeper(parties.server)
    with cluster(
        with_tls(cluster_parts),
        bookie_count=1,
        bookie_settings=of_bookie(parties.server),
        zookeeper_settings=settings,
    ):
        yield Secure(f"127.0.0.1:{settings['secureClientPort']}", parties)


# --- ZooKeeper -------------------------------------------------------------------------------


async def connect(address: str, files: TlsFiles | None, timeout_ms: int = 15_000) -> ZooKeeper:
    tls = None if files is None else client_context(files)
    options = ZooKeeperOptions(address, connect_timeout_ms=timeout_ms, tls=tls)
    return await ZooKeeper.connect(options, SystemClock())


async def test_a_session_over_tls_keeps_what_it_is_given(zookeeper):
    client = await connect(zookeeper.address, zookeeper.parties.broker.files)
    try:
        await client.create("/tls", b"value")
        for _ in range(5):
            found = await asyncio.gather(*(client.get("/tls") for _ in range(200)))
            assert {node.value for node in found} == {b"value"}
        large = os.urandom(500_000)  # of many records
        await client.create("/large", large)
        assert (await client.get("/large")).value == large
    finally:
        await client.close()


async def test_zookeeper_is_believed_only_with_a_certificate_of_the_named_authority(zookeeper):
    async def refused(files: TlsFiles | None) -> str:
        with pytest.raises(MetadataUnavailable) as caught:
            await connect(zookeeper.address, files, timeout_ms=2_000)
        return str(caught.value)

    broker, enemy = zookeeper.parties.broker, zookeeper.parties.enemy
    others = TlsFiles(enemy.authority, broker.certificate, broker.key)
    async with asyncio.timeout(60):  # a busy server may not come as far as its certificate
        while "certificate verify failed" not in await refused(others):
            pass
    await asyncio.gather(
        refused(TlsFiles(broker.authority)),  # it shows none
        refused(TlsFiles(broker.authority, enemy.certificate, enemy.key)),
        refused(None),  # in the clear
    )


KILLED = """
import asyncio, sys
from pathlib import Path
from headrace.runtime.clock import SystemClock
from headrace.zookeeper.session_ender_process import SessionEnder
from headrace.runtime.tls import TlsFiles, client_context
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

async def main():
    files = TlsFiles(*map(Path, sys.argv[2:]))
    ender, tls = SessionEnder(files), client_context(files)
    options = ZooKeeperOptions(sys.argv[1], 60_000, tls=tls, on_session=ender.note)
    client = await ZooKeeper.connect(options, SystemClock())
    await client.create("/alive", b"", ephemeral=True)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_session_of_a_killed_process_is_ended_over_tls_too(zookeeper):
    """Long before it would expire."""

    client = await connect(zookeeper.address, zookeeper.parties.broker.files)
    command = [sys.executable, "-c", KILLED, zookeeper.address]
    command += map(str, zookeeper.parties.broker.files)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            assert await client.exists("/alive")
            process.kill()
        async with asyncio.timeout(20):
            while await client.exists("/alive"):
                await asyncio.sleep(0.02)
    finally:
        await client.close()


# --- bookies ---------------------------------------------------------------------------------


async def stored(secure: Secure, files: TlsFiles | None, value: bytes) -> bytes:
    """Write `value` to a ledger, recover it, and read it; with small patience."""
    zookeeper = await connect(secure.address, secure.parties.broker.files)
    settings = BookKeeperSettings(
        quorum=Quorum(1, 1, 1),
        add_timeout_ms=3_000,
        tls=None if files is None else client_context(files),
    )
    writer = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    reader = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    try:
        ledger = await writer.create()
        for at in range(0, len(value), 1 << 16):
            part = value[at : at + (1 << 16)]
            _position, completion = writer.append(ledger, [part], len(part), None)
        await completion.wait()
        info = await reader.recover(ledger)
        found = b""
        while len(found) < info.end:
            found += bytes(await reader.read(ledger, len(found), info.end))
        return found
    finally:
        await writer.close()
        await reader.close()
        await zookeeper.close()


@pytest.mark.long
def test_a_ledger_is_written_recovered_and_read_over_tls(secure):
    value = os.urandom(3 << 20)
    assert asyncio.run(stored(secure, secure.parties.broker.files, value)) == value


@pytest.mark.long
@pytest.mark.parametrize("who", ["nobody", "stranger", "enemy", "unsigned bookie"])
async def test_a_bookie_serves_no_one_without_the_role_and_is_believed_only_if_it_is_signed(
    secure, who
):
    broker, enemy = secure.parties.broker, secure.parties.enemy
    files = {
        "nobody": None,
        "stranger": secure.parties.stranger.files,
        "enemy": TlsFiles(broker.authority, enemy.certificate, enemy.key),
        "unsigned bookie": TlsFiles(enemy.authority, broker.certificate, broker.key),
    }[who]

    with pytest.raises(HeadraceError):
        async with asyncio.timeout(60):
            await stored(secure, files, b"secret")


# --- a whole broker --------------------------------------------------------------------------


@pytest.mark.long
def test_a_broker_serves_over_a_cluster_that_speaks_tls_alone(secure, tmp_path):
    broker_files = secure.parties.broker
    where = [
        *("--zookeeper", secure.address, "--zookeeper-tls"),
        *("--cluster-ca", str(broker_files.authority)),
        *("--cluster-cert", str(broker_files.certificate)),
        *("--cluster-key", str(broker_files.key)),
        *("--bookie-tls", "--quorum", "1,1,1"),
    ]
    broker = Broker(tmp_path, *where)
    broker.start()
    try:
        create_topic(broker.kafka, "t")
        Confluent.produce(broker.kafka, "t", [Rec(None, b"over TLS")])
        assert [record.value for record in Confluent.consume(broker.kafka, "t", 1)] == [b"over TLS"]
        command = [sys.executable, "-m", "headrace.cli.main", "cluster", "status", *where]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        broker.stop()


def test_tls_without_an_authority_to_believe_is_refused(tmp_path):
    command = [sys.executable, "-m", "headrace.cli.main", "cluster", "status", "--zookeeper-tls"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert done.returncode != 0
    assert "--cluster-ca" in done.stderr
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate\n")
    command += ["--cluster-ca", str(wrong)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)
    assert done.returncode != 0
    assert "wrong.pem" in done.stderr
