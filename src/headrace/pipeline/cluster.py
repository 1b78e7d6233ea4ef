"""Topic metadata for planning: partitions, watermarks, offsets by time.

Invariants: one admin client and few requests (one for all partitions); results are plain Offsets.
confluent_kafka is imported on first use.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from headrace.pipeline.errors import (
    PASSING_CODES,
    BrokerUnavailable,
    NotStableYet,
    OptionInvalid,
    ReadRefused,
    RecordsLost,
)
from headrace.pipeline.options import EARLIEST, LATEST, Boundary, SourceOptions
from headrace.pipeline.planning import Offsets, build, offset_of, walk
from headrace.records.identifiers import ZERO_UUID, kafka_uuid
from headrace.runtime.access import allowing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.pipeline.position import TopicIds

REQUEST_TIMEOUT_S = 30.0
_QUIET = {"log_level": "2", "socket.timeout.ms": "20000"}
# Consumer settings that an admin client would warn about.
_CONSUMER_ONLY = ("isolation.level", "group.id", "fetch.", "queued.", "auto.", "enable.", "check.")


class TopicSubscription(NamedTuple):
    """Return the partitions of the subscribed topics, each with offset 0, and the topics' ids."""

    partitions: Offsets
    topic_ids: TopicIds


class TopicFacts(NamedTuple):
    """A topic's description; the id is None if the broker has no topic ids."""

    partition_count: int
    topic_id: str | None
    is_internal: bool = False


