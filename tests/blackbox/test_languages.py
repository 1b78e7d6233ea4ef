"""Clients in Java and Go among others on a real broker, judged by the history of all."""

from __future__ import annotations

import pytest
from tests.integration.broker import wait_until

from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.crew import Client, find_program
from headrace_verify.blackbox.routing import Connection
from headrace_verify.checkers import check_history
from headrace_verify.checkers.facts import gather
from headrace_verify.history import History, merged, read_history
from headrace_verify.real_broker import RealBroker

PATIENCE_S = 180
"""A virtual machine that starts beside much else takes its time."""
TOPICS = {"alpha": 4}
GROUP = "of several languages"
WRITTEN_MIN = 40


@pytest.fixture
def broker(tmp_path):
    server = RealBroker(tmp_path / "broker")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start(tmp_path, broker):
    """Starts clients; whoever still runs at the end is killed."""
    bootstrap = "{}:{}".format(*broker.address)
    spec = Spec("run", "run", 0, 1, bootstrap, TOPICS, 0)
    connection = Connection(Context(spec, History(tmp_path / "run.jsonl", "run")), 30)
    for topic, count in TOPICS.items():
        connection.wire().create_topic(topic, count, {})
    connection.drop()
    clients = []

    def begin(kind, command=()):
        options = {"command": command, "strategy": "cooperative-sticky", "compressed": True}
        options["isolation"] = "read_uncommitted"
        number = len(clients) + 1
        spec = Spec(kind, kind, number, 1, bootstrap, TOPICS, 40, GROUP, options)
        clients.append(Client(spec, tmp_path))
        return clients[-1]

    yield begin
    for client in clients:
        client.kill()


def events(*clients):
    files = [client.history_path for client in clients if client.history_path.exists()]
    return list(merged(read_history(file) for file in files))


def have_shared_the_work(producer, members):
    """Whether both members have committed, in one generation, and between them read everything."""
    facts = gather(events(producer, *members))
    stored = {value for one in facts.partitions.values() for value in one.acknowledged.values()}
    read = {value for one in facts.partitions.values() for value in one.places}
    generations = [
        {commit.generation for commit in facts.commits
         if commit.process == member.spec.name and commit.outcome == "ok"}
        for member in members
    ]  # fmt: skip
    return len(stored) >= WRITTEN_MIN and stored <= read and bool(set.intersection(*generations))


@pytest.mark.parametrize(
    "language",
    [
        pytest.param("java", marks=pytest.mark.java),
        # Half a minute of CPU time where it is to build.
        pytest.param("go", marks=pytest.mark.long),
    ],
)
def test_a_client_in_another_language_works_with_others_and_is_judged_like_them(start, language):
    command = find_program(language)
    if isinstance(command, str):
        pytest.skip(f"NO CLIENT IN {language.upper()}: {command}")
    producer = start(f"{language}-producer", command)
    members = [start(f"{language}-member", command), start("librdkafka-member")]
    wait_until(lambda: have_shared_the_work(producer, members), PATIENCE_S)
    producer.ask_to_end()
    assert producer.wait(PATIENCE_S)
    wait_until(lambda: have_shared_the_work(producer, members), PATIENCE_S)
    for member in members:
        member.ask_to_end()
    assert all(member.wait(PATIENCE_S) for member in members)
    history = events(producer, *members)
    assert not [event for event in history if event.get("what") == "gave up"]
    facts = gather(history)
    assert facts.counts["send ok"] == facts.counts["send invoke"]
    assert facts.counts["assign ok"] >= len(members)
    verdict = check_history(facts)
    assert verdict.is_clean, verdict.as_json()
