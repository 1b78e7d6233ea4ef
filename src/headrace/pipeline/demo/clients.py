"""Publishing and reading with an ordinary Kafka client, with counts of everything.

Invariants: nothing here depends on which broker it talks to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headrace.errors import Retriable

if TYPE_CHECKING:
    from headrace.pipeline.demo.flights import Flight

OnProgress = Callable[[int], None]
_STEP = 5_000


class StepFailed(Retriable):
    """A step of the demo failed."""


@dataclass
class Consumed:
    """What the members of a group received from a topic."""

    members: int
    elapsed_ms: int = 0
    per_partition: dict[int, int] = field(default_factory=dict)
    per_member: list[int] = field(default_factory=list)
    gaps: int = 0
    duplicates: int = 0

    @property
    def count(self) -> int:
        """All records."""
        return sum(self.per_partition.values())


def create_topic(bootstrap: str, topic: str, partitions: int, config: dict[str, str]) -> None:
    """Create a topic. Raises the client's error, or StepFailed on a time-out."""
    from confluent_kafka import admin

    new_topic = vars(admin)["NewTopic"]
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    made = client.create_topics(
        [new_topic(topic, partitions, 1, config=config)], operation_timeout=20
    )
    try:
        made[topic].result(30)
    except TimeoutError as error:
        raise StepFailed(f"No answer within 30 s to the creation of topic {topic}.") from error


def publish(
    bootstrap: str, topic: str, records: Iterable[Flight], on_progress: OnProgress
) -> dict[int, int]:
    """Publish with an idempotent producer; returns the acknowledged records per partition.

    Raises StepFailed if a record was not acknowledged.
    """
    from confluent_kafka import Producer

    acknowledged: dict[int, int] = {}
    failed: list[Any] = []

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            failed.append(error)
            return
        number = message.partition()
        acknowledged[number] = acknowledged.get(number, 0) + 1

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 200_000,
        }
    )
    for index, flight in enumerate(records):
        while True:
            try:
                producer.produce(
                    topic,
                    flight.value,
                    flight.key,
                    on_delivery=on_delivery,
                    timestamp=flight.event_time_ms,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if index % _STEP == 0:
            producer.poll(0)
            on_progress(sum(acknowledged.values()))
    left = producer.flush(60)
    on_progress(sum(acknowledged.values()))
    if failed or left:
        raise StepFailed(f"{len(failed) + left} records were not acknowledged: {failed[:1]}")
    return dict(sorted(acknowledged.items()))


class _Group:
    """The members' shared state."""

    def __init__(self, expected: int, members: int) -> None:
        self.expected = expected
        self.result = Consumed(members, per_member=[0] * members)
        self.positions: dict[int, int] = {}
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.first_ns: int | None = None
        self.failure: BaseException | None = None

    def note(self, member: int, messages: list[Any]) -> None:
        """Count a batch; the order within a partition reveals gaps and duplicates."""
        with self.lock:
            result = self.result
            result.per_member[member] += len(messages)
            for message in messages:
                number, offset = message.partition(), message.offset()
                expected = self.positions.get(number, 0)
                if offset < expected:
                    result.duplicates += 1
                else:
                    result.gaps += offset - expected
                    self.positions[number] = offset + 1
                    result.per_partition[number] = result.per_partition.get(number, 0) + 1
            if result.count + result.duplicates >= self.expected:
                self.done.set()


def consume_with_group(
    bootstrap: str, topic: str, group: str, expected: int, on_progress: OnProgress
) -> Consumed:
    """Read a whole topic with a consumer group of three members.

    Raises StepFailed if `expected` records do not arrive within two minutes.
    """
    members = 3
    shared = _Group(expected, members)
    threads = [
        threading.Thread(target=_member, args=(shared, number, bootstrap, topic, group))
        for number in range(members)
    ]
    begun_ns = monotonic_ns()
    for thread in threads:
        thread.start()
    while not shared.done.wait(0.1):
        on_progress(shared.result.count)
        if monotonic_ns() - begun_ns > 120e9:
            shared.failure = StepFailed(
                f"The group got {shared.result.count} of {expected} records in two minutes."
            )
            shared.done.set()
    for thread in threads:
        thread.join()
    if shared.failure is not None:
        raise shared.failure
    on_progress(shared.result.count)
    shared.result.elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
    return shared.result


def _member(shared: _Group, number: int, bootstrap: str, topic: str, group: str) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "classic",
            "client.id": f"{group}-{number}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "session.timeout.ms": 10_000,
        }
    )

    def on_revoke(revoked: Any, _partitions: Any) -> None:
        # The records received so far are counted: the next owner continues after them.
        try:
            revoked.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() != "_NO_OFFSET":
                raise

    try:
        consumer.subscribe([topic], on_revoke=on_revoke)
        while not shared.done.is_set():
            messages = consumer.consume(2_000, 0.1)
            for message in messages:
                if message.error() is not None:
                    raise KafkaException(message.error())
            if messages:
                shared.note(number, messages)
    except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
        shared.failure = error
        shared.done.set()
    finally:
        consumer.close()
