"""Brokers on several hosts: commands that ask a whole cluster, and which HTTP address they use."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.cluster.brokers import Brokers
from tests.integration.clients import create_topic

from headrace.cli.session import CliSession
from headrace.cli.web import http_address
from headrace.dev_cluster.ports import free_port

PARTITIONS = 6
LIMIT_S = 120
OTHER_HOST = "LOCALHOST"
"""It leads here and does not look like it: a host's name, unless `localhost`, may be elsewhere."""


@pytest.fixture
def root(tmp_path):
    return ("--zookeeper-root", f"/{tmp_path.name}")


def headrace(brokers: Brokers, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "-b", brokers.by_id[1].kafka, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_commands_for_all_partitions_end_where_each_broker_has_its_own_host(
    tmp_path, shared_cluster, root
):
    address = shared_cluster.zookeeper.address
    brokers = Brokers(tmp_path, address, 3, *root, host="127.0.0.{}")
    try:
        hosts = {broker.http.partition(":")[0] for broker in brokers.by_id.values()}
        assert hosts == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
        create_topic(brokers.bootstrap, "orders", PARTITIONS, headrace_message_attributes="true")
        assert len(set(brokers.leaders("orders").values())) > 1
        producer = Producer({"bootstrap.servers": brokers.bootstrap})
        kinds = {"now": {}, "later": {"headrace-delay": "3600000"}, "half": {"headrace-half": "s"}}
        for kind, headers in kinds.items():
            for number in range(PARTITIONS):
                own = {"headrace-message-id": f"{kind}-{number}", **headers}
                producer.produce("orders", f"{kind} {number}", partition=number, headers=own)
        assert producer.flush(LIMIT_S) == 0
        found = headrace(brokers, "find", "orders", "--since", "1h")
        assert found["is_complete"]
        values = {one["value"] for one in found["messages"]}
        assert values >= {f"{kind} {n}" for kind in ("now", "later") for n in range(PARTITIONS)}
        for number in (0, PARTITIONS - 1):
            events = headrace(brokers, "trace", "orders", f"now-{number}")["events"]
            assert [one["event"] for one in events] == ["stored"]
        for command, kind in (("delayed", "later"), ("half", "half")):
            listed = json.dumps(headrace(brokers, command, "list", "orders"))
            assert all(f"{kind}-{number}" in listed for number in range(PARTITIONS)), listed
    finally:
        brokers.close()


def test_a_broker_that_registers_loopback_by_mistake_is_not_asked_if_another_is_right(
    tmp_path, shared_cluster, root
):
    brokers = Brokers(tmp_path, shared_cluster.zookeeper.address, 0, *root)
    try:
        for number in (1, 2):
            port = free_port()
            advertised = ("--advertise", f"{OTHER_HOST}:{port}")
            broker = brokers.prepare(number, *advertised)
            broker.kafka = f"127.0.0.1:{port}"
            if number == 2:
                broker.http = "0.0.0.0:0"
                broker.options += ("--insecure",)
            brokers.add(number)
        found = http_address(CliSession(brokers.by_id[1].kafka))
        assert found.partition(":")[0] == OTHER_HOST
        assert found.rpartition(":")[2] == brokers.by_id[2].http.rpartition(":")[2]
    finally:
        brokers.close()
