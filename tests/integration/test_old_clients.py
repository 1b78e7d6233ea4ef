"""The oldest and the middle versions that people use of clients whose newest other tests run."""

from __future__ import annotations

import subprocess

import pytest
from tests.integration.clients import create_topic
from tests.integration.foreign import go_family_program, rust_family_program
from tests.integration.test_transactions import fresh

COUNT = 300
RUN_TIMEOUT_S = 120
MAKES_TOPICS = {"librdkafka"}


@pytest.mark.parametrize(
    ("library", "age"),
    [
        ("librdkafka", "oldest"),
        ("franz", "oldest"),
        ("franz", "middle"),
        ("sarama", "oldest"),
        ("sarama", "middle"),
    ],
)
def test_an_old_client_writes_idempotently_and_reads_in_a_group(broker, library, age):
    program = go_family_program(library, age)
    topic = fresh(f"{library}-{age}")
    if library not in MAKES_TOPICS:
        create_topic(broker.kafka, topic)
    check([program, broker.kafka, topic, str(COUNT)])


@pytest.mark.timeout(900)  # the program may have to be built first
@pytest.mark.parametrize("age", ["oldest", "middle"])
def test_an_old_rskafka_writes_and_reads(broker, age):
    program = rust_family_program(age)
    topic = fresh(f"rskafka-{age}")
    create_topic(broker.kafka, topic)
    check([program, broker.kafka, topic, str(COUNT), "none"])


def check(command):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.split()[-1] == "ok"
