"""The logs of topics on this broker: how they are made and configured, and what they count.

Invariants: takes topics as they are handed in, and knows neither which ones exist nor who serves
them. A log has the settings of its topic, with the broker's defaults where the topic has none. All
logs that a partition has had on this broker count into the same `Traffic`, until `forget`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from headrace.broker.topics.overrides import shared_log_config
from headrace.log.partition_log import PartitionLog
from headrace.records.identifiers import INTERNAL_TOPICS

if TYPE_CHECKING:
    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.topics.topic import Topic
    from headrace.log.environment import Environment
    from headrace.log.log_config import LogConfig
    from headrace.log.traffic import Traffic
    from headrace.metadata.facts import PartitionKey, TopicFact

SHARED_LEDGER_BYTES_MAX = 256 * 1024 * 1024


class TopicLogs:
    """See the module."""

    def __init__(self, environment: Environment, config: BrokerConfig) -> None:
        self._environment = environment
        self._config = config
        self.companions: dict[PartitionKey, PartitionLog] = {}
        """As opened last, by their hosts."""
        self.traffic: dict[str, dict[int, Traffic]] = defaultdict(dict)

    def make(self, fact: TopicFact, number: int, leader_epoch: int | None = None) -> PartitionLog:
        """A partition's log, served under `leader_epoch` (None: only this broker ever owns it)."""
        made = PartitionLog(
            f"{fact.name}-{number}",
            fact.id,
            number,
            self.config_of(fact),
            self._environment,
            leader_epoch,
        )
        made.traffic = self.traffic[fact.name].setdefault(number, made.traffic)
        made.expect_chain(is_expected=fact.has_chain(number))
        return made

    def config_of(self, fact: TopicFact) -> LogConfig:
        """The settings of a topic's logs."""
        configs, defaults = fact.configs, self._config.topic_defaults
        if defaults and fact.name not in INTERNAL_TOPICS:  # the internal topics' are fixed
            configs = {**defaults, **configs}
        # Over shared storage, a broker that takes over a ledger reads all of it.
        ledger_bytes_max = SHARED_LEDGER_BYTES_MAX if self._environment.is_shared else None
        return shared_log_config(tuple(configs.items()), ledger_bytes_max)

    def configure(self, topic: Topic) -> None:
        """Apply the topic's settings, or defaults, that have changed."""
        config = self.config_of(topic.fact)
        for _, partition in topic.logs:
            partition.config = config

    def forget(self, name: str) -> None:
        """The topic was deleted."""
        self.traffic.pop(name, None)
