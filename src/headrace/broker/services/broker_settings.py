"""The current settings of this broker, and dynamic changes to them.

Invariants: the metadata store holds the changes: one fact for all brokers, and one for each broker
that differs. The precedence is Kafka's: change for this broker, change for all brokers, start-up
setting, default. Every change is validated before it is stored; one that cannot be parsed (written
by a newer broker) stays in its fact and has no effect here. BrokerConfig is updated in place, so
code that reads it on each use sees changes at once; other code subscribes with `on_change`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.configurations import SET, changed
from headrace.broker.settings.kinds import Text
from headrace.broker.settings.setting import BrokerSetting
from headrace.broker.settings.table import SETTINGS, setting_named, topic_default_of
from headrace.errors import ConfigInvalid, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.metadata.config_facts import BROKER_CONFIGS, BrokerConfigFact, broker_config_key
from headrace.metadata.decoding import decode_fact
from headrace.metadata.store import ABSENT
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.services.configurations import ConfigChange
    from headrace.metadata.store import MetadataEntry, MetadataStore

log = logging.getLogger(__name__)

ALL_BROKERS: Final = ""
"""Replaces a broker id: the change applies to every broker without a change of its own."""
_ATTEMPTS_MAX: Final = 10
BROKER_ID_MAX: Final = 2**31 - 1
ADVERTISED: Final = "advertised.listeners"
NODE_ID: Final = "node.id"
_CERTIFICATE_FILES: Final = ("ssl.keystore.location", "ssl.truststore.location")
"""Names end so, with or without that of a listener before."""


BROKER_ID: Final = "broker.id"
FIXED: Final[Mapping[str, str]] = {
    "default.replication.factor": "1",
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "errors.deadletterqueue.topic.name.prefix": "",
    "log.cleanup.policy": "delete",
}
"""Constant settings that Kafka's tools ask for."""
_FIXED_DOCUMENTATION: Final = "Shown for compatibility with Kafka's tools; read-only."


class SettingSource(IntEnum):
    """Where a value comes from. Do not change: on Kafka's wire."""

    BROKER = 2
    ALL_BROKERS = 3
    START = 4
    DEFAULT = 5


class ShownSetting(NamedTuple):
    """One setting with its value and source."""

    setting: BrokerSetting
    value: str | None
    """None: not set, or sensitive."""
    source: SettingSource
    synonyms: Sequence[tuple[str | None, SettingSource]]
    """(value, source) of all values that are set, in order of precedence."""


