"""TLS as a client: what is believed, and that no answer is overlooked."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest
from tests.cluster.certificates import Authority

from headrace.errors import RequestInvalid
from headrace.runtime.tls import TlsFiles, client_context
from headrace.runtime.zookeeper_wire import _Handler


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


def server_at(identity, say: bytes) -> tuple[int, threading.Thread]:
    """A server that says something to one client, in one record of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve() -> None:
        with listener:
            accepted, _ = listener.accept()
            try:
                with context.wrap_socket(accepted, server_side=True) as secured:
                    secured.sendall(say)
                    secured.recv(1)
            except OSError:
                accepted.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return port, thread


def connected(handler, port: int) -> ssl.SSLSocket:
    return handler.create_connection(("127.0.0.1", port), hostname="127.0.0.1", timeout=30)


def test_of_two_answers_in_one_record_the_second_is_waiting_too(authority):
    identity = authority.sign("server")
    port, thread = server_at(identity, b"onetwo")
    handler = _Handler(client_context(identity.files))
    made = connected(handler, port)
    try:
        assert handler.select([made], [], [], 30)[0] == [made]
        assert made.recv(3) == b"one"
        assert handler.select([made], [], [], 0.1)[0] == [made], "nothing comes from the network"
        assert made.recv(3) == b"two"
        assert handler.select([made], [], [], 0.01)[0] == []
    finally:
        made.close()
    thread.join(30)


def test_a_server_of_another_authority_or_another_name_is_not_believed(authority, tmp_path):
    elsewhere = authority.sign("elsewhere", address="127.0.0.9")
    other = Authority(tmp_path, "others").sign("server")
    for identity in (elsewhere, other):
        port, thread = server_at(identity, b"")
        with pytest.raises(ssl.SSLCertVerificationError):
            connected(_Handler(client_context(TlsFiles(authority.certificate))), port)
        thread.join(30)


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
