"""Real clients with two verbs, so that each can read what any other has written.

Invariants: every client runs with its own defaults, but for the codec and for where to
start reading. What it gives back is compared as tuples.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
import types
from typing import NamedTuple

import cramjam
import pytest

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_S = 90


class Rec(NamedTuple):
    """A record as a client sees it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


RECORDS = (
    Rec(b"k1", b"plain"),
    Rec(None, b"no key"),
    Rec(b"tombstone", None),
    Rec(b"", b""),
    Rec("ключ".encode(), "значение ✓".encode()),
    Rec(b"h", b"headers", (("a", b"1"), ("b", b""), ("a", b"again"), ("\u00e9", b"\x00\xff"))),
    Rec(b"\x00\xff\n", bytes(range(256)) * 8),
)


def _snappy() -> None:
    """kafka-python wants the package `snappy`; cramjam holds the same codec."""
    if "snappy" not in sys.modules:
        shim = types.ModuleType("snappy")
        shim.compress = lambda data: bytes(cramjam.snappy.compress_raw(bytes(data)))
        shim.decompress = lambda data: bytes(cramjam.snappy.decompress_raw(bytes(data)))
        shim.__spec__ = types.SimpleNamespace(name="snappy")
        sys.modules["snappy"] = shim
        if "kafka.codec" in sys.modules:  # another test has imported it without
            sys.modules["kafka.codec"].snappy = shim


_snappy()

# --- librdkafka ------------------------------------------------------------------------------


class Confluent:
    """confluent-kafka: librdkafka 2."""

    sends_null_headers = True

    @staticmethod
    def produce(bootstrap: str, topic: str, records, codec: str = "none") -> None:
        from confluent_kafka import Producer

        failed = []
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=0,
                headers=list(record.headers),
                on_delivery=lambda error, _message: failed.append(error) if error else None,
            )
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed, failed

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int) -> list[Rec]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"read-{topic}"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        try:
            while len(found) < count:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"{len(found)} of {count} records came"
                assert message.error() is None, message.error()
                headers = tuple((name, value) for name, value in message.headers() or ())
                found.append(Rec(message.key(), message.value(), headers))
        finally:
            consumer.close()
        return found


class Kcat:
    """kcat: an old librdkafka (2.0) that Debian ships."""

    @staticmethod
    def path() -> str:
        found = shutil.which("kcat")
        if found is None:
            pytest.skip("KCAT IS NOT INSTALLED: run scripts/system_tools.sh as root")
        return found

    require = path

    @classmethod
    def run(cls, bootstrap: str, *arguments: str, text: bytes = b"") -> bytes:
        command = [cls.path(), "-b", bootstrap, *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, check=False, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, (command, done.stderr.decode())
        return done.stdout

    @classmethod
    def produce(cls, bootstrap: str, topic: str, records, codec: str = "none") -> None:
        # kcat takes headers for a whole run, and no binary text: a run for each set of headers.
        runs: dict[tuple, list[Rec]] = {}
        for record in records:
            runs.setdefault(record.headers, []).append(record)
        for headers, same in runs.items():
            flags = [flag for k, v in headers for flag in ("-H", f"{k}={v.decode()}")]
            lines = [(r.key or b"") + b"|" + (r.value or b"") for r in same]
            arguments = ["-P", "-t", topic, "-p", "0", "-z", codec, "-Z", "-K", "|", *flags]
            cls.run(bootstrap, *arguments, text=b"\n".join(lines) + b"\n")

    @classmethod
    def consume(cls, bootstrap: str, topic: str, count: int) -> list[Rec]:
        # %R, %K, %S: sizes, so that binary keys and values can be cut out; -1 is null.
        flags = ["-C", "-q", "-t", topic, "-p", "0", "-o", "0", "-c", str(count)]
        out = cls.run(bootstrap, *flags, "-f", "%K %S %o\n%k%s\n")
        found, at = [], 0
        for _ in range(count):
            end = out.index(b"\n", at)
            key_size, size, _ = map(int, out[at:end].split())
            at = end + 1
            key = out[at : at + key_size] if key_size >= 0 else None
            at += max(key_size, 0)
            value = out[at : at + size] if size >= 0 else None
            at += max(size, 0) + 1
            found.append(Rec(key, value))
        return found


# --- Python ----------------------------------------------------------------------------------


class Aiokafka:
    """aiokafka: old API versions, asyncio."""

    @staticmethod
    def produce(bootstrap: str, topic: str, records, codec: str = "none") -> None:
        asyncio.run(Aiokafka._produce(bootstrap, topic, records, codec))

    @staticmethod
    async def _produce(bootstrap: str, topic: str, records, codec: str) -> None:
        from aiokafka import AIOKafkaProducer

        compression = None if codec == "none" else codec
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=compression
        ) as producer:
            sent = [
                await producer.send(
                    topic, record.value, record.key, partition=0, headers=list(record.headers)
                )
                for record in records
            ]
            for future in sent:
                await future

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int) -> list[Rec]:
        return asyncio.run(Aiokafka._consume(bootstrap, topic, count))

    @staticmethod
    async def _consume(bootstrap: str, topic: str, count: int) -> list[Rec]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        found = []
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:
            at = TopicPartition(topic, 0)
            consumer.assign([at])
            await consumer.seek_to_beginning(at)
            while len(found) < count:
                message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                found.append(Rec(message.key, message.value, tuple(message.headers)))
        finally:
            await consumer.stop()
        return found


