"""`headrace cert` and `headrace init`: a CA whose key is kept signs for others, and none else."""

from __future__ import annotations

import os
import ssl
import tomllib
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization

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


def said(path: Path) -> list[object]:
    """All that a certificate says, but when and about which key."""
    found = certificate(path)
    return [
        *(found.subject, found.issuer),
        *[one.value for one in found.extensions],
        b"PRIVATE KEY" in path.read_bytes(),
    ]


def owned(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid, found.st_mode


@pytest.mark.parametrize("name", ["broker", "client"])
def test_a_renewed_certificate_is_what_it_was_and_whose_it_was(tmp_path, name) -> None:
    run("cert", "dev", str(tmp_path), "--host", "10.0.0.5", "--client", "CN is another")
    files = [one for one in tmp_path.iterdir() if one.stem == name]
    for file in files:
        file.chmod(0o640)
        if os.getuid() == 0:
            os.chown(file, 4_321, 1_234)
        (tmp_path / f".{file.name}.new").write_text("of a command that was killed")
    pem = tmp_path / f"{name}.pem"
    before = said(pem), certificate(pem), [owned(one) for one in files]
    run("cert", "issue", str(tmp_path), name, "--replace")
    assert (said(pem), [owned(one) for one in files]) == (before[0], before[2])
    assert certificate(pem).public_key() != before[1].public_key()
    (key,) = [one for one in files if b"PRIVATE KEY" in one.read_bytes()]
    ssl.create_default_context().load_cert_chain(pem, key)
    assert not [*tmp_path.glob(".*")]
    if name == "broker":
        run("cert", "issue", str(tmp_path), name, "--replace", "--host", "10.0.0.6")
        names = certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        addresses = map(str, names.value.get_values_for_type(x509.IPAddress))
        assert {"127.0.0.1", "10.0.0.5", "10.0.0.6"} <= {*addresses}
        assert "localhost" in names.value.get_values_for_type(x509.DNSName)
    else:
        refused = run("cert", "issue", str(tmp_path), name, "--replace", "--host", "h", code=2)
        assert "it is a client's" in refused


@pytest.mark.parametrize("at", [0, 1])
def test_a_pair_is_replaced_once_both_are_written(tmp_path, monkeypatch, at) -> None:
    """A full disk at either file."""
    run("cert", "dev", str(tmp_path))
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    left = [None] * at

    def fchown(*_: object) -> None:
        if not left:
            raise OSError(28, "No space left on device")
        left.pop()

    monkeypatch.setattr(os, "fchown", fchown)
    assert "No space left" in run("cert", "issue", str(tmp_path), "client", "--replace", code=1)
    kept = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert {name: kept[name] for name in before} == before
    monkeypatch.undo()
    run("cert", "issue", str(tmp_path), "client", "--replace")
    ssl.create_default_context().load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(before)


def test_what_no_command_made_is_not_replaced(tmp_path) -> None:
    run("cert", "dev", str(tmp_path))
    other = tmp_path / "other.pem"
    for name in ("ca.pem", "ca.key"):
        other.write_bytes((tmp_path / name).read_bytes())
        assert "cannot be renewed" in run(
            "cert", "issue", str(tmp_path), "other", "--replace", code=2
        )
    other.unlink()
    run("cert", "issue", str(tmp_path), "other", "--out", str(tmp_path / "away"))
    other.symlink_to(tmp_path / "away" / "other.pem")
    refused = run("cert", "issue", str(tmp_path), "other", "--replace", code=1)
    assert "other.pem is no ordinary file" in refused
    assert other.is_symlink()


def test_only_what_the_same_ca_issued_for_the_same_is_renewed(tmp_path) -> None:
    """Who owns a file may write any certificate into it, and the next renewal would sign that."""
    ours, other = tmp_path / "ours", tmp_path / "other"
    for folder in (ours, other):
        run("cert", "dev", str(folder))
        for name in ("alice", "admin"):
            issued = run("cert", "issue", str(folder), name)
            assert f"certified: CN={name}" in issued
    again = "cert", "issue", str(ours), "alice", "--replace"
    for name in ("alice.pem", "alice.key"):
        (ours / name).write_bytes((other / name.replace("alice", "admin")).read_bytes())
    assert "this CA did not issue it" in run(*again, code=2)
    (ours / "alice.pem").write_bytes((ours / "admin.pem").read_bytes())
    assert "it is for CN=admin, whose key is another" in run(*again, code=2)
    (ours / "alice.key").unlink()
    assert "it is for CN=admin, whose key is not there" in run(*again, code=2)
    broker = certificate(ours / "broker.pem").public_bytes(serialization.Encoding.PEM)
    for key in (b"", (other / "alice.key").read_bytes()):
        (ours / "alice.pem").write_bytes(key + broker)
        assert "it is for CN=broker, whose key is" in run(*again, code=2)
    assert (ours / "alice.pem").read_bytes().endswith(broker)
    (ours / "alice.pem").unlink()
    run(*again)
    assert certificate(ours / "alice.pem").subject.rfc4514_string() == "CN=alice"


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
    for name in ("ca", "CA", "../alice", ".alice", "a/b", ""):
        assert "cannot be the name of a file" in run("cert", "issue", str(one), name, code=2)
    late = run("cert", "issue", str(one), "alice", "--days", "3650", code=2)
    assert "the CA is valid for another 3649 days only" in late
    (one / "ca.key").write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    assert "the key of the CA is another" in run("cert", "issue", str(one), "alice", code=2)
    (one / "ca.key").write_bytes(b"nothing")
    assert "no certificate can be made" in run("cert", "issue", str(one), "alice", code=2)
    assert not (one / "alice.pem").exists()


@pytest.mark.parametrize("kind", [(), ("--secure",)])
def test_a_new_brokers_data_is_where_it_is_asked_for(tmp_path, kind) -> None:
    made, data = tmp_path / "made", tmp_path / "lib" / "data"
    if kind:
        data.mkdir(parents=True)  # as systemd makes it
    run("init", *kind, str(made), "--data-dir", str(data))
    assert tomllib.loads((made / "headrace.toml").read_text())["serve"]["data-dir"] == str(data)
    assert "data" not in [one.name for one in made.iterdir()]
    if kind:
        assert "admin" in run("user", "list", "--data-dir", str(data))
        other = str(tmp_path / "other")
        refused = run("init", *kind, other, "--data-dir", str(data), code=2)
        assert f"{data} is not empty; nothing was written" in refused
        assert not (tmp_path / "other").exists()
