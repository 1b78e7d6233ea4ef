"""Contexts: how to reach a cluster, and whose credentials go where."""

from __future__ import annotations

import importlib
import json
import stat
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from headrace.cli.contexts import Context, Contexts
from headrace.cli.failures import NOT_FOUND, CommandFailed
from headrace.cli.main import cli
from headrace.cli.session import CliSession


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HEADRACE_CONTEXT", "HEADRACE_BOOTSTRAP", "HEADRACE_PASSWORD", "HEADRACE_HTTP"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["context", *arguments])
    assert done.exit_code == code, done.output
    return done.output


def test_contexts_are_added_used_listed_and_removed(home):
    ca = home / "ca.pem"
    ca.write_text("x")
    run("add", "dev", "--bootstrap", "127.0.0.1:1")
    run("add", "prod", "--bootstrap", "kafka.example:9093", "--ca", str(ca), "--user", "alice")
    path = home / "config" / "headrace" / "contexts.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert Contexts().current == "dev"
    run("use", "prod")
    listed = run("list")
    assert "kafka.example:9093" in listed
    assert "alice" in listed
    run("remove", "prod")
    assert Contexts().current is None
    assert set(Contexts().by_name) == {"dev"}
    assert "no context 'prod'" in run("use", "prod", code=NOT_FOUND)


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "../x", "--bootstrap", "h:1"],
        ["add", "x", "--bootstrap", "h:1", "--mechanism", "PLAIN"],
        ["add", "x"],
        ["add", "x", "--bootstrap", "h:1", "--password", "canary"],
    ],
)
def test_contexts_that_cannot_be_are_refused(home, arguments):
    run(*arguments, code=2)
    assert not (home / "config").exists()


def test_the_current_context_is_used_and_not_for_other_brokers(home, monkeypatch):
    monkeypatch.setenv("HEADRACE_PASSWORD", "canary")
    run("add", "prod", "--bootstrap", "kafka.example:9093", "--tls", "--user", "alice")
    session = CliSession(None)
    assert session.bootstrap == "kafka.example:9093"
    settings = session.settings()
    assert settings["security.protocol"] == "SASL_SSL"
    assert settings["sasl.username"] == "alice"
    assert settings["sasl.password"] == "canary"
    assert settings["sasl.mechanism"] == "SCRAM-SHA-512"
    assert "canary" not in repr(session.access)
    elsewhere = CliSession("evil.example:9093")
    assert "canary" not in str(elsewhere.settings())
    assert elsewhere.access.tls is None
    named = CliSession("kafka-2.example:9093", context_name="prod")
    assert named.bootstrap == "kafka-2.example:9093"
    assert named.settings()["sasl.password"] == "canary"
    override = CliSession(None, given_config={"sasl.username": "bob"})
    assert override.settings()["sasl.username"] == "bob"
    assert "canary" not in (home / "config" / "headrace" / "contexts.json").read_text()


def test_a_password_comes_from_a_file_or_is_missed(home, monkeypatch):
    secret = home / "password"
    secret.write_text("canary\n")
    asked = Context("h:1", user="alice", password_file=str(secret))
    assert asked.settings()["sasl.password"] == "canary"
    assert asked.settings()["security.protocol"] == "SASL_PLAINTEXT"
    with pytest.raises(CommandFailed, match="no password for user"):
        Context("h:1", user="alice").settings()
    with pytest.raises(CommandFailed, match="cannot be read"):
        Context("h:1", user="alice", password_file=str(home / "none")).settings()


def test_a_damaged_file_is_explained(home):
    path = home / "config" / "headrace" / "contexts.json"
    path.parent.mkdir(parents=True)
    for content in ("{", "[]", json.dumps({"contexts": {"a": {}}}), json.dumps({"contexts": [1]})):
        path.write_text(content)
        with pytest.raises(CommandFailed, match="cannot be read"):
            Contexts()


BACKEND = '''
import json, os
from keyring.backend import KeyringBackend

class FileKeyring(KeyringBackend):
    """Passwords in a file of the test."""
    priority = 1
    def get_password(self, service, username):
        with open(os.environ["KEYRING_OF_THE_TEST"]) as file:
            return json.load(file).get(f"{service}/{username}")
    def set_password(self, service, username, password):
        raise NotImplementedError
'''


@pytest.fixture
def keyring_file(home, monkeypatch):
    keyring = pytest.importorskip("keyring")
    (home / "file_keyring_of_the_test.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(home))
    path = home / "passwords.json"
    path.write_text(json.dumps({"kafka-prod/alice": "canary"}))
    monkeypatch.setenv("KEYRING_OF_THE_TEST", str(path))
    before = keyring.get_keyring()
    module = importlib.import_module("file_keyring_of_the_test")
    keyring.set_keyring(module.FileKeyring())
    yield path
    keyring.set_keyring(before)


def test_a_password_comes_from_the_keyring_and_is_stored_nowhere_else(keyring_file, monkeypatch):
    monkeypatch.setenv("HEADRACE_PASSWORD", "another")
    run("add", "prod", "--bootstrap", "h:1", "--user", "alice", "--keyring", "kafka-prod")
    contexts = Contexts()
    assert contexts.named("prod").settings()["sasl.password"] == "canary"
    assert "canary" not in contexts.path.read_text()
    run("add", "other", "--bootstrap", "h:1", "--user", "bob", "--keyring", "kafka-prod")
    with pytest.raises(CommandFailed, match="no password of user 'bob'") as failed:
        Contexts().named("other").settings()
    assert "keyring set kafka-prod bob" in failed.value.next_step
    keyring_file.unlink()
    with pytest.raises(CommandFailed, match="FileNotFoundError"):
        Contexts().named("prod").settings()


def test_a_keyrings_own_exceptions_and_texts_stay_inside(home, monkeypatch):
    name = "kafka prod; x"
    run("add", "prod", "--bootstrap", "h:1", "--user", "alice", "--keyring", name)
    for failure in (Exception("canary"), UnicodeDecodeError("utf-8", b"canary", 0, 1, "canary")):

        def fail(*_arguments, failure=failure):
            raise failure

        monkeypatch.setitem(sys.modules, "keyring", SimpleNamespace(get_password=fail))
        with pytest.raises(CommandFailed, match=type(failure).__name__) as failed:
            Contexts().named("prod").settings()
        assert "canary" not in f"{failed.value} {failed.value.next_step}"
        assert "`keyring set 'kafka prod; x' alice`" in failed.value.next_step


def test_a_keyring_needs_a_user_and_no_file(home):
    run("add", "x", "--bootstrap", "h:1", "--keyring", "s", code=2)
    file = home / "password"
    file.write_text("p")
    where = ("--user", "u", "--keyring", "s", "--password-file", str(file))
    run("add", "x", "--bootstrap", "h:1", *where, code=2)
