"""The settings of every broker, shown and changed at any of them.

Invariants: knows no protocol. A live broker is asked for its settings, whose start-up values it
alone knows, and carries out their changes itself, so that who asks it next sees them. What is set
for all brokers, or for a broker that is down, any broker changes. Values of sensitive settings are
never shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.broker_settings import (
    ALL_BROKERS,
    FIXED,
    SettingSource,
    ShownSetting,
)
from headrace.broker.services.configurations import ConfigChange
from headrace.broker.services.owner_calls import checked
from headrace.broker.settings.setting import unit_of
from headrace.broker.settings.table import SETTINGS
from headrace.broker.topics.topic_config import BOOLEAN, DOUBLE, INT, LIST, LONG, SHORT
from headrace.errors import BrokerUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.services.broker_settings import BrokerSettings
    from headrace.broker.services.cluster import Cluster
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.settings.setting import BrokerSetting

_SHOW: Final = "settings.show"
_CHANGE: Final = "settings.change"
_SOURCES: Final[Mapping[SettingSource, str]] = {
    SettingSource.BROKER: "broker",
    SettingSource.ALL_BROKERS: "cluster",
    SettingSource.START: "start",
    SettingSource.DEFAULT: "default",
}
UNSET: Final = "unset"
"""Of a setting that all brokers have in common only where they are started alike."""
LIVE, RESTART, NEVER = "live", "restart", "never"
_TYPES: Final[Mapping[int, str]] = {
    **dict.fromkeys((INT, SHORT, LONG), "integer"),
    BOOLEAN: "boolean",
    DOUBLE: "number",
    LIST: "list",
}


class SettingsOfBrokers:
    """See the module."""

    def __init__(self, settings: BrokerSettings, cluster: Cluster, calls: OwnerCalls) -> None:
        self._settings = settings
        self._cluster = cluster
        self._calls = calls
        calls.offer_of_broker(_SHOW, self._show_here)
        calls.offer_of_broker(_CHANGE, self._change_here)

    async def of_broker(self, broker: int) -> list[dict[str, Any]]:
        """All settings of a live broker, by name. Raises BrokerUnknown, BrokerUnreachable."""
        if not self._is_live(broker):
            raise BrokerUnknown(f"no live broker has the id {broker}")
        found: list[dict[str, Any]] = await self._calls.ask_broker(_SHOW, broker, [])
        return found

    def of_cluster(self) -> list[dict[str, Any]]:
        """What can be set for all brokers, by name."""
        overrides = self._settings.overrides(ALL_BROKERS)
        found = []
        for name in sorted(SETTINGS):
            setting, value = SETTINGS[name], overrides.get(name)
            if setting.can_change and name not in FIXED:
                source = UNSET if value is None else _SOURCES[SettingSource.ALL_BROKERS]
                shown = None if setting.is_sensitive else value
                found.append(_described(setting, shown, source, []))
        return found

    async def change(
        self, broker: int | None, changes: Sequence[ConfigChange], *, is_dry_run: bool = False
    ) -> None:
        """Change settings of a broker, or of all (None).

        Raises ConfigInvalid, RequestInvalid, MetadataUnavailable, BrokerUnreachable.
        """
        if broker is not None and self._is_live(broker):
            await self._calls.ask_broker(_CHANGE, broker, [[*map(list, changes)], is_dry_run])
        else:
            name = ALL_BROKERS if broker is None else str(broker)
            await self._settings.change(name, changes, is_dry_run=is_dry_run)

    def _is_live(self, broker: int) -> bool:
        return any(one.id == broker for one in self._cluster.brokers())

    async def _show_here(self, _asked: Any) -> list[dict[str, Any]]:
        shown = self._settings.of_broker(str(self._cluster.broker_id))
        return sorted(map(_shown, shown), key=lambda one: str(one["name"]))

    async def _change_here(self, asked: Any) -> None:
        rows, is_dry_run = checked(asked, list, bool)
        changes = [ConfigChange(*checked(row, str, int, str | None)) for row in rows]
        broker = str(self._cluster.broker_id)
        await self._settings.change(broker, changes, is_dry_run=is_dry_run)


def _shown(one: ShownSetting) -> dict[str, Any]:
    values = [{"value": value, "source": _SOURCES[source]} for value, source in one.synonyms]
    return _described(one.setting, one.value, _SOURCES[one.source], values)


def _described(
    setting: BrokerSetting, value: str | None, source: str, values: list[dict[str, Any]]
) -> dict[str, Any]:
    is_fixed = setting.name in FIXED
    return {
        "name": setting.name,
        "value": value,
        "source": source,
        "default": None if setting.is_sensitive else setting.default,
        "type": _TYPES.get(setting.type, "string"),
        "unit": unit_of(setting),
        "accepts": setting.kind.expected,
        "change": NEVER if is_fixed else LIVE if setting.can_change else RESTART,
        "sensitive": setting.is_sensitive,
        "documentation": setting.documentation,
        "values": values,
    }