class KafkaPython:
    """kafka-python 3."""

    @staticmethod
    def produce(bootstrap: str, topic: str, records, codec: str = "none") -> None:
        from kafka import KafkaProducer

        compression = None if codec == "none" else codec
        producer = KafkaProducer(bootstrap_servers=bootstrap, compression_type=compression)
        try:
            sent = [
                producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    partition=0,
                    headers=list(record.headers),
                )
                for record in records
            ]
            for future in sent:
                future.get(TIMEOUT_S)
        finally:
            producer.close()

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int) -> list[Rec]:
        from kafka import KafkaConsumer, TopicPartition

        found = []
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=TIMEOUT_S * 1000)
        try:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            for message in consumer:
                found.append(Rec(message.key, message.value, tuple(message.headers)))
                if len(found) == count:
                    break
        finally:
            consumer.close()
        return found


# --- Java ------------------------------------------------------------------------------------


class Java:
    """Apache Kafka's own clients."""

    @staticmethod
    def require() -> None:
        from tests.integration.java import session

        session().require_compiler()

    @staticmethod
    def produce(bootstrap: str, topic: str, records, codec: str = "none") -> None:
        from tests.integration.java import session

        lines = [
            json.dumps(
                [
                    None if r.key is None else r.key.hex(),
                    None if r.value is None else r.value.hex(),
                    [[k, None if v is None else v.hex()] for k, v in r.headers],
                ]
            )
            for r in records
        ]
        session().run("Scenarios", bootstrap, "produce", topic, codec, *lines)

    @staticmethod
    def consume(bootstrap: str, topic: str, count: int) -> list[Rec]:
        from tests.integration.java import session

        out = session().run("Scenarios", bootstrap, "consume", topic, str(count))
        found = []
        for line in out.splitlines():
            if line.startswith("["):
                key, value, headers = json.loads(line)
                found.append(
                    Rec(
                        None if key is None else bytes.fromhex(key),
                        None if value is None else bytes.fromhex(value),
                        tuple((k, None if v is None else bytes.fromhex(v)) for k, v in headers),
                    )
                )
        return found


CLIENTS = {
    "confluent": Confluent,
    "kcat": Kcat,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
    "java": Java,
}


def require(*clients: str) -> None:
    """Skip the test where one of these is not installed; called before anything is made for it."""
    for client in clients:
        getattr(CLIENTS[client], "require", lambda: None)()


def admin(bootstrap: str):
    """librdkafka's admin client, which tests use to prepare what they need."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def create_topic(bootstrap: str, topic: str, partitions: int = 1, **configs: object) -> None:
    """Make a topic; configs with _ for the dots."""
    from confluent_kafka.admin import NewTopic

    config = {key.replace("_", "."): str(value) for key, value in configs.items()}
    client = admin(bootstrap)  # it must live until the answer is there
    (future,) = client.create_topics([NewTopic(topic, partitions, config=config)]).values()
    future.result(TIMEOUT_S)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic."""
    client = admin(bootstrap)
    (future,) = client.delete_topics([topic]).values()
    future.result(TIMEOUT_S)


def end_of(client, topic: str, number: int) -> int:
    """A partition's end; librdkafka knows no partition whose worker is just coming back, and does
    not ask again by itself: the answer without a leader stays in its cache for minutes."""
    from confluent_kafka import KafkaException, TopicPartition

    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return client.get_watermark_offsets(TopicPartition(topic, number), TIMEOUT_S)[1]
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            client.list_topics(topic, TIMEOUT_S)


def watermarks(bootstrap: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """(log start offset, high watermark)."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "watermarks"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        return low, high
    finally:
        consumer.close()


def round_trip(bootstrap: str, settings: dict[str, str], topic: str) -> None:
    """Write and read a record with librdkafka."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    common = {"bootstrap.servers": bootstrap, "log_level": 0, **settings}
    producer = Producer(common)
    producer.produce(topic, b"value")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == b"value"
        consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()
