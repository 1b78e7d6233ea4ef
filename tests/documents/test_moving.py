"""Scripts of the moving guide, with the real systems that they move messages from."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.debian import unpacked
from tests.documents.commands import ROOT, blocks
from tests.integration.broker import Broker
from tests.integration.clients import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long
LIMIT_S = 300
COUNT = 3_000
BUNDLE = 500
"""Entries that the script moves at a time, which are all that it may repeat."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which `redis-cli` finds a server."""
    packages = [unpacked(one) for one in ("redis-tools", "libjemalloc2", "liblzf1", "libatomic1")]
    if None in packages or shutil.which("jq") is None:
        pytest.skip("no jq, or no redis-tools by apt-get")
    tools, *libraries = filter(None, packages)
    folders = [str(next(one.rglob("*.so.*")).parent) for one in libraries]
    server, socket = tmp_path / "redis-server", tmp_path / "redis.socket"
    server.symlink_to(tools / "usr" / "bin" / "redis-check-rdb")  # a server by this name
    client = tmp_path / "redis-cli"
    client.write_text(f'#!/bin/sh\nexec {tools}/usr/bin/redis-cli -s {socket} "$@"\n')
    client.chmod(0o755)
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(folders),
        "PATH": os.pathsep.join(
            [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
    }
    options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([str(server), *options], env=env, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + LIMIT_S
        while not socket.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield env
    finally:
        process.kill()
        process.wait()


def stored(broker: Broker, topic: str) -> list[tuple[str, dict[str, str]]]:
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "test"})
    try:
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=LIMIT_S)
        consumer.assign([place])
        found = []
        while len(found) < end:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            assert message.error() is None
            found.append((message.key().decode(), json.loads(message.value())))
        return found
    finally:
        consumer.close()


def test_a_stream_of_redis_is_moved_without_loss_although_the_mover_is_killed(
    redis: dict[str, str], tmp_path: Path
) -> None:
    (script,) = (text for _, text in blocks(ROOT / "docs" / "MOVING.md") if "XREADGROUP" in text)

    def call(*arguments: str, text: str = "") -> str:
        return subprocess.run(
            ["redis-cli", *arguments], env=redis, input=text, text=True, capture_output=True,
            check=True, timeout=LIMIT_S,
        ).stdout  # fmt: skip

    adding = (
        f"XADD orders * number {number} 'a name' 'é \"{number}\"'\n" for number in range(COUNT)
    )
    call(text="".join(adding))
    broker = Broker(tmp_path / "broker").start()
    try:
        create_topic(broker.kafka, "orders")
        env = {**redis, "HEADRACE_BOOTSTRAP": broker.kafka}
        run = ["bash", "-c", script]
        first = subprocess.Popen(run, cwd=tmp_path, env=env, start_new_session=True)
        deadline = time.monotonic() + LIMIT_S
        while not stored(broker, "orders"):
            assert time.monotonic() < deadline
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        # Delivered, then deleted: Redis lists such an entry as pending, without its fields.
        reading = ["--json", "XREADGROUP", "GROUP", "headrace", "mover", "COUNT", "1"]
        ((deleted, fields),) = json.loads(call(*reading, "STREAMS", "orders", ">"))["orders"]
        call("XDEL", "orders", deleted)
        subprocess.run(run, cwd=tmp_path, env=env, check=True, timeout=LIMIT_S)
        found = stored(broker, "orders")
    finally:
        broker.stop()
    unique = dict(found)
    lost = int(fields[fields.index("number") + 1])
    expected = [str(number) for number in range(COUNT) if number != lost]
    assert [one["number"] for one in unique.values()] == expected
    assert all(one["a name"] == f'é "{one["number"]}"' for one in unique.values())
    assert [*unique] == sorted(unique, key=lambda one: [*map(int, one.split("-"))])
    assert len(found) <= len(unique) + BUNDLE
    assert call("XPENDING", "orders", "headrace").split()[0] == "0"
