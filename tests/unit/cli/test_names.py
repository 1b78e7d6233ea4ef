"""Names of tenants on the command line: how they are read, and how texts show them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from headrace import cli as package
from headrace.administration.replication_report import UnderReplicated
from headrace.administration.snapshot import ClusterSnapshot
from headrace.administration.verification import Findings
from headrace.cli import cluster_admin
from headrace.cli.failures import UNREACHABLE, CommandFailed
from headrace.cli.main import cli
from headrace.dev_cluster.ports import free_port
from headrace.metadata.facts import TopicFact

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(package.__file__).parent
CONTENTS = {
    *("check.py", "config.py", "dump.py", "init.py", "key.py", "output.py", "serve.py"),
    *("completion.py", "records_out.py", "redrive.py", "task.py", "top.py", "unit.py"),
    *("queue.py", "raw_request.py", "main.py"),
}
"""Modules that print records, documents, secrets or files as they are."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["group", "describe", "acme/billing"],
        ["group", "delete", "acme/billing"],
        ["key", "create", "acme/billing", "--user", "acme/billing"],
    ],
)
def test_a_name_that_may_be_a_tenants_is_refused_where_no_broker_says_who_asks(arguments):
    """Taken literally it would be another group or user than the one that an operator means."""
    given = ["--bootstrap", f"127.0.0.1:{free_port()}", *arguments]
    failed = CliRunner().invoke(cli, given, standalone_mode=False).exception
    assert isinstance(failed, CommandFailed)
    assert failed.exit_code == UNREACHABLE
    assert "'acme/billing' may be 'billing' of the tenant 'acme'" in failed.message
    assert "write /acme/billing" in failed.next_step


@pytest.mark.parametrize("name", ["billing", "/acme/billing", "Acme/billing"])
def test_a_name_that_is_no_tenants_is_taken_without_http(name):
    address = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(cli, ["--bootstrap", address, "group", "describe", name])
    assert "of the tenant" not in done.output


def snapshot() -> ClusterSnapshot:
    id_ = UUID(int=1)
    topic = TopicFact("«acme»orders", id_, 2, 1, {}, 0)
    return ClusterSnapshot(
        cluster_id="c", brokers={}, draining=set(), topics={id_: topic}, owners={},
        pins={(id_, 0): 1}, loads={}, moves={(id_, 1): 2}, bookies=[], read_only_bookies=[],
        missing_chains=[(id_, 1)], damaged_facts=["owners/«acme»orders: damaged"],
    )  # fmt: skip


LACKING = [UnderReplicated("«acme»orders-0", 1, 1, ("bookie",))]


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("command", ["status", "verify"])
def test_commands_that_ask_zookeeper_show_no_keys(monkeypatch, command, more):
    asked: dict[str, Any] = {
        "status": (snapshot(), LACKING, ["«acme»orders-0 cannot be written"]),
        "verify": Findings(
            partitions=2, ledgers=1, records=1, size_bytes=1,
            orphans=[], stale=["«acme»orders-7"], lost_bookies=[], under_replicated=LACKING,
            problems=["«acme»orders-1: no ledger 7"],
        ),
    }  # fmt: skip
    monkeypatch.setattr(cluster_admin, "ask", lambda _settings, _question: asked[command])
    done = CliRunner().invoke(cli, ["cluster", command, *more])
    assert done.exit_code == 1
    assert "«" not in done.output
    assert "acme/orders-1" in done.output


def test_a_failure_shows_no_keys():
    failed = CommandFailed("topic '«acme»orders' does not exist", "List «acme»'s topics")
    assert failed.message == "topic 'acme/orders' does not exist"
    assert failed.next_step == "List acme/'s topics"


def echoes() -> Iterator[str]:
    """Where texts are printed as they are."""
    for path in sorted(one for one in SOURCES.glob("*.py") if one.name not in CONTENTS):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "echo":
                yield f"{path.name}:{node.lineno}"


def test_texts_for_people_are_printed_by_what_translates_keys():
    assert list(echoes()) == []
