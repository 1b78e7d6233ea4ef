"""StreamsGroupHeartbeat and StreamsGroupDescribe: Kafka Streams groups (KIP-1071).

Invariants: as in `groups`. A member always generates its own id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    EndpointPartitions,
    StreamsGroupDescription,
    StreamsHeartbeatCommand,
    StreamsMemberDescription,
)
from headrace.coordination.streams.tasks import StreamTasks, TaskSet, task_set
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.groups import describe_member_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import StreamsGroupHeartbeatRequest
    from headrace.kafka.wire.schema import Answer


# --- decoding ------------------------------------------------------------------------------------


def _pairs(items: Iterable[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((item.key, item.value) for item in items)


def _internal(topics: Iterable[Any]) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(t.name, t.partitions, t.replication_factor, _pairs(t.topic_configs))
        for t in topics
    )


def _topology(topology: Any) -> Topology | None:
    if topology is None:
        return None
    return Topology(
        topology.epoch,
        tuple(
            Subtopology(
                one.subtopology_id,
                tuple(map(str, one.source_topics)),
                tuple(map(str, one.source_topic_regex)),
                _internal(one.state_changelog_topics),
                tuple(map(str, one.repartition_sink_topics)),
                _internal(one.repartition_source_topics),
                _copartition_groups(one.copartition_groups),
            )
            for one in topology.subtopologies
        ),
    )


def _copartition_groups(groups: Iterable[Any]) -> tuple[CopartitionGroup, ...]:
    """In a canonical order: a client takes them from sets, and two processes must send equal
    topologies."""
    found = (
        CopartitionGroup(
            tuple(sorted(group.source_topics)),
            tuple(sorted(group.source_topic_regex)),
            tuple(sorted(group.repartition_source_topics)),
        )
        for group in groups
    )
    return tuple(sorted(found))


def _owned(request: StreamsGroupHeartbeatRequest) -> StreamTasks | None:
    """The tasks that a member reports as owned; None: no report."""
    roles = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if all(role is None for role in roles):
        return None
    active, standby, warmup = (
        task_set((item.subtopology_id, n) for item in role or () for n in item.partitions)
        for role in roles
    )
    return StreamTasks(active, standby, warmup)


async def streams_group_heartbeat(
    node: Node, request: StreamsGroupHeartbeatRequest, context: Context
) -> Answer:
    """StreamsGroupHeartbeat: join (epoch 0), stay, or leave (-1, -2)."""
    await node.services.groups.ensure_offsets_topic()
    endpoint, tags = request.user_endpoint, request.client_tags
    command = StreamsHeartbeatCommand(
        request.group_id,
        request.member_id,
        request.member_epoch,
        context.client_id,
        f"/{context.client_host}",
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        _topology(request.topology),
        _owned(request),
        request.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        None if tags is None else _pairs(tags),
        request.endpoint_information_epoch,
        request.shutdown_application,
    )
    reply = await node.services.groups.submit(command, user_of(context.session))
    tasks = reply.tasks
    return {
        "error_code": code_of(reply.error),
        "error_message": message_of(reply.error),
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval_ms": reply.heartbeat_interval_ms,
        "acceptable_recovery_lag_legacy": 0,
        "task_offset_interval_ms": 0,
        # Never null: a client would keep the last statuses that it got.
        "status": [
            {"status_code": one.code, "status_detail": one.detail} for one in reply.statuses
        ],
        "active_tasks": None if tasks is None else _task_ids(tasks.active),
        "standby_tasks": None if tasks is None else _task_ids(tasks.standby),
        "warmup_tasks": None if tasks is None else _task_ids(tasks.warmup),
        "endpoint_information_epoch": reply.endpoint_epoch,
        "partitions_by_user_endpoint": None
        if reply.endpoints is None
        else [_endpoint_partitions(one) for one in reply.endpoints],
    }


# --- encoding ------------------------------------------------------------------------------------


def _task_ids(tasks: TaskSet) -> list[dict[str, Any]]:
    return [{"subtopology_id": one, "partitions": numbers} for one, numbers in tasks.items()]


def _endpoint(endpoint: tuple[str, int]) -> dict[str, Any]:
    return {"host": endpoint[0], "port": endpoint[1]}


def _endpoint_partitions(one: EndpointPartitions) -> dict[str, Any]:
    def partitions(side: Mapping[str, tuple[int, ...]]) -> list[dict[str, Any]]:
        return [{"topic": topic, "partitions": numbers} for topic, numbers in side.items()]

    return {
        "user_endpoint": _endpoint(one.endpoint),
        "active_partitions": partitions(one.active),
        "standby_partitions": partitions(one.standby),
    }


def _key_values(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in pairs]


def _topic_infos(topics: Iterable[InternalTopic]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "partitions": topic.partition_count,
            "replication_factor": topic.replication_factor,
            "topic_configs": _key_values(topic.configs),
        }
        for topic in topics
    ]


def _described_topology(topology: Topology | None) -> dict[str, Any] | None:
    if topology is None:
        return None
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": one.id,
                "source_topics": one.source_topics,
                "repartition_sink_topics": one.repartition_sinks,
                "state_changelog_topics": _topic_infos(one.changelog_topics),
                "repartition_source_topics": _topic_infos(one.repartition_sources),
            }
            for one in topology.subtopologies
        ],
    }


def _assignment(tasks: StreamTasks) -> dict[str, Any]:
    return {
        "active_tasks": _task_ids(tasks.active),
        "standby_tasks": _task_ids(tasks.standby),
        "warmup_tasks": _task_ids(tasks.warmup),
    }


def _member(member: StreamsMemberDescription) -> dict[str, Any]:
    stored = member.stored
    return {
        "member_id": stored.member_id,
        "member_epoch": member.epoch,
        "instance_id": stored.instance_id,
        "rack_id": stored.rack,
        "client_id": stored.client_id,
        "client_host": stored.client_host,
        "topology_epoch": stored.topology_epoch,
        "process_id": stored.process_id,
        "user_endpoint": None if stored.endpoint is None else _endpoint(stored.endpoint),
        "client_tags": _key_values(stored.tags),
        "task_offsets": [],
        "task_end_offsets": [],
        "assignment": _assignment(member.assigned),
        "target_assignment": _assignment(member.target),
        "is_classic": False,
    }


def _group(group: StreamsGroupDescription) -> dict[str, Any]:
    return {
        "topology": _described_topology(group.topology),
        "members": [_member(one) for one in group.members],
    }


async def streams_group_describe(node: Node, request: Any, _context: Context) -> Answer:
    """StreamsGroupDescribe."""
    return await describe_member_groups(node, request, DescribeStreamsGroupsCommand, _group)


HANDLERS: dict[int, Handler] = {
    apis.STREAMS_GROUP_HEARTBEAT: streams_group_heartbeat,
    apis.STREAMS_GROUP_DESCRIBE: streams_group_describe,
}