class ClusterClient:
    """The metadata requests of planning."""

    def __init__(self, client: dict[str, str]) -> None:
        self._client = client
        self._admin: Any = None

    @property
    def admin(self) -> Any:
        """The admin client, created on first use."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            plain = {
                name: value
                for name, value in self._client.items()
                if not name.startswith(_CONSUMER_ONLY)
            }
            self._admin = AdminClient({**_QUIET, **plain})
        return self._admin

    def allowing(self, operation: str, name: str, kind: str = "topic") -> str:
        """The next step where this client has no right to the operation."""
        return allowing(self._client, operation, kind, name)

    def partitions_of(self, topics: tuple[str, ...], pattern: str | None) -> Offsets:
        """Return the subscribed partitions, each with offset 0. Raises OptionInvalid if a topic is
        missing."""
        return self.subscription_of(topics, pattern).partitions

    def subscription_of(self, topics: tuple[str, ...], pattern: str | None) -> TopicSubscription:
        """Return the subscribed partitions and topic ids. Raises OptionInvalid if a topic is
        missing."""
        names = list(topics)
        if pattern is not None:
            with _asking("list the topics"):
                listed = self.admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
            names = [name for name in listed if re.fullmatch(pattern, name)]
        known = self.describe(sorted(set(names)))
        if pattern is not None:  # as in Kafka's clients, internal topics must be named
            known = {name: facts for name, facts in known.items() if not facts.is_internal}
        for name in topics:
            if name not in known:
                raise OptionInvalid(f"There is no topic {name!r} on this broker.", topic=name)
        return TopicSubscription(
            build([(t, n, 0) for t, facts in known.items() for n in range(facts.partition_count)]),
            {t: facts.topic_id for t, facts in known.items() if facts.topic_id is not None},
        )

    def partition_count_or_none(self, topic: str) -> int | None:
        """Return a topic's partition count, or None if it does not exist."""
        facts = self.describe([topic]).get(topic)
        return None if facts is None else facts.partition_count

    def topic_id_or_none(self, topic: str) -> str | None:
        """Return a topic's id, or None if the topic does not exist or the broker has no topic
        ids."""
        facts = self.describe([topic]).get(topic)
        return None if facts is None else facts.topic_id

    def cluster_id(self) -> str:
        """Return the cluster's id. Raises BrokerUnavailable."""
        with _asking("describe the cluster"):
            described = self.admin.describe_cluster(request_timeout=REQUEST_TIMEOUT_S)
            return str(described.result(REQUEST_TIMEOUT_S).cluster_id)

    def committed_of(self, groups: frozenset[str] | None) -> dict[str, Offsets]:
        """Return the committed offsets of these consumer groups, of all of them by default; groups
        of other kinds have none. Raises BrokerUnavailable."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        with _asking("read committed offsets"):
            if groups is None:
                listed = self.admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S)
                valid = listed.result(REQUEST_TIMEOUT_S).valid
                groups = frozenset(one.group_id for one in valid)
            found = {}
            for group in sorted(groups):  # librdkafka takes one group in a request
                future = self.admin.list_consumer_group_offsets(
                    [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_TIMEOUT_S
                )[group]
                parts = future.result(REQUEST_TIMEOUT_S).topic_partitions or []
                found[group] = build(
                    [(p.topic, p.partition, p.offset) for p in parts if p.offset >= 0]
                )
            return found

    def commit(self, group: str, offsets: list[tuple[str, int, int, str]]) -> Any:
        """Begin to commit offsets of a group without members: (topic, partition, offset, metadata)
        each. Returns a future of the partitions, each with its error."""
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

        parts = [TopicPartition(t, p, offset, metadata) for t, p, offset, metadata in offsets]
        (future,) = self.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, parts)], request_timeout=REQUEST_TIMEOUT_S
        ).values()
        return future

    def describe(self, topics: list[str]) -> dict[str, TopicFacts]:
        """Return those of the named topics that exist, in that order.

        Uses DescribeTopics, which never creates a topic.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        if not topics:
            return {}
        asked = self.admin.describe_topics(
            TopicCollection(topics), request_timeout=REQUEST_TIMEOUT_S
        )
        found = {}
        for topic in topics:
            try:
                with _asking(f"describe topic {topic}", self.allowing("describe", topic)):
                    answer = asked[topic].result(REQUEST_TIMEOUT_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise
            found[topic] = TopicFacts(
                len(answer.partitions), _id_or_none(answer.topic_id), answer.is_internal
            )
        return found

    def authorized(self, topics: list[str]) -> dict[str, frozenset[str]]:
        """Return what this client may do with those of the topics that exist (`read`, ...): nothing
        where it may not even describe one. Topics of brokers that do not say it are left out."""
        from confluent_kafka import KafkaException, TopicCollection

        if not topics:
            return {}
        asked = self.admin.describe_topics(
            TopicCollection(topics),
            include_authorized_operations=True,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        found = {}
        for topic in topics:
            try:
                with _asking(f"describe topic {topic}"):
                    allowed = asked[topic].result(REQUEST_TIMEOUT_S).authorized_operations
            except KafkaException as error:
                if error.args[0].name() == "TOPIC_AUTHORIZATION_FAILED":
                    found[topic] = frozenset[str]()
                continue
            if allowed:
                found[topic] = frozenset(one.name.lower() for one in allowed)
        return found

    def is_group_hidden(self, group: str) -> bool:
        """Whether this client lacks the right to see the progress of a group."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        asked = self.admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=REQUEST_TIMEOUT_S
        )
        try:
            with _asking("read committed offsets"):
                asked[group].result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            return bool(error.args[0].name() == "GROUP_AUTHORIZATION_FAILED")
        return False

    def earliest(self, partitions: Offsets) -> Offsets:
        """Return the log start offset of each partition."""
        spec = _offset_specs().earliest()
        return self._list({(t, p): spec for t, p, _ in walk(partitions)})

    def latest(self, partitions: Offsets) -> Offsets:
        """Return the high watermark of each partition, or the last stable offset with
        read_committed."""
        spec = _offset_specs().latest()
        return self._list({(t, p): spec for t, p, _ in walk(partitions)})

    def high_watermarks(self, partitions: Offsets) -> Offsets:
        """Return the end of each log, including records of open transactions."""
        spec = _offset_specs().latest()
        return self._list({(t, p): spec for t, p, _ in walk(partitions)}, committed=False)

    def configuration(self, topic: str) -> dict[str, str]:
        """Return the topic's settings, by name."""
        return self._configurations([topic])[topic]

    def configurations(self) -> dict[str, dict[str, str]]:
        """Return the settings of all topics but internal ones. Raises ReadRefused."""
        with _asking("list the topics"):
            listed = self.admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        names = [name for name in listed if not name.startswith("__")]
        return self._configurations(names, is_refusal_ours=True)

    def _configurations(
        self, topics: list[str], *, is_refusal_ours: bool = False
    ) -> dict[str, dict[str, str]]:
        from confluent_kafka import KafkaError, KafkaException

        if not topics:
            return {}
        library = _admin_library()
        kind = library["ResourceType"].TOPIC
        resources = {library["ConfigResource"](kind, topic): topic for topic in topics}
        asked = self.admin.describe_configs(list(resources), request_timeout=REQUEST_TIMEOUT_S)
        found = {}
        for resource, topic in resources.items():
            try:
                allowing = self.allowing("describe_configs", topic) if is_refusal_ours else ""
                with _asking(f"read the settings of topic {topic}", allowing):
                    entries = asked[resource].result(REQUEST_TIMEOUT_S)
            except KafkaException as error:
                is_deleted = error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if is_deleted and len(topics) > 1:
                    continue  # since it was listed
                raise
            found[topic] = {
                name: entry.value for name, entry in entries.items() if entry.value is not None
            }
        return found

    def at_time(self, partitions: Offsets, timestamp_ms: int) -> Offsets:
        """Return the first offset whose timestamp is at least `timestamp_ms`, or the end offset if
        none is."""
        return self.at_times(build([(t, p, timestamp_ms) for t, p, _ in walk(partitions)]))

    def at_times(self, times_ms: Offsets, *, is_required: bool = False) -> Offsets:
        """As `at_time`, with a time for each partition.

        Raises OptionInvalid if `is_required` and a partition has no such record.
        """
        for_timestamp = _offset_specs().for_timestamp
        found = self._list({(t, p): for_timestamp(time_ms) for t, p, time_ms in walk(times_ms)})
        missing = [(t, p) for t, p, offset in walk(found) if offset < 0]
        if missing and is_required:
            topic, partition = missing[0]
            raise OptionInvalid(
                f"{topic}-{partition} has no record at or after"
                f" {offset_of(times_ms, topic, partition, 0)} ms. Give an earlier time, or set"
                " startingOffsetsByTimestampStrategy=latest to start at the end there.",
                topic=topic,
                partition=partition,
            )
        latest = self.latest(build([(t, p, 0) for t, p in missing]))
        return build([*walk(build([e for e in walk(found) if e[2] >= 0])), *walk(latest)])

    def _list(
        self, wanted: dict[tuple[str, int], Any], *, committed: bool | None = None
    ) -> Offsets:
        from confluent_kafka import IsolationLevel, TopicPartition

        if not wanted:
            return {}
        if committed is None:
            committed = self._client.get("isolation.level", "read_committed") == "read_committed"
        answers = self.admin.list_offsets(
            {TopicPartition(t, p): spec for (t, p), spec in wanted.items()},
            isolation_level=IsolationLevel.READ_COMMITTED
            if committed
            else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        found = []
        for tp, answer in answers.items():
            what = f"list offsets of {tp.topic}"
            with _asking(what, self.allowing("describe", tp.topic)):
                found.append((tp.topic, tp.partition, answer.result(REQUEST_TIMEOUT_S).offset))
        return build(found)


@contextmanager
def _asking(what: str, allowing: str = "") -> Iterator[None]:
    """Raise BrokerUnavailable where a request got no answer, or one that asks to repeat it, and
    ReadRefused where a right is missing and `allowing` says which."""
    from confluent_kafka import KafkaException

    try:
        yield
    except TimeoutError as error:
        raise _unavailable(what, f"no answer within {REQUEST_TIMEOUT_S:.0f} s") from error
    except KafkaException as error:
        name = error.args[0].name()
        if allowing and name.endswith("_AUTHORIZATION_FAILED"):
            raise ReadRefused(
                f"Could not {what}: this client has no right to it. {allowing}"
            ) from error
        if name not in PASSING_CODES:
            raise
        raise _unavailable(what, error.args[0].str()) from error


def _unavailable(what: str, reason: str) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"Could not {what}: {reason}. Nothing is lost: what waits for brokers goes on by itself,"
        " and what has ended continues when it is started again, as with_restarts does. Check that"
        " the broker is up and that bootstrap.servers is right."
    )


def is_compacted(configuration: dict[str, str]) -> bool:
    """Whether a topic with these settings drops records whose key occurs again."""
    return "compact" in configuration.get("cleanup.policy", "").split(",")


def _id_or_none(topic_id: Any) -> str | None:
    """Encode the id as Kafka's tools do, so that the stored form does not depend on a client's
    version.

    Brokers without topic ids return the zero id.
    """
    if topic_id is None:
        return None
    halves = (topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    found = UUID(bytes=b"".join((half & (1 << 64) - 1).to_bytes(8, "big") for half in halves))
    return None if found == ZERO_UUID else kafka_uuid(found)


def _offset_specs() -> Any:
    return _admin_library()["OffsetSpec"]


def _admin_library() -> dict[str, Any]:
    """The names of the library's module, which declares none of them as exported."""
    from confluent_kafka import admin

    return vars(admin)


def subscribed(cluster: ClusterClient, options: SourceOptions) -> TopicSubscription:
    """What the options subscribe to. Raises OptionInvalid if a topic or an assigned partition is
    missing."""
    found = cluster.subscription_of(options.topics, options.pattern)
    if not options.assigned:
        return found
    wanted = [(t, number, 0) for t, numbers in options.assigned.items() for number in numbers]
    for topic, number, _ in wanted:
        if offset_of(found.partitions, topic, number, -1) < 0:
            raise OptionInvalid(
                f"The option assign names {topic}-{number}, but {topic} has"
                f" {len(found.partitions[topic])} partitions.",
                topic=topic,
            )
    return found._replace(partitions=build(wanted))


def resolve_start(cluster: ClusterClient, options: SourceOptions, partitions: Offsets) -> Offsets:
    """Return the start offsets of a read. Raises OptionInvalid."""
    if options.starting_timestamp_ms is not None:
        times_ms = build([(t, p, options.starting_timestamp_ms) for t, p, _ in walk(partitions)])
        return cluster.at_times(times_ms, is_required=options.is_start_time_required)
    if options.starting_times_ms:
        return _resolve_times(cluster, options, partitions, "startingOffsetsByTimestamp")
    start = _resolve(cluster, options.starting, partitions, unnamed=EARLIEST)
    return _within_log(cluster, options, "startingOffsets", start)


def resolve_end(cluster: ClusterClient, options: SourceOptions, partitions: Offsets) -> Offsets:
    """Return the end offsets of a batch read. Raises OptionInvalid."""
    if options.ending_timestamp_ms is not None:
        return cluster.at_time(partitions, options.ending_timestamp_ms)
    if options.ending_times_ms:
        return _resolve_times(cluster, options, partitions, "endingOffsetsByTimestamp")
    end = _resolve(cluster, options.ending, partitions, unnamed=LATEST)
    return _within_log(cluster, options, "endingOffsets", end)


def _resolve_times(
    cluster: ClusterClient, options: SourceOptions, partitions: Offsets, name: str
) -> Offsets:
    """Offsets by a time for each partition; those without one are read from the start, to the
    end."""
    is_start = name == "startingOffsetsByTimestamp"
    times_ms = options.starting_times_ms if is_start else options.ending_times_ms
    for topic, partition, _ in walk(times_ms):
        if offset_of(partitions, topic, partition, -1) < 0:
            raise OptionInvalid(f"{name} names {topic}-{partition}, which is not subscribed.")
    rest = build([e for e in walk(partitions) if offset_of(times_ms, e[0], e[1], -1) < 0])
    found = cluster.at_times(times_ms, is_required=is_start and options.is_start_time_required)
    others = cluster.earliest(rest) if is_start else cluster.latest(rest)
    return build([*walk(found), *walk(others)])


def _resolve(
    cluster: ClusterClient, boundary: Boundary, partitions: Offsets, *, unnamed: int
) -> Offsets:
    if boundary == "earliest":
        return cluster.earliest(partitions)
    if boundary == "latest":
        return cluster.latest(partitions)
    for topic, partition, _ in walk(boundary):
        if offset_of(partitions, topic, partition, -1) < 0:
            raise OptionInvalid(
                f"Offsets name {topic}-{partition}, which is not read: these are"
                f" {', '.join(f'{t}-{p}' for t, p, _ in [*walk(partitions)][:10])}."
            )
    asked = build([(t, p, offset_of(boundary, t, p, unnamed)) for t, p, _ in walk(partitions)])
    first = cluster.earliest(partitions) if _has(asked, EARLIEST) else {}
    last = cluster.latest(partitions) if _has(asked, LATEST) else {}
    named = {EARLIEST: first, LATEST: last}
    return build([(t, p, offset_of(named.get(o, {}), t, p, o)) for t, p, o in walk(asked)])


def _within_log(
    cluster: ClusterClient, options: SourceOptions, name: str, wanted: Offsets
) -> Offsets:
    """Limit `wanted` to the logs' ends. Raises OptionInvalid unless failOnDataLoss is false."""
    if isinstance(options.starting if name == "startingOffsets" else options.ending, str):
        return wanted
    last = cluster.latest(wanted)
    for topic, partition, offset in walk(wanted):
        high = offset_of(last, topic, partition, offset)
        if offset > high and options.fail_on_data_loss:
            raise OptionInvalid(
                f"{name} requests offset {offset} of {topic}-{partition}, but the log ends at"
                f" {high}. Give an offset up to {high}, or {LATEST} for the end;"
                " failOnDataLoss=false reads up to the end instead.",
                topic=topic,
                partition=partition,
            )
    return build([(t, p, min(o, offset_of(last, t, p, o))) for t, p, o in walk(wanted)])


def _has(offsets: Offsets, mark: int) -> bool:
    return any(offset == mark for *_, offset in walk(offsets))


def check_present(cluster: ClusterClient, start: Offsets, end: Offsets) -> None:
    """Raise RecordsLost if the log no longer holds all of [start, end), and NotStableYet if it does
    but a transaction there is open."""
    touched = build([(t, p, o) for t, p, o in walk(end) if o != offset_of(start, t, p, 0)])
    first, last = cluster.earliest(touched), cluster.latest(touched)
    unstable = build([(t, p, o) for t, p, o in walk(touched) if o > offset_of(last, t, p, 0)])
    written = cluster.high_watermarks(unstable)
    for topic, partition, until in walk(touched):
        begin = offset_of(start, topic, partition, 0)
        low = offset_of(first, topic, partition, 0)
        high = offset_of(last, topic, partition, 0)
        if low <= begin <= until and high < until <= offset_of(written, topic, partition, -1):
            raise NotStableYet(
                f"{topic}-{partition}: offsets {begin} to {until} were requested, but only those"
                f" up to the last stable offset {high} are committed: a transaction is open."
                " Read again when it has ended, or set kafka.isolation.level=read_uncommitted,"
                " with which these offsets were planned.",
                topic=topic,
                partition=partition,
            )
        if begin < low or until > high or begin > until:
            raise RecordsLost(
                f"{topic}-{partition}: offsets {begin} to {until} were requested, but the log"
                f" holds {low} to {high}. Retention deleted records before they were read, or"
                " the log was truncated. Set failOnDataLoss=false to read the remaining"
                " records, or start from another offset.",
                topic=topic,
                partition=partition,
            )
