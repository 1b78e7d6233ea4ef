"""Transactions of clients in Go, JavaScript and old Java: an exactly-once copy, also killed."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
from confluent_kafka import Producer
from tests.integration.clients import create_topic
from tests.integration.foreign import go_program, node_program, old_java_program
from tests.integration.test_transactions import fresh, read_all

COPY_TIMEOUT_S = 120
END = b"end"
"""The last record of each partition: a copier stops once it has committed both."""
LIBRARIES = {
    "franz-go": go_program,
    "sarama": go_program,
    "kafkajs": node_program,
    "platformatic": node_program,
    "java-2.8": old_java_program,
}


class Copier:
    """How one library's program is started, on topics and a group of its own."""

    def __init__(self, broker, library: str) -> None:
        self.program, self.environment = LIBRARIES[library]()
        self.library = library
        self.topic_in, self.topic_out = fresh("in"), fresh("out")
        self.bootstrap = broker.kafka
        create_topic(broker.kafka, self.topic_in, 2)
        create_topic(broker.kafka, self.topic_out, 2)

    def start(self, **flags: object) -> subprocess.Popen[str]:
        options = {
            "bootstrap": self.bootstrap,
            "in": self.topic_in,
            "out": self.topic_out,
            "group": f"{self.topic_in}-group",
            "id": f"{self.topic_in}-copier",
        } | flags
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return subprocess.Popen(
            [*self.program, self.library, *arguments],
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    """Its last line of output; it must have ended well."""
    try:
        out, err = process.communicate(timeout=COPY_TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, (out + err)[-3000:]
    return json.loads(out.splitlines()[-1])


def seed(broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_copy_with_aborts_is_exactly_once(broker, library):
    copier = Copier(broker, library)
    values = [*numbered(200), END, END]
    seed(broker, copier.topic_in, values)

    done = finish(copier.start(**{"abort-every": 4}))

    assert done["aborts"] > 0, "no transaction was aborted: nothing is proven"
    assert read_all(broker, copier.topic_out) == values
    assert len(read_all(broker, copier.topic_out, "read_uncommitted")) > len(values)


@pytest.mark.parametrize(
    "library",
    [
        "franz-go",
        pytest.param("sarama", marks=pytest.mark.long),
        pytest.param("kafkajs", marks=pytest.mark.long),
        "java-2.8",
        # @platformatic/kafka 2.12 begins with producer id 0 and epoch 0, not -1 (KIP-360): once its
        # transactional id is known, any broker has to fence it.
    ],
)
def test_a_copier_that_is_killed_goes_on_where_its_last_commit_was(broker, library):
    copier = Copier(broker, library)
    values = [*numbered(1_000), END, END]
    seed(broker, copier.topic_in, values[:-2])

    first = copier.start(batch=5)
    try:
        deadline = time.monotonic() + COPY_TIMEOUT_S
        while not read_all(broker, copier.topic_out, "read_uncommitted"):
            assert first.poll() is None, "it ended by itself"
            assert time.monotonic() < deadline, "nothing was copied"
    finally:
        first.kill()
        first.communicate()
    seed(broker, copier.topic_in, values[-2:])
    finish(copier.start())

    assert read_all(broker, copier.topic_out) == values
