"""The compiled core in a real broker, and under the tests of what it was made of."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.integration.broker import Broker

from headrace.runtime import compiled

ROOT = Path(__file__).resolve().parents[2]
ITS_TESTS = ("tests/unit/kafka", "tests/unit/log", "tests/unit/storage", "tests/property/kafka")
ITS_TESTS += ("tests/property/log", "tests/property/storage", "tests/property/records")


def _use(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for number in range(500):
        producer.produce("numbers", str(number).encode())
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "all", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["numbers"])
    found = [message.value() for message in consumer.consume(500, 30)]
    consumer.close()
    assert found == [str(number).encode() for number in range(500)]


def _build(folder: Path, level: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    core = folder / "core"
    build = [sys.executable, "scripts/build_core.py", "--must", "--into", str(core)]
    done = subprocess.run(
        [*build, "--level", level], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return core


def test_a_broker_serves_from_the_compiled_core_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv(compiled.SWITCH, str(_build(tmp_path, "0")))
    broker = Broker(tmp_path).start()
    try:
        assert "running as compiled core" in broker.log()
        _use(broker.kafka)
        broker.crash()
        again = Consumer({"bootstrap.servers": broker.kafka, "group.id": "again"})
        found = again.get_watermark_offsets(TopicPartition("numbers", 0), timeout=60)
        again.close()
        assert found == (0, 500), "what was acknowledged outlives kill -9"
    finally:
        broker.stop()


def test_a_broker_that_must_be_compiled_and_cannot_does_not_start(tmp_path):
    environment = {**os.environ, compiled.SWITCH: str(tmp_path / "nothing")}
    command = [sys.executable, "-m", "headrace.cli.main", "serve"]
    command += ["--data-dir", str(tmp_path / "data"), "--kafka", "127.0.0.1:0"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode != 0
    assert "make fast" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_compiled_core_passes_the_tests_of_its_modules(tmp_path):
    environment = {**os.environ, compiled.SWITCH: str(_build(tmp_path, "2"))}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ITS_TESTS]
    done = subprocess.run(
        tests, cwd=ROOT, env=environment, timeout=1800, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
