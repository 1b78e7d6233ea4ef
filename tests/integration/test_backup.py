"""Backups of a broker that is written to meanwhile, and what a restored one holds."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.integration.broker import Broker
from tests.integration.clients import Confluent, Rec, create_topic, end_of
from tests.s3_server import BUCKET, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 120
RECORDS_BEFORE = 300


def run(*arguments: str) -> tuple[int, str]:
    """(exit code, all output)."""
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout + done.stderr


def back_up(broker: Broker, folder) -> dict:
    code, shown = run("backup", str(folder), "--data-dir", str(broker.data_dir), "--json")
    assert code == 0, shown
    return json.loads(shown)


def read_all(broker: Broker, topic: str) -> list[bytes]:
    """All values of a topic with one partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "reader"})
    try:
        end = end_of(consumer, topic, 0)
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        while len(found) < end:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
        return found
    finally:
        consumer.close()


def committed(broker: Broker, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g"})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
        return found.offset
    finally:
        consumer.close()


def commit(broker: Broker, topic: str, offset: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g"})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(tmp_path, workers) -> None:
    # ledgers of 1 MiB and checkpoints soon: files come, go and are recycled meanwhile
    options = ["--workers", workers, "--log-segment-bytes", "1048576"]
    broker = Broker(tmp_path / "broker", *options).start()
    stop, sent = threading.Event(), []
    try:
        bootstrap = broker.kafka.split(",")[0]
        create_topic(bootstrap, "t")
        before = [b"before-%d" % n for n in range(RECORDS_BEFORE)]
        Confluent.produce(bootstrap, "t", [Rec(None, value) for value in before])
        commit(broker, "t", RECORDS_BEFORE)

        def load() -> None:
            number = 0
            while not stop.is_set():
                values = [b"%d-" % (number + n) + b"x" * 20_000 for n in range(50)]
                Confluent.produce(bootstrap, "t", [Rec(None, value) for value in values])
                number += 50
                sent.append(number)

        loading = threading.Thread(target=load)
        loading.start()
        try:
            for number in range(3):
                back_up(broker, tmp_path / f"backup-{number}")
        finally:
            stop.set()
            loading.join()
    finally:
        broker.stop()
    assert sent
    for number in range(3):
        restored = Broker(tmp_path / f"restored-{number}", *options)
        arguments = ["restore", str(tmp_path / f"backup-{number}")]
        code, shown = run(*arguments, "--data-dir", str(restored.data_dir))
        assert code == 0, shown
        assert "no damage" in shown
        restored.start()
        try:
            values = read_all(restored, "t")
            assert values[:RECORDS_BEFORE] == before
            rest = [int(value.partition(b"-")[0]) for value in values[RECORDS_BEFORE:]]
            assert rest == list(range(len(rest))), (
                "a prefix of what was sent: the state of a moment"
            )
            assert committed(restored, "t") == RECORDS_BEFORE
            Confluent.produce(restored.kafka.split(",")[0], "t", [Rec(None, b"goes on")])
            assert read_all(restored, "t")[-1] == b"goes on"
        finally:
            restored.stop()


def test_nothing_is_overwritten_and_a_changed_backup_is_refused(tmp_path) -> None:
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "t")
    Confluent.produce(broker.kafka, "t", [Rec(None, b"value" * 100)] * 10)
    backup = tmp_path / "backup"
    done = back_up(broker, backup)
    broker.stop()
    assert done["records"] >= 10
    modes = {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in backup.rglob("*")}
    assert modes == {0}, "its owner's alone"

    code, shown = run("backup", str(backup), "--data-dir", str(broker.data_dir))
    assert (code, "is not empty" in shown) == (1, True)
    code, shown = run("restore", str(backup), "--data-dir", str(broker.data_dir))
    assert (code, "is not empty" in shown) == (1, True)
    code, shown = run("backup", str(tmp_path / "none"), "--data-dir", str(tmp_path / "nowhere"))
    assert (code, "not a data folder" in shown) == (1, True)

    # of a broker that runs, the last records may be in the write-ahead log alone
    files = [path for path in backup.rglob("*") if path.is_file()]
    (file, *_) = [path for path in files if b"valuevalue" in path.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(b"valuevalue")] ^= 1
    file.write_bytes(data)
    target = tmp_path / "restored"
    code, shown = run("restore", str(backup), "--data-dir", str(target))
    assert (code, "has changed since the backup was made" in shown) == (1, True)
    assert not target.exists()
    assert not list(tmp_path.glob("*.partial"))

    manifest = json.loads((backup / "backup.json").read_text())
    manifest["files"]["../evil"] = [0, ""]
    (backup / "backup.json").write_text(json.dumps(manifest))
    code, shown = run("restore", str(backup), "--data-dir", str(target))
    assert (code, "names the file" in shown) == (1, True)
    assert not (tmp_path / "evil").exists()


def test_a_damaged_folder_is_not_backed_up_as_if_it_were_sound(tmp_path) -> None:
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "t")
    Confluent.produce(broker.kafka, "t", [Rec(None, b"value" * 100)] * 10)
    broker.stop()
    broker.is_damaged = True
    for path in (broker.data_dir / "ledgers").rglob("*.ledger"):
        data = bytearray(path.read_bytes())
        if (place := data.find(b"valuevalue")) >= 0:
            data[place] ^= 1
            path.write_bytes(data)
    code, shown = run("backup", str(tmp_path / "backup"), "--data-dir", str(broker.data_dir))
    assert code == 1
    assert "is damaged" in shown
    assert "headrace check" in shown
    assert not (tmp_path / "backup").exists()


