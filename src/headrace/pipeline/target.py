"""The sink's topics: writing to them, marks as committed offsets of a memberless group, and reading
a range back.

Clients are created on first use, because most tasks need one or two. Knows nothing of batches and
runs: that is `delivery.py`.
"""

from __future__ import annotations

from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Self

from headrace.pipeline.cluster import ClusterClient, is_compacted
from headrace.pipeline.delivery import Bounds, TopicTraits
from headrace.pipeline.direct_writer import DirectWriter, is_possible
from headrace.pipeline.errors import DeliveryFailed, OptionInvalid, ProgressRefused
from headrace.pipeline.library_writer import LibraryWriter
from headrace.pipeline.options import SinkOptions, SourceOptions
from headrace.pipeline.planning import OffsetRange, offset_of, walk
from headrace.pipeline.refusals import prefix_of_jobs
from headrace.pipeline.written import GROUP_PREFIX, RowToWrite, Stored
from headrace.runtime.access import allowing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SETTLE_S = 0.25
_SETTLE_TRIES = 20
_REQUEST_TIMEOUT_S = 30.0
ATTRIBUTES = "headrace.message.attributes"
NO_ATTRIBUTES = ("", "false", "ignore", "refuse")
"""The values of the topic setting with which reserved headers have no effect."""
_BATCH_BYTES_UNKNOWN = 262_144
"""For a topic whose settings this client may not read."""
_REFUSALS = frozenset({
    "GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "INVALID_GROUP_ID", "OFFSET_METADATA_TOO_LARGE", "SASL_AUTHENTICATION_FAILED",
    "_AUTHENTICATION",
})  # fmt: skip
_TIMESTAMP_SET = 1  # librdkafka's TIMESTAMP_CREATE_TIME


class KafkaTopics:
    """TargetTopics over confluent_kafka; a context manager that discards what is still queued."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._cluster = ClusterClient({**options.client, "isolation.level": "read_uncommitted"})
        self._consumer: Any = None
        self._batch_limits: dict[str, int] = {}
        """Of the topics that are written to: the largest batch that each takes."""
        writer = DirectWriter if is_possible(options.client) else LibraryWriter
        self._writer: DirectWriter | LibraryWriter = writer(options, self._batch_limit_of)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
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
            is_right = error.args[0].name() == "TOPIC_AUTHORIZATION_FAILED"
            why = "this client has no right to it" if is_right else error.args[0].str()
            raise OptionInvalid(
                f"Exactly-once delivery depends on the settings of topic {topic}, and they cannot"
                f" be read: {why}. Nothing was written to it."
                f" {allowing(self._options.client, 'describe_configs', 'topic', topic)}; or set"
                " delivery=atLeastOnce.",
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
            raise self._marks_failed(group, "read", error) from error
        for entry in found.topic_partitions:
            if entry.error is not None:
                raise self._marks_failed(group, "read", entry.error)
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
            raise self._marks_failed(group, "stored", error) from error
        for entry in stored.topic_partitions:
            if entry.error is not None:
                raise self._marks_failed(group, "stored", entry.error, entry.topic)

    def _marks_failed(
        self, group: str, what: str, error: object, topic: str = ""
    ) -> DeliveryFailed | ProgressRefused:
        from confluent_kafka import KafkaException

        code = error.args[0] if isinstance(error, KafkaException) else error
        text = str(code.str() if hasattr(code, "str") else code or "no answer").rstrip(".")
        if not hasattr(code, "name") or code.name() not in _REFUSALS:
            return DeliveryFailed(
                f"The marks of group {group} were not {what}: {text}. The batch is not"
                " committed; the task is retried. Is the broker up?"
            )
        step = "Check the login and the group's name"
        if code.name().endswith("_AUTHORIZATION_FAILED"):
            text = "this client has no right to it"
        if code.name() == "TOPIC_AUTHORIZATION_FAILED":
            step = allowing(self._options.client, "read", "topic", topic or "TOPIC")
        elif code.name() == "GROUP_AUTHORIZATION_FAILED":
            prefix = prefix_of_jobs(group)
            step = allowing(
                self._options.client, "read", "group", prefix or group, is_prefix=bool(prefix)
            )
        return ProgressRefused(
            f"The progress of group {group} was not {what}: {text}. Nothing more is written."
            f" {step}; the same command continues."
        )

    def produce(self, rows: Sequence[RowToWrite], written: Sequence[bytes]) -> None:
        """See TargetTopics."""
        self._writer.produce(rows, written)

    def flush(self) -> None:
        """See TargetTopics."""
        self._writer.flush()

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


def _batch_limit(configuration: dict[str, str]) -> int:
    """The largest batch, in bytes, that a topic with these settings takes."""
    found = configuration.get("max.message.bytes")
    return _BATCH_BYTES_UNKNOWN if found is None else max(1, int(found))
