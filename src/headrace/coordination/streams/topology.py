"""The topology of a Kafka Streams application, as its members send it (KIP-1071).

Invariants: values, and the checks that need no knowledge of topics. A topology comes from a client:
every list is bounded, every name is checked, and indexes point into their lists.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import StreamsTopologyInvalid
from headrace.records.identifiers import INTERNAL_TOPICS
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBTOPOLOGIES_MAX: Final = 1_000
TOPICS_MAX: Final = 10_000
"""In all subtopologies together, each mention counted."""
CONFIGS_MAX: Final = 100
"""Per internal topic."""
TEXT_SIZE_MAX: Final = 4_096
"""Characters of a subtopology's id, and of a configuration's name and value."""
PARTITIONS_MAX: Final = 100_000
"""Per repartition topic."""
COPARTITION_GROUPS_MAX: Final = 10_000
"""Per subtopology."""
_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class InternalTopic(NamedTuple):
    """A topic that belongs to the application; 0: the broker decides."""

    name: str
    partition_count: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class CopartitionGroup(NamedTuple):
    """Topics with equal partition counts, by their indexes in the subtopology's lists."""

    source_topics: tuple[int, ...] = ()
    source_patterns: tuple[int, ...] = ()
    repartition_sources: tuple[int, ...] = ()


