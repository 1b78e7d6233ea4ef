"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs.

Rules of the room: topics can be changed, brokers shown. What a request asks of one resource
happens as a whole or not at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.group_config import GROUP_DEFINITIONS, check_group_config
from headrace.broker.topics.topic_config import (
    BOOLEAN,
    DEFINITIONS,
    INT,
    LIST,
    LONG,
    QUORUM,
    STRING,
    ConfigDefinition,
    check_config,
)
from headrace.errors import ConfigInvalid, HeadraceError, PolicyViolation, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer

TOPIC_RESOURCE, BROKER_RESOURCE, GROUP_RESOURCE = 2, 4, 32
TOPIC_SOURCE, STATIC_BROKER_SOURCE, DEFAULT_SOURCE, GROUP_SOURCE = 1, 4, 5, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


def _topic_config(
    definition: ConfigDefinition,
    overrides: Mapping[str, str],
    defaults: Mapping[str, str],
    *,
    with_synonyms: bool = False,
    with_documentation: bool = False,
    override_source: int = TOPIC_SOURCE,
) -> dict[str, Any]:
    name = definition.name
    is_override = name in overrides
    default = defaults.get(name, definition.default)
    source = STATIC_BROKER_SOURCE if name in defaults else DEFAULT_SOURCE
    synonyms: list[dict[str, Any]] = []
    if with_synonyms:
        if is_override:
            synonyms.append({"name": name, "value": overrides[name], "source": override_source})
        synonyms.append({"name": name, "value": default, "source": source})
    return {
        "name": name,
        "value": overrides.get(name, default),
        "read_only": False,
        "is_default": not is_override,
        "config_source": override_source if is_override else source,
        "is_sensitive": False,
        "synonyms": synonyms,
        "config_type": definition.type,
        "documentation": definition.documentation if with_documentation else None,
    }


def _defaults(node: Node) -> Mapping[str, str]:
    """What topics that do not say get from how this broker was started."""
    quorum = node.config.ledger_quorum
    return {} if quorum is None else {QUORUM: quorum}


def described_topic_configs(node: Node, overrides: Mapping[str, str]) -> list[dict[str, Any]]:
    """All settings of a topic, as CreateTopics tells them."""
    defaults = _defaults(node)
    return [_topic_config(definition, overrides, defaults) for definition in DEFINITIONS.values()]


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


