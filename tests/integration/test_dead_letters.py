"""Dead letters on the command line, on a real broker: list, show, redrive, purge."""

from __future__ import annotations

import http.client
import json

import pytest
from confluent_kafka import Consumer, Producer
from tests.integration.test_cli import User
from tests.integration.test_http_queues import Queue
from tests.waiting import wait_until

from headrace.cli import redrive
from headrace.cli.failures import CommandFailed
from headrace.cli.session import CliSession


@pytest.fixture
def headrace(broker):
    """The command line, as a user types it; what it printed."""

    def types(*arguments: str) -> str:
        ran = User(broker.kafka).types(*arguments)
        assert ran.code == 0, ran.err
        return ran.out

    return types


@pytest.fixture
def letters(broker, name):
    """A queue whose four messages were given up, two of them as unreadable."""
    topic = f"{name}.dead"
    queue = Queue(broker, name, name, **{"errors.deadletterqueue.topic.name": topic})
    queue.send("1", "2", "3", "4")
    messages = []
    while len(messages) < 4:
        messages += queue.receive(max=10, wait_ms=20_000)
    reasons = {"1": "unreadable", "2": "unreadable", "3": "refused", "4": "refused"}
    refused = [{"receipt": m["receipt"], "reason": reasons[m["value"]]} for m in messages]
    assert all(result["ok"] for result in queue.settle(dead_letter=refused))
    reader = Queue(broker, f"{name}.probe", f"{name}-probe")
    reader.path = f"/v1/queues/{topic}/{name}-probe"
    copies = []
    while len(copies) < 4:
        copies += reader.receive(max=10, wait_ms=20_000)
    return queue, topic


def send(broker, topic, value):
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


def values(broker, topic):
    """What the topic holds now, committed alone."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": f"{topic}-all",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found, ends = [], set()
    while len(ends) < 3:
        message = consumer.poll(20)
        assert message is not None, "the consumer got neither a record nor an end"
        if message.error():
            ends.add(message.partition())
        else:
            found.append((message.value().decode(), dict(message.headers() or [])))
    consumer.close()
    return found


def test_dead_letters_are_listed_by_cause_and_shown(letters, headrace):
    _queue, topic = letters
    listed = json.loads(headrace("dead", "list", topic, "--json"))
    assert {(row["reason"], row["count"]) for row in listed} == {("unreadable", 2), ("refused", 2)}
    shown = json.loads(headrace("dead", "show", topic, "--count", "2", "--json"))
    assert len(shown) == 2
    assert shown[0]["origin"]["deliveries"] == "1"


def test_a_redrive_sends_each_dead_letter_back_once(letters, headrace, broker):
    queue, topic = letters
    planned = json.loads(headrace("dead", "redrive", topic, "--dry-run", "--json"))
    assert planned == {"dry_run": True, "sent": {queue.topic: 4}, "kept": 0}
    done = json.loads(headrace("dead", "redrive", topic, "--json"))
    again = json.loads(headrace("dead", "redrive", topic, "--json"))
    assert (done["sent"], again["sent"]) == ({queue.topic: 4}, {})
    back = [value for value, headers in values(broker, queue.topic) if headers]
    assert sorted(back) == ["1", "2", "3", "4"]


def test_of_two_redrives_at_once_one_stops_and_each_dead_letter_comes_back_once(
    letters, headrace, broker, monkeypatch
):
    queue, topic = letters
    read_progress = redrive.assigned

    def overtaken(*arguments):
        found = read_progress(*arguments)
        headrace("dead", "redrive", topic)  # from its beginning to its end
        return found

    monkeypatch.setattr(redrive, "assigned", overtaken)
    with pytest.raises(CommandFailed, match="another redrive of this topic has taken over"):
        redrive.redrive_letters(
            CliSession(broker.kafka), topic, redrive.RedriveOptions(), redrive.Outcome()
        )
    back = [value for value, headers in values(broker, queue.topic) if headers]
    assert sorted(back) == ["1", "2", "3", "4"]


def test_a_redrive_waits_for_one_by_sql_that_is_unfinished(letters, headrace, broker):
    """Its state is in the metadata of the group's offsets, which this one would overwrite."""
    from confluent_kafka import Consumer, TopicPartition

    from headrace.pipeline.jobs.transfer import _MARK

    _queue, topic = letters
    assert redrive.JOB_MARK == _MARK

    def note(offset: int, end: int) -> None:
        mark = json.dumps({_MARK: {"end": end, "chunk": end, "spec": "s", "id": "", "note": {}}})
        consumer = Consumer(
            {"bootstrap.servers": broker.kafka, "group.id": f"headrace-redrive.{topic}"}
        )
        consumer.commit(
            offsets=[TopicPartition(topic, 0, offset, metadata=mark)], asynchronous=False
        )
        consumer.close()

    note(0, 1)
    ran = User(broker.kafka).types("dead", "redrive", topic, "--json")
    assert ran.code != 0
    assert "is unfinished: 1 records are left, and nothing was sent" in ran.err
    note(0, 0)
    assert sum(json.loads(headrace("dead", "redrive", topic, "--json"))["sent"].values())


