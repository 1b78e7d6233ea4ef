"""Clients without transactions, and administration by an old one: rskafka, kafka-clients 2.8."""

from __future__ import annotations

import json
import subprocess

import pytest
from confluent_kafka import Producer
from tests.integration.clients import create_topic, watermarks
from tests.integration.foreign import old_java_program, rust_program
from tests.integration.test_transactions import fresh, read_all

RUN_TIMEOUT_S = 120
COUNT = 500


def output_of(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy"])
def test_rskafka_copies_what_librdkafka_wrote_and_deletes_records(broker, codec):
    program = rust_program()
    topic_in, topic_out = fresh("in"), fresh("out")
    create_topic(broker.kafka, topic_in, 1)
    producer = Producer({"bootstrap.servers": broker.kafka, "compression.type": codec})
    values = [b"%06d" % number for number in range(COUNT)]
    for value in values:
        producer.produce(topic_in, value, headers={"number": value})
    assert producer.flush(30) == 0

    told = output_of([*program, broker.kafka, topic_in, topic_out, codec, "100"])

    assert json.loads(told.splitlines()[-1]) == {"copied": COUNT, "start": 100, "end": COUNT}
    assert watermarks(broker.kafka, topic_out) == (100, COUNT)
    assert read_all(broker, topic_in) == values
    assert read_all(broker, topic_out)[-400:] == values[100:]


def test_java_2_8_administers_produces_and_consumes_in_a_group(broker):
    command, _environment = old_java_program()
    flags = ["--bootstrap", broker.kafka, "--in", fresh("in"), "--group", fresh("group")]

    output_of([*command, "administration", *flags, "--batch", "500"])
