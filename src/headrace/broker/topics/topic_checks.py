"""What a topic may be: its name, its partitions, its configuration.

Invariants: looks at what is asked for and at what this broker can do; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topics.overrides import is_remote, log_config
from headrace.broker.topics.topic_config import ONE_COPY, QUORUM, check_config
from headrace.errors import (
    ConfigInvalid,
    PartitionsInvalid,
    ReplicationFactorInvalid,
    TopicExists,
    TopicNameInvalid,
)
from headrace.log.tiering import SAME_AS_RETENTION
from headrace.records.identifiers import INTERNAL_TOPICS, is_topic_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.broker.broker_config import BrokerConfig
    from headrace.log.environment import Environment

REPLICATION_FACTOR_MAX = 9


class TopicChecks:
    """Of one broker."""

    def __init__(
        self, environment: Environment, config: BrokerConfig, *, is_standalone: bool
    ) -> None:
        self._environment = environment
        self._config = config
        self._is_standalone = is_standalone

    def check_new(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str],
        names: Collection[str],
    ) -> None:
        """Raises the error that creating such a topic beside those of `names` would meet."""
        if not is_topic_name(name):
            raise TopicNameInvalid(
                f"{name[:249]!r} is no topic name: 1 to 249 of the characters a-z A-Z 0-9 . _ -,"
                " and not . or .."
            )
        if name in names:
            raise TopicExists(f"topic {name!r} is there already")
        # Kafka's metrics fold . into _, so it refuses such pairs; so do we, or a cluster could
        # not be moved back.
        folded = name.replace(".", "_")
        if "." in name or "_" in name:
            for other in (*names, *INTERNAL_TOPICS):
                if other != name and other.replace(".", "_") == folded:
                    raise TopicNameInvalid(f"{name!r} collides with the topic {other!r}: . and _")
        self.check_partition_count(partition_count)
        most = 1 if self._is_standalone else REPLICATION_FACTOR_MAX
        if not 1 <= replication_factor <= most:
            raise ReplicationFactorInvalid(
                f"replication factor {replication_factor} is impossible: from 1 to {most}, or -1"
                " for the default; how often bytes are kept is a matter of the storage"
            )
        self.check_configs(configs, {})

    def check_configs(self, configs: Mapping[str, str], before: Mapping[str, str]) -> None:
        """Raises ConfigInvalid for overrides that were not there `before` as they are now."""
        for key, value in configs.items():
            if before.get(key) != value:  # else it stands already; perhaps a newer broker set it
                check_config(key, value)
        check_tiering(configs, before, has_objects=self._environment.tier is not None)
        check_quorum(configs, before, is_replicated=self._environment.is_shared)

    def check_partition_count(self, count: int) -> None:
        """Raises PartitionsInvalid."""
        if not 1 <= count <= self._config.partition_count_max:
            raise PartitionsInvalid(
                f"{count} partitions are not possible: from 1 to {self._config.partition_count_max}"
            )


def check_tiering(
    configs: Mapping[str, str], before: Mapping[str, str], *, has_objects: bool
) -> None:
    """Raises ConfigInvalid where a topic's overrides contradict each other about tiers (KIP-405).

    `before` holds the overrides of now: what is on already stays on, whatever the broker has.
    """
    if not is_remote(configs):
        return
    if not has_objects and not is_remote(before):
        raise ConfigInvalid(
            "remote.storage.enable=true is impossible: this broker has no object storage; start it"
            " with --objects"
        )
    config = log_config(configs)
    for name, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local != SAME_AS_RETENTION and whole != -1 and (local == -1 or local > whole):
            raise ConfigInvalid(
                f"local.retention.{name}={local} is more than retention.{name}={whole}: a local"
                " copy does not outlive its ledger; lower the one or raise the other"
            )


def check_quorum(
    configs: Mapping[str, str], before: Mapping[str, str], *, is_replicated: bool
) -> None:
    """Raises ConfigInvalid where copies are asked of a broker that keeps one of each ledger.

    `before` as for `check_tiering`.
    """
    asked = configs.get(QUORUM, ONE_COPY)
    if not is_replicated and asked not in {ONE_COPY, before.get(QUORUM)}:
        raise ConfigInvalid(
            f"{QUORUM}={asked} is impossible: this broker keeps its ledgers in files of its own,"
            " one copy of each; copies take BookKeeper (headrace serve --zookeeper)"
        )
