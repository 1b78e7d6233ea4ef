"""Client metrics subscriptions: which clients push which metrics, and how often (KIP-714).

Invariants: Kafka's names, limits and defaults (`ClientMetricsConfigs`). The metadata store holds
the subscriptions for all brokers; a change is a compare-and-set. A pattern never blocks the broker:
RE2 matches it, against the whole of a client's property.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.coordinators.topic_patterns import compiled_pattern
from headrace.broker.services.configurations import Setting, changed
from headrace.broker.topics.topic_config import INT, LIST, ConfigDefinition
from headrace.errors import (
    ConfigInvalid,
    DataCorrupt,
    RegularExpressionInvalid,
    RequestInvalid,
)
from headrace.metadata.client_metrics_facts import (
    CLIENT_METRICS,
    SubscriptionFact,
    subscription_key,
    subscription_of_key,
)
from headrace.metadata.decoding import decode_fact
from headrace.metadata.followed_facts import FollowedFacts
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.services.configurations import ConfigChange
    from headrace.metadata.store import MetadataEntry, MetadataStore

METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
ALL: Final = "*"
"""Stands for all metrics."""
PROPERTIES: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a subscription may match."""
SUBSCRIPTIONS_MAX: Final = 1_000
"""Each is compared with every client that asks."""
NAME_LENGTH_MAX: Final = 255
"""Characters: the name is part of a key."""
TEXT_LENGTH_MAX: Final = 10_000
"""Characters of a list: all of it is sent to every client."""
_INTEGER: Final = re.compile(r"[0-9]{1,9}")


def _is_interval(text: str) -> bool:
    return bool(_INTEGER.fullmatch(text)) and INTERVAL_MS_MIN <= int(text) <= INTERVAL_MS_MAX


def _is_short(text: str) -> bool:
    return len(text) <= TEXT_LENGTH_MAX


def _is_match(text: str) -> bool:
    return _is_short(text) and parse_match(text) is not None


DEFINITIONS: Final = {
    one.name: one
    for one in (
        ConfigDefinition(
            METRICS,
            LIST,
            "",
            "Prefixes of the names of the metrics that clients push; * for all of them, none if"
            " empty.",
            _is_short,
        ),
        ConfigDefinition(
            INTERVAL,
            INT,
            str(INTERVAL_MS_DEFAULT),
            "How often a client pushes its metrics: from 100 ms to an hour.",
            _is_interval,
        ),
        ConfigDefinition(
            MATCH,
            LIST,
            "",
            "The clients that push: property=regular expression, all of which must match; every"
            " client if empty. Properties: " + ", ".join(PROPERTIES) + ".",
            _is_match,
        ),
    )
}


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_match(text: str) -> dict[str, Any]:
    """The compiled pattern of each property of a client. Raises ConfigInvalid."""
    found: dict[str, Any] = {}
    for part in _parts(text):
        name, separator, pattern = part.partition("=")
        if not separator or "=" in pattern or name.strip() not in PROPERTIES:
            raise ConfigInvalid(
                f"{part[:200]!r} is not PROPERTY=PATTERN with one of the properties "
                + ", ".join(PROPERTIES)
            )
        try:
            found[name.strip()] = compiled_pattern(pattern.strip())
        except RegularExpressionInvalid as error:
            raise ConfigInvalid(str(error)) from error
    return found


def check_client_metrics_config(name: str, value: str | None) -> None:
    """Raises ConfigInvalid."""
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise ConfigInvalid(
            f"unknown client metrics configuration {name[:100]!r}: there are "
            + ", ".join(DEFINITIONS)
        )
    if value is None or not definition.check(value):
        raise ConfigInvalid(f"invalid value {str(value)[:200]!r} for {name}")


class Subscription(NamedTuple):
    """What a client is to push."""

    metrics: tuple[str, ...]
    """Prefixes of names, sorted; ALL alone for all; empty: nothing."""
    interval_ms: int


class _Stored(NamedTuple):
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Any]


def _parsed(key: str, configs: Mapping[str, str]) -> _Stored:
    """Raises DataCorrupt."""
    try:
        for name, value in configs.items():
            check_client_metrics_config(name, value)
        match = parse_match(configs.get(MATCH, ""))
    except ConfigInvalid as error:
        raise DataCorrupt(f"{key}: {error}; set it again", key=key) from error
    interval_ms = int(configs.get(INTERVAL, INTERVAL_MS_DEFAULT))
    return _Stored(tuple(_parts(configs.get(METRICS, ""))), interval_ms, match)


