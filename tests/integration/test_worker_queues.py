"""Queues over HTTP where workers own the partitions: each worker serves the whole topic."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.integration.test_workers import PARTITIONS, kill_worker, leaders, produce
from tests.waiting import wait_until

TOPIC, GROUP = "jobs", "workers"
QUEUE = f"/v1/queues/{TOPIC}/{GROUP}"


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


class Worker:
    """The HTTP interface of one worker."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, method: str, path: str, body=None):
        host, port = self.address.rsplit(":", 1)
        client = http.client.HTTPConnection(host, int(port), timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            client.request(method, path, data, {"Content-Type": "application/json"})
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            client.close()

    def receive(self, **body):
        status, answer = self.ask("POST", f"{QUEUE}/receive", body)
        assert status == 200, answer
        return answer["messages"]

    def settle(self, **body):
        status, answer = self.ask("POST", f"{QUEUE}/settle", body)
        assert status == 200, answer
        return answer["results"]


@pytest.fixture
def workers(tmp_path):
    broker = Broker(tmp_path, "--workers", "2")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def queue(workers):
    """Both workers, each of which owns half of the partitions."""
    create_topic(workers.kafka, TOPIC, PARTITIONS)
    for at in workers.kafka.split(","):
        wait_until(lambda at=at: sorted(leaders(at, TOPIC)) == [0, 0, 0, 1, 1, 1])
    both = [Worker(address) for address in workers.http.split(",")]
    config = {"set": {"share.auto.offset.reset": "earliest"}}
    status, answer = both[0].ask("PATCH", f"/v1/groups/{GROUP}/config", config)
    assert status == 200, answer
    return both


def test_one_worker_gives_and_settles_the_messages_of_all(workers, queue):
    sent = sorted(b"%d" % number for number in range(120))
    produce(workers.kafka, TOPIC, sent)
    found: list[bytes] = []
    while messages := queue[0].receive(max=50, wait_ms=1_000):
        found += [one["value"].encode() for one in messages]
        results = queue[1].settle(ack=[one["receipt"] for one in messages])
        assert all(one["ok"] for one in results), results
    assert sorted(found) == sent


def test_a_long_poll_at_one_worker_ends_with_a_message_at_the_other(workers, queue):
    other = leaders(workers.kafka, TOPIC).index(1)
    assert queue[0].receive(max=1) == []
    found = []
    waiting = threading.Thread(target=lambda: found.extend(queue[0].receive(wait_ms=30_000)))
    began_s = time.monotonic()
    waiting.start()
    time.sleep(0.5)  # it waits by now, or finds the message at once: both are right
    produce(workers.kafka, TOPIC, [b"%d" % number for number in range(other + 1)])
    waiting.join()
    assert found
    assert time.monotonic() - began_s < 20


def test_while_a_worker_is_away_the_messages_of_the_other_come(workers, queue):
    sent = {str(number) for number in range(60)}
    produce(workers.kafka, TOPIC, [one.encode() for one in sent])
    assert queue[0].receive(max=1), "the group has begun"
    kill_worker(workers, 1)
    seen: dict[str, int] = {}
    deadline = time.monotonic() + 60
    while len(seen) < len(sent) - 1:
        assert time.monotonic() < deadline, f"{len(seen)} messages came"
        status, answer = queue[0].ask("POST", f"{QUEUE}/receive", {"max": 100, "wait_ms": 1_000})
        if status != 200:
            assert (status, answer["retriable"]) == (503, True), answer
            continue
        for one in answer.get("failed", ()):
            assert one["error"]["retriable"], answer
        seen |= {one["value"]: one["deliveries"] for one in answer["messages"]}
        results = queue[0].settle(ack=[one["receipt"] for one in answer["messages"]] or ["0.0.a"])
        assert all(one["ok"] for one in results) or not answer["messages"], results


def test_each_worker_lists_all_groups_from_the_first_call_on(queue):
    queue[0].receive(max=1)
    for worker in (queue[1], queue[0]):
        status, answer = worker.ask("GET", "/v1/groups")
        assert status == 200, answer
        assert [one["group"] for one in answer["groups"]] == [GROUP]


def test_each_worker_administers_the_queue_of_the_whole_topic(workers, queue):
    ask = partial(cli, "-b", workers.kafka)  # `--http` alone would be compared with the default
    every = list(range(PARTITIONS))
    config = {"set": {"headrace.share.key.order": "true"}}
    assert queue[0].ask("PATCH", f"/v1/groups/{GROUP}/config", config)[0] == 200
    produce(workers.kafka, TOPIC, [b"%d" % number for number in range(60)])
    held = queue[0].receive(max=1)
    status, answer = queue[1].ask("POST", f"{QUEUE}/park", {"keys": ["hot"]})
    assert (status, answer.get("failed")) == (200, None), answer
    for worker in queue:
        _, answer = worker.ask("GET", f"{QUEUE}/parked")
        assert [one["partition"] for one in answer["parked"]] == every
        _, answer = worker.ask("GET", QUEUE)
        assert [one["partition"] for one in answer["partitions"]] == every
        assert sum(one["lag"] for one in answer["partitions"]) == 60
        assert sum(one["in_flight"] for one in answer["partitions"]) == len(held) == 1
    watched = [
        cli(
            "-b",
            workers.kafka,
            "queue",
            "watch",
            TOPIC,
            GROUP,
            "-n",
            "1",
            "--json",
            "--http",
            worker.address,
        )
        for worker in queue
    ]
    for done in watched:
        assert done.returncode == 0, done.stderr
        assert [one["partition"] for one in json.loads(done.stdout)["partitions"]] == every
    address = "--http", queue[0].address
    done = ask("backlog", "unpark", GROUP, TOPIC, "hot", *address)
    assert "1 of 1 keys were released" in done.stdout + done.stderr
    done = cli(
        "-b", workers.kafka, "backlog", "parked", GROUP, TOPIC, "--json", "--http", queue[1].address
    )
    assert json.loads(done.stdout) == []
    kill_worker(workers, 1)
    wait_until(lambda: ask("backlog", "park", GROUP, TOPIC, "hot", *address).returncode == 0)
    status, answer = queue[0].ask("GET", f"{QUEUE}/parked")
    assert (status, answer.get("failed")) == (200, None), answer
    assert [one["partition"] for one in answer["parked"]] == every, "success means everywhere"


def test_a_setting_made_at_one_worker_holds_for_the_next_request_to_another(workers, queue):
    """Also where the former setting would refuse nothing: what is given up goes to the dead letter
    topic that was set a moment ago, and a setting read elsewhere is the new one."""
    create_topic(workers.kafka, "dead", 1)
    for turn in range(20):
        here, there = queue[turn % 2], queue[1 - turn % 2]
        group = f"group-{turn}"
        path, config = f"/v1/queues/{TOPIC}/{group}", f"/v1/groups/{group}/config"
        settings = {
            "headrace.share.key.order": "true",
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": "dead",
        }
        for name, value in settings.items():  # each change builds upon the other worker's
            status, answer = here.ask("PATCH", config, {"set": {name: value}})
            assert status == 200, answer
            here, there = there, here
            _, answer = here.ask("GET", config)
            shown = {one["name"]: one["value"] for one in answer["settings"]}
            assert shown[name] == value, (turn, name)
        status, answer = here.ask("POST", f"{path}/park", {"keys": ["hot"]})
        assert (status, answer.get("failed")) == (200, None), (turn, answer)
        produce(workers.kafka, TOPIC, [b"%d" % turn])
        status, answer = there.ask("POST", f"{path}/receive", {"max": 100, "wait_ms": 5_000})
        assert status == 200, answer
        assert answer["messages"], "the group begins at the earliest record"
        off = {"set": {"headrace.share.key.order": "false"}}
        assert here.ask("PATCH", config, off)[0] == 200
        status, answer = there.ask("POST", f"{path}/park", {"keys": ["cold"]})
        assert status != 200 or len(answer["failed"]) == PARTITIONS, (turn, answer)


def test_a_queue_of_a_topic_that_was_just_made_serves_through_every_worker(workers):
    both = [Worker(address) for address in workers.http.split(",")]
    for turn in range(20):
        maker = both[turn % 2]
        name = f"fresh-{turn}"
        status, answer = maker.ask("POST", "/v1/topics", {"name": name, "partitions": PARTITIONS})
        assert status in {200, 201}, answer
        for worker in both if turn % 3 else reversed(both):
            path = f"/v1/queues/{name}/group-{turn}/receive"
            status, answer = worker.ask("POST", path, {"max": 10})
            assert status == 200, (turn, worker is maker, answer)
            assert "failed" not in answer, (turn, worker is maker, answer)
