"""The settings of this broker as they are now, and changes to them while brokers run.

Invariants: the metadata store holds what was changed: one fact for all brokers, one for each broker
that differs. The order is Kafka's: this broker's change, the change for all brokers, what the
broker was started with, the default. Every change is validated before it is stored; one that cannot
be understood (a newer broker wrote it) is kept in its fact and has no effect here. BrokerConfig is
updated in place, so code that reads it at each use sees changes at once; the rest subscribes with
`on_change`.
"""

from __future__ import annotations

import asyncio
import logging
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.configurations import changed
from headrace.broker.settings.kinds import Text
from headrace.broker.settings.setting import BrokerSetting
from headrace.broker.settings.table import SETTINGS, setting_named, topic_default_of
from headrace.errors import ConfigInvalid, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.metadata.config_facts import BROKER_CONFIGS, BrokerConfigFact, broker_config_key
from headrace.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.services.configurations import ConfigChange
    from headrace.metadata.store import Entry, MetadataStore

log = logging.getLogger(__name__)

ALL_BROKERS: Final = ""
"""In place of a broker's id: the change is for every broker that has none of its own."""
_ATTEMPTS_MAX: Final = 10
BROKER_ID_MAX: Final = 2**31 - 1
ADVERTISED: Final = "advertised.listeners"
NODE_ID: Final = "node.id"


BROKER_ID: Final = "broker.id"
FIXED: Final[Mapping[str, str]] = {
    "default.replication.factor": "1",
    "log.cleanup.policy": "delete",
}
"""What is as it is, and what tools of Kafka's ask for."""
_FIXED_DOCUMENTATION: Final = "Shown for tools that ask for it; it cannot be set."


class Source(IntEnum):
    """Where a value comes from. Do not change: on Kafka's wire."""

    BROKER = 2
    ALL_BROKERS = 3
    START = 4
    DEFAULT = 5


class ShownSetting(NamedTuple):
    """One setting with its value, and where that comes from."""

    setting: BrokerSetting
    value: str | None
    """None: not set, or not to be shown."""
    source: Source
    synonyms: Sequence[tuple[str | None, Source]]
    """(value, source) of all that were set, the one that counts first."""