class ClientMetrics:
    """See the module."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._changing = FairLock()
        self._facts: dict[str, SubscriptionFact] = {}
        self._stored: dict[str, _Stored] = {}
        self.facts = FollowedFacts(metadata, CLIENT_METRICS, "a subscription", self.apply)
        self.version = 0
        """Counts changes of subscriptions."""

    def apply(self, key: str, entry: MetadataEntry | None) -> None:
        """Apply the entry stored under a key. Raises DataCorrupt, FormatUnsupported."""
        name = subscription_of_key(key)
        fact = SubscriptionFact({}) if entry is None else decode_fact(SubscriptionFact, entry)
        self.facts.note(key, entry, is_empty=fact.is_empty)
        self.version += 1
        self._facts.pop(name, None)
        self._stored.pop(name, None)
        if fact.configs:
            self._facts[name] = fact
            self._stored[name] = _parsed(key, fact.configs)

    @property
    def is_any(self) -> bool:
        """Whether there is a subscription."""
        return bool(self._facts)

    def names(self) -> list[str]:
        """The existing subscriptions, sorted."""
        return sorted(self._facts)

    def settings(self, name: str) -> list[Setting]:
        """All settings of a subscription: of one that does not exist, the defaults, as in Kafka.
        Raises RequestInvalid."""
        _check_name(name)
        fact = self._facts.get(name)
        overrides = {} if fact is None else fact.configs
        return [
            Setting(
                definition, overrides.get(one, definition.default), definition.default,
                one in overrides, is_broker_default=False,
            )
            for one, definition in DEFINITIONS.items()
        ]  # fmt: skip

    async def change(
        self, name: str, changes: Sequence[ConfigChange], *, is_dry_run: bool = False
    ) -> None:
        """Change some settings; a subscription without any does not exist. Raises ConfigInvalid,
        RequestInvalid, MetadataUnavailable."""
        change = partial(
            changed, changes, definitions=DEFINITIONS, check=check_client_metrics_config
        )
        await self._change(name, change, is_dry_run=is_dry_run)

    async def replace(
        self, name: str, configs: Mapping[str, str], *, is_dry_run: bool = False
    ) -> None:
        """Set exactly these settings. Raises what `change` raises."""
        for one, value in configs.items():
            check_client_metrics_config(one, value)
        await self._change(name, lambda _overrides: dict(configs), is_dry_run=is_dry_run)

    async def _change(
        self, name: str, change: Callable[[Mapping[str, str]], dict[str, str]], *, is_dry_run: bool
    ) -> None:
        _check_name(name)
        key = subscription_key(name)

        def changed(entry: MetadataEntry | None) -> bytes | None:
            before = SubscriptionFact({}) if entry is None else decode_fact(SubscriptionFact, entry)
            configs = change(before.configs)
            if configs and name not in self._facts and len(self._facts) >= SUBSCRIPTIONS_MAX:
                raise RequestInvalid(
                    f"there are {SUBSCRIPTIONS_MAX} client metrics subscriptions, which is the"
                    " limit: delete others first"
                )
            if is_dry_run or configs == before.configs:
                return None
            return SubscriptionFact(configs, before.unknown).encode()

        async with self._changing:
            await self.facts.change(key, changed)

    def of_client(self, properties: Mapping[str, str]) -> Subscription:
        """What the client with these properties is to push: the union of the subscriptions that
        match it, at the shortest of their intervals."""
        metrics: set[str] = set()
        interval_ms = INTERVAL_MS_DEFAULT
        for stored in self._stored.values():
            if all(
                pattern.fullmatch(properties.get(name, "")) is not None
                for name, pattern in stored.match.items()
            ):
                metrics.update(stored.metrics)
                interval_ms = min(interval_ms, stored.interval_ms)
        chosen = (ALL,) if ALL in metrics else tuple(sorted(metrics))
        return Subscription(chosen, interval_ms)


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise RequestInvalid(
            f"a client metrics subscription needs a name of 1 to {NAME_LENGTH_MAX} characters"
        )