async def describe_configs(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeConfigs of topics and of this broker."""
    results: list[dict[str, Any]] = []
    for resource in request.resources:
        configs: list[dict[str, Any]] = []
        error: HeadraceError | None = None
        overrides: Mapping[str, str]
        try:
            if resource.resource_type == TOPIC_RESOURCE:
                overrides = node.topics.get(resource.resource_name).fact.configs
                configs = [
                    _topic_config(
                        definition,
                        overrides,
                        _defaults(node),
                        with_synonyms=request.include_synonyms,
                        with_documentation=getattr(request, "include_documentation", False),
                    )
                    for definition in DEFINITIONS.values()
                ]
            elif resource.resource_type == GROUP_RESOURCE:
                overrides = node.group_configs.overrides(resource.resource_name)
                configs = [
                    _topic_config(
                        definition,
                        overrides,
                        {},
                        with_synonyms=request.include_synonyms,
                        with_documentation=getattr(request, "include_documentation", False),
                        override_source=GROUP_SOURCE,
                    )
                    for definition in GROUP_DEFINITIONS.values()
                ]
            elif resource.resource_type == BROKER_RESOURCE:
                if resource.resource_name not in {"", str(node.config.broker_id)}:
                    raise RequestInvalid(f"there is no broker {resource.resource_name[:50]!r}")
                configs = _broker_configs(node) if resource.resource_name else []
            else:
                raise RequestInvalid(f"resources of type {resource.resource_type} have no configs")
        except HeadraceError as refused:
            error = refused
        wanted = resource.configuration_keys
        if wanted:  # none at all stands for all, as in Kafka's ConfigHelper
            configs = [config for config in configs if config["name"] in wanted]
        results.append(
            {
                "error_code": code_of(error),
                "error_message": message_of(error),
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": configs,
            }
        )
    return {"results": results}


def _require_topic(resource: Any) -> None:
    if resource.resource_type == BROKER_RESOURCE:
        raise PolicyViolation(
            "a broker's settings cannot be changed while it runs: set them when it is started"
        )
    if resource.resource_type != TOPIC_RESOURCE:
        raise RequestInvalid(f"resources of type {resource.resource_type} have no configs")


def _changed(
    changes: Any,
    overrides: Mapping[str, str],
    definitions: Mapping[str, ConfigDefinition] = DEFINITIONS,
    check: Callable[[str, str | None], None] = check_config,
) -> dict[str, str]:
    """The overrides after `changes` (IncrementalAlterConfigs)."""
    after = dict(overrides)
    seen: set[str] = set()
    for change in changes:
        name, operation = change.name, change.config_operation
        if name in seen:
            raise RequestInvalid(f"{name[:100]!r} is changed twice")
        seen.add(name)
        definition = definitions.get(name)
        if definition is None:
            raise ConfigInvalid(f"unknown configuration {name[:100]!r}")
        if operation == DELETE:
            after.pop(name, None)
            continue
        if change.value is None:
            raise RequestInvalid(f"{name} is to be set to null: delete it instead")
        value = change.value
        if operation in {APPEND, SUBTRACT}:
            if definition.type != LIST:
                raise ConfigInvalid(f"{name} is no list: nothing can be added or taken away")
            current = [part for part in after.get(name, definition.default).split(",") if part]
            named = list(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
            if operation == APPEND:
                parts = current + [part for part in named if part not in current]
            else:
                parts = [part for part in current if part not in named]
            value = ",".join(parts)
        elif operation != SET:
            raise RequestInvalid(f"unknown operation {operation} on {name}")
        check(name, value)
        after[name] = value
    return after


def _replaced(configs: Any, _overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides that `configs` names, and no others (AlterConfigs)."""
    return {item.name: item.value for item in configs}


def _altered(resource: Any, error: HeadraceError | None) -> dict[str, Any]:
    return {
        "error_code": code_of(error),
        "error_message": message_of(error),
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


async def _alter_group(
    node: Node,
    resource: Any,
    change: Callable[..., dict[str, str]],
    *,
    is_dry: bool,
) -> None:
    """Change a group's settings. Raises ConfigInvalid, RequestInvalid, MetadataUnavailable."""
    options: dict[str, Any] = {}
    if change is _changed:
        options = {"definitions": GROUP_DEFINITIONS, "check": check_group_config}
    await node.group_configs.change(
        resource.resource_name,
        partial(change, resource.configs, **options),
        is_validated_only=is_dry,
    )


async def _alter(
    node: Node, request: Any, change: Callable[[Any, Mapping[str, str]], dict[str, str]]
) -> Answer:
    results: list[dict[str, Any]] = []
    for resource in request.resources:
        error: HeadraceError | None = None
        try:
            if resource.resource_type == GROUP_RESOURCE:
                await _alter_group(node, resource, change, is_dry=request.validate_only)
                results.append(_altered(resource, None))
                continue
            _require_topic(resource)
            topic = node.topics.get(resource.resource_name)
            if topic.is_internal:
                raise PolicyViolation(
                    f"{topic.name} is internal: its settings keep the groups' progress, and stay"
                )
            await node.topics.change_configs(
                topic,
                partial(change, resource.configs),
                is_validated_only=request.validate_only,
            )
        except HeadraceError as refused:
            error = refused
        results.append(_altered(resource, error))
    return {"responses": results}


async def alter_configs(node: Node, request: Any, _context: Context) -> Answer:
    """AlterConfigs: replaces all overrides."""
    return await _alter(node, request, _replaced)


async def incremental_alter_configs(node: Node, request: Any, _context: Context) -> Answer:
    """IncrementalAlterConfigs (KIP-339)."""
    return await _alter(node, request, _changed)


HANDLERS = {
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
