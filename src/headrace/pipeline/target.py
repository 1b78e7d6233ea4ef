"""The sink's topics, reached with ordinary Kafka clients.

Responsibilities: an idempotent producer, marks as committed offsets of a memberless group, and
reading a range back. Clients are created on first use, because most tasks need one or two. Knows
nothing of batches and runs: that is `delivery.py`.
"""

from __future__ import annotations

from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Self

from headrace.pipeline.cluster import ClusterClient, is_compacted
from headrace.pipeline.delivery import Bounds, TopicTraits
from headrace.pipeline.errors import DeliveryFailed, OptionInvalid, RecordRefused
from headrace.pipeline.options import SinkOptions, SourceOptions
from headrace.pipeline.planning import OffsetRange, offset_of, walk
from headrace.pipeline.written import GROUP_PREFIX, WRITTEN_HEADER, RowToWrite, Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

_SETTLE_S = 0.25
_SETTLE_TRIES = 20
_REQUEST_TIMEOUT_S = 30.0
_POLL_EVERY = 1_000
ATTRIBUTES = "headrace.message.attributes"
NO_ATTRIBUTES = ("", "false", "ignore", "refuse")
"""The values of the topic setting with which reserved headers have no effect."""
_REFUSALS = frozenset({
    "INVALID_RECORD", "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP",
    "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION",
    "UNSUPPORTED_COMPRESSION_TYPE",
})  # fmt: skip
"""librdkafka's names of the errors that the same record meets each time."""
_BATCH_BYTES_MAX = 1_000_000
_BATCH_BYTES_UNKNOWN = 262_144
"""For a topic whose settings this client may not read."""
_TIMESTAMP_SET = 1  # librdkafka's TIMESTAMP_CREATE_TIME


