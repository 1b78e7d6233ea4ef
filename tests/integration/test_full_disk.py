"""A disk that fills up: every client gets a final error soon, operators see it in the log, in
/readyz and in the metrics; readers go on, nothing acknowledged is lost, and writing goes on when
there is room again.

The broker runs in a mount namespace with a small tmpfs as its folder, so the disk is really full;
where the machine allows no such namespace the test says so and is skipped.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, NamedTuple

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

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


class Full(NamedTuple):
    """A broker on a small disk."""

    bootstrap: str
    http: str
    log_path: Path

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def gauge(self, name: str) -> float:
        _code, text = self.get("/metrics")
        return float(re.findall(rf"^{name} (\S+)", text, re.MULTILINE)[0])

    def logged(self, text: str) -> int:
        return self.log_path.read_text().count(text)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Full]:
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
        ready = json.loads(process.stdout.readline())
        yield Full(ready["kafka"], ready["http"], tmp_path / "broker.log")
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
            "message.timeout.ms": 30_000,
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
                errors.append(repr(error))

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


async def _aiokafka_error(bootstrap: str, topic: str) -> str:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"x" * 1_000)
    except Exception as error:
        return repr(error)
    finally:
        await producer.stop()
    return "stored"


def _kafka_python_error(bootstrap: str, topic: str) -> str:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    try:
        producer.send(topic, b"x" * 1_000).get(60)
    except Exception as error:
        return repr(error)
    finally:
        producer.close()
    return "stored"


def _librdkafka_error(bootstrap: str, topic: str, *, is_idempotent: bool) -> str:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": is_idempotent})
    errors: list[str] = []
    producer.produce(topic, b"x" * 1_000, on_delivery=lambda error, _: errors.append(repr(error)))
    producer.flush(60)
    return errors[0] if errors else "nothing for 60 s"


def _check_clients(broker: Full, topic: str) -> None:
    """With their default settings, whose time-outs are 2 and 5 minutes."""
    begun_s = time.monotonic()
    for is_idempotent in (True, False):
        error = _librdkafka_error(broker.bootstrap, topic, is_idempotent=is_idempotent)
        assert "POLICY_VIOLATION" in error
    assert "PolicyViolation" in asyncio.run(_aiokafka_error(broker.bootstrap, topic))
    assert "PolicyViolation" in _kafka_python_error(broker.bootstrap, topic)
    assert time.monotonic() - begun_s < 30, "each is told at once"


def _check_command_line(broker: Full, topic: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "-b", broker.bootstrap, "produce", topic]
    begun_s = time.monotonic()
    lines = b"a line of thirty characters...\n" * 2_000_000
    run = subprocess.run(command, input=lines, capture_output=True, check=False, timeout=120)
    assert time.monotonic() - begun_s < 15, "it does not read on"
    told = run.stderr.decode()
    assert run.returncode == 1
    assert "the disk is full: broker 0" in told
    assert "Delete topics" in told


def _check_operator(broker: Full) -> None:
    code, text = broker.get("/readyz")
    assert (code, json.loads(text)) == (503, {"ready": False, "disk_full": True})
    assert broker.gauge("headrace_disk_is_full") == 1
    free, reserve = broker.gauge("headrace_disk_free_bytes"), DISK_MIB * 1024 * 1024 / 20
    assert broker.gauge("headrace_disk_reserve_bytes") == reserve
    assert 0 < free < 3 * reserve
    assert broker.logged("the disk is full") == 1, broker.log_path.read_text()[-3_000:]
    assert broker.logged("has free space again") == 0


def test_a_full_disk_loses_no_acknowledged_record_and_is_reported_to_all(
    broker: Full,
) -> None:
    bootstrap = broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("ballast", 1), NewTopic("kept", 1)]).values():
        future.result(90)
    ballast, _errors = _produce_until_full(bootstrap, "ballast", 300)
    assert ballast, "there is room at first"
    stored, errors = _produce_until_full(bootstrap, "kept", 2_000)
    assert errors, "the disk has filled up, and the producer was told"

    assert all("POLICY_VIOLATION" in error for error in errors), errors
    _check_operator(broker)
    _check_clients(broker, "kept")
    _check_command_line(broker, "kept")
    _check_operator(broker)

    found = _read_all(bootstrap, "kept")
    for offset, number in stored.items():
        assert found[offset] == _value(number), "acknowledged, so it is there"
    assert sorted(found) == list(range(len(found))), "offsets are dense"
    known = {_value(number) for number in range(2_001)}
    assert set(found.values()) <= known, "nothing that was not sent"

    admin.delete_topics(["ballast"])["ballast"].result(90)
    deadline = time.monotonic() + 120
    while broker.get("/readyz")[0] != 200 and time.monotonic() < deadline:
        pass  # nothing is appended meanwhile
    assert broker.gauge("headrace_disk_is_full") == 0
    assert broker.logged("has free space again") == 1
    again: dict[int, int] = {}
    while not again and time.monotonic() < deadline:
        again, _errors = _produce_until_full(bootstrap, "kept", 5)
    assert again, "there is room again, so writing goes on"
    after = _read_all(bootstrap, "kept")
    assert {offset: after[offset] for offset in found} == found, "what was there has not changed"
    for offset, number in again.items():
        assert after[offset] == _value(number)
