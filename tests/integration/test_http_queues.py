"""Queues over HTTP, on a real broker: receive, settle, and what is refused."""

from __future__ import annotations

import http.client
import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)


class Queue:
    def __init__(self, broker, topic: str, group: str = "workers", **configs: str) -> None:
        self.broker = broker
        self.path = f"/v1/queues/{topic}/{group}"
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.create_topics([NewTopic(topic, 3)])[topic].result(30)
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in {"share.auto.offset.reset": "earliest", **configs}.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)
        self.producer = Producer({"bootstrap.servers": broker.kafka})
        self.topic = topic

    def send(self, *values: str | bytes) -> None:
        for value in values:
            self.producer.produce(self.topic, value)
        assert self.producer.flush(30) == 0

    def ask(self, method: str, suffix: str, body=None, **headers: str):
        host, port = self.broker.http.rsplit(":", 1)
        client = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            client.request(
                method,
                self.path + suffix,
                data,
                {"Content-Type": "application/json", **headers},
            )
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            client.close()

    def receive(self, **body):
        status, answer = self.ask("POST", "/receive", body)
        assert status == 200, answer
        return answer["messages"]

    def settle(self, **body):
        status, answer = self.ask("POST", "/settle", body)
        assert status == 200, answer
        return answer["results"]


def test_messages_are_received_and_settled_each_in_its_own_way(broker, name):
    queue = Queue(broker, name, name, **{"errors.deadletterqueue.topic.name": f"{name}.dead"})
    queue.send("ack", "nack", "dead", b"\xff\xfe")
    messages = {m["value"]: m for m in queue.receive(max=10, wait_ms=20_000)}
    while len(messages) < 4:
        messages |= {m["value"]: m for m in queue.receive(max=10, wait_ms=20_000)}
    assert messages["//4="]["value_encoding"] == "base64"
    results = queue.settle(
        ack=[messages["ack"]["receipt"], messages["//4="]["receipt"]],
        nack=[{"receipt": messages["nack"]["receipt"], "delay_ms": 50}],
        dead_letter=[{"receipt": messages["dead"]["receipt"], "reason": "cannot be parsed"}],
    )
    assert [result["ok"] for result in results] == [True] * 4
    (again,) = queue.receive(max=10, wait_ms=20_000)
    assert (again["value"], again["deliveries"]) == ("nack", 2)
    (stale,) = queue.settle(ack=[messages["nack"]["receipt"]])
    assert not stale["ok"], "a receipt of an earlier delivery settles nothing"
    assert queue.settle(ack=[again["receipt"]])[0]["ok"]
    dead = Queue(broker, f"{name}.other", f"{name}-dead")
    dead.path = f"/v1/queues/{name}.dead/{name}-dead"
    (letter,) = dead.receive(max=10, wait_ms=20_000)
    assert letter["value"] == "dead"
    assert ["__dlq.errors.message", "cannot be parsed"] in letter["headers"]


def test_a_receive_waits_for_what_comes(broker, name):
    queue = Queue(broker, name, name)
    assert queue.receive(max=1) == []
    queue.send("late")
    (message,) = queue.receive(max=5, wait_ms=20_000)
    status, answer = queue.ask("GET", "")
    assert status == 200
    assert sum(part["in_flight"] for part in answer["partitions"]) == 1
    assert queue.settle(extend=[{"receipt": message["receipt"], "lock_ms": 60_000}])[0]["ok"]


@pytest.mark.parametrize(
    ("suffix", "body", "status"),
    [
        ("/receive", {"max": 0}, 400),
        ("/receive", {"max": 1001}, 400),
        ("/receive", {"max": "ten"}, 400),
        ("/receive", ["max"], 400),
        ("/settle", {"ack": "garbage"}, 400),
        ("/settle", {"acks": []}, 400),
    ],
)
def test_bad_requests_get_a_problem_that_says_what_to_do(broker, name, suffix, body, status):
    queue = Queue(broker, name, name)
    code, answer = queue.ask("POST", suffix, body)
    assert (code, answer["status"], answer["retriable"]) == (status, status, False)
    assert answer["detail"]
    assert answer["next_step"]


def test_a_malformed_receipt_is_refused_alone(broker, name):
    queue = Queue(broker, name, name)
    queue.send("1")
    (message,) = queue.receive(max=1, wait_ms=20_000)
    wrong, right = queue.settle(ack=["garbage", message["receipt"]])
    assert (wrong["ok"], right["ok"]) == (False, True)
    assert (wrong["retriable"], bool(wrong["error"])) == (False, True)


def test_a_form_of_another_site_is_refused(broker, name):
    queue = Queue(broker, name, name)
    headers = {"Content-Type": "text/plain"}
    status, answer = queue.ask("POST", "/receive", {"max": 1}, **headers)
    assert status == 400
    assert "application/json" in answer["detail"]


def test_an_unknown_topic_is_not_found(broker, name):
    queue = Queue(broker, name, name)
    queue.path = f"/v1/queues/{name}-nowhere/g"
    assert queue.ask("POST", "/receive", {})[0] == 404
