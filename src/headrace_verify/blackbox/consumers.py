"""Members of consumer groups, with three Python libraries, which commit what they have polled.

Invariants: a commit is synchronous and names partitions that the member owns. It is `ok` only if
the member's generation was the same before and after; a library that has rejoined meanwhile may
have sent it with either generation, so that is `info`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.context import Context, Progress, now_ns
from headrace_verify.history import INFO

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION_TIMEOUT_MS = 6_000
HEARTBEAT_MS = 500
COMMIT_PROBABILITY = 0.3
Found = dict[str, list[tuple[int, int, bytes | None]]]
"""Topic -> a poll's records of it, as (partition, offset, bytes)."""
GENERATION_AT = slice(7, 11)
"""After "CGMDv2:", a 32-bit number in native byte order: librdkafka's own encoding."""


def run_librdkafka_member(context: Context) -> None:
    """confluent-kafka, eager or cooperative."""
    from confluent_kafka import KafkaException, TopicPartition

    progress = Progress(context)
    consumer = _librdkafka_consumer(context)

    def generation() -> int:
        metadata = consumer.consumer_group_metadata()
        return int.from_bytes(metadata[GENERATION_AT], sys.byteorder, signed=True)

    def assigned(_consumer: Any, parts: list[Any]) -> None:
        progress.assigned(_pairs(parts), consumer.memberid() or "", generation())

    def revoked(_consumer: Any, parts: list[Any]) -> None:
        progress.revoked(_pairs(parts))

    def lost(_consumer: Any, parts: list[Any]) -> None:
        progress.revoked(_pairs(parts), is_lost=True)

    def commit(offsets: dict[tuple[str, int], int]) -> None:
        listed = [TopicPartition(topic, part, end) for (topic, part), end in offsets.items()]
        try:
            done = consumer.commit(offsets=listed, asynchronous=False)
        except KafkaException as error:
            raise Uncommitted(str(error)) from error
        for one in done:
            if one.error is not None:
                raise Uncommitted(str(one.error))

    def poll() -> Found:
        found: Found = {}
        message: Any
        for message in consumer.consume(200, 0.1):
            if message.error() is None:
                record = message.partition(), message.offset(), message.value()
                found.setdefault(message.topic(), []).append(record)
        return found

    consumer.subscribe(
        list(context.spec.topics), on_assign=assigned, on_revoke=revoked, on_lost=lost
    )
    while not context.over.is_set():
        since_ns = now_ns()
        note_polled(context, progress, since_ns, poll())
        if progress.ends and context.rng.random() < COMMIT_PROBABILITY:
            commit_all(progress, commit, lambda: (consumer.memberid() or "", generation()))
    consumer.close()


def _librdkafka_consumer(context: Context) -> Any:
    from confluent_kafka import Consumer

    return Consumer(
        {
            "bootstrap.servers": context.spec.bootstrap,
            "group.id": context.spec.group,
            "client.id": context.spec.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "max.poll.interval.ms": 20_000,
            "partition.assignment.strategy": context.spec.options.get("strategy", "range"),
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 250,
            "socket.timeout.ms": 11_000,
            "isolation.level": context.spec.options["isolation"],
            "log_level": 0,
        }
    )


class Uncommitted(Exception):
    """A commit failed, or its result is unknown: a library may have sent it more than once."""


def _pairs(parts: Any) -> list[tuple[str, int]]:
    return [(part.topic, part.partition) for part in parts]


def note_polled(
    context: Context,
    progress: Progress,
    since_ns: int,
    by_topic: Found,
) -> None:
    """Record a poll's records and the member's new positions."""
    for topic, found in by_topic.items():
        context.polled(since_ns, topic, found, group=context.spec.group)
        for part, offset, _ in found:
            progress.read(topic, part, offset)


def commit_all(
    progress: Progress,
    commit: Callable[[dict[tuple[str, int], int]], None],
    identity: Callable[[], tuple[str, int]],
) -> None:
    """Commit all polled records; `commit` raises Uncommitted. `identity`: member, generation."""
    offsets = dict(progress.ends)
    before = identity(), progress.rebalances
    op = progress.begin_commit(offsets, *before[0])
    try:
        commit(offsets)
    except Uncommitted as error:
        progress.end_commit(op, INFO, error=str(error)[:200])
        return
    progress.committed(op, offsets, is_same=before == (identity(), progress.rebalances))


def _python_settings(context: Context) -> dict[str, Any]:
    """Callbacks of the two Python libraries with equal names for them."""
    return {
        "bootstrap_servers": context.spec.bootstrap,
        "group_id": context.spec.group,
        "client_id": context.spec.name,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS,
        "max_poll_interval_ms": 20_000,
        "request_timeout_ms": 21_000,
        "isolation_level": context.spec.options["isolation"],
    }


