"""Clients in Java and Go among others on a real broker, judged by the history of all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_port
from headrace_verify.blackbox import queue_part
from headrace_verify.blackbox.bugs import BUGS
from headrace_verify.blackbox.context import Context, Spec
from headrace_verify.blackbox.crew import Client, Crew, find_program
from headrace_verify.blackbox.routing import Connection
from headrace_verify.checkers import check_history
from headrace_verify.checkers.facts import gather
from headrace_verify.history import NOTE, OK, History, merged, read_history
from headrace_verify.real_broker import RealBroker
from headrace_verify.self_proof import choose, spoiled_launch
from headrace_verify.workloads import QUEUES

PATIENCE_S = 300
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
    """Starts clients; those that still run at the end are killed."""
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


class Queues:
    """RocketMQ's official client at one broker, beside nothing else."""

    def __init__(self, folder, command, launch=()):
        at = f"127.0.0.1:{free_port()}"  # the client returns to it after a restart
        self.broker = RealBroker(folder / "broker", ("--rocketmq", at), launch)
        self.broker.start()
        self._folder = folder
        options = {
            "part": QUEUES,
            "command": command,
            "http": "{}:{}".format(*self.broker.http_address),
            "rocketmq": at,
        }
        bootstrap = "{}:{}".format(*self.broker.address)
        self._spec = Spec(
            "run", "run", 0, 1, bootstrap, dict(queue_part.PART.topics), 0, None, options
        )
        self.context = Context(self._spec, History(folder / "run.jsonl", "run"))
        connection = Connection(self.context, 30)
        for topic, partitions in queue_part.PART.topics.items():
            connection.wire().create_topic(topic, partitions, {})
        connection.drop()
        queue_part.prepare(self.context)
        self.producer = self._begin("producer", queue_part.ONE_PARTITION)
        self.consumers = [
            self._begin("consumer", queue_part.WORKLOAD.topics, group)
            for group in queue_part.GROUPS
        ]

    def _begin(self, role, topics, group=None):
        number = 1 if group is None else 2 + list(queue_part.GROUPS).index(group)
        spec = replace(
            self._spec, name=f"{role}-{number}", kind=f"rocketmq-library-{role}", number=number,
            topics=dict(topics), rate_per_s=8, group=group,
        )  # fmt: skip
        return Client(spec, self._folder)

    def events(self):
        return events(self.producer, *self.consumers)

    def counted(self):
        facts = gather(self.events())
        return facts.counts.get("send ok", 0), facts.counts.get("settle ok", 0)

    def wait_for_more(self):
        before = self.counted()
        wait_until(
            lambda: all(now > then + 25 for now, then in zip(self.counted(), before, strict=True)),
            PATIENCE_S,
        )

    def restart(self):
        """Kill the broker and start it again, and say so: its locks are lost with it."""
        self.context.history.write(OK, NOTE, what="fault", fault="kill")
        self.broker.kill()
        self.broker.start()
        self.context.history.write(OK, NOTE, what="healed", fault="kill")

    def finish(self):
        """What is wrong."""
        self.producer.ask_to_end()
        assert self.producer.wait(PATIENCE_S)
        at = "{}:{}".format(*self.broker.address)
        crew = Crew(1, at, self._folder, is_quick=True, parts=[QUEUES])
        wrong = list(queue_part.settle(crew, self.context, PATIENCE_S))
        for one in self.consumers:
            one.ask_to_end()
        assert all(one.wait(PATIENCE_S) for one in self.consumers)
        self.restart()
        wrong += queue_part.read_back_queues(self.context)
        return wrong

    def close(self):
        for one in (self.producer, *self.consumers):
            one.kill()
        self.context.history.close()
        self.broker.kill()


@pytest.mark.parametrize("language", ["python", "java", "node", "go"])
def test_rocketmqs_own_client_under_kills_is_judged_by_its_history(language, tmp_path):
    """Normal, ordered, delayed and half messages: nothing lost, early, out of order or twice
    decided."""
    pytest.importorskip("grpc")
    command = find_program(f"rocketmq-{language}")
    assert isinstance(command, list), command
    run = Queues(tmp_path, command)
    try:
        run.wait_for_more()
        for _ in range(2):
            run.restart()
            run.wait_for_more()
        wrong = run.finish()
        history = list(merged([run.events(), read_history(tmp_path / "run.jsonl")]))
    finally:
        run.close()
    assert wrong == []
    assert not [event for event in history if event.get("what") == "gave up"]
    facts = gather(history)
    assert facts.counts["drained ok"] == len(queue_part.GROUPS)
    sent = [send for one in facts.partitions.values() for send in one.sends.values()]
    assert {bool(send.due_ns) for send in sent} == {True, False}
    assert {send.outcome for send in sent} >= {"ok", "fail"}, "some are rolled back"
    verdict = check_history(facts)
    assert verdict.is_clean, verdict.as_json()


def test_acknowledgements_that_are_not_made_are_found_by_a_library_that_hides_their_status(
    tmp_path,
):
    """Go's returns no error whatever the broker answers: its program looks at the response."""
    pytest.importorskip("grpc")
    command = find_program("rocketmq-go")
    if isinstance(command, str):
        pytest.skip(f"NO CLIENT IN GO: {command}")
    (bug,) = choose(BUGS, "acknowledge to rocketmq without settling")
    run = Queues(tmp_path, command, spoiled_launch("blackbox", bug.name))
    try:
        wait_until(
            lambda: set(check_history(gather(run.events())).counts) & set(bug.found_by),
            PATIENCE_S,
        )
    finally:
        run.close()
