"""TLS as a client: what is believed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from tests.cluster.certificates import Authority

from headrace.errors import MetadataUnavailable, RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.runtime.tls import TlsFiles, client_context
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@contextmanager
def server_of(identity) -> Iterator[int]:
    """The port of a server that completes the handshake and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return  # closed
            with (
                accepted,
                suppress(OSError),
                context.wrap_socket(accepted, server_side=True) as one,
            ):
                one.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def test_a_zookeeper_of_another_authority_or_another_name_is_not_believed(authority, tmp_path):
    elsewhere = authority.sign("elsewhere", address="127.0.0.9")
    other = Authority(tmp_path, "others").sign("server")
    context = client_context(TlsFiles(authority.certificate))
    for identity, cause in ((elsewhere, "mismatch"), (other, "verify failed")):
        with server_of(identity) as port:
            options = ZooKeeperOptions(f"127.0.0.1:{port}", connect_timeout_ms=500, tls=context)
            with pytest.raises(MetadataUnavailable, match=cause):
                asyncio.run(ZooKeeper.connect(options, SystemClock()))


def test_files_of_no_use_are_named(authority, tmp_path):
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing\n")
    identity = authority.sign("client")
    for files in (
        TlsFiles(wrong),
        TlsFiles(authority.certificate, wrong),
        TlsFiles(authority.certificate, identity.certificate, wrong),
        TlsFiles(tmp_path / "wrong.absent"),
    ):
        with pytest.raises(RequestInvalid, match="wrong"):
            client_context(files)
