"""Redrives over HTTP of a broker with logins and access control lists: with whose rights they run.

Its only Kafka listener, at which the command that redrives arrives, has no mechanism enabled that
the command could use as a user.
"""

from __future__ import annotations

import base64
import http.client
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from tests.integration.broker import Broker
from tests.integration.certificates import Certificates
from tests.waiting import wait_until

from headrace.cli.main import cli
from headrace.records.letters import SHARE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 60
PASSWORD = "a-password-of-the-test"
DEAD, ORDERS, OTHER = "orders.dead", "orders", "other"
REDRIVE = f"headrace-redrive.{DEAD}"
NEEDED = [
    (ResourceType.TOPIC, DEAD, AclOperation.READ),
    (ResourceType.GROUP, REDRIVE, AclOperation.READ),
    (ResourceType.TRANSACTIONAL_ID, REDRIVE, AclOperation.WRITE),
]
USERS = ("admin", "alice", "bob", "carol")


class Guarded:
    """A broker whose inter-broker listener has this protocol."""

    def __init__(self, folder: Path, protocol: str) -> None:
        certificates = Certificates(folder / "certificates")
        options = [
            *("--listener-security-protocol-map", f"INSIDE:{protocol}"),
            *("--sasl-enabled-mechanisms", "PLAIN"),
            *("--http-security-protocol", "SASL_PLAINTEXT"),
            *("--super-users", "User:admin;User:CN=admin;User:CN=broker"),
        ]
        self.settings: dict[str, Any] = {"log_level": 0, "security.protocol": protocol}
        if protocol.endswith("SSL"):
            options += certificates.options("required" if protocol == "SSL" else "none")
            self.settings |= certificates.client("admin")
        if protocol.startswith("SASL"):
            self.settings |= {"sasl.mechanism": "PLAIN", "security.protocol": protocol}
            self.settings |= {"sasl.username": "admin", "sasl.password": PASSWORD}
        self.broker = Broker(folder / "broker", *options)
        self.broker.kafka = "INSIDE://127.0.0.1:0"
        for user in USERS:
            command = ["user", "add", user, "--password-file", "-", "--data-dir"]
            done = CliRunner().invoke(
                cli, [*command, str(self.broker.data_dir)], input=f"{PASSWORD}\n"
            )
            assert done.exit_code == 0, done.output
        self.broker.start()
        self.settings["bootstrap.servers"] = self.broker.kafka
        self.admin = AdminClient(self.settings)
        topics = [NewTopic(name, 1) for name in (DEAD, ORDERS, OTHER)]
        for future in self.admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        rules = [self.rule(user, *need) for user in USERS[1:] for need in NEEDED]
        rules += [
            self.rule("alice", ResourceType.TOPIC, ORDERS, AclOperation.WRITE),
            self.rule("bob", ResourceType.TOPIC, OTHER, AclOperation.WRITE),
            self.rule("carol", ResourceType.TOPIC, "*", AclOperation.WRITE),
            self.rule("carol", ResourceType.TOPIC, ORDERS, AclOperation.WRITE,
                      AclPermissionType.DENY),
        ]  # fmt: skip
        for created in self.admin.create_acls(rules).values():
            created.result(TIMEOUT_S)

    def rule(
        self, user: str, kind: Any, name: str, operation: Any, permission: Any = None
    ) -> AclBinding:
        allowed = permission or AclPermissionType.ALLOW
        principal = f"User:{user}"
        return AclBinding(
            kind, name, ResourcePatternType.LITERAL, principal, "*", operation, allowed
        )

    def send_dead_letters(self, count: int) -> None:
        producer = Producer(self.settings)
        for number in range(count):
            headers = {"topic": ORDERS, "partition": "0", "offset": str(number)}
            named = [(SHARE + name, value.encode()) for name, value in headers.items()]
            producer.produce(DEAD, f"letter-{number}", headers=named)
        assert producer.flush(TIMEOUT_S) == 0

    def values(self, topic: str) -> list[str]:
        """The committed records of the topic's only partition."""
        settings = {"group.id": "probe", "enable.partition.eof": True}
        consumer = Consumer({**self.settings, **settings})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
            found.append(message.value().decode())
        consumer.close()
        return found

    def ask(self, user: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        host, _, port = self.broker.http.rpartition(":")
        client = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
        login = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
        try:
            client.request(method, path, None if body is None else json.dumps(body), headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            client.close()

    def redrive(self, user: str, **more: Any) -> Any:
        """The task, once it has ended; or the refusal."""
        status, task = self.ask(user, "POST", "/v1/redrives", {"topic": DEAD, **more})
        if status != 202:
            return task

        def ended() -> Any:
            found = self.ask(user, "GET", f"/v1/redrives/{task['id']}")[1]
            return found if found["state"] != "running" else None

        return wait_until(ended, TIMEOUT_S)


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL", "SSL"])
def guarded(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("redrives"), request.param)
    yield made
    made.broker.stop()


def test_a_redrive_does_what_its_client_may_and_nothing_else(guarded):
    guarded.send_dead_letters(3)
    refused = guarded.redrive("bob", to=ORDERS)
    assert (refused["status"], "WRITE topic 'orders'" in refused["detail"]) == (403, True)
    refused = guarded.redrive("alice")
    assert (refused["status"], "WRITE topic '*'" in refused["detail"]) == (403, True)
    refused = guarded.redrive("alice", to=ORDERS, reason="x")
    assert (refused["status"], f"WRITE topic '{DEAD}'" in refused["detail"]) == (403, True)

    # A rule that denies one topic holds for records that name it, whoever else may write to it.
    denied = guarded.redrive("carol")
    if guarded.settings["security.protocol"] == "SSL":
        assert (denied["status"], "WRITE topic '*'" in denied["detail"]) == (403, True)
    else:
        assert denied["state"] == "failed"
        assert '"principal":"User:carol","host":"127.0.0.1","listener":"INSIDE"' in (
            next(line for line in guarded.broker.log().splitlines() if "AddPartitions" in line)
        )
    assert guarded.values(ORDERS) == []

    done = guarded.redrive("alice", to=ORDERS)
    assert done["state"] == "done", done
    assert done["results"][-1] == {"dry_run": False, "sent": {ORDERS: 3}, "kept": 0}
    assert guarded.values(ORDERS) == ["letter-0", "letter-1", "letter-2"]
    log = guarded.broker.log()
    assert PASSWORD not in log
    assert "Traceback" not in log