def test_a_redrive_by_reason_keeps_the_others(letters, headrace, broker):
    queue, topic = letters
    done = json.loads(headrace("dead", "redrive", topic, "--reason", "refused", "--json"))
    assert (done["sent"], done["kept"]) == ({queue.topic: 2}, 2)
    rest = json.loads(headrace("dead", "redrive", topic, "--json"))
    assert rest["sent"] == {queue.topic: 2}
    back = [value for value, headers in values(broker, queue.topic) if headers]
    assert sorted(back) == ["1", "2", "3", "4"]


def test_a_purge_asks_first_and_leaves_nothing(letters, headrace):
    _queue, topic = letters
    headrace("dead", "purge", topic, "--yes")
    assert json.loads(headrace("dead", "list", topic, "--json")) == []


def ask(broker, method: str, path: str, body=None):
    host, port = broker.http.rsplit(":", 1)
    client = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        client.request(method, path, data, {"Content-Type": "application/json"})
        answer = client.getresponse()
        return answer.status, answer.headers.get("Location"), json.loads(answer.read())
    finally:
        client.close()


def ended(broker, location: str):
    def look():
        task = ask(broker, "GET", location)[2]
        return task if task["state"] != "running" else None

    return wait_until(look)


def test_a_redrive_over_http_is_the_same_and_goes_on_where_another_one_stopped(letters, headrace):
    queue, topic = letters
    broker = queue.broker
    body = {"topic": topic, "reason": "unreadable"}
    status, location, task = ask(broker, "POST", "/v1/redrives", {**body, "dry_run": True})
    assert (status, task["state"]) == (202, "running")
    tried = ended(broker, location)
    assert tried["state"] == "done", tried
    assert tried["results"] == [{"dry_run": True, "sent": {queue.topic: 2}, "kept": 2}]
    _, slow, _ = ask(broker, "POST", "/v1/redrives", {**body, "rate": 1})
    assert ask(broker, "POST", "/v1/redrives", body)[0] == 409
    cancelled = ask(broker, "DELETE", slow)[2]
    assert cancelled["state"] in {"cancelled", "done"}
    _, location, _ = ask(broker, "POST", "/v1/redrives", body)
    assert ended(broker, location)["state"] == "done"
    back = sorted(value for value, headers in values(broker, queue.topic)
                  if "headrace-redrives" in headers)  # fmt: skip
    assert back == ["1", "2"], "each record comes once, though one redrive was cancelled"
    assert ask(broker, "POST", "/v1/redrives", {"topic": "nowhere"})[0] == 404
    plain = ask(broker, "POST", "/v1/redrives", {"topic": queue.topic})[1]
    failed = ended(broker, plain)
    assert (failed["state"], failed["error"]["retriable"]) == ("failed", False)
    assert "names its origin; nothing was sent" in failed["error"]["detail"]


