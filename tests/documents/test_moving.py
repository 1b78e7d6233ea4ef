"""Scripts of the moving guide, with the real systems that they move messages from."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from tests.debian import unpacked
from tests.documents.commands import ROOT, blocks
from tests.integration.broker import Broker
from tests.integration.clients import create_topic

from headrace.dev_cluster.ports import free_port
from headrace_bench.kafka_parts import java
from headrace_bench.parts import PartMissing, peers_folder
from headrace_bench.systems import rabbitmq
from headrace_verify.blackbox.languages.rocketmq import NotInstalled, find_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.long
LIMIT_S = 300
COUNT = 3_000
BUNDLE = 500
"""Entries that the script moves at a time, which are all that it may repeat."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which `redis-cli` finds a server."""
    packages = [unpacked(one) for one in ("redis-tools", "libjemalloc2", "liblzf1", "libatomic1")]
    if None in packages:
        pytest.skip("no redis-tools by apt-get")
    tools, *libraries = filter(None, packages)
    folders = [str(next(one.rglob("*.so.*")).parent) for one in libraries]
    server, listening = tmp_path / "redis-server", tmp_path / "redis.socket"
    server.symlink_to(tools / "usr" / "bin" / "redis-check-rdb")  # a server by this name
    client = tmp_path / "redis-cli"
    client.write_text(f'#!/bin/sh\nexec {tools}/usr/bin/redis-cli -s {listening} "$@"\n')
    client.chmod(0o755)
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(folders),
        "PATH": os.pathsep.join(
            [str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]]
        ),
    }
    options = ["--port", "0", "--unixsocket", str(listening), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([str(server), *options], env=env, stdout=subprocess.DEVNULL)
    try:
        wait_for(listening.exists, process)
        yield env
    finally:
        process.kill()
        process.wait()


def stored(broker: Broker) -> list[Message]:
    """All records of the topic, in its one partition."""
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "test"})
    try:
        place = TopicPartition("orders", 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=LIMIT_S)
        consumer.assign([place])
        found = []
        while len(found) < end:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            assert message.error() is None
            found.append(message)
        return found
    finally:
        consumer.close()


