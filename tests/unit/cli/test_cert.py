"""`headrace cert` and `headrace init`: a CA whose key is kept signs for others, and none else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from cryptography import x509

from headrace.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path


def run(*words: str, code: int = 0) -> str:
    ran = CliRunner().invoke(cli, list(words))
    assert ran.exit_code == code, ran.output
    return ran.output


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_kept_ca_signs_for_further_brokers_and_clients(tmp_path) -> None:
    run("init", "--secure", str(tmp_path / "made"))
    made = tmp_path / "made"
    assert (made / "ca.key").stat().st_mode & 0o777 == 0o600
    ca = certificate(made / "ca.pem")
    run("cert", "issue", str(made), "broker-2", "--host", "10.0.0.6", "--out", str(tmp_path / "b"))
    broker = certificate(tmp_path / "b" / "broker-2.pem")
    broker.verify_directly_issued_by(ca)
    names = broker.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.6"]
    assert (tmp_path / "b" / "broker-2.pem").stat().st_mode & 0o777 == 0o600
    run("cert", "issue", str(made), "alice")
    alice = certificate(made / "alice.pem")
    alice.verify_directly_issued_by(ca)
    assert alice.subject.rfc4514_string() == "CN=alice"
    assert (made / "alice.key").stat().st_mode & 0o777 == 0o600


def test_a_certificate_is_renewed_only_if_that_is_asked_for(tmp_path) -> None:
    run("cert", "dev", str(tmp_path))
    again = "cert", "issue", str(tmp_path), "broker", "--host", "localhost"
    before = certificate(tmp_path / "broker.pem")
    assert "exists; nothing was written" in run(*again, code=2)
    assert certificate(tmp_path / "broker.pem") == before
    run(*again, "--replace")
    assert certificate(tmp_path / "broker.pem") != before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("broker.pem", "ca.key", "ca.pem", "client.key", "client.pem")
    ]


@pytest.mark.parametrize("command", [("init", "--secure"), ("cert", "dev")])
def test_a_key_that_is_not_kept_is_in_no_file(tmp_path, command) -> None:
    made = tmp_path / "made"
    run(*command, str(made), "--discard-ca-key")
    assert not (made / "ca.key").exists()
    texts = [path.read_bytes() for path in made.rglob("*") if path.is_file()]
    keys = [text for text in texts if b"PRIVATE KEY" in text]
    assert len(keys) == (2 if command == ("cert", "dev") else 1), "the broker's, and the client's"
    refused = run("cert", "issue", str(made), "alice", code=1)
    assert "ca.key cannot be read" in refused
    assert not (made / "alice.pem").exists()


def test_what_cannot_be_signed_is_refused_and_nothing_is_written(tmp_path) -> None:
    run("cert", "dev", str(tmp_path / "one"))
    run("cert", "dev", str(tmp_path / "two"))
    one = tmp_path / "one"
    for name in ("ca", "../alice", ".alice", "a/b", ""):
        assert "cannot be the name of a file" in run("cert", "issue", str(one), name, code=2)
    late = run("cert", "issue", str(one), "alice", "--days", "3650", code=2)
    assert "the CA is valid for another 3649 days only" in late
    (one / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    assert "not that of the CA's certificate" in run("cert", "issue", str(one), "alice", code=2)
    (one / "ca.key").write_bytes(b"nothing")
    assert "no certificate can be made" in run("cert", "issue", str(one), "alice", code=2)
    assert not (one / "alice.pem").exists()
