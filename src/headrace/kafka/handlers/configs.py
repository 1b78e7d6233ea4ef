"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources.

Invariants: changes of one resource are applied as a whole or not at all. The rules are in
`broker/services`: `configurations` for topics and groups, `broker_settings` for brokers,
`client_metrics` for client metrics subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.broker_settings import SettingSource, ShownSetting
from headrace.broker.services.configurations import ConfigChange, Setting
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, UNSUPPORTED_VERSION, code_of, message_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

TOPIC_RESOURCE, BROKER_RESOURCE, LOGGER_RESOURCE = 2, 4, 8
CLIENT_METRICS_RESOURCE, GROUP_RESOURCE = 16, 32
TOPIC_SOURCE, STATIC_BROKER_SOURCE, DEFAULT_SOURCE = 1, 4, 5
CLIENT_METRICS_SOURCE, GROUP_SOURCE = 7, 8
WITH_TYPES_FROM: Final = 1
"""ListConfigResources was ListClientMetricsResources before (KIP-1142)."""


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
    settings = node.services.configurations.of_overrides(overrides)
    return [_described(setting, TOPIC_SOURCE) for setting in settings]


def _described_broker(
    shown: ShownSetting, *, with_synonyms: bool, with_documentation: bool
) -> dict[str, Any]:
    setting = shown.setting
    synonyms = [
        {"name": setting.name, "value": value, "source": source} for value, source in shown.synonyms
    ]
    return {
        "name": setting.name,
        "value": shown.value,
        "read_only": not setting.can_change,
        "is_default": shown.source == SettingSource.DEFAULT,
        "config_source": shown.source,
        "is_sensitive": setting.is_sensitive,
        "synonyms": synonyms if with_synonyms else [],
        "config_type": setting.type,
        "documentation": setting.documentation if with_documentation else None,
    }


def _resource_configs(node: Node, resource: Any, request: Any) -> list[dict[str, Any]]:
    """Raises TopicUnknown, RequestInvalid."""
    name = resource.resource_name
    details = {
        "with_synonyms": request.include_synonyms,
        "with_documentation": request.include_documentation,
    }
    if resource.resource_type == BROKER_RESOURCE:
        return [
            _described_broker(shown, **details) for shown in node.services.settings.of_broker(name)
        ]
    if resource.resource_type == TOPIC_RESOURCE:
        settings, source = node.services.configurations.of_topic(name), TOPIC_SOURCE
    elif resource.resource_type == GROUP_RESOURCE:
        settings, source = node.services.configurations.of_group(name), GROUP_SOURCE
    elif resource.resource_type == CLIENT_METRICS_RESOURCE:
        settings, source = (
            node.services.telemetry.subscriptions.settings(name),
            CLIENT_METRICS_SOURCE,
        )
    else:
        raise _not_configurable(resource)
    return [_described(setting, source, **details) for setting in settings]


def _not_configurable(resource: Any) -> RequestInvalid:
    return RequestInvalid(f"resources of type {resource.resource_type} have no configuration")


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
        if wanted:  # an empty list means all, as in Kafka's ConfigHelper
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


async def _replace(node: Node, resource: Any, *, is_dry_run: bool) -> None:
    configs = {item.name: item.value for item in resource.configs}
    services = {
        TOPIC_RESOURCE: node.services.configurations.replace_topic,
        BROKER_RESOURCE: node.services.settings.replace,
        GROUP_RESOURCE: node.services.configurations.replace_group,
        CLIENT_METRICS_RESOURCE: node.services.telemetry.subscriptions.replace,
    }
    if resource.resource_type not in services:
        raise _not_configurable(resource)
    await services[resource.resource_type](resource.resource_name, configs, is_dry_run=is_dry_run)


async def _change(node: Node, resource: Any, *, is_dry_run: bool) -> None:
    changes = [
        ConfigChange(item.name, item.config_operation, item.value) for item in resource.configs
    ]
    services: dict[int, Callable[..., Awaitable[None]]] = {
        TOPIC_RESOURCE: node.services.configurations.change_topic,
        BROKER_RESOURCE: node.services.settings.change,
        GROUP_RESOURCE: node.services.configurations.change_group,
        CLIENT_METRICS_RESOURCE: node.services.telemetry.subscriptions.change,
    }
    if resource.resource_type not in services:
        raise _not_configurable(resource)
    await services[resource.resource_type](resource.resource_name, changes, is_dry_run=is_dry_run)


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


def _resource_names(node: Node) -> dict[int, list[str]]:
    """What has a configuration, by type; brokers have no loggers that clients can set."""
    return {
        TOPIC_RESOURCE: list(node.services.topics.names()),
        BROKER_RESOURCE: [str(broker.id) for broker in node.services.cluster.brokers()],
        LOGGER_RESOURCE: [],
        CLIENT_METRICS_RESOURCE: node.services.telemetry.subscriptions.names(),
        GROUP_RESOURCE: node.services.configurations.configured_groups(),
    }


async def list_config_resources(node: Node, request: Any, context: Context) -> Answer:
    """ListConfigResources (KIP-1142); without types, of all types."""
    wanted = [CLIENT_METRICS_RESOURCE]
    if context.version >= WITH_TYPES_FROM:
        wanted = list(dict.fromkeys(request.resource_types))
    names = _resource_names(node)
    if any(kind not in names for kind in wanted):
        return {"error_code": UNSUPPORTED_VERSION, "config_resources": []}
    return {
        "error_code": NONE,
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for kind in wanted or names
            for name in names[kind]
        ],
    }


HANDLERS: dict[int, Handler] = {
    apis.LIST_CONFIG_RESOURCES: list_config_resources,
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
}