def run_kafka_python_member(context: Context) -> None:
    """kafka-python."""
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
    from kafka.consumer.subscription_state import ConsumerRebalanceListener
    from kafka.errors import KafkaError

    progress = Progress(context)
    consumer = KafkaConsumer(
        **_python_settings(context),
        bootstrap_timeout_ms=300_000,  # it may be started while the broker is down
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=250,
    )

    def identity() -> tuple[str, int]:
        known = consumer._coordinator._generation  # noqa: SLF001 - the library tells it nowhere
        return known.member_id, known.generation_id

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            progress.assigned(_pairs(assigned), *identity())

        def on_partitions_revoked(self, revoked: Any) -> None:
            progress.revoked(_pairs(revoked))

    def commit(offsets: dict[tuple[str, int], int]) -> None:
        listed = {
            TopicPartition(topic, part): OffsetAndMetadata(end, "", -1)
            for (topic, part), end in offsets.items()
        }
        try:
            consumer.commit(listed, timeout_ms=10_000)
        except KafkaError as error:
            raise Uncommitted(repr(error)) from error

    consumer.subscribe(list(context.spec.topics), listener=Listener())
    failed = False
    while not context.over.is_set():
        since_ns = now_ns()
        try:
            if failed:
                _go_back(consumer, progress)
                failed = False
            polled = consumer.poll(timeout_ms=100, max_records=200)
        except KafkaError as error:
            failed = True
            context.note("poll failed", error=repr(error)[:200])
            context.pause(0.1)
            continue
        note_polled(context, progress, since_ns, _by_topic(polled))
        if progress.ends and context.rng.random() < COMMIT_PROBABILITY:
            commit_all(progress, commit, identity)
    consumer.close(autocommit=False)


def _go_back(consumer: Any, progress: Progress) -> None:
    """kafka-python may drop records when a poll raises an error: seek back to them."""
    for place in consumer.assignment():
        end = progress.read_ends.get((place.topic, place.partition))
        consumer.seek(place, consumer.committed(place) or 0 if end is None else end)


def run_aiokafka_member(context: Context) -> None:
    """aiokafka."""
    asyncio.run(_aiokafka(context))


async def _aiokafka(context: Context) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    progress = Progress(context)

    def make() -> Any:
        return AIOKafkaConsumer(
            **_python_settings(context),
            retry_backoff_ms=50,
            # The other member's strategies must match: a coordinator that has loaded its log knows
            # only a member's chosen strategy, and rejects members that do not support it.
            partition_assignment_strategy=(RangePartitionAssignor, RoundRobinPartitionAssignor),
        )

    consumer = make()

    def identity() -> tuple[str, int]:
        known = consumer._coordinator  # noqa: SLF001 - the library tells it nowhere
        return (known.member_id, known.generation) if known is not None else ("", -1)

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            progress.assigned(_pairs(assigned), *identity())

        def on_partitions_revoked(self, revoked: Any) -> None:
            progress.revoked(_pairs(revoked))

    while not context.over.is_set():
        consumer.subscribe(list(context.spec.topics), listener=Listener())
        try:
            await consumer.start()
            break
        except (KafkaError, OSError):
            await _stop(consumer)
            consumer = make()  # after a failed start, the object cannot be started again
            await asyncio.sleep(0.2)
    while not context.over.is_set():
        since_ns = now_ns()
        try:
            polled = await consumer.getmany(timeout_ms=100, max_records=200)
        except KafkaError as error:
            context.note("poll failed", error=repr(error)[:200])
            await asyncio.sleep(0.1)
            continue
        note_polled(context, progress, since_ns, _by_topic(polled))
        if progress.ends and context.rng.random() < COMMIT_PROBABILITY:
            await _commit_aiokafka(progress, consumer, identity)
    await _stop(consumer)


async def _stop(consumer: Any) -> None:
    from aiokafka.errors import KafkaError

    try:
        await asyncio.wait_for(consumer.stop(), 10)
    except (KafkaError, TimeoutError):
        pass  # the group will soon notice its absence


async def _commit_aiokafka(
    progress: Progress, consumer: Any, identity: Callable[[], tuple[str, int]]
) -> None:
    from aiokafka import TopicPartition
    from aiokafka.errors import KafkaError

    offsets = dict(progress.ends)
    listed = {TopicPartition(*place): end for place, end in offsets.items()}
    before = identity(), progress.rebalances
    op = progress.begin_commit(offsets, *before[0])
    try:
        await asyncio.wait_for(consumer.commit(listed), 10)
    except (KafkaError, TimeoutError, ValueError) as error:
        progress.end_commit(op, INFO, error=repr(error)[:200])
        return
    progress.committed(op, offsets, is_same=before == (identity(), progress.rebalances))


def _by_topic(polled: Any) -> Found:
    """The Python libraries' records, as (partition, offset, bytes) per topic."""
    found: Found = {}
    for place, messages in polled.items():
        records = [(place.partition, message.offset, message.value) for message in messages]
        found.setdefault(place.topic, []).extend(records)
    return found
