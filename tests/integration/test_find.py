"""`headrace find` on real brokers: all workers' partitions, in every state."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from typing import Any

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import create_topic
from tests.waiting import wait_until

PARTITIONS = 6


@pytest.fixture
def workers(tmp_path):
    broker = Broker(tmp_path, "--workers", "2")
    broker.start()
    yield broker
    broker.stop()


def headrace(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker.kafka, *arguments]
    return subprocess.run(
        [*command, "--http", broker.http.split(",")[0]],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def ask(broker: Broker, method: str, path: str, body: object, address: str = "") -> Any:
    request = urllib.request.Request(
        f"http://{address or broker.http.split(',')[0]}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
        return json.load(answer)


def test_a_message_is_found_on_whichever_worker_it_is(workers) -> None:
    from confluent_kafka import Producer

    create_topic(workers.kafka, "orders", PARTITIONS, headrace_message_attributes="true")
    producer = Producer({"bootstrap.servers": workers.kafka})
    for number in range(PARTITIONS * 2):
        headers = [("headrace-message-id", f"id-{number}"), ("headrace-tag", "vip")]
        if number >= PARTITIONS:
            headers.append(("headrace-delay", "3600000"))
        value = f"value {number}"
        producer.produce("orders", value, None, number % PARTITIONS, headers=headers)
    assert producer.flush(30) == 0
    found = headrace(workers, "find", "orders", "--tag", "vip", "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["is_complete"]
    values = sorted(one["value"] for one in answer["messages"])
    assert values == sorted(f"value {number}" for number in range(PARTITIONS * 2))
    states = [one["state"] for one in answer["messages"]]
    assert states.count("delayed") == PARTITIONS
    chosen = "text in ['value 1', 'value 5', 'value 10'] && headers['headrace-tag'] == 'vip'"
    filtered = headrace(workers, "find", "orders", "--filter", chosen, "--json")
    found_values = [one["value"] for one in json.loads(filtered.stdout)["messages"]]
    assert sorted(found_values) == ["value 1", "value 10", "value 5"], filtered.stderr
    unclear = headrace(workers, "find", "orders", "--filter", "value.amount > 3")
    assert unclear.returncode != 0
    assert "--filter has no value for 12 of the records" in unclear.stderr
    wrong = headrace(workers, "find", "orders", "--filter", "value.amount >")
    assert wrong.returncode != 0
    assert "where" in wrong.stderr or "expression" in wrong.stderr
    for number in range(PARTITIONS):
        one = headrace(workers, "find", "orders", "--id", f"id-{number}")
        assert f"value {number}" in one.stdout, one.stderr
    told = headrace(workers, "trace", "orders", "id-3", "--json")
    assert [event["event"] for event in json.loads(told.stdout)["events"]] == ["stored"]
    assert headrace(workers, "trace", "orders", "3:0").returncode == 0
    assert headrace(workers, "trace", "orders", "id-99").returncode != 0
    missing = headrace(workers, "find", "orders", "--id", "id-99")
    assert missing.returncode != 0
    assert "no message of orders matches" in missing.stderr
    assert missing.stdout == ""
    later = str(int(time.time() * 1000) + 60_000)
    assert headrace(workers, "find", "orders", "--since", f"@{later}").returncode != 0


def test_keys_are_parked_on_every_worker_and_a_probe_leaves_no_group_behind(workers) -> None:
    create_topic(workers.kafka, "jobs", PARTITIONS)
    body = {"set": {"headrace.share.key.order": "true"}}
    ask(workers, "PATCH", "/v1/groups/workers/config", body)
    dry = headrace(workers, "backlog", "park", "workers", "jobs", "hot", "--dry-run")
    assert (dry.returncode, "1 keys would be parked" in dry.stderr) == (0, True), dry.stderr
    assert headrace(workers, "backlog", "park", "workers", "jobs", "hot").returncode == 0
    dry = headrace(workers, "backlog", "unpark", "workers", "jobs", "hot", "--dry-run")
    assert (dry.returncode, "would be released" in dry.stderr) == (0, True), dry.stderr
    listed = json.loads(headrace(workers, "backlog", "parked", "workers", "jobs", "--json").stdout)
    assert sorted(one["partition"] for one in listed) == list(range(PARTITIONS))
    assert headrace(workers, "backlog", "unpark", "workers", "jobs", "hot").returncode == 0
    again = headrace(workers, "backlog", "unpark", "workers", "jobs", "hot")
    assert "none of these keys is parked" in again.stderr
    probed = headrace(workers, "backlog", "probe", "jobs", "-n", "3", "--every", "1ms", "--json")
    assert probed.returncode == 0, probed.stderr
    result = json.loads(probed.stdout)
    assert 0 < result["stored_ms"]["p50"] <= result["received_ms"]["max"] < 60_000
    assert result["count"] == 3
    groups = headrace(workers, "group", "list")
    assert "headrace-probe" not in groups.stdout


def test_a_share_groups_backlog_is_moved_from_every_worker(workers) -> None:
    from confluent_kafka import Producer

    create_topic(workers.kafka, "jobs", PARTITIONS)
    create_topic(workers.kafka, "later", PARTITIONS)
    for address in workers.http.split(","):
        ask(workers, "POST", "/v1/queues/jobs/movers/receive", {"max": 1}, address)
    moving = "backlog", "move", "movers", "jobs", "--to", "later", "--json"
    # The first request for groups creates the topic by which they have a coordinator.
    wait_until(lambda: headrace(workers, *moving, "--dry-run").returncode == 0)
    producer = Producer({"bootstrap.servers": workers.kafka})
    for number in range(PARTITIONS * 2):
        producer.produce("jobs", b"v", None, number % PARTITIONS)
    assert producer.flush(30) == 0
    moved = headrace(workers, *moving)
    assert moved.returncode == 0, moved.stderr
    assert json.loads(moved.stdout)["records"] == PARTITIONS * 2, moved.stderr
    assert "not moved" not in moved.stderr
    # What a consumer has is its own: it is not moved, and the command says so.
    address = workers.http.split(",")[0]
    producer.produce("jobs", b"v", None, 0)
    producer.produce("jobs", b"v", None, 1)
    assert producer.flush(30) == 0
    held = ask(workers, "POST", "/v1/queues/jobs/movers/receive", {"max": 2}, address)
    assert held["messages"]
    moved = headrace(workers, *moving)
    left = 2 - json.loads(moved.stdout)["records"]
    assert left == len(held["messages"])
    assert f"{left:,} records were not moved" in moved.stderr
