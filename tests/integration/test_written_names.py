"""What the command line says of a tenant's things: `acme/orders`, and never the key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
import pytest
from click.testing import CliRunner
from tests.integration.broker import Broker
from tests.waiting import wait_until

from headrace.cli.main import cli
from headrace.dev_cluster.ports import free_port
from headrace.records.tenant_names import CLOSE, OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TOPIC, GROUP, MISSING = "acme/orders", "acme/billing", "acme/none"
BY_NAME: Final = {
    "topic": TOPIC,
    "topics": TOPIC,
    "source": TOPIC,
    "target": MISSING,
    "patterns": "acme/*",
    "group": GROUP,
    "groups": GROUP,
    "place": "0:0",
    "receipts": "bad",
    "message_ids": "bad",
    "keys": "k",
    "message": "0:0",
    "task_id": "none",
    "key_id": "0" * 16,
    "changes": "",
}
"""What is given for arguments, by their names."""
ARGUMENTS: Final[dict[str, Sequence[str]]] = {
    **{f"topic {one}": [TOPIC] for one in ("alter", "create", "delete", "describe")},
    "topic alter": [TOPIC, "--set", "retention.ms=7d"],
    "topic hot-keys": [TOPIC, "--partition", "0"],
    "topic share": [TOPIC, "--with", "beta"],
    "topic unshare": [TOPIC, "--with", "beta"],
    "topic accept": [TOPIC, "--as", "beta/orders"],
    "topic leave": ["beta/orders"],
    "topic trim": [TOPIC, "--before", "latest", "--dry-run"],
    "topic delete": [MISSING, "--yes"],
    **{f"group {one}": [GROUP] for one in ("describe", "diagnose", "export", "history")},
    "group delete": [MISSING],
    "group past": [TOPIC, "--at", "2026-01-01"],
    "group reset": [GROUP, "--topic", TOPIC, "--to", "earliest"],
    "group set": [GROUP, "consumer.session.timeout.ms=45000"],
    "queue journal": [TOPIC, "--partition", "0"],
    "queue settle": [TOPIC, GROUP, "--ack", "bad"],
    "queue receive": [TOPIC, GROUP, "--wait-s", "0"],
    "backlog move": [GROUP, TOPIC, "--to", MISSING, "--dry-run"],
    "backlog park": [GROUP, TOPIC, "k"],
    "backlog reset": [GROUP, "--topic", TOPIC, "--to", "earliest", "--dry-run"],
    "backlog skip": [GROUP, "--topic", TOPIC, "--partition", "0", "--offset", "0"],
    "dead redrive": [TOPIC, "--dry-run"],
    "dead purge": [TOPIC, "--yes"],
    "dead show": [TOPIC, "--letter", "0:0"],
    "find": [TOPIC, "--partition", "0", "--offset", "0"],
    "txn abort-hanging": ["--topic", TOPIC, "--partition", "0", "--start-offset", "0"],
    "txn describe": ["acme/loader"],
    "config get": ["log.retention.ms"],
    "acl add": ["--principal", "User:acme/ann", "--operation", "READ", "--topic", "orders"],
    "acl explain": ["--principal", "User:acme/ann", "--operation", "READ", "--topic", TOPIC],
    "acl remove": ["--principal", "User:acme/none", "--yes"],
    **{f"tenant {one}": ["acme"] for one in ("create", "delete", "describe", "set")},
    "quota set": ["--user", "acme/ann", "producer_byte_rate=10MiB"],
    "quota delete": ["--user", "acme/bob"],
    "user add": ["acme/ann", "--generate"],
    "user rotate": ["acme/ann", "--generate"],
    "user remove": ["acme/none", "--yes"],
    "key create": ["nightly", "--user", "acme/ann", "--scope", f"READ topic {TOPIC}"],
    "key revoke": ["0" * 16, "--dry-run"],
    "table enable": [TOPIC],
    "table disable": [TOPIC],
    "consume": [TOPIC, "--from", "earliest", "--count", "1", "--no-follow"],
}
NOT_HERE: Final = {
    **dict.fromkeys(
        ("serve", "demo", "bench", "init", "unit", "cert", "context", "completion", "verify"),
        "names nothing of a tenant, or starts what does not end",
    ),
    **dict.fromkeys(("dump", "check", "salvage", "backup", "restore", "dashboards"), "reads files"),
    **dict.fromkeys(("pipeline", "table status"), "a job of Spark"),
    **dict.fromkeys(
        (
            *(f"cluster {one}" for one in ("status", "verify", "repair", "backup", "restore")),
            "cluster drain",
            "cluster move",
        ),
        "asks ZooKeeper: tests/unit/cli/test_names.py",
    ),
    **dict.fromkeys(
        (
            "top",
            "queue watch",
            "produce",
            "backlog probe",
            "group import",
            "dead undo",
            "config set",
            "config unset",
            "cluster dev",
            "dead edit",
            "task stop",
        ),
        "reads input, or does not end",
    ),
}
"""Commands, or groups of them, that the walk leaves out."""


def leaves(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, f"{path} {name}".strip())


def walked() -> list[tuple[str, Sequence[str]]]:
    found = []
    for path, command in leaves(cli):
        if path in NOT_HERE or path.split()[0] in NOT_HERE:
            continue
        given = ARGUMENTS.get(path)
        if given is None:
            arguments = [one for one in command.params if isinstance(one, click.Argument)]
            given = [BY_NAME[one.name or ""] for one in arguments]
        found.append((path, given))
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--authorizer=acl", "--super-users=User:ANONYMOUS")
    broker = Broker(tmp_path_factory.mktemp("names"), *options)
    broker.kafka = f"127.0.0.1:{free_port()}"
    broker.start()
    yield broker.kafka
    broker.stop()


def test_no_command_shows_the_key_of_a_tenants_name(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # where some commands write files

    def run(*arguments: str) -> str:
        given = ["--bootstrap", served, "--timeout", "5", *arguments]
        return str(CliRunner().invoke(cli, given, input="v\n").output)

    run("tenant", "create", "acme")
    run("topic", "create", TOPIC, "--partitions", "1")
    file = tmp_path / "records"
    file.write_text("v\n")
    run("produce", TOPIC, str(file))
    run("queue", "receive", TOPIC, GROUP)
    run("user", "add", "acme/ann", "--generate")
    wait_until(lambda: TOPIC in run("topic", "list"), 30)
    walk = walked()
    assert len(walk) > 70, "most commands are walked"
    shown: dict[str, str] = {}
    said = ""
    for path, given in walk:
        for more in ([], ["--json"]):
            output = run(*path.split(), *given, *more)
            said += output
            if OPEN in output or CLOSE in output:
                shown[" ".join((path, *more))] = output
    assert shown == {}
    for name in (TOPIC, GROUP, MISSING, "acme/ann", "acme/loader"):
        assert name in said, f"{name} was to be shown"
