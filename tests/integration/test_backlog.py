"""`headrace queue` and `headrace backlog` on a real broker, as a user types them."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_cli import User
from tests.integration.test_http_queues import Queue

from headrace.cli import queue as cli_queue
from headrace.cli.failures import FAILED, NOT_FOUND, UNREACHABLE, CommandFailed
from headrace.cli.main import cli
from headrace.cli.session import CliSession


@pytest.fixture
def headrace(broker):
    def types(*arguments: str, code: int = 0, stdin: str = "") -> str:
        user = User(broker.kafka)
        ran = user.types(*arguments, stdin=stdin)
        assert ran.code == code, ran.err
        return ran.out if code == 0 else ran.err

    return types


@pytest.fixture
def queue(broker, name):
    """A queue of six messages, two of them acknowledged."""
    made = Queue(broker, name, f"{name}-group")
    made.send(*"123456")
    messages = []
    while len(messages) < 2:
        messages += made.receive(max=2 - len(messages), wait_ms=20_000)
    made.settle(ack=[message["receipt"] for message in messages])
    return made, f"{name}-group"


def commit(broker, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def left(headrace, group: str) -> int:
    return sum(row["lag"] for row in json.loads(headrace("backlog", "list", group, "--json")))


def test_messages_are_received_and_settled_by_hand(queue, headrace):
    made, group = queue
    found = json.loads(headrace("queue", "receive", made.topic, group, "--json", "--wait", "20s"))
    assert found
    receipts = [message["receipt"] for message in found]
    headrace("queue", "settle", made.topic, group, "--nack", receipts[0], "--delay", "1ms")
    rest = json.dumps(found[1:])
    if found[1:]:
        headrace("queue", "settle", made.topic, group, "--stdin", stdin=rest)
    said = headrace("queue", "settle", made.topic, group, "--ack", receipts[0], code=1)
    assert "refused" in said
    watched = json.loads(headrace("queue", "watch", made.topic, group, "--count", "1", "--json"))
    assert sum(part["lag"] for part in watched["partitions"]) == 4 - len(found[1:])


def test_a_group_without_a_dead_letter_topic_is_described_so(queue, headrace, broker, name):
    _made, group = queue
    user = User(broker.kafka)

    def described():
        shown = user.types("group", "describe", group)
        (document,) = json.loads(headrace("group", "describe", group, "--json"))
        return "no dead letter topic" in shown.out + shown.err, document["dead_letter_topic"]

    assert described() == (True, None)
    setting = f"errors.deadletterqueue.topic.name={name}.dead"
    headrace("config", "set", setting, "--group", group)
    assert described() == (False, f"{name}.dead")


def test_a_backlog_is_counted_in_messages_and_seconds(queue, headrace):
    _made, group = queue
    rows = json.loads(headrace("backlog", "list", group, "--json"))
    assert sum(row["lag"] for row in rows) == 4
    assert all(row["type"] == "share" and row["lag_s"] is not None for row in rows)
    assert "4 messages" not in headrace("backlog", "list", group)


def test_a_share_group_skips_and_goes_back(queue, headrace):
    _made, group = queue
    headrace("backlog", "skip", group, "--dry-run")
    assert left(headrace, group) == 4
    headrace("backlog", "skip", group)
    assert left(headrace, group) == 0
    headrace("backlog", "reset", group, "--to", "1h")
    assert left(headrace, group) == 6


def test_a_share_groups_backlog_is_moved_to_another_topic(queue, headrace, broker, name):
    made, group = queue
    create_topic(broker.kafka, f"{name}.later")
    moving = "backlog", "move", group, made.topic, "--to", f"{name}.later", "--json"
    assert json.loads(headrace(*moving, "--dry-run"))["records"] == 4
    assert json.loads(headrace(*moving))["records"] == 4
    assert left(headrace, group) == 0
    copied = {rec.value for rec in Confluent.consume(broker.kafka, f"{name}.later", 4)}
    assert len(copied) == 4
    assert json.loads(headrace(*moving))["records"] == 0


def test_a_move_to_a_topic_that_does_not_exist_says_how_to_create_it(broker, name):
    group = f"{name}-group"
    create_topic(broker.kafka, name)
    commit(broker, group, name, 0)
    moving = ["backlog", "move", group, name, "--to", f"{name}.later"]
    arguments = ["--bootstrap", broker.kafka, *moving]
    failure = CliRunner().invoke(cli, arguments, standalone_mode=False).exception
    assert failure.exit_code == NOT_FOUND
    assert f"topic '{name}.later' does not exist; nothing was moved" in failure.message
    assert f"headrace topic create {name}.later" in failure.next_step


def test_a_consumer_groups_backlog_is_moved_once_with_its_progress(headrace, broker, name):
    group = f"{name}-group"
    create_topic(broker.kafka, name)
    create_topic(broker.kafka, f"{name}.later")
    Confluent.produce(broker.kafka, name, [Rec(b"k", b"%d" % n) for n in range(20)])
    commit(broker, group, name, 5)
    moving = "backlog", "move", group, name, "--to", f"{name}.later", "--rate", "1000", "--json"
    assert json.loads(headrace(*moving))["records"] == 15
    assert json.loads(headrace(*moving))["records"] == 0
    assert left(headrace, group) == 0
    copied = [rec.value for rec in Confluent.consume(broker.kafka, f"{name}.later", 15)]
    assert copied == [b"%d" % n for n in range(5, 20)]


def test_the_hottest_keys_of_a_backlog_come_first(headrace, broker, name):
    group = f"{name}-group"
    create_topic(broker.kafka, name)
    keys = [b"hot"] * 6 + [b"cold"] * 2 + [None]
    Confluent.produce(broker.kafka, name, [Rec(key, b"v") for key in keys])
    commit(broker, group, name, 1)
    found = json.loads(headrace("backlog", "keys", group, name, "--json"))
    assert found["hottest"] == [
        {"key": "hot", "records": 5},
        {"key": "cold", "records": 2},
        {"key": None, "records": 1},
    ]


def test_more_receipts_than_a_request_takes_are_all_answered(queue, broker, monkeypatch):
    made, group = queue
    monkeypatch.setattr(cli_queue, "RECEIPTS_MAX", 3)
    (message,) = made.receive(max=1, wait_ms=20_000)
    never = [f"0.{offset}.nobody" for offset in range(9_000, 9_007)]
    lines = "\n".join([*never, message["receipt"]])
    arguments = ["-b", broker.kafka, "queue", "settle", made.topic, group, "--stdin", "--json"]
    done = CliRunner().invoke(cli, arguments, input=lines)
    assert done.exit_code == FAILED, done.output
    found = json.loads(done.stdout)
    assert [one["receipt"] for one in found] == lines.split()
    assert [one["ok"] for one in found] == [False] * 7 + [True]


def test_a_wait_longer_than_one_request_may_take_is_waited(broker, name, monkeypatch):
    Queue(broker, name, f"{name}-group")
    monkeypatch.setattr(cli_queue, "WAIT_MS_MAX", 200)
    arguments = ["-b", broker.kafka, "queue", "receive", name, f"{name}-group", "--json"]
    began_s = time.monotonic()
    done = CliRunner().invoke(cli, [*arguments, "--wait", "1500ms"])
    assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert time.monotonic() - began_s >= 1.5


def test_an_http_address_alone_names_no_cluster_and_that_is_said(broker, monkeypatch):
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    monkeypatch.setattr(CliSession, "check_reachable", unreachable)
    arguments = ["queue", "watch", "t", "g", "-n", "1", "--http", broker.http]
    told = CliRunner().invoke(cli, arguments, standalone_mode=False).exception
    assert isinstance(told, CommandFailed)
    assert f"--http {broker.http} alone" in told.next_step
    told = CliRunner().invoke(cli, ["-b", "127.0.0.1:1", *arguments], standalone_mode=False)
    assert "alone" not in told.exception.next_step


def unreachable(session: CliSession) -> None:
    raise CommandFailed(f"cannot connect to {session.bootstrap}", "Start one", UNREACHABLE)


def test_unknown_groups_topics_and_addresses_are_named_in_the_error(headrace, broker, name):
    assert "no group" in headrace("backlog", "list", f"{name}-nobody", code=3)
    assert "does not exist" in headrace("queue", "receive", f"{name}-none", "g", code=3)
    said = headrace("queue", "watch", name, "g", "--http", "127.0.0.1:1", code=4)
    assert "--http" in said


def test_the_group_commands_know_share_groups(queue, headrace):
    _, group = queue
    listed = json.loads(headrace("group", "list", "--lag", "--json"))
    (mine,) = [row for row in listed if row["group"] == group]
    assert (mine["type"], mine["state"], mine["lag"]) == ("share", "Empty", 4)
    (described,) = json.loads(headrace("group", "describe", group, "--json"))
    assert (described["state"], described["lag"], described["members"]) == ("Empty", 4, [])
    assert sum(part["lag"] for part in described["partitions"]) == 4
    moved = json.loads(headrace("group", "reset", group, "--shift-by", "1", "--json"))
    steps = [(one["after"] - one["before"], one["delta"]) for one in moved["partitions"]]
    assert (1, 1) in steps
    assert {*steps} <= {(1, 1), (0, 0)}
    headrace("group", "delete", group)
    headrace("group", "describe", group, code=3)
    assert all(row["group"] != group for row in json.loads(headrace("group", "list", "--json")))


def test_an_empty_list_says_that_the_topic_reads_no_attributes(broker, headrace, name):
    create_topic(broker.kafka, name, 1)
    user = User(broker.kafka)
    user.env["HEADRACE_HTTP"] = broker.http
    for command in ("delayed", "half"):
        listed = user.types(command, "list", name)
        assert listed.code == 0
        assert "headrace.message.attributes=read" in listed.err


# --- two clusters ----------------------------------------------------------------------------


@pytest.fixture
def other(own_broker, name):
    """Another cluster, with a topic, a group and messages of the same names."""
    made = Queue(own_broker, name, f"{name}-group")
    made.send(*"123456")
    assert made.receive(max=1, wait_ms=20_000)
    return own_broker


@pytest.mark.parametrize(
    "command",
    [
        ("backlog", "move", "{group}", "{topic}", "--to", "{topic}.later"),
        ("backlog", "park", "{group}", "{topic}", "key"),
        ("backlog", "parked", "{group}", "{topic}"),
        ("backlog", "unpark", "{group}", "{topic}", "key"),
        ("backlog", "probe", "{topic}", "-n", "1"),
        ("queue", "receive", "{topic}", "{group}", "--ack"),
        ("queue", "settle", "{topic}", "{group}", "--ack", "receipt"),
        ("queue", "watch", "{topic}", "{group}", "-n", "1"),
        ("find", "{topic}", "--key", "k"),
        ("trace", "{topic}", "0:0"),
        ("delayed", "list", "{topic}"),
        ("delayed", "refused", "{topic}"),
        ("delayed", "cancel", "{topic}", "--message-id", "id"),
        ("half", "list", "{topic}"),
        ("half", "commit", "{topic}", "id"),
        ("half", "rollback", "{topic}", "id"),
    ],
    ids=lambda command: "-".join(command[:2]).replace("-{topic}", ""),
)
def test_an_http_address_of_another_cluster_is_refused(
    queue, headrace, broker, other, name, command
):
    made, group = queue
    create_topic(broker.kafka, f"{name}.later")
    arguments = [one.format(topic=made.topic, group=group) for one in command]
    said = headrace(*arguments, "--http", other.http, code=2)
    assert f"the HTTP address {other.http} belongs to cluster" in said
    assert "nothing was changed" in said
    assert left(headrace, group) == 4
    there = User(other.kafka).types("backlog", "list", group, "--json")
    assert sum(row["lag"] for row in json.loads(there.out)) == 6


def test_the_http_address_is_that_of_the_brokers_named(queue, headrace, broker, other, name):
    made, group = queue
    create_topic(other.kafka, f"{name}.later")
    moved = User(other.kafka).types("backlog", "move", group, made.topic, "--to", f"{name}.later")
    assert moved.code == 0, moved.err
    assert left(headrace, group) == 4, "the messages of the other cluster are still there"
    assert Confluent.consume(other.kafka, f"{name}.later", 5)


def test_attributes_that_a_topic_does_not_read_are_refused_with_the_setting(broker, headrace, name):
    create_topic(broker.kafka, name)
    for header in ("headrace-delay=60000", "headrace-half=shop"):
        said = headrace("produce", name, "-H", header, stdin="x\n", code=1)
        assert f"header {header.partition('=')[0]} would have no effect" in said
        assert f"topic {name} does not read queue attributes" in said
        assert f"headrace topic alter {name} --set headrace.message.attributes=read" in said
    headrace("topic", "alter", name, "--set", "headrace.message.attributes=ignore")
    headrace("produce", name, "-H", "headrace-delay=60000", stdin="x\n")
    assert [rec.value for rec in Confluent.consume(broker.kafka, name, 1)] == [b"x"]
    headrace("topic", "alter", name, "--set", "headrace.message.attributes=read")
    malformed = headrace("produce", name, "-H", "headrace-delay=soon", stdin="x\n", code=1)
    assert "would have no effect" not in malformed


def test_a_backlog_with_attributes_moves_only_to_a_topic_that_takes_them(headrace, broker, name):
    group, to = f"{name}-group", f"{name}.later"
    create_topic(broker.kafka, name)
    create_topic(broker.kafka, to)
    headrace("topic", "alter", name, "--set", "headrace.message.attributes=read")
    headrace("produce", name, "-H", "headrace-priority=9", stdin="x\n")
    commit(broker, group, name, 0)
    moving = "backlog", "move", group, name, "--to", to, "--json"
    assert "headrace.message.attributes" in headrace(*moving, code=1)
    assert left(headrace, group) == 1
    headrace("topic", "alter", to, "--set", "headrace.message.attributes=ignore")
    assert json.loads(headrace(*moving))["records"] == 1


def test_delayed_records_move_to_any_topic(headrace, broker, name):
    group, to = f"{name}-group", f"{name}.later"
    create_topic(broker.kafka, name)
    create_topic(broker.kafka, to)
    headrace("topic", "alter", name, "--set", "headrace.message.attributes=read")
    headrace("produce", name, "-H", "headrace-delay=10", stdin="x\n")
    Confluent.consume(broker.kafka, name, 1)
    commit(broker, group, name, 0)
    assert (
        json.loads(headrace("backlog", "move", group, name, "--to", to, "--json"))["records"] == 1
    )