def test_a_dead_letter_without_an_origin_is_named_and_the_others_are_sent(letters, broker):
    queue, topic = letters
    send(broker, topic, "stray")
    ran = User(broker.kafka).types("dead", "redrive", topic, "--json")
    assert ran.code == 1
    assert "1 records of" in ran.err
    done = json.loads(ran.out)
    assert (done["sent"], done["kept"], done["failed_count"]) == ({queue.topic: 4}, 1, 1)
    assert "does not name its origin" in done["failed"][0]["error"]
    assert sum(value == "stray" for value, _ in values(broker, topic)) == 2, "it is kept at the end"
    ran = User(broker.kafka).types("dead", "redrive", topic, "--to", queue.topic, "--json")
    assert (ran.code, json.loads(ran.out)["sent"]) == (0, {queue.topic: 1})


def origin_of(broker, topic: str) -> dict:
    found = ask(broker, "GET", f"/v1/dead-letters/{topic}/letters")[2]
    return {one["record"]["value"]: one for one in found["letters"]}


def test_an_edited_letter_is_sent_in_its_place_and_names_its_editor(letters, headrace, broker):
    queue, topic = letters
    one = origin_of(broker, topic)["3"]
    place = f"{one['partition']}:{one['letter_offset']}"
    headrace("dead", "edit", topic, place, "--value", "mended", "--header", "h=1")
    assert {"mended", "1", "2", "4"} == {*origin_of(broker, topic)}
    done = json.loads(headrace("dead", "redrive", topic, "--json"))
    assert (done["sent"], done["edited"], done["kept"]) == ({queue.topic: 4}, 1, 0)
    back = {value: headers for value, headers in values(broker, queue.topic)
            if "headrace-redriven-from" in headers}  # fmt: skip
    assert {*back} == {"mended", "1", "2", "4"}
    assert back["mended"]["h"] == b"1"
    assert back["mended"]["headrace-edited"].endswith(b" value,headers")
    assert back["mended"]["headrace-redriven-from"] == f"{topic}-{place}".encode()
    assert json.loads(headrace("dead", "list", topic, "--json")) == []


def test_an_edited_letter_is_shown_as_it_will_be_sent_whatever_others_claim(
    letters, headrace, broker
):
    queue, topic = letters
    one = origin_of(broker, topic)["3"]
    place = f"{one['partition']}:{one['letter_offset']}"
    headrace("dead", "edit", topic, place, "--value", "mended")
    producer = Producer({"bootstrap.servers": broker.kafka})
    claim = [
        ("headrace-dlq-edit-of", place.encode()),
        ("headrace-producer", f"letter-edit/00-{place}/1".encode()),
        ("headrace-sequence", b"0"),
        ("kafka_dlt-original-topic", queue.topic.encode()),
        ("kafka_dlt-original-partition", bytes(4)),
        ("kafka_dlt-original-offset", bytes(8)),
    ]
    producer.produce(topic, b"forged", partition=one["partition"], headers=claim)
    assert producer.flush(20) == 0
    shown = json.loads(headrace("dead", "show", topic, "--json"))
    assert {row["value"] for row in shown} == {"1", "2", "mended", "4", "forged"}
    mended = next(row for row in shown if row["value"] == "mended")
    assert f"{mended['partition']}:{mended['offset']}" == place
    done = json.loads(headrace("dead", "redrive", topic, "--json"))
    assert (done["sent"], done["edited"], done["kept"]) == ({queue.topic: 5}, 1, 0)


