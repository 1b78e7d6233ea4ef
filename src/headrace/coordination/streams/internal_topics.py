"""The internal topics of a streams group: their partition counts, and which are missing.

Invariants: pure; a function of the topology and of the existing topics. Partition counts are
derived from the source topics and from counts fixed in the topology, never from an existing
internal topic: a different count there is an error, since its keys are in other partitions.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.streams.topology import InternalTopic, Topology, copartitioned
from headrace.errors import StreamsTopologyInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordination.kit.topic_view import TopicView

STALE_TOPOLOGY: Final = 0
MISSING_SOURCE_TOPICS: Final = 1
INCORRECTLY_PARTITIONED_TOPICS: Final = 2
MISSING_INTERNAL_TOPICS: Final = 3
SHUTDOWN_APPLICATION: Final = 4

TASKS_MAX: Final = 20_000
"""Per group: they are assigned in a fraction of a second, and the records fit into the log."""
_SHOWN_MAX: Final = 20
_HASH_SIZE: Final = 8


class Status(NamedTuple):
    """A condition that keeps a group or a member from working; Kafka's codes."""

    code: int
    detail: str


class ConfiguredTopology(NamedTuple):
    """A topology with the present topics. Tasks can be assigned only without a `status`."""

    task_counts: Mapping[str, int]
    """By subtopology; empty if unknown."""
    partition_counts: Mapping[str, int]
    """For the topics that tasks read."""
    missing: tuple[InternalTopic, ...] = ()
    """The topics that the broker has to create."""
    status: Status | None = None
    metadata_hash: int = 0
    """A hash of the topics that were evaluated. Do not change: stored."""


class _NotPossibleError(Exception):
    """The topics do not match the topology; carries the status."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, topics: TopicView) -> ConfiguredTopology:
    """Determine partition counts. Raises StreamsTopologyInvalid if that is impossible."""
    found_hash = _hash_of(topology, topics)
    try:
        counts = _source_counts(topology, topics)
        _decide_repartition(topology, counts)
        _enforce_copartition(topology, counts)
        task_counts = {
            one.id: max(counts[name] for name in one.inputs()) for one in topology.subtopologies
        }
        if sum(task_counts.values()) > TASKS_MAX:
            raise _NotPossibleError(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"the topology has {sum(task_counts.values())} tasks, and the limit is {TASKS_MAX}",
            )
        missing = _missing(topology, topics, counts, task_counts)
    except _NotPossibleError as error:
        return ConfiguredTopology({}, {}, (), error.status, found_hash)
    status: Status | None = None
    if missing:
        names = _shown([topic.name for topic in missing])
        status = Status(MISSING_INTERNAL_TOPICS, f"internal topics are missing: {names}")
    return ConfiguredTopology(task_counts, counts, missing, status, found_hash)


def _shown(names: list[str]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return ", ".join(names[:_SHOWN_MAX]) + more


def _repartition(topology: Topology) -> dict[str, InternalTopic]:
    return {
        topic.name: topic for one in topology.subtopologies for topic in one.repartition_sources
    }


def _source_counts(topology: Topology, topics: TopicView) -> dict[str, int]:
    """Partition counts of the external source topics, and of topics with a fixed count."""
    internal = _repartition(topology)
    counts: dict[str, int] = {}
    lacking: dict[str, None] = {}
    for subtopology in topology.subtopologies:
        for name in subtopology.source_topics:
            if name in internal or name in counts:
                continue
            shape = topics.shape(name)
            if shape is None or shape.partition_count < 1:
                lacking[name] = None
            else:
                counts[name] = shape.partition_count
    if lacking:
        raise _NotPossibleError(
            MISSING_SOURCE_TOPICS, f"source topics are missing: {_shown([*lacking])}"
        )
    for name, topic in internal.items():
        if topic.partition_count:
            counts[name] = topic.partition_count
    return counts


def _decide_repartition(topology: Topology, counts: dict[str, int]) -> None:
    """A repartition topic has as many partitions as the widest input of its writers."""
    writers: dict[str, list[int]] = {}
    for place, subtopology in enumerate(topology.subtopologies):
        for name in subtopology.repartition_sinks:
            writers.setdefault(name, []).append(place)
    inputs = [subtopology.inputs() for subtopology in topology.subtopologies]
    left = [name for name in _repartition(topology) if name not in counts]
    while left:
        undecided: list[str] = []
        for name in left:
            needed = [topic for place in writers.get(name, ()) for topic in inputs[place]]
            if needed and all(topic in counts for topic in needed):
                counts[name] = max(counts[topic] for topic in needed)
            else:
                undecided.append(name)
        if len(undecided) == len(left):
            raise StreamsTopologyInvalid(
                "the partition counts of repartition topics depend on each other, and none is set:"
                f" {_shown(left)}"
            )
        left = undecided


def _enforce_copartition(topology: Topology, counts: dict[str, int]) -> None:
    internal = _repartition(topology)
    for subtopology in topology.subtopologies:
        for names in copartitioned(subtopology):
            flexible = [n for n in names if n in internal and not internal[n].partition_count]
            given = {name: counts[name] for name in names if name not in flexible}
            if len({*given.values()}) > 1:
                shown = ", ".join(f"{name} has {count}" for name, count in sorted(given.items()))
                raise _NotPossibleError(
                    INCORRECTLY_PARTITIONED_TOPICS,
                    "co-partitioned topics must have the same number of partitions:"
                    f" {shown[:2_000]}",
                )
            if flexible:
                count = max(given.values() or (counts[name] for name in flexible))
                counts.update(dict.fromkeys(flexible, count))


def _missing(
    topology: Topology,
    topics: TopicView,
    counts: Mapping[str, int],
    task_counts: Mapping[str, int],
) -> tuple[InternalTopic, ...]:
    """Internal topics to create, with their partition counts."""
    wanted = {
        name: topic._replace(partition_count=counts[name])
        for name, topic in _repartition(topology).items()
    }
    for subtopology in topology.subtopologies:
        for topic in subtopology.own_changelogs():
            wanted[topic.name] = topic._replace(partition_count=task_counts[subtopology.id])
    missing: list[InternalTopic] = []
    for name, topic in wanted.items():
        shape = topics.shape(name)
        if shape is None or shape.partition_count < 1:
            missing.append(topic)
        elif shape.partition_count != topic.partition_count:
            raise _NotPossibleError(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"internal topic {name} has {shape.partition_count} partitions but requires "
                f"{topic.partition_count}: reset the application, or restore the former "
                "partition counts of its source topics",
            )
    return tuple(missing)


def _hash_of(topology: Topology, topics: TopicView) -> int:
    digest = hashlib.blake2b(digest_size=_HASH_SIZE)
    for name in sorted(topology.topics()):
        shape = topics.shape(name)
        if shape is not None:
            digest.update(shape.id.bytes + shape.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)


def with_problem(statuses: list[Status], problem: str) -> list[Status]:
    """The statuses, with the reason why internal topics could not be created, if any."""
    if not problem:
        return statuses
    return [
        one._replace(detail=f"{one.detail}; {problem}")
        if one.code == MISSING_INTERNAL_TOPICS
        else one
        for one in statuses
    ]