def wait_for(reached: Callable[[], bool], mover: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not reached():
        assert mover.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def can_connect(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def kill(mover: subprocess.Popen[bytes]) -> None:
    os.killpg(mover.pid, signal.SIGKILL)
    assert mover.wait() == -signal.SIGKILL


def test_a_stream_of_redis_is_moved_without_loss_although_the_mover_is_killed(
    redis: dict[str, str], tmp_path: Path
) -> None:
    source = Source("python redis", f"unix://{tmp_path}/redis.socket", "", redis)

    def call(*arguments: str, text: str = "") -> str:
        return subprocess.run(
            ["redis-cli", *arguments], env=redis, input=text, capture_output=True, check=True,
            timeout=LIMIT_S, encoding="utf-8", errors="replace",
        ).stdout  # fmt: skip

    others = r'bytes "\xff\x00" two 1 two 2'
    adding = (
        f"XADD orders * number {number} 'a name' 'é \"{number}\"' {others}\n"
        for number in range(COUNT)
    )
    call(text="".join(adding))
    broker = Broker(tmp_path / "broker").start()
    try:
        create_topic(broker.kafka, "orders")
        assert broker.process is not None
        broker.process.send_signal(signal.SIGSTOP)  # nothing is stored, so nothing is acknowledged
        try:
            first = source.mover(broker)
            pending = ["XPENDING", "orders", "headrace"]
            wait_for(lambda: call(*pending).split()[0] == str(BUNDLE), first)
            kill(first)
        finally:
            broker.process.send_signal(signal.SIGCONT)
        # Delivered, then deleted: Redis lists such an entry as pending, without its fields.
        reading = ["--json", "XREADGROUP", "GROUP", "headrace", "mover", "COUNT", "1"]
        ((deleted, fields),) = json.loads(call(*reading, "STREAMS", "orders", ">"))["orders"]
        call("XDEL", "orders", deleted)
        assert source.mover(broker).wait(LIMIT_S) == 0
        found = [(one.key().decode(), json.loads(one.value())) for one in stored(broker)]
    finally:
        broker.stop()
    unique = dict(found)
    lost = int(fields[fields.index("number") + 1])
    expected = [str(number) for number in range(COUNT) if number != lost]
    assert [one["number"] for one in unique.values()] == expected
    assert all(one["a name"] == f'é "{one["number"]}"' for one in unique.values())
    expected_others = {"bytes": {"base64": "/wA="}, "two": ["1", "2"]}
    assert all(expected_others.items() <= one.items() for one in unique.values())
    assert [*unique] == sorted(unique, key=lambda one: [*map(int, one.split("-"))])
    assert len(found) <= len(unique) + BUNDLE
    assert call("XPENDING", "orders", "headrace").split()[0] == "0"


class Source:
    """A system that messages are moved from, as its own client for Python sees it."""

    count = COUNT
    bundle = BUNDLE
    repeated: int | None = BUNDLE
    """The most messages that a kill may repeat; None where there is no limit."""

    def __init__(self, language: str, server: str, commands: str, env: dict[str, str]) -> None:
        (self._program,) = (
            text for kind, text in blocks(ROOT / "docs" / "MOVING.md") if kind == language
        )
        try:
            self.python = str(find_python((Path(__file__).parent / "movers.lock").read_text()))
        except NotInstalled as error:
            pytest.skip(str(error))
        self._server = server
        self._commands = commands
        self._env = {**os.environ, **env}

    def ask(self, name: str) -> str:
        """What a function of `commands` prints."""
        code = f"SERVER, COUNT = {self._server!r}, {self.count}\n{self._commands}\n{name}()"
        return subprocess.run(
            [self.python, "-c", code], env=self._env, stdout=subprocess.PIPE, text=True,
            check=True, timeout=LIMIT_S,
        ).stdout  # fmt: skip

    def mover(self, broker: Broker) -> subprocess.Popen[bytes]:
        """The guide's program, for this server."""
        text = self._program.replace("127.0.0.1:9092", broker.kafka)
        usuals = ("127.0.0.1:5672", "pulsar://127.0.0.1:6650", "redis://127.0.0.1:6379")
        for usual in usuals:
            text = text.replace(usual, self._server)
        return subprocess.Popen([self.python, "-c", text], env=self._env, start_new_session=True)


RABBITMQ = """
import amqp
from datetime import datetime
from decimal import Decimal
channel = amqp.Connection(SERVER, confirm_publish=True)
channel.connect()
channel = channel.channel()
PROPERTIES = {"content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2,
              "priority": 7, "correlation_id": "c", "reply_to": "é", "expiration": "86400000",
              "timestamp": 1777863721, "type": "t", "user_id": "guest",
              "app_id": "a"}
HEADERS = {"a": "é", "type": "mine", "bytes": b"\\xff\\x00", "true": True, "none": None,
           "float": 1.5, "large": 2**40, "negative": -1, "date": datetime(2026, 5, 4, 3, 2, 1),
           "decimal": Decimal("1.25"), "empty": "",
           "table": {"b": b"\\xff", "list": [1, "é", None, {"c": 2.5}]}}
def send():
    channel.queue_declare("orders", durable=True, auto_delete=False,
                          arguments={"x-queue-type": "quorum"})
    for number in range(COUNT):
        about = {**PROPERTIES, "message_id": str(number)}
        one = amqp.Message(f"é {number}".encode(), application_headers={**HEADERS, "n": number},
                           **about)
        channel.basic_publish(one, "", "orders")
def left():
    print(channel.queue_declare("orders", passive=True).message_count)
"""
OF_RABBITMQ = {
    "a": "é".encode(), "type": b"mine", "bytes": b"\xff\x00", "true": b"true", "none": None,
    "float": b"1.5", "large": b"1099511627776", "negative": b"-1", "decimal": b"1.25",
    "date": b'"2026-05-04T03:02:01Z"', "empty": b"",
    "table": '{"b": {"base64": "/w=="}, "list": [1, "é", null, {"c": 2.5}]}'.encode(),
    "amqp-content_type": b"text/plain", "amqp-content_encoding": b"utf-8",
    "amqp-delivery_mode": b"2", "amqp-priority": b"7", "amqp-correlation_id": b"c",
    "amqp-reply_to": "é".encode(), "amqp-expiration": b"86400000", "amqp-type": b"t",
    "amqp-timestamp": b"1777863721", "amqp-user_id": b"guest", "amqp-app_id": b"a",
}  # fmt: skip
SQS = """
import boto3
sqs = boto3.client("sqs")
def send():
    url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    for number in range(COUNT):
        about = {"a": {"DataType": "String", "StringValue": "é"},
                 "bytes": {"DataType": "Binary", "BinaryValue": b"\\xff\\x00"},
                 "n": {"DataType": "Number", "StringValue": str(number)}}
        sqs.send_message(QueueUrl=url, MessageBody=f"é {number}", MessageAttributes=about)
def left():
    url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
    name = "ApproximateNumberOfMessages"
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
    print(found["Attributes"][name])
"""
PULSAR = """
import json, os, pulsar, urllib.request
def send():
    client = pulsar.Client(SERVER, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.subscribe("orders", "workers").close()
    producer = client.create_producer("orders", producer_name="shop", batching_enabled=BATCHED)
    for number in range(COUNT):
        about = {"a": "é", "n": str(number)}
        producer.send_async(f"é {number}".encode(), None, about, str(number), "o",
                            event_timestamp=1_777_863_721_000 + number)
        if not number % 500:
            producer.flush()
    producer.flush()
    client.close()
def left():
    url = "/admin/v2/persistent/public/default/orders/stats?getPreciseBacklog=true"
    answer = urllib.request.urlopen(os.environ["PULSAR_WEB"] + url, timeout=60)
    found = json.load(answer)["subscriptions"]["workers"]
    print(COUNT - found["unackedMessages"] if found["msgBacklog"] else 0)
"""
OF_PULSAR = {
    "a": "é".encode(), "pulsar-ordering_key": b"o", "pulsar-producer_name": b"shop",
    "pulsar-topic_name": b"persistent://public/default/orders",
}  # fmt: skip
PULSAR_SETTINGS = """
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={broker}
webServicePort={web}
bookkeeperNumberOfChannelsPerBookie=4
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
managedLedgerCacheSizeMB=32
allowLoopback=true
httpServerEnabled=false
systemTopicEnabled=false
topicLevelPoliciesEnabled=false
loadBalancerEnabled=false
"""
OF_SQS = {"a": "é".encode(), "bytes": b"\xff\x00"}


def moves_without_loss(
    source: Source, broker: Broker, expected_headers: dict[str, bytes | None]
) -> dict[str, dict[str, bytes | None]]:
    """Whatever happens to the mover, each message is in one of the systems. Returns other headers
    than the expected ones."""
    source.ask("send")
    assert broker.process is not None
    create_topic(broker.kafka, "orders")
    broker.process.send_signal(signal.SIGSTOP)  # nothing is stored, so nothing is acknowledged
    try:
        mover = source.mover(broker)
        expected = source.count - source.bundle
        wait_for(lambda: int(source.ask("left")) <= expected, mover)
        kill(mover)
    finally:
        broker.process.send_signal(signal.SIGCONT)
    mover = source.mover(broker)
    wait_for(lambda: bool(stored(broker)), mover)
    kill(mover)
    mover = source.mover(broker)
    assert mover.wait(LIMIT_S) == 0
    found = stored(broker)
    unique = {one.value().decode(): dict(one.headers() or ()) for one in found}
    assert {*unique} == {f"é {number}" for number in range(source.count)}
    for value, headers in unique.items():
        assert {
            name: headers.pop(name, b"missing") for name in expected_headers
        } == expected_headers
        assert headers.pop("n").decode() == value.split()[1]
    if source.repeated is not None:  # it was killed twice, first without an acknowledgement
        assert len(found) <= source.count + source.bundle + source.repeated
    assert int(source.ask("left")) == 0
    return unique


def test_a_queue_of_rabbitmq_is_moved_without_loss_although_the_mover_is_killed(
    tmp_path: Path,
) -> None:
    try:
        rabbitmq.install_server()
    except PartMissing as error:
        pytest.skip(str(error))
    server = rabbitmq.RabbitMq(tmp_path, "rabbitmq", "quorum")
    broker = Broker(tmp_path / "broker")
    try:
        server.start()
        source = Source("python rabbitmq", f"127.0.0.1:{server.port}", RABBITMQ, {})
        others = moves_without_loss(source, broker.start(), OF_RABBITMQ)
    finally:
        broker.stop()
        server.stop()
    for value, headers in others.items():
        headers.pop("x-delivery-count", None)  # RabbitMQ's own, of messages that came again
        assert headers == {"amqp-message_id": value.split()[1].encode()}


def test_a_queue_of_sqs_is_moved_without_loss_although_the_mover_is_killed(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    login = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a"}
    env = {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", **login}
    source = Source("python sqs", url, SQS, env)
    source.count, source.bundle, source.repeated = 300, 10, 10
    code = f"from moto.server import main; main(['-p', '{port}'])"
    with (tmp_path / "moto.log").open("wb") as log:
        server = subprocess.Popen([source.python, "-c", code], stdout=log, stderr=log)
    broker = Broker(tmp_path / "broker")
    try:
        wait_for(lambda: can_connect(port), server)
        others = moves_without_loss(source, broker.start(), OF_SQS)
    finally:
        broker.stop()
        server.kill()
        server.wait()
    known = {"sqs-MessageId", "sqs-SentTimestamp", "sqs-ApproximateReceiveCount"}
    assert all({*headers} >= known for headers in others.values())


def pulsar_jars() -> Path:
    """Pulsar's server, from Maven's repository."""
    folder, pom = peers_folder() / "pulsar-4.2.4", Path(__file__).parent / "pulsar-pom.xml"
    if not folder.exists():
        if shutil.which("mvn") is None:
            pytest.skip("no mvn, which downloads Pulsar's server")
        partial = folder.with_suffix(".partial")
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(pom), *copy, f"-DoutputDirectory={partial}"],
            capture_output=True, text=True, timeout=1_200, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"Pulsar's server cannot be downloaded: {done.stdout[-300:]}")
        partial.replace(folder)
    return folder


ACKS = 1_000
"""Acknowledgements that Pulsar's client collects before it sends them, if 100 ms are not over."""
OPENED = ("java.lang", "java.nio", "java.util", "jdk.internal.misc", "sun.net")
"""Packages of Java's base that Pulsar's own script opens to it."""


def start_pulsar(folder: Path, broker: int, web: int) -> subprocess.Popen[bytes]:
    settings, data = folder / "standalone.conf", folder / "pulsar"
    settings.write_text(PULSAR_SETTINGS.format(broker=broker, web=web))
    opened = [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in OPENED]
    heap = ["-Xmx384m", "-XX:MaxDirectMemorySize=512m", "-XX:TieredStopAtLevel=1"]
    command = [java(), *heap, *opened, "-cp", f"{pulsar_jars()}/*"]
    command += ["org.apache.pulsar.PulsarStandaloneStarter", "-c", str(settings), "-nfw", "-nss"]
    command += ["--metadata-dir", f"{data}/metadata", "--bookkeeper-dir", f"{data}/bookkeeper"]
    with (folder / "pulsar.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def has_namespace(web: int) -> bool:
    """Whether Pulsar has made the namespace of topics without one, which it does last."""
    url = f"http://127.0.0.1:{web}/admin/v2/namespaces/public"
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return b"public/default" in answer.read()
    except OSError:
        return False


@pytest.mark.parametrize("batched", [False, True])
def test_a_subscription_of_pulsar_is_moved_without_loss_although_the_mover_is_killed(
    tmp_path: Path, batched: bool
) -> None:
    """A batch is acknowledged as a whole and counts once, so that nothing limits what is repeated
    of a producer's batches, whatever the time in which acknowledgements are collected."""
    port, web = free_port(), free_port()
    where = f"pulsar://127.0.0.1:{port}"
    env = {"PULSAR_WEB": f"http://127.0.0.1:{web}"}
    source = Source("python pulsar", where, f"BATCHED = {batched}\n{PULSAR}", env)
    source.repeated = None if batched else source.bundle + ACKS
    server = start_pulsar(tmp_path, port, web)
    broker = Broker(tmp_path / "broker")
    try:
        wait_for(lambda: has_namespace(web), server)
        others = moves_without_loss(source, broker.start(), OF_PULSAR)
        found = {one.value().decode(): one for one in stored(broker)}
    finally:
        broker.stop()
        server.kill()
        server.wait()
    for value, headers in others.items():
        assert {*headers} == {"pulsar-message_id"}
        number = int(value.split()[1])
        assert found[value].key() == str(number).encode()
        assert found[value].timestamp()[1] == 1_777_863_721_000 + number