def test_results_that_undo_may_need_are_not_overwritten(letters, headrace, broker, tmp_path):
    _, topic = letters
    results, tried = tmp_path / "sent.jsonl", tmp_path / "tried.jsonl"
    headrace("dead", "redrive", topic, "--results", str(tried), "--dry-run")
    ran = User(broker.kafka).types("dead", "undo", topic, str(tried))
    assert ran.code == 2
    assert "is of a dry run" in ran.err
    headrace("dead", "redrive", topic, "--results", str(results))
    before = results.read_text()
    assert len(before.splitlines()) == 4
    for more in ((), ("--dry-run",)):
        ran = User(broker.kafka).types("dead", "redrive", topic, "--results", str(results), *more)
        assert ran.code == 2
        assert "nothing was sent" in ran.err
    assert results.read_text() == before


def test_one_letter_is_sent_and_the_others_are_kept_with_their_edits(letters, headrace, broker):
    queue, topic = letters
    found = origin_of(broker, topic)
    places = {v: f"{one['partition']}:{one['letter_offset']}" for v, one in found.items()}
    headrace("dead", "edit", topic, places["2"], "--value", "mended")
    done = json.loads(headrace("dead", "redrive", topic, "--letter", places["1"], "--json"))
    assert (done["sent"], done["kept"]) == ({queue.topic: 1}, 3)
    assert {*origin_of(broker, topic)} == {"mended", "3", "4"}


def test_dead_letters_redriven_too_often_are_kept_and_named(letters, broker):
    queue, topic = letters
    headers = [("__dlq.errors.topic", queue.topic.encode()), ("headrace-redrives", b"3")]
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"loops", partition=0, headers=headers)
    assert producer.flush(20) == 0
    ran = User(broker.kafka).types("dead", "redrive", topic, "--json")
    done = json.loads(ran.out)
    assert (ran.code, done["sent"], done["kept"]) == (1, {queue.topic: 4}, 1)
    assert "sent back 3 times" in done["failed"][0]["error"]
    ran = User(broker.kafka).types("dead", "redrive", topic, "--loop-max", "9", "--json")
    assert (ran.code, json.loads(ran.out)["sent"]) == (0, {queue.topic: 1})


def test_letters_of_spring_are_sent_back_to_their_partition(name, headrace, broker):
    topic = f"{name}.DLT"
    Queue(broker, name, name)
    spring = [
        ("kafka_dlt-original-topic", name.encode()),
        ("kafka_dlt-original-partition", (2).to_bytes(4, "big")),
        ("kafka_dlt-exception-message", b"timeout"),
        ("own", b"1"),
    ]
    producer = Producer({"bootstrap.servers": broker.kafka})
    producer.produce(topic, b"x", headers=spring)
    assert producer.flush(20) == 0
    (row,) = json.loads(headrace("dead", "list", topic, "--json"))
    assert (row["origin"], row["reason"], row["format"]) == (name, "timeout", "Spring")
    headrace("dead", "redrive", topic)
    answer = ask(broker, "GET", f"/v1/topics/{name}/records?partition=2")[2]
    names = [one for one, *_ in answer["records"][0]["headers"]]
    assert names == ["own", "headrace-redrives", "headrace-redriven-from"]


def test_a_redrive_is_undone_where_no_consumer_has_seen_it(letters, headrace, broker, tmp_path):
    queue, topic = letters
    results = tmp_path / "sent.jsonl"
    headrace("dead", "redrive", topic, "--results", str(results))
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["outcome"] for row in rows] == ["sent"] * 4
    (seen,) = queue.receive(max=1, wait_ms=20_000)
    ran = User(broker.kafka).types("dead", "undo", topic, str(results), "--json")
    found = json.loads(ran.out)
    assert (ran.code, sum(one["taken_back"] for one in found)) == (5, 3)
    (kept,) = [one for one in found if not one["taken_back"]]
    assert f"was delivered to group {name_of(queue)}" in kept["reason"]
    assert {*origin_of(broker, topic)} == {"1", "2", "3", "4"} - {seen["value"]}
    assert queue.receive(max=10, wait_ms=500) == []


def name_of(queue) -> str:
    return queue.path.rpartition("/")[2]
