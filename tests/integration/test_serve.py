"""`headrace serve` as an operator meets it: signals, settings, a start that is called off."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

SERVE = [sys.executable, "-m", "headrace.cli.main", "serve"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "headrace.toml"
    path.write_text('[serve]\npartitions = 3\nlog-level = "info"\n')
    return path


def test_sighup_reads_the_file_again_and_never_ends_the_broker(tmp_path, config) -> None:
    broker = Broker(tmp_path, "--config", str(config)).start()
    try:
        assert broker.process is not None
        for text, said in (
            ('[serve]\npartitions = 3\nlog-level = "debug"\n', "log-level is now debug"),
            (
                '[serve]\npartitions = 4\nlog-level = "debug"\n',
                "partitions will change at the next",
            ),
            ('[serve]\npartitions = "4"\n', "no settings were changed"),
        ):
            config.write_text(text)
            broker.process.send_signal(signal.SIGHUP)
            wait_until(lambda said=said: said in broker.log())
        assert broker.get("/readyz")[0] == 200
    finally:
        broker.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_without_a_file_is_a_line_in_the_log(tmp_path, workers) -> None:
    broker = Broker(tmp_path, "--workers", str(workers)).start()
    try:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "SIGHUP: no configuration file" in broker.log())
        assert broker.process.poll() is None
    finally:
        broker.stop()


def test_a_misspelt_variable_is_a_line_in_the_log(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HEADRACE_PARTITION", "6")
    broker = Broker(tmp_path).start()
    broker.stop()
    assert "HEADRACE_PARTITION is set" in broker.log()
    assert "did you mean HEADRACE_PARTITIONS?" in broker.log()


def test_a_folder_with_newer_metadata_is_refused_and_stays_as_it_was(tmp_path) -> None:
    broker = Broker(tmp_path).start()
    broker.stop()
    database = sqlite3.connect(broker.data_dir / "metadata.sqlite")
    with contextlib.closing(database):
        database.execute("PRAGMA user_version = 99")
    for name in ("metadata.sqlite-wal", "metadata.sqlite-shm"):
        (broker.data_dir / name).unlink(missing_ok=True)
    before = _content(broker.data_dir)
    command = [*SERVE, "--data-dir", str(broker.data_dir), "--kafka", "127.0.0.1:0"]
    ran = subprocess.run([*command, "--http", "127.0.0.1:0"], capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"metadata format 99" in ran.stderr
    assert _content(broker.data_dir) == before


def test_a_folder_whose_metadata_is_lost_is_refused_and_keeps_its_records(tmp_path) -> None:
    """A start with new metadata would delete every ledger, since no topic names them."""
    broker = Broker(tmp_path).start()
    for arguments in (["topic", "create", "orders"], ["produce", "orders"]):
        command = [sys.executable, "-m", "headrace.cli.main", "-b", broker.kafka, *arguments]
        subprocess.run(command, input=b"one\ntwo\n", capture_output=True, check=True)
    broker.stop()
    for path in broker.data_dir.glob("metadata.sqlite*"):
        path.unlink()
    ledgers = _content(broker.data_dir / "ledgers")
    command = [*SERVE, "--data-dir", str(broker.data_dir), "--kafka", "127.0.0.1:0"]
    ran = subprocess.run([*command, "--http", "127.0.0.1:0"], capture_output=True, check=False)
    assert ran.returncode == 1
    assert b"metadata.sqlite is missing" in ran.stderr
    assert _content(broker.data_dir / "ledgers") == ledgers


def test_a_folder_in_use_can_be_checked_and_dumped(tmp_path) -> None:
    broker = Broker(tmp_path).start()
    run = [sys.executable, "-m", "headrace.cli.main"]
    subprocess.run([*run, "-b", broker.kafka, "topic", "create", "orders"], check=True)
    command = [*run, "-b", broker.kafka, "produce", "orders"]
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert producer.stdin is not None
    for _ in range(3):
        producer.stdin.write(b"word\n" * 20_000)
        done = subprocess.run([*run, "check", str(broker.data_dir)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        assert broker.process is not None
        assert f"In use by process {broker.process.pid}" in done.stderr
    producer.stdin.close()
    assert producer.wait(60) == 0
    dumped = [*run, "dump", "log", str(broker.data_dir), "orders-0", "--records", "--json"]
    assert b'"value":"word"' in subprocess.run(dumped, capture_output=True, check=True).stdout
    broker.stop()


def _content(folder: Path) -> dict[Path, bytes | bool]:
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_may_be_called_off(tmp_path, number) -> None:
    """It waits for a ZooKeeper that is not there."""
    command = [*SERVE, "--zookeeper", "127.0.0.1:1", "--kafka", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--http", "127.0.0.1:0"], cwd=tmp_path, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"running as" in process.stderr.readline()
    process.send_signal(number)
    _, told = process.communicate(timeout=30)
    assert b"Traceback" not in told
    assert process.returncode in (0, 130, -number)


def test_ctrl_c_at_any_moment_of_the_start_shows_no_traceback(tmp_path) -> None:
    command = [sys.executable, "-m", "headrace", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    for delay_ms in range(100, 700, 120):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ
        )
        try:
            process.wait(delay_ms / 1000)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
        # Before our first line runs, the interpreter itself may show where it was.
        assert b"Traceback" not in told or b"headrace" not in told, told.decode()


def test_the_log_is_json_if_asked_for_and_parts_have_levels_of_their_own(tmp_path):
    options = ["--log-format", "json", "--log-levels", "headrace.broker.topics=error"]
    broker = Broker(tmp_path, *options).start()
    try:
        create_topic(broker.kafka, "quiet")
        lines = [json.loads(line) for line in broker.log().splitlines()]
        assert {"time", "level", "logger", "message"} <= lines[-1].keys()
        assert lines[-1]["time"].endswith("Z")
        assert not any("created topic" in line["message"] for line in lines)
        mark = broker.log_size()
        changed = [sys.executable, "-m", "headrace.cli.main", "-b", broker.kafka, "config", "set"]
        subprocess.run([*changed, "headrace.log.levels="], check=True, capture_output=True)
        create_topic(broker.kafka, "loud")
        wait_until(lambda: any("created topic loud" in line for line in broker.log_since(mark)))
        refused = subprocess.run(
            [*changed, "headrace.log.levels=asyncio=debug"], capture_output=True, check=False
        )
        assert refused.returncode != 0
        assert b"expected LOGGER=LEVEL" in refused.stderr
    finally:
        broker.stop()


def test_slow_requests_are_logged_with_what_they_waited_for_and_all_on_demand(tmp_path):
    broker = Broker(tmp_path).start()
    set_config = [sys.executable, "-m", "headrace.cli.main", "-b", broker.kafka, "config", "set"]
    try:
        create_topic(broker.kafka, "t")
        Confluent.produce(broker.kafka, "t", [Rec(None, b"v")])
        assert "slow_requests" not in broker.log()
        subprocess.run([*set_config, "headrace.log.slow.request.ms=0"], check=True)
        mark = broker.log_size()
        Confluent.produce(broker.kafka, "t", [Rec(None, b"secret value")])
        broker.get("/v1/topics")

        def kinds() -> set[str]:
            lines = [line for line in broker.log_since(mark) if "runtime.slow_requests" in line]
            assert all(" from 127.0.0.1:" in line and " ms" in line for line in lines)
            return {line.partition("slow_requests: ")[2].split(" from ")[0] for line in lines}

        wait_until(lambda: {"Produce", "Metadata", "HTTP listTopics (200)"} <= kinds())
        assert "secret value" not in broker.log()
        # what a client waits for by its own wish is not slow
        subprocess.run([*set_config, "headrace.log.slow.request.ms=400"], check=True)
        mark = broker.log_size()
        from confluent_kafka import Consumer, TopicPartition

        wanted = {"bootstrap.servers": broker.kafka, "group.id": "g", "fetch.wait.max.ms": 1500}
        consumer = Consumer(wanted)
        consumer.assign([TopicPartition("t", 0, 2)])
        consumer.poll(2)
        consumer.close()
        assert "Fetch" not in kinds()
    finally:
        broker.stop()