class Subtopology(NamedTuple):
    """A part of the topology that is processed together: one task per partition."""

    id: str
    source_topics: tuple[str, ...] = ()
    source_patterns: tuple[str, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    repartition_sources: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    def inputs(self) -> list[str]:
        """The topics whose partitions its tasks read."""
        return [*self.source_topics, *(topic.name for topic in self.repartition_sources)]

    def own_changelogs(self) -> list[InternalTopic]:
        """Changelog topics except those that are source topics, which are not created."""
        return [topic for topic in self.changelog_topics if topic.name not in self.source_topics]


class Topology(NamedTuple):
    """An application's topology. A change has a higher epoch."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    def topics(self) -> dict[str, None]:
        """Every topic that must exist before tasks are assigned."""
        names: dict[str, None] = {}
        for subtopology in self.subtopologies:
            names.update(dict.fromkeys(subtopology.inputs()))
            names.update(dict.fromkeys(topic.name for topic in subtopology.changelog_topics))
        return names


def check_topology(topology: Topology) -> None:
    """Raises StreamsTopologyInvalid."""
    if topology.epoch < 0:
        raise StreamsTopologyInvalid(f"the topology epoch {topology.epoch} must not be negative")
    if not 0 < len(topology.subtopologies) <= SUBTOPOLOGIES_MAX:
        raise StreamsTopologyInvalid(
            f"the topology has {len(topology.subtopologies)} subtopologies: it must have "
            f"1 to {SUBTOPOLOGIES_MAX}"
        )
    ids = [subtopology.id for subtopology in topology.subtopologies]
    if len({*ids}) != len(ids):
        raise StreamsTopologyInvalid("two subtopologies have the same id")
    topic_count = sum(
        len(one.source_topics)
        + len(one.source_patterns)
        + len(one.changelog_topics)
        + len(one.repartition_sinks)
        + len(one.repartition_sources)
        for one in topology.subtopologies
    )
    if topic_count > TOPICS_MAX:
        raise StreamsTopologyInvalid(
            f"the topology names {topic_count} topics, and the limit is {TOPICS_MAX}"
        )
    for subtopology in topology.subtopologies:
        _check_subtopology(subtopology)
    sinks = {name for one in topology.subtopologies for name in one.repartition_sinks}
    for subtopology in topology.subtopologies:
        for topic in subtopology.repartition_sources:
            if topic.partition_count == 0 and topic.name not in sinks:
                raise StreamsTopologyInvalid(
                    f"no subtopology writes to the repartition topic {topic.name!r}, so its"
                    " partition count cannot be computed"
                )


def _check_subtopology(subtopology: Subtopology) -> None:
    if not 0 < len(subtopology.id) <= TEXT_SIZE_MAX:
        raise StreamsTopologyInvalid(
            f"a subtopology's id must have 1 to {TEXT_SIZE_MAX} characters"
        )
    where = f"subtopology {subtopology.id[:100]!r}"
    if subtopology.source_patterns:
        raise StreamsTopologyInvalid(
            f"{where} reads topics by regular expression: name its source topics"
        )
    if not subtopology.source_topics and not subtopology.repartition_sources:
        raise StreamsTopologyInvalid(f"{where} reads no topic")
    internal = (*subtopology.changelog_topics, *subtopology.repartition_sources)
    for name in (
        *subtopology.source_topics,
        *subtopology.repartition_sinks,
        *(topic.name for topic in internal),
    ):
        within = name_in(name)
        if not _TOPIC_NAME.fullmatch(within) or within in {".", ".."}:
            raise StreamsTopologyInvalid(
                f"{where} names {name[:100]!r}, which is not a valid topic name"
            )
        if within in INTERNAL_TOPICS:
            raise StreamsTopologyInvalid(f"{where} names {name}, which is internal to the brokers")
    inputs = subtopology.inputs()
    if len({*inputs}) != len(inputs):
        raise StreamsTopologyInvalid(f"{where} reads a topic twice")
    for topic in internal:
        _check_internal(where, topic)
    for topic in subtopology.changelog_topics:
        if topic.partition_count:
            raise StreamsTopologyInvalid(
                f"{where} sets {topic.partition_count} partitions for the changelog topic"
                f" {topic.name!r}: its count is the number of the subtopology's tasks"
            )
    _check_groups(where, subtopology)


def _check_internal(where: str, topic: InternalTopic) -> None:
    if not 0 <= topic.partition_count <= PARTITIONS_MAX:
        raise StreamsTopologyInvalid(
            f"{where} requests {topic.partition_count} partitions for {topic.name!r}: use "
            f"0 to {PARTITIONS_MAX}"
        )
    if topic.replication_factor < -1:
        raise StreamsTopologyInvalid(
            f"{where} requests replication factor {topic.replication_factor} for {topic.name!r}"
        )
    texts = [text for pair in topic.configs for text in pair]
    if len(topic.configs) > CONFIGS_MAX or any(len(text) > TEXT_SIZE_MAX for text in texts):
        raise StreamsTopologyInvalid(
            f"{where} has more than {CONFIGS_MAX} configurations, or one longer than"
            f" {TEXT_SIZE_MAX} characters, for {topic.name!r}"
        )
    if len({name for name, _ in topic.configs}) != len(topic.configs):
        raise StreamsTopologyInvalid(f"{where} sets a configuration of {topic.name!r} twice")


def _check_groups(where: str, subtopology: Subtopology) -> None:
    if len(subtopology.copartition_groups) > COPARTITION_GROUPS_MAX:
        raise StreamsTopologyInvalid(
            f"{where} has more than {COPARTITION_GROUPS_MAX} copartition groups"
        )
    for group in subtopology.copartition_groups:
        for indexes, count in (
            (group.source_topics, len(subtopology.source_topics)),
            (group.source_patterns, len(subtopology.source_patterns)),
            (group.repartition_sources, len(subtopology.repartition_sources)),
        ):
            if len({*indexes}) != len(indexes) or not all(0 <= i < count for i in indexes):
                raise StreamsTopologyInvalid(
                    f"{where} has a copartition group that refers to a missing topic, or to one "
                    "topic twice"
                )


def copartitioned(subtopology: Subtopology) -> Iterator[list[str]]:
    """The names of the topics of each copartition group."""
    for group in subtopology.copartition_groups:
        yield [
            *(subtopology.source_topics[i] for i in group.source_topics),
            *(subtopology.repartition_sources[i].name for i in group.repartition_sources),
        ]