class BrokerSettings:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        given: Mapping[str, str],
        read_certificates: Callable[[], Awaitable[None]],
    ) -> None:
        """`given`: start-up settings by name; BrokerConfig has its own part. `read_certificates`
        reads their files again; raises RequestInvalid."""
        self.current = config
        """Read by every use: dynamic changes are made in place."""
        self._metadata = metadata
        self._changing = FairLock()
        self._listeners: list[Callable[[str, Any], None]] = []
        self._facts: dict[str, tuple[Mapping[str, str], int]] = {}
        """By broker id in decimal, ALL_BROKERS for all: (overrides, version)."""
        self._topic_defaults_changed: Callable[[], None] = lambda: None
        self._read_certificates = read_certificates
        self._advertised: Callable[[], Mapping[str, str]] = dict[str, str]
        of_listeners = [setting_named(name) for name in given if name not in SETTINGS]
        self._shown = [*SETTINGS.values(), *of_listeners]
        self._start = {setting.name: self._started_with(setting, given) for setting in self._shown}
        self._now = {name: value for name, (value, _) in self._start.items()}

    def _started_with(
        self, setting: BrokerSetting, given: Mapping[str, str]
    ) -> tuple[str | None, SettingSource]:
        text = given.get(setting.name, setting.default)
        if setting.field is not None:
            value = getattr(self.current, setting.field)
            text = None if value is None else setting.kind.format(value)
        elif (topic_setting := topic_default_of(setting)) is not None:
            text = self.current.topic_defaults.get(topic_setting, setting.default)
        is_given = setting.name in given or text != setting.default or setting.name == NODE_ID
        return text, SettingSource.START if is_given else SettingSource.DEFAULT

    def attach(
        self,
        topic_defaults_changed: Callable[[], None],
        advertised: Callable[[], Mapping[str, str]],
    ) -> None:
        """`topic_defaults_changed`: applies new defaults to all topics; `advertised`: the
        advertised addresses, by setting."""
        self._topic_defaults_changed = topic_defaults_changed
        self._advertised = advertised

    def on_change(self, listener: Callable[[str, Any], None]) -> None:
        """Call `listener(name, value)` after each change of a setting on this broker."""
        self._listeners.append(listener)

    # --- stored state ------------------------------------------------------------------------

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a key. Raises DataCorrupt, FormatUnsupported."""
        name = key.removeprefix(BROKER_CONFIGS)
        broker = ALL_BROKERS if key == broker_config_key(None) else name
        if entry is None:
            self._facts.pop(broker, None)
        elif broker not in self._facts or self._facts[broker][1] < entry.version:
            self._facts[broker] = decode_fact(BrokerConfigFact, entry).configs, entry.version
        self._update()

    def overrides(self, broker: str) -> Mapping[str, str]:
        """The dynamic changes for a broker, or for ALL_BROKERS."""
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
                log.warning("%s; this broker continues with %s", error, self._now[name])
                continue
            self._now[name] = text
            if setting.field is not None:
                setattr(self.current, setting.field, value)
            elif (topic_setting := topic_default_of(setting)) is not None:
                self.current.topic_defaults[topic_setting] = text
                are_defaults_new = True
            log.info("setting %s changed to %s", name, text)
            for listener in self._listeners:
                listener(name, value)
        if are_defaults_new:
            self._topic_defaults_changed()

    def _set_values(self, setting: BrokerSetting) -> list[tuple[str | None, SettingSource]]:
        """All values that are set for this broker, in order of precedence."""
        found: list[tuple[str | None, SettingSource]] = []
        if setting.can_change:
            for broker, source in (
                (str(self.current.broker_id), SettingSource.BROKER),
                (ALL_BROKERS, SettingSource.ALL_BROKERS),
            ):
                value = self.overrides(broker).get(setting.name)
                if value is not None:
                    found.append((value, source))
        value, source = self._start[setting.name]
        found.append((value, source))
        if source == SettingSource.START and setting.default is not None:
            found.append((setting.default, SettingSource.DEFAULT))
        return found

    # --- description -------------------------------------------------------------------------

    def of_broker(self, broker: str) -> list[ShownSetting]:
        """All settings of this broker; for ALL_BROKERS, the changes for all brokers.

        Raises RequestInvalid for another broker: only that one knows its start-up settings.
        """
        if broker == ALL_BROKERS:
            return [
                _shown(SETTINGS[name], [(value, SettingSource.ALL_BROKERS)])
                for name, value in self.overrides(ALL_BROKERS).items()
                if name in SETTINGS
            ]
        if broker != str(self.current.broker_id):
            raise RequestInvalid(
                f"this is broker {self.current.broker_id}, which does not know the settings "
                f"of broker {broker[:50]!r}: send the request to that broker"
            )
        shown = [_shown(setting, self._set_values(setting)) for setting in self._shown]
        fixed = {**FIXED, BROKER_ID: broker, **self._advertised()}
        return [
            *(one for one in shown if one.setting.name not in fixed),
            *(_fixed(name, value) for name, value in fixed.items()),
        ]

    # --- changes -----------------------------------------------------------------------------

    async def change(
        self, broker: str, changes: Sequence[ConfigChange], *, is_dry_run: bool = False
    ) -> None:
        """Change some settings of a broker, or of ALL_BROKERS.

        A file of certificates that is set to the name it has is read again, as in Kafka, and the
        rest of `changes` is applied. Raises ConfigInvalid, RequestInvalid, MetadataUnavailable.
        """
        _check_not_fixed(one.name for one in changes)
        rest = [one for one in changes if not self._is_reread(one)]
        if len(rest) < len(changes):
            if broker not in {ALL_BROKERS, str(self.current.broker_id)}:
                raise RequestInvalid(
                    f"certificates are read by the broker that is asked, {self.current.broker_id},"
                    f" not by broker {broker[:50]!r}: send the request to that broker"
                )
            if not is_dry_run:
                await self._read_certificates()
            changes = rest
        change = partial(changed, changes, definitions=_definitions(changes), check=_check)
        await self._change(broker, change, is_dry_run=is_dry_run)

    def _is_reread(self, change: ConfigChange) -> bool:
        """Whether it names the file of certificates that is in use."""
        common = next((one for one in _CERTIFICATE_FILES if change.name.endswith(f".{one}")), "")
        named = self._start.get(change.name) or self._start.get(common) or (None, None)
        is_same = change.operation == SET and named[0] is not None and change.value == named[0]
        return is_same and change.name.endswith(_CERTIFICATE_FILES)

    async def replace(
        self, broker: str, configs: Mapping[str, str], *, is_dry_run: bool = False
    ) -> None:
        """Set exactly these overrides. Raises what `change` raises."""
        _check_not_fixed(configs)
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
                except VersionConflict:  # another broker was faster: retry on top of its change
                    self.apply(key, await self._metadata.get(key))
                    continue
                self._facts[broker] = after, version
                self._update()
                return
        raise MetadataUnavailable(
            "the settings of brokers are being changed concurrently: nothing was changed "
            "by this request, try again"
        )


async def nothing_to_read() -> None:
    """Of a broker without certificates."""


def _fixed(name: str, value: str) -> ShownSetting:
    setting = SETTINGS.get(name) or BrokerSetting(name, Text(), _FIXED_DOCUMENTATION)
    return _shown(setting, [(value, SettingSource.START)])


def _shown(
    setting: BrokerSetting, values: Sequence[tuple[str | None, SettingSource]]
) -> ShownSetting:
    if setting.is_sensitive:
        values = [(None, source) for _, source in values]
    value, source = values[0]
    return ShownSetting(setting, value, source, values)


def _broker_id(broker: str) -> int | None:
    """The id; None for ALL_BROKERS. Raises RequestInvalid."""
    if broker == ALL_BROKERS:
        return None
    if not (broker.isascii() and broker.isdigit() and int(broker) <= BROKER_ID_MAX):
        raise RequestInvalid(
            f"{broker[:50]!r} is not a broker id: use a number; nothing was changed"
        )
    if broker != str(int(broker)):
        raise RequestInvalid(f"{broker[:50]!r}: write the broker's id without leading zeros")
    return int(broker)


def _definitions(changes: Iterable[ConfigChange]) -> Mapping[str, BrokerSetting]:
    """Those of all brokers, and those of single listeners that are to be changed."""
    found = dict(SETTINGS)
    for name, _operation, _value in changes:
        with suppress(ConfigInvalid):  # refused as unknown
            found[name] = setting_named(name)
    return found


def _check_not_fixed(changes: Iterable[str]) -> None:
    for name in changes:
        if name in FIXED:
            raise ConfigInvalid(
                f"{name} is always {FIXED[name]!r} in this broker and cannot be changed: nothing "
                "was changed"
            )


def _how_to_start(setting: BrokerSetting) -> str:
    """Where a setting is set that is read at the start; the command line takes no secrets."""
    is_of_all = setting.name in SETTINGS
    if setting.is_secret:
        variable = f"{setting.variable}, or with " if is_of_all else ""
        return f"{variable}{setting.name} in [{setting.section}] of the file of --config"
    return f"--{setting.option}" if is_of_all else f"--listener-setting {setting.name}=VALUE"


def _check(name: str, value: str | None) -> None:
    """Raise ConfigInvalid unless the setting exists, is dynamic, and accepts the value."""
    setting = setting_named(name)
    if not setting.can_change:
        raise ConfigInvalid(
            f"{name} cannot be changed while the broker is running: nothing was changed. "
            f"Restart the broker with {_how_to_start(setting)}"
        )
    setting.parse(value, "the request")