class KafkaTopics:
    """TargetTopics over confluent_kafka; a context manager that discards what is still queued."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._cluster = ClusterClient({**options.client, "isolation.level": "read_uncommitted"})
        self._producer: Any = None
        self._consumer: Any = None
        self._queued_count = 0
        self._batch_bytes = _BATCH_BYTES_MAX
        self._batch_limits: dict[str, int] = {}
        """Of the topics that are written to: the largest batch that each takes."""
        self._failure: Any = None
        self._client_error: type[Exception] = BufferError
        """What the client raises for a record that it refuses itself, such as for its size."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1.0)
        if self._consumer is not None:
            self._consumer.close()

    def bounds(self, topic: str) -> dict[int, Bounds]:
        """See TargetTopics."""
        partitions = self._cluster.partitions_of((topic,), None)
        starts, ends = self._cluster.earliest(partitions), self._cluster.latest(partitions)
        return {
            number: Bounds(offset_of(starts, topic, number, 0), end)
            for _, number, end in walk(ends)
        }

    def traits(self, topic: str) -> TopicTraits:
        """See TargetTopics."""
        from confluent_kafka import KafkaException

        try:
            found = self._cluster.configuration(topic)
        except KafkaException as error:
            raise OptionInvalid(
                f"Exactly-once delivery depends on the settings of topic {topic}, and they cannot"
                f" be read: {error.args[0].str()}. Nothing was written to it. Allow this client to"
                " DescribeConfigs, or set delivery=atLeastOnce.",
                topic=topic,
            ) from error
        self._batch_limits[topic] = _batch_limit(found)
        return TopicTraits(
            is_compacted=is_compacted(found),
            reads_attributes=found.get(ATTRIBUTES, "false") not in NO_ATTRIBUTES,
        )

    def wait_settled(self, topic: str) -> dict[int, Bounds]:
        """See TargetTopics. Other writers may keep moving the ends; then the last ones read
        count."""
        before = self.bounds(topic)
        begun_ns = monotonic_ns()
        while monotonic_ns() - begun_ns < _SETTLE_S * _SETTLE_TRIES * 1e9:
            sleep(_SETTLE_S)
            after = self.bounds(topic)
            if after == before:
                break
            before = after
        return before

    def marks(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """See TargetTopics."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        asked = [ConsumerGroupTopicPartitions(group)]
        answers = self._cluster.admin.list_consumer_group_offsets(
            asked, request_timeout=_REQUEST_TIMEOUT_S
        )
        try:
            found = answers[group].result(_REQUEST_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise _marks_failed(group, "read", error) from error
        for entry in found.topic_partitions:
            if entry.error is not None:
                raise _marks_failed(group, "read", entry.error)
        return {
            (entry.topic, entry.partition): (entry.offset, entry.metadata or "")
            for entry in found.topic_partitions
            if entry.offset >= 0
        }

    def commit_marks(self, group: str, marks: dict[tuple[str, int], tuple[int, str]]) -> None:
        """See TargetTopics: one OffsetCommit, which the coordinator stores as one batch."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        entries = [
            TopicPartition(topic, number, offset, metadata)
            for (topic, number), (offset, metadata) in marks.items()
        ]
        answers = self._cluster.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, entries)], request_timeout=_REQUEST_TIMEOUT_S
        )
        try:
            stored = answers[group].result(_REQUEST_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise _marks_failed(group, "stored", error) from error
        for entry in stored.topic_partitions:
            if entry.error is not None:
                raise _marks_failed(group, "stored", entry.error)

    def produce(self, row: RowToWrite, written: bytes) -> None:
        """See TargetTopics."""
        if self._producer is None or self._batch_limit_of(row.topic) < self._batch_bytes:
            self._renew_producer(row.topic)
        headers = [*row.headers, (WRITTEN_HEADER, written)]
        while True:
            try:
                self._producer.produce(
                    row.topic,
                    row.value,
                    row.key,
                    row.partition,
                    on_delivery=self._on_delivery,
                    timestamp=row.timestamp_ms,
                    headers=headers,
                )
                break
            except BufferError:
                self._producer.poll(0.05)
                self._check()
            except self._client_error as error:
                if error.args[0].name() not in _REFUSALS:
                    raise
                self._failure = error.args[0]
                self._check()
        self._queued_count += 1
        if self._queued_count % _POLL_EVERY == 0:
            self._producer.poll(0)
            self._check()

    def flush(self) -> None:
        """See TargetTopics."""
        if self._producer is None:
            return
        left = self._producer.flush(self._options.delivery_timeout_ms / 1000)
        self._check()
        if left:
            raise DeliveryFailed(
                f"{left} records were not acknowledged within"
                f" {self._options.delivery_timeout_ms} ms. Is the broker up? Spark retries"
                " the task, which writes the rest; deliveryTimeoutMs sets the limit."
            )

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[Stored]:
        """See TargetTopics."""
        from confluent_kafka import TopicPartition

        from headrace.pipeline.fetch import message_batches

        if start >= end:
            return
        if self._consumer is None:
            self._consumer = self._make_consumer()
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, partition, start)])
        reading = SourceOptions(client=self._options.client)
        piece = OffsetRange(topic, partition, start, end)
        try:
            for messages in message_batches(consumer, piece, reading):
                for message in messages:
                    kind, timestamp_ms = message.timestamp()
                    yield Stored(
                        partition,
                        message.key(),
                        message.value(),
                        message.headers() or (),
                        timestamp_ms if kind == _TIMESTAMP_SET else 0,
                    )
        finally:
            consumer.unassign()

    def _batch_limit_of(self, topic: str) -> int:
        limit = self._batch_limits.get(topic)
        if limit is None:
            from confluent_kafka import KafkaException

            try:
                limit = _batch_limit(self._cluster.configuration(topic))
            except KafkaException:  # at least once needs no rights on settings
                limit = _BATCH_BYTES_UNKNOWN
            self._batch_limits[topic] = limit
        return limit

    def _renew_producer(self, topic: str) -> None:
        """Make a producer whose batches the topic takes, too; it would refuse larger ones for
        good."""
        self.flush()
        self._batch_bytes = min(self._batch_bytes, self._batch_limit_of(topic))
        self._producer = self._make_producer()

    def _make_producer(self) -> Any:
        from confluent_kafka import KafkaException, Producer

        self._client_error = KafkaException
        return Producer(
            {
                "log_level": "2",
                "linger.ms": "10",
                # An idempotent librdkafka spins while as many requests are in flight as it allows:
                # 16-18 us of CPU per record of 100 B with 5 of 256 KiB, 9-11 with 3 of 1 MB.
                "batch.size": str(self._batch_bytes),
                "max.in.flight.requests.per.connection": "3",
                "partitioner": "murmur2_random",  # the partitioner of Kafka's own clients
                "queue.buffering.max.messages": "200000",
                **self._options.client,
                "enable.idempotence": "true",
                "acks": "all",
                "delivery.timeout.ms": str(self._options.delivery_timeout_ms),
                "delivery.report.only.error": True,
                "error_cb": self._on_error,
            }
        )

    def _make_consumer(self) -> Any:
        from confluent_kafka import Consumer

        from headrace.pipeline.fetch import CONSUMER_DEFAULTS

        return Consumer(
            {
                **CONSUMER_DEFAULTS,
                **self._options.client,
                "group.id": GROUP_PREFIX,  # never joined: partitions are assigned manually
                "enable.auto.commit": "false",
                "enable.partition.eof": "true",
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
            }
        )

    def _on_delivery(self, error: Any, _message: Any) -> None:
        self._failure = self._failure or error

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is None:
            return
        if self._failure.name() in _REFUSALS:
            raise RecordRefused(
                f"A record is refused: {self._failure}. The batch is not committed, and sending it"
                " again does not help. Filter or change such rows, or the settings of the topic"
                " and the client (for large records max.message.bytes and kafka.message.max.bytes)."
            )
        raise DeliveryFailed(
            f"The broker rejected a record: {self._failure}. The batch is not committed;"
            " Spark retries the task, which writes the missing records."
        )


def _batch_limit(configuration: dict[str, str]) -> int:
    """The largest batch, in bytes, that a topic with these settings takes."""
    found = configuration.get("max.message.bytes")
    return _BATCH_BYTES_UNKNOWN if found is None else max(1, int(found))


def _marks_failed(group: str, what: str, error: object) -> DeliveryFailed:
    return DeliveryFailed(
        f"The marks of group {group} were not {what}: {error}. The batch is not"
        " committed; the task is retried. Is the broker up, and is this client"
        " authorized for the group?"
    )
