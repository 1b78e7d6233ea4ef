"""Encodes a topology as Kafka's StreamsGroupTopologyValue, version 0, without the version.

Invariants: pure bytes and tuples. Do not change: stored.
"""

from __future__ import annotations

from typing import Final

from headrace.coordination.kit.stored_bytes import (
    INT16,
    INT32,
    StoredReader,
    compact_string,
    uvarint,
)
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)

_NO_TAGS: Final = b"\0"
_TOPIC_SIZE_MIN: Final = 9
_PAIR_SIZE_MIN: Final = 3
_GROUP_SIZE_MIN: Final = 4
_SUBTOPOLOGY_SIZE_MIN: Final = 8


def write_topology(topology: Topology) -> bytes:
    """Encode a topology."""
    parts = [INT32.pack(topology.epoch), uvarint(len(topology.subtopologies) + 1)]
    for one in topology.subtopologies:
        parts += (
            compact_string(one.id),
            _strings(one.source_topics),
            _strings(one.source_patterns),
            _topics(one.changelog_topics),
            _strings(one.repartition_sinks),
            _topics(one.repartition_sources),
            uvarint(len(one.copartition_groups) + 1),
        )
        for group in one.copartition_groups:
            parts += (
                _indexes(group.source_topics),
                _indexes(group.source_patterns),
                _indexes(group.repartition_sources),
                _NO_TAGS,
            )
        parts.append(_NO_TAGS)
    return b"".join((*parts, _NO_TAGS))


def _strings(texts: tuple[str, ...]) -> bytes:
    return uvarint(len(texts) + 1) + b"".join(map(compact_string, texts))


def _indexes(numbers: tuple[int, ...]) -> bytes:
    return uvarint(len(numbers) + 1) + b"".join(map(INT16.pack, numbers))


def _topics(topics: tuple[InternalTopic, ...]) -> bytes:
    parts = [uvarint(len(topics) + 1)]
    for topic in topics:
        parts += (
            compact_string(topic.name),
            INT32.pack(topic.partition_count),
            INT16.pack(topic.replication_factor),
            uvarint(len(topic.configs) + 1),
        )
        for name, value in topic.configs:
            parts += (compact_string(name), compact_string(value), _NO_TAGS)
        parts.append(_NO_TAGS)
    return b"".join(parts)


def read_topology(reader: StoredReader) -> Topology:
    """Decode a topology. Raises RecordInvalid."""
    epoch = reader.int32()
    subtopologies: list[Subtopology] = []
    for _ in range(reader.compact_count(_SUBTOPOLOGY_SIZE_MIN)):
        subtopologies.append(
            Subtopology(
                reader.compact_string(),
                _read_strings(reader),
                _read_strings(reader),
                _read_topics(reader),
                _read_strings(reader),
                _read_topics(reader),
                _read_groups(reader),
            )
        )
        reader.tagged_fields()
    reader.tagged_fields()
    return Topology(epoch, tuple(subtopologies))


def _read_strings(reader: StoredReader) -> tuple[str, ...]:
    return tuple(reader.compact_string() for _ in range(reader.compact_count(1)))


def _read_indexes(reader: StoredReader) -> tuple[int, ...]:
    return tuple(reader.int16() for _ in range(reader.compact_count(INT16.size)))


def _read_topics(reader: StoredReader) -> tuple[InternalTopic, ...]:
    topics: list[InternalTopic] = []
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        name, partition_count = reader.compact_string(), reader.int32()
        replication_factor = reader.int16()
        configs: list[tuple[str, str]] = []
        for _ in range(reader.compact_count(_PAIR_SIZE_MIN)):
            configs.append((reader.compact_string(), reader.compact_string()))
            reader.tagged_fields()
        reader.tagged_fields()
        topics.append(InternalTopic(name, partition_count, replication_factor, tuple(configs)))
    return tuple(topics)


def _read_groups(reader: StoredReader) -> tuple[CopartitionGroup, ...]:
    groups: list[CopartitionGroup] = []
    for _ in range(reader.compact_count(_GROUP_SIZE_MIN)):
        groups.append(
            CopartitionGroup(_read_indexes(reader), _read_indexes(reader), _read_indexes(reader))
        )
        reader.tagged_fields()
    return tuple(groups)
