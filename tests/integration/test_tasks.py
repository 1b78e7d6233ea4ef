"""`headrace task` and what else the command line shows of what a page of the console shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from types import SimpleNamespace
from typing import Any

from tests.integration.clients import Confluent, Rec, create_topic
from tests.waiting import wait_until

PROGRAM = [sys.executable, "-m", "headrace.cli.main"]
DEAD = [("__dlq.errors.topic", b"orders"), ("__dlq.errors.message", b"boom")]


def ask(broker: Any, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://{broker.http}{path}", data, headers, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def run(broker: Any, *arguments: str, code: int = 0, **environment: str) -> str:
    known = {"HEADRACE_BOOTSTRAP": broker.kafka, "HEADRACE_HTTP": broker.http}
    done = subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, **known, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_tasks_are_listed_shown_completed_and_stopped(make_broker) -> None:
    broker = make_broker()
    create_topic(broker.kafka, "orders")
    create_topic(broker.kafka, "orders.dead")
    Confluent.produce(broker.kafka, "orders", [Rec(b"k", b'{"n": %d}' % n) for n in range(30)])
    Confluent.produce(broker.kafka, "orders.dead", [Rec(b"k", b"dead", DEAD)] * 50)
    search = ask(broker, "POST", "/v1/searches", {"topic": "orders", "where": "value.n < 3"})["id"]
    redrive = ask(broker, "POST", "/v1/redrives", {"topic": "orders.dead", "rate": 1})["id"]

    def listed(*options: str) -> dict[str, tuple[str, str]]:
        found = json.loads(run(broker, "task", "list", "--json", *options))["tasks"]
        return {one["id"]: (one["kind"], one["state"]) for one in found}

    wait_until(lambda: listed()[search] == ("search", "done"))
    assert listed() == {search: ("search", "done"), redrive: ("redrive", "running")}
    assert listed("--running").keys() == {redrive}
    assert listed("--kind", "search").keys() == {search}
    assert search in run(broker, "task", "list")
    shown = json.loads(run(broker, "task", "show", search[:8], "--json"))
    assert (shown["kind"], shown["asked"]["where"]) == ("search", "value.n < 3")
    lines = run(broker, "task", "show", search).splitlines()
    assert [json.loads(one)["offset"] for one in lines] == [0, 1, 2]
    words = f"headrace task stop {redrive[:6]}"
    completed = {"_HEADRACE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
    assert redrive in run(broker, **completed)
    assert run(broker, "task", "stop", redrive).endswith("cancelled\n")
    wait_until(lambda: listed()[redrive] == ("redrive", "cancelled"))
    assert "has ended already: done" in run(broker, "task", "stop", search)
    assert "headrace task list" in run(broker, "task", "show", "0" * 32, code=3)


def test_the_tasks_of_all_workers_are_listed_shown_and_stopped_by_any(make_broker) -> None:
    broker = make_broker("--workers", "2")
    workers = [SimpleNamespace(kafka=broker.kafka, http=one) for one in broker.http.split(",")]
    create_topic(broker.kafka, "orders", 4)
    Confluent.produce(broker.kafka, "orders", [Rec(b"k%d" % n, b"v") for n in range(30)])
    body = {"topic": "orders", "key": "k1"}
    started = [ask(one, "POST", "/v1/searches", body) for one in workers]
    brokers = {one["id"]: one["broker"] for one in started}
    assert len({*brokers.values()}) == 2
    for one in workers:
        found = json.loads(run(one, "task", "list", "--json"))
        assert {task["id"]: task["broker"] for task in found["tasks"]} == brokers
        assert "failed" not in found
    for one, task in zip(workers, reversed(started), strict=True):
        path = f"/v1/searches/{task['id']}"
        wait_until(lambda one=one, path=path: ask(one, "GET", path)["state"] == "done")
        shown = json.loads(run(one, "task", "show", task["id"], "--json"))
        assert [found["key"] for found in shown["results"]] == ["k1"]
        ask(one, "DELETE", path)
    assert json.loads(run(workers[0], "task", "list", "--json")) == {"tasks": []}


def test_a_letter_and_the_journal_of_a_partition_are_shown(make_broker) -> None:
    broker = make_broker()
    create_topic(broker.kafka, "orders")
    create_topic(broker.kafka, "orders.dead")
    Confluent.produce(broker.kafka, "orders.dead", [Rec(b"k", b"%d" % n, DEAD) for n in range(3)])
    (letter,) = json.loads(run(broker, "dead", "show", "orders.dead", "--letter=0:1", "--json"))
    assert (letter["offset"], letter["value"]) == (1, "1")
    Confluent.produce(broker.kafka, "orders", [Rec(b"k", b"{}")] * 2)
    change = {"set": {"share.auto.offset.reset": "earliest"}}
    ask(broker, "PATCH", "/v1/groups/workers/config", change)
    path = "/v1/queues/orders/workers"
    got = ask(broker, "POST", f"{path}/receive", {"max": 2, "wait_ms": 30_000})
    receipts = [one["receipt"] for one in got["messages"]]
    ask(broker, "POST", f"{path}/settle", {"ack": receipts})
    journal = "queue", "journal", "orders", "--partition=0"
    changes = json.loads(run(broker, *journal, "--json"))["changes"]
    assert ("workers", "acknowledged", 0, 1) in {
        (one["group"], one["event"], one["first"], one["last"]) for one in changes
    }
    assert "acknowledged" in run(broker, *journal)
