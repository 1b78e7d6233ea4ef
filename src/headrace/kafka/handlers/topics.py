"""CreateTopics, DeleteTopics, CreatePartitions.

Invariants: each topic of a request has its own result; a failure affects no other topic. The rules
are in `broker/services/topic_service`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.topic_service import Assignment, NewTopic
from headrace.coordination.quotas.entities import MUTATION
from headrace.errors import HeadraceError, QuotaExceeded, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.configs import described_topic_configs

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import TopicFact


CREATE_STRICT_FROM: Final = 6
DELETE_STRICT_FROM: Final = 5
GROW_STRICT_FROM: Final = 3
"""From these versions on clients retry requests that a quota refuses (KIP-599)."""


def _new(topic: Any) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {item.name: item.value for item in topic.configs if item.value is not None},
        [(item.partition_index, tuple(item.broker_ids or ())) for item in topic.assignments],
    )


class _Mutations:
    """The quota on partitions created or deleted by one request (KIP-599)."""

    def __init__(self, node: Node, context: Context, strict_from: int) -> None:
        """`strict_from`: the first version whose clients know that a topic can be refused
        temporarily."""
        self._quotas = node.services.quotas
        self._session = context.session
        self._is_strict = context.version >= strict_from
        self.throttle_ms = 0

    def check(self) -> None:
        """Raises QuotaExceeded."""
        if self._is_strict and self._quotas.is_active:
            self._quotas.check(self._session, MUTATION)

    def charge(self, count: int) -> None:
        """Record that this many partitions were created or deleted."""
        self.throttle_ms = self._quotas.take(self._session, MUTATION, count)

    def refused(self, error: HeadraceError) -> None:
        """A topic was not changed."""
        if isinstance(error, QuotaExceeded):
            self.throttle_ms = max(self.throttle_ms, error.fields["throttle_ms"])


async def create_topics(node: Node, request: Any, context: Context) -> Answer:
    """CreateTopics."""
    mutations = _Mutations(node, context, CREATE_STRICT_FROM)
    counts = Counter(topic.name for topic in request.topics)
    results: list[dict[str, Any]] = []
    for topic in request.topics:
        fact: TopicFact | None = None
        error: HeadraceError | None = None
        try:
            if counts[topic.name] > 1:
                raise RequestInvalid(f"topic {topic.name[:249]!r} is named twice in one request")
            mutations.check()
            fact = await node.services.topics.create(_new(topic), is_dry_run=request.validate_only)
            if not request.validate_only:
                mutations.charge(fact.partition_count)
        except HeadraceError as refused:
            error = refused
            mutations.refused(refused)
        results.append(
            {
                "name": topic.name,
                "topic_id": fact.id if fact and not request.validate_only else None,
                "error_code": code_of(error),
                "error_message": message_of(error),
                "topic_config_error_code": 0,
                "num_partitions": fact.partition_count if fact else -1,
                "replication_factor": fact.replication_factor if fact else -1,
                # Java's Admin client crashes on null here, so always a list.
                "configs": described_topic_configs(node, fact.configs) if fact else [],
            }
        )
    return {"throttle_time_ms": mutations.throttle_ms, "topics": results}


async def delete_topics(node: Node, request: Any, context: Context) -> Answer:
    """DeleteTopics, by name or (v6) by id."""
    if context.version >= 6:
        asked = [(item.name, item.topic_id) for item in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    mutations = _Mutations(node, context, DELETE_STRICT_FROM)
    results: list[dict[str, Any]] = []
    for name, topic_id in asked:
        topics = node.services.topics
        known = topics.find_by_id(topic_id) if name is None else topics.find(name)
        result = {"name": name, "topic_id": topic_id}
        if known is not None:
            result = {"name": known.name, "topic_id": known.id}
        error: HeadraceError | None = None
        try:
            mutations.check()
            count = 0 if known is None else len(known.partitions)
            await topics.delete(name, topic_id)
            mutations.charge(count)
        except HeadraceError as refused:
            error = refused
            mutations.refused(refused)
        results.append(result | {"error_code": code_of(error), "error_message": message_of(error)})
    return {"throttle_time_ms": mutations.throttle_ms, "responses": results}


async def create_partitions(node: Node, request: Any, context: Context) -> Answer:
    """CreatePartitions."""
    mutations = _Mutations(node, context, GROW_STRICT_FROM)
    results: list[dict[str, Any]] = []
    for item in request.topics:
        error: HeadraceError | None = None
        try:
            assignments: list[Assignment] = [
                (number, tuple(one.broker_ids or ()))
                for number, one in enumerate(item.assignments or ())
            ]
            mutations.check()
            known = node.services.topics.find(item.name)
            count = 0 if known is None else len(known.partitions)
            await node.services.topics.add_partitions(
                item.name, item.count, assignments, is_dry_run=request.validate_only
            )
            if not request.validate_only:
                mutations.charge(item.count - count)
        except HeadraceError as refused:
            error = refused
            mutations.refused(refused)
        results.append(
            {
                "name": item.name,
                "error_code": code_of(error),
                "error_message": message_of(error),
            }
        )
    return {"throttle_time_ms": mutations.throttle_ms, "results": results}


HANDLERS: dict[int, Handler] = {
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.CREATE_PARTITIONS: create_partitions,
}
