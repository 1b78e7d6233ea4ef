"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Invariants: topics and groups can be changed, brokers shown. What a request asks of one resource
happens as a whole or not at all. The rules are in `broker/services/configurations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.configurations import ConfigChange, Setting
from headrace.broker.topics.topic_config import (
    BOOLEAN,
    DEFINITIONS,
    INT,
    LIST,
    LONG,
    STRING,
)
from headrace.errors import HeadraceError, PolicyViolation, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
TOPIC_SOURCE, STATIC_BROKER_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = 1, 4, 5, 8


def _described(
    setting: Setting,
    override_source: int,
    *,
    with_synonyms: bool = False,
    with_documentation: bool = False,
) -> dict[str, Any]:
    name = setting.definition.name
    source = STATIC_BROKER_SOURCE if setting.is_broker_default else DEFAULT_SOURCE
    synonyms: list[dict[str, Any]] = []
    if with_synonyms:
        if setting.is_override:
            synonyms.append({"name": name, "value": setting.value, "source": override_source})
        synonyms.append({"name": name, "value": setting.default, "source": source})
    return {
        "name": name,
        "value": setting.value,
        "read_only": False,
        "is_default": not setting.is_override,
        "config_source": override_source if setting.is_override else source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": setting.definition.type,
        "documentation": setting.definition.documentation if with_documentation else None,
    }


def described_topic_configs(node: Node, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """All settings of a topic, as CreateTopics returns them."""
    settings = node.configurations.of_overrides(overrides)
    return [_described(setting, TOPIC_SOURCE) for setting in settings]


def _broker_configs(node: Node) -> list[dict[str, Any]]:
    config = node.config
    host, port = node.kafka_address
    values: list[tuple[str, object, int]] = [
        ("node.id", config.broker_id, INT),
        ("broker.id", config.broker_id, INT),
        ("advertised.listeners", f"PLAINTEXT://{host}:{port}", STRING),
        ("auto.create.topics.enable", str(config.auto_create_topics).lower(), BOOLEAN),
        ("num.partitions", config.partition_count_default, INT),
        ("default.replication.factor", 1, INT),
        ("offsets.topic.num.partitions", config.offsets_partition_count, INT),
        ("log.retention.check.interval.ms", config.retention_check_interval_ms, LONG),
        ("log.cleaner.backoff.ms", config.compaction_interval_ms, LONG),
        ("log.cleanup.policy", "delete", LIST),
        ("socket.request.max.bytes", config.request_bytes_max, INT),
        ("fetch.max.bytes", config.fetch_bytes_max, INT),
        ("connections.max.idle.ms", config.connections_idle_max_ms, LONG),
        ("message.max.bytes", DEFINITIONS["max.message.bytes"].default, INT),
        ("max.incremental.fetch.session.cache.slots", config.fetch_sessions_max, INT),
    ]
    return [
        {
            "name": name,
            "value": str(value),
            "read_only": True,
            "is_default": False,
            "config_source": STATIC_BROKER_SOURCE,
            "is_sensitive": False,
            "synonyms": [],
            "config_type": kind,
            "documentation": None,
        }
        for name, value, kind in values
    ]


def _resource_configs(node: Node, resource: Any, request: Any) -> list[dict[str, Any]]:
    """Raises TopicUnknown, RequestInvalid."""
    name = resource.resource_name
    if resource.resource_type == BROKER_RESOURCE:
        if name not in {"", str(node.config.broker_id)}:
            raise RequestInvalid(f"there is no broker {name[:50]!r}")
        return _broker_configs(node) if name else []
    if resource.resource_type == TOPIC_RESOURCE:
        settings, source = node.configurations.of_topic(name), TOPIC_SOURCE
    elif resource.resource_type == GROUP_RESOURCE:
        settings, source = node.configurations.of_group(name), GROUP_SOURCE
    else:
        raise _not_configurable(resource)
    return [
        _described(
            setting,
            source,
            with_synonyms=request.include_synonyms,
            with_documentation=getattr(request, "include_documentation", False),
        )
        for setting in settings
    ]


def _not_configurable(resource: Any) -> RequestInvalid:
    return RequestInvalid(f"resources of type {resource.resource_type} have no configs")


async def describe_configs(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeConfigs of topics, groups and of this broker."""
    results: list[dict[str, Any]] = []
    for resource in request.resources:
        configs: list[dict[str, Any]] = []
        error: HeadraceError | None = None
        try:
            configs = _resource_configs(node, resource, request)
        except HeadraceError as refused:
            error = refused
        wanted = resource.configuration_keys
        if wanted:  # none at all stands for all, as in Kafka's ConfigHelper
            configs = [config for config in configs if config["name"] in wanted]
        results.append(_result(resource, error) | {"configs": configs})
    return {"results": results}


def _result(resource: Any, error: HeadraceError | None) -> dict[str, Any]:
    return {
        "error_code": code_of(error),
        "error_message": message_of(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


def _check_changeable(resource: Any) -> None:
    """Raises PolicyViolation, RequestInvalid."""
    if resource.resource_type == BROKER_RESOURCE:
        raise PolicyViolation(
            "a broker's settings cannot be changed while it runs: set them when it is started"
        )
    if resource.resource_type not in {TOPIC_RESOURCE, GROUP_RESOURCE}:
        raise _not_configurable(resource)


async def _replace(node: Node, resource: Any, *, is_dry_run: bool) -> None:
    _check_changeable(resource)
    configs = {item.name: item.value for item in resource.configs}
    is_topic = resource.resource_type == TOPIC_RESOURCE
    service = node.configurations
    replace = service.replace_topic if is_topic else service.replace_group
    await replace(resource.resource_name, configs, is_dry_run=is_dry_run)


async def _change(node: Node, resource: Any, *, is_dry_run: bool) -> None:
    _check_changeable(resource)
    changes = [
        ConfigChange(item.name, item.config_operation, item.value) for item in resource.configs
    ]
    is_topic = resource.resource_type == TOPIC_RESOURCE
    service = node.configurations
    change = service.change_topic if is_topic else service.change_group
    await change(resource.resource_name, changes, is_dry_run=is_dry_run)


async def _alter(node: Node, request: Any, alter: Callable[..., Awaitable[None]]) -> Answer:
    results: list[dict[str, Any]] = []
    for resource in request.resources:
        error: HeadraceError | None = None
        try:
            await alter(node, resource, is_dry_run=request.validate_only)
        except HeadraceError as refused:
            error = refused
        results.append(_result(resource, error))
    return {"responses": results}


async def alter_configs(node: Node, request: Any, _context: Context) -> Answer:
    """AlterConfigs: replaces all overrides."""
    return await _alter(node, request, _replace)


async def incremental_alter_configs(node: Node, request: Any, _context: Context) -> Answer:
    """IncrementalAlterConfigs (KIP-339)."""
    return await _alter(node, request, _change)


HANDLERS = {
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
