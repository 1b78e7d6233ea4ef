"""SASL DIGEST-MD5 to a real bookie that requires a login."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

import pytest
from tests.cluster.bookie_tls import tls_of_bookie, with_tls
from tests.cluster.certificates import Authority
from tests.cluster.fixtures import cluster

from headrace.dev_cluster.settings import ServerPlace
from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace.runtime.tls import TlsFiles, client_context
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

if TYPE_CHECKING:
    import ssl

CREDENTIAL = "headrace:canary-7f3a"


class Served(NamedTuple):
    """A ZooKeeper with such a bookie."""

    address: str
    tls: ssl.SSLContext | None
    """For the bookie alone."""


@pytest.fixture(scope="module", params=["plain", "tls"])
def served(request, cluster_parts, tmp_path_factory):
    jaas = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    user, _, password = CREDENTIAL.partition(":")
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Bookie {{ {module} required user_{user}="{password}"; }};\n')
    java = f"JAVA_TOOL_OPTIONS=-Djava.security.auth.login.config={jaas}"
    factory = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
    settings = {
        "bookieAuthProviderFactoryClass": factory,
        "saslJaasClientAllowedIds": "headrace",
    }
    parts, tls = cluster_parts, None
    if request.param == "tls":
        parts = with_tls(parts)
        bookie = Authority(jaas.parent, "ours").sign("bookie")
        settings |= tls_of_bookie(bookie)
        tls = client_context(TlsFiles(bookie.authority))
    with cluster(
        parts,
        bookie_count=1,
        bookie_settings=settings,
        places={"bookie-1": ServerPlace(launch=("env", java))},
    ) as started:
        yield Served(started.zookeeper_addresses, tls)


async def stored(served: Served, credential: str | None, value: bytes) -> bytes:
    """Write `value` to a ledger, recover it, and read it."""
    zookeeper = await ZooKeeper.connect(ZooKeeperOptions(served.address), SystemClock())
    settings = BookKeeperSettings(quorum=Quorum(1, 1, 1), tls=served.tls, credential=credential)
    writer = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    reader = await BookKeeperLedgerStore.open(zookeeper, settings, SystemClock())
    try:
        ledger = await writer.create()
        _position, completion = writer.append(ledger, [value], len(value), None)
        await completion.wait()
        info = await reader.recover(ledger)
        return bytes(await reader.read(ledger, 0, info.end))
    finally:
        await writer.close()
        await reader.close()
        await zookeeper.close()


def test_a_ledger_is_written_recovered_and_read_after_a_login(served):
    assert asyncio.run(stored(served, CREDENTIAL, b"value" * 1000)) == b"value" * 1000


@pytest.mark.parametrize("credential", ["headrace:canary-wrong", "other:canary-7f3a", None])
def test_a_bookie_refuses_others_and_the_log_says_why_without_the_password(
    served, credential, caplog
):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(HeadraceError):
        asyncio.run(stored(served, credential, b"value"))
    if credential is not None:
        user = credential.partition(":")[0]
        assert f"the bookie refused the user '{user}' or the password" in caplog.text
    assert "canary" not in caplog.text
    assert "canary" not in repr(BookKeeperSettings(credential=credential))
