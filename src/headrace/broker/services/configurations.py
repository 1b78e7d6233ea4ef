"""Topic and group settings: describe and alter, for every face.

Invariants: knows no protocol. A change is validated and applied as a whole, under the lock of the
topic or group, so concurrent changes are not lost; a dry run stops after validation.
"""

from __future__ import annotations

import json
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.broker.coordinators.group_config import (
    GROUP_DEFINITIONS,
    check_group_config,
    defaults_of_broker,
)
from headrace.broker.services.group_announcements import GroupAnnouncements
from headrace.broker.topics.topic_config import (
    DEFINITIONS,
    LIST,
    QUORUM,
    ConfigDefinition,
    check_config,
    likely,
)
from headrace.errors import ConfigInvalid, PolicyViolation, Rejected, RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topics import Topics

    Change = Callable[[Mapping[str, str]], Mapping[str, str]]

SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations on a setting (KIP-339). Do not change: on Kafka's wire."""
THROTTLES: Final = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
"""Kafka's limits for copying replicas, of which there is none here. They cannot be set; deleting
them does nothing, so that `kafka-reassign-partitions --verify` succeeds, which always does."""


class ConfigChange(NamedTuple):
    """A change of one setting."""

    name: str
    operation: int
    value: str | None = None


class SettingDefinition(Protocol):
    """The part of a setting's definition that changes need."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def type(self) -> int:
        """`ConfigDef.Type` of DescribeConfigs."""
        ...

    @property
    def default(self) -> str | None:
        """Its default."""
        ...


class VersionMismatch(Rejected):
    """The settings differ from those that the client expects: nothing was changed."""


class Setting(NamedTuple):
    """The current state of one setting."""

    definition: ConfigDefinition
    value: str
    default: str
    is_override: bool
    """Set for this topic or group."""
    is_broker_default: bool
    """The default is the broker's own, not the table's."""


class Configurations:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        group_configs: ConfiguredGroups,
        config: BrokerConfig,
        calls: OwnerCalls,
    ) -> None:
        self._topics = topics
        self._groups = group_configs
        self.configured_groups = group_configs.configured
        """The groups that have settings of their own, sorted."""
        self._config = config
        self._announcements = GroupAnnouncements(calls, group_configs)

    # --- topics ------------------------------------------------------------------------------

    @property
    def series_partitions_max(self) -> int:
        """How many partitions have metrics of their own."""
        return self._config.metrics_partitions_max

    def of_topic(self, name: str) -> list[Setting]:
        """All settings of a topic. Raises TopicUnknown."""
        return self.of_overrides(self._topics.readable.get(name).fact.configs)

    def of_overrides(self, overrides: Mapping[str, str]) -> list[Setting]:
        """All settings of a topic with these overrides."""
        quorum = self._config.ledger_quorum
        defaults = dict(self._config.topic_defaults)
        if quorum is not None:
            defaults[QUORUM] = quorum
        return _settings(DEFINITIONS, overrides, defaults)

    async def change_topic(
        self,
        name: str,
        changes: Sequence[ConfigChange],
        *,
        is_dry_run: bool = False,
        version: str = "",
    ) -> None:
        """Change some settings of a topic and keep the others.

        `version`: apply only if `version_of` the overrides equals it. Raises TopicUnknown,
        ConfigInvalid, RequestInvalid, PolicyViolation, VersionMismatch, MetadataUnavailable.
        """
        change = partial(changed, changes, definitions=DEFINITIONS, check=check_config)
        await self._change_topic(name, _guarded(version, change), is_dry_run=is_dry_run)

    async def replace_topic(
        self, name: str, configs: Mapping[str, str], *, is_dry_run: bool = False
    ) -> None:
        """Set exactly these overrides of a topic. Raises what `change_topic` raises."""
        await self._change_topic(name, lambda _overrides: dict(configs), is_dry_run=is_dry_run)

    async def _change_topic(
        self,
        name: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_dry_run: bool,
    ) -> None:
        topic = self._topics.get(name)
        if topic.is_internal:
            raise PolicyViolation(
                f"{topic.name} is an internal topic: its settings protect the coordinators' "
                "state and cannot be changed"
            )
        await self._topics.change_configs(topic, change, is_validated_only=is_dry_run)

    # --- groups ------------------------------------------------------------------------------

    def of_group(self, group_id: str) -> list[Setting]:
        """All settings of a group; a group without settings of its own has the defaults."""
        defaults = defaults_of_broker(self._config)
        return _settings(GROUP_DEFINITIONS, self._groups.overrides(group_id), defaults)

    async def change_group(
        self,
        group_id: str,
        changes: Sequence[ConfigChange],
        *,
        is_dry_run: bool = False,
        version: str = "",
    ) -> None:
        """Change some settings of a group and keep the others.

        `version`: apply only if `version_of` the overrides equals it. Raises GroupIdInvalid,
        ConfigInvalid, RequestInvalid, VersionMismatch, MetadataUnavailable.
        """
        change = partial(changed, changes, definitions=GROUP_DEFINITIONS, check=check_group_config)
        await self._change_group(group_id, _guarded(version, change), is_dry_run=is_dry_run)

    def group_values(self, name: str) -> set[str]:
        """The values that any group has set for this setting."""
        return self._groups.values(name)

    def overrides_of_group(self, group_id: str) -> Mapping[str, str]:
        """The settings that are set for the group."""
        return self._groups.overrides(group_id)

    def version_of_group(self, group_id: str) -> str:
        """See `version_of`."""
        return version_of(self._groups.overrides(group_id))

    async def replace_group(
        self, group_id: str, configs: Mapping[str, str], *, is_dry_run: bool = False
    ) -> None:
        """Set exactly these overrides of a group. Raises what `change_group` raises."""
        await self._change_group(group_id, lambda _overrides: dict(configs), is_dry_run=is_dry_run)

    async def _change_group(self, group_id: str, change: Change, *, is_dry_run: bool) -> None:
        """Returns when every broker that can be asked knows the change, so that the client's next
        request finds it wherever it is sent."""
        await self._groups.change(group_id, change, is_validated_only=is_dry_run)
        if not is_dry_run:
            await self._announcements.announce(group_id)


def version_of(overrides: Mapping[str, str]) -> str:
    """A hash of overrides: equal overrides have the same version, also after a change and back."""
    return sha256(json.dumps(sorted(overrides.items())).encode()).hexdigest()[:16]


def _guarded(version: str, change: Change) -> Change:
    """`change`, refused unless the overrides have this version."""

    def guarded(overrides: Mapping[str, str]) -> Mapping[str, str]:
        if version and version_of(overrides) != version:
            raise VersionMismatch(
                "the settings were changed in the meantime: read them again before changing them"
            )
        return change(overrides)

    return guarded


def _settings(
    definitions: Mapping[str, ConfigDefinition],
    overrides: Mapping[str, str],
    defaults: Mapping[str, str],
) -> list[Setting]:
    found: list[Setting] = []
    for name, definition in definitions.items():
        default = defaults.get(name, definition.default)
        value = overrides.get(name, default)
        found.append(Setting(definition, value, default, name in overrides, name in defaults))
    return found


def changed(
    changes: Sequence[ConfigChange],
    overrides: Mapping[str, str],
    definitions: Mapping[str, SettingDefinition],
    check: Callable[[str, str | None], None],
) -> dict[str, str]:
    """The overrides after `changes`. Raises ConfigInvalid, RequestInvalid."""
    after = dict(overrides)
    seen: set[str] = set()
    for name, operation, value in changes:
        if name in seen:
            raise RequestInvalid(
                f"{name[:100]!r} is changed twice in one request: name each setting once"
            )
        seen.add(name)
        definition = definitions.get(name)
        if operation == DELETE and name in THROTTLES:
            continue
        if definition is None:
            raise ConfigInvalid(
                f"unknown configuration {name[:100]!r}: {likely(name, definitions)}"
            )
        if operation == DELETE:
            after.pop(name, None)
            continue
        if value is None:
            raise RequestInvalid(f"{name} cannot be set to null: delete it instead")
        if operation not in {SET, APPEND, SUBTRACT}:
            raise RequestInvalid(f"unknown operation {operation} on {name}")
        new = value if operation == SET else _edited_list(definition, after, operation, value)
        check(name, new)
        after[name] = new
    return after


def _edited_list(
    definition: SettingDefinition, overrides: Mapping[str, str], operation: int, value: str
) -> str:
    name = definition.name
    if definition.type != LIST:
        raise ConfigInvalid(f"{name} is not a list: APPEND and SUBTRACT do not apply, use SET")
    current = [part for part in (overrides.get(name, definition.default) or "").split(",") if part]
    named = list(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if operation == APPEND:
        return ",".join(current + [part for part in named if part not in current])
    return ",".join(part for part in current if part not in named)
