"""CreateTopics, DeleteTopics, CreatePartitions.

Rules of the room: each topic of a request has its own outcome; one that fails harms no other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.errors import (
    HeadraceError,
    PartitionsInvalid,
    Rejected,
    RequestInvalid,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import INVALID_REPLICA_ASSIGNMENT, code_of, message_of
from headrace.kafka.handlers.configs import described_topic_configs

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import TopicFact


class _AssignmentInvalid(Rejected):
    pass


def _code(error: BaseException | None) -> int:
    return INVALID_REPLICA_ASSIGNMENT if isinstance(error, _AssignmentInvalid) else code_of(error)


def _assigned_count(topic: Any, broker_id: int) -> int:
    """The partition count that an explicit assignment means."""
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise RequestInvalid("give either a partition count or an assignment, not both")
    numbers = sorted(item.partition_index for item in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise _AssignmentInvalid("an assignment names each partition from 0 on once")
    if any(tuple(item.broker_ids or ()) != (broker_id,) for item in topic.assignments):
        raise _AssignmentInvalid(f"the only broker to assign partitions to is {broker_id}")
    return len(numbers)


async def _create(node: Node, topic: Any, *, is_validated_only: bool) -> TopicFact:
    count, factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        count, factor = _assigned_count(topic, node.config.broker_id), 1
    configs = {item.name: item.value for item in topic.configs if item.value is not None}
    if count < 1 and count != -1:
        raise PartitionsInvalid(f"{count} partitions are not possible: ask for at least 1")
    return await node.topics.create(
        topic.name, count, factor, configs, is_validated_only=is_validated_only
    )


async def create_topics(node: Node, request: Any, _context: Context) -> Answer:
    """CreateTopics."""
    counts = Counter(topic.name for topic in request.topics)
    results: list[dict[str, Any]] = []
    for topic in request.topics:
        fact: TopicFact | None = None
        error: HeadraceError | None = None
        try:
            if counts[topic.name] > 1:
                raise RequestInvalid(f"topic {topic.name[:249]!r} is named twice")
            fact = await _create(node, topic, is_validated_only=request.validate_only)
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "name": topic.name,
                "topic_id": fact.id if fact and not request.validate_only else None,
                "error_code": _code(error),
                "error_message": message_of(error),
                "topic_config_error_code": 0,
                "num_partitions": fact.partition_count if fact else -1,
                "replication_factor": fact.replication_factor if fact else -1,
                # Java's Admin client dies on null here, so always a list.
                "configs": described_topic_configs(node, fact.configs) if fact else [],
            }
        )
    return {"topics": results}


async def delete_topics(node: Node, request: Any, context: Context) -> Answer:
    """DeleteTopics, by name or (v6) by id."""
    if context.version >= 6:
        asked = [(item.name, item.topic_id) for item in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    results: list[dict[str, Any]] = []
    for name, topic_id in asked:
        result = {"name": name, "topic_id": topic_id}
        error: HeadraceError | None = None
        try:
            if (name is None) == (topic_id is None):
                raise RequestInvalid("name a topic either by its name or by its id")
            if name and name in node.topics.deletions:  # once more, since the first answer was bad
                await node.topics.deletions.finish(name, node.ownership)
            else:
                topic = node.topics.get(name) if name else node.topics.get_by_id(topic_id)
                result = {"name": topic.name, "topic_id": topic.id}
                await node.topics.delete(topic)
        except HeadraceError as refused:
            error = refused
        results.append(result | {"error_code": code_of(error), "error_message": message_of(error)})
    return {"responses": results}


async def create_partitions(node: Node, request: Any, _context: Context) -> Answer:
    """CreatePartitions."""
    results: list[dict[str, Any]] = []
    for item in request.topics:
        error: HeadraceError | None = None
        try:
            topic = node.topics.get(item.name)
            for assignment in item.assignments or ():
                if tuple(assignment.broker_ids or ()) != (node.config.broker_id,):
                    raise _AssignmentInvalid("the only broker is this one")
            await node.topics.add_partitions(
                topic, item.count, is_validated_only=request.validate_only
            )
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "name": item.name,
                "error_code": _code(error),
                "error_message": message_of(error),
            }
        )
    return {"results": results}


HANDLERS = {
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.CREATE_PARTITIONS: create_partitions,
}
