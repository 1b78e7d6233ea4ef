"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments.

Invariants: each partition has its own result. A partition has one replica, the broker that serves
it, so that its leader is always the preferred one, and an election can only say whether there is
a leader. The rules of reassignments are in `broker/services/reassignments`.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.reassignments import Reassignment
from headrace.broker.topics.ownership import NO_LEADER
from headrace.errors import HeadraceError
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    PREFERRED_LEADER_NOT_AVAILABLE,
    code_of,
    message_of,
)

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

PREFERRED, UNCLEAN = 0, 1
"""Election types. Do not change: on the wire."""
WITH_TOP_ERROR_FROM: Final = 1
_NOT_AVAILABLE: Final = {
    PREFERRED: PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


def _elected(node: Node, topic: Topic, number: int, election: int) -> tuple[int, str | None]:
    """The result for one partition. Raises TopicUnknown."""
    topic.check_partition(number)
    if node.services.topics.leader(topic, number).broker != NO_LEADER:
        return ELECTION_NOT_NEEDED, "the broker that serves a partition is its preferred leader"
    return _NOT_AVAILABLE[election], (
        "no broker serves the partition: one that may, takes it over by itself; see the brokers'"
        " logs and `headrace cluster status`"
    )


async def elect_leaders(node: Node, request: Any, context: Context) -> Answer:
    """ElectLeaders (KIP-460); without partitions, of all that have no leader, as in Kafka."""
    election = PREFERRED if context.version < WITH_TOP_ERROR_FROM else request.election_type
    if election not in _NOT_AVAILABLE:
        return {"error_code": INVALID_REQUEST, "replica_election_results": []}
    is_every = request.topic_partitions is None
    if is_every:
        topics = node.services.topics
        known = [topics.get(name) for name in topics.names()]
        asked = [(topic.name, range(len(topic.partitions))) for topic in known]
    else:
        asked = [(item.topic, item.partitions) for item in request.topic_partitions]
    results: list[dict[str, Any]] = []
    for name, numbers in asked:
        partitions: list[dict[str, Any]] = []
        for number in numbers:
            try:
                code, message = _elected(node, node.services.topics.get(name), number, election)
            except HeadraceError as error:
                code, message = code_of(error), message_of(error)
            if not is_every or code != ELECTION_NOT_NEEDED:
                partitions.append(
                    {"partition_id": number, "error_code": code, "error_message": message}
                )
        if partitions or not is_every:
            results.append({"topic": name, "partition_result": partitions})
    return {"error_code": NONE, "replica_election_results": results}


async def alter_partition_reassignments(node: Node, request: Any, _context: Context) -> Answer:
    """AlterPartitionReassignments (KIP-455, KIP-860)."""
    asked = [
        Reassignment(topic.name, one.partition_index, one.replicas)
        for topic in request.topics
        for one in topic.partitions
    ]
    may_change = request.allow_replication_factor_change
    errors = iter(await node.services.reassignments.alter(asked, may_change_factor=may_change))
    responses: list[dict[str, Any]] = []
    for topic in request.topics:
        partitions: list[dict[str, Any]] = []
        for one in topic.partitions:
            error = next(errors)
            partitions.append(
                {
                    "partition_index": one.partition_index,
                    "error_code": code_of(error),
                    "error_message": message_of(error),
                }
            )
        responses.append({"name": topic.name, "partitions": partitions})
    return {
        "allow_replication_factor_change": may_change,
        "error_code": NONE,
        "error_message": None,
        "responses": responses,
    }


async def list_partition_reassignments(node: Node, request: Any, _context: Context) -> Answer:
    """ListPartitionReassignments: those under way. Topics that do not exist have none, as in
    Kafka."""
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for item in request.topics:
            wanted.setdefault(item.name, set()).update(item.partition_indexes)
    names = node.services.topics.names() if wanted is None else wanted
    topics = [topic for name in names if (topic := node.services.topics.find(name))]
    described: list[dict[str, Any]] = []
    for name, moves in groupby(
        node.services.reassignments.under_way(topics), lambda move: move.topic
    ):
        partitions = [
            {
                "partition_index": move.partition,
                "replicas": [move.target, move.source]
                if move.source != NO_LEADER
                else [move.target],
                "adding_replicas": [move.target],
                "removing_replicas": [] if move.source == NO_LEADER else [move.source],
            }
            for move in moves
            if wanted is None or move.partition in wanted[name]
        ]
        if partitions:
            described.append({"name": name, "partitions": partitions})
    return {"error_code": NONE, "error_message": None, "topics": described}


HANDLERS: dict[int, Handler] = {
    apis.ELECT_LEADERS: elect_leaders,
    apis.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    apis.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
