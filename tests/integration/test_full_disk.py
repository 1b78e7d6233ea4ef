"""A disk that fills up: producers are told, readers go on, nothing acknowledged is lost, and
writing goes on when there is room again.

The broker runs in a mount namespace with a small tmpfs as its folder, so the disk is really full;
where the machine allows no such namespace the test says so and is skipped.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DISK_MIB = 300
VALUE_BYTES = 200_000


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-Urm", "sh", "-c", "mount -t tmpfs -o size=1m t /mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    if not _can_mount():
        pytest.skip("this machine allows no mount namespace: a full disk cannot be made here")
    disk = tmp_path / "disk"
    disk.mkdir()
    serve = f"{sys.executable} -m headrace.cli.main serve --json --data-dir {disk}/data"
    script = f"mount -t tmpfs -o size={DISK_MIB}m t {disk} && exec {serve}"
    script += " --kafka 127.0.0.1:0 --http 127.0.0.1:0"
    with open(tmp_path / "broker.log", "wb") as log:
        process = subprocess.Popen(
            ["unshare", "-Urm", "sh", "-c", script], stdout=subprocess.PIPE, stderr=log
        )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["kafka"]
        assert process.poll() is None, "the broker outlives a full disk"
    finally:
        process.terminate()
        process.wait(120)
        assert process.stdout is not None
        process.stdout.close()


def _value(number: int) -> bytes:
    return b"%010d" % number * (VALUE_BYTES // 10)


def _produce_until_full(bootstrap: str, topic: str, most: int) -> tuple[dict[int, int], list[str]]:
    """(offset -> number of what was acknowledged, the errors of what was not)."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.timeout.ms": 4_000,
            "enable.idempotence": False,
            "queue.buffering.max.kbytes": 8_000,
            "linger.ms": 0,
        }
    )
    stored: dict[int, int] = {}
    errors: list[str] = []
    for number in range(most):

        def told(error: object, message: object, number: int = number) -> None:
            if error is None:
                stored[message.offset()] = number
            else:
                errors.append(str(error))

        while True:
            try:
                producer.produce(topic, _value(number), on_delivery=told)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        if errors:
            break
    producer.flush(60)
    return stored, errors


def _read_all(bootstrap: str, topic: str) -> dict[int, bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        _low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + 120
        while len(found) < high and time.monotonic() < deadline:
            for message in consumer.consume(500, 1.0):
                if message.error():
                    raise KafkaException(message.error())
                found[message.offset()] = message.value()
        return found
    finally:
        consumer.close()


def test_a_full_disk_costs_nothing_that_was_acknowledged(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("ballast", 1), NewTopic("kept", 1)]).values():
        future.result(90)
    ballast, _errors = _produce_until_full(bootstrap, "ballast", 300)
    assert ballast, "there is room at first"
    stored, errors = _produce_until_full(bootstrap, "kept", 2_000)
    assert errors, "the disk has filled up, and the producer was told"

    found = _read_all(bootstrap, "kept")
    for offset, number in stored.items():
        assert found[offset] == _value(number), "acknowledged, so it is there"
    assert sorted(found) == list(range(len(found))), "offsets are dense"
    known = {_value(number) for number in range(2_001)}
    assert set(found.values()) <= known, "nothing that was not sent"

    admin.delete_topics(["ballast"])["ballast"].result(90)
    deadline = time.monotonic() + 120
    again: dict[int, int] = {}
    while not again and time.monotonic() < deadline:
        again, _errors = _produce_until_full(bootstrap, "kept", 5)
    assert again, "there is room again, so writing goes on"
    after = _read_all(bootstrap, "kept")
    assert {offset: after[offset] for offset in found} == found, "what was there has not changed"
    for offset, number in again.items():
        assert after[offset] == _value(number)