class BrokerSettings:
    """See the module."""

    def __init__(
        self, config: BrokerConfig, metadata: MetadataStore, given: Mapping[str, str]
    ) -> None:
        """`given`: what the broker was started with, by names; BrokerConfig says its own part."""
        self._config = config
        self._metadata = metadata
        self._changing = asyncio.Lock()
        self._listeners: list[Callable[[str, Any], None]] = []
        self._facts: dict[str, tuple[Mapping[str, str], int]] = {}
        """By broker id in decimal, ALL_BROKERS for all: (overrides, version)."""
        self._topic_defaults_changed: Callable[[], None] = lambda: None
        self._advertised: Callable[[], str] = lambda: ""
        self._start = {
            setting.name: self._started_with(setting, given) for setting in SETTINGS.values()
        }
        self._now = {name: value for name, (value, _) in self._start.items()}

    def _started_with(
        self, setting: BrokerSetting, given: Mapping[str, str]
    ) -> tuple[str | None, Source]:
        text = given.get(setting.name, setting.default)
        if setting.field is not None:
            value = getattr(self._config, setting.field)
            text = None if value is None else setting.kind.format(value)
        elif (topic_setting := topic_default_of(setting)) is not None:
            text = self._config.topic_defaults.get(topic_setting, setting.default)
        is_given = setting.name in given or text != setting.default or setting.name == NODE_ID
        return text, Source.START if is_given else Source.DEFAULT

    def attach(
        self, topic_defaults_changed: Callable[[], None], advertised: Callable[[], str]
    ) -> None:
        """`topic_defaults_changed`: gives all topics new defaults; `advertised`: the listeners as
        clients are told them."""
        self._topic_defaults_changed = topic_defaults_changed
        self._advertised = advertised

    def on_change(self, listener: Callable[[str, Any], None]) -> None:
        """Call `listener(name, value)` after each change of a setting on this broker."""
        self._listeners.append(listener)

    # --- what is stored ----------------------------------------------------------------------

    def apply(self, key: str, entry: Entry | None) -> None:
        """Take over what is stored under a key. Raises DataCorrupt, FormatUnsupported."""
        name = key.removeprefix(BROKER_CONFIGS)
        broker = ALL_BROKERS if key == broker_config_key(None) else name
        if entry is None:
            self._facts.pop(broker, None)
        elif broker not in self._facts or self._facts[broker][1] < entry.version:
            self._facts[broker] = BrokerConfigFact.decode(entry.value).configs, entry.version
        self._update()

    def overrides(self, broker: str) -> Mapping[str, str]:
        """What was changed for a broker, or for ALL_BROKERS, while brokers run."""
        fact = self._facts.get(broker)
        return {} if fact is None else fact[0]

    def _update(self) -> None:
        """Bring this broker's settings in line with what is stored."""
        are_defaults_new = False
        for name, setting in SETTINGS.items():
            if not setting.can_change:
                continue
            text = self._set_values(setting)[0][0]
            if text is None or text == self._now[name]:
                continue
            try:
                value = setting.parse(text, "the metadata store")
            except ConfigInvalid as error:
                log.warning("%s; this broker goes on with %s", error, self._now[name])
                continue
            self._now[name] = text
            if setting.field is not None:
                setattr(self._config, setting.field, value)
            elif (topic_setting := topic_default_of(setting)) is not None:
                self._config.topic_defaults[topic_setting] = text
                are_defaults_new = True
            log.info("%s is %s now", name, text)
            for listener in self._listeners:
                listener(name, value)
        if are_defaults_new:
            self._topic_defaults_changed()

    def _set_values(self, setting: BrokerSetting) -> list[tuple[str | None, Source]]:
        """All that were set for this broker, the one that counts first."""
        found: list[tuple[str | None, Source]] = []
        if setting.can_change:
            for broker, source in (
                (str(self._config.broker_id), Source.BROKER),
                (ALL_BROKERS, Source.ALL_BROKERS),
            ):
                value = self.overrides(broker).get(setting.name)
                if value is not None:
                    found.append((value, source))
        value, source = self._start[setting.name]
        found.append((value, source))
        if source == Source.START and setting.default is not None:
            found.append((setting.default, Source.DEFAULT))
        return found

    # --- what is shown -----------------------------------------------------------------------

    def of_broker(self, broker: str) -> list[ShownSetting]:
        """All settings of this broker; for ALL_BROKERS those that were changed for all.

        Raises RequestInvalid for another broker: it knows what it was started with.
        """
        if broker == ALL_BROKERS:
            return [
                _shown(SETTINGS[name], [(value, Source.ALL_BROKERS)])
                for name, value in self.overrides(ALL_BROKERS).items()
                if name in SETTINGS
            ]
        if broker != str(self._config.broker_id):
            raise RequestInvalid(
                f"this is broker {self._config.broker_id}, which cannot show the settings of broker"
                f" {broker[:50]!r}: ask that one"
            )
        shown = [_shown(setting, self._set_values(setting)) for setting in SETTINGS.values()]
        fixed = {**FIXED, BROKER_ID: broker, ADVERTISED: self._advertised()}
        return [
            *(one for one in shown if one.setting.name not in fixed),
            *(_fixed(name, value) for name, value in fixed.items()),
        ]

    # --- changes -----------------------------------------------------------------------------

    async def change(
        self, broker: str, changes: Sequence[ConfigChange], *, is_dry_run: bool = False
    ) -> None:
        """Change some settings of a broker, or of ALL_BROKERS.

        Raises ConfigInvalid, RequestInvalid, MetadataUnavailable.
        """
        change = partial(changed, changes, definitions=SETTINGS, check=_check)
        await self._change(broker, change, is_dry_run=is_dry_run)

    async def replace(
        self, broker: str, configs: Mapping[str, str], *, is_dry_run: bool = False
    ) -> None:
        """Set these and no others. Raises what `change` does."""
        await self._change(broker, lambda _: configs, is_dry_run=is_dry_run)

    async def _change(
        self,
        broker: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_dry_run: bool,
    ) -> None:
        key = broker_config_key(_broker_id(broker))
        async with self._changing:
            for _ in range(_ATTEMPTS_MAX):
                before, version = self._facts.get(broker, ({}, ABSENT))
                after = dict(change(before))
                for name, value in after.items():
                    if before.get(name) != value:
                        _check(name, value)
                if is_dry_run or after == before:
                    return
                try:
                    version = await self._metadata.put(
                        key, BrokerConfigFact(after).encode(), version
                    )
                except VersionConflict:  # another broker was faster: change what it left
                    self.apply(key, await self._metadata.get(key))
                    continue
                self._facts[broker] = after, version
                self._update()
                return
        raise MetadataUnavailable(
            "the settings of brokers keep changing; nothing was changed by this request: try again"
        )


def _fixed(name: str, value: str) -> ShownSetting:
    setting = SETTINGS.get(name) or BrokerSetting(name, Text(), _FIXED_DOCUMENTATION)
    return _shown(setting, [(value, Source.START)])


def _shown(setting: BrokerSetting, values: Sequence[tuple[str | None, Source]]) -> ShownSetting:
    if setting.is_sensitive:
        values = [(None, source) for _, source in values]
    value, source = values[0]
    return ShownSetting(setting, value, source, values)


def _broker_id(broker: str) -> int | None:
    """The id; None for ALL_BROKERS. Raises RequestInvalid."""
    if broker == ALL_BROKERS:
        return None
    if not (broker.isascii() and broker.isdigit() and int(broker) <= BROKER_ID_MAX):
        raise RequestInvalid(f"{broker[:50]!r} is not the id of a broker; nothing was changed")
    if broker != str(int(broker)):
        raise RequestInvalid(f"{broker[:50]!r}: write the broker's id without leading zeros")
    return int(broker)


def _check(name: str, value: str | None) -> None:
    """Raises ConfigInvalid unless the setting exists, can change, and takes the value."""
    setting = setting_named(name)
    if not setting.can_change:
        raise ConfigInvalid(
            f"{name} cannot be changed while a broker runs; nothing was changed. Start the broker"
            f" with --{setting.option} instead"
        )
    setting.parse(value, "the request")