@pytest.fixture
def place(request, tmp_path, monkeypatch) -> Iterator[tuple[str, Path]]:
    """A URL for backups, and the folder that its objects are in."""
    if request.param == "file":
        yield f"file://{tmp_path}/objects/monday", tmp_path / "objects" / "monday"
        return
    server = S3Server(tmp_path).start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield f"s3://{BUCKET}/monday", server.root / BUCKET / "monday"
    server.stop()


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_a_backup_in_object_storage_is_restored_and_a_changed_one_refused(tmp_path, place) -> None:
    url, objects = place
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "t")
    values = [b"value-%d-" % number + b"x" * 500 for number in range(2_000)]
    Confluent.produce(broker.kafka, "t", [Rec(None, value) for value in values])
    staging = tmp_path / "staging"
    staging.mkdir()
    arguments = ["backup", url, "--data-dir", str(broker.data_dir), "--staging", str(staging)]
    code, shown = run(*arguments)
    assert code == 0, shown
    assert f"backed up to {url}: " in shown
    assert not list(staging.iterdir()), "the local copy is removed"
    code, shown = run(*arguments)
    assert (code, "is not empty" in shown) == (1, True), "nothing is overwritten"
    broker.stop()

    restored = Broker(tmp_path / "restored")
    code, shown = run("restore", url, "--data-dir", str(restored.data_dir))
    assert code == 0, shown
    restored.start()
    try:
        assert read_all(restored, "t") == values
    finally:
        restored.stop()

    file = max(objects.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    target = tmp_path / "again"
    code, shown = run("restore", url, "--data-dir", str(target))
    assert (code, "has changed since the backup was made" in shown) == (1, True)
    file.unlink()
    code, shown = run("restore", url, "--data-dir", str(target))
    assert code == 1
    assert not target.exists()
    (objects / "backup.json").unlink()
    code, shown = run("restore", url, "--data-dir", str(target))
    assert (code, "is not a backup" in shown) == (1, True), "only the manifest makes it one"


def test_an_upload_that_fails_leaves_nothing_that_looks_like_a_backup(tmp_path) -> None:
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "t")
    broker.stop()
    store = tmp_path / "objects"
    store.mkdir()
    # what is read back is not what was written
    code = (
        "from headrace.storage.tiering.blob_store import BlockingBlobs as B\n"
        "get = B.get\n"
        "def flipped(self, name, start, size):\n"
        "    data = bytearray(get(self, name, start, size))\n"
        "    if name.endswith('metadata.sqlite') and data: data[0] ^= 1\n"
        "    return bytes(data)\n"
        "B.get = flipped\n"
        "from headrace.cli.main import main\nmain()\n"
    )
    command = [sys.executable, "-c", code, "backup", f"file://{store}/monday"]
    environment = {**os.environ, "HEADRACE_DATA_DIR": str(broker.data_dir)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 1
    assert "reads back differently" in done.stderr
    assert [path for path in store.rglob("*") if path.is_file()] == []


def transaction(broker: Broker, values: list[bytes], *, end: str | None) -> None:
    """Write them in a transaction, and commit or abort it, or leave it open."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": broker.kafka, "transactional.id": f"t-{end}"}
    producer = Producer({**config, "message.max.bytes": 2_000_000})
    producer.init_transactions(60)
    producer.begin_transaction()
    for value in values:
        producer.produce("t", value=value, key=b"k", headers=[("h", b"1")], timestamp=1234)
    producer.flush(60)
    if end is not None:
        getattr(producer, f"{end}_transaction")(60)


def test_readable_records_of_a_damaged_partition_are_copied_to_a_topic(tmp_path) -> None:
    broker = Broker(tmp_path / "broker").start()
    create_topic(broker.kafka, "t")
    for number in range(5):
        Confluent.produce(broker.kafka, "t", [Rec(None, b"value-%d-" % number * 100)] * 2)
    large = b"committed".ljust(1_000_001, b".")  # more than a client sends by default
    transaction(broker, [large], end="commit")
    transaction(broker, [b"aborted"], end="abort")
    transaction(broker, [b"open"], end=None)
    broker.stop()
    broker.is_damaged = True
    for path in (broker.data_dir / "ledgers").rglob("*.ledger"):
        data = bytearray(path.read_bytes())
        if (place := data.find(b"value-2-value-2")) >= 0:
            data[place] ^= 1
            path.write_bytes(data)
    source = [str(broker.data_dir), "t-0"]
    code, shown = run("salvage", *source, "--dry-run", "--json")
    assert code == 0, shown
    found = json.loads(shown)
    assert (found["records"], found["warnings"]) == (9, [])
    assert [(gap["first"], gap["last"], gap["is_undecided"]) for gap in found["gaps"]] == [
        (4, 5, False),
        (14, 14, True),
    ]

    other = Broker(tmp_path / "other").start()
    try:
        code, shown = run("-b", other.kafka, "salvage", *source, "--to", "t")
        assert code != 0, "there is no such topic"
        create_topic(other.kafka, "t")
        code, shown = run("-b", other.kafka, "salvage", *source, "--to", "t")
        change = "topic alter t --set retention.ms=-1"
        assert (code, change in shown) == (1, True), "records of 1970 would be deleted"
        assert run("-b", other.kafka, *change.split())[0] == 0
        code, shown = run("-b", other.kafka, "salvage", *source, "--to", "t")
        assert code == 0, shown
        assert "9 records of t-0 salvaged to t; 2 gaps" in shown
        expected = [b"value-%d-" % number * 100 for number in (0, 0, 1, 1, 3, 3, 4, 4)]
        assert read_all(other, "t") == [*expected, large]
        code, shown = run(
            "-b", other.kafka, "consume", "t", "--from", "8", "--count", "1", "--json"
        )
        kept = json.loads(shown.splitlines()[0])
        assert (kept["key"], kept["timestamp"]) == ("k", 1234)
        code, shown = run("-b", other.kafka, "salvage", *source, "--to", "t")
        assert (code, "is not empty" in shown) == (1, True), "no record twice"
    finally:
        other.stop()
    code, shown = run("salvage", str(broker.data_dir), "nosuch-0", "--dry-run")
    assert (code, "no partition nosuch-0" in shown) == (1, True)
