"""CreateTopics, DeleteTopics, CreatePartitions.

Invariants: each topic of a request has its own outcome; one that fails affects no other. The
rules are in `broker/services/topic_administration`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from headrace.broker.services.topic_administration import Assignment, NewTopic
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.configs import described_topic_configs

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import TopicFact


def _new(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {item.name: item.value for item in topic.configs if item.value is not None},
        [(item.partition_index, tuple(item.broker_ids or ())) for item in topic.assignments],
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
            fact = await node.topic_administration.create(
                _new(topic), is_dry_run=request.validate_only
            )
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "name": topic.name,
                "topic_id": fact.id if fact and not request.validate_only else None,
                "error_code": code_of(error),
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
        known = node.topics.by_id.get(topic_id) if name is None else node.topics.by_name.get(name)
        result = {"name": name, "topic_id": topic_id}
        if known is not None:
            result = {"name": known.name, "topic_id": known.id}
        error: HeadraceError | None = None
        try:
            await node.topic_administration.delete(name, topic_id)
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
            assignments: list[Assignment] = [
                (number, tuple(one.broker_ids or ()))
                for number, one in enumerate(item.assignments or ())
            ]
            await node.topic_administration.add_partitions(
                item.name, item.count, assignments, is_dry_run=request.validate_only
            )
        except HeadraceError as refused:
            error = refused
        results.append(
            {
                "name": item.name,
                "error_code": code_of(error),
                "error_message": message_of(error),
            }
        )
    return {"results": results}


HANDLERS: dict[int, Handler] = {
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.CREATE_PARTITIONS: create_partitions,
}
